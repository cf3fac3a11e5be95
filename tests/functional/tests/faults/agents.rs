//! An agent that dies and comes back, again and again, while connections come and go.

use std::thread;
use std::time::Duration;

use fastrand::Rng;
use shunt_functional::binaries::built;
use shunt_functional::generator::{Server, records, start_client, totals};
use shunt_functional::mode::Mode;
use shunt_functional::record::compare;
use shunt_functional::sandbox::{Expect, Process, Sandbox};

use crate::rounds::{rounds, seed};

const PATIENCE: Duration = Duration::from_secs(100);

/// Connections come and go between two programs.
struct Churn {
    server: Server,
    client: Process,
}

impl Churn {
    fn start(sandbox: &Sandbox) -> Self {
        let args = ["-n", "6000", "-b", "20000", "--totals", "--style", "epoll-lt"];
        let server = Server::start(sandbox, true, &args);
        // Not by `shunt run`, which would start an agent of its own.
        let mut command = sandbox.preloaded(built("shunt-gen"));
        command.args(["connect", "--to", &format!("127.0.0.1:{}", server.port)]).args(args);
        command.args(["--at-once", "8"]);
        Self { server, client: sandbox.spawn(command) }
    }

    /// All bytes of all connections have come in, at both ends.
    fn finish(self) {
        let client = totals(self.client, PATIENCE);
        let server = totals(self.server.into_process(), PATIENCE);
        assert_eq!(client.connections, 6000);
        assert_eq!(server.connections, 6000);
        assert_eq!(client.sent_bytes, server.received_bytes);
        assert_eq!(server.sent_bytes, client.received_bytes);
    }
}

#[test]
fn agents_come_and_go() {
    for mode in Mode::enabled_shunted() {
        let sandbox = Sandbox::new(mode);
        let mut rng = Rng::with_seed(seed());
        let mut churn = Churn::start(&sandbox);
        let (mut restarts, mut runs) = (0, 1);
        for _ in rounds(12, 100) {
            let mut nap = || thread::sleep(Duration::from_millis(rng.u64(..80)));
            nap();
            sandbox.kill_agent();
            nap();
            sandbox.start_agent();
            restarts += 1;
            if !churn.client.is_running() {
                churn.finish();
                churn = Churn::start(&sandbox);
                runs += 1;
            }
        }
        churn.finish();
        println!("{mode}: {restarts} restarts, {} connections", runs * 6000);
        let args = ["-n", "10", "-b", "100000"];
        sandbox.expect(Expect::Ends(10), || {
            let server = Server::start(&sandbox, true, &args);
            let to = ([127, 0, 0, 1], server.port).into();
            let clients = records(start_client(&sandbox, true, to, &args));
            compare(&clients, &server.finish()).expect("the same bytes");
        });
    }
}

/// One pair of programs lives through it, and its connections are shunted again afterwards.
#[test]
fn programs_find_each_new_agent() {
    for mode in Mode::enabled_shunted() {
        let sandbox = Sandbox::new(mode);
        for _ in rounds(2, 20) {
            let churn = Churn::start(&sandbox);
            thread::sleep(Duration::from_millis(30));
            sandbox.kill_agent();
            sandbox.start_agent();
            // Those that the new agent has counted.
            let before = sandbox.stats();
            sandbox.expect(Expect::Ends(100), || churn.finish());
            let (ends, shunted) = sandbox.stats().since(&before);
            println!("{mode}: {shunted} of {ends} ends shunted after the restart");
        }
    }
}

/// Answers on two connections, then waits in recv on one, and in poll on the other. Says when each has ended.
const READERS: &str = r#"
import select, socket, threading

def read(conn, how):
    for _ in range(9):
        conn.send(conn.recv(1))
    if how == "poll":
        poll = select.poll()
        poll.register(conn, select.POLLIN)
        poll.poll()
    assert conn.recv(1) == b""
    # One piece: both threads may say so at once.
    print(f"end of {how}\n", end="", flush=True)

listener = socket.create_server(("127.0.0.1", 0))
print("port", listener.getsockname()[1], flush=True)
for how in "recv", "poll":
    threading.Thread(target=read, args=(listener.accept()[0], how)).start()
"#;

/// Has had its answers, and holds the connections.
const HOLDER: &str = r#"
import socket, sys, time
conns = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(2)]
for conn in conns:
    for _ in range(9):
        conn.send(b"x")
        assert conn.recv(1) == b"x"
print("answered", flush=True)
time.sleep(60)
"#;

/// The agent tells those who sleep of a peer that was killed. They hear of its own end too, so they then look for
/// themselves; what they sleep otherwise would last a quarter of a minute.
#[test]
fn a_peer_is_killed_after_the_agent() {
    for mode in Mode::enabled_shunted() {
        let sandbox = Sandbox::new(mode);
        sandbox.start_agent();
        let mut readers = sandbox.python(&[READERS]);
        let port = readers.wait_for_line(|line| line.strip_prefix("port ").map(str::to_owned));
        let mut holder = sandbox.python(&[HOLDER, &port]);
        holder.wait_for_line(|line| (line == "answered").then_some(()));
        sandbox.assert_shunted(4);
        thread::sleep(Duration::from_secs(6));
        sandbox.kill_agent();
        thread::sleep(Duration::from_millis(200));
        holder.kill();
        let out = readers.wait_at_most(Duration::from_secs(7));
        let mut ends: Vec<_> = out.stdout.lines().skip(1).collect();
        ends.sort_unstable();
        assert_eq!(ends, ["end of poll", "end of recv"], "{mode}: {out}");
    }
}

/// Has answers from a peer that takes its time, and then sees that it has gone before it reads on.
const PATIENT: &str = r#"
import os, select, socket, struct, sys, threading, time
def read(conn, how):
    def wait():
        if how == "poll":
            poll = select.poll()
            poll.register(conn, select.POLLIN)
            poll.poll()
    for _ in range(20):
        conn.send(b"x")
        wait()
        assert conn.recv(1) == b"x"
    print("answered", flush=True)
    ESTABLISHED = 1
    while conn.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == ESTABLISHED:
        time.sleep(0.01)
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
    wait()
    assert conn.recv(1) == b""

listener = socket.create_server(("127.0.0.1", 0))
print("port", listener.getsockname()[1], flush=True)
threads = [threading.Thread(target=read, args=(listener.accept()[0], how)) for how in ("recv", "poll")]
for thread in threads: thread.start()
for thread in threads: thread.join()
"#;

/// Answers late.
const SLOW: &str = r#"
import socket, sys, threading, time
def answer(conn):
    for _ in range(20):
        byte = conn.recv(1)
        time.sleep(0.05)
        conn.send(byte)
    time.sleep(60)
conns = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(2)]
for conn in conns: threading.Thread(target=answer, args=(conn,)).start()
"#;

/// Waits that last long are one sleep each. A peer that was killed while nobody slept is seen before the next one: no sleep has
/// to end for that.
#[test]
fn a_slow_peer_is_killed_while_its_readers_are_awake() {
    for mode in Mode::enabled_shunted() {
        let sandbox = Sandbox::new(mode);
        sandbox.start_agent();
        let told = sandbox.path().join("told");
        let mut readers = sandbox.python(&[PATIENT, &told.to_string_lossy()]);
        let port = readers.wait_for_line(|line| line.strip_prefix("port ").map(str::to_owned));
        let mut slow = sandbox.python(&[SLOW, &port]);
        let have_answers = |text: &str| (text.matches("answered").count() == 2).then_some(());
        readers.wait_for_text(have_answers);
        sandbox.assert_shunted(4);
        let sleeps = sandbox.stats().get("futex_sleeps");
        // Of four threads, 20 waits each, and some at the start.
        assert!((40..=100).contains(&sleeps), "{mode}: {sleeps} sleeps");
        slow.kill();
        while sandbox.stats().get("programs_live") > 1 {
            thread::sleep(Duration::from_millis(10));
        }
        let before = sandbox.stats().get("futex_sleeps");
        std::fs::write(&told, "").unwrap();
        let _ = readers.wait_at_most(PATIENCE).success();
        assert_eq!(sandbox.stats().get("futex_sleeps"), before, "{mode}");
    }
}
