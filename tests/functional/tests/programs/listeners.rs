//! Listeners that clients cannot find: `shunt list` names each, with its reason.

use std::process::Command;

use shunt_functional::binaries::program;
use shunt_functional::mode::Mode;
use shunt_functional::sandbox::Sandbox;

use crate::runtimes::{lines, source};

/// The program that listens in this way, of a command line that runs python.
fn listens(mut python: Command, sandbox: &Sandbox, way: &str) -> Command {
    python.arg(source("listeners.py")).arg(sandbox.shunt_path()).arg(way);
    python
}

/// What is said of a program that listens in this way, and how many of its connections' ends have this reason.
fn told(way: &str, reason: &str) -> Vec<(Vec<String>, u64)> {
    let outcome = |mode| {
        let sandbox = Sandbox::new(mode);
        let python = sandbox.command(program("python3"));
        let told = lines(&sandbox.run(listens(python, &sandbox, way)).stdout);
        (told, sandbox.stats().declined(reason))
    };
    Mode::enabled_shunted().into_iter().map(outcome).collect()
}

#[test]
fn those_that_the_agent_refuses() {
    for (told, _) in told("refused", "refused") {
        assert_eq!(told, ["refused", "refused", "refused", "none", "refused", "none"]);
    }
}

#[test]
fn those_of_programs_that_load_libraries_past_the_hooks() {
    for (told, ends) in told("deep", "bypassed") {
        assert_eq!(told, ["none", "bypassed", "bypassed", "bypassed"]);
        assert_eq!(ends, 2);
    }
}

#[test]
fn those_of_programs_that_set_a_filter_of_system_calls() {
    for (told, _) in told("filtered", "bypassed") {
        assert_eq!(told, ["none", "bypassed"]);
    }
}

#[test]
fn those_that_were_made_while_there_was_no_agent() {
    for mode in Mode::enabled_shunted() {
        let sandbox = Sandbox::new(mode);
        sandbox.stop_agent();
        let python = sandbox.preloaded(program("python3"));
        let mut server = sandbox.spawn(listens(python, &sandbox, "away"));
        server.wait_for_line(|line| (line == "listening").then_some(()));
        sandbox.start_agent();
        assert_eq!(lines(&server.wait().success().stdout), ["listening", "no-agent", "none"]);
    }
}
