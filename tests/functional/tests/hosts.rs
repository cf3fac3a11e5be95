//! Connections between hosts by RDMA, over the stub of libibverbs: every byte is checked, also when a link fails or an agent is
//! killed.

use std::fs;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use serde_json::Value;
use shunt_functional::generator::{records, records_or};
use shunt_functional::machines::Lab;
use shunt_functional::record::compare;
use shunt_functional::sandbox::{Stats, is_root};
use shunt_functional::waiting::{settles, settles_or};

fn stats(lab: &Lab) -> Vec<Stats> {
    lab.machines.iter().map(|machine| machine.sandbox().stats()).collect()
}

/// Waits until so many more connections were made on each host, nearly all of them shunted.
fn all_shunted(lab: &Lab, before: &[Stats], wanted: u64) {
    for (machine, before) in lab.machines.iter().zip(before) {
        let look = || {
            let (ends, shunted) = machine.sandbox().stats().since(before);
            (ends, shunted * 4 >= wanted * 3)
        };
        let what = "connections, nearly all of them shunted";
        settles_or(what, &(wanted, true), look, || logs(lab));
    }
}

/// Of the agents.
fn logs(lab: &Lab) -> String {
    let logs = lab.machines.iter().map(|it| it.sandbox().agent_log());
    logs.collect::<Vec<_>>().join("\n---\n")
}

fn traffic(n: &'static str, bytes: &'static str, style: &'static str) -> [&'static str; 6] {
    ["-n", n, "-b", bytes, "--style", style]
}

#[test]
fn every_byte_arrives() {
    let lab = Lab::of_hosts();
    for (from, to, style) in [(0, 1, "blocking"), (1, 0, "poll"), (0, 1, "epoll-et")] {
        let before = stats(&lab);
        let traffic = traffic("10", "3000000", style);
        lab.run(from, to, &traffic, &traffic);
        all_shunted(&lab, &before, 10);
    }
}

/// Short connections right behind each other: many are over before both agents have agreed on them, or leave their places to others whose
/// ends the far agent hears of a little later.
#[test]
fn places_are_used_again_at_once() {
    let lab = Lab::of_hosts();
    let before = stats(&lab);
    let server = ["-n", "300", "-b", "40000", "--style", "poll", "--buffers", "4096"];
    let client = [&server[..], &["--at-once", "3"]].concat();
    lab.run(0, 1, &server, &client);
    for (machine, before) in lab.machines.iter().zip(&before) {
        settles("connections, some of them shunted", &(300, true), || {
            let (ends, shunted) = machine.sandbox().stats().since(before);
            (ends, shunted >= 30)
        });
        let log = machine.sandbox().agent_log();
        assert!(!log.contains("what cannot be") && !log.contains("spoke of"), "{log}");
    }
}

/// The same while a port goes down and comes up again: connections at every stage go back to TCP, or stay there, and none loses a byte.
#[test]
fn short_connections_outlive_links_that_fail() {
    let lab = Lab::of_hosts();
    let before = stats(&lab);
    let server = ["-n", "1500", "-b", "40000", "--style", "poll", "--buffers", "4096"];
    let [one, two] = [&lab.machines[0], &lab.machines[1]];
    let serving = two.serve(&server);
    let at = SocketAddr::from((two.ip, serving.port));
    one.until_it_knows(at);
    let client = one.connect(at, &[&server[..], &["--at-once", "6"]].concat());
    for failure in 0..8 {
        thread::sleep(Duration::from_millis(200));
        lab.set_port_down(failure % 2, true);
        thread::sleep(Duration::from_millis(50));
        lab.set_port_down(failure % 2, false);
    }
    let clients = records(client);
    compare(&clients, &serving.finish()).expect("the same bytes");
    for (machine, before) in lab.machines.iter().zip(&before) {
        settles("connections, some of them shunted", &(1500, true), || {
            let (ends, shunted) = machine.sandbox().stats().since(before);
            (ends, shunted >= 10)
        });
        let log = machine.sandbox().agent_log();
        assert!(log.contains("go back to TCP"), "{log}");
        assert!(!log.contains("is reset") && !log.contains("spoke of"), "{log}");
    }
}

/// Connections that are busy, and shunted, while something happens to a device: all of their bytes arrive.
fn busy_while(lab: &Lab, happens: impl FnOnce()) {
    let [one, two] = [&lab.machines[0], &lab.machines[1]];
    let before = stats(lab);
    let busy = ["-n", "10", "-b", "20000000", "--style", "epoll-et", "--stall", "100"];
    let mut serving = two.serve(&busy);
    let at = SocketAddr::from((two.ip, serving.port));
    one.until_it_knows(at);
    let client = one.connect(at, &busy);
    settles("shunted, nearly all", &true, || {
        serving.process().assert_running();
        one.sandbox().stats().since(&before[0]).1 >= 8
    });
    happens();
    let server = serving.process();
    let clients = records_or(client, || format!("{}\n{}", server.describe(), logs(lab)));
    compare(&clients, &serving.finish()).expect("the same bytes");
}

/// New connections are shunted again.
fn all_shunted_again(lab: &Lab) {
    lab.until_linked();
    let again = stats(lab);
    lab.run(0, 1, &traffic("10", "3000000", "poll"), &traffic("10", "3000000", "poll"));
    all_shunted(lab, &again, 10);
}

/// The link fails while bytes are on their way: all of them arrive, over TCP.
#[test]
fn a_link_that_fails_loses_no_byte() {
    let lab = Lab::of_hosts();
    busy_while(&lab, || lab.cut(true));
    lab.cut(false);
    all_shunted_again(&lab);
}

/// Something happens to the link of busy connections, and they stay shunted. On a slow machine another queue pair may come too late, and
/// then they are back on TCP, so it is tried more than once: all bytes arrive each time.
fn goes_on(lab: fn() -> Lab, happens: fn(&Lab)) {
    let mut seen = Vec::new();
    for _ in 0..6 {
        let lab = lab();
        busy_while(&lab, || happens(&lab));
        let demoted = lab.machines.iter().map(|it| it.sandbox().stats().get("connections_demoted"));
        let demoted: u64 = demoted.sum();
        let failovers = lab.machines.iter().map(|machine| {
            machine.status()["peers"][0]["failovers_total"].as_u64().expect("a number")
        });
        let failovers: Vec<_> = failovers.collect();
        if demoted == 0 && failovers.iter().all(|count| *count > 0) {
            let log = lab.machines[0].sandbox().agent_log();
            assert!(log.contains("goes on with another queue pair"), "{log}");
            return all_shunted_again(&lab);
        }
        seen.push((demoted, failovers, lab.machines[0].sandbox().agent_log()));
    }
    panic!("connections went back to TCP: {seen:?}");
}

/// A queue pair fails, and the next one does not.
#[test]
fn a_link_that_fails_once_goes_on() {
    goes_on(Lab::of_hosts, Lab::fail_once);
}

/// A port goes down, and there is another one.
#[test]
fn connections_go_on_over_another_port() {
    goes_on(Lab::of_hosts_with_two_ports, |lab| lab.set_port_down(0, true));
}

/// Connections go back to TCP at once when a port goes down or a device is removed, the agent says why and lets the device go, and takes it
/// up again when it is back.
#[test]
fn a_device_that_is_lost_loses_no_byte() {
    let lab = Lab::of_hosts();
    type Lose = fn(&Lab, usize, bool);
    let ways: [(usize, Lose, &str); 2] = [
        (0, Lab::set_port_down, "the RDMA device's port has gone down"),
        (1, Lab::set_device_removed, "the RDMA device is removed"),
    ];
    for (who, lose, why) in ways {
        let sandbox = lab.machines[who].sandbox();
        busy_while(&lab, || {
            lose(&lab, who, true);
            settles("the agent's word", &true, || sandbox.agent_log().contains(why));
            settles("back on TCP", &true, || {
                lab.machines[who].status()["peers"][0]["connections"] == 0
            });
        });
        assert!(lab.machines[who].status()["device_lacks"].is_string());
        lose(&lab, who, false);
        all_shunted_again(&lab);
        assert!(lab.machines[who].status()["device_lacks"].is_null());
    }
}

/// An agent is stopped in mid-stream, as for an update: its connections go back to TCP first, and its successor carries new ones.
#[test]
fn an_agent_that_ends_in_good_order_loses_no_byte() {
    let lab = Lab::of_hosts();
    for machine in &lab.machines {
        busy_while(&lab, || {
            machine.sandbox().stop_agent();
            let log = machine.sandbox().agent_log();
            assert!(log.contains("go back to TCP"), "{log}");
            machine.start_agent();
        });
        all_shunted_again(&lab);
    }
}

/// A peer is taken out of the policy in mid-stream, which is read anew: its connections go back to TCP first.
#[test]
fn a_peer_that_is_named_no_more_loses_no_byte() {
    if !is_root() {
        return;
    }
    let lab = Lab::of_hosts();
    let one = &lab.machines[0];
    let policy = one.sandbox().path().join("policy.toml");
    one.sandbox().stop_agent();
    one.start_host_agent(&policy);
    lab.until_linked();
    busy_while(&lab, || {
        fs::write(&policy, "").expect("a file");
        one.sandbox().signal_agent(libc::SIGHUP);
        settles("peers", &Some(0), || one.status()["peers"].as_array().map(Vec::len));
        let log = one.sandbox().agent_log();
        assert!(log.contains("go back to TCP"), "{log}");
    });
}

/// What each agent says of connections with the other host.
fn promotion(lab: &Lab, wanted: &str) {
    for machine in &lab.machines {
        settles("a judgement", &Value::from(wanted), || {
            machine.status()["peers"][0]["promotion"].clone()
        });
    }
}

/// Runs connections that stay on TCP, from one machine to the other.
fn run_over_tcp(lab: &Lab, from: usize, to: usize) {
    let small = traffic("4", "300000", "poll");
    let (from, to) = (&lab.machines[from], &lab.machines[to]);
    let serving = to.serve(&small);
    let at = SocketAddr::from((to.ip, serving.port));
    let has = |list: &Value| {
        list.as_array().is_some_and(|all| all.contains(&Value::from(at.to_string())))
    };
    // It is told of, and not found.
    settles("the listener is told of", &true, || has(&from.status()["peers"][0]["listeners"]));
    let clients = records(from.connect(at, &small));
    assert!(!has(&from.status()["reachable"]), "{:#}", from.status());
    compare(&clients, &serving.finish()).expect("the same bytes");
}

/// Over a wire that is slower than TCP connections stay on TCP, whole, and the agents say why; where a policy that is read anew has them
/// promoted whatever was measured, they are.
#[test]
fn a_link_that_is_slower_than_tcp_carries_nothing_unless_it_is_told_to() {
    if !is_root() {
        return;
    }
    let lab = Lab::of_hosts_with_a_slow_wire();
    promotion(&lab, "slower");
    let before = stats(&lab);
    run_over_tcp(&lab, 0, 1);
    run_over_tcp(&lab, 1, 0);
    for (machine, before) in lab.machines.iter().zip(&before) {
        settles("connections, none of them shunted", &(8, 0), || {
            machine.sandbox().stats().since(before)
        });
        let status = machine.status();
        assert_eq!(status["peers"][0]["connections_total"], 0);
        let why = status["peers"][0]["promotion_reason"].as_str().expect("a reason");
        assert!(why.starts_with("the link is slower than TCP: "), "{why}");
    }
    let policies = lab.machines.iter().map(|machine| {
        let policy = machine.sandbox().path().join("policy.toml");
        machine.sandbox().stop_agent();
        machine.start_host_agent(&policy);
        policy
    });
    let policies: Vec<_> = policies.collect();
    lab.set_slow(false);
    for (machine, policy) in lab.machines.iter().zip(&policies) {
        let peer = fs::read_to_string(policy).expect("a policy");
        fs::write(policy, format!("[rdma]\npromote = \"always\"\n{peer}")).expect("a file");
        machine.sandbox().signal_agent(libc::SIGHUP);
    }
    promotion(&lab, "always");
    all_shunted_again(&lab);
}

/// Answers each `ping`; behind `last` it reads to the end, and says what it has read.
const READER: &str = r#"
import hashlib, socket, sys, threading
listener = socket.create_server((sys.argv[1], 0))
print("port", listener.getsockname()[1], flush=True)
read = []
def serve(conn):
    while conn.recv(4, socket.MSG_WAITALL) == b"ping":
        conn.sendall(b"pong")
    last = b""
    try:
        while piece := conn.recv(65536):
            last += piece
        read.append(f"last {len(last)} {hashlib.sha256(last).hexdigest()}")
    except OSError as error:
        read.append(f"last {len(last)} {error}")
    conn.close()
threads = [threading.Thread(target=serve, args=(listener.accept()[0],)) for _ in range(int(sys.argv[2]))]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print("\n".join(read))
"#;

/// Is quiet once there is a file `quiet`; and when there is `go` sends its last bytes, and ends in that way.
const ENDS: &str = r#"
import hashlib, os, socket, sys, time
ip, port, place, how, size = sys.argv[1:]
last = bytes(n * n % 251 for n in range(int(size)))
conn = socket.create_connection((ip, int(port)))
while not os.path.exists(place + "/quiet"):
    conn.sendall(b"ping")
    assert conn.recv(4, socket.MSG_WAITALL) == b"pong"
    time.sleep(0.02)
print("quiet", flush=True)
while not os.path.exists(place + "/go"):
    time.sleep(0.002)
conn.sendall(b"last" + last)
if how == "shutdown":
    conn.shutdown(socket.SHUT_WR)
elif how == "close":
    conn.close()
print("last", len(last), hashlib.sha256(last).hexdigest(), flush=True)
if how == "shutdown":
    assert conn.recv(1) == b"", "the peer ends as well"
os._exit(0)
"#;

/// Programs send their last bytes and end, and only then their agent finds that the link fails: the peers read all of it, and then the
/// end.
#[test]
fn an_end_comes_behind_all_its_bytes() {
    let lab = Lab::of_hosts();
    let [one, two] = [&lab.machines[0], &lab.machines[1]];
    let place = one.sandbox().path();
    let ways = ["shutdown", "close", "exit"];
    let before = one.sandbox().stats();
    let mut reader = two.command("python3");
    reader.args(["-c", READER, "10.77.0.2", "9"]);
    let mut reader = two.sandbox().spawn(reader);
    let port: u16 = reader.wait_for_line(|line| line.strip_prefix("port ")?.parse().ok());
    one.until_it_knows(SocketAddr::from((two.ip, port)));
    let all = ways.iter().flat_map(|how| ["1", "4000", "100000"].map(|size| (*how, size)));
    let senders = all.map(|(how, size)| {
        let mut sender = one.command("python3");
        sender.args(["-c", ENDS, "10.77.0.2", &port.to_string()]).arg(place).args([how, size]);
        one.sandbox().spawn(sender)
    });
    let mut senders: Vec<_> = senders.collect();
    settles("shunted, nearly all", &true, || {
        reader.assert_running();
        one.sandbox().stats().since(&before).1 >= 7
    });
    fs::write(place.join("quiet"), "").expect("a file");
    for sender in &mut senders {
        sender.wait_for_line(|line| (line == "quiet").then_some(()));
    }
    one.sandbox().signal_agent(libc::SIGSTOP);
    lab.cut(true);
    fs::write(place.join("go"), "").expect("a file");
    let last = |line: &str| line.starts_with("last").then(|| line.to_owned());
    let mut sent: Vec<_> = senders.iter_mut().map(|sender| sender.wait_for_line(last)).collect();
    one.sandbox().signal_agent(libc::SIGCONT);
    for sender in senders {
        let _ = sender.wait().success();
    }
    let mut read: Vec<_> = reader.wait().success().stdout.lines().filter_map(last).collect();
    sent.sort();
    read.sort();
    let log = one.sandbox().agent_log();
    assert_eq!(sent, read, "{log}\n{}", two.sandbox().agent_log());
    assert!(log.contains("pieces of connections that have ended"), "{log}");
}

/// Connections of a link that has failed are TCP's alone, once the agents have said where they stood.
#[test]
fn an_agent_that_is_killed_later_ends_none_that_went_back_to_tcp() {
    for victim in 0..2 {
        let lab = Lab::of_hosts();
        let [one, two] = [&lab.machines[0], &lab.machines[1]];
        let place = one.sandbox().path();
        let before = one.sandbox().stats();
        let mut reader = two.command("python3");
        reader.args(["-c", READER, "10.77.0.2", "6"]);
        let mut reader = two.sandbox().spawn(reader);
        let port: u16 = reader.wait_for_line(|line| line.strip_prefix("port ")?.parse().ok());
        one.until_it_knows(SocketAddr::from((two.ip, port)));
        let senders = (0..6).map(|_| {
            let mut sender = one.command("python3");
            sender.args(["-c", ENDS, "10.77.0.2", &port.to_string()]).arg(place);
            sender.args(["shutdown", "100000"]);
            one.sandbox().spawn(sender)
        });
        let mut senders: Vec<_> = senders.collect();
        settles("shunted, nearly all", &true, || {
            reader.assert_running();
            let now = one.sandbox().stats();
            // Each has sent something in shared memory, as all send in turn: what has not is over TCP as it was.
            now.since(&before).1 >= 4 && now.get("messages_sent") >= 60
        });
        lab.cut(true);
        settles("back on TCP", &true, || one.sandbox().stats().get("connections_demoted") >= 4);
        lab.cut(false);
        lab.until_linked();
        lab.machines[victim].sandbox().kill_agent();
        let other = lab.machines[1 - victim].sandbox();
        settles("word of that", &true, || other.agent_log().contains("a machine is gone"));
        fs::write(place.join("quiet"), "").expect("a file");
        for sender in &mut senders {
            sender.wait_for_line(|line| (line == "quiet").then_some(()));
        }
        fs::write(place.join("go"), "").expect("a file");
        for sender in senders {
            let _ = sender.wait().success();
        }
        let read = reader.wait().success().stdout;
        let whole = read.lines().filter(|line| line.starts_with("last 100000 ")).count();
        assert_eq!(whole, 6, "{read}");
    }
}

/// `kill -9` of an agent: connections through it are over at once, on either side.
#[test]
fn connections_end_with_an_agent_that_is_killed() {
    for victim in 0..2 {
        let lab = Lab::of_hosts();
        let [one, two] = [&lab.machines[0], &lab.machines[1]];
        let endless = ["-n", "10", "-b", "1000000000000", "--style", "epoll-et"];
        let mut serving = two.serve(&endless);
        let at = SocketAddr::from((two.ip, serving.port));
        one.until_it_knows(at);
        let before = one.sandbox().stats();
        let client = one.connect(at, &endless);
        settles("shunted, nearly all", &true, || {
            serving.process().assert_running();
            let now = one.sandbox().stats();
            // And bytes go through the link.
            now.since(&before).1 >= 8 && now.get("bytes_sent") > 4_000_000
        });
        lab.machines[victim].sandbox().kill_agent();
        let ends = [client.wait(), serving.into_process().wait()];
        let logs = || [one, two].map(|machine| machine.sandbox().agent_log()).join("\n");
        for end in &ends {
            let ways = ["reset", "ended", "Broken pipe"];
            let is_over = ways.iter().any(|way| end.stderr.contains(way));
            assert!(is_over, "agent {victim} was killed: {end}\n{}", logs());
        }
    }
}
