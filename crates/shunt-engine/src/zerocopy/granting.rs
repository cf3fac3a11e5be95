//! What a sender grants, offers, and takes back.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use shunt_shm::grants::{self, GRANTS, Grants};
use shunt_shm::region::DECLINED;
use shunt_shm::zerocopy::Open;
use shunt_wire::counter::Counter;

use crate::conn::flags::{CUT_OFF, NUMBERED, UNREAD};
use crate::handshake::Phase;
use crate::stretch::{Path, path};
use crate::zerocopy::batch::{Batch, Part};
use crate::zerocopy::choice::{Lies, Piece};
use crate::zerocopy::order::{Entries, withdraw};
use crate::zerocopy::ports::{Clock, Lender, Moment, Restorer};
use crate::zerocopy::sender::Granting;

/// What became of a piece for which a place is reserved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Put {
    /// So many bytes are granted.
    Granted(usize),
    /// It could be granted, and is to be copied nevertheless.
    Refused,
    /// It is copied.
    Copied,
}

impl Granting<'_> {
    fn count(&self, which: Counter) {
        self.state.tally.add(which, 1);
    }

    /// Forgets what was granted in front of the cursor by a process that was killed before it had the cursor come to it: other
    /// bytes have those places now. Not in a signal handler above a call that may be about to do so.
    #[inline]
    pub fn withdraw(&self) {
        let pos = self.end.record.tx.cursor.pos();
        withdraw(&self.state.granted, &self.end.mine.prod, pos);
    }

    /// Grants a piece for which `len` bytes of the ring are reserved, if that is worth it and so many entries are free.
    #[inline]
    pub fn put(&self, lender: &impl Lender, piece: &Piece, len: usize) -> Put {
        let Some((number, n)) = self.grant(lender, piece, (0, len)) else { return Put::Refused };
        Grants::show(&self.end.mine.prod, number);
        lender.reaches(Moment::Granted);
        Put::Granted(n)
    }

    /// Grants what is to be granted of the first `room` bytes of a batch, for which that place is reserved, and whose other bytes are
    /// in their places. `each` hears how each part goes, how many bytes come before it, its address and its length; it copies what is
    /// [refused](Put::Refused).
    pub fn put_all(
        &self,
        lender: &impl Lender,
        batch: &Batch,
        room: usize,
        mut each: impl FnMut(Put, usize, (usize, usize)),
    ) {
        let mut last = None;
        for (before, part) in batch.within(room) {
            let (put, address, len) = match part {
                Part::Copied(address, len) => (Put::Copied, address, len),
                Part::Granted(piece) => {
                    let granted = self.grant(lender, &piece, (before as u64, piece.len));
                    let put = granted.map_or(Put::Refused, |(number, n)| {
                        last = Some(number);
                        Put::Granted(n)
                    });
                    (put, piece.address, piece.len)
                }
            };
            each(put, before, (address, len));
        }
        // All at once: each time the line is the receiver's, which looks at it.
        if let Some(number) = last {
            Grants::show(&self.end.mine.prod, number);
            lender.reaches(Moment::Granted);
        }
    }

    /// Makes an entry of so many bytes behind so many others of the same place: its number, and the bytes. It is shown then.
    fn grant(
        &self,
        lender: &impl Lender,
        piece: &Piece,
        (before, n): (u64, usize),
    ) -> Option<(u32, usize)> {
        if n < piece.least {
            return None;
        }
        let (cursor, granted) = (&self.end.record.tx.cursor, &self.state.granted);
        // As far as known at first: the receiver has just written its cursor, and to fetch that takes time.
        let place = || granted.place(cursor.taken()).or_else(|| granted.place(self.taken()));
        let Some(number) = place() else {
            self.count(Counter::GrantOverflows);
            return None;
        };
        let (region, from, n) = match piece.lies {
            Lies::Registered(region, from) => (region, from as u64, n),
            Lies::Private => {
                let Some((name, lane, n)) = self.pin(lender, piece.address, n) else {
                    self.count(Counter::GrantOverflows);
                    return None;
                };
                lender.reaches(Moment::Pinned);
                (name, lane.to_word(), n)
            }
        };
        let part = grants::Part { at: cursor.pos() + before, len: n as u64, region, from };
        let entries = Entries { granted, shown: lender.entries(), mine: &self.end.mine.prod };
        entries.write(number, &part, piece.address as u64, lender.arise());
        Some((number, n))
    }

    /// The cursor has come to what was granted of this piece.
    #[inline]
    pub fn is_covered(&self, piece: &Piece) {
        if matches!(piece.lies, Lies::Private) {
            self.state.pinned.are_covered();
        }
    }

    /// Offers memory, or pipes, which the receiver then maps, unless it has them, an offer is open, or this direction is in a TCP
    /// stretch. `is_nested`: in a signal handler above a call that has the lock.
    pub fn offer(&self, lender: &impl Lender, region: u64, is_nested: bool) {
        let Self { end, state } = self;
        let granted = &state.granted;
        let accepted = end.theirs.ctl.accepted.load(Acquire);
        // One at a time: the answer names the last one.
        let is_open = granted.offered() != 0 && accepted & !DECLINED != granted.offered();
        let in_ring = path(end.record.tx.marks.load(Relaxed)) == Path::Ring;
        if is_nested
            || !in_ring
            || is_open
            || granted.offered() == region
            || granted.is_known(region, accepted)
        {
            return;
        }
        let pos = end.record.tx.cursor.pos();
        // Also where it is not ahead: an offer of which the receiver was not told.
        granted.withdraw(&end.mine.prod, pos);
        let Some(number) = granted.place(self.taken()) else { return };
        let part = grants::Part { at: pos, len: 0, region, from: 0 };
        let entries = Entries { granted, shown: lender.entries(), mine: &end.mine.prod };
        entries.put(number, &part, 0, lender.now());
        granted.offer(region);
    }

    /// Copies what is granted to its place in the ring, so that the program's memory is its own again. False when some of it
    /// is a relative's, and not to be had. Not in a handler above a call that grants, as for [`Self::withdraw`].
    pub fn take_back(&self, restorer: &impl Restorer) -> bool {
        self.take_back_those(restorer, |_| true)
    }

    /// The same of those of which `is_meant` says so.
    fn take_back_those(&self, restorer: &impl Restorer, is_meant: impl Fn(&Open) -> bool) -> bool {
        if !self.end.has(NUMBERED) {
            return true;
        }
        self.withdraw();
        let (state, taken) = (self.state, self.taken());
        let meant = || state.granted.open(taken).filter(&is_meant);
        let mut pinned = [Open::default(); GRANTS];
        let mut count = 0;
        for (place, open) in pinned.iter_mut().zip(meant().filter(|open| self.is_pinned(open))) {
            *place = open;
            count += 1;
        }
        let pinned = &pinned[..count];
        let are_pins_back = pinned.is_empty() || self.take_back_pinned(restorer, pinned);
        let (granted, shown) = (&state.granted, restorer.entries());
        let entries = Entries { granted, shown, mine: &self.end.mine.prod };
        let (mut any, mut all) = (false, true);
        for open in meant() {
            let is_back = entries.take_back(open.number, || match self.is_pinned(&open) {
                true => are_pins_back,
                false => restorer.restore(&open, self.place_of(&open)),
            });
            any |= is_back;
            all &= is_back;
        }
        if !pinned.is_empty() && are_pins_back {
            state.pinned.end();
        }
        if any {
            self.count(Counter::GrantsTakenBack);
        }
        if state.granted.open(taken).next().is_none() {
            state.completions.settle(taken);
        }
        all
    }

    /// This process is about to let go of the connection, which relatives go on to use. What the agent knows by this process alone
    /// they need not be able to take back, nor others to find: its pipes, if they `are_its`, and memory of which it `has_told` the
    /// agent.
    pub fn leave(
        &self,
        restorer: &impl Restorer,
        are_its: bool,
        has_told: impl Fn(u64) -> bool,
    ) -> bool {
        let are_back = self.take_back_those(restorer, |open| match self.is_pinned(open) {
            true => are_its,
            false => has_told(open.region),
        });
        if are_its {
            self.state.pinned.end();
        }
        are_back
    }

    /// True when something is granted that the receiver, by what it says, has not passed.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.state.granted.open(self.end.theirs.cons.cons.load(Relaxed)).next().is_some()
    }

    /// True when memory of the program's between these addresses is granted.
    #[must_use]
    pub fn is_open_in(&self, from: u64, to: u64) -> bool {
        self.state.granted.is_open_in(self.taken(), from, to)
    }

    /// Nobody waits for the receiver any more: it was killed, or this side has ended the connection for a fault.
    fn is_given_up(&self) -> bool {
        self.end.has(CUT_OFF) || self.end.phase() == Phase::Broken
    }

    /// True when what is granted has been left unread for too long, or will never be read.
    #[must_use]
    pub fn is_overdue(&self, clock: &impl Clock) -> bool {
        if !self.is_open() {
            return false;
        }
        if self.is_given_up() {
            return true;
        }
        let age = u64::from(clock.arise().wrapping_sub(self.state.granted.since())) << 10;
        age >= clock.timeout()
    }

    /// Takes back what [`Self::is_overdue`]. The next call that sends asks the kernel whether the peer is there.
    pub fn time_out(&self, restorer: &impl Restorer) -> bool {
        if !self.is_given_up() {
            self.count(Counter::GrantsTimedOut);
        }
        self.end.put(UNREAD, true);
        self.take_back(restorer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zerocopy::choice::{Hint, LEAST};
    use crate::zerocopy::model::{Pair, Process, Reader, byte};
    use crate::zerocopy::numbers::Outcome;
    use crate::zerocopy::received::Use;
    use shunt_shm::ring::{Shape, UNLIMITED};

    const LEN: usize = 8192;

    fn original(address: usize, len: usize) -> Vec<u8> {
        (address..address + len).map(byte).collect()
    }

    fn tallied(pair: &Pair, which: Counter) -> u64 {
        use shunt_shm::zerocopy::Tally;
        let at = Tally::COUNTERS.iter().position(|counter| *counter == which).unwrap();
        pair.state.tally.read()[at]
    }

    /// A pair of which the receiver has the registered memory.
    fn acquainted() -> Pair {
        let pair = Pair::default();
        pair.knows(Process::REGION);
        pair
    }

    #[test]
    fn granted_bytes_are_read_where_they_are() {
        let pair = acquainted();
        let process = Process::of(&pair);
        assert_eq!(process.sends(4096, LEN), (Put::Granted(LEN), LEN));
        assert_eq!(process.sends(0, 100), (Put::Copied, 100));
        assert!(pair.ring[..LEN].iter().all(|byte| byte.get() == 0), "nothing was copied");
        assert!(process.doubts.get(), "who waits looks for what is overdue");
        let reader = Reader::of(&process);
        let mut got = reader.does(Use::Copied, 5000);
        got.extend(reader.does(Use::Copied, 9000));
        assert_eq!(got, [original(4096, LEN), original(0, 100)].concat());
    }

    /// A header, a buffer, a header and a buffer.
    fn parts() -> [(Hint, (usize, usize)); 4] {
        let buffer = |n: usize| (Hint::Auto, (Process::BASE + n * LEN, LEN));
        let header = |n: usize| (Hint::Copy, (Process::BASE + n * 100, 72));
        [header(0), buffer(1), header(1), buffer(2)]
    }

    /// Puts them to their place, of which `room` bytes are free: how each went. The cursor does not cover them yet.
    fn puts_together(process: &Process<'_>, room: usize) -> Vec<(Put, usize, usize)> {
        let pair = process.pair.unwrap();
        let granting = pair.granting();
        granting.withdraw();
        let mut batch = Batch::new();
        granting.gather(process, parts().into_iter(), 1 << 16, &mut batch);
        let (end, cursor) = (pair.sender(), &pair.records[0].tx.cursor);
        let wish = Shape { cap: Pair::RING, late: false };
        let want = (batch.len() as u64, batch.content());
        let place = cursor.reserve(&end.theirs.cons, Pair::RING, wish, UNLIMITED, want).unwrap();
        let part = |before, len| place.split(before).1.split(len).0;
        let bytes = |address, len| process.at(address - Process::BASE, len);
        for (before, address, len) in batch.copied(room) {
            pair.write(part(before, len), &bytes(address, len));
        }
        let shown = || pair.sections[0].prod.grants.load(Relaxed);
        let (mut did, before) = (Vec::new(), shown());
        granting.put_all(process, &batch, room, |put, at, (address, len)| {
            assert_eq!(shown(), before, "the receiver is shown all at once");
            if put == Put::Refused {
                pair.write(part(at, len), &bytes(address, len));
            }
            did.push((put, at, len));
        });
        did
    }

    #[test]
    fn what_goes_together_is_granted_and_shown_at_once() {
        let pair = acquainted();
        let process = Process::of(&pair);
        process.sends(5, 50);
        let (copied, granted) = (Put::Copied, Put::Granted(LEN));
        let all = [
            (copied, 0, 72),
            (granted, 72, LEN),
            (copied, 72 + LEN, 72),
            (granted, 144 + LEN, LEN),
        ];
        let whole = 2 * (72 + LEN);
        assert_eq!(puts_together(&process, whole), all);
        assert_eq!(pair.sections[0].prod.grants.load(Relaxed), 2);
        process.publishes(whole, false);
        let reader = Reader::of(&process);
        let got = reader.does(Use::Copied, u64::MAX);
        let sent = [
            original(5, 50),
            original(0, 72),
            original(LEN, LEN),
            original(100, 72),
            original(2 * LEN, LEN),
        ];
        assert_eq!(got, sent.concat());
        // The room ends in the middle of a header, and in the middle of a buffer.
        assert_eq!(
            puts_together(&process, 72 + LEN + 30),
            [all[0], all[1], (copied, 72 + LEN, 30)]
        );
        process.publishes(72 + LEN + 30, false);
        assert_eq!(puts_together(&process, 72 + LEAST - 1)[1], (Put::Refused, 72, LEAST - 1));
        process.publishes(72 + LEAST - 1, false);
        assert_eq!(puts_together(&process, 72 + LEAST)[1], (Put::Granted(LEAST), 72, LEAST));
        process.publishes(72 + LEAST, false);
        let sent = [
            original(0, 72),
            original(LEN, LEN),
            original(100, 30),
            original(0, 72),
            original(LEN, LEAST - 1),
        ];
        let sent = [sent.concat(), original(0, 72), original(LEN, LEAST)].concat();
        assert_eq!(reader.does(Use::Copied, u64::MAX), sent);
    }

    #[test]
    fn without_a_free_entry_the_rest_of_what_goes_together_is_copied() {
        let pair = acquainted();
        let (process, granting) = (Process::of(&pair), pair.granting());
        let piece = granting.piece(&process, Hint::Grant, (Process::BASE, 1)).unwrap().unwrap();
        for _ in 1..GRANTS {
            assert_eq!(granting.put(&process, &piece, 1), Put::Granted(1));
            process.publishes(1, false);
        }
        let how: Vec<_> =
            puts_together(&process, 2 * (72 + LEN)).iter().map(|part| part.0).collect();
        assert_eq!(how, [Put::Copied, Put::Granted(LEN), Put::Copied, Put::Refused]);
        process.publishes(2 * (72 + LEN), false);
        let reader = Reader::of(&process);
        reader.does(Use::Dropped, GRANTS as u64 - 1);
        let sent = [original(0, 72), original(LEN, LEN), original(100, 72), original(2 * LEN, LEN)];
        assert_eq!(reader.does(Use::Copied, u64::MAX), sent.concat());
    }

    #[test]
    fn with_too_little_room_or_all_entries_in_use_it_is_copied() {
        let pair = acquainted();
        let (process, granting) = (Process::of(&pair), pair.granting());
        let piece = granting.piece(&process, Hint::Auto, (Process::BASE, LEN)).unwrap().unwrap();
        assert_eq!(granting.put(&process, &piece, piece.least - 1), Put::Refused);
        assert_eq!(tallied(&pair, Counter::GrantOverflows), 0);
        let least = Piece { least: 1, ..piece };
        for _ in 0..GRANTS {
            assert_eq!(granting.put(&process, &least, 1), Put::Granted(1));
            process.publishes(1, false);
        }
        assert_eq!(granting.put(&process, &least, 1), Put::Refused);
        assert_eq!(tallied(&pair, Counter::GrantOverflows), 1);
        // The sender's own copy of the cursor is old: that is looked at first.
        Reader::of(&process).does(Use::Dropped, 1);
        assert_eq!(granting.put(&process, &least, 1), Put::Granted(1));
    }

    #[test]
    fn what_the_receiver_has_passed_stays_passed_whatever_it_says() {
        let pair = acquainted();
        let (process, granting) = (Process::of(&pair), pair.granting());
        process.sends(0, LEN);
        let said = &pair.sections[1].cons.cons;
        for (says, taken) in [(5, 5), (3, 5), (u64::MAX, 5), (LEN as u64 + 1, 5), (7, 7)] {
            said.store(says, Relaxed);
            assert_eq!(granting.taken(), taken);
        }
    }

    #[test]
    fn what_a_killed_relative_granted_and_never_sent_is_not_taken_for_the_next_bytes() {
        let later: [fn(&Process<'_>); 3] = [
            |process| assert_eq!(process.sends(100, 50), (Put::Copied, 50)),
            |process| {
                let pair = process.pair.unwrap();
                assert!(pair.granting().take_back(process));
                process.publishes(50, false);
            },
            |process| {
                let pair = process.pair.unwrap();
                pair.granting().offer(process, 99, false);
                assert_eq!(pair.state.granted.offered(), 99);
                process.publishes(50, false);
            },
        ];
        for (n, later) in later.into_iter().cycle().take(6).enumerate() {
            let (pair, is_batch) = (acquainted(), n >= 3);
            let process = Process::of(&pair);
            process.sends(0, LEN);
            let (put, _) = process.puts(20_000, LEN, &mut Outcome::default());
            assert_eq!(put, Put::Granted(LEN));
            if is_batch {
                puts_together(&process, 2 * (72 + LEN));
                assert_eq!(pair.sections[0].prod.grants.load(Relaxed), 3);
            }
            pair.ring[LEN..][..50].iter().zip(100..).for_each(|(to, at)| to.set(byte(at)));
            // It was killed here.
            later(&process);
            let reader = Reader::of(&process);
            reader.does(Use::Dropped, LEN as u64);
            assert_eq!(reader.does(Use::Copied, 50), original(100, 50), "{n}");
        }
    }

    #[test]
    fn memory_is_offered_once_and_one_at_a_time() {
        let pair = Pair::default();
        let (process, granting) = (Process::of(&pair), pair.granting());
        let offers = |region, is_nested| {
            let before = pair.sections[0].prod.grants.load(Relaxed);
            granting.offer(&process, region, is_nested);
            pair.sections[0].prod.grants.load(Relaxed) - before
        };
        assert_eq!(offers(5, true), 0, "in a handler");
        assert_eq!(offers(5, false), 1);
        assert_eq!((offers(5, false), offers(6, false)), (0, 0), "the answer names the last one");
        let accepted = &pair.sections[1].ctl.accepted;
        accepted.store(5 | DECLINED, Relaxed);
        assert_eq!((offers(5, false), offers(6, false)), (0, 1));
        accepted.store(6, Relaxed);
        assert!(granting.state.granted.is_known(6, 6), "as the next call finds");
        assert_eq!((offers(6, false), offers(7, false)), (0, 1));
        accepted.store(7, Relaxed);
        assert_eq!(offers(6, false), 0, "it has that");
        pair.records[0].tx.marks.store(2, Relaxed);
        assert_eq!(offers(8, false), 0, "what goes over TCP is not granted");
        assert!(!process.doubts.get(), "nobody waits for an answer");
    }

    #[test]
    fn what_was_taken_back_is_in_the_ring_and_the_memory_the_programs() {
        let pair = acquainted();
        let (process, granting) = (Process::of(&pair), pair.granting());
        process.sends(0, LEN);
        process.sends(LEN, LEN);
        let reader = Reader::of(&process);
        assert_eq!(reader.does(Use::Copied, 1000), original(0, 1000));
        let is_open_in = |from, to| {
            let base = Process::BASE as u64;
            granting.is_open_in(base + from, base + to)
        };
        assert!(is_open_in(1000, 1001) && !is_open_in(0, 1000));
        assert!(is_open_in(2 * LEN as u64 - 1, 1 << 20));
        assert!(granting.take_back(&process) && !granting.is_open());
        assert!(!granting.is_open_in(0, u64::MAX));
        assert_eq!(tallied(&pair, Counter::GrantsTakenBack), 1);
        process.scribbles(0, Process::LEN);
        assert_eq!(reader.does(Use::Copied, u64::MAX), original(1000, 2 * LEN - 1000));
        assert!(granting.take_back(&process));
        assert_eq!(tallied(&pair, Counter::GrantsTakenBack), 1, "there was nothing");
    }

    #[test]
    fn what_is_not_to_be_had_stays_granted_and_no_number_is_told_of_it() {
        let pair = acquainted();
        let process = Process { is_there: false, ..Process::of(&pair) };
        process.sends(0, LEN);
        assert!(!pair.granting().take_back(&process) && pair.granting().is_open());
        assert!(pair.entries.is_granted(0) && !pair.state.completions.has_notice(0));
        let process = Process { is_there: true, ..process };
        assert!(pair.granting().take_back(&process) && !pair.entries.is_granted(0));
        let notice = pair.state.completions.take(0).unwrap();
        assert!(notice.copied, "and the kernel would say so, too");
    }

    #[test]
    fn a_connection_without_numbers_has_nothing_to_take_back() {
        let pair = acquainted();
        let process = Process { is_there: false, ..Process::of(&pair) };
        process.sends(0, LEN);
        pair.sender().put(NUMBERED, false);
        // What is kept of grants is that of the record's last connection.
        assert!(pair.granting().take_back(&process));
    }

    #[test]
    fn who_leaves_takes_back_what_relatives_cannot() {
        let pair = acquainted();
        let (process, granting) = (Process::of(&pair), pair.granting());
        process.sends(0, LEN);
        assert!(granting.leave(&process, false, |_| false) && granting.is_open());
        assert!(granting.state.pinned.may_be_used());
        assert!(granting.leave(&process, false, |region| region == Process::REGION));
        assert!(!granting.is_open() && granting.state.pinned.may_be_used());

        let pair = Pair::default();
        let (process, granting) = (Process::with_pipes(&pair), pair.granting());
        process.sends(Process::PRIVATE, LEN);
        assert!(granting.leave(&process, false, |_| true) && granting.is_open());
        assert!(granting.leave(&process, true, |_| false) && !granting.is_open());
        assert!(!granting.state.pinned.may_be_used());
    }

    #[test]
    fn pipes_of_who_leaves_are_used_no_more_whether_something_is_in_them_or_not() {
        let pair = Pair::default();
        let (process, granting) = (Process::with_pipes(&pair), pair.granting());
        assert!(granting.leave(&process, true, |_| false));
        assert!(!granting.state.pinned.may_be_used());
    }

    #[test]
    fn what_is_left_unread_for_too_long_is_overdue() {
        let pair = acquainted();
        let (process, granting) = (Process::of(&pair), pair.granting());
        assert!(!granting.is_overdue(&process) && !process.doubts.get(), "no doubt arises");
        process.sends(0, LEN);
        process.doubts.set(false);
        process.time.set(1009);
        assert!(!granting.is_overdue(&process) && process.doubts.get());
        process.time.set(1010);
        assert!(granting.is_overdue(&process));
        assert!(granting.time_out(&process) && !granting.is_overdue(&process));
        assert!(pair.sender().has(UNREAD), "the next call asks whether the peer is there");
        assert_eq!(tallied(&pair, Counter::GrantsTimedOut), 1);
        // When the last one was made counts, over the end of the clock, too.
        process.time.set(u32::MAX);
        process.sends(0, LEN);
        process.time.set(8);
        assert!(!granting.is_overdue(&process));
        process.time.set(9);
        assert!(granting.is_overdue(&process));
    }

    #[test]
    fn what_a_killed_receiver_has_not_read_is_overdue_at_once() {
        let pair = acquainted();
        let (process, granting) = (Process::of(&pair), pair.granting());
        process.sends(0, LEN);
        pair.sender().put(CUT_OFF, true);
        assert!(granting.is_overdue(&process) && granting.time_out(&process));
        assert!(!granting.is_open());
        assert_eq!(tallied(&pair, Counter::GrantsTimedOut), 0, "it held nothing too long");
    }
}
