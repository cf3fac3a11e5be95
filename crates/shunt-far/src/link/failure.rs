//! A link that has failed: where its connections stood, and how they go on.

use shunt_shm::region::Section;
use shunt_shm::sync::Ordering;
use shunt_verbs::port::Port;

use super::{Ended, Halt, Link, Open};
use crate::lane::{Impossible, Rest, Settled, Stand};
use crate::mirror::{Mirror, News, break_off, leave_to_tcp};

/// What comes of it that both sides have said where they stood.
#[derive(Debug, Default)]
pub struct Settlement {
    /// Connections that end, and why.
    pub ended: Vec<(usize, Ended)>,
    /// What the far side is to be sent of those whose programs have ended: place, number of its use, and the pieces.
    pub rests: Vec<(usize, u32, Vec<Rest>)>,
    /// Connections whose programs are about to end: [`Link::settle_endings`] looks again, before the far side hears that this was all.
    pub endings: Vec<usize>,
}

impl Settlement {
    fn add<P: Port>(
        &mut self,
        (slot, settled): (usize, Settled),
        open: &Open<P>,
        mine: &Section,
        ring: u64,
    ) {
        match settled {
            Settled::GoesOn => {}
            Settled::IsEnding => self.endings.push(slot),
            Settled::EndsBehind(from) => {
                let (memory, at) = (&open.rings.memory, open.rings.outgoing.start);
                let read = |offset, to: &mut [u8]| memory.read(at + offset, to);
                // Else the far side hears of no end, and ends the connection.
                if let Some(rest) = open.lane.rest(from, mine, ring, read) {
                    self.rests.push((slot, open.generation, rest));
                }
            }
        }
    }
}

impl<P: Port, M: Mirror> Link<P, M> {
    /// Where each connection stood when the link failed; nothing while it has not.
    pub fn halts(&mut self) -> Vec<Halt> {
        if self.cause.is_none() {
            return Vec::new();
        }
        let mirror = &self.mirror;
        let open = self.lanes.iter_mut().enumerate();
        open.filter_map(|(slot, open)| {
            let Open { generation, lane, .. } = open.as_mut().filter(|open| open.far.is_some())?;
            let side = mirror.side(slot);
            let (mine, theirs) = (mirror.section(slot, side), mirror.section(slot, side.other()));
            Some(Halt { slot, generation: *generation, stand: lane.stand(mine, theirs) })
        })
        .collect()
    }

    /// The far side has said where its connections stood: programs of this side that were in a ring go on over TCP, and what those that
    /// have ended cannot send any more is to be handed to the far side. Programs hear only in [`Self::part`] where the far one goes on.
    pub fn settle(&mut self, far: &[Halt]) -> Settlement {
        let (own, mut settlement) = (self.halts(), Settlement::default());
        self.is_settled = true;
        for Halt { slot, generation, .. } in own {
            let said = far.iter().find(|halt| halt.slot == slot && halt.generation == generation);
            let (ring, side) = (self.mirror.ring(), self.mirror.side(slot));
            let (mine, theirs) =
                (self.mirror.section(slot, side), self.mirror.section(slot, side.other()));
            let Some(open) = self.lanes.get_mut(slot).and_then(Option::as_mut) else { continue };
            if said.is_none() && open.leave.said {
                // Both have left, and over there the place is free: all has arrived. Or the far side had not opened it, and this one's
                // program is done.
                open.far = None;
                continue;
            }
            // Of what it has not opened by then, the far side says nothing.
            let stand = said.map_or(Stand::UNOPENED, |said| said.stand);
            match open.lane.settle(&stand, (mine, theirs), ring) {
                Ok(settled) => settlement.add((slot, settled), open, mine, ring),
                Err(impossible) => {
                    break_off(theirs);
                    open.is_broken_off = true;
                    settlement.ended.push((slot, Ended::Impossible(impossible)));
                }
            }
            self.mirror.wake(slot, News { bytes: true, room: true });
        }
        settlement
    }

    /// Looks again at those that were about to end. `is_over`: those that still are have had time enough, and are reset.
    pub fn settle_endings(&mut self, endings: &[usize], is_over: bool) -> Settlement {
        let mut settlement = Settlement::default();
        for slot in endings {
            let (ring, side) = (self.mirror.ring(), self.mirror.side(*slot));
            let mine = self.mirror.section(*slot, side);
            let Some(open) = self.lanes.get_mut(*slot).and_then(Option::as_mut) else { continue };
            let settled = open.lane.settled(mine);
            if settled == Settled::IsEnding && is_over {
                break_off(self.mirror.section(*slot, side.other()));
                open.is_broken_off = true;
                settlement.ended.push((*slot, Ended::Stuck));
                self.mirror.wake(*slot, News { bytes: true, room: true });
                continue;
            }
            settlement.add((*slot, settled), open, mine, ring);
        }
        settlement
    }

    /// The far side sends what the link has not delivered of a direction that has ended. Of a connection that there is not any more it is
    /// of no use.
    ///
    /// # Errors
    /// It cannot be: the connection has ended.
    pub fn rest(&mut self, slot: usize, generation: u32, rest: &Rest) -> Result<(), Impossible> {
        let ring = self.mirror.ring();
        let open = self.lanes.get_mut(slot).and_then(Option::as_mut);
        let Some(open) = open.filter(|open| open.generation == generation && !open.is_broken_off)
        else {
            return Ok(());
        };
        let theirs = self.mirror.section(slot, self.mirror.side(slot).other());
        let (memory, at) = (&open.rings.memory, open.rings.incoming.start);
        let write = |offset, from: &[u8]| memory.write(at + offset, from);
        let taken = open.lane.take_rest(rest, theirs, ring, write);
        if taken.is_err() {
            break_off(theirs);
            open.is_broken_off = true;
        }
        self.mirror.wake(slot, News { bytes: true, room: taken.is_err() });
        taken
    }

    /// Nothing is left of the link on either side, and nothing more is said of it: what the kernel says of ends counts, and places can be
    /// used again. Where nobody has said where its connections stood, they end; and where the far agent has not said that this was all,
    /// those of which more may have been to come. Returns others that end.
    pub fn part(&mut self, has_said_all: bool) -> Vec<(usize, Ended)> {
        let mut ended = Vec::new();
        for slot in 0..self.lanes.len() {
            let Some(open) = &self.lanes[slot] else { continue };
            let theirs = self.mirror.section(slot, self.mirror.side(slot).other());
            let is_open = open.far.is_some() && !open.is_broken_off;
            if is_open && !(self.is_settled && open.lane.part(theirs, has_said_all)) {
                // It sends nothing over TCP that the far program could take for what is missing.
                break_off(theirs);
                if self.is_settled {
                    ended.push((slot, Ended::Lost));
                }
            } else if open.far.is_none() {
                leave_to_tcp(theirs);
            } else {
                theirs.cons.heard.store(0, Ordering::Release);
                theirs.prod.behind.store(0, Ordering::Release);
            }
            theirs.setup.done.store(1, Ordering::Release);
            self.mirror.wake(slot, News { bytes: true, room: true });
        }
        ended
    }

    /// The byte behind which a connection's own direction goes on over TCP, by what the far side said of it. All bytes from there on
    /// lie in the program's ring.
    ///
    /// # Errors
    /// The far side cannot have received that; the connection ends. `None` within: there is no such connection, or the link has not failed.
    pub fn resume(&self, far: &Halt) -> Result<u64, Option<Impossible>> {
        let open = self.lanes.get(far.slot).and_then(Option::as_ref);
        let open = open.filter(|open| self.cause.is_some() && open.generation == far.generation);
        open.ok_or(None)?.lane.resume(far.stand.received).map_err(Some)
    }
}
