//! Live connections that change their way, TCP or ring, in mid-stream and under full load.

use fastrand::Rng;
use shunt_functional::binaries::built;
use shunt_functional::generator::{Server, records, start_client};
use shunt_functional::mode::Mode;
use shunt_functional::record::{Listening, compare};
use shunt_functional::sandbox::{Expect, Sandbox};

use crate::rounds::{are_long, is_bounded, rounds, seed};

const STYLES: [&str; 7] =
    ["blocking", "poll", "select", "epoll-lt", "epoll-et", "epoll-counted", "epoll-oneshot"];
/// What takes a connection back to TCP; see `shunt-gen --hand-over`.
const WAYS: [&str; 4] = ["stdio", "scm", "spawn", "shell"];
/// Without a peek: while another thread hands the connection over, what was seen in the ring is on its way
/// over TCP, and a read gets less than the look did.
const CALLS: &str =
    "read,readv,recv,recv-dontwait,recv-waitall,recv-discard,recvfrom,recvmsg,recvmmsg";
/// Connections of a round, each of which is taken back once, or by both ends.
const CONNECTIONS: u64 = 8;

/// For good: each connection is given away at a random byte, by one end or by both, while both directions
/// are full.
#[test]
fn connections_are_handed_over() {
    let mut rng = Rng::with_seed(seed());
    for mode in Mode::enabled_shunted() {
        let sandbox = Sandbox::new(mode);
        let before = sandbox.stats().get("connections_demoted");
        let mut given = 0;
        for round in rounds(20, 1250) {
            let (n, seed) = (CONNECTIONS.to_string(), round.to_string());
            let common = ["-n", &n, "-b", "3000000", "--seed", &seed, "--recv-calls", CALLS];
            let mut end = |leaves: bool| {
                let style = STYLES[rng.usize(..STYLES.len())];
                let way = WAYS[rng.usize(..WAYS.len())];
                let leave: &[&str] = if leaves { &["--hand-over", way] } else { &[] };
                [&common[..], &["--style", style], leave].concat()
            };
            // By the server, the client, or both.
            let server = end(round % 3 != 1);
            let client = end(round % 3 != 0);
            let what = format!("server {server:?}, client {client:?} [{mode}]");
            let listening = Server::start(&sandbox, true, &server);
            let to = ([127, 0, 0, 1], listening.port).into();
            let clients = records(start_client(&sandbox, true, to, &client));
            compare(&clients, &listening.finish()).unwrap_or_else(|e| panic!("{e}\n{what}"));
            given += CONNECTIONS;
        }
        let demoted = sandbox.stats().get("connections_demoted") - before;
        println!("{mode}: {given} connections handed over, {demoted} ends demoted");
        // On a busy machine many are over, or not shunted yet, when it comes to it.
        assert!(demoted * 8 > given, "{demoted} ends demoted of {given} connections");
    }
}

/// Both ends leave the ring, first the server, which had found it full: what lies there is still counted.
#[test]
fn a_full_ring_is_left_by_both() {
    for mode in Mode::enabled_shunted() {
        let sandbox = Sandbox::new(mode);
        let mut command = sandbox.command(built("shunt-probe"));
        command.arg("counted");
        let out = sandbox.expect(Expect::All(8), || sandbox.run(command));
        assert!(out.stderr.is_empty() && !out.stdout.contains("false"), "{out}");
    }
}

/// A signal handler sends on top of a call that puts bytes into the ring, before the receiver has come there: two marks are
/// open, and the handler is not turned away.
#[test]
fn a_ring_is_left_before_anybody_has_entered_it() {
    for mode in Mode::enabled_shunted() {
        let sandbox = Sandbox::new(mode);
        let mut command = sandbox.command(built("shunt-probe"));
        command.arg("faulted");
        let out = sandbox.expect(Expect::All(4), || sandbox.run(command)).success();
        assert!(out.stdout.lines().count() == 10 && !out.stdout.contains("false"), "{out}");
    }
}

/// And back again: signal handlers send over TCP in the middle of sends that go through the ring.
#[test]
fn connections_go_to_and_fro() {
    for mode in Mode::enabled_shunted() {
        let sandbox = Sandbox::new(mode);
        let again = || {
            let stats = sandbox.stats();
            // The first time of each end is not again.
            stats.get("promotions") - stats.get("connections_shunted")
        };
        // A time budget may end it before.
        let wanted = if are_long() { 10_000 } else { 500 };
        let least = if is_bounded() { 1 } else { wanted };
        let mut times = 0;
        for round in rounds(40, 4000) {
            // Each size of a send has its own rhythm.
            let bytes = [65_536, 300_000, 20_000, 1_000_000][round as usize % 4].to_string();
            let every = [200, 90, 130, 310][round as usize / 4 % 4].to_string();
            let args = ["-n", "2000", "--bytes", &bytes, "--every", &every];
            sandbox.expect(Expect::Ends(2), || weave(&sandbox, &args));
            times = again();
            if times >= wanted {
                break;
            }
        }
        println!("{mode}: {times} times to TCP and back");
        assert!(times >= least, "only {times} times");
    }
}

/// Two ends of `shunt-weave`, whose numbers must agree.
fn weave(sandbox: &Sandbox, args: &[&str]) {
    let command = || {
        let mut command = sandbox.command(built("shunt-weave"));
        command.args(args);
        command
    };
    let mut server = sandbox.spawn(command());
    let port = server.wait_for_line(|line| {
        serde_json::from_str::<Listening>(line).ok().map(|listening| listening.port)
    });
    let mut connecting = command();
    connecting.args(["--to", &format!("127.0.0.1:{port}")]);
    let client = sandbox.spawn(connecting);
    let [client, server] = [client, server].map(|process| {
        let out = process.wait().success();
        let last = out.stdout.lines().last().unwrap_or_default();
        serde_json::from_str::<serde_json::Value>(last).expect("numbers")
    });
    assert_eq!(client["sent"], server["received"], "{args:?}");
    assert_eq!(server["sent"], client["received"], "{args:?}");
}
