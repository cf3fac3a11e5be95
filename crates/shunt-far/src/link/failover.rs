//! A link that has failed, and goes on with another queue pair: on the same device, or on the one that its worker has now.
//!
//! Both sides make one ([`Link::renew`]) and tell each other, over another way, what they have heard of each connection. Each one goes on
//! from what the far side has ([`Link::go_on`]): the bytes behind that still lie in the sender's ring. Programs notice nothing but time.
//! The side that goes on first waits for the other one to speak: a queue pair takes nothing before it is connected.
//!
//! A queue pair that was replaced is gone before its side says where it is. So nothing that was on its way lands in a ring later on.
//!
//! What both sides had not opened by then is not opened any more (`Open::is_void`): where the far side writes for it may have been said
//! of the device of before.

use core::time::Duration;

use shunt_verbs::Refused;
use shunt_verbs::port::{Port, Region};
use shunt_verbs::value::{PacketNumber, PeerPair, Remote};

use super::{Cause, Event, Link};
use crate::device::OfDevice;
use crate::message::Words;
use crate::mirror::{Mirror, News, leave_to_tcp};
use crate::turns::InFlight;

/// Where one end of a connection is when its link has a new queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Position {
    /// Its place.
    pub slot: usize,
    /// Number of the place's use.
    pub generation: u32,
    /// What it has heard last.
    pub heard: Words,
    /// It has heard that the far side has left.
    pub has_left: bool,
    /// Where its ring is now.
    pub ring: Remote,
}

impl<P: Port, M: Mirror> Link<P, M> {
    /// Makes another queue pair for a link that has failed, and says what the far side needs to go on: of the queue pair, and of each
    /// connection that both have opened. Until [`Self::go_on`] the link is still one that has failed. After [`Self::halts`] there is no
    /// way back.
    ///
    /// # Errors
    /// What the device refused; [`Refused::State`] where the link has not failed, or is over ([`Cause::is_curable`]). The link is as before.
    pub fn renew(
        &mut self,
        port: &P,
        queue: &P::Queue,
        first: PacketNumber,
    ) -> Result<(PeerPair, Vec<Position>), Refused> {
        if !self.cause.is_some_and(Cause::is_curable) {
            return Err(Refused::State);
        }
        let device = OfDevice::new(port, queue, self.settings.sizes())?;
        for open in self.lanes.iter_mut().flatten() {
            // Of the device of before, if that is another one.
            if open.registered.is_none() {
                open.registered = Some(open.rings.register(port)?);
            }
        }
        let (gid, mtu, number) = (port.gid(), port.mtu(), device.number());
        self.described = PeerPair { gid, number, first_packet: first, mtu };
        // The one of before goes behind the new one, so that they have different numbers.
        self.device = Some(device);
        self.is_connected = false;
        (self.outstanding, self.measuring, self.waiting) = (InFlight::new(), None, None);
        (self.sent, self.acknowledged, self.taken, self.told) = (0, 0, 0, 0);
        self.must_answer = false;
        self.void_unopened();
        let open = self.lanes.iter().enumerate();
        let positions = open.filter_map(|(slot, open)| {
            let open = open.as_ref().filter(|open| open.far.is_some())?;
            Some(Position {
                slot,
                generation: open.generation,
                heard: open.lane.said(),
                has_left: open.leave.heard,
                ring: open.registered.as_ref()?.incoming.as_remote(),
            })
        });
        Ok((self.described, positions.collect()))
    }

    /// Both sides have a new queue pair: connects this one's, and goes on with each connection from where the far side is. `waits`: sends
    /// nothing before the far side has, which is not connected yet. The other side asks at once ([`Self::ask`]).
    ///
    /// # Errors
    /// Why the link stays one that has failed.
    pub fn go_on(
        &mut self,
        (pair, far): (&PeerPair, &[Position]),
        waits: bool,
        now: Duration,
    ) -> Result<(), Cause> {
        self.void_unopened();
        for slot in 0..self.lanes.len() {
            let Some(open) = self.lanes[slot].as_mut().filter(|open| open.far.is_some()) else {
                continue;
            };
            let said = far.iter().find(|at| at.slot == slot && at.generation == open.generation);
            let Some(said) = said else {
                self.is_alone(slot);
                continue;
            };
            if let Err(impossible) = open.lane.restart(&said.heard, self.mirror.ring()) {
                let cause = Cause::Impossible(impossible);
                self.cause = Some(cause);
                return Err(cause);
            }
            open.far = Some(said.ring);
            // That this side leaves has arrived, or is said once more.
            open.leave.said &= said.has_left;
            open.leave.sent = open.leave.said;
            self.free(slot);
        }
        if self.connect(pair).is_err() {
            return Err(Cause::Refused);
        }
        (self.cause, self.is_held) = (None, waits);
        self.renewals += 1;
        (0..self.lanes.len()).for_each(|slot| self.mark(slot));
        if !waits {
            self.ask(now);
        }
        Ok(())
    }

    fn void_unopened(&mut self) {
        let unopened = self.lanes.iter_mut().flatten().filter(|open| open.far.is_none());
        unopened.for_each(|open| open.is_void = true);
    }

    /// The far side has no such connection: both have left it, or the far one had not opened it, and its program has stayed on TCP. The
    /// local program, which has sent nothing through the ring then, keeps its place in memory until it is through.
    fn is_alone(&mut self, slot: usize) {
        let Some(open) = self.lanes[slot].take() else { return };
        if !open.leave.said {
            leave_to_tcp(self.mirror.section(slot, self.mirror.side(slot).other()));
            self.mirror.wake(slot, News { bytes: true, room: true });
        }
        self.mirror.is_free(slot);
        self.events.push_back(Event::Free(slot));
    }
}
