//! Measures a link: how long a small message and its answer take, and how long many bytes.
//!
//! Messages go as those of programs: writes, a message behind them, and a worker that sleeps until its completion queue tells. An answer
//! carries no bytes, so a small message carries those of both ways. What is written lands in memory that either side has registered
//! for that alone ([`Link::scratch`]), and that stays registered as long as the link's queue pair: nothing that arrives late misses it.

use core::time::Duration;

use shunt_verbs::Memory;
use shunt_verbs::Refused;
use shunt_verbs::port::{Port, Region};
use shunt_verbs::value::{Access, Remote};

use super::load::{Load, MESSAGES, Measuring, NotMeasured, SCRATCH, SMALL};
use super::writes::Writes;
use super::{Event, Link, NotOpened};
use crate::message::Kind;
use crate::mirror::Mirror;

/// Writes of the first bytes of this side's memory, so many each, to the far side's.
fn writes<const N: usize>(from: &impl Region, bytes: usize, far: Remote) -> Option<Writes> {
    let mut writes = [None; 2];
    for (at, write) in writes.iter_mut().take(N).enumerate() {
        let range = at * bytes..(at + 1) * bytes;
        let address = far.address.checked_add(range.start as u64)?;
        *write = Some((from.piece(range)?, Remote { address, key: far.key }));
    }
    Some(writes)
}

impl<P: Port, M: Mirror> Link<P, M> {
    /// Memory of [`SCRATCH`] bytes that the far side may write to measure: registered when this is first asked for.
    ///
    /// # Errors
    /// [`NotOpened`].
    pub fn scratch(&mut self, port: &P) -> Result<Remote, NotOpened> {
        if let Some(cause) = self.cause() {
            return Err(NotOpened::Link(cause));
        }
        if let Some(scratch) = &self.scratch {
            return Ok(scratch.as_remote());
        }
        let memory = Memory::new(SCRATCH).map_err(|error| Refused::System("mmap", error));
        let scratch = memory.and_then(|it| port.register(&it, 0..SCRATCH, Access::RemoteWrite));
        Ok(self.scratch.insert(scratch.map_err(NotOpened::Memory)?).as_remote())
    }

    /// True when no connection has had anything to say for so long.
    pub fn is_quiet(&self, time: Duration, now: Duration) -> bool {
        self.moved.is_none_or(|moved| now.saturating_sub(moved) >= time)
    }

    /// Begins a measurement, into memory of the far side's; [`Event::Measured`] tells what has come of it. A link that fails meanwhile
    /// tells nothing.
    ///
    /// # Errors
    /// [`NotMeasured`]: nothing was sent.
    pub fn measure(&mut self, load: Load, far: Remote, now: Duration) -> Result<(), NotMeasured> {
        let has_queue = u32::from(self.settings.messages) > 2 * MESSAGES;
        let (Some(scratch), true, None) =
            (&self.scratch, self.is_connected && !self.is_held && has_queue, self.cause)
        else {
            return Err(NotMeasured::Link);
        };
        // Connections that wait to post would be measured as well. Messages of the last measurement may not have completed yet, though they
        // were acknowledged.
        let has_room =
            self.outstanding.count().0 <= MESSAGES as usize && self.has_place(MESSAGES + 1);
        if !has_room || !self.marked.is_empty() || self.measuring.is_some() {
            return Err(NotMeasured::Busy);
        }
        let (writes, messages) = match load {
            Load::Ping => (writes::<2>(scratch, SMALL, far), 1),
            Load::Bulk => (writes::<1>(scratch, SCRATCH, far), MESSAGES),
        };
        let writes = writes.ok_or(NotMeasured::Link)?;
        for _ in 0..messages {
            self.send_behind(writes, Kind::Test, now);
        }
        self.measuring = Some(Measuring { began: now, until: self.sent });
        Ok(())
    }

    /// The far side has acknowledged something.
    pub(super) fn measured(&mut self, now: Duration) {
        let acknowledged = self.acknowledged;
        let is_over = |it: &mut Measuring| acknowledged.wrapping_sub(it.until) < 1 << 31;
        if let Some(Measuring { began, .. }) = self.measuring.take_if(is_over) {
            self.events.push_back(Event::Measured(now.saturating_sub(began)));
        }
    }
}
