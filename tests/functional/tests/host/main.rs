//! One agent for the host: containers of different users, in networks of their own.

mod ends;
mod hostile;
mod scene;
mod short;

use shunt_bench::workload::nginx::configuration;
use shunt_functional::binaries::program;
use shunt_functional::container::{Container, Users};
use shunt_functional::generator::records;
use shunt_functional::mode::Mode;
use shunt_functional::network::{Network, has_ipv6};
use shunt_functional::rounds::rounds;
use shunt_functional::sandbox::{Expect, Sandbox};
use shunt_functional::waiting::settles;

use crate::scene::{
    ANOTHER, SERVICE, SOMEBODY, TRAFFIC, add_service, can, connect, four, serve, traffic, verify,
};

fn everywhere(mode: Mode) {
    if !can() {
        return;
    }
    let sandbox = Sandbox::for_host(mode, &[]);
    let network = four();
    add_service(&network, SERVICE, "10.78.0.4:8080");
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

#[test]
fn the_same_over_ipv6() {
    if !can() {
        return;
    }
    if !has_ipv6() {
        println!("left out: no IPv6 here");
        return;
    }
    let sandbox = Sandbox::for_host(Mode::Attach, &[]);
    let network = four();
    let rules = "table ip6 service { chain in { type nat hook prerouting priority dstnat; \
         ip6 daddr fd96::1 tcp dport 80 dnat to [fd10:78:0::4]:8080; }; \
         chain out { type nat hook postrouting priority srcnat; ct status dnat masquerade; }; }";
    network.inside("host", &["nft", rules]);
    let at = |name, users| Container::new(&sandbox, &network, name, users);
    let a = at("a", Users::Own(SOMEBODY));
    let b = at("b", Users::Of(ANOTHER));
    let c = at("c", Users::Own(ANOTHER));
    let d = at("d", Users::Of(SOMEBODY));
    let all = |pair, addresses| {
        sandbox.expect(Expect::All(40), || traffic(&sandbox, pair, addresses, &TRAFFIC));
    };
    // A listener for both families is found by either.
    all((&a, &b), ("[fd10:77:0::2]:0", "[fd10:77:0::2]:0"));
    all((&b, &a), ("[::]:0", "[fd10:77:0::1]:0"));
    all((&b, &a), ("[::]:0", "10.77.0.1:0"));
    all((&c, &b), ("[fd10:77:0::2]:0", "[fd10:77:0::2]:0"));
    all((&a, &d), ("[fd10:78:0::4]:8080", "[fd96::1]:80"));
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
    let unit = include_str!("../../../../dist/systemd/shunt-host.service");
    let given = unit.lines().find_map(|l| l.strip_prefix("CapabilityBoundingSet=")).unwrap();
    let given = given.to_lowercase().replace("cap_", "+").replace(' ', ",");
    let daemon_set = include_str!("../../../../dist/kubernetes/shunt-agent.yaml");
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
    settles("the agent says so", &true, || sandbox.agent_log().contains("cannot be marked"));
    let network = four();
    add_service(&network, SERVICE, "10.78.0.4:8080");
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
    let sandbox = Sandbox::for_host(Mode::Attach, &[]).with_env("SHUNT_SHORT_LIVED", "all");
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
    // All but a few: an offer that nobody could claim keeps its client from the next ones for two seconds.
    sandbox.expect(Expect::Percent(75), || {
        for round in rounds(2, 26) {
            let seeds = [1, 2].map(|pair| (round * 2 + pair).to_string());
            let pairs: Vec<_> = (0..2)
                .map(|i| {
                    let at =
                        |name, user| Container::new(&sandbox, &networks[i], name, Users::Own(user));
                    let args =
                        ["-n", "2000", "-b", "300", "--style", "epoll-et", "--seed", &seeds[i]];
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
        }
    });
}

/// nginx and redis in one container each, wrk and redis-benchmark in others, of two users: across a bridge, a routed hop, and
/// through an address that is rewritten.
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
    let conf = configuration(&dir, "10.77.0.2:8000", 1, None);
    std::fs::write(&file, conf).unwrap();
    let mut command = b.command("nginx");
    command.arg("-p").arg(&dir).arg("-e").arg(dir.join("error.log")).arg("-c").arg(&file);
    let mut nginx = sandbox.spawn(command);
    network.until_listening("b", 8000);
    add_service(&network, SERVICE, "10.77.0.2:8000");
    for (from, to) in [(&a, "10.77.0.2:8000"), (&d, "10.77.0.2:8000"), (&d, SERVICE)] {
        sandbox.expect(Expect::Percent(90), || {
            let mut wrk = from.command("wrk");
            wrk.args(["-t1", "-c20", "-d1s", &format!("http://{to}/page")]);
            let out = sandbox.run(wrk);
            let wrong = ["Non-2xx", "Socket errors"].iter().any(|what| out.stdout.contains(what));
            assert!(out.stdout.contains("Requests/sec:") && !wrong, "{out}");
        });
    }
    // Who became another user does not end with the one that started it: the master and its worker.
    nginx.kill();
    sandbox.end_strays("nginx", 2);

    let mut command = c.command("redis-server");
    command.args(["--port", "6000", "--bind", "10.78.0.3", "--protected-mode", "no"]);
    command.args(["--save", "", "--appendonly", "no", "--dir", "/tmp"]);
    let mut redis = sandbox.spawn(command);
    network.until_listening("c", 6000);
    add_service(&network, "10.96.0.1:6379", "10.78.0.3:6000");
    for (from, to) in [(&d, "10.78.0.3:6000"), (&a, "10.78.0.3:6000"), (&a, "10.96.0.1:6379")] {
        sandbox.expect(Expect::Percent(90), || {
            let (ip, port) = to.split_once(':').unwrap();
            let mut bench = from.command("redis-benchmark");
            bench.args(["-h", ip, "-p", port, "-t", "set,get", "-n", "20000", "-c", "20", "-q"]);
            let out = sandbox.run(bench);
            assert!(out.stdout.contains("GET: ") && !out.stdout.contains("Error"), "{out}");
        });
    }
    redis.kill();
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
