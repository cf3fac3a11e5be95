//! `shunt nvme read`, `shunt nvme write`.

use std::collections::BTreeMap;

use shunt_nvme_host::{Buffer, Buffers, Completion, Data, Namespace, Queue, Request, Subsystem};
use shunt_sys::stdio;

use super::way::{blocks, connect, namespace, text};
use crate::cli::nvme::{Read, Write};
use crate::output::complain;

/// Bytes of a command, at most.
const MOST: u32 = 256 << 10;
/// Commands at once.
const DEPTH: usize = 16;

/// Runs `shunt nvme read`.
pub fn read(args: &Read) -> u8 {
    done(connect(&args.way).and_then(|subsystem| {
        let read = copy_out(&subsystem, args);
        subsystem.close();
        read
    }))
}

/// Runs `shunt nvme write`.
pub fn write(args: &Write) -> u8 {
    done(connect(&args.way).and_then(|subsystem| {
        let written = copy_in(&subsystem, args);
        subsystem.close();
        written
    }))
}

fn done(went: Result<(), String>) -> u8 {
    match went {
        Ok(()) => 0,
        Err(why) => {
            complain(&why);
            1
        }
    }
}

/// A disk, a queue, and buffers for its commands.
struct Copier {
    disk: Namespace,
    queue: Queue,
    buffers: Buffers,
    /// Bytes of a command.
    size: u32,
    over: Vec<Completion>,
}

impl Copier {
    fn new(subsystem: &Subsystem, nsid: u32) -> Result<Self, String> {
        let disk = namespace(subsystem, nsid)?;
        let queue = subsystem.queue().map_err(text)?;
        let most = MOST.min(subsystem.max_transfer()).max(disk.block_size);
        let size = most / disk.block_size * disk.block_size;
        let buffers = Buffers::new(DEPTH, size as usize).map_err(text)?;
        Ok(Self { disk, queue, buffers, size, over: Vec::new() })
    }

    fn submit(&mut self, request: Request, data: Data, start: u64) -> Result<(), String> {
        self.queue.submit(request, data, start).map_err(text)
    }

    /// The next command that is over, and has succeeded.
    fn next(&mut self) -> Result<Completion, String> {
        while self.over.is_empty() {
            self.queue.poll(&mut self.over, None).map_err(text)?;
        }
        let over = self.over.swap_remove(0);
        match over.result {
            Ok(_) => Ok(over),
            Err(e) => Err(format!("block {}: {e}", over.token)),
        }
    }

    /// A buffer, once one is free.
    fn buffer(&mut self) -> Result<Buffer, String> {
        loop {
            if let Some(buffer) = self.buffers.take() {
                return Ok(buffer);
            }
            drop(self.next()?);
        }
    }

    /// Blocks of a number of bytes, which a command has.
    fn blocks(&self, bytes: usize) -> u32 {
        u32::try_from(bytes).unwrap_or(self.size) / self.disk.block_size
    }
}

fn copy_out(subsystem: &Subsystem, args: &Read) -> Result<(), String> {
    let mut copier = Copier::new(subsystem, args.namespace)?;
    let disk = copier.disk.clone();
    let first = blocks("an offset", args.offset, &disk)?;
    let length = args.length.unwrap_or(disk.len().saturating_sub(args.offset));
    let end = first.saturating_add(blocks("a length", length, &disk)?);
    if end > disk.blocks {
        return Err(format!("the namespace ends at byte {}", disk.len()));
    }
    let step = u64::from(copier.blocks(copier.size as usize));
    let (mut next, mut printed) = (first, first);
    // Those that came before their turn.
    let mut early: BTreeMap<u64, Data> = BTreeMap::new();
    while printed < end {
        while next < end
            && let Some(buffer) = copier.buffers.take()
        {
            let count = u32::try_from(step.min(end - next)).unwrap_or(1);
            copier.submit(disk.read(next, count), buffer.into(), next)?;
            next += u64::from(count);
        }
        let over = copier.next()?;
        early.insert(over.token, over.data);
        while let Some(data) = early.remove(&printed) {
            let count = step.min(end - printed);
            let len = usize::try_from(count * u64::from(disk.block_size)).unwrap_or(0);
            stdio::put(&data.bytes()[..len]).map_err(text)?;
            printed += count;
        }
    }
    Ok(())
}

fn copy_in(subsystem: &Subsystem, args: &Write) -> Result<(), String> {
    let mut copier = Copier::new(subsystem, args.namespace)?;
    let disk = copier.disk.clone();
    let mut at = blocks("an offset", args.offset, &disk)?;
    let mut input = std::io::stdin().lock();
    loop {
        let mut buffer = copier.buffer()?;
        let len = fill(&mut input, &mut buffer)?;
        if len == 0 {
            break;
        }
        blocks("a rest of the input", len as u64, &disk)?;
        let count = copier.blocks(len);
        if at + u64::from(count) > disk.blocks {
            return Err(format!("the namespace ends at byte {}", disk.len()));
        }
        copier.submit(disk.write(at, count), buffer.into(), at)?;
        at += u64::from(count);
    }
    while copier.queue.outstanding() > 0 || !copier.over.is_empty() {
        copier.next()?;
    }
    copier.submit(disk.flush(), Data::None, 0)?;
    copier.next()?;
    Ok(())
}

/// Reads as much as there is room for, or is left.
fn fill(input: &mut impl std::io::Read, room: &mut [u8]) -> Result<usize, String> {
    let mut len = 0;
    while len < room.len() {
        match input.read(&mut room[len..]) {
            Ok(0) => break,
            Ok(n) => len += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(format!("standard input: {e}")),
        }
    }
    Ok(len)
}
