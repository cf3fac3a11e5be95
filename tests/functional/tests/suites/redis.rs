//! Redis' own tests, from the distribution's source package, against the distribution's redis.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use shunt_functional::binaries::program;
use shunt_functional::compat::{Kind, Subject, Version};
use shunt_functional::net::free_port;
use shunt_functional::sandbox::Sandbox;
use shunt_functional::sources;

use crate::{Verdict, Verdicts, compare, in_full};

/// What the suite expects in the build's directory.
const PROGRAMS: [&str; 5] =
    ["redis-server", "redis-cli", "redis-benchmark", "redis-check-aof", "redis-check-rdb"];

/// Units of the short form.
const SHORT: [&str; 4] = ["unit/auth", "unit/protocol", "unit/quit", "unit/pubsub"];

/// Units about memory, allocators and files that take long and have to do with no connection.
const WITHOUT: [&str; 6] = [
    "unit/memefficiency",
    "unit/bitops",
    "unit/hyperloglog",
    "integration/corrupt-dump",
    "integration/corrupt-dump-fuzzer",
    "integration/redis-benchmark",
];

/// All units, one after the other, take a quarter of an hour on an idle machine.
const PATIENCE: Duration = Duration::from_secs(3600);

/// A place that looks like redis' source directory after it was built.
fn prepare(sandbox: &Sandbox, source: &Path) -> std::path::PathBuf {
    let place = sandbox.path().join("redis");
    if !place.exists() {
        std::fs::create_dir_all(place.join("src")).expect("a directory");
        for part in ["tests", "utils", "redis.conf", "sentinel.conf"] {
            let status = Command::new("cp").arg("-r").arg(source.join(part)).arg(&place).status();
            assert!(status.is_ok_and(|s| s.success()), "cp {part}");
        }
        for name in PROGRAMS {
            symlink(program(name), place.join("src").join(name)).expect("symlink");
        }
    }
    place
}

fn run(sandbox: &Sandbox, source: &Path) -> Verdicts {
    let place = prepare(sandbox, source);
    let mut command = sandbox.command(program("tclsh"));
    command.current_dir(&place).arg("tests/test_helper.tcl");
    command.args(["--clients", "2", "--durable", "--no-latency", "--timeout", "600"]);
    command.args(["--baseport", &free_port().min(50_000).to_string()]);
    if in_full() {
        command.args(WITHOUT.iter().flat_map(|unit| ["--skipunit", unit]));
    } else {
        command.args(SHORT.iter().flat_map(|unit| ["--single", unit]));
    }
    let out = sandbox.spawn(command).wait_at_most(PATIENCE);
    let verdicts = verdicts(&out.stdout);
    // It says so when it came to its end, whatever failed.
    assert!(out.stdout.contains("The End"), "{out}");
    verdicts
}

/// The name of a test without what differs from run to run: replication is tried in random layouts, with
/// random numbers of keys.
fn without_chance(name: &str) -> String {
    if !name.starts_with("PSYNC2") {
        return name.to_owned();
    }
    let words = name.split(|c: char| c.is_ascii_digit()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("N")
}

/// Lines such as `[ok]: SET and GET an item (3 ms)`, with colours around the first word.
fn verdicts(printed: &str) -> Verdicts {
    let line = |line: &str| -> Option<(String, Verdict)> {
        let (mark, rest) = line.split_once("]: ")?;
        let verdict = [("ok", Verdict::Passed), ("err", Verdict::Failed)];
        let (_, verdict) = verdict.into_iter().find(|(word, _)| {
            mark.strip_suffix("\u{1b}[0m").is_some_and(|mark| mark.ends_with(&format!("m{word}")))
        })?;
        let name = match verdict {
            Verdict::Passed => rest.rsplit_once(" (").map_or(rest, |(name, _)| name),
            _ => rest.rsplit_once(" in tests/").map_or(rest, |(name, _)| name),
        };
        Some((without_chance(name), verdict))
    };
    printed.lines().filter_map(line).collect()
}

#[test]
fn redis() {
    let Some(source) = sources::unpacked("redis-server", "redis") else { return };
    let subject = Subject {
        kind: Kind::Suites,
        name: "redis",
        version: Version::Packaged("redis-server"),
        done: "runtest: servers and clients, replication, scripts, persistence",
        remark: "Without units about memory and files alone (memefficiency, bitops, corrupt-dump, …)",
    };
    compare(&subject, 60, Sandbox::new, |sandbox| run(sandbox, &source));
}
