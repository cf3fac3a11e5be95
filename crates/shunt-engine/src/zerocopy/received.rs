//! Where a receiver's next bytes are, and what it does with them. With the lock of the receiving direction held.

use core::cell::Cell;
use core::sync::atomic::Ordering::{Relaxed, Release};

use shunt_shm::Violation;
use shunt_shm::grants::Source;
use shunt_shm::handover;
use shunt_shm::region::DECLINED;
use shunt_shm::ring::Span;
use shunt_shm::sync::AtomicU32;

use crate::call::interruptible;
use crate::conn::End;
use crate::zerocopy::order;
use crate::zerocopy::pipes::PipeRead;
use crate::zerocopy::ports::{Borrower, Bytes};

/// Some of a receiver's next bytes.
#[derive(Clone, Copy, Debug)]
pub struct Found<M, P> {
    /// Their place in the ring.
    pub span: Span,
    /// Where they are instead.
    pub held: Where<M, P>,
}

/// Where they are.
#[derive(Clone, Copy, Debug)]
pub enum Where<M, P> {
    /// In the ring.
    Ring,
    /// Here, as long as this entry says so.
    Mapped(u32, M),
    /// In a pipe.
    Piped(PipeRead<P>),
}

/// How a look at a receiver's next bytes has come out: the number of entries that lie behind them, for
/// [`RxState::grants`](shunt_shm::arena::RxState::grants) once the bytes were taken. `None`: some are in pipes that another
/// process of this end has accepted. They are here now, and whoever has begun without them looks anew.
pub type Passed = Result<Option<u32>, Violation>;

/// What a call does with a receiver's next bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// They go to the program.
    Copied,
    /// The same, and they stay where they are.
    Seen,
    /// They are passed over.
    Dropped,
}

impl End<'_> {
    /// Does `look`, which copies what is there and may be granted, such that a signal handler may come meanwhile: not where bytes
    /// may be read from pipes, of which it is told, and which `reads_pipes` notes. `None`: look again, as one has come, or as the pipes
    /// have only just been found.
    ///
    /// # Errors
    /// Those of `look`; and a process was killed that read from pipes.
    #[inline]
    pub fn looking<T>(
        &self,
        has_pipes: bool,
        reads_pipes: &Cell<bool>,
        look: impl FnOnce(bool) -> Result<Option<T>, Violation>,
    ) -> Result<Option<T>, Violation> {
        let rx = &self.record.rx;
        if has_pipes {
            rx.pipe_reads.begin()?;
            reads_pipes.set(true);
            return look(true);
        }
        let (looked, alone) = interruptible(&rx.copying, || look(false));
        if alone { looked } else { Ok(None) }
    }

    /// Calls `each` for the parts of `span`, the receiver's next bytes, as long as it says to go on. `reads_pipes`: they may be read from
    /// pipes ([`PipeReads::begin`](shunt_shm::grants::PipeReads::begin)).
    ///
    /// # Errors
    /// The peer breaks the protocol.
    pub fn each_part<B: Borrower>(
        &self,
        port: &B,
        (span, reads_pipes): (Span, bool),
        mut each: impl FnMut(Found<B::Mapped, B::Pipes>) -> Result<bool, Violation>,
    ) -> Passed {
        let mut anew = false;
        let passed = self.each_source(port, span, |span, source| {
            let mut held = Where::Ring;
            if let Source::Granted { number, part, skip, len } = source {
                let from = part.from.checked_add(skip).ok_or(Violation::Grants)?;
                let find = || port.find(part.region, from, len);
                // Another process of this end may have accepted the offer.
                let bytes = find().or_else(|| port.take_up(part.region).then(find)?);
                held = match bytes.ok_or(Violation::Grants)? {
                    Bytes::Mapped(bytes) => Where::Mapped(number, bytes),
                    Bytes::Piped(_) if !reads_pipes => {
                        anew = true;
                        return Ok(false);
                    }
                    Bytes::Piped(pipes) => {
                        Where::Piped(PipeRead::new(self, pipes, number, (&part, skip))?)
                    }
                };
            }
            each(Found { span, held })
        })?;
        Ok((!anew).then_some(passed))
    }

    /// The same, with where the bytes should be.
    fn each_source(
        &self,
        port: &impl Borrower,
        span: Span,
        mut each: impl FnMut(Span, Source) -> Result<bool, Violation>,
    ) -> Result<u32, Violation> {
        let passed = AtomicU32::new(self.record.rx.grants.load(Relaxed));
        let (mut pos, mut left) = (self.record.rx.cursor.pos(), span);
        loop {
            let offered = |region| {
                let answer = if port.take_up(region) { region } else { region | DECLINED };
                self.mine.ctl.accepted.store(answer, Release);
            };
            // Also with nothing left: who is told that its bytes were taken may use the entries again.
            let next = (pos, left.len() as u64);
            let source = port.entries().source(&self.theirs.prod, &passed, next, offered)?;
            if left.is_empty() {
                let passed = passed.load(Relaxed);
                if passed != self.record.rx.grants.load(Relaxed) {
                    self.fetches_ahead(port, passed);
                }
                return Ok(passed);
            }
            let n = match source {
                Source::Ring(n) | Source::Granted { len: n, .. } => n,
            };
            let (part, rest) = left.split(usize::try_from(n).unwrap_or(usize::MAX));
            if !each(part, source)? {
                return Ok(passed.load(Relaxed));
            }
            (pos, left) = (pos + part.len() as u64, rest);
        }
    }

    /// What comes behind the next entry is mostly a header, which lies by itself: its lines are on their way from the sender's
    /// processor while the program looks at what is in front of it.
    fn fetches_ahead(&self, port: &impl Borrower, number: u32) {
        let end = port.entries().end_of(&self.theirs.prod, number);
        let place = |end| self.record.rx.cursor.place_of(end, self.ring);
        if let Some(at) = end.and_then(place) {
            port.fetch_ahead(at, number.wrapping_add(1));
        }
    }

    /// Goes past `span`, the receiver's next bytes, wherever they are: the number of entries that lie behind them.
    ///
    /// # Errors
    /// The peer breaks the protocol.
    pub fn pass_granted(&self, port: &impl Borrower, span: Span) -> Result<u32, Violation> {
        self.each_source(port, span, |_, _| Ok(true))
    }

    /// The sender may be about to send once more what this end reads: from the ring, where it finds nothing in a pipe.
    fn may_be_repeated(&self) -> bool {
        handover::has_left(&self.mine.ctl.handed_over)
    }

    /// Does that with `span`, the receiver's next bytes. Returns what [`Self::each_part`] does.
    ///
    /// # Errors
    /// The peer breaks the protocol.
    pub fn take_granted<B: Borrower>(
        &self,
        port: &B,
        what: Use,
        (span, reads_pipes): (Span, bool),
    ) -> Passed {
        let mut at = 0;
        self.each_part(port, (span, reads_pipes), |Found { span, held }| {
            let from_ring = match (held, what) {
                (Where::Piped(read), Use::Copied) if !self.may_be_repeated() => {
                    read.copy_out((self, port), at, span)?;
                    false
                }
                (Where::Piped(read), _) => {
                    read.into_ring((self, port), span)?;
                    true
                }
                (Where::Mapped(number, bytes), Use::Copied | Use::Seen) => {
                    let copy = || port.copy_mapped(at, bytes, span.len());
                    !order::copy(port.entries(), number, copy)
                }
                (Where::Mapped(..), Use::Dropped) | (Where::Ring, _) => true,
            };
            if from_ring && what != Use::Dropped {
                port.copy_ring(at, span);
            }
            at += span.len();
            Ok(true)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::enter;
    use crate::zerocopy::choice::Hint;
    use crate::zerocopy::model::{Pair, Process, Reader, byte};
    use crate::zerocopy::ports::To;
    use shunt_shm::grants::Part;

    const LEN: usize = 8192;

    fn original(address: usize, len: usize) -> Vec<u8> {
        (address..address + len).map(byte).collect()
    }

    #[test]
    fn what_is_taken_back_in_the_middle_of_a_copy_comes_from_the_ring() {
        let pair = Pair::default();
        pair.knows(Process::REGION);
        let process = Process::of(&pair);
        for what in [Use::Seen, Use::Copied] {
            process.memory.replace((0..Process::LEN).map(byte).collect());
            process.sends(0, LEN);
            let reader = Reader::of(&process);
            reader.loses.set(true);
            assert_eq!(reader.does(what, LEN as u64), original(0, LEN), "{what:?}");
            assert!(!reader.loses.get());
            reader.does(Use::Dropped, if what == Use::Seen { LEN as u64 } else { 0 });
        }
    }

    #[test]
    fn what_a_receiver_that_has_left_reads_from_pipes_is_in_the_ring_too() {
        let pair = Pair::default();
        let process = Process::with_pipes(&pair);
        process.sends(Process::PRIVATE, LEN);
        handover::leave(&pair.sections[1].ctl.handed_over, || 1);
        let read = Reader::of(&process).does(Use::Copied, 3000);
        assert_eq!(read, original(Process::PRIVATE, 3000));
        assert!(pair.granting().take_back(&process));
        let ring: Vec<u8> = pair.ring[..LEN].iter().map(Cell::get).collect();
        assert_eq!(ring, original(Process::PRIVATE, LEN), "all that may be sent once more");
    }

    #[test]
    fn an_offer_is_answered_before_the_bytes_behind_it_are_read() {
        for maps in [true, false] {
            let pair = Pair::default();
            let process = Process::of(&pair);
            pair.granting().offer(&process, Process::REGION, false);
            process.sends(0, 10);
            let reader = Reader { maps, ..Reader::of(&process) };
            reader.mapped.borrow_mut().clear();
            assert_eq!(reader.does(Use::Copied, 10), original(0, 10));
            let answer = if maps { Process::REGION } else { Process::REGION | DECLINED };
            assert_eq!(pair.sections[1].ctl.accepted.load(Relaxed), answer);
            let piece = pair.granting().piece(&process, Hint::Auto, (Process::BASE, LEN));
            assert_eq!(piece.is_ok(), maps);
        }
    }

    #[test]
    fn memory_that_a_relative_has_accepted_is_mapped_when_it_is_needed() {
        let pair = Pair::default();
        pair.knows(Process::REGION);
        let process = Process::of(&pair);
        process.sends(0, LEN);
        let mut reader = Reader::of(&process);
        reader.mapped.borrow_mut().clear();
        assert_eq!(reader.does(Use::Seen, u64::MAX), original(0, LEN));
        reader.maps = false;
        reader.mapped.borrow_mut().clear();
        let look = (pair.next(u64::MAX), true);
        let taken = pair.receiver().take_granted(&reader, Use::Copied, look);
        assert_eq!(taken, Err(Violation::Grants));
    }

    #[test]
    fn grants_beyond_the_memory_break_the_protocol() {
        for from in [Process::PRIVATE as u64 - 50, u64::MAX - 5] {
            let pair = Pair::default();
            pair.knows(Process::REGION);
            let (process, prod) = (Process::of(&pair), &pair.sections[0].prod);
            let part = Part { at: 0, len: 100, region: Process::REGION, from };
            pair.entries.put(prod, 0, &part);
            process.publishes(100, false);
            let reader = Reader::of(&process);
            *reader.places.borrow_mut() = vec![0; 100];
            // The receiver is in the middle of it.
            let _ = pair.records[1].rx.cursor.refresh(prod, Pair::RING);
            let _ = pair.records[1].rx.cursor.consume(&pair.sections[1].cons, Pair::RING, 10);
            let look = (pair.next(90), true);
            let taken = pair.receiver().take_granted(&reader, Use::Copied, look);
            assert_eq!(taken, Err(Violation::Grants), "{from:x}");
        }
    }

    #[test]
    fn a_look_that_must_not_read_pipes_begins_anew_when_it_finds_some() {
        let pair = Pair::default();
        let process = Process::with_pipes(&pair);
        process.sends(Process::PRIVATE, LEN);
        let reader = Reader::of(&process);
        *reader.places.borrow_mut() = vec![0; LEN];
        let (end, span) = (pair.receiver(), pair.next(u64::MAX));
        assert_eq!(end.take_granted(&reader, Use::Copied, (span, false)), Ok(None));
        assert_eq!(process.pipes[0].borrow().len(), LEN, "nothing was read");
        assert_eq!(end.take_granted(&reader, Use::Copied, (span, true)), Ok(Some(1)));
    }

    #[test]
    fn entries_of_bytes_that_are_passed_over_are_passed_too() {
        let pair = Pair::default();
        pair.knows(Process::REGION);
        let process = Process::of(&pair);
        for n in 0..3 {
            process.sends(n * LEN, LEN);
        }
        let (end, reader) = (pair.receiver(), Reader::of(&process));
        let passed = |n| end.pass_granted(&reader, pair.next(n)).unwrap();
        let lens = [LEN as u64 - 1, LEN as u64, 2 * LEN as u64 + 5, 3 * LEN as u64];
        assert_eq!(lens.map(passed), [0, 1, 2, 3]);
    }

    #[test]
    fn a_handler_may_look_above_a_copy_but_not_above_a_read_from_pipes() {
        let pair = Pair::default();
        let (end, reads_pipes) = (pair.receiver(), Cell::new(false));
        let copying = &pair.records[1].rx.copying;
        assert_eq!(
            end.looking(false, &reads_pipes, |may_read| Ok(Some(may_read))),
            Ok(Some(false))
        );
        let intrudes = |_| {
            assert!(enter(true, copying).is_some());
            Ok(Some(()))
        };
        assert_eq!(end.looking(false, &reads_pipes, intrudes), Ok(None));
        assert!(!reads_pipes.get());
        let reads = |may_read| {
            assert!(enter(true, copying).is_none());
            Ok(Some(may_read))
        };
        assert_eq!(end.looking(true, &reads_pipes, reads), Ok(Some(true)));
        assert!(reads_pipes.get());
        // The one that did so was killed before it could note what it had read.
        assert_eq!(end.looking(true, &reads_pipes, reads), Err(Violation::Grants));
        end.record.rx.pipe_reads.end();
        assert_eq!(end.looking(true, &reads_pipes, reads), Ok(Some(true)));
    }

    #[test]
    fn places_for_pulled_bytes_move_on() {
        let span = Span { head: (100, 10), tail: (0, 20) };
        assert_eq!(To::Ring(span).after(15), To::Ring(span.split(15).1));
        assert_eq!(To::Program(5).after(15), To::Program(20));
    }
}
