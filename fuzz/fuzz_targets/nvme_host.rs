//! Any bytes that an NVMe controller sends to a host with commands in flight.
#![no_main]

use std::collections::HashMap;

use libfuzzer_sys::fuzz_target;
use shunt_nvme::host::{Config, Event, Fate, Queue, Transfer};
use shunt_nvme::transport::{Command, Next, Piece};
use shunt_nvme::wire::{IcResp, Sqe, digest};
use zerocopy::IntoBytes;

fn send(queue: &mut Queue, memory: &HashMap<Command, usize>) {
    let mut bytes = 0;
    for piece in queue.pieces() {
        if let Piece::Data(range) | Piece::Digest { range, .. } = piece {
            let end = u64::from(range.offset) + u64::from(range.len);
            assert!(end <= memory[&range.command] as u64, "memory is read beyond its end");
        }
        bytes += piece.len();
    }
    queue.sent(bytes);
}

fuzz_target!(|input: (u8, Vec<Vec<u8>>)| {
    let (digests, chunks) = input;
    let config = Config {
        header_digest: digests & 1 != 0,
        data_digest: digests & 2 != 0,
        depth: 4,
        ..Config::default()
    };
    let mut queue = Queue::new(config);
    let mut memory = HashMap::new();
    send(&mut queue, &memory);
    if digests & 4 == 0 {
        let taken = queue.header(IcResp::new(0, digests & 3, 4096).as_bytes());
        assert_eq!(taken, Ok(128));
    }
    for chunk in &chunks {
        for (opcode, transfer) in
            [(2, Transfer::ToHost(600)), (1, Transfer::ToController(9000)), (0, Transfer::None)]
        {
            if let Ok(command) = queue.submit(&Sqe::new(opcode, 1), transfer) {
                memory.insert(command, if opcode == 2 { 600 } else { 9000 });
            }
        }
        send(&mut queue, &memory);
        let mut rest = chunk.as_slice();
        while !rest.is_empty() {
            match queue.next() {
                Next::Header { .. } => match queue.header(rest) {
                    Ok(taken) => rest = &rest[taken..],
                    Err(_) => break,
                },
                Next::Data(range) => {
                    let end = u64::from(range.offset) + u64::from(range.len);
                    assert!(
                        end <= memory[&range.command] as u64,
                        "memory is written beyond its end"
                    );
                    let len = rest.len().min(range.len as usize);
                    let crc = Some(digest::crc32c(&rest[..len]));
                    if queue.data(len as u32, crc).is_err() {
                        break;
                    }
                    rest = &rest[len..];
                }
                Next::Discard { len } => {
                    let len = rest.len().min(len as usize);
                    if queue.data(len as u32, None).is_err() {
                        break;
                    }
                    rest = &rest[len..];
                }
                Next::Blocked => panic!("a host is never blocked"),
                Next::Closed => break,
            }
            while let Some(event) = queue.poll() {
                if let Event::Completed { command, .. } = event {
                    assert!(memory.remove(&command).is_some(), "a command ended twice");
                }
            }
        }
        send(&mut queue, &memory);
        while let Some(event) = queue.poll() {
            if let Event::Completed { command, .. } = event {
                assert!(memory.remove(&command).is_some(), "a command ended twice");
            }
        }
    }
    for (command, fate) in queue.lose() {
        assert!(memory.remove(&command).is_some());
        assert_ne!(fate, Fate::NeverSent);
    }
    assert!(memory.is_empty());
});
