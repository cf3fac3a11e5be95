//! How connections between containers end when one of them does.

use std::thread;
use std::time::{Duration, Instant};

use shunt_functional::container::{Container, Users};
use shunt_functional::generator::{Server, events};
use shunt_functional::mode::Mode;
use shunt_functional::network::Network;
use shunt_functional::sandbox::{Expect, Process, Sandbox};
use shunt_functional::waiting::settles;

use crate::scene::{ANOTHER, SOMEBODY, can, connect, four, serve};

/// Longest time in which an end must be known.
const PATIENCE: Duration = Duration::from_secs(60);
const CONNECTIONS: usize = 8;

/// Eight connections from `a` to `b` under load that goes on for ever, all of them shunted.
fn loaded(sandbox: &Sandbox, network: &Network, style: &str) -> (Server, Process) {
    let at = |name, users| Container::new(sandbox, network, name, users);
    // Whoever becomes another user in the container would not be killed with it.
    let (a, b) = (at("a", Users::Own(SOMEBODY)), at("b", Users::Own(ANOTHER)));
    let common = ["--survive", "-b", "1000000000000", "--style", style, "-n"];
    sandbox.expect(Expect::All(2 * CONNECTIONS as u64), || {
        let server = serve(sandbox, &b, "10.77.0.2:8000", &[&common[..], &["1000"]].concat());
        let to = "10.77.0.2:8000".parse().unwrap();
        let client = connect(sandbox, &a, to, &[&common[..], &["8"]].concat());
        settles("all connections", &CONNECTIONS, || events(&client).0);
        (server, client)
    })
}

/// A client whose server is gone ends by itself, and has lost each connection.
fn await_end(mut client: Process) {
    let started = Instant::now();
    while client.is_running() {
        assert!(started.elapsed() < PATIENCE, "it hangs: {}", client.describe());
        thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(events(&client).1.len(), CONNECTIONS, "{}", client.describe());
    assert!(client.wait().status.success());
}

/// A server whose clients are gone has lost each connection, and goes on.
fn await_losses(server: &mut Server) {
    let started = Instant::now();
    let process = server.process();
    while events(process).1.len() < CONNECTIONS {
        process.assert_running();
        assert!(started.elapsed() < PATIENCE, "{}", process.describe());
        thread::sleep(Duration::from_millis(2));
    }
}

/// Nothing is left of it at the agent.
fn await_nobody(sandbox: &Sandbox) {
    settles("no program is left", &0, || sandbox.stats().get("programs_live"));
}

fn either_is_killed(mode: Mode) {
    if !can() {
        return;
    }
    let sandbox = Sandbox::for_host(mode, &[]);
    let network = four();
    for style in ["blocking", "poll", "epoll-lt", "epoll-et"] {
        let (mut server, client) = loaded(&sandbox, &network, style);
        server.process().kill();
        await_end(client);
        let (mut server, mut client) = loaded(&sandbox, &network, style);
        client.kill();
        await_losses(&mut server);
        server.process().kill();
        await_nobody(&sandbox);
    }
}

#[test]
fn who_is_left_of_two_containers_knows_at_once() {
    either_is_killed(Mode::Attach);
}

#[test]
fn the_same_in_copy_mode() {
    either_is_killed(Mode::Copy);
}

/// As long as its network is down a container's end is heard of by nobody, as over TCP; and as there it is told of
/// again when the network is up.
#[test]
fn an_end_that_the_network_keeps_back_is_heard_later() {
    if !can() {
        return;
    }
    let sandbox = Sandbox::for_host(Mode::Attach, &[]);
    let network = four();
    let (mut server, mut client) = loaded(&sandbox, &network, "epoll-et");
    let set = |how| network.inside("host", &["ip", "link", "set", "v-b", how]);
    set("down");
    // The bytes do not go there.
    thread::sleep(Duration::from_millis(100));
    client.assert_running();
    server.process().assert_running();
    server.process().kill();
    thread::sleep(Duration::from_millis(100));
    client.assert_running();
    set("up");
    await_end(client);
    await_nobody(&sandbox);
}

/// Who waits for room of a peer in another network that has half-closed, and is killed, learns of it as over TCP, where what
/// is unread has the kernel send RST; and of one that closes in good order nobody hears before they send.
#[test]
fn a_half_closed_peer_is_killed_in_another_network() {
    const PYTHON: &str = "/usr/bin/python3";
    const SCRIPT: &str = include_str!("half_closed.py");
    if !can() {
        return;
    }
    let sandbox = Sandbox::for_host(Mode::Attach, &[]);
    let network = four();
    let at = |name, users| Container::new(&sandbox, &network, name, users);
    let (a, b) = (at("a", Users::Own(SOMEBODY)), at("b", Users::Own(ANOTHER)));
    let run = |shunted, how| {
        let start = |at: &Container<'_>, role| {
            let mut command = if shunted { at.command(PYTHON) } else { at.plain(PYTHON) };
            command.args(["-c", SCRIPT, role, "10.77.0.2", how]);
            sandbox.spawn(command)
        };
        let says = |process: &mut Process, what: &str| {
            process.wait_for_line(|line| (line.split(' ').next() == Some(what)).then_some(()));
        };
        let mut server = start(&b, "server");
        says(&mut server, "listening");
        let mut client = start(&a, "client");
        says(&mut server, "full");
        // It comes to wait; or is told before it does.
        thread::sleep(Duration::from_millis(50));
        client.kill();
        (client.stdout(), server.wait().success().stdout)
    };
    for how in ["blocking", "poll", "epoll", "close", "handed"] {
        let over_tcp = run(false, how);
        let shunted = sandbox.expect(Expect::All(2), || run(true, how));
        assert_eq!(shunted, over_tcp, "{how}");
        assert!(shunted.1.ends_with("EPIPE\nread 0\n"), "{how}: {}", shunted.1);
        await_nobody(&sandbox);
    }
}
