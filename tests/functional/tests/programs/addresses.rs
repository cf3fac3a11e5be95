//! Programs whose addresses are limited (`RLIMIT_AS`), by themselves or by what starts them.

use std::process::Command;

use shunt_functional::binaries::program;
use shunt_functional::compat::{Kind, Subject, Version};
use shunt_functional::sandbox::{Expect, Sandbox};

use crate::compare;
use crate::runtimes::{lines, source};

const ITSELF: Subject = Subject {
    kind: Kind::Surroundings,
    name: "RLIMIT_AS, set by the program",
    version: Version::None,
    done: "what it may map then, and which limits it and its children read",
    remark: "",
};

const SESSION: Subject = Subject {
    name: "RLIMIT_AS, set by a child",
    done: "a child limits itself to 200 MiB, listens, and takes a connection from its parent",
    ..ITSELF
};

/// Of which half would not do for the library.
const LITTLE: Subject = Subject {
    name: "RLIMIT_AS of 600 MB",
    done: "set before the program starts, which needs 200 MiB",
    remark: "stays on TCP: the library takes a half at most",
    ..ITSELF
};

fn python(mut command: Command, way: &str) -> Command {
    command.arg(source("addresses.py")).arg(way);
    command
}

#[test]
fn a_program_limits_itself() {
    compare(&ITSELF, Sandbox::new, |sandbox| {
        let command = python(sandbox.command(program("python3")), "itself");
        lines(&sandbox.expect(Expect::All(4), || sandbox.run(command)).stdout)
    });
}

#[test]
fn a_program_that_was_limited_before_has_half_of_it() {
    compare(&LITTLE, Sandbox::new, |sandbox| {
        let mut command = sandbox.command(program("prlimit"));
        command.arg("--as=600000000").arg(program("python3"));
        let command = python(command, "started");
        lines(&sandbox.expect(Expect::Nothing, || sandbox.run(command)).stdout)
    });
}

/// It has not spoken to the agent yet, and needs what its parent has mapped once more.
#[test]
fn a_child_that_limits_itself_is_shunted() {
    compare(&SESSION, Sandbox::new, |sandbox| {
        let command = python(sandbox.command(program("python3")), "session");
        lines(&sandbox.expect(Expect::All(2), || sandbox.run(command)).stdout)
    });
}
