//! USDT probes of the library: its file names them, and bpftrace sees them in programs that run.

use std::process::Command;
use std::time::{Duration, Instant};

use shunt_functional::binaries::program;
use shunt_functional::mode::Mode;
use shunt_functional::sandbox::{Process, Sandbox, is_root};

const PROBES: [&str; 5] = ["promote", "demote", "decline", "sleep", "wake"];

const PATIENCE: Duration = Duration::from_secs(60);

/// A server and a client that answer each other, and the end of it in a program without Shunt.
const PAIR: &str = "import os, socket, subprocess, time
server = socket.create_server(('127.0.0.1', 0))
if os.fork() == 0:
    there = server.accept()[0]
    while there.recv(1000):
        time.sleep(0.02)
        there.send(b'answer')
    os._exit(0)
here = socket.create_connection(server.getsockname())
def talk():
    here.send(b'question')
    here.recv(1000)
for _ in range(5): talk()
subprocess.run(['true'], pass_fds=[here.fileno()], env={'PATH': '/usr/bin:/bin'})
for _ in range(5): talk()
here.close()
nowhere = socket.create_server(('127.0.0.2', 0))
env = {'PATH': '/usr/bin:/bin'}
code = 'import socket, sys; socket.create_connection((\\'127.0.0.2\\', int(sys.argv[1]))).recv(1)'
child = subprocess.Popen(['python3', '-c', code, str(nowhere.getsockname()[1])], env=env)
there = nowhere.accept()[0]
there.send(b'x')
child.wait()
os.wait()
";

fn library(sandbox: &Sandbox) -> String {
    sandbox.path().join("bin/libshunt.so").display().to_string()
}

#[test]
fn the_library_names_its_probes() {
    let sandbox = Sandbox::new(Mode::Attach);
    let out = Command::new("readelf").args(["-n", &library(&sandbox)]).output().expect("readelf");
    let notes = String::from_utf8_lossy(&out.stdout).into_owned();
    let mut named: Vec<_> = notes.lines().filter_map(|l| l.trim().strip_prefix("Name: ")).collect();
    named.sort_unstable();
    named.dedup();
    let mut expected = PROBES;
    expected.sort_unstable();
    assert_eq!(named, expected, "{notes}");
    assert!(notes.contains("Provider: shunt"), "{notes}");
}

/// The command lines of the document, for this library.
fn examples(library: &str) -> Vec<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/explain.md");
    let text = std::fs::read_to_string(path).expect("the document");
    let (_, block) = text.split_once("```sh\nbpftrace").expect("examples");
    let (block, _) = block.split_once("```").expect("their end");
    let all = block.replace("/usr/lib/shunt/libshunt.so", library);
    all.split("\nbpftrace").map(|rest| format!("exec bpftrace -B line{rest}")).collect()
}

#[test]
fn the_examples_of_the_document_show_something() {
    if !is_root() {
        return;
    }
    let sandbox = Sandbox::new(Mode::Attach);
    let examples = examples(&library(&sandbox));
    assert_eq!(examples.len(), 2, "{examples:?}");
    let mut traces: Vec<_> = examples
        .iter()
        .map(|example| {
            let mut command = sandbox.plain("sh");
            command.args(["-c", example]);
            sandbox.spawn(command)
        })
        .collect();
    let begun = Instant::now();
    while !traces[0].stdout().contains("reason 11") {
        assert!(begun.elapsed() < PATIENCE, "{}", traces[0].describe());
        traces.iter_mut().for_each(Process::assert_running);
        let mut command = sandbox.command("python3");
        command.args(["-c", PAIR]);
        let _done = sandbox.run(command);
    }
    let sleeps = traces.pop().expect("the second");
    sleeps.signal(libc::SIGINT);
    let said = sleeps.wait().success().stdout;
    assert!(said.contains("@slept:") && said.contains("|@"), "{said}");
}

/// Traces all of them, until all were seen.
#[test]
fn bpftrace_sees_them() {
    if !is_root() {
        return;
    }
    let sandbox = Sandbox::new(Mode::Attach);
    let traced = PROBES.map(|name| {
        let arguments = match name {
            "wake" => 0,
            "sleep" => 1,
            "promote" => 3,
            _ => 4,
        };
        let formats = " %d".repeat(arguments);
        let values: String = (0..arguments).map(|n| format!(", arg{n}")).collect();
        let path = library(&sandbox);
        format!("usdt:{path}:shunt:{name} {{ printf(\"{name}{formats}\\n\"{values}); }}")
    });
    let mut command = sandbox.plain(program("bpftrace"));
    let ready = "BEGIN { printf(\"ready\\n\"); }";
    command.args(["-B", "line", "-e", &format!("{ready} {}", traced.join(" "))]);
    let mut trace = sandbox.spawn(command);
    trace.wait_for_line(|line| (line == "ready").then_some(()));
    let mut command = sandbox.command("python3");
    command.args(["-c", PAIR]);
    let _done = sandbox.run(command);
    let begun = Instant::now();
    while !PROBES.iter().all(|name| seen(&trace, name).is_some()) {
        assert!(begun.elapsed() < PATIENCE, "{}", trace.describe());
        trace.assert_running();
        std::thread::sleep(Duration::from_millis(20));
    }
    // A reason's code: handed-over; no-proposal.
    assert!(
        seen(&trace, "demote").is_some_and(|line| line.ends_with(" 15")),
        "{}",
        trace.describe()
    );
    assert!(
        seen(&trace, "decline").is_some_and(|line| line.ends_with(" 11")),
        "{}",
        trace.describe()
    );
}

fn seen(trace: &Process, name: &str) -> Option<String> {
    let text = trace.stdout();
    text.lines().find(|line| line.split(' ').next() == Some(name)).map(str::to_owned)
}
