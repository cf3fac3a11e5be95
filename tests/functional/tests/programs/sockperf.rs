//! sockperf, over TCP, with each of its ways of waiting.

use shunt_functional::binaries::program;
use shunt_functional::compat::{Kind, Subject, Version};
use shunt_functional::net::free_port;
use shunt_functional::sandbox::{Expect, Sandbox};
use shunt_functional::servers;

use crate::{Outcome, compare};

const SOCKPERF: Subject = Subject {
    kind: Kind::Programs,
    name: "sockperf",
    version: Version::Said("sockperf", "--version"),
    done: "ping-pong, under load, throughput; waiting in recvfrom",
    remark: "",
};

/// The three kinds of traffic.
const TRAFFIC: [&[&str]; 3] = [
    // sockperf's own "max" has room for 600,000 messages a second only, and fails beyond that.
    &["ping-pong", "-m", "14", "--mps", "3000000"],
    &["under-load", "-m", "100", "--mps", "10000", "--reply-every", "50"],
    &["throughput", "-m", "64000"],
];

fn client(sandbox: &Sandbox, port: &str, args: &[&str]) -> String {
    let mut command = sandbox.command(program("sockperf"));
    command.args([args[0], "--tcp", "-i", "127.0.0.1", "-p", port, "-t", "1"]).args(&args[1..]);
    let text = sandbox.run(command).stdout;
    let complaint = text.lines().find(|line| line.contains("ERROR") || line.contains("WARNING"));
    // Lost, repeated and swapped messages; throughput has only a summary.
    let order = text
        .lines()
        .find(|line| line.contains("dropped messages"))
        .map(|line| line.rsplit(']').next().unwrap_or(line).trim().to_owned());
    let summary = text.lines().any(|line| line.contains("Summary:"));
    format!("{args:?}: {order:?}, summary {summary}, complaint {complaint:?}")
}

/// The server waits by `wait`; `None` is a blocking recvfrom on its one socket.
fn scenario(sandbox: &Sandbox, wait: Option<&str>, traffic: &[&[&str]]) -> Outcome {
    let port = free_port();
    let wait = wait.map(|wait| (wait, free_port()));
    let mut server = servers::sockperf(sandbox, port, wait);
    let port = port.to_string();
    let outcome = traffic
        .iter()
        .map(|args| sandbox.expect(Expect::Ends(2), || client(sandbox, &port, args)))
        .collect();
    server.assert_running();
    server.terminate(libc::SIGINT);
    outcome
}

#[test]
fn blocking() {
    compare(&SOCKPERF, Sandbox::new, |sandbox| scenario(sandbox, None, &TRAFFIC));
}

#[test]
fn epoll() {
    let subject = Subject { done: "the same, waiting in epoll", ..SOCKPERF };
    compare(&subject, Sandbox::new, |sandbox| scenario(sandbox, Some("e"), &TRAFFIC));
}

#[test]
fn poll() {
    let subject = Subject { done: "the same, waiting in poll", ..SOCKPERF };
    compare(&subject, Sandbox::new, |sandbox| scenario(sandbox, Some("p"), &TRAFFIC[..1]));
}

#[test]
fn select() {
    let subject = Subject { done: "the same, waiting in select", ..SOCKPERF };
    compare(&subject, Sandbox::new, |sandbox| scenario(sandbox, Some("s"), &TRAFFIC[..1]));
}
