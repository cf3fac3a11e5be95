//! Bytes that a program looks at where they are, and gives back. With the lock of the receiving direction held.

use core::sync::atomic::Ordering::Relaxed;

use shunt_shm::Violation;
use shunt_shm::grants::Grants;
use shunt_shm::ring::Span;
use shunt_shm::sync::{AtomicU32, AtomicU64};

use crate::call::Errno;
use crate::conn::End;
use crate::conn::flags::FROZEN;
use crate::stretch::{Path, path};
use crate::zerocopy::ports::{Borrower, Lending};
use crate::zerocopy::received::{Found, Where};

/// What a process has borrowed of a connection.
#[derive(Debug, Default)]
pub struct Lent {
    /// Position in the ring of its first byte.
    at: AtomicU64,
    /// Bytes; 0: nothing.
    len: AtomicU64,
    /// Marks that were passed at that time.
    marks: AtomicU32,
    /// The number behind the last entry of the sender's that lies in it.
    entries: AtomicU32,
    /// Which of them were granted, a bit each.
    granted: AtomicU64,
}

impl Lent {
    /// Forgets it.
    pub fn clear(&self) {
        self.len.store(0, Relaxed);
    }

    /// So many of its bytes were given back.
    pub fn advance(&self, n: usize) {
        let len = self.len.load(Relaxed);
        self.at.store(self.at.load(Relaxed).wrapping_add(n as u64), Relaxed);
        self.len.store(len.saturating_sub(n as u64), Relaxed);
    }
}

impl End<'_> {
    /// Tells where the bytes of `span` are, the receiver's next ones, and remembers that they were lent: how many. What is in a
    /// pipe is read to the ring for it. `None`: to be done anew, see [`Passed`](super::received::Passed).
    ///
    /// # Errors
    /// The peer breaks the protocol.
    pub fn lend<B: Borrower>(
        &self,
        port: &B,
        lent: &Lent,
        (span, reads_pipes): (Span, bool),
        lending: &mut impl Lending<Mapped = B::Mapped>,
    ) -> Result<Option<usize>, Violation> {
        let rx = &self.record.rx;
        let (mut len, mut entries, mut granted) = (0, rx.grants.load(Relaxed), 0);
        lending.begin();
        let passed = self.each_part(port, (span, reads_pipes), |Found { span, held }| {
            match held {
                Where::Mapped(number, bytes) => {
                    let is_told = lending.tell_mapped(bytes, span.len());
                    if is_told {
                        (len, entries) = (len + span.len(), number.wrapping_add(1));
                        granted |= 1 << (number % u64::BITS);
                    }
                    return Ok(is_told);
                }
                Where::Piped(read) => read.into_ring((self, port), span)?,
                Where::Ring => {}
            }
            Ok([span.head, span.tail].into_iter().all(|(at, n)| {
                let is_told = lending.tell_ring(at, n);
                len += if is_told { n } else { 0 };
                is_told
            }))
        })?;
        if passed.is_none() {
            return Ok(None);
        }
        lent.at.store(rx.cursor.pos(), Relaxed);
        lent.len.store(len as u64, Relaxed);
        lent.marks.store(rx.marks.load(Relaxed), Relaxed);
        lent.entries.store(entries, Relaxed);
        lent.granted.store(granted, Relaxed);
        Ok(Some(len))
    }

    /// The error with which `n` borrowed bytes cannot be given back: `ESTALE` if they may have changed while the program
    /// looked, as the sender took back what was granted, or another call has taken some. The program then borrows anew.
    #[must_use]
    pub fn refuses(&self, shown: &Grants, lent: &Lent, n: usize) -> Option<Errno> {
        let (rx, len) = (&self.record.rx, lent.len.load(Relaxed));
        if len == 0 {
            // They were copied.
            return None;
        }
        if n as u64 > len {
            return Some(Errno::INVAL);
        }
        let marks = rx.marks.load(Relaxed);
        let passed = rx.grants.load(Relaxed);
        let count = lent.entries.load(Relaxed).wrapping_sub(passed);
        let granted = lent.granted.load(Relaxed);
        let mut left = (0..count.min(u64::BITS)).map(|n| passed.wrapping_add(n));
        let are_there = path(marks) == Path::Ring
            && marks == lent.marks.load(Relaxed)
            && rx.cursor.pos() == lent.at.load(Relaxed)
            && !self.has(FROZEN)
            && left.all(|n| granted & 1 << (n % u64::BITS) == 0 || shown.is_granted(n));
        if !are_there {
            lent.clear();
            return Some(Errno::STALE);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zerocopy::model::{Pair, Places, Process, Reader};
    use crate::zerocopy::received::Use;

    const LEN: usize = 8192;

    fn lends(pair: &Pair, reader: &Reader<'_, '_>, lent: &Lent, room: usize) -> (usize, Places) {
        let (end, mut places) = (pair.receiver(), Places(room, Vec::new()));
        end.record.rx.pipe_reads.begin().unwrap();
        let len = end.lend(reader, lent, (pair.next(u64::MAX), true), &mut places);
        end.record.rx.pipe_reads.end();
        (len.unwrap().unwrap(), places)
    }

    #[test]
    fn bytes_are_lent_where_they_are_as_far_as_the_list_goes() {
        let (pair, lent) = (Pair::default(), Lent::default());
        pair.knows(Process::REGION);
        let process = Process::of(&pair);
        process.sends(0, LEN);
        process.sends(20, 100);
        process.sends(LEN, LEN);
        let reader = Reader::of(&process);
        let all = [(true, 0, LEN), (false, LEN, 100), (true, LEN, LEN)];
        let lens = [LEN, LEN + 100, 2 * LEN + 100];
        for room in 1..=3 {
            let (len, places) = lends(&pair, &reader, &lent, room);
            assert_eq!((len, places.1), (lens[room - 1], all[..room].to_vec()));
        }
    }

    #[test]
    fn what_was_pinned_is_lent_in_the_ring() {
        let (pair, lent) = (Pair::default(), Lent::default());
        let process = Process::with_pipes(&pair);
        process.sends(Process::PRIVATE, LEN);
        let (len, places) = lends(&pair, &Reader::of(&process), &lent, 9);
        assert_eq!((len, places.1), (LEN, vec![(false, 0, LEN)]));
        assert_eq!(pair.read(pair.next(u64::MAX)), process.at(Process::PRIVATE, LEN));
        assert_eq!(pair.receiver().refuses(&pair.entries, &lent, LEN), None);
    }

    #[test]
    fn a_look_that_has_found_pipes_only_now_lends_nothing() {
        let (pair, lent) = (Pair::default(), Lent::default());
        let process = Process::with_pipes(&pair);
        process.sends(Process::PRIVATE, LEN);
        let (look, mut places) = ((pair.next(u64::MAX), false), Places(9, Vec::new()));
        let found = pair.receiver().lend(&Reader::of(&process), &lent, look, &mut places);
        assert_eq!(found, Ok(None));
        assert_eq!(lent.len.load(Relaxed), 0);
    }

    #[test]
    fn borrowed_bytes_that_may_have_changed_are_refused() {
        type Change = fn(&Pair, &Process<'_>);
        let changes: [(Change, bool); 6] = [
            (|_, _| {}, false),
            (|pair, process| assert!(pair.granting().take_back(process)), true),
            (|_, process| drop(Reader::of(process).does(Use::Dropped, 10)), true),
            (|pair, _| pair.receiver().put(FROZEN, true), true),
            (|pair, _| pair.records[1].rx.marks.store(2, Relaxed), true),
            (|pair, _| pair.records[1].rx.marks.store(3, Relaxed), true),
        ];
        for (n, (change, is_stale)) in changes.into_iter().enumerate() {
            let (pair, lent) = (Pair::default(), Lent::default());
            pair.knows(Process::REGION);
            let process = Process::of(&pair);
            process.sends(0, LEN);
            process.sends(20, 100);
            let refused = |n| pair.receiver().refuses(&pair.entries, &lent, n);
            assert_eq!(refused(7), None, "nothing was lent: they were copied");
            lends(&pair, &Reader::of(&process), &lent, 9);
            assert_eq!(refused(LEN + 101), Some(Errno::INVAL));
            change(&pair, &process);
            assert_eq!(refused(LEN + 100), is_stale.then_some(Errno::STALE), "{n}");
            assert_eq!(refused(LEN + 100), None, "once, then it is to be borrowed anew: {n}");
        }
    }

    #[test]
    fn what_lies_in_the_ring_stays_there_when_grants_are_taken_back() {
        let (pair, lent) = (Pair::default(), Lent::default());
        pair.knows(Process::REGION);
        let process = Process::of(&pair);
        process.sends(0, LEN);
        // The entry is in the ring already when the bytes are lent.
        assert!(pair.granting().take_back(&process));
        lends(&pair, &Reader::of(&process), &lent, 9);
        assert_eq!(pair.receiver().refuses(&pair.entries, &lent, LEN), None);
    }

    #[test]
    fn what_is_given_back_in_parts_is_lent_still() {
        let (pair, lent) = (Pair::default(), Lent::default());
        pair.knows(Process::REGION);
        let process = Process::of(&pair);
        process.sends(0, LEN);
        let reader = Reader::of(&process);
        lends(&pair, &reader, &lent, 9);
        reader.does(Use::Dropped, 1000);
        lent.advance(1000);
        let refused = |n| pair.receiver().refuses(&pair.entries, &lent, n);
        assert_eq!((refused(LEN - 1000), refused(LEN - 999)), (None, Some(Errno::INVAL)));
        lent.clear();
        assert_eq!(refused(usize::MAX), None);
    }
}
