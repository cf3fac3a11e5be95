//! The runtimes of languages: Java, Node, Go. Each program is server and client of its own.

use std::path::PathBuf;

use shunt_functional::binaries::{self, program};
use shunt_functional::compat::{Kind, Subject, Version};
use shunt_functional::sandbox::{Expect, Sandbox};

use crate::{Outcome, compare};

const JAVA: Subject = Subject {
    kind: Kind::Languages,
    name: "Java",
    version: Version::Said("java", "--version"),
    done: "HttpServer and HttpClient, NIO selectors, streams, transferTo, asynchronous channels",
    remark: "",
};

const NODE: Subject = Subject {
    kind: Kind::Languages,
    name: "Node",
    version: Version::Said("node", "--version"),
    done: "http, fetch, net, cluster, child processes that are sent sockets, worker threads",
    remark: "sockets that are sent to another process stay on TCP",
};

const NODE_IO_URING: Subject = Subject {
    kind: Kind::Surroundings,
    name: "Node with UV_USE_IO_URING=1",
    version: Version::Said("node", "--version"),
    done: "the same",
    remark: "libuv is told that there is no io_uring, and uses epoll",
};

const GO: Subject = Subject {
    kind: Kind::Languages,
    name: "Go",
    version: Version::Said("go", "version"),
    done: "net, static and with cgo; ncat is another client",
    remark: "stays on TCP: Go's runtime makes its system calls itself, also with cgo",
};

/// A program among the sources of these tests.
pub fn source(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/programs/sources").join(name)
}

/// What a program printed, as facts.
pub fn lines(text: &str) -> Outcome {
    text.lines().map(str::to_owned).collect()
}

#[test]
fn java() {
    compare(&JAVA, Sandbox::new, |sandbox| {
        let mut command = sandbox.command(program("java"));
        command.arg(source("Exchange.java"));
        lines(&sandbox.expect(Expect::Percent(50), || sandbox.run(command)).stdout)
    });
}

fn node(sandbox: &Sandbox, env: Option<(&str, &str)>) -> Outcome {
    let mut command = sandbox.command(program("node"));
    command.arg(source("exchange.js")).envs(env);
    lines(&sandbox.expect(Expect::Ends(60), || sandbox.run(command)).stdout)
}

#[test]
fn node_alone() {
    compare(&NODE, Sandbox::new, |sandbox| node(sandbox, None));
}

#[test]
fn node_that_asks_for_io_uring() {
    compare(&NODE_IO_URING, Sandbox::new, |sandbox| node(sandbox, Some(("UV_USE_IO_URING", "1"))));
}

/// Builds the Go program in the sandbox and runs it; ncat, its client, is under Shunt, too.
fn go(sandbox: &Sandbox, cgo: bool) -> Outcome {
    let built = sandbox.path().join("exchange");
    let mut command = sandbox.plain(program("go"));
    command.env("CGO_ENABLED", if cgo { "1" } else { "0" });
    command.env("GOCACHE", binaries::dir().join("go-cache"));
    command
        .env("GOFLAGS", "-mod=mod")
        .env("GOTOOLCHAIN", "local")
        .args(["build", "-o"])
        .arg(&built);
    command.arg(source("exchange.go"));
    command.arg(source(if cgo { "with_cgo.go" } else { "without_cgo.go" }));
    let _done = sandbox.spawn(command).wait_at_most(GO_BUILDS).success();
    let done = sandbox.expect(Expect::Nothing, || sandbox.run(sandbox.command(&built)));
    lines(&done.stdout)
}

/// The first build makes parts of the standard library, too.
const GO_BUILDS: std::time::Duration = std::time::Duration::from_secs(300);

#[test]
fn go_static() {
    compare(&GO, Sandbox::new, |sandbox| go(sandbox, false));
}

#[test]
fn go_with_cgo() {
    compare(&GO, Sandbox::new, |sandbox| go(sandbox, true));
}
