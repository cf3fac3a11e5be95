//! Reads and writes.

use std::collections::HashMap;
use std::io;

use clap::Args;
use serde_json::json;
use shunt_functional::nvme::{Disk, Ended, Host, Queue, pattern};
use shunt_nvme::host::Transfer;
use shunt_nvme::transport::Command;
use shunt_nvme::wire::opcode::io as op;
use shunt_nvme::wire::{Fuse, Sqe, Status};
use xxhash_rust::xxh3::Xxh3;

use super::Place;

/// A read or write of these blocks.
fn command(opcode: u8, disk: &Disk, first: u64, blocks: u64) -> Sqe {
    let mut sqe = Sqe::new(opcode, disk.nsid);
    sqe.set_cdw10_64(first);
    sqe.cdw12 = u32::try_from(blocks - 1).expect("a length").into();
    sqe
}

fn len_of(data: &[u8]) -> u32 {
    u32::try_from(data.len()).expect("a length")
}

fn succeeded(ended: &Ended) -> io::Result<()> {
    let status = ended.completion.cqe.status();
    if status.is_success() && !ended.completion.damaged {
        return Ok(());
    }
    Err(io::Error::other(format!("{status}, damaged: {}", ended.completion.damaged)))
}

/// `verify`.
#[derive(Args)]
pub struct Verify {
    #[command(flatten)]
    place: Place,
    /// Commands.
    #[arg(long, default_value_t = 500)]
    commands: u64,
    /// The longest, in bytes.
    #[arg(long, default_value_t = 1 << 20)]
    longest: u64,
    /// Writes of up to so many bytes carry them in the capsule.
    #[arg(long, default_value_t = 8192)]
    in_capsule: u32,
    /// Of the choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// A command under way: which blocks, and which round of them; `None`: a read.
struct Under {
    first: u64,
    blocks: u64,
    rounds: Vec<u64>,
    is_read: bool,
}

impl Verify {
    pub fn run(&self, host: &mut Host, depth: u16) -> io::Result<()> {
        let disk = host.disk(self.place.nsid)?;
        let mut queue = host.queue()?;
        let mut random = fastrand::Rng::with_seed(self.seed);
        let mut rounds: HashMap<u64, u64> = HashMap::new();
        let mut busy: HashMap<Command, Under> = HashMap::new();
        let (mut written, mut read) = (Xxh3::new(), Xxh3::new());
        let (mut bytes, mut begun) = (0, 0);
        while begun < self.commands || !busy.is_empty() {
            while begun < self.commands && busy.len() < usize::from(depth) {
                let longest = (self.longest / u64::from(disk.block)).clamp(1, disk.blocks);
                // Short ones are as likely as long ones.
                let order = random.u32(0..=longest.ilog2());
                let blocks = random.u64(1..=1 << order).min(longest);
                let first = random.u64(0..=disk.blocks - blocks);
                let overlaps = |under: &Under| {
                    under.first < first + blocks && first < under.first + under.blocks
                };
                if busy.values().any(overlaps) {
                    break;
                }
                begun += 1;
                bytes += blocks * u64::from(disk.block);
                let is_read = random.bool();
                let round = |block: &u64| rounds.get(block).copied().unwrap_or(0);
                let mut of: Vec<_> = (first..first + blocks).map(|block| round(&block)).collect();
                let len = usize::try_from(blocks * u64::from(disk.block)).expect("a length");
                let submitted = if is_read {
                    let sqe = command(op::READ, &disk, first, blocks);
                    queue.submit(
                        &sqe,
                        Transfer::ToHost(u32::try_from(len).expect("a length")),
                        vec![0xee; len],
                    )?
                } else {
                    of.iter_mut().for_each(|round| *round += 1);
                    let data = content(&disk, first, &of);
                    written.update(&data);
                    let transfer = if len_of(&data) <= self.in_capsule {
                        Transfer::InCapsule(len_of(&data))
                    } else {
                        Transfer::ToController(len_of(&data))
                    };
                    rounds.extend((first..).zip(of.iter().copied()));
                    queue.submit(&command(op::WRITE, &disk, first, blocks), transfer, data)?
                };
                busy.insert(submitted, Under { first, blocks, rounds: of, is_read });
            }
            let ended = queue.wait()?;
            succeeded(&ended)?;
            let under = busy.remove(&ended.command).expect("a command under way");
            if under.is_read {
                compare(&disk, &under, &ended.data)?;
            }
        }
        // All that was ever written, once more.
        let mut blocks: Vec<_> = rounds.into_iter().collect();
        blocks.sort_unstable();
        for (block, round) in &blocks {
            let len = disk.block as usize;
            let sqe = command(op::READ, &disk, *block, 1);
            let ended = queue.run(&sqe, Transfer::ToHost(disk.block), vec![0xee; len])?;
            succeeded(&ended)?;
            read.update(&ended.data);
            let under = Under { first: *block, blocks: 1, rounds: vec![*round], is_read: true };
            compare(&disk, &under, &ended.data)?;
        }
        let mut expected = Xxh3::new();
        for (block, round) in &blocks {
            expected.update(&content(&disk, *block, &[*round]));
        }
        if expected.digest() != read.digest() {
            return Err(io::Error::other("the hash of what was read is another one"));
        }
        let (written, read) =
            (format!("{:016x}", written.digest()), format!("{:016x}", read.digest()));
        println!(
            "{}",
            json!({ "commands": begun, "bytes": bytes, "written": written, "read": read })
        );
        Ok(())
    }
}

/// What blocks hold after so many rounds each; blocks that were never written are zero.
fn content(disk: &Disk, first: u64, rounds: &[u64]) -> Vec<u8> {
    let len = disk.block as usize;
    let block = |(block, round): (u64, &u64)| match round {
        0 => vec![0; len],
        round => pattern(block, *round, len),
    };
    (first..).zip(rounds).flat_map(block).collect()
}

fn compare(disk: &Disk, under: &Under, data: &[u8]) -> io::Result<()> {
    let expected = content(disk, under.first, &under.rounds);
    match data.iter().zip(&expected).position(|(a, b)| a != b) {
        None if data.len() == expected.len() => Ok(()),
        at => Err(io::Error::other(format!(
            "blocks {} to {}: {at:?} of {} bytes is the first that differs",
            under.first,
            under.first + under.blocks,
            data.len()
        ))),
    }
}

/// `fill`.
#[derive(Args)]
pub struct Fill {
    #[command(flatten)]
    place: Place,
    /// Bytes of a write.
    #[arg(long, default_value_t = 4096)]
    length: u64,
    /// Flush after so many writes.
    #[arg(long, default_value_t = 64)]
    flush_every: u64,
    /// Begin again at the first block until the connection ends.
    #[arg(long)]
    endless: bool,
}

impl Fill {
    pub fn run(&self, host: &mut Host, depth: u16) -> io::Result<()> {
        let disk = host.disk(self.place.nsid)?;
        let mut queue = host.queue()?;
        let blocks = self.length / u64::from(disk.block);
        let mut state = Filled::default();
        println!("{}", json!({ "filling": true }));
        let ended = self.fill(&disk, &mut queue, (blocks, depth), &mut state);
        let why = ended.err().map_or_else(|| "done".to_owned(), |e| e.kind().to_string());
        println!(
            "{}",
            json!({ "acknowledged": state.acknowledged, "durable": state.durable, "ended": why })
        );
        Ok(())
    }

    fn fill(
        &self,
        disk: &Disk,
        queue: &mut Queue,
        (blocks, depth): (u64, u16),
        state: &mut Filled,
    ) -> io::Result<()> {
        let mut busy: HashMap<Command, u64> = HashMap::new();
        let writes = disk.blocks / blocks;
        let mut next = 0;
        let mut since = 0;
        loop {
            if next == writes && self.endless {
                next = 0;
            }
            while next < writes && since < self.flush_every && busy.len() < usize::from(depth) {
                let first = next * blocks;
                let data: Vec<u8> = (first..first + blocks)
                    .flat_map(|block| pattern(block, 1, disk.block as usize))
                    .collect();
                let transfer = Transfer::ToController(len_of(&data));
                let sqe = command(op::WRITE, disk, first, blocks);
                busy.insert(queue.submit(&sqe, transfer, data)?, next);
                next += 1;
                since += 1;
            }
            if busy.is_empty() {
                let flush = Sqe::new(op::FLUSH, disk.nsid);
                succeeded(&queue.run(&flush, Transfer::None, Vec::new())?)?;
                state.durable = state.acknowledged.len();
                since = 0;
                if next == writes && !self.endless {
                    return Ok(());
                }
                continue;
            }
            let ended = queue.wait()?;
            let status = ended.completion.cqe.status();
            if status != Status::SUCCESS {
                return Err(io::Error::other(status.to_string()));
            }
            if let Some(write) = busy.remove(&ended.command) {
                state.acknowledged.push(write);
            }
        }
    }
}

#[derive(Default)]
struct Filled {
    acknowledged: Vec<u64>,
    /// So many of them, from the first on, were flushed.
    durable: usize,
}

/// `exchange`: a comparison that fails, and one that does not.
pub fn exchange(host: &mut Host) -> io::Result<()> {
    let disk = host.disk(1)?;
    let mut queue = host.queue()?;
    let len = disk.block as usize;
    let mut outcomes = Vec::new();
    for (expected, data) in [(1, 1), (0, 1), (0, 2), (1, 2)] {
        let mut compare = command(op::COMPARE, &disk, 3, 1);
        compare.set_fuse(Fuse::First);
        let mut write = command(op::WRITE, &disk, 3, 1);
        write.set_fuse(Fuse::Second);
        let transfer = Transfer::ToController(disk.block);
        let first =
            queue.submit(&compare, transfer, content(&disk, 3, &[expected])[..len].to_vec())?;
        queue.submit(&write, transfer, content(&disk, 3, &[data]))?;
        let mut both = [Status::SUCCESS; 2];
        for _ in 0..2 {
            let ended = queue.wait()?;
            both[usize::from(ended.command != first)] = ended.completion.cqe.status();
        }
        outcomes.push(both.map(|status| format!("{:03x}", status.code())));
    }
    println!("{}", json!({ "outcomes": outcomes }));
    Ok(())
}
