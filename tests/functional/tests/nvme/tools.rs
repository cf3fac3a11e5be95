//! `shunt nvme` as people use it.

use std::fs::{self, File};
use std::process::Command;

use serde_json::{Value, json};
use shunt_functional::binaries::built;
use shunt_functional::mode::Mode;
use shunt_functional::nvme::pattern;
use shunt_functional::sandbox::{Finished, Sandbox};

use crate::{QUICK, Target};

fn tool(sandbox: &Sandbox, target: &Target, args: &[&str]) -> Command {
    let mut command = sandbox.command(built("shunt"));
    command.arg("nvme").args(args).args(["--to", &format!("127.0.0.1:{}", target.port)]);
    command
}

fn run(sandbox: &Sandbox, target: &Target, args: &[&str]) -> Finished {
    sandbox.run(tool(sandbox, target, args))
}

fn json_of(sandbox: &Sandbox, target: &Target, args: &[&str]) -> Value {
    let finished = run(sandbox, target, args);
    serde_json::from_str(&finished.stdout).unwrap_or_else(|e| panic!("{e}: {finished}"))
}

/// What it says when it fails.
fn refusal(sandbox: &Sandbox, target: &Target, args: &[&str]) -> String {
    let finished = sandbox.spawn(tool(sandbox, target, args)).wait();
    assert_eq!(finished.status.code(), Some(1), "{finished}");
    assert_eq!(finished.stderr.lines().count(), 1, "{finished}");
    finished.stderr
}

#[test]
fn what_is_written_is_read() {
    for mode in Mode::enabled() {
        let sandbox = Sandbox::new(mode);
        let target = Target::quick(&sandbox, &["--memory", "16MiB"]);
        let input = sandbox.path().join("input");
        // Several commands, of which the last one is short.
        let bytes = pattern(1, 1, 5 * 1024 * 1024 + 4096 * 3);
        fs::write(&input, &bytes).unwrap();
        let mut write = tool(&sandbox, &target, &["write", "--offset", "1MiB"]);
        write.stdin(File::open(&input).unwrap());
        let _ = sandbox.run(write);
        let output = sandbox.path().join("output");
        let length = bytes.len().to_string();
        let args = ["read", "--offset", "1MiB", "--length", &length];
        let reading = sandbox.start(tool(&sandbox, &target, &args), &output);
        let _ = reading.wait().success();
        assert!(fs::read(&output).unwrap() == bytes, "{mode}");
        target.end();
    }
}

#[test]
fn what_there_is_is_listed() {
    let sandbox = Sandbox::new(Mode::Plain);
    let target = Target::quick(&sandbox, &["--null", "1GiB", "--block-size", "512"]);
    let list = json_of(&sandbox, &target, &["list", "--json"]);
    let disk = &list["namespaces"][0];
    assert_eq!((&disk["number"], &disk["bytes"]), (&json!(1), &json!(1 << 30)));
    assert_eq!((&disk["block_size"], &disk["read_only"]), (&json!(512), &json!(false)));
    let path = &list["paths"][0];
    assert_eq!((&path["state"], &path["access"]), (&json!("up"), &json!("optimized")));
    let text = run(&sandbox, &target, &["list"]).stdout;
    assert!(text.contains("1073741824") && text.contains("optimized"), "{text}");
    let found = json_of(&sandbox, &target, &["discover", "--json"]);
    let address = format!("127.0.0.1:{}", target.port);
    let expected = json!([{ "kind": "subsystem", "subsystem": QUICK, "address": address }]);
    assert_eq!(found, expected);
    target.end();
}

#[test]
fn measurements_say_what_was_granted() {
    for mode in Mode::enabled() {
        let sandbox = Sandbox::new(mode);
        let target = Target::quick(&sandbox, &["--null", "64MiB"]);
        let bench = |more: &[&str]| {
            let args = ["bench", "--json", "--seconds", "0.3", "--size", "64KiB", "--reads", "30"];
            json_of(&sandbox, &target, &[&args[..], more].concat())
        };
        for (more, may_grant) in [(&["--threads", "2"][..], true), (&["--no-grant"], false)] {
            let seen = bench(more);
            assert!(seen["reads"].as_u64().unwrap() > 0 && seen["writes"].as_u64().unwrap() > 0);
            assert!(seen["latency_p50_us"].as_f64() <= seen["latency_p99_us"].as_f64());
            let connections = seen["connections"].as_array().unwrap();
            let shunted = connections.iter().filter(|c| c["shunted"] == true).count();
            let granted: u64 =
                connections.iter().map(|c| c["bytes_granted"].as_u64().unwrap()).sum();
            let expected = if !mode.is_shunted() {
                0
            } else if may_grant {
                3
            } else {
                2
            };
            assert_eq!(shunted, expected, "{mode}: {seen}");
            let grants = may_grant && mode == Mode::Attach;
            assert_eq!(granted > 0, grants, "{mode}: {seen}");
        }
        target.end();
    }
}

#[test]
fn what_cannot_be_is_told() {
    let sandbox = Sandbox::new(Mode::Plain);
    let text = format!(
        "[[subsystem]]\nnqn = \"{QUICK}\"\nhosts = [{{ nqn = \"nqn.2024-01.org.shunt:one\" }}]\n\
         [[subsystem.namespace]]\nstore = \"null\"\nsize = \"1MiB\"\n"
    );
    let target = Target::configured(&sandbox, &text);
    let one = "nqn.2024-01.org.shunt:one";
    let said = |args: &[&str]| refusal(&sandbox, &target, args);
    let other = said(&["list", "--host", "nqn.2024-01.org.shunt:other"]);
    assert!(other.contains("must list this host's name"), "{other}");
    let gone = said(&["read", "--host", one, "--namespace", "7"]);
    assert!(gone.contains("no namespace 7: those of the subsystem are 1"), "{gone}");
    let odd = said(&["read", "--host", one, "--offset", "100"]);
    assert!(odd.contains("the blocks have 4096 bytes"), "{odd}");
    let beyond = said(&["read", "--host", one, "--length", "2MiB"]);
    assert!(beyond.contains("ends at byte 1048576"), "{beyond}");
    let unknown = said(&["list", "--subsystem", "nqn.2024-01.org.shunt:no", "--host", one]);
    assert!(unknown.contains("connect: "), "{unknown}");
    let key = said(&["list", "--host", one, "--key-file", "/nonexistent"]);
    assert!(key.contains("/nonexistent: "), "{key}");
    target.end();
}
