//! What the blocks of one thread hold.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use fastrand::Rng;
use shunt_functional::nvme::pattern;
use shunt_nvme_host::{Buffers, Completion, Data, Namespace, Queue, Request};

/// Blocks that were zeroed.
const ZEROED: u64 = u64::MAX;

/// What a block holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holds {
    /// Nothing that is known.
    Unknown,
    /// What was written in this round.
    Written(u64),
    /// A command is about it.
    Busy,
}

/// What was done.
#[derive(Clone, Default)]
pub struct Counts {
    pub reads: u64,
    pub writes: u64,
    /// Blocks that were found as they had been acknowledged, at the end.
    pub kept: u64,
    pub failures: Vec<String>,
}

/// A command under way.
enum Doing {
    /// A round of `ZEROED` zeroes.
    Write(usize, usize, u64),
    /// What was there.
    Read(usize, Vec<u64>),
    Flush,
}

/// See the module's description.
pub struct Model {
    queue: Queue,
    disk: Namespace,
    /// Its first block on the disk.
    first: u64,
    blocks: Vec<Holds>,
    /// Of how many blocks a command is at most.
    longest: usize,
    buffers: Buffers,
    random: Rng,
    doing: HashMap<u64, Doing>,
    next: u64,
    depth: usize,
    pub counts: Counts,
}

impl Model {
    pub fn new(
        queue: Queue,
        disk: Namespace,
        (first, count): (u64, u64),
        (depth, longest): (u16, u32),
        seed: u64,
    ) -> Result<Self, String> {
        let depth = usize::from(depth);
        let buffers = Buffers::new(depth, longest as usize).map_err(|e| e.to_string())?;
        let (longest, count) = (
            (longest / disk.block_size) as usize,
            usize::try_from(count).map_err(|e| e.to_string())?,
        );
        Ok(Self {
            queue,
            disk,
            first,
            blocks: vec![Holds::Unknown; count],
            longest,
            buffers,
            random: Rng::with_seed(seed),
            doing: HashMap::new(),
            next: 1,
            depth,
            counts: Counts::default(),
        })
    }

    /// Goes on for so many commands, or until it is told to end. `going` is called when some were acknowledged.
    pub fn run(
        &mut self,
        commands: Option<u64>,
        ends: &AtomicBool,
        going: impl FnOnce(),
    ) -> Result<(), String> {
        let mut going = Some(going);
        let mut done = Vec::new();
        loop {
            let is_over = commands.map_or_else(|| ends.load(Ordering::Relaxed), |n| self.next > n);
            while !is_over && self.doing.len() < self.depth {
                self.begin()?;
            }
            if self.doing.is_empty() {
                break;
            }
            self.poll(&mut done)?;
            if self.counts.writes >= 100
                && let Some(going) = going.take()
            {
                going();
            }
        }
        self.look_again(&mut done)
    }

    fn poll(&mut self, done: &mut Vec<Completion>) -> Result<(), String> {
        self.queue.poll(done, None).map_err(|e| e.to_string())?;
        done.drain(..).try_for_each(|over| self.end(&over))
    }

    /// Memory for a command: now and then such that is never granted.
    fn memory(&mut self, len: usize) -> Data {
        let buffer = self.buffers.take().filter(|_| self.random.u8(..) < 200);
        buffer.map_or_else(|| vec![0; len].into(), Data::from)
    }

    fn submit(&mut self, request: Request, data: Data, doing: Doing) -> Result<(), String> {
        self.doing.insert(self.next, doing);
        let taken = self.queue.submit(request, data, self.next);
        self.next += 1;
        taken.map_err(|e| e.to_string())
    }

    fn begin(&mut self) -> Result<(), String> {
        let size = self.disk.block_size as usize;
        let at = self.random.usize(..self.blocks.len());
        let most = 1 + self.random.usize(..self.longest);
        let is_read = self.random.bool() && matches!(self.blocks[at], Holds::Written(_));
        let fits = |holds: &Holds| match holds {
            Holds::Busy => false,
            Holds::Written(_) => true,
            Holds::Unknown => !is_read,
        };
        let count = self.blocks[at..].iter().take(most).take_while(|holds| fits(holds)).count();
        if count == 0 {
            return self.submit(self.disk.flush(), Data::None, Doing::Flush);
        }
        let held: Vec<_> = self.blocks[at..at + count]
            .iter_mut()
            .map(|holds| match std::mem::replace(holds, Holds::Busy) {
                Holds::Written(round) => round,
                _ => 0,
            })
            .collect();
        let (start, blocks) = (self.first + at as u64, u32::try_from(count).unwrap_or(u32::MAX));
        if is_read {
            let data = self.memory(count * size);
            return self.submit(self.disk.read(start, blocks), data, Doing::Read(at, held));
        }
        if self.random.u8(..) < 10 {
            let request = self.disk.write_zeroes(start, blocks, self.random.bool());
            return self.submit(request, Data::None, Doing::Write(at, count, ZEROED));
        }
        let round = self.next;
        let mut data = self.memory(count * size);
        for (n, block) in data.bytes_mut().chunks_mut(size).take(count).enumerate() {
            block.copy_from_slice(&pattern(start + n as u64, round, size));
        }
        self.submit(self.disk.write(start, blocks), data, Doing::Write(at, count, round))
    }

    fn end(&mut self, over: &Completion) -> Result<(), String> {
        let doing = self.doing.remove(&over.token).ok_or("a token that was not given")?;
        let failure = over.result.as_ref().err().map(ToString::to_string);
        match doing {
            Doing::Flush => {}
            Doing::Write(at, count, round) => {
                let holds = if failure.is_none() { Holds::Written(round) } else { Holds::Unknown };
                self.blocks[at..at + count].fill(holds);
                self.counts.writes += u64::from(failure.is_none());
            }
            Doing::Read(at, held) => {
                if failure.is_none() {
                    self.compare(at, &held, over.data.bytes())?;
                    self.counts.reads += 1;
                }
                for (holds, round) in self.blocks[at..].iter_mut().zip(held) {
                    *holds = Holds::Written(round);
                }
            }
        }
        self.counts.failures.extend(failure);
        Ok(())
    }

    fn compare(&self, at: usize, held: &[u64], bytes: &[u8]) -> Result<(), String> {
        let size = self.disk.block_size as usize;
        for (n, (round, found)) in held.iter().zip(bytes.chunks(size)).enumerate() {
            let block = self.first + (at + n) as u64;
            let is_right = if *round == ZEROED {
                found.iter().all(|byte| *byte == 0)
            } else {
                found == pattern(block, *round, size)
            };
            if !is_right {
                return Err(format!("block {block} is not that of round {round}"));
            }
        }
        Ok(())
    }

    /// Reads all blocks that are known.
    fn look_again(&mut self, done: &mut Vec<Completion>) -> Result<(), String> {
        let size = self.disk.block_size as usize;
        for at in 0..self.blocks.len() {
            let Holds::Written(round) = self.blocks[at] else { continue };
            while self.doing.len() >= self.depth {
                self.poll(done)?;
            }
            let request = self.disk.read(self.first + at as u64, 1);
            self.submit(request, vec![0; size].into(), Doing::Read(at, vec![round]))?;
            self.counts.kept += 1;
        }
        while !self.doing.is_empty() {
            self.poll(done)?;
        }
        Ok(())
    }
}
