//! redis under redis-benchmark and redis-cli.

use std::fs::{self, File};

use shunt_functional::binaries::program;
use shunt_functional::compat::{Kind, Subject, Version};
use shunt_functional::net::free_port;
use shunt_functional::sandbox::{Expect, Sandbox};
use shunt_functional::servers;

use crate::{Outcome, compare, content};

const REDIS: Subject = Subject {
    kind: Kind::Programs,
    name: "redis, redis-benchmark, redis-cli",
    version: Version::Said("redis-server", "--version"),
    done: "50 and 500 clients, with and without pipelining; values of 3 MB; long replies",
    remark: "",
};

const TESTS: [&str; 5] = ["PING_INLINE", "SET", "GET", "LPUSH", "MSET"];

fn cli(sandbox: &Sandbox, port: &str, args: &[&str]) -> String {
    let mut command = sandbox.command(program("redis-cli"));
    command.args(["-p", port]).args(args);
    sandbox.run(command).stdout
}

fn benchmark(sandbox: &Sandbox, port: &str, pipeline: &str, clients: &str, count: &str) -> String {
    let mut command = sandbox.command(program("redis-benchmark"));
    command.args(["-p", port, "-P", pipeline, "-c", clients, "-n", count, "--csv"]);
    command.args(["-d", "100", "-t", "ping_inline,set,get,lpush,mset"]);
    let out = sandbox.run(command);
    let rates: Vec<(&str, bool)> = out
        .stdout
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(',').map(|f| f.trim_matches('"'));
            let name = fields.next()?;
            let rate: f64 = fields.next()?.parse().ok()?;
            Some((name.split(' ').next().unwrap_or(name), rate > 1.0))
        })
        .collect();
    assert!(out.stderr.is_empty(), "{out}");
    assert_eq!(rates, TESTS.map(|t| (t, true)), "{out}");
    format!("-P {pipeline} -c {clients}: {rates:?}")
}

fn scenario(sandbox: &Sandbox) -> Outcome {
    let port = free_port();
    let mut server = servers::redis(sandbox, port);
    let port = port.to_string();
    let mut outcome = Outcome::new();

    for clients in ["50", "500"] {
        for pipeline in ["1", "16"] {
            let ends = 2 * clients.parse::<u64>().expect("a number") * TESTS.len() as u64;
            outcome.push(sandbox.expect(Expect::Ends(ends), || {
                benchmark(sandbox, &port, pipeline, clients, "20000")
            }));
        }
    }

    // A value that takes many segments each way, and a reply of many parts.
    let value: Vec<u8> = content(3 << 20).iter().map(|b| b'a' + b % 26).collect();
    let file = sandbox.path().join("value");
    fs::write(&file, &value).expect("value");
    outcome.push(sandbox.expect(Expect::Ends(2), || {
        let mut command = sandbox.command(program("redis-cli"));
        command.args(["-p", &port, "-x", "SET", "value"]);
        command.stdin(File::open(&file).expect("value"));
        sandbox.run(command).stdout
    }));
    let got = sandbox.expect(Expect::Ends(2), || cli(sandbox, &port, &["GET", "value"]));
    outcome.push(format!("value right: {}", got.trim_end().as_bytes() == value));
    outcome.push(cli(sandbox, &port, &["EVAL", SCRIPT, "0"]));
    let list = cli(sandbox, &port, &["LRANGE", "numbers", "0", "-1"]);
    let right = list.lines().zip(1..).filter(|(line, n)| **line == n.to_string()).count();
    outcome.push(format!("numbers right: {right}"));
    outcome.push(cli(sandbox, &port, &["DBSIZE"]));
    server.assert_running();
    outcome
}

const SCRIPT: &str = "for i = 1, 50000 do redis.call('RPUSH', 'numbers', i) end return redis.call('LLEN', 'numbers')";

#[test]
fn redis() {
    compare(&REDIS, Sandbox::new, scenario);
}
