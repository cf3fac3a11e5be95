//! `shunt explain` on connections and listeners of real programs: what it says is what has happened to them.

use serde_json::Value;
use shunt_functional::mode::Mode;
use shunt_functional::sandbox::{Process, Sandbox};

/// Accepts connections, and answers each message by as many bytes. Says its port, and the descriptor of what it listens at.
const SERVER: &str = "import selectors, socket
server = socket.create_server(('127.0.0.1', 0))
waits = selectors.DefaultSelector()
waits.register(server, selectors.EVENT_READ)
print(server.getsockname()[1], server.fileno(), flush=True)
while True:
    for key, _ in waits.select():
        if key.fileobj is server:
            waits.register(server.accept()[0], selectors.EVENT_READ)
        elif bytes := key.fileobj.recv(1000):
            key.fileobj.send(bytes)
        else:
            waits.unregister(key.fileobj)
            key.fileobj.close()
";

/// Talks to a server, runs what is given, and stays. Says its descriptor.
const CLIENT: &str = "import socket, subprocess, sys, time
client = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
def talk():
    client.send(b'hello')
    client.recv(1000)
for _ in range(3): talk()
exec(sys.argv[2])
print(client.fileno(), flush=True)
time.sleep(1000)
";

/// Gives the connection to a program without Shunt, which ends.
const HAND_OVER: &str = "
subprocess.run(['true'], pass_fds=[client.fileno()], env={'PATH': '/usr/bin:/bin'})
for _ in range(3): talk()
";

struct Server {
    process: Process,
    port: u16,
    fd: i32,
}

fn serve(sandbox: &Sandbox, is_shunted: bool) -> Server {
    let mut command =
        if is_shunted { sandbox.command("python3") } else { sandbox.plain("python3") };
    command.args(["-c", SERVER]);
    let mut process = sandbox.spawn(command);
    let (port, fd) = process.wait_for_line(|line| {
        let (port, fd) = line.split_once(' ')?;
        Some((port.parse().ok()?, fd.parse().ok()?))
    });
    Server { process, port, fd }
}

/// The client, and what `shunt explain` calls its end.
fn connect(sandbox: &Sandbox, to: &Server, is_shunted: bool, does: &str) -> (Process, String) {
    let mut command =
        if is_shunted { sandbox.command("python3") } else { sandbox.plain("python3") };
    command.args(["-c", CLIENT, &to.port.to_string(), does]);
    let mut process = sandbox.spawn(command);
    let fd: i32 = process.wait_for_line(|line| line.parse().ok());
    let target = format!("{}:{fd}", process.pid());
    (process, target)
}

fn run(sandbox: &Sandbox, args: &[&str]) -> (Option<i32>, String, String) {
    let mut command = sandbox.plain(sandbox.shunt_path());
    command.arg("explain").args(args);
    let said = sandbox.spawn(command).wait();
    (said.status.code(), said.stdout, said.stderr)
}

fn explain(sandbox: &Sandbox, target: &str) -> Value {
    let (code, said, wrong) = run(sandbox, &["--json", target]);
    assert_eq!(code, Some(0), "{wrong}");
    serde_json::from_str(&said).expect("JSON")
}

fn text(sandbox: &Sandbox, target: &str) -> String {
    let (code, said, wrong) = run(sandbox, &[target]);
    assert_eq!((code, wrong.as_str()), (Some(0), ""));
    said
}

/// The one connection.
fn connection(told: &Value) -> &Value {
    assert_eq!(told["connections"].as_array().unwrap().len(), 1, "{told:#}");
    &told["connections"][0]
}

/// What a process has decided, and why.
fn decided(told: &Value, pid: i32) -> Vec<(&str, Option<&str>)> {
    let all = told["decisions"].as_array().unwrap().iter().filter(|d| d["pid"] == pid);
    all.map(|d| (d["decision"].as_str().unwrap(), d["reason"].as_str())).collect()
}

/// The processes at both ends, the asked one's first, and how they run.
fn ends(connection: &Value) -> Vec<(i64, &str)> {
    let all = connection["ends"].as_array().unwrap().iter();
    all.map(|end| (end["pid"].as_i64().unwrap(), end["runs"].as_str().unwrap())).collect()
}

#[test]
fn a_shunted_pair() {
    for mode in Mode::enabled_shunted() {
        let sandbox = Sandbox::new(mode);
        let server = serve(&sandbox, true);
        let (client, target) = connect(&sandbox, &server, true, "");
        let told = explain(&sandbox, &target);
        let found = connection(&told);
        assert_eq!(
            (&found["state"], &found["reason"]),
            (&"shunted".into(), &Value::Null),
            "{told:#}"
        );
        let pids = [client.pid(), server.process.pid()].map(i64::from);
        assert_eq!(ends(found), [(pids[0], "shunt"), (pids[1], "shunt")], "{told:#}");
        let agent = told["agent"]["socket"].as_str().unwrap();
        assert!(agent.starts_with(sandbox.run_dir().to_str().unwrap()), "{agent}");
        assert_eq!(decided(&told, client.pid()), [("proposed", None), ("promoted", None)]);
        let of_server = decided(&told, server.process.pid());
        assert_eq!(of_server, [("listening", None), ("accepted", None), ("promoted", None)]);
        let said = text(&sandbox, &target);
        assert!(
            said.contains("it goes through shared memory") && said.contains("promoted: Both"),
            "{said}"
        );
        assert!(!said.contains("What to do"), "{said}");
        // As the server has it: it is turned around.
        let fd = found["ends"][1]["fd"].as_i64().unwrap();
        let told = explain(&sandbox, &format!("{}:{fd}", server.process.pid()));
        assert_eq!(ends(connection(&told)), [(pids[1], "shunt"), (pids[0], "shunt")], "{told:#}");
    }
}

#[test]
fn one_that_is_declined_is_explained_from_either_end() {
    let sandbox = Sandbox::new(Mode::Attach);
    let server = serve(&sandbox, true);
    let (client, target) = connect(&sandbox, &server, false, "");
    let told = explain(&sandbox, &target);
    let found = connection(&told);
    assert_eq!(
        (&found["state"], &found["reason"]),
        (&"tcp".into(), &"no-proposal".into()),
        "{told:#}"
    );
    let pids = [client.pid(), server.process.pid()].map(i64::from);
    assert_eq!(ends(found), [(pids[0], "without"), (pids[1], "shunt")], "{told:#}");
    let last = decided(&told, server.process.pid()).pop();
    assert_eq!(last, Some(("declined", Some("no-proposal"))), "{told:#}");
    let said = text(&sandbox, &target);
    let blamed = |pid: i32| format!("python3 (pid {pid}) runs without Shunt.");
    assert!(said.contains("What to do: Start python3 under Shunt"), "{said}");
    assert!(said.contains(&format!("What happened: {}", blamed(client.pid()))), "{said}");

    let plain = serve(&sandbox, false);
    let (client, target) = connect(&sandbox, &plain, true, "");
    let told = explain(&sandbox, &target);
    let found = connection(&told);
    assert_eq!(found["reason"], "peer-not-shunted", "{told:#}");
    assert_eq!(decided(&told, client.pid()), [("declined", Some("peer-not-shunted"))], "{told:#}");
    assert_eq!(found["happened"], blamed(plain.process.pid()));
    assert!(found["fix"].as_str().unwrap().starts_with("Start python3 under Shunt"));
}

#[test]
fn one_that_was_handed_over_is_on_tcp_again() {
    for mode in Mode::enabled_shunted() {
        let sandbox = Sandbox::new(mode);
        let server = serve(&sandbox, true);
        let (client, target) = connect(&sandbox, &server, true, HAND_OVER);
        let told = explain(&sandbox, &target);
        let found = connection(&told);
        assert_eq!(
            (&found["state"], &found["reason"]),
            (&"tcp".into(), &"handed-over".into()),
            "{told:#}"
        );
        // The child of a fork has given it over.
        let all: Vec<_> = told["decisions"].as_array().unwrap().iter().collect();
        let demoted = all.iter().find(|d| d["decision"] == "demoted").expect("a demotion");
        assert_eq!(demoted["reason"], "handed-over", "{told:#}");
        assert_ne!(demoted["pid"], server.process.pid(), "{told:#}");
        let last = decided(&told, server.process.pid()).pop();
        assert_eq!(last, Some(("followed", Some("handed-over"))), "{told:#}");
        let said = text(&sandbox, &target);
        assert!(said.contains("Run the program that gets the socket under Shunt"), "{said}");
        assert_eq!(decided(&told, client.pid())[..2], [("proposed", None), ("promoted", None)]);
    }
}

#[test]
fn listeners_and_ports() {
    let sandbox = Sandbox::new(Mode::Attach);
    let server = serve(&sandbox, true);
    let port = server.port.to_string();
    let told = explain(&sandbox, &port);
    let listener = &told["listeners"][0];
    assert_eq!(
        (&listener["is_found"], &listener["reason"]),
        (&true.into(), &Value::Null),
        "{told:#}"
    );
    assert_eq!(listener["programs"][0]["pid"], server.process.pid(), "{told:#}");
    assert_eq!(told["listeners"].as_array().unwrap().len(), 1, "{told:#}");
    let same = explain(&sandbox, &format!("{}:{}", server.process.pid(), server.fd));
    assert_eq!(same["listeners"], told["listeners"]);
    let _clients: Vec<_> = (0..5).map(|i| connect(&sandbox, &server, i > 1, "")).collect();
    let said = text(&sandbox, &port);
    assert!(said.contains("clients under Shunt find it"), "{said}");
    assert!(
        said.contains("3 connections") && said.contains("each goes through shared memory"),
        "{said}"
    );
    assert!(
        said.contains("2 connections") && said.contains("each is on TCP (no-proposal)"),
        "{said}"
    );
    let told = explain(&sandbox, &port);
    let peers = told["connections"].as_array().unwrap().iter().map(|c| c["peer"].as_str().unwrap());
    assert!(peers.clone().all(|peer| peer.ends_with(&format!(":{port}"))), "{told:#}");
    assert_eq!(peers.count(), 5);
}

#[test]
fn programs_without_an_agent() {
    let sandbox = Sandbox::new(Mode::Attach);
    sandbox.stop_agent();
    let mut command = sandbox.preloaded("python3");
    command.args(["-c", SERVER]).env("SHUNT_AGENT_TIMEOUT", "100");
    let mut process = sandbox.spawn(command);
    let (port, fd): (u16, i32) = process.wait_for_line(|line| {
        let (port, fd) = line.split_once(' ')?;
        Some((port.parse().ok()?, fd.parse().ok()?))
    });
    let server = Server { process, port, fd };
    let (_client, target) = connect(&sandbox, &server, false, "");
    let told = explain(&sandbox, &target);
    assert_eq!(told["agent"], Value::Null);
    let found = connection(&told);
    assert_eq!(
        (&found["state"], &found["reason"]),
        (&"tcp".into(), &"no-agent".into()),
        "{told:#}"
    );
    assert!(
        ends(found).contains(&(server.process.pid().into(), "shunt-without-agent")),
        "{told:#}"
    );
    let told = explain(&sandbox, &port.to_string());
    assert_eq!(told["listeners"][0]["reason"], "no-agent", "{told:#}");
}

#[test]
fn what_is_not_ours() {
    let sandbox = Sandbox::new(Mode::Attach);
    let server = serve(&sandbox, false);
    let (client, target) = connect(&sandbox, &server, false, "");
    for target in [target, server.port.to_string()] {
        let (code, said, wrong) = run(&sandbox, &[&target]);
        assert_eq!((code, said.as_str(), wrong.lines().count()), (Some(1), "", 1), "{wrong}");
        assert!(wrong.contains("runs without Shunt: python3 (pid "), "{wrong}");
        let pids = [client.pid(), server.process.pid()];
        assert!(pids.iter().all(|pid| wrong.contains(&format!("(pid {pid})"))), "{wrong}");
    }
    let (code, _, wrong) = run(&sandbox, &[&format!("{}:0", client.pid())]);
    assert!(code == Some(1) && wrong.contains("is no socket, but /dev/null"), "{wrong}");
}
