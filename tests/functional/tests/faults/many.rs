//! Very many connections, one after the other, in one process: nothing grows.

use std::thread;
use std::time::Duration;

use shunt_functional::binaries::built;
use shunt_functional::generator::{Server, totals};
use shunt_functional::mode::Mode;
use shunt_functional::sandbox::{Expect, Sandbox};
use shunt_functional::waiting::settles;

use crate::rounds::are_long;
use crate::traces::{descriptors, names, resident, shared_memory};

const PATIENCE: Duration = Duration::from_secs(600);
/// Growth in KiB between two parts of a run that is no growth: buffers of an allocator, a few pages of a
/// table that is touched in turn.
const SLACK: u64 = 1024;

/// Connections at once: so many descriptors more or less say nothing.
const AT_ONCE: usize = 16;

/// What a process holds at one moment.
#[derive(Clone, Copy, Default, Debug)]
struct Holding {
    descriptors: usize,
    kibibytes: u64,
    link_groups: usize,
}

impl Holding {
    fn of(pid: i32) -> Self {
        Self {
            descriptors: descriptors(pid).len(),
            kibibytes: resident(pid),
            link_groups: shared_memory(pid, "shunt-link-group"),
        }
    }

    /// The most of each.
    fn most(samples: &[Self]) -> Self {
        let mut most = Self::default();
        for s in samples {
            most.descriptors = most.descriptors.max(s.descriptors);
            most.kibibytes = most.kibibytes.max(s.kibibytes);
            most.link_groups = most.link_groups.max(s.link_groups);
        }
        most
    }
}

#[test]
fn nothing_grows() {
    let count: u64 = if are_long() { 500_000 } else { 6_000 };
    for mode in Mode::enabled_shunted() {
        let sandbox = Sandbox::new(mode);
        let before = sandbox.stats();
        let n = count.to_string();
        let args = ["-n", &n, "-b", "100", "--totals", "--style", "epoll-lt"];
        let mut server = Server::start(&sandbox, true, &args);
        let mut command = sandbox.command(built("shunt-gen"));
        command.args(["connect", "--to", &format!("127.0.0.1:{}", server.port)]).args(args);
        command.args(["--at-once", &AT_ONCE.to_string()]);
        let mut client = sandbox.spawn(command);
        let agent = sandbox.agent_pid().expect("an agent");
        let pids = [client.pid(), server.process().pid(), agent];
        let files = names(&sandbox.run_dir());
        let mut samples: [Vec<Holding>; 3] = Default::default();
        while client.is_running() {
            for (of, pid) in samples.iter_mut().zip(pids) {
                of.push(Holding::of(pid));
            }
            thread::sleep(Duration::from_millis(10));
        }
        let server = server.into_process();
        let (client, server) = (totals(client, PATIENCE), totals(server, PATIENCE));
        assert_eq!((client.connections, client.sent_bytes), (count, server.received_bytes));
        assert_eq!((server.connections, server.sent_bytes), (count, client.received_bytes));
        for (of, who) in samples.iter().zip(["client", "server", "agent"]) {
            // Programs start in the first quarter, and end in the last twentieth.
            let n = of.len();
            assert!(n >= 20, "too quick to be looked at");
            let early = Holding::most(&of[n / 4..n / 2]);
            let late = Holding::most(&of[n * 3 / 4..n * 19 / 20]);
            println!("{mode}, {who}: {early:?}, then {late:?}");
            assert!(
                late.descriptors <= early.descriptors + AT_ONCE,
                "{who}: {early:?}, then {late:?}"
            );
            assert!(late.kibibytes <= early.kibibytes + SLACK, "{who}: {early:?}, then {late:?}");
            assert!(late.link_groups <= early.link_groups, "{who}: {early:?}, then {late:?}");
        }
        settles("link groups of the agent", &0, || shared_memory(agent, "shunt-link-group"));
        assert_eq!(names(&sandbox.run_dir()), files);
        assert!(sandbox.settles(Expect::Percent(50), &before, Duration::from_secs(5)));
    }
}

/// More programs within a moment than there are descriptors for, had each some for as long as a thread may be looking.
#[test]
fn a_server_outlives_many_clients() {
    for mode in Mode::enabled_shunted() {
        let sandbox = Sandbox::new(mode);
        let mut command = sandbox.command(built("shunt-probe"));
        command.arg("many-children");
        let out = sandbox.run(command).success();
        assert!(out.stderr.is_empty() && !out.stdout.contains(": false"), "{out}");
        let stats = sandbox.stats();
        assert_eq!(stats.declined("no-resources"), 0, "{:?}", stats.reasons());
        let [shunted, all] = ["connections_shunted", "connections"].map(|name| stats.get(name));
        assert!(shunted * 10 >= all * 9, "{shunted} of {all}: {:?}", stats.reasons());
    }
}

/// As many clients at once as there are not descriptors for, had the server some for each: all are shunted, and all are woken.
#[test]
fn a_server_has_more_clients_than_it_could_have_doorbells_of() {
    for mode in Mode::enabled_shunted() {
        let sandbox = Sandbox::new(mode);
        let mut command = sandbox.command(built("shunt-probe"));
        command.arg("many-clients");
        let out = sandbox.run(command).success();
        assert!(out.stderr.is_empty() && !out.stdout.contains(": false"), "{out}");
        for line in ["300 clients: messages: 1200", "clients that ended well: 300"] {
            assert_eq!(out.stdout.matches(line).count(), 2, "{out}");
        }
        let stats = sandbox.stats();
        let [shunted, all] = ["connections_shunted", "connections"].map(|name| stats.get(name));
        assert!(all >= 2 * 2 * 360 && shunted == all, "{shunted} of {all}: {:?}", stats.reasons());
    }
}
