//! The host of this project, as a library.

use std::time::Duration;

use shunt_functional::mode::Mode;
use shunt_functional::nvme::pattern;
use shunt_functional::sandbox::Sandbox;
use shunt_nvme::wire::{Nqn, Status};
use shunt_nvme_host::{
    Buffers, Completion, Data, Failure, Identity, Options, Queue, Range, Request, Subsystem,
};

use crate::{QUICK, Target};

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
        drop(queue);
        subsystem.close();
    }
    target.end();
}
