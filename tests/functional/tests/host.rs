//! One agent for the host: containers of different users, in networks of their own.

use std::net::SocketAddr;

use shunt_functional::binaries::{built, program};
use shunt_functional::container::{Container, Users};
use shunt_functional::generator::{Server, records};
use shunt_functional::mode::Mode;
use shunt_functional::network::Network;
use shunt_functional::record::{Record, compare};
use shunt_functional::sandbox::{Expect, Process, Sandbox, is_root};

/// Users of the host without a name.
const SOMEBODY: u32 = 61_001;
const ANOTHER: u32 = 61_002;

const TRAFFIC: [&str; 6] = ["-n", "20", "-b", "1000000", "--style", "epoll-et"];

/// False, and says so, where no namespaces can be made.
fn can() -> bool {
    let root = is_root();
    if !root {
        println!("left out: only root can make networks");
    }
    root
}

/// Two bridges: one with the containers `a` and `b`, one with `c` and `d`.
fn four() -> Network {
    let mut network = Network::new();
    network.add_bridge("near", "10.77.0");
    network.add_bridge("far", "10.78.0");
    network.add("a", "near", "10.77.0", 1);
    network.add("b", "near", "10.77.0", 2);
    network.add("c", "far", "10.78.0", 3);
    network.add("d", "far", "10.78.0", 4);
    network
}

/// A server in a container, at this address of its own.
fn serve(sandbox: &Sandbox, at: &Container<'_>, listen: &str, traffic: &[&str]) -> Server {
    let mut command = at.command(built("shunt-gen"));
    command.args(["serve", "--listen", listen]).args(traffic);
    Server::of(sandbox.spawn(command))
}

/// Its clients, in another one.
fn connect(sandbox: &Sandbox, at: &Container<'_>, to: SocketAddr, traffic: &[&str]) -> Process {
    let mut command = at.command(built("shunt-gen"));
    command.args(["connect", "--to", &to.to_string()]).args(traffic);
    sandbox.spawn(command)
}

fn verify(clients: &[Record], servers: &[Record]) {
    compare(clients, servers).unwrap_or_else(|e| panic!("{e}"));
}

/// Traffic from a container to another one that listens at `ip`, and is found at `to` (the same port if that is 0).
fn traffic(
    sandbox: &Sandbox,
    (client, server): (&Container<'_>, &Container<'_>),
    (ip, to): (&str, &str),
    args: &[&str],
) {
    let listening = serve(sandbox, server, ip, args);
    let mut to: SocketAddr = to.parse().unwrap();
    if to.port() == 0 {
        to.set_port(listening.port);
    }
    let clients = records(connect(sandbox, client, to, args));
    verify(&clients, &listening.finish());
}

/// A service address that is none of any container's.
const SERVICE: &str = "10.96.0.1:80";

/// Connections to the service go to `to`, from another port of another address.
fn add_service(network: &Network, to: &str) {
    let rules = format!(
        "table ip service {{ chain in {{ type nat hook prerouting priority dstnat; \
         ip daddr 10.96.0.1 tcp dport 80 dnat to {to}; }}; \
         chain out {{ type nat hook postrouting priority srcnat; ct status dnat masquerade; }}; }}"
    );
    network.inside("host", &["nft", &rules]);
}

fn everywhere(mode: Mode) {
    if !can() {
        return;
    }
    let sandbox = Sandbox::for_host(mode, &[]);
    let network = four();
    add_service(&network, "10.78.0.4:8080");
    let at = |name, users| Container::new(&sandbox, &network, name, users);
    let a = at("a", Users::Own(SOMEBODY));
    let b = at("b", Users::Of(ANOTHER));
    let c = at("c", Users::Own(ANOTHER));
    let d = at("d", Users::Of(SOMEBODY));
    let all = |pair, addresses| {
        sandbox.expect(Expect::All(40), || traffic(&sandbox, pair, addresses, &TRAFFIC));
    };
    // Across a bridge, both ways; across a routed hop; through an address that is rewritten, at both ends.
    all((&a, &b), ("10.77.0.2:0", "10.77.0.2:0"));
    all((&b, &a), ("0.0.0.0:0", "10.77.0.1:0"));
    all((&c, &b), ("10.77.0.2:0", "10.77.0.2:0"));
    all((&a, &d), ("10.78.0.4:8080", SERVICE));
}

#[test]
fn across_a_bridge_a_route_and_a_service_address() {
    everywhere(Mode::Attach);
}

#[test]
fn the_same_in_copy_mode() {
    everywhere(Mode::Copy);
}

/// The agent may not use eBPF.
#[test]
fn without_marks_all_is_tcp() {
    if !can() {
        return;
    }
    let sandbox = Sandbox::for_host(Mode::Attach, &[]);
    sandbox.kill_agent();
    let mut command = sandbox.plain(program("setpriv"));
    command.args(["--bounding-set", "-sys_admin,-bpf", "--inh-caps", "-sys_admin,-bpf"]);
    sandbox.start_host_agent_by(command);
    assert!(sandbox.agent_log().contains("cannot be marked"), "{}", sandbox.agent_log());
    let network = four();
    add_service(&network, "10.78.0.4:8080");
    let at = |name, users| Container::new(&sandbox, &network, name, users);
    let a = at("a", Users::Own(SOMEBODY));
    let d = at("d", Users::Of(ANOTHER));
    let before = sandbox.stats();
    sandbox.expect(Expect::Nothing, || {
        traffic(&sandbox, (&a, &d), ("10.78.0.4:0", "10.78.0.4:0"), &TRAFFIC);
        traffic(&sandbox, (&a, &d), ("10.78.0.4:8080", SERVICE), &TRAFFIC);
    });
    let told = sandbox.stats().declined("unmarked") - before.declined("unmarked");
    assert_eq!(told, 40, "the clients' ends: {:?}", sandbox.stats().reasons());
}
