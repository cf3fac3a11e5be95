//! Private memory that is sent without copies: pinned in pipes by the sender, from which the receiver copies it once.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use shunt_shm::Violation;
use shunt_shm::grants::{Grants, Held, Lane, Part};
use shunt_shm::region::DECLINED;
use shunt_shm::ring::Span;
use shunt_shm::sync::store_load_fence;
use shunt_shm::zerocopy::Open;
use shunt_wire::agent::LANES;

use crate::conn::End;
use crate::pinning::{self, Costs, Pin};
use crate::zerocopy::ports::{Borrower, Lender, Memory, Piped, Restorer, Scratch, To, Unknown};
use crate::zerocopy::sender::Granting;

/// Which pipes a connection has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wanted {
    /// None, and none are to be made; or this process has not got them.
    None,
    /// None, and they are to be made.
    ToBeMade,
    /// Those of this name.
    Named(u64),
}

/// What became of pipes that were made for a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Adopted {
    /// They are its own.
    Used,
    /// They are, and must not be used: a child was forked meanwhile that has not got them.
    Unused,
    /// Another thread was quicker, or the connection is gone.
    Not,
}

/// The bytes of an open grant that are left in a pipe, of which `left` were read and the first one is the `first`th that ever went
/// through it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Left {
    /// Bytes of the grant in front of them, which the receiver has read.
    skip: usize,
    /// Bytes of the others in front of them.
    from: usize,
    len: usize,
}

impl Left {
    fn of(open: &Open, first: u64, left: usize) -> Option<Self> {
        let Lane { at, .. } = Lane::from_word(open.from);
        // What is not there any more the receiver has read.
        let read = first.saturating_sub(at).min(open.len);
        let behind = (at + read).saturating_sub(first);
        let skip = usize::try_from(read).ok()?;
        let from = usize::try_from(behind).ok()?;
        let len = usize::try_from(open.len - read).ok()?.min(left.checked_sub(from)?);
        (len > 0).then_some(Self { skip, from, len })
    }
}

impl Granting<'_> {
    /// True for a connection of which a relative would not have the pipes if they were made now: it could not take back what is
    /// pinned in them, and would have to end the connection where the peer leaves the ring. Who is forked later has them.
    fn is_shared(&self) -> bool {
        self.end.record.id.holders.count() > 1
    }

    /// The bytes of a private buffer that are to be pinned now, if any are.
    pub(super) fn private_piece(
        &self,
        memory: &impl Memory,
        len: usize,
    ) -> Result<Option<usize>, Unknown> {
        let (pinned, policy) = (&self.state.pinned, memory.policy());
        if policy.least().is_none_or(|least| len < least) || !pinned.may_be_used() {
            return Ok(None);
        }
        let name = pinned.name.load(Acquire);
        let are_not_here = if name == 0 { self.is_shared() } else { memory.pipes().is_none() };
        if are_not_here {
            return Ok(None);
        }
        let accepted = self.end.theirs.ctl.accepted.load(Acquire);
        if name == 0 || !self.state.granted.is_known(name, accepted) {
            if name != 0 && accepted == name | DECLINED {
                pinned.end();
            }
            return Err(Unknown);
        }
        let turn = pinned.turn.fetch_add(1, Relaxed);
        let receiver = Costs::from_word(self.end.theirs.ctl.costs.load(Relaxed));
        let pays = || pinning::is_pinned(turn, Costs::known(&pinned.costs), receiver);
        let is_pinned = policy != Pin::Auto || pays();
        Ok(is_pinned.then_some(len.min(pinning::PIECE)))
    }

    /// Pins up to `len` bytes: the pipes, the place in one, and how many they were.
    pub(super) fn pin(
        &self,
        lender: &impl Lender,
        address: usize,
        len: usize,
    ) -> Option<(u64, Lane, usize)> {
        let pinned = &self.state.pinned;
        let name = lender.pipes().filter(|name| *name == pinned.name.load(Relaxed))?;
        let lane = pinned.lane();
        let n = pinned.put(lane, || lender.pin(lane.index, address, len))?;
        Some((name, lane, n))
    }

    /// Which pipes are to be offered. Without the lock of the direction: the agent is told of new ones.
    #[must_use]
    pub fn wanted_pipes(&self, policy: Pin, are_here: bool) -> Wanted {
        let pinned = &self.state.pinned;
        if !pinned.may_be_used() || policy == Pin::Never {
            return Wanted::None;
        }
        match pinned.name.load(Acquire) {
            0 if self.is_shared() => Wanted::None,
            0 => Wanted::ToBeMade,
            name if are_here => Wanted::Named(name),
            _ => Wanted::None,
        }
    }

    /// New pipes become the connection's; `keep` enters them where this process and those that are forked from now on find them.
    pub fn adopt(&self, name: u64, keep: impl FnOnce()) -> Adopted {
        let pinned = &self.state.pinned;
        if pinned.name.compare_exchange(0, name, AcqRel, Relaxed).is_err() {
            return Adopted::Not;
        }
        keep();
        // A child that is counted after this look has got them.
        store_load_fence();
        if self.is_shared() {
            pinned.end();
            return Adopted::Unused;
        }
        Adopted::Used
    }

    /// Reads back what the receiver has left of what is pinned, and puts it to its places in the ring. False when the pipes are a
    /// relative's, or it is not known what is in them. Else, once the entries say so, nothing is pinned any more on the connection
    /// ([`shunt_shm::zerocopy::Pinned::end`]).
    pub(super) fn take_back_pinned(&self, restorer: &impl Restorer, opens: &[Open]) -> bool {
        let Some(mut scratch) = restorer.pipes() else { return false };
        let pinned = &self.state.pinned;
        if !pinned.begin_to_take() {
            return false;
        }
        // SYNC POINT taking: before the first read.
        opens.iter().for_each(|open| restorer.entries().begin_to_take(open.number));
        for lane in 0..LANES {
            let left = scratch.read(lane);
            let first = pinned.first_of(lane, left as u64);
            for open in opens.iter().filter(|open| Lane::from_word(open.from).index == lane) {
                if let Some(Left { skip, from, len }) = Left::of(open, first, left) {
                    let (_, place) = self.place_of(open).split(skip);
                    scratch.put(from, place.split(len).0);
                }
            }
        }
        true
    }
}

/// Some of the bytes of an entry, which are pinned: a receiver's look at them.
#[derive(Clone, Copy, Debug)]
pub struct PipeRead<P> {
    number: u32,
    pipes: P,
    lane: usize,
    /// So many of them were read already, and lie in the ring.
    pulled: usize,
}

impl<P: Copy> PipeRead<P> {
    /// Those of this entry after the first `skip`.
    pub(super) fn new(
        end: &End<'_>,
        pipes: P,
        number: u32,
        (part, skip): (&Part, u64),
    ) -> Result<Self, Violation> {
        let (lane, pulled) = end.record.rx.pipe_reads.of(part, skip)?;
        let pulled = usize::try_from(pulled - skip).unwrap_or(usize::MAX);
        Ok(Self { number, pipes, lane, pulled })
    }

    /// Reads those of `span` to their places in the ring that are not there.
    pub(super) fn into_ring<B: Borrower<Pipes = P>>(
        self,
        (end, port): (&End<'_>, &B),
        span: Span,
    ) -> Result<(), Violation> {
        let (_, rest) = span.split(self.pulled);
        self.read_to_ring((end, port), rest)
    }

    fn read_to_ring<B: Borrower<Pipes = P>>(
        self,
        (end, port): (&End<'_>, &B),
        rest: Span,
    ) -> Result<(), Violation> {
        if rest.is_empty() {
            return Ok(());
        }
        self.read((end, port), To::Ring(rest), rest.len()).map(drop)
    }

    /// Copies those of `span`, wherever they are, to the program's places after the first `at` of the look.
    pub(super) fn copy_out<B: Borrower<Pipes = P>>(
        self,
        (end, port): (&End<'_>, &B),
        at: usize,
        span: Span,
    ) -> Result<(), Violation> {
        let (here, rest) = span.split(self.pulled);
        port.copy_pulled(at, here);
        let at = at + here.len();
        let read =
            port.timed(rest.len(), || self.read((end, port), To::Program(at), rest.len()))?;
        let (_, back) = rest.split(read);
        // Where the program's place is none, as a copy will find, or nothing was left in the pipe.
        self.read_to_ring((end, port), back)?;
        port.copy_pulled(at + read, back);
        Ok(())
    }

    /// Reads up to `len` bytes: how many. The others are in the ring.
    fn read<B: Borrower<Pipes = P>>(
        self,
        (end, port): (&End<'_>, &B),
        to: To,
        len: usize,
    ) -> Result<usize, Violation> {
        port.uncancelled(|| self.read_all((end, port), to, len))
    }

    fn read_all<B: Borrower<Pipes = P>>(
        self,
        (end, port): (&End<'_>, &B),
        to: To,
        len: usize,
    ) -> Result<usize, Violation> {
        let entries: &Grants = port.entries();
        let (mut done, mut since) = (0, None);
        while done < len {
            match port.read_pipe((self.pipes, self.lane), to.after(done), len - done) {
                Piped::Bytes(n) => {
                    end.record.rx.pipe_reads.add(self.lane, n as u64);
                    done += n;
                    continue;
                }
                Piped::Interrupted => continue,
                // A place of the program's that is none.
                Piped::BadPlace => return Ok(done),
                Piped::Nothing => {}
            }
            match entries.held(self.number) {
                Held::TakenBack => break,
                Held::Taking if port.waits(&mut since) => {}
                // Or the sender was killed in the middle of it.
                Held::Taking | Held::Granted => return Err(Violation::Grants),
            }
        }
        Ok(done)
    }
}

impl End<'_> {
    /// Tells the sender what copies take here, if that is news.
    pub fn tell_costs(&self) {
        let (told, now) = (&self.mine.ctl.costs, Costs::known(&self.record.rx.costs));
        // The word is on a line of which the sender looks at others, too.
        if Costs::from_word(told.load(Relaxed)).differ(now) {
            told.store(now.to_word(), Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zerocopy::choice::Hint;
    use crate::zerocopy::granting::Put;
    use crate::zerocopy::model::{Pair, Process, Reader, byte};
    use crate::zerocopy::numbers::Outcome;
    use crate::zerocopy::received::Use;
    use shunt_shm::holders::Member;

    const AT: usize = Process::PRIVATE;
    const LEN: usize = 20_000;

    fn original(skip: usize, len: usize) -> Vec<u8> {
        (AT + skip..AT + skip + len).map(byte).collect()
    }

    #[test]
    fn pinned_bytes_come_once_and_in_order_whatever_is_done_with_them() {
        let pair = Pair::default();
        let process = Process::with_pipes(&pair);
        for n in 0..2 {
            assert_eq!(process.sends(AT + n * LEN, LEN), (Put::Granted(LEN), LEN));
        }
        assert_eq!(process.pipes.each_ref().map(|pipe| pipe.borrow().len()), [LEN; 2]);
        let reader = Reader::of(&process);
        reader.interrupts.set(3);
        assert_eq!(reader.does(Use::Seen, 5000), original(0, 5000));
        assert_eq!(reader.does(Use::Copied, 3000), original(0, 3000), "from the ring");
        assert_eq!(reader.does(Use::Copied, 4000), original(3000, 4000), "from both");
        reader.does(Use::Dropped, 1000);
        assert_eq!(reader.does(Use::Copied, 12_500), original(8000, 12_500));
        assert_eq!(reader.does(Use::Copied, u64::MAX), original(20_500, 19_500));
    }

    #[test]
    fn what_does_not_fit_into_the_programs_place_is_in_the_ring() {
        let pair = Pair::default();
        let process = Process::with_pipes(&pair);
        process.sends(AT, LEN);
        let reader = Reader { bad_from: 900, ..Reader::of(&process) };
        assert_eq!(reader.does(Use::Copied, 2000), original(0, 2000));
        let rest = Reader::of(&process).does(Use::Copied, u64::MAX);
        assert_eq!(rest, original(2000, LEN - 2000));
    }

    #[test]
    fn what_the_receiver_has_left_is_taken_back_from_both_pipes() {
        for seen in [0, 1500, 4000] {
            let pair = Pair::default();
            let process = Process::with_pipes(&pair);
            for n in 0..3 {
                process.sends(AT + n * 8000, 8000);
            }
            let reader = Reader::of(&process);
            assert_eq!(reader.does(Use::Copied, 2500), original(0, 2500));
            reader.does(Use::Seen, seen);
            assert!(pair.granting().take_back(&process) && !pair.granting().is_open());
            assert!(process.pipes.iter().all(|pipe| pipe.borrow().is_empty()));
            assert!(!pair.state.pinned.may_be_used(), "nothing is pinned any more");
            assert_eq!(reader.does(Use::Copied, u64::MAX), original(2500, 21_500), "{seen}");
            assert!(pair.state.pinned.begin_to_take(), "nobody was killed in the middle of it");
        }
    }

    #[test]
    fn a_grant_of_which_nothing_is_left_in_the_pipe_needs_no_place() {
        let lane = |at| Lane { index: 1, at }.to_word();
        let open = |at, len| Open { from: lane(at), len, ..Open::default() };
        assert_eq!(Left::of(&open(100, 50), 150, 70), None, "read");
        let some = |skip, from, len| Some(Left { skip, from, len });
        assert_eq!(Left::of(&open(100, 50), 120, 30), some(20, 0, 30));
        assert_eq!(Left::of(&open(100, 50), 80, 90), some(0, 20, 50));
        assert_eq!(Left::of(&open(100, 50), 80, 40), some(0, 20, 20), "fewer than there should be");
        assert_eq!(Left::of(&open(100, 50), 0, 40), None);
    }

    #[test]
    fn nothing_is_taken_back_where_it_is_not_known_what_is_in_the_pipes() {
        for case in 0..3 {
            let pair = Pair::default();
            let mut process = Process::with_pipes(&pair);
            process.sends(AT, LEN);
            match case {
                // A relative was killed after it had put something there.
                0 => drop(process.puts(AT + LEN, LEN, &mut Outcome::default())),
                // It was killed while it took back.
                1 => assert!(pair.state.pinned.begin_to_take()),
                _ => process.piped = None,
            }
            assert!(!pair.granting().take_back(&process), "{case}");
            assert!(pair.granting().is_open() && pair.entries.is_granted(0), "{case}");
        }
    }

    #[test]
    fn a_receiver_waits_for_a_sender_that_reads_its_pipes_but_not_for_ever() {
        for (takes, patient) in [(1, true), (3, true), (0, false)] {
            let pair = Pair::default();
            let process = Process::with_pipes(&pair);
            process.sends(AT, LEN);
            pair.write(pair.next(u64::MAX), &original(0, LEN));
            pair.entries.begin_to_take(0);
            process.pipes.iter().for_each(|pipe| pipe.borrow_mut().clear());
            let reader = Reader::of(&process);
            reader.takes.set(takes);
            let (end, look) = (pair.receiver(), (pair.next(u64::MAX), true));
            *reader.places.borrow_mut() = vec![0; LEN];
            let taken = end.take_granted(&reader, Use::Copied, look);
            assert_eq!(taken, if patient { Ok(Some(1)) } else { Err(Violation::Grants) });
            assert!(!patient || reader.places.take() == original(0, LEN));
        }
    }

    #[test]
    fn a_pipe_without_the_bytes_that_are_granted_breaks_the_protocol() {
        let pair = Pair::default();
        let process = Process::with_pipes(&pair);
        process.sends(AT, LEN);
        process.pipes[0].borrow_mut().pop_back();
        let (reader, look) = (Reader::of(&process), (pair.next(u64::MAX), true));
        *reader.places.borrow_mut() = vec![0; LEN];
        let taken = pair.receiver().take_granted(&reader, Use::Copied, look);
        assert_eq!((taken, reader.waited.get()), (Err(Violation::Grants), 0));
    }

    #[test]
    fn private_memory_is_pinned_in_pipes_that_the_receiver_has() {
        let pair = Pair::default();
        let (mut process, granting) = (Process::of(&pair), pair.granting());
        let policy = |policy, process: &mut Process<'_>, len| {
            process.policy = policy;
            granting
                .piece(process, Hint::Auto, (Process::BASE + AT, len))
                .map(|piece| piece.map(|piece| piece.len))
        };
        assert_eq!(policy(Pin::Never, &mut process, 1 << 20), Ok(None));
        assert_eq!(policy(Pin::Auto, &mut process, 60 << 10), Ok(None), "too little");
        assert_eq!(policy(Pin::Auto, &mut process, 64 << 10), Err(Unknown), "there are none");
        let pinned = &pair.state.pinned;
        pinned.name.store(Process::PIPES, Relaxed);
        assert_eq!(policy(Pin::From(1), &mut process, LEN), Ok(None), "a relative's");
        process.piped = Some(Process::PIPES);
        assert_eq!(policy(Pin::From(1), &mut process, LEN), Err(Unknown));
        pair.knows(Process::PIPES);
        assert_eq!(policy(Pin::From(1), &mut process, LEN), Ok(Some(LEN)));
        assert_eq!(policy(Pin::From(1), &mut process, 1 << 20), Ok(Some(pinning::PIECE)));
        // Not known what is cheaper: every second one is.
        let auto: Vec<_> = (0..4).map(|_| policy(Pin::Auto, &mut process, 1 << 20)).collect();
        assert_eq!(auto.iter().filter(|piece| **piece == Ok(None)).count(), 2, "{auto:?}");
    }

    #[test]
    fn pipes_that_the_receiver_declines_are_used_no_more() {
        let pair = Pair::default();
        let (process, granting) = (Process::with_pipes(&pair), pair.granting());
        pair.state.granted.reset();
        pair.state.granted.offer(Process::PIPES);
        pair.sections[1].ctl.accepted.store(Process::PIPES | DECLINED, Relaxed);
        assert_eq!(granting.piece(&process, Hint::Auto, (Process::BASE + AT, LEN)), Err(Unknown));
        assert_eq!(granting.piece(&process, Hint::Auto, (Process::BASE + AT, LEN)), Ok(None));
        assert_eq!(granting.wanted_pipes(Pin::Auto, true), Wanted::None);
    }

    #[test]
    fn without_room_in_a_pipe_it_is_copied() {
        let pair = Pair::default();
        let process = Process { most: 0, ..Process::with_pipes(&pair) };
        assert_eq!(process.sends(AT, LEN), (Put::Refused, LEN));
        assert!(pair.state.pinned.may_be_used());
        let process = Process { most: 5000, piped: Some(9), ..process };
        assert_eq!(process.sends(AT + LEN, LEN).0, Put::Refused, "others than those offered");
        let process = Process { piped: Some(Process::PIPES), ..process };
        assert_eq!(process.sends(AT + LEN, LEN), (Put::Granted(5000), 5000));
    }

    #[test]
    fn pipes_are_made_for_one_process_alone() {
        let pair = Pair::default();
        let granting = pair.granting();
        assert_eq!(granting.wanted_pipes(Pin::Never, false), Wanted::None);
        assert_eq!(granting.wanted_pipes(Pin::Auto, false), Wanted::ToBeMade);
        assert_eq!(granting.adopt(5, || ()), Adopted::Used);
        assert_eq!(granting.adopt(6, || panic!("another thread was quicker")), Adopted::Not);
        assert_eq!(granting.wanted_pipes(Pin::Auto, true), Wanted::Named(5));
        assert_eq!(granting.wanted_pipes(Pin::Auto, false), Wanted::None, "a relative's");
    }

    #[test]
    fn pipes_of_a_process_that_forks_meanwhile_are_not_used() {
        let pair = Pair::default();
        let (process, granting) = (Process::of(&pair), pair.granting());
        let holders = &pair.records[0].id.holders;
        holders.begin(Member::UNNAMED);
        let forks = || holders.add(Member::UNNAMED);
        assert_eq!(granting.adopt(5, forks), Adopted::Unused);
        assert!(!pair.state.pinned.may_be_used());
        pair.state.pinned.reset();
        assert_eq!(granting.wanted_pipes(Pin::Auto, false), Wanted::None);
        let process = Process { policy: Pin::From(1), ..process };
        assert_eq!(granting.piece(&process, Hint::Auto, (Process::BASE + AT, LEN)), Ok(None));
    }

    #[test]
    fn the_sender_is_told_what_copies_take_when_that_is_news() {
        let pair = Pair::default();
        let (end, told) = (pair.receiver(), &pair.sections[1].ctl.costs);
        for (copied, news) in [(1600, true), (1650, false), (1800, true)] {
            end.record.rx.costs[0].store(copied, Relaxed);
            let before = told.load(Relaxed);
            end.tell_costs();
            assert_eq!(told.load(Relaxed) != before, news, "{copied}");
            assert!(!news || Costs::from_word(told.load(Relaxed)) == Costs { copied, pinned: 0 });
        }
    }
}
