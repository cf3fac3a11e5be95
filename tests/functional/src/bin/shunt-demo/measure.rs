//! The measurements: a pair of programs each.

use serde_json::Value;
use shunt_functional::binaries::program;
use shunt_functional::net::free_port;
use shunt_functional::sandbox::{Sandbox, is_root};
use shunt_functional::servers;

/// A pair of programs and the figure that one of them prints.
pub struct Measurement {
    /// For people.
    pub name: &'static str,
    /// Of the figure.
    pub unit: &'static str,
    /// True for latencies.
    pub less_is_better: bool,
    /// Runs the pair; the figure.
    pub run: fn(&Sandbox) -> f64,
}

/// All of them. Each takes about three seconds, twice.
pub const MEASUREMENTS: &[Measurement] = &[
    Measurement {
        name: "nginx + wrk, 612 B, 50 connections",
        unit: "req/s",
        less_is_better: false,
        run: nginx,
    },
    Measurement {
        name: "redis GET, 50 connections",
        unit: "req/s",
        less_is_better: false,
        run: |sandbox| redis(sandbox, "1", "250000"),
    },
    Measurement {
        name: "redis GET, 50 connections, pipelined",
        unit: "req/s",
        less_is_better: false,
        run: |sandbox| redis(sandbox, "16", "2000000"),
    },
    Measurement {
        name: "sockperf ping-pong, 14 B, one way",
        unit: "µs",
        less_is_better: true,
        run: ping_pong,
    },
    Measurement {
        name: "sockperf throughput, 64,000 B",
        unit: "MB/s",
        less_is_better: false,
        run: throughput,
    },
    Measurement { name: "iperf3", unit: "Gb/s", less_is_better: false, run: iperf3 },
];

/// The first number in the rest of the line after `label`.
fn number_after(text: &str, label: &str) -> f64 {
    text.split_once(label)
        .and_then(|(_, rest)| {
            rest.split(|c: char| !c.is_ascii_digit() && c != '.').find_map(|w| w.parse().ok())
        })
        .unwrap_or_else(|| panic!("no figure after {label:?} in:\n{text}"))
}

fn nginx(sandbox: &Sandbox) -> f64 {
    let port = free_port();
    let user = is_root().then_some("root");
    let _server = servers::nginx(sandbox, port, 1, user, &[("page", &[b'x'; 612])]);
    let mut command = sandbox.command(program("wrk"));
    command.args(["-t1", "-c50", "-d3", &format!("http://127.0.0.1:{port}/page")]);
    number_after(&sandbox.run(command).stdout, "Requests/sec:")
}

fn redis(sandbox: &Sandbox, pipeline: &str, requests: &str) -> f64 {
    let port = free_port();
    let _server = servers::redis(sandbox, port);
    let mut command = sandbox.command(program("redis-benchmark"));
    command.args(["-p", &port.to_string(), "-c", "50", "-P", pipeline, "-n", requests]);
    command.args(["-t", "get", "--csv"]);
    number_after(&sandbox.run(command).stdout, "\"GET\",")
}

fn sockperf(sandbox: &Sandbox, args: &[&str]) -> String {
    let port = free_port();
    let _server = servers::sockperf(sandbox, port, None);
    let mut command = sandbox.command(program("sockperf"));
    command.args(args).args(["--tcp", "-i", "127.0.0.1", "-p", &port.to_string(), "-t", "3"]);
    sandbox.run(command).stdout
}

fn ping_pong(sandbox: &Sandbox) -> f64 {
    // sockperf's own "max" has room for 600,000 messages a second only, and fails beyond that.
    let args = ["ping-pong", "-m", "14", "--mps", "3000000"];
    number_after(&sockperf(sandbox, &args), "Latency is")
}

fn throughput(sandbox: &Sandbox) -> f64 {
    let text = sockperf(sandbox, &["throughput", "-m", "64000"]);
    // sockperf's MBps are MiB.
    number_after(&text, "BandWidth is") * 1.048_576
}

fn iperf3(sandbox: &Sandbox) -> f64 {
    let port = free_port();
    let _server = servers::iperf3(sandbox, port);
    let mut command = sandbox.command(program("iperf3"));
    command.args(["-c", "127.0.0.1", "-p", &port.to_string(), "-t", "3", "-J"]);
    let out = sandbox.run(command);
    let json: Value = serde_json::from_str(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out}"));
    let rate = json["end"]["sum_received"]["bits_per_second"].as_f64();
    rate.unwrap_or_else(|| panic!("no rate: {out}")) / 1e9
}
