//! The host of this project, as a library.

use std::io::PipeWriter;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use shunt_functional::binaries::built;
use shunt_functional::mode::Mode;
use shunt_functional::net::free_port;
use shunt_functional::nvme::pattern;
use shunt_functional::sandbox::{Expect, Process, Sandbox};
use shunt_nvme::wire::opcode::io;
use shunt_nvme::wire::{Fuse, Nqn, Sqe, Status};
use shunt_nvme_host::{
    Buffers, Completion, Data, Failure, Identity, Namespace, Options, Queue, Range, Request,
    Subsystem,
};

use crate::proxy::Proxy;
use crate::{QUICK, Target, configure, lines, target};

/// Ends of an Admin Queue and of three I/O queues.
const ENDS: u64 = 8;

/// How to reach targets.
fn options(targets: &[&Target]) -> Options {
    let addresses = targets.iter().map(|target| target.way().to).collect();
    let mut options = Options::new(addresses, Nqn::new(QUICK).unwrap());
    options.identity = Identity::named("nqn.2024-01.org.shunt:test-host").unwrap();
    options
}

/// Waits for the next command that is over.
fn next(queue: &mut Queue) -> Completion {
    let mut done = Vec::new();
    queue.poll(&mut done, Some(Duration::from_secs(60))).unwrap();
    assert_eq!(done.len(), 1, "{done:?}");
    done.remove(0)
}

/// Does one command.
fn run(queue: &mut Queue, request: Request, data: Data) -> Completion {
    queue.submit(request, data, 7).unwrap();
    let done = next(queue);
    assert_eq!(done.token, 7);
    done
}

#[test]
fn every_command_does_what_it_says() {
    let sandbox = Sandbox::new(Mode::Plain);
    let target = Target::quick(&sandbox, &["--memory", "8MiB"]);
    for digests in [false, true] {
        let mut options = options(&[&target]);
        (options.header_digest, options.data_digest) = (digests, digests);
        let subsystem = Subsystem::connect(options).unwrap();
        let disk = subsystem.namespace(1).unwrap();
        assert_eq!((disk.blocks, disk.block_size), (2048, 4096));
        let mut queue = subsystem.queue().unwrap();
        let buffers = Buffers::new(2, 1 << 20).unwrap();
        // In a capsule, and by R2T.
        for (start, blocks) in [(3, 1), (100, 200)] {
            let len = blocks as usize * 4096;
            let bytes = pattern(start, u64::from(digests), len);
            let mut buffer = buffers.take().unwrap();
            buffer[..len].copy_from_slice(&bytes);
            let write = run(&mut queue, disk.write(start, blocks).durable(), buffer.into());
            assert_eq!(write.result, Ok(0));
            let read = run(&mut queue, disk.read(start, blocks), buffers.take().unwrap().into());
            assert!(read.result == Ok(0) && read.data.bytes()[..len] == bytes);
            let same = run(&mut queue, disk.compare(start, blocks), bytes.clone().into());
            assert_eq!(same.result, Ok(0));
            let other = run(&mut queue, disk.compare(start, blocks), vec![1; len].into());
            let Err(Failure::Status(status)) = other.result else { panic!("{other:?}") };
            assert_eq!(status.code(), Status::COMPARE_FAILURE.code());
        }
        assert_eq!(run(&mut queue, disk.flush(), Data::None).result, Ok(0));
        assert_eq!(run(&mut queue, disk.write_zeroes(3, 1, false), Data::None).result, Ok(0));
        let (discard, ranges) = disk.discard(&[Range { start: 100, blocks: 200 }]);
        assert_eq!(run(&mut queue, discard, ranges).result, Ok(0));
        for (start, blocks) in [(3, 1), (100, 200)] {
            let room = vec![9; blocks as usize * 4096];
            let read = run(&mut queue, disk.read(start, blocks), room.into());
            assert!(read.data.bytes().iter().all(|byte| *byte == 0), "{start}");
        }
        let beyond = run(&mut queue, disk.read(2047, 2), vec![0; 8192].into());
        let Err(Failure::Status(status)) = beyond.result else { panic!("{beyond:?}") };
        assert_eq!(status.code(), Status::LBA_OUT_OF_RANGE.code());
        // The next queue has the number of the one that went.
        for _ in 0..20 {
            drop(queue);
            queue = subsystem.queue().unwrap();
            assert_eq!(run(&mut queue, disk.flush(), Data::None).result, Ok(0));
        }
        drop(queue);
        subsystem.close();
    }
    target.end();
}

/// Two queues count in one block, on a path that is lost now and then: no step is lost, and none is done twice.
#[test]
fn compare_and_write_counts() {
    for store in [&["--memory", "1MiB"][..], &["--file", "disk", "--size", "1MiB"]] {
        let sandbox = Sandbox::new(Mode::Plain);
        let target = Target::quick(&sandbox, store);
        let mut proxy = Proxy::start(target.port);
        let mut options = options(&[&target]);
        options.addresses = vec![([127, 0, 0, 1], proxy.port).into()];
        options.depth = 3;
        let subsystem = Subsystem::connect(options).unwrap();
        let disk = subsystem.namespace(1).unwrap();
        let block = |count: u64| {
            let mut bytes = vec![0; 4096];
            bytes[..8].copy_from_slice(&count.to_le_bytes());
            Data::from(bytes)
        };
        // How often it was counted for sure, and how often perhaps.
        let counter = |queue: &mut Queue, steps: u32| {
            let (mut sure, mut perhaps, mut known) = (0u64, 0u64, 0);
            while sure < u64::from(steps) {
                let read = run(queue, disk.read(5, 1), vec![0; 4096].into());
                assert_eq!(read.result, Ok(0));
                let before = u64::from_le_bytes(read.data.bytes()[..8].try_into().unwrap());
                assert!(before >= known, "{before} after {known}");
                known = before;
                let (compare, write) = (disk.compare(5, 1), disk.write(5, 1));
                let pair = queue
                    .compare_and_write((compare, block(before), 1), (write, block(before + 1), 2));
                pair.unwrap();
                let mut done = Vec::new();
                while done.len() < 2 {
                    queue.poll(&mut done, Some(Duration::from_secs(60))).unwrap();
                }
                done.sort_by_key(|over| over.token);
                match (done[0].result, done[1].result) {
                    (Ok(_), Ok(_)) => sure += 1,
                    (Err(Failure::Status(first)), Err(Failure::Status(second))) => {
                        assert_eq!(first.code(), Status::COMPARE_FAILURE.code());
                        assert_eq!(second.code(), Status::FUSED_FAILED.code());
                    }
                    (_, Err(Failure::Lost)) => perhaps += 1,
                    other => panic!("{other:?}"),
                }
            }
            (sure, perhaps)
        };
        let (mut one, mut two) = (subsystem.queue().unwrap(), subsystem.queue().unwrap());
        let (sure, perhaps) = std::thread::scope(|scope| {
            let threads =
                [scope.spawn(|| counter(&mut one, 400)), scope.spawn(|| counter(&mut two, 400))];
            let port = proxy.port;
            for _ in 0..3 {
                proxy.cut();
                std::thread::sleep(Duration::from_millis(200));
                proxy = Proxy::start_at(target.port, port);
                std::thread::sleep(Duration::from_millis(50));
            }
            let shares = threads.map(|thread| thread.join().unwrap());
            shares.iter().fold((0, 0), |all, share| (all.0 + share.0, all.1 + share.1))
        });
        let read = run(&mut one, disk.read(5, 1), vec![0; 4096].into());
        let counted = u64::from_le_bytes(read.data.bytes()[..8].try_into().unwrap());
        assert!((sure..=sure + perhaps).contains(&counted), "{counted}: {sure} and {perhaps}");
        // With one place left there is none for both.
        for n in 0..2 {
            one.submit(disk.flush(), Data::None, n).unwrap();
        }
        let pair = one
            .compare_and_write((disk.compare(5, 1), block(0), 1), (disk.write(5, 1), block(1), 2));
        assert_eq!(pair.unwrap_err().why, shunt_nvme_host::Refusal::Full);
        drop((one, two));
        subsystem.close();
        target.end();
    }
}

/// Several operations of a queue, whose data the target asks for: each is done, or fails, by itself. A half without the other
/// one harms none of them.
#[test]
fn fused_operations_in_a_row() {
    let sandbox = Sandbox::new(Mode::Plain);
    let target = Target::quick(&sandbox, &["--memory", "8MiB"]);
    let subsystem = Subsystem::connect(options(&[&target])).unwrap();
    let disk = subsystem.namespace(1).unwrap();
    let mut queue = subsystem.queue().unwrap();
    let data = |byte: u8| Data::from(vec![byte; 16 * 4096]);
    let half = |opcode, start, fuse| {
        let mut sqe = Sqe::new(opcode, 1);
        sqe.set_cdw10_64(start);
        sqe.cdw12 = 15.into();
        sqe.set_fuse(fuse);
        Request::of(sqe, 16 * 4096, disk.ana_group)
    };
    // Halves alone are sent where there is a connection at once, and are lost otherwise.
    assert_eq!(run(&mut queue, disk.flush(), Data::None).result, Ok(0));
    for n in 0..4 {
        let (start, expected) = (n * 16, if n == 2 { 9 } else { 0 });
        let compare = (disk.compare(start, 16), data(expected), 2 * n);
        queue.compare_and_write(compare, (disk.write(start, 16), data(1), 2 * n + 1)).unwrap();
    }
    queue.submit(half(io::WRITE, 0, Fuse::Second), data(2), 8).unwrap();
    queue.submit(half(io::COMPARE, 0, Fuse::First), data(1), 9).unwrap();
    queue.submit(disk.flush(), Data::None, 10).unwrap();
    // A Write that the target refuses leaves the Compare as it is.
    for (start, expected, token) in [(64, 0, 11), (80, 9, 13)] {
        let mut short = Sqe::new(io::WRITE, 1);
        short.set_cdw10_64(start);
        short.cdw12 = 15.into();
        short.set_fuse(Fuse::Second);
        let short = Request::of(short, 4096, disk.ana_group);
        queue.submit(half(io::COMPARE, start, Fuse::First), data(expected), token).unwrap();
        queue.submit(short, data(1), token + 1).unwrap();
    }
    let mut done = Vec::new();
    while done.len() < 15 {
        let before = done.len();
        queue.poll(&mut done, Some(Duration::from_secs(60))).unwrap();
        assert!(done.len() > before, "no answer but these: {done:?}");
    }
    done.sort_by_key(|over| over.token);
    let codes = done.iter().map(|over| match over.result {
        Ok(_) => 0,
        Err(Failure::Status(status)) => status.code(),
        ref other => panic!("{}: {other:?}", over.token),
    });
    let (differs, failed) = (Status::COMPARE_FAILURE.code(), Status::FUSED_FAILED.code());
    let missing = Status::FUSED_MISSING.code();
    let wrong = Status::SGL_INVALID_LENGTH.code();
    let expected =
        [0, 0, 0, 0, differs, failed, 0, 0, missing, missing, 0, 0, wrong, differs, wrong];
    assert_eq!(codes.collect::<Vec<_>>(), expected);
    for (start, byte) in [(0, 1), (16, 1), (32, 0), (48, 1), (64, 0), (80, 0)] {
        let read = run(&mut queue, disk.read(start, 16), data(7));
        assert!(read.data.bytes().iter().all(|is| *is == byte), "{start}");
    }
    drop(queue);
    subsystem.close();
    target.end();
}

/// A program that compares each byte of a disk that it writes and reads, on three queues.
fn verifier(sandbox: &Sandbox, ports: &[u16], args: &[&str]) -> Command {
    let mut command = sandbox.command(built("shunt-nvme-verify"));
    for port in ports {
        command.args(["--to", &format!("127.0.0.1:{port}")]);
    }
    command.args(["--threads", "3"]).args(args);
    command
}

#[test]
fn several_queues_keep_every_byte() {
    for mode in Mode::enabled() {
        for (store, args) in [
            (&["--memory", "64MiB"][..], &["--commands", "600"][..]),
            (&["--memory", "16MiB", "--block-size", "512"], &["--commands", "600", "--digests"]),
            (&["--file", "disk", "--size", "64MiB"], &["--commands", "300"]),
        ] {
            let sandbox = Sandbox::new(mode);
            let target = Target::quick(&sandbox, store);
            let before = mode.is_shunted().then(|| sandbox.stats());
            let seen = sandbox.expect(Expect::All(ENDS), || {
                lines(&sandbox.run(verifier(&sandbox, &[target.port], args))).pop().unwrap()
            });
            assert_eq!(seen["failures"], json!([]), "{mode} {args:?}");
            assert!(seen["blocks_kept"].as_u64().unwrap() > 100, "{seen}");
            target.end();
            // What is written from memory of `shunt_alloc` goes without a copy.
            if let Some(before) = before
                && mode == Mode::Attach
            {
                let granted = sandbox.stats().get("bytes_granted") - before.get("bytes_granted");
                assert!(granted > 1 << 20, "{granted} bytes granted, {args:?}");
            }
        }
    }
}

/// A verifier that goes on until it is told to end.
struct Endless {
    process: Process,
    input: PipeWriter,
}

impl Endless {
    fn start(sandbox: &Sandbox, ports: &[u16], args: &[&str]) -> Self {
        let (reader, input) = std::io::pipe().unwrap();
        let mut command = verifier(sandbox, ports, args);
        command.stdin(reader);
        let mut process = sandbox.spawn(command);
        process.wait_for_line(|line| line.contains("going").then_some(()));
        Self { process, input }
    }

    /// Its summary: it has read all that was acknowledged once more.
    fn end(self) -> Value {
        drop(self.input);
        lines(&self.process.wait().success()).pop().unwrap()
    }
}

/// A target at a port of the test's choice, over a file.
fn again(sandbox: &Sandbox, port: u16) -> Process {
    let mut command = target(sandbox);
    command.args(["--listen", &format!("127.0.0.1:{port}")]);
    command.args(["--file", "disk", "--size", "64MiB"]);
    sandbox.serve(command, port)
}

#[test]
fn a_target_that_is_killed_and_comes_back_loses_nothing() {
    for mode in Mode::enabled() {
        let sandbox = Sandbox::new(mode);
        let port = free_port();
        let mut serving = again(&sandbox, port);
        let mut verifier = Endless::start(&sandbox, &[port], &[]);
        for _ in 0..3 {
            serving.kill();
            drop(serving);
            serving = again(&sandbox, port);
            verifier.process.assert_running();
            std::thread::sleep(Duration::from_millis(300));
        }
        let seen = verifier.end();
        assert_eq!(seen["failures"], json!([]), "{mode}");
        assert!(seen["connects"][0].as_u64().unwrap() > 1, "{mode}: {seen}");
        assert!(seen["blocks_kept"].as_u64().unwrap() > 100, "{mode}: {seen}");
        serving.signal(libc::SIGTERM);
        let _ = serving.wait().success();
    }
}

#[test]
fn commands_take_another_path_when_theirs_is_lost() {
    let sandbox = Sandbox::new(Mode::Plain);
    let target = Target::quick(&sandbox, &["--memory", "64MiB"]);
    let mut first = Proxy::start(target.port);
    let mut second = Proxy::start(target.port);
    let ports = [first.port, second.port];
    let verifier = Endless::start(&sandbox, &ports, &[]);
    for _ in 0..3 {
        first.cut();
        std::thread::sleep(Duration::from_millis(200));
        first = Proxy::start_at(target.port, ports[0]);
        std::thread::sleep(Duration::from_millis(400));
        second.cut();
        std::thread::sleep(Duration::from_millis(200));
        second = Proxy::start_at(target.port, ports[1]);
        std::thread::sleep(Duration::from_millis(400));
    }
    let seen = verifier.end();
    assert_eq!(seen["failures"], json!([]), "{seen}");
    let connects = |n: usize| seen["connects"][n].as_u64().unwrap();
    assert!(connects(0) > 1 && connects(1) > 1, "{seen}");
    target.end();
}

/// The answer of a write is withheld, and that of its Abort is not.
#[test]
fn a_command_that_takes_too_long_is_aborted_and_then_given_up() {
    let sandbox = Sandbox::new(Mode::Plain);
    let target = Target::quick(&sandbox, &["--memory", "8MiB"]);
    let proxy = Proxy::start(target.port);
    let mut options = options(&[&target]);
    options.addresses = vec![([127, 0, 0, 1], proxy.port).into()];
    options.command_timeout = Duration::from_millis(200);
    let subsystem = Subsystem::connect(options).unwrap();
    let disk = subsystem.namespace(1).unwrap();
    let mut queue = subsystem.queue().unwrap();
    assert_eq!(run(&mut queue, disk.write(0, 1), vec![1; 4096].into()).result, Ok(0));
    // The second connection is that of the I/O queue.
    proxy.withhold(1);
    let late = run(&mut queue, disk.write(0, 1), vec![2; 4096].into());
    assert_eq!((late.result, late.data.len()), (Err(Failure::TimedOut), 4096));
    // It may have been executed, and here it was. The queue has another connection now.
    let read = run(&mut queue, disk.read(0, 1), vec![0; 4096].into());
    assert!(read.result == Ok(0) && read.data.bytes() == [2; 4096]);
    assert_eq!(subsystem.paths()[0].connects, 2);
    drop(queue);
    subsystem.close();
    target.end();
}

#[test]
fn keys_are_proved_on_every_queue() {
    const KEY: &str = "DHHC-1:00:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAACtVQoZ:";
    let sandbox = Sandbox::new(Mode::Plain);
    let name = "nqn.2024-01.org.shunt:test-host";
    let text = format!(
        "[[subsystem]]\nnqn = \"{QUICK}\"\nhosts = [{{ nqn = \"{name}\", key = \"{KEY}\" }}]\n\
         [[subsystem.namespace]]\nstore = \"memory\"\nsize = \"1MiB\"\n"
    );
    let target = Target::configured(&sandbox, &text);
    let refused = Subsystem::connect(options(&[&target])).unwrap_err().to_string();
    assert!(refused.contains("give the key"), "{refused}");
    let mut good = options(&[&target]);
    good.identity.key = Some(shunt_nvme::auth::Secret::new(KEY).unwrap());
    let subsystem = Subsystem::connect(good).unwrap();
    let disk = subsystem.namespace(1).unwrap();
    let mut queue = subsystem.queue().unwrap();
    assert_eq!(run(&mut queue, disk.flush(), Data::None).result, Ok(0));
    drop(queue);
    subsystem.close();
    target.end();
}

/// A reload changes the disk: the host is told, and needs no other word.
#[test]
fn changes_are_noticed() {
    let sandbox = Sandbox::new(Mode::Plain);
    let subsystem = format!("[[subsystem]]\nnqn = \"{QUICK}\"\nhosts = \"any\"\n");
    let disk =
        |size: &str| format!("[[subsystem.namespace]]\nstore = \"null\"\nsize = \"{size}\"\n");
    let target = Target::configured(&sandbox, &(subsystem.clone() + &disk("1MiB")));
    let host = Subsystem::connect(options(&[&target])).unwrap();
    assert_eq!(host.namespaces().len(), 1);
    let more = subsystem + &disk("2MiB") + &disk("4MiB");
    configure(&sandbox, target.port, &more);
    target.process.signal(libc::SIGHUP);
    let sizes = || host.namespaces().iter().map(Namespace::len).collect::<Vec<_>>();
    shunt_functional::waiting::settles("the disks", &vec![2 << 20, 4 << 20], sizes);
    host.close();
    target.end();
}
