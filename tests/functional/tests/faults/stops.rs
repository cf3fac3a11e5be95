//! A process that is stopped for a while: the others go on, and so does it afterwards.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use shunt_functional::binaries::{built, program};
use shunt_functional::generator::{Server, records, served, start_client};
use shunt_functional::mode::Mode;
use shunt_functional::record::compare;
use shunt_functional::sandbox::{Expect, Sandbox};

use crate::rounds::are_long;

/// How long they are stopped.
fn a_while() -> Duration {
    Duration::from_secs(if are_long() { 10 } else { 1 })
}

/// One whose programs wait for the agent as long as they do by default.
fn sandbox(mode: Mode) -> Sandbox {
    Sandbox::new(mode).with_env("SHUNT_AGENT_TIMEOUT", "500")
}

fn at(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

/// So many bytes that none is done when it is stopped. A stop ends MSG_WAITALL early, as a signal does.
const LONG: [&str; 6] = [
    "-b",
    "60000000",
    "--pause",
    "2000",
    "--recv-calls",
    "read,readv,recv,recv-dontwait,recv-discard,peek,peek-msg,recvfrom,recvmsg,recvmmsg",
];
const SHORT: [&str; 4] = ["-n", "8", "-b", "1000000"];
const STYLES: [&str; 3] = ["blocking", "poll", "epoll-et"];

#[test]
fn a_client_is_stopped() {
    for mode in Mode::enabled() {
        let sandbox = Sandbox::new(mode);
        for style in STYLES {
            let server_args =
                [&LONG[..], &["-n", "12", "--stall", "60", "--style", "epoll-lt"]].concat();
            let mut server = [Server::start(&sandbox, true, &server_args)];
            let to = at(server[0].port);
            let args =
                [&LONG[..], &["-n", "4", "--survive", "--seed", "2", "--style", style]].concat();
            let mut stopped = start_client(&sandbox, true, to, &args);
            stopped.wait_for_text(|text| (text.lines().count() >= 4).then_some(()));
            thread::sleep(Duration::from_millis(50));
            stopped.signal(libc::SIGSTOP);
            let since = Instant::now();
            let others = [&SHORT[..], &["--style", "epoll-et"]].concat();
            let others = start_client(&sandbox, true, to, &others);
            let going_on = served(&mut server, 0).len();
            assert_eq!(going_on, 0, "nothing is over when it is stopped");
            // Each end of these waits for the other's last byte.
            let mut clients = records(others);
            let took = since.elapsed();
            thread::sleep(a_while().saturating_sub(took));
            assert_eq!(served(&mut server, clients.len()).len(), clients.len());
            stopped.signal(libc::SIGCONT);
            clients.extend(records(stopped));
            let [server] = server;
            compare(&clients, &server.finish()).unwrap_or_else(|e| panic!("{e} [{mode}] {style}"));
        }
    }
}

/// A client of two servers, of which one is stopped.
#[test]
fn a_server_is_stopped() {
    for mode in Mode::enabled() {
        let sandbox = Sandbox::new(mode);
        for style in STYLES {
            let args = [&LONG[..], &["-n", "4", "--stall", "60", "--style", style]].concat();
            let mut servers = [(); 2].map(|()| Server::start(&sandbox, true, &args));
            let [stopped, other] = [0, 1].map(|i| at(servers[i].port).to_string());
            let args = [&LONG[..], &["--to", &other, "-n", "8", "--style", "epoll-lt"]].concat();
            let args = [&args[..], &["--survive", "--stall", "60"]].concat();
            let mut client = start_client(&sandbox, true, stopped.parse().expect("address"), &args);
            client.wait_for_text(|text| (text.lines().count() >= 8).then_some(()));
            thread::sleep(Duration::from_millis(50));
            servers[0].process().signal(libc::SIGSTOP);
            let since = Instant::now();
            assert_eq!(served(&mut servers[1..], 4).len(), 4);
            thread::sleep(a_while().saturating_sub(since.elapsed()));
            servers[0].process().signal(libc::SIGCONT);
            let clients = records(client);
            let told: Vec<_> = servers.into_iter().flat_map(Server::finish).collect();
            compare(&clients, &told).unwrap_or_else(|e| panic!("{e} [{mode}] {style}"));
        }
    }
}

/// Nobody waits for an agent that does not answer.
#[test]
fn the_agent_is_stopped() {
    for mode in Mode::enabled_shunted() {
        let sandbox = sandbox(mode);
        let pair = |seed: &str, shunted: Expect| {
            let args = [&SHORT[..], &["--style", "epoll-lt", "--seed", seed]].concat();
            let run = || {
                let server = Server::start(&sandbox, true, &args);
                let clients = records(start_client(&sandbox, true, at(server.port), &args));
                compare(&clients, &server.finish()).expect("the same bytes");
            };
            match shunted {
                Expect::Nothing => run(),
                some => sandbox.expect(some, run),
            }
        };
        // What is established goes on.
        let args = [&LONG[..], &["-n", "4", "--survive", "--seed", "5"]].concat();
        let server = Server::start(&sandbox, true, &args);
        let mut client = start_client(&sandbox, true, at(server.port), &args);
        client.wait_for_text(|text| (text.lines().count() >= 4).then_some(()));
        // Each end has fetched the other's doorbells by then.
        thread::sleep(Duration::from_millis(100));
        sandbox.signal_agent(libc::SIGSTOP);
        let since = Instant::now();
        pair("6", Expect::Nothing);
        println!("{mode}: without an answer from the agent: {:?}", since.elapsed());
        compare(&records(client), &server.finish()).expect("the same bytes");
        thread::sleep(a_while().saturating_sub(since.elapsed()));
        sandbox.signal_agent(libc::SIGCONT);
        pair("7", Expect::Ends(8));
    }
}

/// A client could not yet ask the agent for the server's doorbells when the agent stopped. One that only reads: the server
/// must not wait for a ring. And one that looks first: a ring that the server has left is no end of what it sees.
#[test]
fn the_agent_is_stopped_before_a_reader_has_asked() {
    for mode in Mode::enabled_shunted() {
        for group in ["reader", "peeked"] {
            let sandbox = sandbox(mode);
            let agent = sandbox.agent_pid().expect("an agent").to_string();
            let mut command = sandbox.command(built("shunt-probe"));
            command.arg(group).env("PROBE_AGENT", agent);
            // The first server's end: its client never came to it, and the second ones leave the agent alone.
            let out = sandbox.expect(Expect::Ends(1), || sandbox.run(command));
            assert!(out.stderr.is_empty() && !out.stdout.contains("false"), "{out}");
        }
    }
}

/// A client is held up in the system calls by which it asks for bytes, while the server fills the ring and goes on
/// over TCP: what came last must not be read first.
#[test]
fn a_reader_is_held_up_in_its_call() {
    for mode in Mode::enabled_shunted() {
        let sandbox = Sandbox::new(mode);
        let mut command = sandbox.command(program("strace"));
        command.args(["-f", "-qq", "-o", "/dev/null", "-e"]);
        command.arg("inject=recvfrom:delay_enter=100000:when=1..20");
        command.arg(built("shunt-probe")).arg("held-up");
        let out = sandbox.expect(Expect::All(8), || sandbox.run(command));
        assert!(out.stderr.is_empty() && !out.stdout.contains("false"), "{out}");
    }
}
