//! A container that wants what is not its own, or nothing to be left to others.

use serde_json::Value;
use shunt_functional::binaries::built;
use shunt_functional::container::{Container, Users};
use shunt_functional::generator::records;
use shunt_functional::mode::Mode;
use shunt_functional::network::Network;
use shunt_functional::passing;
use shunt_functional::sandbox::{Expect, Sandbox};
use shunt_functional::waiting::settles;

use crate::scene::{ANOTHER, HOSTILE, SOMEBODY, can, connect, four, serve, traffic, verify};

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

/// Keeps the agent as busy as it can: every connection of others is shunted all the same, byte by byte as it was.
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
        // Each of them, not only some.
        sandbox.expect(Expect::All(16), || {
            traffic(&sandbox, (&a, &b), ("10.77.0.2:8000", "10.77.0.2:8000"), &args);
        });
    }
    flood.assert_running();
    flood.kill();
    assert_eq!(sandbox.agent_pid(), agent);
    // All that it has taken is given back.
    settles("no program is left", &0, || sandbox.stats().get("programs_live"));
}

/// A user's program passes the agent of the host what blocks whoever closes it: others are served, and it ends when it is told to.
#[test]
fn what_a_program_passes_holds_nobody_up() {
    if !can() {
        return;
    }
    let sandbox = Sandbox::for_host(Mode::Attach, &[]);
    let mut command = sandbox.plain(built("shunt-intruder"));
    command.arg("--run-dir").arg(sandbox.run_dir());
    command.args(["pass", "--user", &HOSTILE.to_string()]);
    let mut hostile = passing::others_are_served(&sandbox, command);
    passing::it_is_dropped_with_a_reason(&sandbox);
    sandbox.stop_agent();
    hostile.assert_running();
    hostile.kill();
}
