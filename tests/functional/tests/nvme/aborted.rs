//! Commands that hosts take back.

use shunt_functional::mode::Mode;
use shunt_functional::nvme::{Host, Queue, pattern};
use shunt_functional::sandbox::Sandbox;
use shunt_nvme::host::Transfer;
use shunt_nvme::transport::Command;
use shunt_nvme::wire::{Sqe, Status, opcode};

use crate::Target;

const LEN: usize = 64 << 10;
/// The same in a command.
const TRANSFER: u32 = 64 << 10;
/// The result of an Abort whose command goes on.
const GOES_ON: u64 = 1;

fn write(queue: &mut Queue, block: u64) -> Command {
    let mut write = Sqe::new(opcode::io::WRITE, 1);
    write.set_cdw10_64(block * LEN as u64 / 4096);
    write.cdw12 = (TRANSFER / 4096 - 1).into();
    queue.submit(&write, Transfer::ToController(TRANSFER), pattern(block, 1, LEN)).unwrap()
}

fn abort(host: &mut Host, qid: u16, cid: u16) -> u64 {
    let mut sqe = Sqe::new(opcode::admin::ABORT, 0);
    sqe.cdw10 = (u32::from(qid) | u32::from(cid) << 16).into();
    host.admin(&sqe, 0).unwrap().0
}

/// Two threads with 512 KiB of buffers each: eight writes have one each, and others wait for one.
#[test]
fn writes_that_wait_are_taken_back() {
    let sandbox = Sandbox::new(Mode::Plain);
    let target = Target::short_of_memory(&sandbox, "1MiB");
    let mut host = Host::connect(&target.way()).unwrap();
    let mut queue = host.queue().unwrap();
    let writes: Vec<_> = (0..12).map(|block| write(&mut queue, block)).collect();
    let cid = |queue: &Queue, n: usize| queue.cid(writes[n]).unwrap();
    // All have come: the target has asked for the data of some.
    assert_eq!(queue.socket().peek(&mut [0]).unwrap(), 1);
    while target.count(&sandbox, "buffer_waits") < 4 {
        std::thread::yield_now();
    }
    // One whose data it has asked for, one that has a buffer and waits for its turn, one without a buffer.
    for n in [0, 6, 11] {
        let cid = cid(&queue, n);
        assert_eq!(abort(&mut host, 1, cid), 0, "write {n}");
        // It is no command any more.
        assert_eq!(abort(&mut host, 1, cid), GOES_ON, "write {n}");
    }
    assert_eq!(abort(&mut host, 1, 0xfff0), GOES_ON);
    assert_eq!(abort(&mut host, 7, 0), GOES_ON);
    let mut taken_back = Vec::new();
    for _ in &writes {
        let ended = queue.wait().unwrap();
        let n = writes.iter().position(|command| *command == ended.command).unwrap();
        match ended.completion.cqe.status() {
            Status::SUCCESS => {}
            Status::ABORT_REQUESTED => taken_back.push(n),
            other => panic!("write {n}: {other}"),
        }
    }
    taken_back.sort_unstable();
    assert_eq!(taken_back, [0, 6, 11]);
    // What was taken back is not there, all else is.
    let disk = std::fs::read(sandbox.path().join("disk")).unwrap();
    for (block, bytes) in (0..12).zip(disk.chunks(LEN)) {
        let is_there = bytes == pattern(block, 1, LEN);
        assert_eq!(is_there, ![0, 6, 11].contains(&block), "block {block}");
        assert!(is_there || bytes.iter().all(|byte| *byte == 0), "block {block}");
    }
    // The buffers are back: as many writes as there are again.
    for block in 0..12 {
        write(&mut queue, block);
    }
    for _ in 0..12 {
        assert!(queue.wait().unwrap().completion.cqe.status().is_success());
    }
    drop((host, queue));
    target.end();
}

#[test]
fn event_requests_are_taken_back() {
    let sandbox = Sandbox::new(Mode::Plain);
    let target = Target::quick(&sandbox, &["--memory", "1MiB"]);
    let mut host = Host::connect(&target.way()).unwrap();
    let request = Sqe::new(opcode::admin::ASYNC_EVENT, 0);
    let event = host.admin.submit(&request, Transfer::None, Vec::new()).unwrap();
    let cid = host.admin.cid(event).unwrap();
    let mut sqe = Sqe::new(opcode::admin::ABORT, 0);
    sqe.cdw10 = (u32::from(cid) << 16).into();
    host.admin.submit(&sqe, Transfer::None, Vec::new()).unwrap();
    // The command that is aborted ends first (Base 5.1).
    let ended = [host.admin.wait().unwrap(), host.admin.wait().unwrap()];
    assert_eq!(ended[0].command, event);
    let cqes = ended.map(|ended| ended.completion.cqe);
    assert_eq!(cqes[0].status(), Status::ABORT_REQUESTED);
    assert_eq!((cqes[1].status(), cqes[1].result.get()), (Status::SUCCESS, 0));
    drop(host);
    target.end();
}
