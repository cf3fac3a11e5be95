//! A queue's commands: those that the program asks after, and those of calls that wait.

use std::collections::VecDeque;
use std::io;
use std::ptr::NonNull;
use std::time::Duration;

use libc::{c_int, c_void, iovec};
use shunt_nvme::wire::Status;
use shunt_nvme_host::{
    Completion as Over, Data, Namespace, Queue, Range, Request, Segment, Segments, Subsystem,
};

use crate::errors;
use crate::types::{self, Command, Completion, PIECES};

/// Blocks of a command: NLB has 16 bits.
pub const MOST_BLOCKS: u32 = 1 << 16;

/// Whose command it is.
#[derive(Clone, Copy)]
enum Owner {
    /// The program's, with its token.
    Program(u64),
    /// That of a call that waits.
    Call,
}

/// A part of what a call does.
#[derive(Clone, Copy)]
struct Part {
    start: u64,
    blocks: u32,
}

/// What a call compares and writes.
pub struct Exchange {
    pub nsid: u32,
    pub start: u64,
    pub blocks: u32,
    pub flags: u32,
    pub expected: *mut c_void,
    pub data: *mut c_void,
}

/// A queue as the program has it.
pub struct Commands {
    subsystem: Subsystem,
    /// `None` after an error that it does not recover from.
    queue: Option<Queue>,
    namespaces: Vec<Namespace>,
    version: u64,
    max_transfer: u32,
    /// By the host's tokens.
    owners: Vec<Option<Owner>>,
    free: Vec<usize>,
    /// Of the program's, those that are not over.
    under_way: usize,
    /// Over, and not asked after.
    ready: VecDeque<Completion>,
    /// Commands of a call under way, and what the first of them that has failed ended with.
    parts: usize,
    failed: Option<(c_int, u16)>,
    done: Vec<Over>,
    /// Lists of pieces to be used again.
    spare: Vec<Vec<Segment>>,
}

impl Commands {
    pub fn new(subsystem: Subsystem, queue: Queue) -> Self {
        let depth = queue.room();
        Self {
            // The namespaces are looked for when there is a command.
            version: subsystem.version().wrapping_sub(1),
            subsystem,
            queue: Some(queue),
            namespaces: Vec::new(),
            max_transfer: 0,
            owners: vec![None; depth],
            free: (0..depth).rev().collect(),
            under_way: 0,
            ready: VecDeque::with_capacity(depth),
            parts: 0,
            failed: None,
            done: Vec::with_capacity(depth),
            spare: Vec::new(),
        }
    }

    /// Commands of the program of which it has not been told that they are over.
    pub fn outstanding(&self) -> usize {
        self.under_way + self.ready.len()
    }

    /// Looks a namespace up, as it is now.
    fn namespace(&mut self, nsid: u32) -> Result<Namespace, c_int> {
        let version = self.subsystem.version();
        if version != self.version {
            self.namespaces = self.subsystem.namespaces();
            self.max_transfer = self.subsystem.max_transfer();
            self.version = version;
        }
        let found = self.namespaces.iter().find(|known| known.nsid == nsid);
        found.cloned().ok_or(-libc::ENODEV)
    }

    /// Takes a command of the program's.
    ///
    /// # Safety
    /// Its data is there, and the queue's to read and write until the command is over.
    pub unsafe fn submit(&mut self, command: &Command) -> Result<(), c_int> {
        // SAFETY: the caller promises that the data stays the queue's until the command is over.
        unsafe { self.begin(command, Owner::Program(command.token)) }
    }

    /// Takes a command.
    ///
    /// # Safety
    /// Its data is there, and the queue's to read and write until the command is over.
    unsafe fn begin(&mut self, command: &Command, owner: Owner) -> Result<(), c_int> {
        let (request, ranges) = self.request(command)?;
        let data = match ranges {
            Some(ranges) => ranges,
            // SAFETY: the caller promises that the data stays the queue's until the command is over.
            None => unsafe { self.data(command, &request)? },
        };
        self.start(request, data, owner)
    }

    /// What a command is, and the data of those that make their own.
    fn request(&mut self, command: &Command) -> Result<(Request, Option<Data>), c_int> {
        let namespace = self.namespace(command.nsid)?;
        let is_write = matches!(command.op, types::WRITE | types::WRITE_ZEROES);
        let allowed = match command.op {
            types::WRITE_ZEROES => types::FUA | types::DEALLOCATE,
            types::READ | types::WRITE => types::FUA,
            _ => 0,
        };
        if command.flags & !allowed != 0 {
            return Err(-libc::EINVAL);
        }
        let (start, blocks) = (command.start, command.blocks);
        let most = if command.op == types::DISCARD { u32::MAX } else { MOST_BLOCKS };
        if command.op != types::FLUSH && !(1..=most).contains(&blocks) {
            return Err(-libc::EINVAL);
        }
        if is_write && namespace.read_only {
            return Err(-libc::EROFS);
        }
        let request = match command.op {
            types::READ => namespace.read(start, blocks),
            types::WRITE => namespace.write(start, blocks),
            types::FLUSH => namespace.flush(),
            types::COMPARE => namespace.compare(start, blocks),
            types::WRITE_ZEROES => {
                namespace.write_zeroes(start, blocks, command.flags & types::DEALLOCATE != 0)
            }
            types::VERIFY => namespace.verify(start, blocks),
            types::DISCARD => {
                let (request, ranges) = namespace.discard(&[Range { start, blocks }]);
                return Ok((request, Some(ranges)));
            }
            _ => return Err(-libc::EINVAL),
        };
        let is_durable = command.flags & types::FUA != 0;
        Ok((if is_durable { request.durable() } else { request }, None))
    }

    /// The pieces of memory that a command names.
    ///
    /// # Safety
    /// As of `submit`.
    unsafe fn data(&mut self, command: &Command, request: &Request) -> Result<Data, c_int> {
        if request.data_len() == 0 {
            return Ok(Data::None);
        }
        if command.data_count > PIECES {
            return Err(-libc::EINVAL);
        }
        if command.data.is_null() && command.data_count > 0 {
            return Err(-libc::EFAULT);
        }
        let mut pieces = self.spare.pop().unwrap_or_default();
        pieces.clear();
        for index in 0..command.data_count {
            // SAFETY: so many are there.
            let iovec { iov_base, iov_len } = unsafe { command.data.add(index).read() };
            if iov_len == 0 {
                continue;
            }
            let Some(at) = NonNull::new(iov_base.cast()) else {
                self.spare.push(pieces);
                return Err(-libc::EFAULT);
            };
            pieces.push(Segment { at, len: iov_len });
        }
        // SAFETY: the memory is the queue's until the command is over.
        Ok(unsafe { Segments::new(pieces) }.into())
    }

    fn start(&mut self, request: Request, data: Data, owner: Owner) -> Result<(), c_int> {
        let Some(queue) = &mut self.queue else {
            return Err(-libc::ENOTCONN);
        };
        let Some(index) = self.free.pop() else {
            self.reuse(data);
            return Err(-libc::EAGAIN);
        };
        match queue.submit(request, data, index as u64) {
            Ok(()) => {
                self.owners[index] = Some(owner);
                match owner {
                    Owner::Program(_) => self.under_way += 1,
                    Owner::Call => self.parts += 1,
                }
                Ok(())
            }
            Err(refused) => {
                self.free.push(index);
                self.reuse(refused.data);
                Err(errors::of_refused(refused.why))
            }
        }
    }

    fn reuse(&mut self, data: Data) {
        if let Data::Segments(pieces) = data {
            self.spare.push(pieces.into_inner());
        }
    }

    /// Has the host send and receive, and sorts out what is over. `None` waits until something is.
    fn turn(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let Some(queue) = &mut self.queue else { return Ok(()) };
        let went = queue.poll(&mut self.done, timeout);
        let mut done = std::mem::take(&mut self.done);
        for Over { token, data, result } in done.drain(..) {
            self.reuse(data);
            let index = usize::try_from(token).unwrap_or(usize::MAX);
            let (result, (error, status)) = match result {
                Ok(result) => (result, (0, 0)),
                Err(failure) => (0, errors::of_failure(failure)),
            };
            self.settle(index, result, (error, status));
        }
        self.done = done;
        if went.is_err() {
            self.abandon();
        }
        went
    }

    fn settle(&mut self, index: usize, result: u64, (error, status): (c_int, u16)) {
        let Some(owner) = self.owners.get_mut(index).and_then(Option::take) else { return };
        self.free.push(index);
        match owner {
            Owner::Program(token) => {
                self.under_way -= 1;
                let over = Completion { token, result, error, status, reserved: 0 };
                self.ready.push_back(over);
            }
            Owner::Call => {
                self.parts -= 1;
                // Of two that are fused one says why, and the other one that the first has failed.
                let is_echo = status == Status::FUSED_FAILED.code();
                let is_known = self
                    .failed
                    .is_some_and(|(_, known)| is_echo || known != Status::FUSED_FAILED.code());
                if error != 0 && !is_known {
                    self.failed = Some((error, status));
                }
            }
        }
    }

    /// Ends the connections, after which all memory is the program's again. Commands fail.
    pub fn abandon(&mut self) {
        drop(self.queue.take());
        for index in 0..self.owners.len() {
            self.settle(index, 0, (-libc::ENOTCONN, 0));
        }
    }

    /// Gives commands that are over, as many as there is room for. Waits for the first one so long at
    /// most.
    pub fn poll(
        &mut self,
        room: &mut impl Extend<Completion>,
        most: usize,
        timeout: Option<Duration>,
    ) -> Result<usize, c_int> {
        let must_wait = self.ready.is_empty() && self.under_way > 0;
        let timeout = if must_wait { timeout } else { Some(Duration::ZERO) };
        let went = self.turn(timeout);
        if self.ready.is_empty()
            && let Err(e) = went
        {
            return Err(errors::of_io(&e));
        }
        if self.ready.is_empty() && self.queue.is_none() {
            return Err(-libc::ENOTCONN);
        }
        let count = self.ready.len().min(most);
        room.extend(self.ready.drain(..count));
        Ok(count)
    }

    /// Does what a call asks for, in as many commands as that takes, and waits for all of them.
    ///
    /// # Safety
    /// The data is as long as so many blocks are, and the queue's for the time of the call.
    pub unsafe fn call(
        &mut self,
        op: u32,
        nsid: u32,
        (start, blocks): (u64, u64),
        data: *mut u8,
        flags: u32,
    ) -> Result<(), (c_int, u16)> {
        let no_status = |error| (error, 0);
        let namespace = self.namespace(nsid).map_err(no_status)?;
        let size = u64::from(namespace.block_size);
        let with_data = matches!(op, types::READ | types::WRITE | types::COMPARE);
        let bytes = blocks.checked_mul(size).and_then(|bytes| usize::try_from(bytes).ok());
        if start.checked_add(blocks).is_none() || (with_data && bytes.is_none()) {
            return Err(no_status(-libc::EINVAL));
        }
        if with_data && blocks > 0 && data.is_null() {
            return Err(no_status(-libc::EFAULT));
        }
        let most = match op {
            types::DISCARD => u32::MAX,
            _ if with_data => (self.max_transfer / namespace.block_size).clamp(1, MOST_BLOCKS),
            _ => MOST_BLOCKS,
        };
        let mut left = parts(start, blocks, most, op == types::FLUSH);
        let mut next = left.next();
        self.failed = None;
        let mut refused = None;
        loop {
            while let Some(part) = next
                && self.failed.is_none()
                && refused.is_none()
            {
                let from = usize::try_from((part.start - start) * size).unwrap_or(0);
                let len = usize::try_from(u64::from(part.blocks) * size).unwrap_or(0);
                let piece = iovec { iov_base: data.wrapping_add(from).cast(), iov_len: len };
                let command = Command {
                    op,
                    flags,
                    nsid,
                    blocks: part.blocks,
                    start: part.start,
                    data: &raw const piece,
                    data_count: 1,
                    token: 0,
                };
                // SAFETY: the part is inside of the data.
                match unsafe { self.begin(&command, Owner::Call) } {
                    Ok(()) => next = left.next(),
                    // What is over makes room.
                    Err(error) if error == -libc::EAGAIN => break,
                    Err(error) => refused = Some(error),
                }
            }
            let is_over = next.is_none() || self.failed.is_some() || refused.is_some();
            // Also where one has failed all that were begun end here: the data is the caller's.
            if self.parts == 0 && is_over {
                break;
            }
            if self.turn(None).is_err() && self.parts == 0 {
                refused.get_or_insert(-libc::ENOTCONN);
            }
        }
        match self.failed.take().or(refused.map(no_status)) {
            Some(failed) => Err(failed),
            None => Ok(()),
        }
    }
}

impl Commands {
    /// Writes blocks if they are as expected, and waits for that.
    ///
    /// # Safety
    /// Both are as long as so many blocks are, and the queue's for the time of the call.
    pub unsafe fn compare_and_write(&mut self, what: &Exchange) -> Result<(), (c_int, u16)> {
        let no_status = |error| (error, 0);
        let size = self.namespace(what.nsid).map_err(no_status)?.block_size as usize;
        let len = (what.blocks as usize).checked_mul(size).ok_or((-libc::EINVAL, 0))?;
        let mut half = |op, flags, at: *mut c_void| {
            let piece = iovec { iov_base: at, iov_len: len };
            let &Exchange { nsid, start, blocks, .. } = what;
            let (data, data_count) = (&raw const piece, 1);
            let command = Command { op, flags, nsid, blocks, start, data, data_count, token: 0 };
            let (request, _) = self.request(&command)?;
            // SAFETY: the caller promises that the data is the queue's until the call has returned.
            let data = unsafe { self.data(&command, &request)? };
            Ok((request, data))
        };
        let compare = half(types::COMPARE, 0, what.expected).map_err(no_status)?;
        let write = half(types::WRITE, what.flags, what.data).map_err(no_status)?;
        if self.owners.len() < 2 {
            return Err(no_status(-libc::EINVAL));
        }
        // Others that are over make room.
        while self.free.len() < 2 && self.queue.is_some() {
            let _ended = self.turn(None);
        }
        let Some(queue) = &mut self.queue else { return Err(no_status(-libc::ENOTCONN)) };
        let (Some(first), Some(second)) = (self.free.pop(), self.free.pop()) else {
            return Err(no_status(-libc::EAGAIN));
        };
        let compare = (compare.0, compare.1, first as u64);
        if let Err(refused) = queue.compare_and_write(compare, (write.0, write.1, second as u64)) {
            self.free.extend([second, first]);
            self.reuse(refused.data);
            return Err(no_status(errors::of_refused(refused.why)));
        }
        for index in [first, second] {
            self.owners[index] = Some(Owner::Call);
            self.parts += 1;
        }
        self.failed = None;
        while self.parts > 0 {
            let _ended = self.turn(None);
        }
        self.failed.take().map_or(Ok(()), Err)
    }
}

/// Cuts blocks into parts. `whole`: there is one, whatever the number of blocks.
fn parts(start: u64, blocks: u64, most: u32, whole: bool) -> impl Iterator<Item = Part> {
    let mut done = 0;
    let mut is_first = true;
    std::iter::from_fn(move || {
        let left = blocks - done;
        if left == 0 && !(whole && std::mem::take(&mut is_first)) {
            return None;
        }
        let blocks = u32::try_from(left).unwrap_or(u32::MAX).min(most);
        let part = Part { start: start + done, blocks };
        done += u64::from(blocks);
        Some(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_cut_into_commands() {
        let cut = |start, blocks, most, whole| {
            parts(start, blocks, most, whole).map(|p| (p.start, p.blocks)).collect::<Vec<_>>()
        };
        assert_eq!(cut(7, 10, 4, false), [(7, 4), (11, 4), (15, 2)]);
        assert_eq!(cut(7, 0, 4, false), []);
        assert_eq!(cut(0, 0, 4, true), [(0, 0)]);
        let long = u64::from(u32::MAX) + 5;
        assert_eq!(cut(1, long, u32::MAX, false), [(1, u32::MAX), (1 << 32, 5)]);
    }
}
