//! Numbers of calls with `MSG_ZEROCOPY` (Documentation/networking/msg_zerocopy.rst), and the notices by which the program hears
//! on the error queue which buffers are its own again.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use shunt_shm::arena::Record;
use shunt_shm::completions::{Completions, Notice};
use shunt_shm::region::{DEAF, Section};
use shunt_shm::zerocopy::ZeroCopy;
use shunt_wire::counter::Counter;

use crate::call::{Errno, enter};
use crate::conn::flags::{IS_V6, NUMBERED, TELLS_ERRORS};
use crate::conn::{End, has, put};
use crate::events;
use crate::handshake::Phase;
use crate::wait::look_on_queue;
use crate::zerocopy::choice::LEAST;
use crate::zerocopy::granting::Put;
use crate::zerocopy::ports::{Clock, Collector};
use crate::zerocopy::sender::Granting;

/// How a call with `MSG_ZEROCOPY` has come out so far.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The position in the ring after its last granted byte; 0: none was granted.
    pub until: u64,
    /// Bytes were copied that could have been granted.
    pub copied: bool,
    /// Some of them lie in registered memory that the peer has not mapped: it is to be offered.
    pub is_unknown: bool,
    /// The call has its number, and the peer was told of its bytes after that.
    pub is_numbered: bool,
}

impl Outcome {
    /// `n` bytes went so to the place in the ring that ends at `end`.
    pub fn notes(&mut self, put: Put, n: usize, end: u64) {
        match put {
            Put::Granted(_) => self.until = end,
            Put::Refused => self.copied = true,
            Put::Copied => self.copied |= n >= LEAST,
        }
    }
}

/// The kernel socket, as far as numbers need to know it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ErrorQueue {
    /// The program has asked for something else that the kernel tells on its error queue.
    pub is_in_use: bool,
    /// Addresses are those of IPv6.
    pub is_v6: bool,
}

/// The numbers of a connection, wherever its bytes go. With the lock of the sending direction held, but for questions.
#[derive(Clone, Copy, Debug)]
pub struct Numbers<'a> {
    /// What this end keeps.
    pub record: &'a Record,
    /// The end, where there is a ring.
    pub end: Option<End<'a>>,
    /// What it keeps of its calls.
    pub state: &'a ZeroCopy,
}

impl<'a> Numbers<'a> {
    const fn list(&self) -> &'a Completions {
        &self.state.completions
    }

    fn granting(&self) -> Option<Granting<'a>> {
        self.end.map(|end| Granting { end, state: self.state })
    }

    /// True once a call had a number.
    #[inline]
    #[must_use]
    pub fn is_used(&self) -> bool {
        has(self.record, NUMBERED)
    }

    /// How far the receiver has come in the ring, which `look` says; past everything where nobody reads there any more. A connection
    /// that this side has given up is read to the end of the ring.
    fn taken(&self, look: impl FnOnce(&Section) -> u64) -> u64 {
        match self.end {
            Some(end)
                if matches!(end.phase(), Phase::Active | Phase::Broken)
                    && matches!(end.theirs.ctl.closed.load(Relaxed), 0 | DEAF) =>
            {
                look(end.theirs)
            }
            _ => u64::MAX,
        }
    }

    /// The same for who tells the program what is its own again.
    fn surely_taken(&self) -> u64 {
        self.taken(|_| self.granting().map_or(u64::MAX, |granting| granting.taken()))
    }

    /// The same for a look without the lock, which is followed by one with it.
    fn taken_now(&self) -> u64 {
        self.taken(|theirs| theirs.cons.cons.load(Acquire))
    }

    /// Something else whenever there are more completions.
    #[inline]
    #[must_use]
    pub fn stamp(&self) -> u32 {
        if self.is_used() { self.list().stamp() } else { 0 }
    }

    /// What poll(2) says of completions that wait: `POLLERR`, as the kernel's error queue is not empty.
    #[must_use]
    pub fn readiness(&self) -> u32 {
        if self.is_used() && self.list().has_notice(self.taken_now()) { events::ERR } else { 0 }
    }

    /// The same for one who is about to wait for them: who passes what is granted pushes the connection to the completion queue
    /// from now on, and what is overdue is taken back.
    /// Without a ring there is no collector, and nothing to wait for.
    pub fn await_notice(&self, collector: Option<&impl Collector>) -> u32 {
        let ready = self.readiness();
        let (Some(granting), Some(collector)) = (self.granting(), collector) else { return ready };
        if ready != 0 || !self.is_used() || !self.list().is_waiting(self.taken_now()) {
            return ready;
        }
        look_on_queue(&granting.end.mine.ctl.tx_arm, || {
            if granting.is_overdue(collector) {
                collector.locked(|| {
                    granting.time_out(collector);
                });
            }
            self.readiness()
        })
    }

    /// False when a [`Self::take`] would find nothing, as far as can be seen without the lock.
    #[must_use]
    pub fn has_news(&self, clock: &impl Clock) -> bool {
        let is_overdue = |granting: Granting<'_>| granting.is_overdue(clock);
        self.is_used()
            && (self.list().has_notice(self.taken_now()) || self.granting().is_some_and(is_overdue))
    }

    /// The next completion, if one waits. The program is told of it once. `is_nested`: in a signal handler above a call that has
    /// the lock, where it comes again.
    pub fn take(&self, is_nested: bool, collector: Option<&impl Collector>) -> Option<Notice> {
        let _entered = enter(is_nested, &self.record.tx.copying)?;
        if let (Some(granting), Some(collector)) = (self.granting(), collector)
            && granting.is_overdue(collector)
        {
            granting.time_out(collector);
        }
        self.list().take(self.surely_taken())
    }

    /// The program hears of it.
    pub fn notes_told(&self, notice: &Notice) {
        let calls = u64::from(notice.last.wrapping_sub(notice.first)) + 1;
        let how = if notice.copied { Counter::ZerocopyFail } else { Counter::ZerocopySuccess };
        self.state.tally.add(how, calls);
    }

    /// A call that is to have a number, unless it `is_quiet`, begins. `first` begins to count. `is_nested` as for [`Self::take`].
    ///
    /// # Errors
    /// It cannot begin.
    pub fn begin(
        &self,
        is_nested: bool,
        is_quiet: bool,
        first: impl FnOnce(),
    ) -> Result<(), Errno> {
        // A signal handler above a call that may be in the middle of the list has to come again.
        let _entered = enter(is_nested, &self.record.tx.copying).ok_or(Errno::INTR)?;
        if !self.is_used() {
            first();
        }
        if !is_quiet && self.list().is_full() { Err(Errno::NOBUFS) } else { Ok(()) }
    }

    /// Begins to count; `ask` asks the kernel socket, if there is one still.
    pub fn begin_to_count(&self, ask: impl FnOnce() -> Option<ErrorQueue>) {
        if self.is_used() {
            return;
        }
        let ZeroCopy { tally, completions, granted, pinned } = self.state;
        completions.reset();
        granted.reset();
        tally.reset();
        pinned.reset();
        // Never the other way round: what setsockopt(2) has noted meanwhile, or before, may have left something there.
        let Some(queue) = ask() else { return };
        if queue.is_in_use {
            put(self.record, TELLS_ERRORS, true);
        }
        put(self.record, IS_V6, queue.is_v6);
        put(self.record, NUMBERED, true);
    }

    /// Gives a call its number, with the receiver at `taken`. Since that was taken, something was granted, if `is_granted` says
    /// so; else what the call has granted may have been taken back.
    fn number(&self, taken: u64, outcome: &Outcome, is_granted: bool) {
        let is_open = || is_granted || self.state.granted.open(taken).next().is_some();
        let is_back = taken < outcome.until && !is_open();
        let until = if is_back { 0 } else { outcome.until };
        self.state.tally.add(Counter::ZerocopySent, 1);
        self.list().add(until, taken, outcome.until == 0 || outcome.copied || is_back);
    }

    /// Gives a call its number before the receiver can see its last bytes: so nobody can have taken them yet.
    pub fn number_before(&self, outcome: &mut Outcome, put: Put) {
        let taken = self.record.tx.cursor.taken();
        self.number(taken, outcome, matches!(put, Put::Granted(_)));
        outcome.is_numbered = true;
    }

    /// Gives a call its number after all, whose last bytes did not go so.
    pub fn number_after(&self, outcome: &Outcome) {
        self.number(self.surely_taken(), outcome, false);
    }

    /// The number of the next call: by so much the kernel's own are raised, of a connection that became TCP for good.
    #[must_use]
    pub fn next(&self) -> u32 {
        self.list().next()
    }

    /// True when the kernel's error queue has nothing to say: it was given no call without copies, and asked for nothing else
    /// that it would tell there. To hear that from it takes as long as to send.
    #[must_use]
    pub fn are_told_here_alone(&self) -> bool {
        let phase = Phase::from_code(self.record.id.phase.load(Acquire));
        self.is_used() && !has(self.record, TELLS_ERRORS) && phase != Phase::Tcp
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::interruptible;
    use crate::zerocopy::model::{Pair, Process, Reader};
    use crate::zerocopy::received::Use;
    use core::cell::Cell;
    use shunt_shm::completions::RUNS;
    use shunt_shm::doorbell::ON_QUEUE;
    use shunt_shm::region::RESET;

    const LEN: usize = 8192;

    fn notice(first: u32, last: u32, copied: bool) -> Option<Notice> {
        Some(Notice { first, last, copied })
    }

    fn acquainted() -> Pair {
        let pair = Pair::default();
        pair.knows(Process::REGION);
        pair
    }

    #[test]
    fn a_call_is_complete_when_the_receiver_has_passed_its_last_granted_byte() {
        let pair = acquainted();
        let (process, numbers) = (Process::of(&pair), pair.numbers());
        let stamp = numbers.stamp();
        process.sends(0, LEN);
        assert_ne!(numbers.stamp(), stamp);
        process.sends(LEN, LEN);
        let reader = Reader::of(&process);
        for (n, ready, expected) in [
            (LEN - 1, 0, None),
            (1, events::ERR, notice(0, 0, false)),
            (LEN, events::ERR, notice(1, 1, false)),
        ] {
            reader.does(Use::Dropped, n as u64);
            assert_eq!(
                (numbers.readiness(), numbers.readiness()),
                (ready, ready),
                "it is a question"
            );
            assert_eq!(numbers.has_news(&process), ready != 0);
            assert_eq!(numbers.take(false, Some(&process)), expected);
            assert_eq!(
                (numbers.take(false, Some(&process)), numbers.readiness()),
                (None, 0),
                "once"
            );
        }
    }

    #[test]
    fn what_was_copied_is_complete_at_once_and_says_so() {
        let pair = acquainted();
        let (process, numbers) = (Process::of(&pair), pair.numbers());
        process.sends(0, 100);
        assert_eq!(numbers.take(false, Some(&process)), notice(0, 0, true));
        // A call of which some bytes were granted, and others could have been.
        let mut outcome = Outcome::default();
        let (put, n) = process.puts(0, LEN, &mut outcome);
        process.publishes(n, false);
        outcome.notes(Put::Refused, 10, 9000);
        assert_eq!((put, outcome.until), (Put::Granted(LEN), 100 + LEN as u64));
        numbers.number_after(&outcome);
        assert_eq!(numbers.take(false, Some(&process)), None, "granted bytes are in use");
        Reader::of(&process).does(Use::Dropped, 100 + LEN as u64);
        assert_eq!(numbers.take(false, Some(&process)), notice(1, 1, true));
    }

    #[test]
    fn small_copies_beside_a_grant_are_no_copies() {
        let mut outcome = Outcome::default();
        outcome.notes(Put::Granted(5), 5, 5);
        outcome.notes(Put::Copied, LEAST - 1, 5000);
        assert!(!outcome.copied && outcome.until == 5);
        outcome.notes(Put::Copied, LEAST, 50_000);
        assert!(outcome.copied && outcome.until == 5);
    }

    #[test]
    fn a_call_whose_grants_are_back_before_it_has_its_number_is_complete() {
        let pair = acquainted();
        let (process, numbers) = (Process::of(&pair), pair.numbers());
        let mut outcome = Outcome::default();
        let (_, n) = process.puts(0, LEN, &mut outcome);
        process.publishes(n, false);
        assert!(pair.granting().take_back(&process));
        numbers.number_after(&outcome);
        assert_eq!(numbers.take(false, Some(&process)), notice(0, 0, true));
        // Not while there is one: the number comes before the bytes, and what is taken back later settles it.
        let mut outcome = Outcome::default();
        let (put, n) = process.puts(0, LEN, &mut outcome);
        numbers.number_before(&mut outcome, put);
        assert!(outcome.is_numbered);
        process.publishes(n, false);
        assert_eq!(numbers.take(false, Some(&process)), None);
        assert!(pair.granting().take_back(&process));
        assert_eq!(numbers.take(false, Some(&process)), notice(1, 1, true));
    }

    #[test]
    fn nobody_reads_in_a_ring_that_is_no_more() {
        type Change = fn(&Pair);
        let changes: [(Change, bool); 3] = [
            (|_| {}, false),
            (|pair| pair.sections[1].ctl.closed.store(DEAF, Relaxed), false),
            (|pair| pair.sections[1].ctl.closed.store(RESET, Relaxed), true),
        ];
        for (n, (change, is_complete)) in changes.into_iter().enumerate() {
            let pair = acquainted();
            let (process, numbers) = (Process::of(&pair), pair.numbers());
            process.sends(0, LEN);
            change(&pair);
            assert_eq!(numbers.readiness() != 0, is_complete, "{n}");
            assert_eq!(numbers.take(false, Some(&process)).is_some(), is_complete, "{n}");
        }
        let pair = acquainted();
        let numbers = Numbers { end: None, ..pair.numbers() };
        numbers.number_after(&Outcome { until: 5, ..Outcome::default() });
        assert_eq!(numbers.readiness(), events::ERR, "all went over TCP");
    }

    #[test]
    fn what_is_granted_on_a_broken_connection_is_copied_before_the_program_is_told() {
        let pair = acquainted();
        let (process, numbers) = (Process::of(&pair), pair.numbers());
        process.sends(0, LEN);
        pair.records[0].id.phase.store(Phase::Broken as u32, Relaxed);
        // The receiver reads what lies in the ring before it finds the reset.
        assert_eq!((numbers.readiness(), pair.granting().is_open()), (0, true));
        assert_eq!(numbers.await_notice(Some(&process)), events::ERR);
        assert!(!pair.granting().is_open());
        assert_eq!(numbers.take(false, Some(&process)), notice(0, 0, true));
        process.scribbles(0, Process::LEN);
        let bytes = Reader::of(&process).does(Use::Copied, LEN as u64);
        assert_eq!(bytes, (0..LEN).map(crate::zerocopy::model::byte).collect::<Vec<u8>>());
    }

    #[test]
    fn who_waits_for_a_number_is_told_by_who_passes_what_is_granted() {
        let pair = acquainted();
        let (process, numbers) = (Process::of(&pair), pair.numbers());
        let armed = || pair.sections[0].ctl.tx_arm.load(Relaxed);
        assert_eq!((numbers.await_notice(Some(&process)), armed()), (0, 0), "nothing to wait for");
        process.sends(0, LEN);
        assert_eq!((numbers.readiness(), armed()), (0, 0), "a question arms nothing");
        assert_eq!((numbers.await_notice(Some(&process)), armed()), (0, ON_QUEUE));
        pair.sections[0].ctl.tx_arm.store(0, Relaxed);
        let reader = Reader::of(&process);
        reader.does(Use::Dropped, LEN as u64);
        assert_eq!((numbers.await_notice(Some(&process)), armed()), (events::ERR, 0));
    }

    #[test]
    fn who_waits_behind_a_copied_call_is_told_of_the_granted_one_before_it() {
        let pair = acquainted();
        let (process, numbers) = (Process::of(&pair), pair.numbers());
        process.sends(0, LEN);
        process.sends(0, 10);
        assert_eq!(numbers.await_notice(Some(&process)), 0);
        assert_eq!(pair.sections[0].ctl.tx_arm.load(Relaxed), ON_QUEUE);
        process.time.set(5000);
        assert_eq!(numbers.await_notice(Some(&process)), events::ERR, "overdue");
    }

    #[test]
    fn what_is_passed_while_one_arms_is_found() {
        let (pair, was_armed) = (acquainted(), Cell::new(false));
        let (process, numbers) = (Process::of(&pair), pair.numbers());
        process.sends(0, LEN);
        process.meanwhile.replace(Some(Box::new(|| {
            was_armed.set(pair.sections[0].ctl.tx_arm.load(Relaxed) == ON_QUEUE);
            pair.sections[1].cons.cons.store(LEN as u64, Relaxed);
        })));
        assert_eq!(numbers.await_notice(Some(&process)), events::ERR);
        assert!(was_armed.get(), "before the look");
    }

    #[test]
    fn what_is_overdue_is_taken_back_by_who_asks() {
        for waits in [true, false] {
            let pair = acquainted();
            let (process, numbers) = (Process::of(&pair), pair.numbers());
            process.sends(0, LEN);
            process.time.set(5000);
            assert_eq!(numbers.readiness(), 0);
            assert!(numbers.has_news(&process));
            if waits {
                assert_eq!(numbers.await_notice(Some(&process)), events::ERR);
            }
            assert_eq!(numbers.take(false, Some(&process)), notice(0, 0, true));
        }
    }

    #[test]
    fn a_handler_above_a_call_comes_again_unless_that_only_copies() {
        let pair = acquainted();
        let (process, numbers) = (Process::of(&pair), pair.numbers());
        process.sends(0, 10);
        let first = || panic!("it counts already");
        assert_eq!(numbers.take(true, Some(&process)), None);
        assert_eq!(numbers.begin(true, false, first), Err(Errno::INTR));
        let copying = &pair.records[0].tx.copying;
        let above = || (numbers.begin(true, false, first), numbers.take(true, Some(&process)));
        let (found, alone) = interruptible(copying, above);
        assert_eq!((found, alone), ((Ok(()), notice(0, 0, true)), false));
    }

    #[test]
    fn no_call_begins_that_may_find_no_place_for_its_number() {
        let pair = acquainted();
        let (process, numbers) = (Process::of(&pair), pair.numbers());
        let begins = |is_quiet| numbers.begin(false, is_quiet, || ());
        // Runs that differ.
        for n in 0..RUNS as u64 {
            assert_eq!(begins(false), Ok(()));
            numbers.number(0, &Outcome { until: n + 1, ..Outcome::default() }, true);
        }
        assert_eq!((begins(false), begins(true)), (Err(Errno::NOBUFS), Ok(())));
        drop(process);
    }

    #[test]
    fn numbers_begin_at_zero_whatever_the_record_was_used_for() {
        let pair = acquainted();
        let (process, numbers) = (Process::of(&pair), pair.numbers());
        process.sends(0, LEN);
        pair.state.pinned.end();
        let count = |queue: Option<ErrorQueue>| {
            pair.sender().put(NUMBERED | TELLS_ERRORS | IS_V6, false);
            numbers.begin_to_count(|| {
                assert_eq!(numbers.next(), 0, "before the kernel is asked");
                queue
            });
        };
        count(None);
        assert!(!numbers.is_used() && numbers.stamp() == 0, "the descriptor is gone");
        let queue = |is_in_use, is_v6| Some(ErrorQueue { is_in_use, is_v6 });
        count(queue(false, false));
        assert!(numbers.is_used() && numbers.are_told_here_alone());
        assert!(!pair.granting().is_open() && pair.state.pinned.may_be_used());
        assert!(!pair.sender().has(IS_V6));
        count(queue(true, true));
        assert!(pair.sender().has(IS_V6) && !numbers.are_told_here_alone());
        numbers.begin_to_count(|| panic!("another thread was quicker"));
    }

    #[test]
    fn what_setsockopt_notes_meanwhile_stays_noted() {
        let pair = acquainted();
        pair.sender().put(NUMBERED, false);
        pair.sender().put(TELLS_ERRORS, true);
        let queue = ErrorQueue { is_in_use: false, is_v6: false };
        pair.numbers().begin_to_count(|| Some(queue));
        assert!(!pair.numbers().are_told_here_alone());
        pair.sender().put(TELLS_ERRORS, false);
        assert!(pair.numbers().are_told_here_alone());
        pair.records[0].id.phase.store(Phase::Tcp as u32, Relaxed);
        assert!(!pair.numbers().are_told_here_alone(), "the kernel numbers, too");
    }

    #[test]
    fn what_is_told_is_counted() {
        let pair = acquainted();
        pair.numbers().notes_told(&Notice { first: u32::MAX, last: 1, copied: true });
        pair.numbers().notes_told(&Notice { first: 2, last: 2, copied: false });
        assert_eq!(pair.state.tally.read()[..3], [0, 1, 3]);
    }
}
