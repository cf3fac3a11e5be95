//! A connection whose link has failed: where it stood, and how each direction goes on.
//!
//! A program that still sends goes on over TCP. One that has ended its direction cannot: what its link has not delivered its agent
//! sends as a [`Rest`], in pieces, over another way. The far agent puts these bytes where the link would have put them, and the end behind
//! them. So the far program finds both in its ring.
//!
//! Which of both it is the agent of the program says, when it has told that where the far one stopped ([`Lane::settle`]): the program may
//! end until then. So a receiver is left in its ring until all that the other agent had to say has come ([`Lane::part`]).

use shunt_shm::handover;
use shunt_shm::region::{DEAF, Section};
use shunt_shm::ring::{ConsLine, MARKS, ProdLine, RxCursor, Span};
use shunt_shm::sync::{Ordering, store_load_fence};

use super::stand::{Agreed, Stand};
use super::{Impossible, Lane, MOST_MARKS, is_within};

/// Most bytes of a [`Rest`].
pub const PIECE: usize = 16 * 1024;

/// How the local program's direction goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Settled {
    /// Over TCP, or it has ended and all of it has arrived.
    GoesOn,
    /// It has ended: the far side lacks what lies behind this byte in the ring ([`Lane::rest`]).
    EndsBehind(u64),
    /// It is about to end, or to go on over TCP: which of both [`Lane::settled`] says.
    IsEnding,
}

/// What the link has not delivered of a direction that has ended, or a part of that.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rest {
    /// Bytes of the direction before these.
    pub at: u64,
    /// The ring's shape.
    pub base: u64,
    /// At most [`PIECE`] bytes.
    pub bytes: Vec<u8>,
    /// They are the last ones.
    pub end: Option<End>,
}

/// What stands behind the last byte.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct End {
    /// Marks of the program, and where they are.
    pub marks: u32,
    /// The places of the last ones.
    pub mark_at: [u64; MARKS],
    /// How it has ended.
    pub closed: u32,
}

/// True for a program that puts its bytes into the ring.
const fn is_in_ring(marks: u32) -> bool {
    !marks.is_multiple_of(2)
}

impl Lane {
    /// The link has failed: where this end stands. The local program sends nothing over TCP behind a later mark before
    /// [`Self::settle`].
    pub fn stand(&mut self, mine: &Section, theirs: &Section) -> Stand {
        if let Some(stood) = self.stood {
            return stood;
        }
        let own_marks = match self.heard.handed_over {
            0 => handover::begins_to_leave(&theirs.ctl.handed_over, &mine.prod.marks),
            // The far program has left before, and has said where it stops.
            _ => mine.prod.marks.load(Ordering::Acquire),
        };
        let has_left = handover::has_left(&mine.ctl.handed_over);
        let taken = mine.cons.cons.load(Ordering::Acquire).min(self.heard.prod);
        let stood = Stand {
            received: if has_left { taken } else { self.heard.prod },
            marks: self.heard.marks,
            ring_end: self.ring_end,
            own_marks,
            own_at: mine.prod.mark_at[own_marks as usize % MARKS].load(Ordering::Relaxed),
            own_end: ended_at(mine, own_marks).unwrap_or(u64::MAX),
        };
        *self.stood.insert(stood)
    }

    /// Both agents have said where they stood: the local program's direction goes on over TCP, if it was in the ring and has not ended.
    ///
    /// # Errors
    /// What the far side says cannot be.
    pub fn settle(
        &mut self,
        far: &Stand,
        (mine, theirs): (&Section, &Section),
        ring: u64,
    ) -> Result<Settled, Impossible> {
        let stood = self.stand(mine, theirs);
        // The local program goes on behind this byte, if it is in the ring.
        let from = if is_in_ring(far.marks) { far.received } else { far.ring_end };
        self.resume(from)?;
        if !is_within(far.marks, self.heard.heard, MOST_MARKS) {
            return Err(Impossible::Marks);
        }
        // And the far one behind this.
        let heard = self.heard.marks;
        let has_left = far.own_marks == heard.wrapping_add(1);
        let at = if has_left { far.own_at } else { stood.received };
        if is_in_ring(heard) && !(at <= stood.received && stood.received - at <= ring) {
            return Err(Impossible::Marks);
        }
        theirs.cons.cons.store(from, Ordering::Release);
        if self.heard.handed_over == 0 {
            handover::has_left_for_good(&theirs.ctl.handed_over, stood.own_marks);
        }
        theirs.cons.heard.store(0, Ordering::Release);
        // Before a program has entered the ring it takes nothing there.
        let begins_at = if is_in_ring(heard) { stood.received } else { stood.ring_end };
        let has_ended = far.own_end != u64::MAX && is_in_ring(far.own_marks);
        let lacks = has_ended && far.own_end > begins_at;
        let rest = Some(begins_at);
        self.agreed = Some(Agreed { goes_on_at: from, leaves_at: at, begins_at, lacks, rest });
        // SYNC POINT ending: behind the word that the far program has left. One that begins to end later has seen it, and follows first.
        store_load_fence();
        Ok(self.settled(mine))
    }

    /// How the local program's direction goes on, as far as it has said, once both agents have said where they stood.
    #[must_use]
    pub fn settled(&self, mine: &Section) -> Settled {
        let Some((stood, agreed)) = self.stood.as_ref().zip(self.agreed.as_ref()) else {
            return Settled::GoesOn;
        };
        if !is_in_ring(stood.own_marks) || self.is_broken {
            return Settled::GoesOn;
        }
        let is_ending = mine.prod.ending.load(Ordering::Acquire) != 0;
        let has_ended = mine.prod.fin.load(Ordering::Acquire) != 0;
        // Behind a mark that was set since it goes on over TCP.
        if mine.prod.marks.load(Ordering::Acquire) != stood.own_marks {
            return Settled::GoesOn;
        }
        match (has_ended, is_ending) {
            (true, _) if mine.prod.prod.load(Ordering::Acquire) > agreed.goes_on_at => {
                Settled::EndsBehind(agreed.goes_on_at)
            }
            (false, true) => Settled::IsEnding,
            _ => Settled::GoesOn,
        }
    }

    /// What lies behind a byte in the ring of a program that has ended. `read` copies from an offset in it. `None`: the program has
    /// written what cannot be.
    #[must_use]
    pub fn rest(
        &self,
        from: u64,
        mine: &Section,
        ring: u64,
        mut read: impl FnMut(usize, &mut [u8]) -> Option<()>,
    ) -> Option<Vec<Rest>> {
        let (reader, line) = (RxCursor::at(from), ConsLine::default());
        let mut left = reader.refresh(&mine.prod, ring).ok()?;
        let base = mine.prod.base.load(Ordering::Relaxed);
        let mut all = Vec::new();
        while left > 0 {
            let Span { head, tail } =
                reader.readable(&mine.prod, ring, left.min(PIECE as u64)).ok()?;
            let mut bytes = vec![0; head.1 + tail.1];
            let (one, two) = bytes.split_at_mut(head.1);
            read(head.0, one)?;
            read(tail.0, two)?;
            let at = reader.pos();
            left = left.saturating_sub(bytes.len() as u64);
            let _ = reader.consume(&line, ring, bytes.len() as u64);
            all.push(Rest { at, base, bytes, end: None });
        }
        all.last_mut()?.end = Some(End {
            marks: mine.prod.marks.load(Ordering::Acquire),
            mark_at: mine.prod.mark_at.each_ref().map(|at| at.load(Ordering::Relaxed)),
            closed: mine.ctl.closed.load(Ordering::Acquire),
        });
        Some(all)
    }

    /// The far agent sends what the link has not delivered: into the ring, by `write`, and with the end for the program to see.
    ///
    /// # Errors
    /// It cannot be.
    pub fn take_rest(
        &mut self,
        rest: &Rest,
        theirs: &Section,
        ring: u64,
        mut write: impl FnMut(usize, &[u8]) -> Option<()>,
    ) -> Result<(), Impossible> {
        let agreed = self.agreed.as_mut().ok_or(Impossible::Producer)?;
        let len = rest.bytes.len() as u64;
        let prod = rest.at.checked_add(len).filter(|_| agreed.rest == Some(rest.at));
        let prod = prod.ok_or(Impossible::Producer)?;
        // Bytes that the program has not taken, as far as the far side was told, are not written over.
        if prod.checked_sub(self.told.cons).is_none_or(|unread| unread > ring) {
            return Err(Impossible::Producer);
        }
        let line = ProdLine::default();
        line.prod.store(prod, Ordering::Relaxed);
        line.base.store(rest.base, Ordering::Relaxed);
        let span = RxCursor::at(rest.at).readable(&line, ring, len);
        let Span { head, tail } = span.map_err(|_| Impossible::Producer)?;
        let pieces = rest.bytes.split_at_checked(head.1).filter(|(_, two)| two.len() == tail.1);
        let (one, two) = pieces.ok_or(Impossible::Producer)?;
        write(head.0, one).zip(write(tail.0, two)).ok_or(Impossible::Producer)?;
        if let Some(end) = &rest.end {
            let is_right = prod >= self.heard.prod && is_in_ring(end.marks) && end.closed <= DEAF;
            if !is_right || !is_within(end.marks, self.heard.marks, 1) {
                return Err(Impossible::End);
            }
        }
        agreed.rest = rest.end.is_none().then_some(prod);
        if prod >= self.heard.prod {
            // SYNC POINT prod: the program reads `prod` first.
            theirs.prod.base.store(rest.base, Ordering::Relaxed);
            theirs.prod.prod.store(prod, Ordering::Release);
        }
        if let Some(end) = &rest.end {
            for (to, at) in theirs.prod.mark_at.iter().zip(end.mark_at) {
                to.store(at, Ordering::Relaxed);
            }
            // SYNC POINT marks: behind their places, and behind the bytes before them.
            theirs.prod.marks.store(end.marks, Ordering::Release);
            theirs.prod.fin.store(1, Ordering::Release);
            theirs.ctl.closed.store(end.closed, Ordering::Release);
            theirs.prod.behind.store(0, Ordering::Release);
        }
        Ok(())
    }

    /// All that the far agent had to say of this connection has come, or all that will (`has_said_all`): the far program's direction
    /// goes on over TCP, unless its rest has come. False: its program has ended, or may have, and bytes are missing.
    #[must_use]
    pub fn part(&self, theirs: &Section, has_said_all: bool) -> bool {
        let Some(agreed) = &self.agreed else { return false };
        let Some(come) = agreed.rest else { return true };
        if !has_said_all || agreed.lacks || come != agreed.begins_at {
            return false;
        }
        let heard = self.heard.marks;
        if is_in_ring(heard) {
            let next = heard.wrapping_add(1);
            theirs.prod.mark_at[next as usize % MARKS].store(agreed.leaves_at, Ordering::Relaxed);
            // SYNC POINT marks.
            theirs.prod.marks.store(next, Ordering::Release);
        }
        true
    }

    /// The byte behind which the local program's direction goes on over TCP, after a failure: the far side's last word.
    ///
    /// # Errors
    /// It has not been told of so many, or has already said that it took more.
    pub fn resume(&self, received: u64) -> Result<u64, Impossible> {
        let possible = (self.heard.cons..=self.told.prod).contains(&received);
        if possible { Ok(received) } else { Err(Impossible::Producer) }
    }
}

/// Where a program that had set so many marks has ended its direction. `None`: it has not, or has set a mark before: it goes on over TCP.
fn ended_at(mine: &Section, own_marks: u32) -> Option<u64> {
    let has_ended = mine.prod.fin.load(Ordering::Acquire) != 0;
    // A program that has ended sets no mark.
    let stays = mine.prod.marks.load(Ordering::Acquire) == own_marks;
    (has_ended && stays).then(|| mine.prod.prod.load(Ordering::Acquire))
}

#[cfg(test)]
mod tests;
