//! Doorbells in the guest's memory (Doorbell Buffer Config, Base 5.8 and B.5): the guest writes a value there, looks at another one
//! (EventIdx), and rings the doorbell in BAR0 only where the value goes past that. So a controller that is awake costs the guest
//! no message.
//!
//! A doorbell's number is its place in BAR0: 2Q for the tail of submission queue Q, 2Q + 1 for the head of its completion queue.
//! Those of the Admin Queue are in BAR0 alone.

use std::sync::atomic::Ordering;

use shunt_nvme::wire::{Sqe, Status};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend};

use super::prp::PAGE;
use crate::port::Memory;

/// Bytes of a value: CAP.DSTRD is 0.
const VALUE: u64 = 4;

/// See the module's description. Where a page is not in memory there is no news, and the guest is told nothing: a monitor takes
/// memory back for a moment when it arranges it anew, and speaks to the controller each time.
#[derive(Debug)]
pub struct Shadow {
    /// The page with the doorbells.
    doorbells: u64,
    /// The page with the EventIdx values.
    events: u64,
    /// What was seen last of each doorbell, as the guest has written it.
    seen: Vec<u32>,
}

impl Shadow {
    /// As a command says, for so many doorbells.
    ///
    /// # Errors
    /// How the command completes.
    pub fn of(sqe: &Sqe, memory: &Memory, count: usize) -> Result<Self, Status> {
        let [doorbells, events] = sqe.prps();
        if !doorbells.is_multiple_of(PAGE) || !events.is_multiple_of(PAGE) {
            return Err(Status::PRP_OFFSET_INVALID.dnr());
        }
        let page = usize::try_from(PAGE).unwrap_or(usize::MAX);
        let is_memory = |at| memory.check_range(GuestAddress(at), page);
        if doorbells == events || !is_memory(doorbells) || !is_memory(events) {
            return Err(Status::INVALID_FIELD.dnr());
        }
        Ok(Self { doorbells, events, seen: vec![0; count] })
    }

    const fn place(page: u64, number: usize) -> GuestAddress {
        // A page has a place for each: `MAX_QUEUES` sees to it.
        GuestAddress(page + number as u64 * VALUE)
    }

    fn load(&self, memory: &Memory, number: usize) -> Option<u32> {
        // SYNC POINT shadow-doorbell: with the driver's store behind the entries that it counts.
        let value = memory.load(Self::place(self.doorbells, number), Ordering::Acquire).ok()?;
        Some(u32::from_le(value))
    }

    /// The doorbell of a queue that has this value now. What the guest has there is replaced: it may be left from before a reset, and
    /// would have commands of then done again.
    pub fn begin(&mut self, memory: &Memory, number: usize, value: u32) {
        let place = Self::place(self.doorbells, number);
        let _is_there = memory.store(value.to_le(), place, Ordering::Relaxed);
        if let Some(seen) = self.seen.get_mut(number) {
            *seen = value;
        }
    }

    /// What the guest has written since the last look, whatever it is.
    pub fn news(&mut self, memory: &Memory, number: usize) -> Option<u32> {
        let value = self.load(memory, number)?;
        let seen = self.seen.get_mut(number)?;
        (std::mem::replace(seen, value) != value).then_some(value)
    }

    /// True where [`Self::news`] would have some.
    #[must_use]
    pub fn has_news(&self, memory: &Memory, number: usize) -> bool {
        let value = self.load(memory, number);
        value.is_some() && value != self.seen.get(number).copied()
    }

    /// The guest is to ring when it goes past this value. It hears of that before a look that follows a fence (SeqCst).
    pub fn want(&self, memory: &Memory, number: usize, event: u32) {
        let place = Self::place(self.events, number);
        let _is_there = memory.store(event.to_le(), place, Ordering::Relaxed);
    }
}
