//! Targets that end while hosts write: what was acknowledged is there.

use std::fs::File;
use std::os::unix::fs::FileExt;

use serde_json::Value;
use shunt_functional::mode::Mode;
use shunt_functional::nvme::{Host, pattern};
use shunt_functional::sandbox::{Process, Sandbox};
use shunt_functional::waiting::settles;
use shunt_nvme::host::Transfer;
use shunt_nvme::wire::{Fuse, Sqe, Status, opcode};

use crate::{Target, lines};

const STORE: &[&str] = &["--file", "disk", "--size", "64MiB"];
const BLOCK: usize = 4096;

/// A host that fills the disk until it cannot; and as soon as the file has some of it, `end` ends the target.
fn filled(sandbox: &Sandbox, args: &[&str], end: impl FnOnce(Target)) -> Value {
    let target = Target::quick(sandbox, STORE);
    let mut host: Process = sandbox.spawn(target.host(sandbox, args));
    host.wait_for_line(|line| line.contains("filling").then_some(()));
    let file = File::open(sandbox.path().join("disk")).unwrap();
    let mut block = vec![0; BLOCK];
    while block != pattern(500, 1, BLOCK) {
        file.read_exact_at(&mut block, 500 * BLOCK as u64).unwrap();
        host.assert_running();
    }
    end(target);
    let mut seen = lines(&host.wait().success());
    seen.pop().expect("a summary")
}

/// The blocks that were acknowledged are in the file.
fn assert_kept(sandbox: &Sandbox, seen: &Value) {
    let acknowledged = seen["acknowledged"].as_array().unwrap();
    assert!(acknowledged.len() > 100, "{seen}");
    for block in acknowledged {
        assert_kept_block(sandbox, block.as_u64().unwrap());
    }
}

/// The host has been asked for the data of a write when the target is told to end, and sends it after that.
#[test]
fn what_has_begun_is_done_before_the_end() {
    let sandbox = Sandbox::new(Mode::Plain);
    let target = Target::quick(&sandbox, STORE);
    let mut host = Host::connect(&target.way()).unwrap();
    let mut queue = host.queue().unwrap();
    let mut write = Sqe::new(opcode::io::WRITE, 1);
    write.set_cdw10_64(7);
    let transfer = Transfer::ToController(4096);
    queue.submit(&write, transfer, pattern(7, 1, BLOCK)).unwrap();
    // The R2T is there: it is left unread.
    assert_eq!(queue.socket().peek(&mut [0]).unwrap(), 1);
    let Target { mut process, .. } = target;
    process.signal(libc::SIGTERM);
    settles("the log", &true, || {
        process.assert_running();
        process.describe().contains("are drained")
    });
    let ended = queue.wait().unwrap();
    assert!(ended.completion.cqe.status().is_success(), "{ended:?}");
    assert_kept_block(&sandbox, 7);
    // A command that comes now is not answered, and so not done.
    write.set_cdw10_64(8);
    let late = queue.submit(&write, transfer, pattern(8, 1, BLOCK)).and_then(|_| queue.wait());
    assert!(late.is_err(), "{late:?}");
    drop((host, queue));
    let finished = process.wait().success();
    assert!(!finished.stderr.contains("failed"), "{finished}");
}

/// The same of the first command of a fused operation: its second one is not taken any more, so it ends without.
#[test]
fn a_first_half_ends_without_the_second() {
    let sandbox = Sandbox::new(Mode::Plain);
    let target = Target::quick(&sandbox, STORE);
    let mut host = Host::connect(&target.way()).unwrap();
    let mut queue = host.queue().unwrap();
    let mut compare = Sqe::new(opcode::io::COMPARE, 1);
    compare.set_fuse(Fuse::First);
    queue.submit(&compare, Transfer::ToController(4096), vec![0; BLOCK]).unwrap();
    assert_eq!(queue.socket().peek(&mut [0]).unwrap(), 1);
    let Target { mut process, .. } = target;
    process.signal(libc::SIGTERM);
    settles("the log", &true, || {
        process.assert_running();
        process.describe().contains("are drained")
    });
    let ended = queue.wait().unwrap();
    assert_eq!(ended.completion.cqe.status(), Status::FUSED_MISSING);
    drop((host, queue));
    let _ = process.wait().success();
}

fn assert_kept_block(sandbox: &Sandbox, block: u64) {
    let file = File::open(sandbox.path().join("disk")).unwrap();
    let mut found = vec![0; BLOCK];
    file.read_exact_at(&mut found, block * BLOCK as u64).unwrap();
    assert!(found == pattern(block, 1, BLOCK), "block {block} was acknowledged");
}

#[test]
fn a_target_that_is_to_end_keeps_what_it_has_acknowledged() {
    for mode in Mode::enabled() {
        let sandbox = Sandbox::new(mode);
        let seen = filled(&sandbox, &["fill", "--endless"], |target| {
            let finished = target.end();
            assert!(finished.stderr.contains("are drained"), "{finished}");
        });
        // Not reset: the host has had every answer.
        assert_eq!(seen["ended"], "unexpected end of file", "{mode}");
        assert_kept(&sandbox, &seen);
    }
}

#[test]
fn what_was_acknowledged_outlives_a_killed_target() {
    for mode in Mode::enabled() {
        let sandbox = Sandbox::new(mode);
        let seen = filled(&sandbox, &["fill", "--endless"], |mut target| target.process.kill());
        assert_ne!(seen["ended"], "done", "{mode}");
        assert!(seen["durable"].as_u64().unwrap() > 0, "{seen}");
        assert_kept(&sandbox, &seen);
        // The next one has the file, and goes on.
        let target = Target::quick(&sandbox, STORE);
        let seen = target.run(&sandbox, &["fill"]).pop().unwrap();
        assert_eq!((&seen["ended"], &seen["durable"]), (&"done".into(), &16384.into()));
        assert_kept(&sandbox, &seen);
        target.end();
    }
}
