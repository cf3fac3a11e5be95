//! Each command where something is wrong: one clear line, the right exit status, no panic.
//!
//! Standard output that cannot be written has a table of its own (streams.rs).

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
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
}

use Agent::{Impossible, None, Open};

/// A command line, the agent, the exit status, and what the one line on standard error says; empty: there is none.
const TABLE: &[(&[&str], Agent, i32, &str)] = &[
    // What runs is nothing, or is not known: that is said, and no mistake.
    (&["list"], None, 0, "no agent is running"),
    (&["list", "--json"], None, 0, "no agent is running"),
    (&["list", "-l"], None, 0, "no agent is running"),
    (&["stats"], None, 0, ""),
    (&["top", "--once", "--interval", "0.1"], None, 1, "no agent is running"),
    (&["top"], None, 1, "no agent is running"),
    (&["machines"], None, 1, "no agent is running"),
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
    (&["cdi", "generate"], Open, 1, "its mode 0777 lets others in"),
    (&["list"], Impossible, 1, "its path is not absolute"),
    (&["stats"], Impossible, 1, "its path is not absolute"),
    (&["explain", "1"], Impossible, 1, "its path is not absolute"),
    (&["top", "--once"], Impossible, 1, "its path is not absolute"),
    (&["agent", "--detach"], Impossible, 1, "its path is not absolute"),
    // Filters and values.
    (&["list", "sport", "x"], None, 2, "the filter makes no sense"),
    (&["list", "pid", "1", "or", "pid", "2"], None, 2, "the filter makes no sense"),
    // Programs.
    (&["run", "--", "no-such-program-here"], None, 127, "no-such-program-here: not found"),
    (&["run", "--", "/etc/passwd"], None, 126, "/etc/passwd: cannot be executed"),
    (&["run", "--require", "--", "true"], Open, 125, "is not started"),
    // Files that cannot be read or written.
    (&["cdi", "generate", "--output", "/proc/x"], None, 1, "/proc/x cannot be written"),
    (&["library", "install", "/proc/x"], None, 1, "/proc/x cannot be written"),
    (&["docs", "/proc/x"], None, 1, "/proc/x cannot be written"),
    (&["enable", "--status", "--directory", "/dev/null"], None, 1, "/dev/null cannot be read"),
    (&["disable", "--all", "--directory", "/dev/null"], None, 1, "/dev/null cannot be read"),
    (&["agent", "--detach", "--ivshmem", "/nonexistent"], None, 1, "/nonexistent"),
    (&["nvme", "target", "--check", "--config", "/nonexistent"], None, 1, "/nonexistent"),
    // Peers that are not there.
    (&["ivshmem-server", "--socket", "/nonexistent", "status"], None, 1, "no ivshmem server"),
    (&["nvme", "list", "--to", "127.0.0.1:1"], None, 1, "Connection refused"),
    (&["nvme", "discover", "--to", "127.0.0.1:1"], None, 1, "Connection refused"),
];

fn run(args: &[&str], agent: Agent) -> Output {
    let sandbox = Sandbox::new();
    // A process of which descriptors are known: `ME` in arguments.
    let mut idle = Command::new("sleep").arg("100").stdin(Stdio::null()).spawn().unwrap();
    let pid = idle.id().to_string();
    let args: Vec<_> = args.iter().map(|arg| arg.replace("ME", &pid)).collect();
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
        assert!(said.contains(says) && (says.is_empty() || said.starts_with("shunt: ")), "{what}");
        if *status != 0 {
            assert!(output.stdout.is_empty(), "{what}");
        }
    }
}

/// What `shunt --help` names, and what it hides.
const HIDDEN: [&str; 3] = ["docs", "load", "probe"];

#[test]
fn options_that_there_are_not_and_values_that_make_no_sense() {
    let help = text(&run(&["--help"], None).stdout);
    let (_, commands) = help.split_once("Commands:\n").unwrap();
    let named = commands.lines().take_while(|line| !line.is_empty());
    let named = named.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let named: Vec<_> = named.filter(|name| !name.is_empty()).chain(HIDDEN).collect();
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
