//! Bytes come back as they were written, whatever way they take.

use serde_json::json;
use shunt_functional::mode::Mode;
use shunt_functional::sandbox::{Expect, Sandbox};

use crate::{QUICK, Target};

/// An Admin Queue and an I/O queue, two ends each.
const ENDS: u64 = 4;

fn verify(store: &[&str], ways: &[&[&str]]) {
    for mode in Mode::enabled() {
        let sandbox = Sandbox::new(mode);
        let target = Target::quick(&sandbox, store);
        for way in ways {
            let seen = sandbox.expect(Expect::All(ENDS), || target.run(&sandbox, way));
            assert_eq!(seen[0]["commands"], 300, "{mode} {way:?}");
        }
        target.end();
    }
}

/// Commands of up to 1 MiB, 64 at once, seeds apart so that each way finds what another has left.
const PLAIN: &[&str] = &["verify", "--commands", "300"];
const DIGESTS: &[&str] = &["--header-digest", "--data-digest", "verify", "--commands", "300"];
const R2T: &[&str] = &["verify", "--commands", "300", "--in-capsule", "0", "--longest", "16384"];
const CAPSULES: &[&str] = &["verify", "--commands", "300", "--longest", "8192"];

#[test]
fn memory_keeps_every_byte() {
    verify(&["--memory", "32MiB"], &[PLAIN]);
    verify(&["--memory", "32MiB"], &[DIGESTS]);
    verify(&["--memory", "8MiB", "--block-size", "512"], &[R2T]);
    verify(&["--memory", "8MiB", "--block-size", "512"], &[CAPSULES]);
}

#[test]
fn a_file_keeps_every_byte() {
    verify(&["--file", "disk", "--size", "32MiB"], &[PLAIN]);
    verify(&["--file", "disk", "--size", "32MiB"], &[DIGESTS]);
    verify(&["--file", "disk", "--size", "8MiB", "--block-size", "512"], &[CAPSULES]);
}

/// A target that takes long writes in capsules, with a host that sends them so, with one that goes on asking for R2Ts as
/// if it had not heard of that, and with one that does now this and now that.
#[test]
fn long_capsules_are_taken_and_are_nobodys_duty() {
    for store in ["store = \"memory\"", "store = \"file\"\npath = \"disk\"\ncreate = true"] {
        let text = format!(
            "[limits]\nin-capsule = \"256KiB\"\nin-flight = \"4MiB\"\n\
             [[subsystem]]\nnqn = \"{QUICK}\"\nhosts = \"any\"\n\
             [[subsystem.namespace]]\n{store}\nsize = \"32MiB\"\n"
        );
        for mode in Mode::enabled() {
            for (most, digests) in
                [("262144", false), ("262144", true), ("0", false), ("65536", true)]
            {
                let sandbox = Sandbox::new(mode);
                let target = Target::configured(&sandbox, &text);
                let digests = if digests { &["--header-digest", "--data-digest"][..] } else { &[] };
                let verify = ["verify", "--commands", "300", "--longest", "262144"];
                let way = [digests, &verify, &["--in-capsule", most]].concat();
                let seen = sandbox.expect(Expect::All(ENDS), || target.run(&sandbox, &way));
                assert_eq!(seen[0]["commands"], 300, "{mode} {way:?}");
                target.end();
            }
        }
        // What is longer than what was announced ends the connection. Each thirtieth command is, or fewer: which ones are put off,
        // as they overlap with others, depends on the time that those take.
        let sandbox = Sandbox::new(Mode::Plain);
        let target = Target::configured(&sandbox, &text);
        let verify = ["verify", "--commands", "5000", "--longest", "524288"];
        let args = [&verify[..], &["--in-capsule", "524288"]].concat();
        let finished = sandbox.spawn(target.host(&sandbox, &args)).wait();
        assert!(finished.stderr.contains("the controller has ended it"), "{finished}");
        target.end();
    }
}

#[test]
fn hosts_may_read_memory_in_place() {
    let text = r#"
[[subsystem]]
nqn = "nqn.2024-01.org.shunt:target"
hosts = [{ nqn = "nqn.2024-01.org.shunt:test-host", grant = true }]
[[subsystem.namespace]]
store = "memory"
size = "32MiB"
"#;
    for mode in Mode::enabled() {
        let sandbox = Sandbox::new(mode);
        let target = Target::configured(&sandbox, text);
        let before = mode.is_shunted().then(|| sandbox.stats());
        target.run(&sandbox, PLAIN);
        // What is written goes straight into the store, and what is read comes straight from it.
        assert!(target.count(&sandbox, "placed_bytes") > 0);
        assert!(target.count(&sandbox, "lent_bytes") > 0);
        target.end();
        if let Some(before) = before
            && mode == Mode::Attach
        {
            let granted = sandbox.stats().get("bytes_granted") - before.get("bytes_granted");
            assert!(granted > 0, "nothing was granted");
        }
    }
}

#[test]
fn commands_wait_for_buffers_and_for_nothing_else() {
    let sandbox = Sandbox::new(Mode::Plain);
    let target = Target::short_of_memory(&sandbox, "16MiB");
    // 128 commands of up to 64 KiB, in capsules and without, for 512 KiB of buffers.
    let verify = ["--depth", "128", "verify", "--commands", "3000", "--longest", "65536"];
    target.run(&sandbox, &verify);
    assert!(target.count(&sandbox, "buffer_waits") > 0);
    target.end();
}

#[test]
fn what_there_is_can_be_seen() {
    let sandbox = Sandbox::new(Mode::Plain);
    let target = Target::quick(&sandbox, &["--null", "1GiB", "--block-size", "512"]);
    let seen = &target.run(&sandbox, &["identify"])[0];
    assert_eq!(seen["disks"], json!([{ "nsid": 1, "blocks": 1 << 21, "block": 512 }]));
    assert_eq!((&seen["nqn"], &seen["model"]), (&json!(QUICK), &json!("Shunt")));
    assert_eq!(seen["serial"].as_str().unwrap().len(), 16);
    let found = &target.run(&sandbox, &["discover"])[0]["records"];
    let address = format!("127.0.0.1:{}", target.port);
    assert_eq!(found, &json!([{ "nqn": QUICK, "address": address }]));
    let filled = target.run(&sandbox, &["fill", "--length", "65536", "--flush-every", "1000"]);
    assert_eq!(filled[1]["durable"], (1 << 30) / 65536);
    target.end();
}

#[test]
fn compare_and_write_is_one_step() {
    for store in [&["--memory", "1MiB"][..], &["--file", "disk", "--size", "1MiB"]] {
        let sandbox = Sandbox::new(Mode::Plain);
        let target = Target::quick(&sandbox, store);
        let seen = &target.run(&sandbox, &["exchange"])[0]["outcomes"];
        // Compare Failure and Command Aborted due to Failed Fused Command.
        let (fails, succeeds) = (json!(["285", "009"]), json!(["000", "000"]));
        assert_eq!(seen, &json!([fails, succeeds, fails, succeeds]));
        target.end();
    }
}
