//! A receiver in a TCP stretch.

use core::sync::atomic::Ordering::Relaxed;

use shunt_shm::Violation;
use shunt_shm::grants::Grants;
use shunt_shm::ring::RxCursor;

use super::{
    Failure, Incoming, Looked, Read, ahead_of_link, at_end, failed, failure, is_satisfied, nothing,
    read,
};
use crate::call::{Step, Until};
use crate::conn::End;
use crate::conn::flags::{HOSTED, KERNEL_HINT};
use crate::handshake::Phase;
use crate::kernel::{KernelSocket, Look, Progress, look, progress};
use crate::stretch::{BeforeMark, before_mark, reached_tcp_end};

impl End<'_> {
    /// `None`: go on with the next stretch.
    pub(super) fn tcp_stretch(
        &self,
        call: &mut impl Incoming,
        blocking: bool,
        marks: u32,
    ) -> Looked {
        // Who never waits is here before it has heard that the peer left.
        if (self.is_to_follow() || self.is_let_go()) && self.phase() == Phase::Active {
            return Ok(Some(Step::Follow));
        }
        // The other machine is gone: its kernel would not say so for a long time.
        if !Grants::are_possible(&self.theirs.prod, self.record.rx.grants.load(Relaxed)) {
            return Err(Violation::Grants);
        }
        if !call.drop_repeated() {
            let is_end = look(&call.socket()) == Look::OwnEnd;
            return Ok(Some(match is_end {
                true => at_end(self.record, Some(*self), call),
                false => nothing(call, blocking, Until::Kernel),
            }));
        }
        // Bytes in front of urgent data come alone, also those that lay in the ring.
        if call.got() > 0 && call.socket().is_at_urgent_mark() {
            return Ok(Some(Step::Done));
        }
        let next = RxCursor::next_mark(&self.theirs.prod, marks)?;
        if next == Some(0) && marks == 0 {
            // The sender was in the ring from the beginning.
            self.pass_into_ring(call, marks, false);
            return Ok(None);
        }
        let Some(at) = next else { return self.without_mark(call, blocking, marks) };
        let over = Progress { read: u64::MAX, arrived: u64::MAX };
        let Progress { read: so_far, arrived } = progress(&call.socket(), at).unwrap_or(over);
        let look = if so_far < at { look(&call.socket()) } else { Look::Silent };
        if look == Look::OwnEnd {
            return Ok(Some(at_end(self.record, Some(*self), call)));
        }
        let is_over = matches!(look, Look::Eof | Look::Error);
        Ok(match before_mark(at, so_far, arrived, is_over) {
            BeforeMark::Pass => {
                if is_over {
                    // Told in this stretch, and not again in the next one.
                    self.put(KERNEL_HINT, true);
                }
                self.pass_into_ring(call, marks, true);
                None
            }
            BeforeMark::Lost if look == Look::Eof => Some(at_end(self.record, Some(*self), call)),
            BeforeMark::Lost => Some(match failure(self.record, call) {
                Failure::Told(step) => step,
                Failure::BehindFin => at_end(self.record, Some(*self), call),
            }),
            // What lies behind the mark in the kernel socket belongs to a later stretch.
            BeforeMark::Read(most) => match read(call, usize::try_from(most).unwrap_or(usize::MAX))
            {
                Read::Bytes => self.after_tcp(call, blocking)?,
                // The ring holds nothing that could be read yet.
                Read::Nothing => Some(nothing(call, blocking, Until::Kernel)),
                Read::Eof => Some(at_end(self.record, Some(*self), call)),
                Read::Error(error) => Some(failed(self.record, call, error)),
            },
        })
    }

    /// The same when no mark is open. One may come at any moment, and behind it bytes of a later stretch: a
    /// sender that can't stay in the ring does not wait until it has been seen there. So nothing is read but
    /// what was there before a look that found no mark.
    fn without_mark(&self, call: &mut impl Incoming, blocking: bool, marks: u32) -> Looked {
        let look = look(&call.socket());
        if RxCursor::next_mark(&self.theirs.prod, marks)?.is_some() {
            if matches!(look, Look::Eof | Look::Error) {
                // Told in this stretch, and not again in the next one.
                self.put(KERNEL_HINT, true);
            }
            return Ok(None);
        }
        let most = match look {
            Look::Bytes(there) => usize::try_from(there).unwrap_or(usize::MAX),
            // What was sent may lie in a ring from which nobody takes it.
            Look::Silent
                if !blocking
                    && self.has(HOSTED)
                    && self.visit_is_due(call.now())
                    && self.is_abandoned(call) =>
            {
                return Err(Violation::Grants);
            }
            // The kernel does not count what is behind urgent data.
            Look::Silent if !call.socket().is_at_urgent_mark() => {
                return Ok(Some(nothing(call, blocking, Until::Both)));
            }
            // It is the next call's to tell: once.
            Look::Error if call.got() > 0 => return Ok(Some(Step::Done)),
            // What comes nevertheless may be of a later stretch by the time of a read.
            Look::OwnEnd if !call.socket().is_at_urgent_mark() => {
                return Ok(Some(at_end(self.record, Some(*self), call)));
            }
            // Behind the end nothing comes.
            Look::Silent | Look::Eof | Look::OwnEnd | Look::Error => usize::MAX,
        };
        // With the door shut: a handler above would take what was there, and the read what came since, of a later stretch.
        Ok(match read(call, most) {
            Read::Bytes => self.after_tcp(call, blocking)?,
            Read::Nothing => Some(nothing(call, blocking, Until::Both)),
            // A mark, and what lies behind it, may be on their way.
            Read::Eof if self.awaits_end() => Some(ahead_of_link(call, blocking)?),
            // End of file, unless the sender went on in the ring before it closed.
            Read::Eof => {
                let mark = RxCursor::next_mark(&self.theirs.prod, marks)?;
                if mark.is_some() {
                    self.put(KERNEL_HINT, true);
                }
                mark.is_none().then(|| at_end(self.record, Some(*self), call))
            }
            Read::Error(error) => Some(failed(self.record, call, error)),
        })
    }

    /// After bytes from the kernel socket. `None`: go on.
    fn after_tcp(&self, call: &mut impl Incoming, blocking: bool) -> Looked {
        // A handler above the read may have passed some.
        let marks = self.record.rx.marks.load(Relaxed);
        let mark = RxCursor::next_mark(&self.theirs.prod, marks)?;
        let looks = call.only_looks();
        // A short read tells edge-triggered programs that there is no more: so the bytes on
        // the other side of the mark belong to the same call.
        if let Some(at) = mark.filter(|_| looks && call.got() < call.total()) {
            self.look_into_ring(call, at)?;
        }
        let is_whole = call.got() >= call.total() || looks;
        let is_done = is_whole || (is_satisfied(call, blocking) && mark.is_none());
        Ok(is_done.then_some(Step::Done))
    }

    /// A look that saw all that is left of the stretch before the mark goes on in the ring. The kernel socket may hold
    /// more, of a sender that has left the ring already.
    fn look_into_ring(&self, call: &mut impl Incoming, at: u64) -> Result<(), Violation> {
        let seen = call.got() as u64;
        let all_seen = progress(&call.socket(), at)
            .is_some_and(|progress| reached_tcp_end(progress.read + seen, at));
        if !all_seen || call.is_bad() {
            return Ok(());
        }
        let want = (call.total() - call.got()) as u64;
        let place = self.record.rx.cursor.readable(&self.theirs.prod, self.ring, want)?;
        if self.take(call, place)? {
            call.receives(place.len());
        }
        Ok(())
    }
}
