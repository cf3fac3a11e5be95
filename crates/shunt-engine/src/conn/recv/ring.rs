//! A receiver in the ring.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use shunt_shm::Violation;
use shunt_shm::grants::Grants;
use shunt_shm::ring::{RxCursor, Span};

use super::{
    Failure, Incoming, Looked, Read, ahead_of_link, at_end, failed, failure, is_satisfied, nothing,
    read,
};
use crate::call::{Errno, Moment, Step, Until, interruptible};
use crate::conn::End;
use crate::conn::flags::{FROZEN, HOSTED, KERNEL_HINT, LEFTOVER, SHUT_RD};
use crate::kernel::{Look, has_ended, look};
use crate::stretch::had;

/// Time after which a program that polls an empty ring has the kernel asked, in units of 1024 ns:
/// whoever looks now and then always learns of the end, whoever looks all the time does not pay for
/// it each time.
const VISIT_AFTER: u32 = 20;

/// Bytes in the kernel socket of a receiver in the ring. A mark comes before the bytes of which it tells; those
/// that have none were sent by a thread while another one closed the descriptor, and are the last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Unexplained {
    /// A mark has come meanwhile.
    Marked,
    /// The end is behind them.
    Last,
    /// The end is still to come.
    NotYet,
}

impl End<'_> {
    /// `None`: go on, with the next stretch if a mark was passed.
    pub(super) fn ring_stretch(
        &self,
        call: &mut impl Incoming,
        blocking: bool,
        marks: u32,
    ) -> Looked {
        let (cursor, prod) = (&self.record.rx.cursor, &self.theirs.prod);
        if self.has(FROZEN | LEFTOVER) && !call.is_leftover() && !self.may_read_on(call, marks)? {
            return Ok(None);
        }
        let want = call.want();
        let place = cursor.readable(prod, self.ring, want as u64)?;
        if !place.is_empty() {
            return self.read_ring(call, blocking, place);
        }
        if !Grants::are_possible(prod, self.record.rx.grants.load(Relaxed)) {
            return Err(Violation::Grants);
        }
        if want == 0 && cursor.refresh(prod, self.ring)? > 0 {
            return Ok(Some(Step::Done));
        }
        if let Some(at) = RxCursor::next_mark(prod, marks)? {
            // It is set after all bytes in the ring.
            if cursor.refresh(prod, self.ring)? == 0 {
                let had = had(at, cursor.pos(), self.ring).ok_or(Violation::Marks)?;
                self.pass_into_tcp(had);
            }
            return Ok(None);
        }
        self.ask_kernel(call, blocking, marks)
    }

    /// Bytes that are there. `None`: go on.
    #[inline(always)]
    fn read_ring(&self, call: &mut impl Incoming, blocking: bool, place: Span) -> Looked {
        if let Some(looked) = call.takes_otherwise(place) {
            return looked;
        }
        if call.is_bad() {
            return Ok(Some(Step::Failed(Errno::FAULT)));
        }
        if !self.take(call, place)? {
            return Ok(None);
        }
        call.receives(place.len());
        // A handler above the telling may have passed some.
        let marks = self.record.rx.marks.load(Relaxed);
        let mark = RxCursor::next_mark(&self.theirs.prod, marks)?;
        let looks = call.only_looks();
        let seen = self.record.rx.cursor.pos() + place.len() as u64;
        if looks
            && call.got() < call.total()
            && let Some(at) = mark.filter(|at| *at <= seen)
        {
            // What lies beyond the mark, in the kernel socket, belongs to the same call.
            call.look_behind(seen - at);
        }
        let is_whole = call.got() >= call.total() || looks;
        if is_whole && mark.is_some() {
            // What comes twice takes room in the kernel socket, without which there is no news of more.
            call.settle();
        }
        let is_done = is_whole || (is_satisfied(call, blocking) && mark.is_none());
        Ok(is_done.then_some(Step::Done))
    }

    /// Of one that has left: whether it reads on in the ring. The peer sends what is left there once more, after a mark that
    /// stands where this end stopped. A mark further on is of a peer that left by itself: nothing comes twice.
    #[cold]
    fn may_read_on(&self, call: &mut impl Incoming, marks: u32) -> Result<bool, Violation> {
        Ok(match RxCursor::next_mark(&self.theirs.prod, marks)? {
            Some(_) if self.had_at_mark(true).is_some() => {
                call.settle();
                false
            }
            Some(_) => true,
            None if self.is_left_alone(call, marks)? => {
                self.put(FROZEN, false);
                // The end that it was told by: behind what is in the ring.
                self.put(KERNEL_HINT, true);
                true
            }
            None => call.stay(),
        })
    }

    /// True when the peer ended its direction before it heard that this side leaves, or was killed: nothing
    /// comes once more over TCP, and what is left is in the ring alone.
    fn is_left_alone(&self, call: &impl Incoming, marks: u32) -> Result<bool, Violation> {
        if self.has(SHUT_RD) {
            // The kernel tells of this side's own end then.
            let ended = self.theirs.prod.fin.load(Acquire) != 0;
            return Ok(ended && RxCursor::next_mark(&self.theirs.prod, marks)?.is_none());
        }
        Ok(match look(&call.socket()) {
            Look::Bytes(_) => self.unexplained(call, marks)? == Unexplained::Last,
            // The mark comes before all bytes that are sent once more, and before the end.
            Look::Eof if self.awaits_end() => false,
            Look::Eof | Look::Error => RxCursor::next_mark(&self.theirs.prod, marks)?.is_none(),
            Look::Silent | Look::OwnEnd => false,
        })
    }

    /// What bytes in the kernel socket are while this side reads the ring.
    fn unexplained(&self, call: &impl Incoming, marks: u32) -> Result<Unexplained, Violation> {
        if RxCursor::next_mark(&self.theirs.prod, marks)?.is_some() {
            Ok(Unexplained::Marked)
        } else if self.theirs.prod.fin.load(Acquire) != 0
            || (!self.is_behind() && has_ended(&call.socket()))
        {
            Ok(Unexplained::Last)
        } else if self.is_behind() {
            // The agents may be settling a link that has failed: the peer's has told it, and this one is about to tell this end.
            if call.is_cut_off() { Err(Violation::Marks) } else { Ok(Unexplained::NotYet) }
        } else if call.is_unmarked_for_long() {
            Err(Violation::Marks)
        } else {
            Ok(Unexplained::NotYet)
        }
    }

    /// The ring is empty: is that the end?
    fn ask_kernel(&self, call: &mut impl Incoming, blocking: bool, marks: u32) -> Looked {
        if self.is_to_follow() {
            return Ok(Some(Step::Follow));
        }
        let rx = &self.record.rx;
        let is_due = !blocking && self.visit_is_due(call.now());
        let announced = self.theirs.prod.fin.load(Relaxed) != 0;
        let hinted = announced || self.has(KERNEL_HINT | SHUT_RD);
        if !is_due && !hinted {
            return Ok(Some(nothing(call, blocking, Until::Ring)));
        }
        let look = || if announced { call.await_end() } else { look(&call.socket()) };
        let (look, alone) = interruptible(&rx.copying, look);
        if matches!(look, Look::Eof | Look::OwnEnd | Look::Error) {
            // What is in the ring comes first, and nobody tells of the end again.
            self.put(KERNEL_HINT, true);
        }
        if !alone {
            return Ok(None);
        }
        // Before the last look into the ring: what the link brings until then is there.
        let awaits_end = self.awaits_end();
        // What was put into the ring before the end comes first.
        if rx.cursor.refresh(&self.theirs.prod, self.ring)? > 0 {
            // Unless the call is for no bytes, which `ring_stretch` has seen to.
            return Ok(None);
        }
        if look == Look::Eof && awaits_end {
            return ahead_of_link(call, blocking).map(Some);
        }
        // Also an end that is behind bytes: it is told once.
        self.put(KERNEL_HINT, look != Look::Silent);
        if look == Look::Silent {
            rx.unmarked.store(0, Relaxed);
        }
        Ok(Some(match look {
            Look::Eof | Look::OwnEnd => at_end(self.record, Some(*self), call),
            Look::Error => match failure(self.record, call) {
                Failure::BehindFin if awaits_end => ahead_of_link(call, blocking)?,
                Failure::BehindFin => at_end(self.record, Some(*self), call),
                Failure::Told(step) => step,
            },
            Look::Bytes(_) => match self.unexplained(call, marks)? {
                // What was put into the ring before them comes first, also what has come meanwhile.
                Unexplained::Last if rx.cursor.refresh(&self.theirs.prod, self.ring)? == 0 => {
                    return Ok(self.read_last(call, blocking));
                }
                Unexplained::Marked | Unexplained::Last => return Ok(None),
                Unexplained::NotYet => nothing(call, blocking, Until::Ring),
            },
            Look::Silent if is_due && self.is_abandoned(call) => return Err(Violation::Grants),
            // The end was announced and is on its way.
            Look::Silent if hinted => nothing(call, blocking, Until::Both),
            Look::Silent => nothing(call, blocking, Until::Ring),
        }))
    }

    /// Reads the last bytes of the direction, which no mark tells of.
    fn read_last(&self, call: &mut impl Incoming, blocking: bool) -> Option<Step> {
        match read(call, usize::MAX) {
            Read::Bytes if is_satisfied(call, blocking) => Some(Step::Done),
            Read::Bytes | Read::Nothing => None,
            Read::Eof => Some(at_end(self.record, Some(*self), call)),
            Read::Error(error) => Some(failed(self.record, call, error)),
        }
    }

    /// True where nobody brings what would come, or takes what this side has sent: the agent is gone. On behalf of who never sleeps.
    pub(super) fn is_abandoned(&self, call: &impl Incoming) -> bool {
        self.has(HOSTED) && call.is_cut_off() && self.is_stranded()
    }

    pub(super) fn visit_is_due(&self, now: u64) -> bool {
        #[allow(clippy::cast_possible_truncation, reason = "the low half will do")]
        let now = (now >> 10) as u32;
        let visited = &self.record.rx.visited;
        let is_due = now.wrapping_sub(visited.load(Relaxed)) >= VISIT_AFTER;
        if is_due {
            visited.store(now, Relaxed);
        }
        is_due
    }

    /// Copies and takes (or only looks at) what is there. False when a signal handler has taken it, or another program.
    #[inline(always)]
    pub(super) fn take(&self, call: &mut impl Incoming, place: Span) -> Result<bool, Violation> {
        let rx = &self.record.rx;
        let granted = self.has_grants();
        let passed = if granted {
            let passed = call.copy_granted(place)?;
            if passed.is_none() {
                call.has_copied();
                return Ok(false);
            }
            passed
        } else {
            if !interruptible(&rx.copying, || call.copy(place)).1 {
                return Ok(false);
            }
            None
        };
        call.reaches(Moment::Copied);
        let takes = !call.only_looks();
        if takes && call.claims(place.len()) {
            self.pass_over(call, place.len(), passed);
            return Ok(true);
        }
        if granted {
            call.has_copied();
        }
        Ok(!takes)
    }

    /// True when some of the next bytes may be granted.
    #[inline]
    #[must_use]
    pub fn has_grants(&self) -> bool {
        // SYNC POINT prod: what covers a grant was read before this look.
        self.theirs.prod.grants.load(Relaxed) != self.record.rx.grants.load(Relaxed)
    }

    /// The program has got `n` bytes, and with them what was granted up to this entry.
    #[inline]
    pub fn pass_over(&self, call: &impl Incoming, n: usize, grants: Option<u32>) {
        let rx = &self.record.rx;
        // Together: a relative of one that was killed is not to take for bytes in the ring what was granted.
        let passes = grants.is_some_and(|grants| grants != rx.grants.load(Relaxed));
        let note = || {
            if let Some(grants) = grants.filter(|_| passes) {
                rx.grants.store(grants, Release);
            }
        };
        let look = rx.cursor.consume_noting(&self.mine.cons, self.ring, n as u64, note);
        if grants.is_some() {
            call.has_copied();
        }
        rx.bytes.store(rx.bytes.load(Relaxed) + n as u64, Relaxed);
        rx.messages.store(rx.messages.load(Relaxed) + 1, Relaxed);
        call.reaches(Moment::Taken);
        // Who has granted waits for its memory, not for room: for the last byte of an entry.
        if look || passes {
            interruptible(&rx.copying, || call.tell());
            call.reaches(Moment::Told);
        }
    }

    /// Passes the open mark that leads into the ring.
    #[cold]
    pub(super) fn pass_into_ring(&self, call: &impl Incoming, marks: u32, is_late: bool) {
        let next = marks.wrapping_add(1);
        self.record.rx.marks.store(next, Relaxed);
        self.mine.cons.marks_passed.store(next, Release);
        call.reaches(Moment::Passed);
        call.has_passed(is_late);
    }
}
