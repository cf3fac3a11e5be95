//! `shunt doctor` on what runs: connections that it makes, and processes.

use serde_json::Value;
use shunt_functional::mode::Mode;
use shunt_functional::sandbox::Sandbox;

/// Accepts connections, and waits for what comes.
const SERVER: &str = "import selectors, socket
server = socket.create_server(('127.0.0.1', 0))
waits = selectors.DefaultSelector()
waits.register(server, selectors.EVENT_READ)
print(server.getsockname()[1], flush=True)
while True:
    for key, _ in waits.select():
        if key.fileobj is server:
            waits.register(server.accept()[0], selectors.EVENT_READ)
        elif not key.fileobj.recv(1000):
            waits.unregister(key.fileobj)
            key.fileobj.close()
";

/// The exit status, and what is said as JSON.
fn doctor(sandbox: &Sandbox, args: &[&str]) -> (Option<i32>, Value) {
    let mut command = sandbox.plain(sandbox.shunt_path());
    command.arg("doctor").arg("--json").args(args);
    let said = sandbox.spawn(command).wait();
    (said.status.code(), serde_json::from_str(&said.stdout).expect("JSON"))
}

fn finding<'a>(report: &'a Value, check: &str) -> &'a Value {
    let all = report["findings"].as_array().unwrap();
    all.iter().rfind(|finding| finding["check"] == check).unwrap_or(&Value::Null)
}

#[test]
fn a_connection_is_tried() {
    let sandbox = Sandbox::new(Mode::Attach);
    let serve = |is_shunted: bool| {
        let python = "python3";
        let mut command = if is_shunted { sandbox.command(python) } else { sandbox.plain(python) };
        command.args(["-c", SERVER]);
        let mut server = sandbox.spawn(command);
        let port: u16 = server.wait_for_line(|line| line.parse().ok());
        (server, format!("127.0.0.1:{port}"))
    };
    let (shunted, to) = serve(true);
    let (code, said) = doctor(&sandbox, &["--connect", &to]);
    let found = finding(&said, "connection");
    assert_eq!((code, &said["verdict"]), (Some(0), &"shunted".into()), "{said:#}");
    let peer = format!("(pid {})", shunted.pid());
    assert!(found["text"].as_str().unwrap().contains(&peer), "{said:#}");

    let (_plain, to) = serve(false);
    let (code, said) = doctor(&sandbox, &["--connect", &to]);
    assert_eq!((code, &said["verdict"]), (Some(1), &"tcp".into()), "{said:#}");
    let found = finding(&said, "connection")["text"].as_str().unwrap();
    assert!(found.contains("peer-not-shunted"), "{said:#}");

    // The process that accepted.
    let (code, said) = doctor(&sandbox, &["--pid", &shunted.pid().to_string()]);
    assert_eq!((code, &said["verdict"]), (Some(0), &"shunted".into()), "{said:#}");
    assert_eq!(finding(&said, "library")["mark"], "good", "{said:#}");
    assert_eq!(finding(&said, "agent")["mark"], "good", "{said:#}");
}
