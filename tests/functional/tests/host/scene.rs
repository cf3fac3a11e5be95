//! Four containers at two bridges, and what runs in them.

use std::net::SocketAddr;

use shunt_functional::binaries::built;
use shunt_functional::container::Container;
use shunt_functional::generator::{Server, records};
use shunt_functional::network::Network;
use shunt_functional::record::{Record, compare};
use shunt_functional::sandbox::{Process, Sandbox, is_root};

/// Users of the host without a name.
pub const SOMEBODY: u32 = 61_001;
pub const ANOTHER: u32 = 61_002;
pub const HOSTILE: u32 = 61_003;

pub const TRAFFIC: [&str; 6] = ["-n", "20", "-b", "1000000", "--style", "epoll-et"];

/// False, and says so, where no namespaces can be made.
pub fn can() -> bool {
    let root = is_root();
    if !root {
        println!("left out: only root can make networks");
    }
    root
}

/// Two bridges: one with the containers `a` and `b`, one with `c` and `d`.
pub fn four() -> Network {
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
pub fn serve(sandbox: &Sandbox, at: &Container<'_>, listen: &str, traffic: &[&str]) -> Server {
    let mut command = at.command(built("shunt-gen"));
    command.args(["serve", "--listen", listen]).args(traffic);
    Server::of(sandbox.spawn(command))
}

/// Its clients, in another one.
pub fn connect(sandbox: &Sandbox, at: &Container<'_>, to: SocketAddr, traffic: &[&str]) -> Process {
    let mut command = at.command(built("shunt-gen"));
    command.args(["connect", "--to", &to.to_string()]).args(traffic);
    sandbox.spawn(command)
}

pub fn verify(clients: &[Record], servers: &[Record]) {
    compare(clients, servers).unwrap_or_else(|e| panic!("{e}"));
}

/// Traffic from a container to another one that listens at `ip`, and is found at `to` (the same port if that is 0).
pub fn traffic(
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
pub const SERVICE: &str = "10.96.0.1:80";

/// Connections to a service go to `to`, from another port of another address.
pub fn add_service(network: &Network, service: &str, to: &str) {
    let service: SocketAddr = service.parse().unwrap();
    let (ip, port) = (service.ip(), service.port());
    let rules = format!(
        "table ip service-{port} {{ chain in {{ type nat hook prerouting priority dstnat; \
         ip daddr {ip} tcp dport {port} dnat to {to}; }}; \
         chain out {{ type nat hook postrouting priority srcnat; ct status dnat masquerade; }}; }}"
    );
    network.inside("host", &["nft", &rules]);
}
