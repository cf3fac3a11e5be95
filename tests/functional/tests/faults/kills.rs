//! `kill -9` under load: whoever is left learns of it as over TCP.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use shunt_functional::binaries::built;
use shunt_functional::generator::{Server, events, start_client};
use shunt_functional::mode::Mode;
use shunt_functional::sandbox::{Process, Sandbox, traces_are_allowed};
use shunt_functional::sys::monotonic;
use shunt_functional::waiting::settles;

use crate::rounds::{rounds, seed};
use crate::traces::{descriptors, kinds, names, shared_memory};

/// Longest time in which an end must be known; how long it takes is printed.
const PATIENCE: Duration = Duration::from_secs(10);
/// Connections of each round.
const CONNECTIONS: usize = 8;
const STYLES: [&str; 6] = ["blocking", "poll", "select", "epoll-lt", "epoll-et", "epoll-oneshot"];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Victim {
    Client,
    Server,
    Agent,
}

/// How long the ends took, in nanoseconds.
#[derive(Default)]
pub struct Delays(Vec<u64>);

impl Delays {
    fn note(&mut self, killed: u64, lost: &[(u64, String)]) {
        self.0.extend(lost.iter().filter_map(|(at, _)| at.checked_sub(killed)));
    }

    fn print(mut self, what: &str) {
        self.0.sort_unstable();
        let n = self.0.len();
        let at = |part: usize| {
            self.0.get(part * n.saturating_sub(1) / 1000).map_or(0.0, |d| *d as f64 / 1e6)
        };
        println!(
            "{what}: {n} ends known after {:.1} ms (median), {:.1} ms (99 %), {:.1} ms (longest)",
            at(500),
            at(990),
            at(1000)
        );
    }
}

/// Both ends of a round.
struct Pair {
    server: Server,
    client: Process,
}

/// What carries the bytes beside the ways of waiting: any call, or what is not to copy.
const ANY: &[&str] = &[];
const GRANTED: &[&str] =
    &["--send-calls", "send-zerocopy", "--recv-calls", "recv-borrow,recv", "--max-call", "300000"];
const FOUND: &[&str] =
    &["--send-calls", "send-found", "--recv-calls", "recv-borrow,recv", "--max-call", "300000"];

const PRIVATE: &[&str] =
    &["--send-calls", "send-private", "--recv-calls", "recv-borrow,recv", "--max-call", "300000"];

fn start(sandbox: &Sandbox, rng: &mut Rng, calls: &[&'static str]) -> Pair {
    let mut style = || STYLES[rng.usize(..STYLES.len())];
    let common = [&["--survive", "-b", "1000000000000"], calls, &["--style"]].concat();
    // More than will come: the server goes on.
    let server = [&common[..], &[style(), "-n", "1000"]].concat();
    let client = [&common[..], &[style(), "-n", "8"]].concat();
    let server = Server::start(sandbox, true, &server);
    let to = ([127, 0, 0, 1], server.port).into();
    let client = start_client(sandbox, true, to, &client);
    Pair { server, client }
}

/// A moment after the start: somewhere in the middle of connecting, or under full load.
fn wait_for_the_moment(pair: &mut Pair, rng: &mut Rng) {
    if rng.u8(..4) == 0 {
        thread::sleep(Duration::from_micros(rng.u64(..40_000)));
        return;
    }
    pair.client.wait_for_text(|_| Some(()));
    let started = Instant::now();
    while events(&pair.client).0 < CONNECTIONS {
        pair.client.assert_running();
        assert!(started.elapsed() < PATIENCE, "{}", pair.client.describe());
        thread::sleep(Duration::from_millis(1));
    }
    thread::sleep(Duration::from_micros(rng.u64(..60_000)));
}

/// Waits until a server that goes on has lost all its connections; the delays since `killed`.
pub fn await_losses(server: &mut Server, killed: u64, delays: &mut Delays) {
    let process = server.process();
    let started = Instant::now();
    let mut quiet = 0;
    // A connection may still wait to be accepted.
    while quiet < 3 {
        process.assert_running();
        let (begun, lost) = events(process);
        quiet = if begun == lost.len() { quiet + 1 } else { 0 };
        assert!(
            started.elapsed() < PATIENCE,
            "{begun} begun, {} lost: {}",
            lost.len(),
            process.describe()
        );
        thread::sleep(Duration::from_millis(3));
    }
    delays.note(killed, &events(process).1);
}

/// A client whose server is gone ends by itself.
fn await_end(mut client: Process, killed: u64, delays: &mut Delays) {
    let started = Instant::now();
    while client.is_running() {
        assert!(started.elapsed() < PATIENCE, "it hangs: {}", client.describe());
        thread::sleep(Duration::from_millis(1));
    }
    delays.note(killed, &events(&client).1);
    let done = client.wait();
    // It may not have reached the server at all, or while that went.
    let is_late = ["refused", "reset by peer"].iter().any(|how| done.stderr.contains(how));
    assert!(done.status.success() || is_late, "{done}");
}

/// One round: programs start, the victims die in their order.
fn round(
    sandbox: &Sandbox,
    rng: &mut Rng,
    calls: &[&'static str],
    victims: &[Victim],
    delays: &mut Delays,
) {
    let mut pair = start(sandbox, rng, calls);
    wait_for_the_moment(&mut pair, rng);
    let mut killed = monotonic();
    let mut is_peer_killed = false;
    for victim in victims {
        thread::sleep(Duration::from_micros(rng.u64(..5_000)));
        // The first death of an end is what the other learns of.
        if *victim != Victim::Agent && !std::mem::replace(&mut is_peer_killed, true) {
            killed = monotonic();
        }
        match victim {
            Victim::Client => pair.client.kill(),
            Victim::Server => pair.server.process().kill(),
            Victim::Agent => sandbox.kill_agent(),
        }
    }
    let Pair { mut server, mut client } = pair;
    if !is_peer_killed {
        // Without an agent what is there goes on.
        client.assert_running();
        killed = monotonic();
        client.kill();
    }
    if !victims.contains(&Victim::Server) {
        await_losses(&mut server, killed, delays);
        assert_nothing_is_held(server.process().pid());
    } else if !victims.contains(&Victim::Client) {
        await_end(client, killed, delays);
    }
    // Who was killed has no end of its own to wait for.
    server.process().kill();
}

/// A survivor holds nothing of those that are gone, but the link groups that it may still need.
fn assert_nothing_is_held(pid: i32) {
    let open = |what: &str| descriptors(pid).iter().filter(|d| d.contains(what)).count();
    // The listener, and the conversation with the agent. It closes a connection after it has told of it.
    settles("few sockets", &true, || open("socket:") <= 2);
    assert_eq!(open("shunt-link-group"), 0, "{:?}", descriptors(pid));
    // What a peer had mapped by itself goes with the last connection on which it was shown.
    settles("no memory of a peer's own", &0, || shared_memory(pid, "memfd:mapped"));
}

/// What the agent holds while nobody runs.
struct Idle {
    agent: Option<(i32, Vec<String>)>,
    files: BTreeSet<String>,
    shm: BTreeSet<String>,
}

impl Idle {
    fn of(sandbox: &Sandbox) -> Self {
        // It serves by now, and has all that it needs.
        let agent = sandbox.agent_pid().inspect(|_| drop(sandbox.stats()));
        let agent = agent.map(|pid| {
            settles("no client", &true, || {
                let count = |what: &str| kinds(pid).iter().filter(|k| k.contains(what)).count();
                // It listens, asks the kernel about sockets, and talks to its inspectors, whose parent it watches.
                (count("socket:"), count("pidfd")) == (5, 1)
            });
            (pid, kinds(pid))
        });
        Self { agent, files: names(&sandbox.run_dir()), shm: shm() }
    }

    /// # Panics
    /// When something is left over.
    fn comes_back(&self, sandbox: &Sandbox) {
        if let Some((pid, open)) = &self.agent {
            settles("descriptors of the agent", open, || kinds(*pid));
            settles("link groups of the agent", &0, || shared_memory(*pid, "shunt-link-group"));
        }
        assert_eq!(names(&sandbox.run_dir()), self.files);
        assert_eq!(shm(), self.shm);
    }
}

/// What Shunt has in /dev/shm: nothing.
fn shm() -> BTreeSet<String> {
    names("/dev/shm".as_ref()).into_iter().filter(|name| name.contains("shunt")).collect()
}

fn kill_again_and_again(what: &str, modes: &[Mode], choose: impl Fn(&mut Rng) -> Vec<Victim>) {
    kill_while(&[ANY], what, modes, choose);
}

/// `calls`: in turn.
fn kill_while(
    calls: &[&[&'static str]],
    what: &str,
    modes: &[Mode],
    choose: impl Fn(&mut Rng) -> Vec<Victim>,
) {
    for mode in modes {
        let sandbox = Sandbox::new(*mode);
        let mut rng = Rng::with_seed(seed());
        let mut delays = Delays::default();
        let mut idle = Idle::of(&sandbox);
        let (mut shunted, mut looked) = (0, false);
        for (_, calls) in rounds(12, 1000).zip(calls.iter().cycle()) {
            let victims = choose(&mut rng);
            round(&sandbox, &mut rng, calls, &victims, &mut delays);
            if victims.contains(&Victim::Agent) {
                // A client that had just been started may have started one on demand.
                settles("agents", &0, || sandbox.end_strays("shunt", usize::MAX));
                sandbox.start_agent();
                idle = Idle::of(&sandbox);
            } else if mode.is_shunted() {
                // A new agent counts anew.
                shunted = sandbox.stats().get("connections_shunted").max(shunted);
                looked = true;
            }
            idle.comes_back(&sandbox);
        }
        assert!(shunted > 0 || !looked, "nothing was shunted");
        if calls.iter().all(|calls| calls != &ANY) && *mode == Mode::Attach {
            let stats = sandbox.stats();
            assert!(stats.get("bytes_granted") > 0, "nothing was granted");
            let pinned = stats.get("bytes_pinned");
            assert!(pinned > 0 || !traces_are_allowed(), "nothing was pinned");
        }
        delays.print(&format!("{what}, {mode}, {shunted} ends shunted"));
    }
}

#[test]
fn clients_are_killed() {
    kill_again_and_again("client", &Mode::enabled(), |_| vec![Victim::Client]);
}

#[test]
fn servers_are_killed() {
    kill_again_and_again("server", &Mode::enabled(), |_| vec![Victim::Server]);
}

#[test]
fn anything_is_killed() {
    kill_again_and_again("anything", &Mode::enabled_shunted(), |rng| {
        let mut victims = vec![Victim::Client, Victim::Server, Victim::Agent];
        rng.shuffle(&mut victims);
        victims.truncate(rng.usize(1..=3));
        victims
    });
}

/// In the middle of a call that grants, pins or reads what is pinned, at every place in turn, on a connection that a relative
/// goes on with.
#[test]
fn who_grants_is_killed_and_has_relatives() {
    if !traces_are_allowed() {
        return eprintln!("left out: processes cannot be stopped where it is wanted here");
    }
    let sandbox = Sandbox::new(Mode::Attach).with_env("SHUNT_PIN", "65536");
    for (group, counter) in [
        ("killed-granting", "bytes_granted"),
        ("killed-pinning", "bytes_pinned"),
        ("killed-pulling", "bytes_pinned"),
    ] {
        let before = sandbox.stats().get(counter);
        let mut command = sandbox.command(built("shunt-probe"));
        command.arg(group);
        let out = sandbox.run(command).success();
        assert!(out.stderr.is_empty() && !out.stdout.contains(": false"), "{out}");
        println!("{}", out.stdout);
        assert!(sandbox.stats().get(counter) > before, "{out}");
    }
}

/// While bytes are granted, and looked at where they are, from memory that was asked for, that was found, and that is pinned.
#[test]
fn who_grants_and_who_borrows_is_killed() {
    let modes = Mode::enabled_shunted();
    kill_while(&[GRANTED, FOUND, PRIVATE], "granted", &modes, |rng| {
        vec![if rng.bool() { Victim::Client } else { Victim::Server }]
    });
}
