//! Each command where something is wrong: one clear line, the right exit status, no panic.
//!
//! Standard output that cannot be written has a table of its own (streams.rs).

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};

use common::{Sandbox, text};

/// The agent that a command finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Agent {
    /// Nothing listens in the directory.
    None,
    /// Others may write to the directory.
    Open,
    /// No agent could be there.
    Impossible,
    /// The directory is in one that this user may not enter.
    Closed,
    /// One runs.
    Runs,
}

use Agent::{Closed, Impossible, None, Open, Runs};

/// A command line, the agent, the exit status, and what the one line on standard error says; empty: there is none. `ME` is a
/// process, and `REPORT` one of the bench.
const TABLE: &[(&[&str], Agent, i32, &str)] = &[
    // What runs is nothing, or is not known: that is said, and no mistake.
    (&["list"], None, 0, "no agent is running"),
    (&["list", "--json"], None, 0, "no agent is running"),
    (&["list", "-l"], None, 0, "no agent is running"),
    (&["stats"], None, 0, ""),
    (&["stats", "--interval", "0.1"], None, 1, "no agent is running"),
    (
        &["stats", "--program", "x"],
        None,
        1,
        "no program named x has had connections under Shunt; none has",
    ),
    (&["capture"], None, 1, "no agent is running"),
    (&["cdi", "generate", "--output", "/dev/null"], None, 0, "no agent is running"),
    (&["doctor", "true"], None, 0, ""),
    (&["doctor", "no-such-program-here"], None, 1, ""),
    (&["doctor", "--pid", "99999999"], None, 1, ""),
    (&["doctor", "--connect", "127.0.0.1:1"], None, 1, ""),
    (&["enable", "no-such-unit-here"], None, 1, ANY),
    (&["enable", "--status", "--directory", "/nonexistent"], None, 0, ""),
    (&["disable", "no-such-unit-here"], None, 1, "it is not enabled"),
    (&["top", "--once", "--interval", "0.1"], None, 1, "no agent is running"),
    (&["top"], None, 1, "no agent is running"),
    (&["machines"], None, 1, "no agent is running"),
    (&["agent", "--stop"], None, 1, "no agent is running"),
    (&["explain", "1"], None, 1, "nothing here listens at port 1"),
    (&["explain", "--json", "1"], None, 1, "nothing here listens at port 1"),
    (&["explain", "99999999:0"], None, 1, "no process has the number 99999999 here"),
    (&["explain", "ME:1000000"], None, 1, "has no descriptor 1000000; "),
    (&["explain", "ME:0"], None, 1, "is no socket, but /dev/null"),
    (&["list"], Open, 1, "its mode 0777 lets others in"),
    (&["stats"], Open, 1, "its mode 0777 lets others in"),
    (&["top", "--once"], Open, 1, "its mode 0777 lets others in"),
    (&["machines"], Open, 1, "its mode 0777 lets others in"),
    (&["explain", "1"], Open, 1, "its mode 0777 lets others in"),
    (&["agent", "--detach"], Open, 1, "its mode 0777 lets others in"),
    (&["agent", "--stop"], Open, 1, "its mode 0777 lets others in"),
    (&["cdi", "generate"], Open, 1, "its mode 0777 lets others in"),
    (&["capture"], Open, 1, "its mode 0777 lets others in"),
    (&["doctor"], Open, 1, ""),
    (&["list"], Closed, 1, "Permission denied"),
    (&["stats"], Closed, 1, "Permission denied"),
    (&["top", "--once"], Closed, 1, "Permission denied"),
    (&["machines"], Closed, 1, "Permission denied"),
    (&["explain", "1"], Closed, 1, "Permission denied"),
    (&["capture"], Closed, 1, "Permission denied"),
    (&["agent", "--detach"], Closed, 1, "Permission denied"),
    (&["cdi", "generate"], Closed, 1, "Permission denied"),
    (&["run", "true"], Closed, 0, ""),
    (&["run", "--require", "true"], Closed, 125, "Permission denied"),
    (&["doctor"], Closed, 1, ""),
    (&["agent", "--host"], Closed, 1, "needs root"),
    (&["library", "install", "/proc/1"], Closed, 1, "cannot be written"),
    (&["list"], Impossible, 1, "its path is not absolute"),
    (&["stats"], Impossible, 1, "its path is not absolute"),
    (&["explain", "1"], Impossible, 1, "its path is not absolute"),
    (&["top", "--once"], Impossible, 1, "its path is not absolute"),
    (&["agent", "--detach"], Impossible, 1, "its path is not absolute"),
    // Filters and values.
    (&["list", "sport", "x"], None, 2, "the filter makes no sense"),
    (&["list", "pid", "1", "or", "pid", "2"], None, 2, "the filter makes no sense"),
    (&["capture", "port", "99999"], None, 2, "the filter makes no sense"),
    (&["nvme", "target"], None, 1, "nothing to serve"),
    (&["bench", "--only", "no-such-row"], None, 1, "no row is called no-such-row"),
    (&["bench", "--from", "REPORT"], None, 1, "--from needs --html or --svg"),
    (
        &["bench", "--from", "/etc/passwd", "--html", "/proc/x"],
        None,
        1,
        "is no report of `shunt bench",
    ),
    (&["agent", "--host", "--policy", "/etc/passwd"], None, 1, ANY),
    // Programs.
    (&["run", "--", "no-such-program-here"], None, 127, "no-such-program-here: not found"),
    (&["run", "--", "/etc/passwd"], None, 126, "/etc/passwd: cannot be executed"),
    (&["run", "--require", "--", "true"], Open, 125, "is not started"),
    // Files that cannot be read or written.
    (&["cdi", "generate", "--output", "/proc/x"], None, 1, "/proc/x cannot be written"),
    (&["library", "install", "/proc/x"], None, 1, "/proc/x cannot be written"),
    (&["docs", "/proc/x"], None, 1, "/proc/x cannot be written"),
    (&["agent-key", "--file", "/proc/x"], None, 1, "the key file /proc/x: No such file"),
    (&["agent-key", "--file", "/dev/null"], None, 1, "is no regular file: name another one by"),
    (&["capture", "-w", "/proc/x"], Runs, 1, "the packets cannot be written: No such file"),
    (&["capture", "-w", "/dev/full"], Runs, 1, "the packets cannot be written: No space left"),
    (&["bench", "--only", "ipc.14", "--html", "/proc/x"], None, 1, "/proc/x: No such file"),
    (&["bench", "--from", "REPORT", "--svg", "/dev/full"], None, 1, "/dev/full: No space left"),
    (&["ivshmem-server", "--socket", "/proc/x"], None, 1, "there is no directory for the socket"),
    (&["nvme", "target", "--file", "/nonexistent"], None, 1, "there is no /nonexistent"),
    (
        &["nvme", "target", "--memory", "1MiB", "--listen", "192.0.2.1:1"],
        None,
        1,
        "is no address of",
    ),
    (&["nvme", "control", "--socket", "/proc/x", "show"], None, 1, "no target is commanded at"),
    (&["nvme", "control", "--socket", "/proc/x", "reload"], None, 1, "no target is commanded at"),
    (
        &["nvme", "control", "--socket", "/proc/x", "apply", "/dev/null"],
        None,
        1,
        "no target is commanded",
    ),
    (&["enable", "--status", "--directory", "/dev/null"], None, 1, "/dev/null cannot be read"),
    (&["disable", "--all", "--directory", "/dev/null"], None, 1, "/dev/null cannot be read"),
    (&["agent", "--detach", "--ivshmem", "/nonexistent"], None, 1, "/nonexistent"),
    (&["nvme", "target", "--check", "--config", "/nonexistent"], None, 1, "/nonexistent"),
    // Peers that are not there.
    (&["ivshmem-server", "--socket", "/nonexistent", "status"], None, 1, "no ivshmem server"),
    (&["nvme", "list", "--to", "127.0.0.1:1"], None, 1, "no target listens there"),
    (&["nvme", "discover", "--to", "127.0.0.1:1"], None, 1, "Connection refused"),
    (&["nvme", "read", "--to", "127.0.0.1:1"], None, 1, "Connection refused"),
    (&["nvme", "write", "--to", "127.0.0.1:1"], None, 1, "Connection refused"),
    (&["nvme", "bench", "--to", "127.0.0.1:1"], None, 1, "Connection refused"),
    (
        &["nvme", "disk", "--socket", "/proc/x", "--target", "127.0.0.1:1"],
        None,
        1,
        "Connection refused",
    ),
    (&["load", "serve", "--at", "192.0.2.1:1"], None, 1, "Cannot assign requested address"),
    (&["probe", "127.0.0.1:1"], None, 1, ""),
];

/// Any one line: what it says depends on the machine (root or not, systemd or not).
const ANY: &str = "shunt: ";

/// An ordinary user, where root runs the tests.
const NOBODY: u32 = 65534;

fn run(args: &[&str], agent: Agent) -> Output {
    let sandbox = Sandbox::new();
    // A process of which descriptors are known.
    let mut idle = Command::new("sleep").arg("100").stdin(Stdio::null()).spawn().unwrap();
    let pid = idle.id().to_string();
    let report = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/bench/2026-11-26-front.json");
    let args: Vec<_> =
        args.iter().map(|arg| arg.replace("ME", &pid).replace("REPORT", report)).collect();
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    let mut command = sandbox.with_library(&args);
    match agent {
        None => {}
        Open => {
            fs::create_dir(sandbox.run_dir()).unwrap();
            fs::set_permissions(sandbox.run_dir(), PermissionsExt::from_mode(0o777)).unwrap();
        }
        Impossible => {
            command.env("SHUNT_RUN_DIR", "not/absolute");
        }
        Closed => {
            let closed = sandbox.path("closed");
            fs::create_dir(&closed).unwrap();
            fs::set_permissions(&closed, PermissionsExt::from_mode(0o000)).unwrap();
            command.env("SHUNT_RUN_DIR", closed.join("run"));
            if rustix::process::geteuid().is_root() {
                command.uid(NOBODY).gid(NOBODY);
            }
        }
        Runs => assert!(sandbox.output(&["agent", "--detach"]).status.success()),
    }
    let output = command.output().unwrap();
    idle.kill().unwrap();
    idle.wait().unwrap();
    output
}

#[test]
fn what_is_wrong_is_said_in_one_line() {
    for (args, agent, status, says) in TABLE {
        let output = run(args, *agent);
        let said = text(&output.stderr);
        let what = format!("{args:?}, {agent:?}: {:?}: {said}", output.status);
        assert_eq!(output.status.code(), Some(*status), "{what}");
        assert_eq!(said.lines().count(), usize::from(!says.is_empty()), "{what}");
        assert!(said.contains(says) && (says.is_empty() || said.starts_with("shunt")), "{what}");
        // What `doctor` finds is its output, whatever that is.
        if *status != 0 && !["doctor", "probe"].contains(&args[0]) {
            assert!(output.stdout.is_empty(), "{what}");
        }
        assert!(!text(&output.stdout).contains("panicked"), "{what}");
    }
}

/// Of another user's program nothing is known but that it is there.
#[test]
fn a_port_of_another_user_is_not_taken_for_a_free_one() {
    if !rustix::process::geteuid().is_root() {
        println!("left out: only root can ask as another user");
        return;
    }
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let mut command = Sandbox::new().command(&["explain", &port]);
    command.env("SHUNT_RUN_DIR", "/proc/no-such-directory").uid(NOBODY).gid(NOBODY);
    let output = command.output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(said.contains(&format!("what has port {port} is of another user (uid 0)")), "{said}");
}

/// What a command prints that may have so many descriptors.
fn with_descriptors(args: &[&str], limit: u64) -> Output {
    let sandbox = Sandbox::new();
    let mut command = sandbox.with_library(args);
    // SAFETY: one system call, in a child before its exec.
    unsafe {
        command.pre_exec(move || {
            let limit = rustix::process::Rlimit { current: Some(limit), maximum: Some(limit) };
            Ok(rustix::process::setrlimit(rustix::process::Resource::Nofile, limit)?)
        });
    }
    command.output().unwrap()
}

/// With so few descriptors programs stay on TCP, which `doctor` says.
#[test]
fn too_few_descriptors_are_told() {
    for (limit, is_enough) in [(127, false), (128, true)] {
        let output = with_descriptors(&["doctor", "true"], limit);
        let said = text(&output.stdout);
        let fails = said.lines().any(|line| line.starts_with("FAIL  only 127 open files"));
        assert_eq!(!fails, is_enough, "{said}");
        assert_eq!(output.status.code(), Some(i32::from(!is_enough)), "{said}");
    }
}

/// An agent cannot do without some of its own, at whichever of them it comes to an end.
#[test]
fn too_few_descriptors_for_an_agent_are_told() {
    for limit in 5..12 {
        let output = with_descriptors(&["agent"], limit);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{limit}: {said}");
        assert_eq!(said.lines().count(), 1, "{limit}: {said}");
        assert!(said.contains("too few descriptors") && said.contains("ulimit"), "{limit}: {said}");
    }
}

/// The names below "Commands:" of a command's help.
fn named_below(path: &[String]) -> Vec<String> {
    let args: Vec<_> = path.iter().map(String::as_str).chain(["--help"]).collect();
    let help = text(&run(&args, None).stdout);
    let Some((_, commands)) = help.split_once("Commands:\n") else { return Vec::new() };
    let named = commands.lines().take_while(|line| !line.is_empty());
    let named = named.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    named.filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// Commands, and those below them, down to those that have none.
fn leaves(path: &[String]) -> BTreeSet<Vec<String>> {
    let mut below = named_below(path);
    if path.is_empty() {
        below.extend(HIDDEN.map(str::to_owned));
    }
    // Without one below, too, this one does something.
    let own = (below.is_empty() || path == ["ivshmem-server"]).then(|| path.to_vec());
    // Those of `load` are the bench's own.
    if path == ["load"] {
        return BTreeSet::from([path.to_vec()]);
    }
    let below = below.into_iter().flat_map(|name| leaves(&[path, &[name]].concat()));
    below.chain(own).collect()
}

#[test]
fn every_command_has_a_row() {
    let known = leaves(&[]);
    assert!(known.len() > 25, "{known:?}");
    let has_row = |path: &&Vec<String>| {
        TABLE.iter().any(|(args, ..)| {
            let mut args = args.iter();
            // Options may stand between a command and the one below it.
            path.iter().all(|name| args.any(|arg| arg == name))
        })
    };
    let lacking: Vec<_> = known.iter().filter(|path| !has_row(path)).collect();
    assert!(lacking.is_empty(), "no row is for {lacking:?}");
}

/// What `shunt --help` names, and what it hides.
const HIDDEN: [&str; 3] = ["docs", "load", "probe"];

#[test]
fn options_that_there_are_not_and_values_that_make_no_sense() {
    let named = [named_below(&[]), HIDDEN.map(str::to_owned).to_vec()].concat();
    let named: Vec<_> = named.iter().map(String::as_str).collect();
    assert!(named.contains(&"top") && named.contains(&"enable"), "{named:?}");
    let unknown = named.iter().map(|name| vec![*name, "--no-such-option"]);
    let values = [
        &["no-such-command"][..],
        &["top", "--interval", "0"],
        &["top", "--interval", "soon"],
        &["top", "--sort", "colour"],
        &["list", "--watch", "-1"],
        &["explain"],
        &["explain", "nginx"],
        &["explain", "0"],
        &["explain", "17:x"],
        &["explain", "80", "81"],
        &["run"],
        &["run", "--profile", "best", "true"],
        &["run", "--spin", "often", "true"],
        &["enable"],
        &["enable", "a.socket"],
        &["enable", "../a"],
        &["disable", "--all", "a"],
        &["doctor", "--pid", "me"],
        &["doctor", "--connect", "127.0.0.1"],
        &["doctor", "--connect", "localhost:http"],
        &["stats", "--run", "x"],
        &["agent", "--metrics", "everywhere"],
    ];
    for args in unknown.chain(values.map(<[&str]>::to_vec)) {
        let output = run(&args, None);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.starts_with("error: ") && output.stdout.is_empty(), "{args:?}: {said}");
        assert!(!said.contains("panicked"), "{args:?}: {said}");
    }
}
