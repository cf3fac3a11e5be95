//! Queues in the guest's memory (Base 3.3.1, PCIe 3.1.2): where entries are taken and posted, and what doorbells say. All that
//! the guest says of them is bounded before it is used.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use shunt_nvme::wire::{Cqe, Sqe, Status};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, VolatileMemory};
use zerocopy::{FromZeros, IntoBytes};

use crate::port::Memory;

/// Bytes of an entry of a submission queue.
pub const SUBMISSION: u32 = 64;
/// Bytes of an entry of a completion queue.
pub const COMPLETION: u32 = 16;

/// A queue that is not, or no longer, the guest's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Broken;

/// A doorbell's value that cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadValue;

/// Where a queue is.
#[derive(Clone, Copy, Debug)]
struct Place {
    at: u64,
    /// From 2 on.
    entries: u32,
}

impl Place {
    /// The address of an entry: one of the queue's, so it does not overflow for a queue that is in memory.
    fn entry(self, index: u32, size: u32) -> GuestAddress {
        GuestAddress(self.at.saturating_add(u64::from(index) * u64::from(size)))
    }

    const fn after(self, index: u32) -> u32 {
        if index + 1 < self.entries { index + 1 } else { 0 }
    }

    const fn before(self, index: u32) -> u32 {
        if index > 0 { index - 1 } else { self.entries - 1 }
    }

    /// Entries from one to the other.
    const fn from(self, first: u32, end: u32) -> u32 {
        if first <= end { end - first } else { end + self.entries - first }
    }
}

/// A submission queue.
#[derive(Debug)]
pub struct Submission {
    place: Place,
    head: u32,
    tail: u32,
    /// The completion queue of its commands.
    pub completion: u16,
    /// Commands that were taken and have not completed.
    pub in_flight: u32,
    /// The Admin command that deletes it, once nothing is in flight.
    pub deletion: Option<u16>,
}

impl Submission {
    /// An empty one of so many entries, two at least.
    #[must_use]
    pub const fn new(at: u64, entries: u32, completion: u16) -> Self {
        let place = Place { at, entries };
        Self { place, head: 0, tail: 0, completion, in_flight: 0, deletion: None }
    }

    /// The guest has added entries.
    ///
    /// # Errors
    /// The queue has no such place.
    pub const fn ring(&mut self, tail: u32) -> Result<(), BadValue> {
        if tail >= self.place.entries {
            return Err(BadValue);
        }
        self.tail = tail;
        Ok(())
    }

    /// An entry can be taken. No more are in flight than the queue has places.
    #[must_use]
    pub const fn has_next(&self) -> bool {
        self.head != self.tail && self.deletion.is_none() && self.in_flight < self.place.entries
    }

    /// Takes the next one, a copy.
    ///
    /// # Errors
    /// It is not in memory.
    pub fn take(&mut self, memory: &Memory) -> Result<Option<Sqe>, Broken> {
        if !self.has_next() {
            return Ok(None);
        }
        let mut sqe = Sqe::new_zeroed();
        let at = self.place.entry(self.head, SUBMISSION);
        memory.read_slice(sqe.as_mut_bytes(), at).map_err(|_| Broken)?;
        self.head = self.place.after(self.head);
        self.in_flight += 1;
        Ok(Some(sqe))
    }

    /// Behind the last entry that the guest has added.
    #[must_use]
    pub const fn tail(&self) -> u32 {
        self.tail
    }

    /// A place that no tail goes past before the guest hears that entries were taken: one of the queue is always free.
    #[must_use]
    pub const fn before_tail(&self) -> u32 {
        self.place.before(self.tail)
    }

    /// SQHD.
    #[must_use]
    pub fn head(&self) -> u16 {
        // Queues have at most 4,096 entries.
        u16::try_from(self.head).unwrap_or(u16::MAX)
    }
}

/// A completion queue. Completions for which it has no room wait here: no more commands are taken meanwhile.
#[derive(Debug)]
pub struct Completion {
    place: Place,
    /// What the guest has read.
    head: u32,
    tail: u32,
    phase: bool,
    waiting: VecDeque<Cqe>,
    /// The interrupt, if it is to raise one.
    pub vector: Option<u16>,
    /// Submission queues whose commands complete here.
    pub users: u32,
}

impl Completion {
    /// An empty one of so many entries, two at least.
    #[must_use]
    pub const fn new(at: u64, entries: u32, vector: Option<u16>) -> Self {
        let place = Place { at, entries };
        Self { place, head: 0, tail: 0, phase: true, waiting: VecDeque::new(), vector, users: 0 }
    }

    /// The guest has read entries.
    ///
    /// # Errors
    /// The queue has no such place, or there are not as many.
    pub const fn ring(&mut self, head: u32) -> Result<(), BadValue> {
        let place = self.place;
        if head >= place.entries || place.from(self.head, head) > place.from(self.head, self.tail) {
            return Err(BadValue);
        }
        self.head = head;
        Ok(())
    }

    /// What the guest has read, as far as is known.
    #[must_use]
    pub const fn head(&self) -> u32 {
        self.head
    }

    /// A place that no head goes past before more is posted than there is room for, as far as is known.
    #[must_use]
    pub const fn before_head(&self) -> u32 {
        self.place.before(self.head)
    }

    /// True where completions wait for the guest to read.
    #[must_use]
    pub fn is_congested(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// A command of the queue `sqid`, of which so much was taken, has completed.
    pub fn push(&mut self, cid: u16, sqid: u16, sqhd: u16, status: Status, result: u64) {
        let mut cqe = Cqe::new(cid, status, result, sqhd);
        cqe.sqid = sqid.into();
        self.waiting.push_back(cqe);
    }

    /// Puts what has room into memory; true if there was any.
    ///
    /// # Errors
    /// The queue is not in memory.
    pub fn post(&mut self, memory: &Memory) -> Result<bool, Broken> {
        let mut found = false;
        while self.place.after(self.tail) != self.head
            && let Some(mut cqe) = self.waiting.pop_front()
        {
            let phase = u16::from(self.phase);
            cqe.status_field = (cqe.status_field.get() | phase).into();
            let at = self.place.entry(self.tail, COMPLETION);
            let place = memory.get_slice(at, size_of::<Cqe>()).map_err(|_| Broken)?;
            let (body, last) = cqe.as_bytes().split_last_chunk::<4>().ok_or(Broken)?;
            let body: &[u8; 12] = body.try_into().map_err(|_| Broken)?;
            place.get_ref::<[u8; 12]>(0).map_err(|_| Broken)?.store(*body);
            // SYNC POINT completion-phase: with the driver's load of the phase, before it reads the rest.
            let last = u32::from_ne_bytes(*last);
            place.store(last, body.len(), Ordering::Release).map_err(|_| Broken)?;
            self.tail = self.place.after(self.tail);
            self.phase ^= self.tail == 0;
            found = true;
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use shunt_nvme::wire::opcode::io;
    use zerocopy::FromBytes;

    use super::*;

    fn memory() -> Memory {
        Memory::from_ranges(&[(GuestAddress(0), 0x4000)]).unwrap()
    }

    fn posted(memory: &Memory, index: u64) -> Cqe {
        let mut bytes = [0; 16];
        memory.read_slice(&mut bytes, GuestAddress(0x1000 + index * 16)).unwrap();
        Cqe::read_from_bytes(&bytes).unwrap()
    }

    #[test]
    fn commands_are_taken_in_order() {
        let memory = memory();
        let mut queue = Submission::new(0, 4, 1);
        assert_eq!(queue.take(&memory), Ok(None));
        let mut tail = 0;
        for cid in 0..10u16 {
            let mut sqe = Sqe::new(io::READ, 1);
            sqe.cid = cid.into();
            memory.write_slice(sqe.as_bytes(), GuestAddress(tail * 64)).unwrap();
            tail = (tail + 1) % 4;
            queue.ring(u32::try_from(tail).unwrap()).unwrap();
            assert_eq!(queue.take(&memory), Ok(Some(sqe)));
            assert_eq!((queue.take(&memory), u64::from(queue.head())), (Ok(None), tail));
            queue.in_flight -= 1;
        }
        for bad in [4, 5, 0xffff, u32::MAX] {
            assert_eq!(queue.ring(bad), Err(BadValue));
        }
        assert!(!queue.has_next());
    }

    #[test]
    fn no_more_is_in_flight_than_there_are_places() {
        let memory = memory();
        let mut queue = Submission::new(0, 3, 1);
        let mut taken = 0;
        for n in 1..20 {
            queue.ring(n % 3).unwrap();
            taken += u32::from(queue.take(&memory).unwrap().is_some());
        }
        assert_eq!((taken, queue.in_flight), (3, 3));
        queue.in_flight = 0;
        queue.deletion = Some(1);
        assert_eq!(queue.take(&memory), Ok(None));
    }

    #[test]
    fn completions_wait_for_room_and_change_their_phase() {
        let memory = memory();
        let mut queue = Completion::new(0x1000, 4, None);
        for cid in 0..8 {
            queue.push(cid, 3, 2, Status::SUCCESS, 7);
        }
        let mut next = 0u16;
        for phase in [true, false] {
            for index in 0..4u32 {
                // All but two, as one place is always free.
                assert_eq!(queue.post(&memory), Ok(next < 6));
                let cqe = posted(&memory, index.into());
                assert_eq!((cqe.cid.get(), cqe.sqid.get(), cqe.sqhd.get()), (next, 3, 2));
                assert_eq!((cqe.result.get(), cqe.status()), (7, Status::SUCCESS));
                assert_eq!(cqe.status_field.get() & 1 == 1, phase, "{next}");
                next += 1;
                // Not more than was posted.
                assert_eq!(queue.ring(index + 4), Err(BadValue));
                queue.ring((index + 1) % 4).unwrap();
            }
        }
        assert!(!queue.is_congested() && queue.ring(1) == Err(BadValue));
    }

    #[test]
    fn queues_out_of_memory_are_broken() {
        let memory = memory();
        for at in [0x4000, 0x3fff, u64::MAX, u64::MAX - 15] {
            let mut submission = Submission::new(at, 2, 1);
            submission.ring(1).unwrap();
            assert_eq!(submission.take(&memory), Err(Broken));
            let mut completion = Completion::new(at, 2, None);
            completion.push(1, 0, 0, Status::SUCCESS, 0);
            assert_eq!(completion.post(&memory), Err(Broken));
        }
    }
}
