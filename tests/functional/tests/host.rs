//! One agent for the host: containers of different users, in networks of their own.

use std::net::SocketAddr;

use serde_json::Value;
use shunt_bench::workload::nginx::configuration;
use shunt_functional::binaries::{built, program};
use shunt_functional::container::{Container, Users};
use shunt_functional::generator::{Server, records};
use shunt_functional::mode::Mode;
use shunt_functional::network::Network;
use shunt_functional::record::{Record, compare};
use shunt_functional::rounds::rounds;
use shunt_functional::sandbox::{Expect, Process, Sandbox, is_root};
use shunt_functional::waiting::settles;

/// Users of the host without a name.
const SOMEBODY: u32 = 61_001;
const ANOTHER: u32 = 61_002;
const HOSTILE: u32 = 61_003;

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

/// The agent has these capabilities alone.
fn with_capabilities(change: &str) -> Sandbox {
    let sandbox = Sandbox::for_host(Mode::Attach, &[]);
    sandbox.kill_agent();
    let mut command = sandbox.plain(program("setpriv"));
    command.args(["--bounding-set", change, "--inh-caps", "-all"]);
    sandbox.start_host_agent_by(command);
    sandbox
}

/// Those that the systemd unit and the DaemonSet give it are enough.
#[test]
fn four_capabilities_are_enough() {
    if !can() {
        return;
    }
    let unit = include_str!("../../../dist/systemd/shunt-host.service");
    let given = unit.lines().find_map(|l| l.strip_prefix("CapabilityBoundingSet=")).unwrap();
    let given = given.to_lowercase().replace("cap_", "+").replace(' ', ",");
    let daemon_set = include_str!("../../../dist/kubernetes/shunt-agent.yaml");
    let same = given.to_uppercase().replace('+', "\"").replace(',', "\", ") + "\"";
    assert!(daemon_set.contains(&format!("add: [{same}]")), "{same}");
    let sandbox = with_capabilities(&format!("-all,{given}"));
    let network = four();
    let at = |name, users| Container::new(&sandbox, &network, name, users);
    let (a, c) = (at("a", Users::Own(SOMEBODY)), at("c", Users::Of(ANOTHER)));
    sandbox.expect(Expect::All(40), || {
        traffic(&sandbox, (&a, &c), ("10.78.0.3:0", "10.78.0.3:0"), &TRAFFIC);
    });
}

/// The agent may not use eBPF.
#[test]
fn without_marks_all_is_tcp() {
    if !can() {
        return;
    }
    let sandbox = with_capabilities("-sys_admin,-bpf");
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

/// Two networks with the same addresses, and the same ports: each connection in the one has its like in the other,
/// often at the same time. What came of whom is told by the bytes.
#[test]
fn equal_addresses_in_two_networks_are_never_confused() {
    if !can() {
        return;
    }
    let sandbox = Sandbox::for_host(Mode::Attach, &[]);
    let networks = [0; 2].map(|_| {
        let mut network = Network::new();
        network.add_bridge("near", "10.77.0");
        for (name, host) in [("a", 1), ("b", 2)] {
            network.add(name, "near", "10.77.0", host);
        }
        let few = "net.ipv4.ip_local_port_range=20000 24999";
        network.inside("a", &["sysctl", "-q", "-w", few]);
        // Not to wait for the ends of a minute ago.
        network.inside("a", &["sysctl", "-q", "-w", "net.ipv4.tcp_tw_reuse=1"]);
        network
    });
    for round in rounds(2, 26) {
        let count = "2000";
        let seeds = [1, 2].map(|pair| (round * 2 + pair).to_string());
        let expected = Expect::Percent(95);
        sandbox.expect(expected, || {
            let pairs: Vec<_> = (0..2)
                .map(|i| {
                    let at =
                        |name, user| Container::new(&sandbox, &networks[i], name, Users::Own(user));
                    let args =
                        ["-n", count, "-b", "300", "--style", "epoll-et", "--seed", &seeds[i]];
                    let server = serve(&sandbox, &at("b", ANOTHER), "10.77.0.2:8000", &args);
                    (server, at("a", SOMEBODY), args.map(str::to_owned))
                })
                .collect();
            let clients: Vec<_> = pairs
                .iter()
                .map(|(_, client, args)| {
                    let args: Vec<_> =
                        args.iter().map(String::as_str).chain(["--at-once", "50"]).collect();
                    connect(&sandbox, client, "10.77.0.2:8000".parse().unwrap(), &args)
                })
                .collect();
            for (client, (server, ..)) in clients.into_iter().zip(pairs) {
                verify(&records(client), &server.finish());
            }
        });
    }
}

/// nginx and redis in one container each, wrk and redis-benchmark in two others, of two users.
#[test]
fn servers_and_their_clients_in_four_containers() {
    if !can() {
        return;
    }
    let sandbox = Sandbox::for_host(Mode::Attach, &[]);
    let network = four();
    let at = |name, users| Container::new(&sandbox, &network, name, users);
    let (a, b) = (at("a", Users::Own(SOMEBODY)), at("b", Users::Of(ANOTHER)));
    let (c, d) = (at("c", Users::Own(ANOTHER)), at("d", Users::Own(SOMEBODY)));

    let dir = b.shared();
    std::fs::create_dir_all(dir.join("www")).unwrap();
    std::fs::write(dir.join("www/page"), [b'x'; 612]).unwrap();
    let file = dir.join("nginx.conf");
    let conf = configuration(&dir, 8000, 1, None).replace("listen 127.0.0.1", "listen 10.77.0.2");
    std::fs::write(&file, conf).unwrap();
    let mut command = b.command("nginx");
    command.arg("-p").arg(&dir).arg("-e").arg(dir.join("error.log")).arg("-c").arg(&file);
    let mut nginx = sandbox.spawn(command);
    network.until_listening("b", 8000);
    sandbox.expect(Expect::Percent(90), || {
        let mut wrk = d.command("wrk");
        wrk.args(["-t1", "-c20", "-d2s", "http://10.77.0.2:8000/page"]);
        let out = sandbox.run(wrk);
        let wrong = ["Non-2xx", "Socket errors"].iter().any(|what| out.stdout.contains(what));
        assert!(out.stdout.contains("Requests/sec:") && !wrong, "{out}");
    });
    // Who became another user does not end with the one that started it: the master and its worker.
    nginx.kill();
    sandbox.end_strays("nginx", 2);

    let mut command = c.command("redis-server");
    command.args(["--port", "6000", "--bind", "10.78.0.3", "--protected-mode", "no"]);
    command.args(["--save", "", "--appendonly", "no", "--dir", "/tmp"]);
    let mut redis = sandbox.spawn(command);
    network.until_listening("c", 6000);
    sandbox.expect(Expect::Percent(90), || {
        let mut bench = a.command("redis-benchmark");
        bench.args([
            "-h",
            "10.78.0.3",
            "-p",
            "6000",
            "-t",
            "set,get",
            "-n",
            "20000",
            "-c",
            "20",
            "-q",
        ]);
        let out = sandbox.run(bench);
        assert!(out.stdout.contains("GET: ") && !out.stdout.contains("Error"), "{out}");
    });
    redis.kill();
}

/// A container of a third user, with the addresses of the others in its own network.
fn hostile(network: &Network) {
    for address in ["10.77.0.1/32", "10.77.0.2/32"] {
        network.inside("d", &["ip", "addr", "add", address, "dev", "lo"]);
    }
}

/// Asks for whatever others may have while they talk: is given nothing, and finds nothing to open.
#[test]
fn a_hostile_container_is_given_nothing() {
    if !can() {
        return;
    }
    let sandbox = Sandbox::for_host(Mode::Attach, &[]);
    let network = four();
    hostile(&network);
    let at = |name, users| Container::new(&sandbox, &network, name, users);
    let (a, b) = (at("a", Users::Own(SOMEBODY)), at("b", Users::Of(ANOTHER)));
    let d = at("d", Users::Own(HOSTILE));
    let slow = ["--max-call", "2000", "--pause", "1500"];
    let args = [&["-n", "6", "-b", "5000000", "--style", "epoll-lt"][..], &slow].concat();
    sandbox.expect(Expect::All(12), || {
        let listening = serve(&sandbox, &b, "10.77.0.2:8000", &args);
        let client = connect(&sandbox, &a, "10.77.0.2:8000".parse().unwrap(), &args);
        settles("both ends are listed", &[6, 6], || listed(&sandbox));
        let mut command = d.plain(built("shunt-intruder"));
        command.args(["--run-dir", "/run/shunt", "ask"]);
        let asked = sandbox.run(command).success().stdout;
        let given = asked.lines().filter(|line| !line.contains("\trefused"));
        assert_eq!(given.collect::<Vec<_>>(), [""; 0]);
        assert!(asked.lines().count() > 3000, "{}", asked.lines().count());
        let mut command = d.plain(built("shunt-intruder"));
        command.args(["--run-dir", "/run/shunt", "look"]);
        for file in ["agent.lock", "totals.json"] {
            command.arg("--file").arg(std::path::Path::new("/run/shunt").join(file));
        }
        let seen = sandbox.run(command).success().stdout;
        let opened =
            seen.lines().filter(|line| line.contains("agent.lock") || line.contains("totals"));
        assert!(!opened.clone().any(|line| line.ends_with("opened")), "{seen}");
        verify(&records(client), &listening.finish());
    });
}

/// The ends of connections of two users, as root on the host sees them: by the host's users and processes.
fn listed(sandbox: &Sandbox) -> [usize; 2] {
    let mut list = sandbox.plain(sandbox.shunt_path());
    list.args(["list", "--json"]);
    let report: Value = serde_json::from_str(&sandbox.run(list).stdout).unwrap();
    [SOMEBODY, ANOTHER].map(|uid| {
        let is_whole = |end: &&Value| {
            let name = std::fs::read_to_string(format!("/proc/{}/comm", end["pid"]));
            name.is_ok_and(|name| name.trim() == "shunt-gen")
                && end["uid"] == uid
                && end["cgroup"].is_string()
                && end["peer_pid"].is_u64()
                && end["peer_pid"] != end["pid"]
        };
        report["connections"].as_array().unwrap().iter().filter(is_whole).count()
    })
}

/// Keeps the agent as busy as it can: others are shunted all the same, byte by byte as they were.
#[test]
fn a_flood_from_a_container_leaves_others_served() {
    if !can() {
        return;
    }
    let sandbox = Sandbox::for_host(Mode::Attach, &[]);
    let agent = sandbox.agent_pid();
    let network = four();
    hostile(&network);
    let at = |name, users| Container::new(&sandbox, &network, name, users);
    let (a, b) = (at("a", Users::Own(SOMEBODY)), at("b", Users::Of(ANOTHER)));
    let mut command = at("d", Users::Own(HOSTILE)).plain(built("shunt-intruder"));
    command.args(["--run-dir", "/run/shunt", "flood"]);
    let mut flood = sandbox.spawn(command);
    flood.wait_for_line(|line| line.starts_with("flood").then_some(()));
    for seed in ["1", "2", "3"] {
        let args = ["-n", "8", "-b", "1000000", "--style", "epoll-lt", "--seed", seed];
        traffic(&sandbox, (&a, &b), ("10.77.0.2:8000", "10.77.0.2:8000"), &args);
    }
    flood.kill();
    let stats = sandbox.stats();
    assert!(stats.get("connections_shunted") > 0, "{:?}: {}", stats.reasons(), sandbox.agent_log());
    assert_eq!(sandbox.agent_pid(), agent);
}

/// The policy is read anew on SIGHUP: what it denies is TCP, with a reason at both ends.
#[test]
fn a_policy_that_is_read_anew_is_in_force() {
    if !can() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("policy.toml");
    std::fs::write(&file, "").unwrap();
    let sandbox = Sandbox::for_host(Mode::Attach, &["--policy", file.to_str().unwrap()]);
    let network = four();
    let at = |name, users| Container::new(&sandbox, &network, name, users);
    let (a, b) = (at("a", Users::Own(SOMEBODY)), at("b", Users::Of(ANOTHER)));
    let small = ["-n", "5", "-b", "10000"];
    let go = || traffic(&sandbox, (&a, &b), ("10.77.0.2:8000", "10.77.0.2:8000"), &small);
    let read_anew = |policy: &str, said: &str| {
        std::fs::write(&file, policy).unwrap();
        sandbox.signal_agent(libc::SIGHUP);
        settles(said, &true, || sandbox.agent_log().contains(said));
    };
    sandbox.expect(Expect::All(10), go);
    read_anew("[[rule]]\nverdict = 'deny'\nports = [8000]\n", "is in force");
    let before = sandbox.stats();
    sandbox.expect(Expect::Nothing, go);
    assert_eq!(sandbox.stats().declined("denied") - before.declined("denied"), 10);
    // A mistake changes nothing.
    read_anew("[[rule]]\nverdict = 'perhaps'\n", "stays in force");
    sandbox.expect(Expect::Nothing, go);
}
