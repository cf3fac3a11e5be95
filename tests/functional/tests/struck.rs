//! Connections between hosts by RDMA, over the stub of libibverbs, while at each step of agreeing on them, and of settling them when
//! their link has failed, an agent is killed, the agents lose each other, or the link fails. Each connection is whole over TCP, or its
//! end is heard on both sides; nothing waits for ever, and what is over TCP is not listed as shunted.

use std::fs;
use std::net::SocketAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use shunt_functional::machines::{Lab, Machine};
use shunt_functional::relay::Strikes;
use shunt_functional::sandbox::{Finished, Process};
use shunt_functional::waiting::settles;

/// Connections, of which every second one sends all at once and ends its direction.
const CONNECTIONS: usize = 4;

/// Sends back what comes, by epoll; says how each connection has ended.
const SERVER: &str = r#"
import selectors, socket, sys
count, size = int(sys.argv[2]), int(sys.argv[3])
data = bytes(n * n % 251 for n in range(size))
listener = socket.create_server((sys.argv[1], 0))
print("port", listener.getsockname()[1], flush=True)
epoll = selectors.EpollSelector()
epoll.register(listener, selectors.EVENT_READ)
def over(conn, how):
    global count
    print("end", how, flush=True)
    epoll.unregister(conn)
    conn.close()
    count -= 1
def serve(conn, state):
    if state["at"] < len(state["got"]):
        state["at"] += conn.send(state["got"][state["at"]:state["at"] + 65536])
    if not state["ended"]:
        try:
            piece = conn.recv(65536)
        except BlockingIOError:
            piece = None
        if piece == b"":
            state["ended"] = True
            if bytes(state["got"]) != data:
                return over(conn, f"SHORT {len(state['got'])}")
        elif piece:
            state["got"] += piece
            if state["got"] != data[:len(state["got"])]:
                return over(conn, f"WRONG within {len(state['got'])}")
    waits = 0 if state["ended"] else selectors.EVENT_READ
    if state["at"] < len(state["got"]):
        waits |= selectors.EVENT_WRITE
    elif state["ended"]:
        return over(conn, "whole")
    epoll.modify(conn, waits, state)
while count:
    for key, _ in epoll.select():
        if key.data is None:
            conn = listener.accept()[0]
            conn.setblocking(False)
            epoll.register(conn, selectors.EVENT_READ, {"got": bytearray(), "at": 0, "ended": False})
        else:
            try:
                serve(key.fileobj, key.data)
            except BlockingIOError:
                pass
            except OSError as error:
                over(key.fileobj, f"reset {error}")
"#;

/// A connection for each thread; those of an even number wait for each piece to come back.
const CLIENT: &str = r#"
import os, select, socket, sys, threading, time
ip, port, count, size, place = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
data = bytes(n * n % 251 for n in range(size))
def await_go(conn):
    while not os.path.exists(place + "/go"):
        # With a look at the connection.
        select.select([conn], [], [], 0.002)
        time.sleep(0.002)
def take(conn, got, most):
    while len(got) < most:
        piece = conn.recv(min(65536, most - len(got)))
        if not piece:
            raise OSError(f"ended after {len(got)}")
        got += piece
        if got != data[:len(got)]:
            raise ValueError(f"WRONG within {len(got)}")
def talk(conn, is_steady):
    got, sent = bytearray(), 0
    while sent < (size if is_steady else 3000):
        conn.sendall(data[sent:sent + 1000])
        sent += 1000
        take(conn, got, sent)
        if sent > size // 2:
            await_go(conn)
        time.sleep(0.005)
    if not is_steady:
        await_go(conn)
        def rest():
            try:
                conn.sendall(data[sent:])
                conn.shutdown(socket.SHUT_WR)
            except OSError:
                pass
        sender = threading.Thread(target=rest)
        sender.start()
        take(conn, got, size)
        sender.join()
    else:
        conn.shutdown(socket.SHUT_WR)
    if conn.recv(1) != b"":
        raise ValueError("WRONG: more")
def run(n):
    try:
        conn = socket.create_connection((ip, port))
        talk(conn, n % 2 == 0)
        how = "whole"
    except OSError as error:
        how = f"reset {error}"
    except ValueError as error:
        how = error
    os.write(1, f"end {how}\n".encode())
threads = [threading.Thread(target=run, args=(n,)) for n in range(count)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"#;

/// Reads all; says how it has ended.
const SINK: &str = r#"
import socket, sys
listener = socket.create_server((sys.argv[1], 0))
print("port", listener.getsockname()[1], flush=True)
conn, got = listener.accept()[0], 0
try:
    while piece := conn.recv(65536):
        got += len(piece)
    print("end", got, flush=True)
except OSError as error:
    print("end reset", error, flush=True)
"#;

/// Sends now and then, which it says, and all the rest at once when it may go. Then it ends its direction, and waits for the other one.
const SOURCE: &str = r#"
import os, socket, sys, time
ip, port, place = sys.argv[1], int(sys.argv[2]), sys.argv[3]
conn = socket.create_connection((ip, port))
while not os.path.exists(place + "/go"):
    conn.sendall(bytes(1000))
    time.sleep(0.005)
conn.sendall(bytes(57000))
conn.shutdown(socket.SHUT_WR)
print("ended", flush=True)
try:
    conn.recv(1)
except OSError as error:
    print("reset", error, flush=True)
"#;

/// What is struck, if it is an agent: the first one's or the second one's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    Agent(usize),
    Agents,
    Link,
    /// The agents' connection: it stands still for so long.
    Hush(Duration),
}

/// Longer than anything that agents do about a peer at once, and longer than they keep a connection on which they hear nothing.
const HUSHES: [Duration; 2] = [Duration::from_secs(8), Duration::from_secs(18)];

const WHATS: [What; 4] = [What::Agent(0), What::Agent(1), What::Agents, What::Link];

struct Programs {
    lab: Lab,
    server: Process,
    client: Process,
}

impl Programs {
    /// Those that say how each of their connections has ended.
    fn start(lab: Lab, before: impl FnOnce(&Lab)) -> Self {
        let several = [&CONNECTIONS.to_string(), "60000"];
        Self::of(lab, [SERVER, CLIENT], &several, before)
    }

    fn of(lab: Lab, texts: [&str; 2], several: &[&str], before: impl FnOnce(&Lab)) -> Self {
        let [one, two] = [&lab.machines[0], &lab.machines[1]];
        let mut server = two.command("python3");
        server.args(["-c", texts[0], "10.77.0.2"]).args(several);
        let mut server = two.sandbox().spawn(server);
        let port: u16 = server.wait_for_line(|line| line.strip_prefix("port ")?.parse().ok());
        one.until_it_knows(SocketAddr::from((two.ip, port)));
        before(&lab);
        let mut client = one.command("python3");
        client.args(["-c", texts[1], "10.77.0.2", &port.to_string()]);
        client.args(several).arg(lab.path());
        let client = one.sandbox().spawn(client);
        Self { lab, server, client }
    }

    fn strike(lab: &Lab, step: usize, what: What) {
        let pid = |which: usize| lab.machines[which].sandbox().agent_pid().expect("an agent");
        let strikes = match what {
            What::Agent(which) => Strikes::Kill(pid(which)),
            What::Agents => Strikes::Drop,
            What::Link => Strikes::Cut,
            What::Hush(time) => Strikes::Hush(time),
        };
        lab.relay().strike_at(step, strikes, &lab.cut_file());
    }

    fn go(&self) {
        fs::write(self.lab.path().join("go"), "").expect("a file");
    }

    /// The ends of the client's and of the server's connections, and the agents' logs.
    fn finish(self, what: &str) -> Vec<String> {
        self.go();
        let Self { lab, server, client } = self;
        let logs = || {
            let logs = [&lab.machines[0], &lab.machines[1]].map(|it| it.sandbox().agent_log());
            format!("{what}\n{}", logs.join("\n---\n"))
        };
        let patience = Duration::from_secs(40);
        let client = wait(client, patience, &logs);
        let server = wait(server, patience, &logs);
        let ends = [&client, &server].map(|program| {
            program.stdout.lines().filter_map(|line| line.strip_prefix("end ").map(str::to_owned))
        });
        let ends: Vec<_> = ends.into_iter().flatten().collect();
        let is_right = |end: &String| end == "whole" || end.starts_with("reset");
        let is_whole = ends.len() == 2 * CONNECTIONS && ends.iter().all(is_right);
        assert!(is_whole, "{ends:?} {client} {server}\n{}", logs());
        ends
    }
}

/// Its end.
fn wait(mut program: Process, patience: Duration, logs: &impl Fn() -> String) -> Finished {
    let started = Instant::now();
    while program.is_running() {
        let waits_for_ever = started.elapsed() > patience;
        assert!(!waits_for_ever, "it waits for ever: {}\n{}", program.describe(), logs());
        sleep(Duration::from_millis(5));
    }
    program.wait()
}

/// Connections that are listed as shunted.
fn listed(machine: &Machine) -> usize {
    let mut command = machine.sandbox().plain(machine.sandbox().shunt_path());
    let output = command.args(["list", "--json"]).output().expect("shunt runs");
    let list: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let all = list["connections"].as_array().cloned().unwrap_or_default();
    all.iter().filter(|it| it["mode"].as_str().is_some_and(|mode| mode != "tcp")).count()
}

/// How many steps are struck: all, or every third one.
fn steps(all: usize) -> Vec<usize> {
    let every = if std::env::var_os("SHUNT_TEST_FULL").is_some() { 1 } else { 3 };
    (1..=all).step_by(every).collect()
}

/// An `Open` and an answer for each.
#[test]
fn connections_that_are_being_agreed_upon() {
    for what in WHATS {
        for step in steps(2 * CONNECTIONS) {
            let programs =
                Programs::start(Lab::of_hosts_by_relay(), |lab| Programs::strike(lab, step, what));
            settles("struck", &true, || programs.lab.relay().has_struck());
            let name = format!("{what:?} before message {step}");
            if what == What::Link {
                for machine in &programs.lab.machines {
                    settles("the link is settled", &0, || {
                        machine.status()["peers"][0]["link_groups"].as_u64().unwrap_or(1)
                    });
                    settles("listed as shunted", &0, || listed(machine));
                }
            }
            let ends = programs.finish(&name);
            let is_whole = ends.iter().all(|end| end == "whole");
            assert!(is_whole || matches!(what, What::Agent(_)), "{name}: {ends:?}");
        }
    }
}

/// Programs all of whose connections are shunted, nearly, and move.
fn shunted() -> Programs {
    let programs = Programs::start(Lab::of_hosts_by_relay(), |_| ());
    let sandbox = programs.lab.machines[0].sandbox();
    settles("shunted, nearly all", &true, || {
        listed(&programs.lab.machines[0]) >= CONNECTIONS - 1
            && sandbox.stats().get("messages_sent") > 10
    });
    programs
}

/// A network that is away for a while costs time alone, as over TCP: also where the link fails meanwhile, and the agents connect anew.
#[test]
fn agents_that_do_not_hear_each_other_for_a_while() {
    let is_whole = |ends: &[String]| ends.iter().all(|end| end == "whole");
    for hush in HUSHES {
        let strikes = |lab: &Lab| Programs::strike(lab, 3, What::Hush(hush));
        let agreeing = Programs::start(Lab::of_hosts_by_relay(), strikes);
        settles("struck", &true, || agreeing.lab.relay().has_struck());
        let ends = agreeing.finish("silence before message 3");
        assert!(is_whole(&ends), "{hush:?}: {ends:?}");
        for step in [1, 3] {
            let programs = shunted();
            Programs::strike(&programs.lab, step, What::Hush(hush));
            programs.go();
            programs.lab.cut(true);
            let ends = programs.finish(&format!("silence before message {step} of settling"));
            assert!(is_whole(&ends), "{hush:?} {step}: {ends:?}");
        }
    }
}

/// Somebody ends the agents' connection in the midst of the programs': these go on in the ring, and notice nothing.
#[test]
fn agents_that_lose_each_other_connect_again_and_all_goes_on() {
    let programs = shunted();
    let machines = [&programs.lab.machines[0], &programs.lab.machines[1]];
    let resumptions = || machines.map(|it| it.status()["peers"][0]["resumptions_total"].as_u64());
    for times in 1..4 {
        programs.lab.relay().lose();
        settles("connected again", &true, || resumptions().iter().all(|is| *is >= Some(times)));
    }
    let demoted = || machines.map(|it| it.sandbox().stats().get("connections_demoted"));
    assert_eq!(demoted(), [0, 0]);
    let ends = programs.finish("lost each other");
    assert!(ends.iter().all(|end| end == "whole"), "{ends:?}");
}

/// Both sides say where they stood, what is missing of those that have ended, and that it was all.
#[test]
fn connections_that_are_being_settled() {
    for what in WHATS.into_iter().filter(|what| *what != What::Link) {
        for step in steps(4) {
            let programs = shunted();
            Programs::strike(&programs.lab, step, what);
            programs.go();
            programs.lab.cut(true);
            let ends = programs.finish(&format!("{what:?} before message {step} of settling"));
            let is_whole = ends.iter().all(|end| end == "whole");
            assert!(is_whole || matches!(what, What::Agent(_)), "{what:?} {step}: {ends:?}");
        }
    }
}

/// A program ends its direction, and resets the connection as its agent is killed, before the other agent knows of that: what the kernel
/// tells is no end of what the link has not brought.
#[test]
fn an_end_and_a_reset_before_the_other_agent_knows() {
    let texts = [SINK, SOURCE];
    let mut programs = Programs::of(Lab::of_hosts_by_relay(), texts, &[], |_| ());
    let [one, two] = [&programs.lab.machines[0], &programs.lab.machines[1]];
    let moves = || listed(one) == 1 && one.sandbox().stats().get("messages_sent") > 10;
    settles("shunted", &true, moves);
    let agents = [one, two].map(Machine::sandbox);
    agents.iter().for_each(|agent| agent.signal_agent(libc::SIGSTOP));
    programs.go();
    programs.client.wait_for_line(|line| (line == "ended").then_some(()));
    agents[0].kill_agent();
    let client = programs.client.wait();
    assert!(client.stdout.contains("reset"), "{client}");
    // Time for the server to take that for an end, if it does.
    sleep(Duration::from_millis(100));
    agents[1].signal_agent(libc::SIGCONT);
    let server = programs.server.wait();
    assert!(server.stdout.contains("end reset"), "{server}");
}
