//! What an end's rings say of its readiness.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use shunt_shm::grants::Grants;
use shunt_shm::ring::{RxCursor, TxCursor};

use crate::conn::End;
use crate::conn::flags::{FROZEN, KERNEL_HINT, SHUT_RD, SHUT_WR, WANT_TCP};
use crate::conn::repeated::{are_awaited, are_pending};
use crate::handshake::Phase;
use crate::stretch::{Path, path};

/// Where the bytes are that are next to be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Source {
    /// In the kernel socket, or in the ring.
    pub path: Path,
    /// A mark is open behind them.
    pub has_mark: bool,
}

impl End<'_> {
    /// Where the next bytes are. A peer that has sent nothing over TCP is in the ring from byte 0, whether this side has
    /// passed that mark or not.
    #[must_use]
    pub fn source(&self) -> Source {
        let passed = self.record.rx.marks.load(Relaxed);
        let set = self.theirs.prod.marks.load(Acquire);
        if (passed, set) == (0, 1) && RxCursor::next_mark(&self.theirs.prod, 0) == Ok(Some(0)) {
            return Source { path: Path::Ring, has_mark: false };
        }
        Source { path: path(passed), has_mark: set != passed }
    }

    /// Bytes in the ring that were not read, if the cursor is right.
    #[inline]
    #[must_use]
    pub fn in_ring(&self) -> u64 {
        self.theirs.prod.prod.load(Acquire).wrapping_sub(self.record.rx.cursor.pos())
    }

    /// Bytes in the ring that a read would get now, or behind what it gets from the kernel socket. `None`: the ring is not
    /// what is read next.
    #[must_use]
    pub fn readable(&self, source: Source) -> Option<u64> {
        let Source { path, has_mark } = source;
        if self.has(FROZEN) {
            // Up to the mark of a peer that has left by itself.
            let rx = &self.record.rx;
            return match RxCursor::ring_end(&self.theirs.prod, rx.marks.load(Relaxed)) {
                Ok(Some(at)) => at.checked_sub(rx.cursor.pos()).filter(|left| *left > 0),
                // Who reads before the peer has come to leave reads the ring.
                Ok(None) if path == Path::Ring || has_mark => Some(self.in_ring()),
                _ => None,
            };
        }
        match path {
            Path::Ring => Some(self.in_ring()),
            // What comes twice may be on its way still, and is in front of all else.
            Path::Tcp if are_awaited(self.record) => None,
            // The stretch before it is over or about to be.
            Path::Tcp if has_mark => Some(self.in_ring()),
            Path::Tcp => None,
        }
    }

    /// True when a look at the bytes would find that the peer broke the protocol.
    #[must_use]
    pub fn is_violated(&self) -> bool {
        let Self { record, theirs, .. } = self;
        let rx = &record.rx;
        let reader = || (rx.marks.load(Acquire), rx.cursor.pos());
        let (marks, pos) = reader();
        let out_of_order = match RxCursor::next_mark(&theirs.prod, marks) {
            Err(_) => true,
            // A mark is set after all bytes in front of it; bytes behind it, which come once more, may have been read.
            Ok(Some(at)) if path(marks) == Path::Ring && !self.has(FROZEN) => {
                let first = pos.saturating_sub(self.ring);
                !(first..=theirs.prod.prod.load(Acquire)).contains(&at)
            }
            Ok(_) => false,
        };
        // What another thread reads meanwhile puts nothing out of order.
        (out_of_order && reader() == (marks, pos))
            || !Grants::are_possible(&theirs.prod, rx.grants.load(Relaxed))
            || (path(record.tx.marks.load(Relaxed)) == Path::Ring
                && !record.tx.cursor.is_possible(&theirs.cons))
    }

    /// True when something has come that the kernel would not tell of.
    #[must_use]
    pub fn has_news(&self) -> bool {
        let source = self.source();
        let ctl = &self.theirs.ctl;
        let end = [&self.theirs.prod.fin, &ctl.closed, &ctl.handed_over];
        self.phase() == Phase::Broken
            || source.has_mark
            || (source.path == Path::Ring && self.in_ring() != 0)
            || end.iter().any(|word| word.load(Relaxed) != 0)
            || self.has(KERNEL_HINT | SHUT_RD | FROZEN)
    }

    /// True when the next bytes that are sent go into the ring. `can_tell`: the doorbells of the peer are at hand. What is in the
    /// kernel socket by then may fill that: the program is told of room when the kernel would tell it
    /// ([`FILLS_KERNEL`](crate::conn::flags::FILLS_KERNEL)), though the ring has some at once.
    #[must_use]
    pub fn sends_to_ring(&self, can_tell: bool) -> bool {
        let tx = &self.record.tx;
        let marks = tx.marks.load(Relaxed);
        let is_promoted_next = || {
            can_tell
                && self.may_enter(marks)
                && !self.has(WANT_TCP)
                && self.theirs.ctl.handed_over.load(Relaxed) == 0
                && !are_pending(self.record)
                && TxCursor::marks_settled(&self.mine.prod, &self.theirs.cons)
        };
        (path(marks) == Path::Ring || is_promoted_next())
            && self.theirs.ctl.closed.load(Relaxed) == 0
            && !self.has(SHUT_WR)
    }

    /// Something else whenever bytes or room have come, or a stretch or direction has ended or been passed; never 0.
    /// `completions`: what changes with those on the error queue.
    #[must_use]
    pub fn stamp(&self, completions: u64) -> u64 {
        let (record, theirs) = (self.record, self.theirs);
        let words = [
            &theirs.ctl.window,
            &record.tx.buffer,
            &record.rx.marks,
            &theirs.prod.marks,
            &theirs.prod.fin,
            &theirs.ctl.closed,
            &theirs.ctl.handed_over,
        ];
        let words = words.iter().map(|word| u64::from(word.load(Relaxed)));
        let cursors = [&theirs.prod.prod, &theirs.cons.cons].map(|word| word.load(Acquire));
        stamp_of([completions].into_iter().chain(words).chain(cursors))
    }
}

/// Something else whenever one of the words is; never 0.
pub(super) fn stamp_of(words: impl Iterator<Item = u64>) -> u64 {
    // Each step is one to one in either of the two, by an odd factor: so no single change is lost.
    let all = words
        .fold(0_u64, |all, word| all.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) ^ word);
    all.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Memory;

    const KERNEL: Source = Source { path: Path::Tcp, has_mark: false };
    const RING: Source = Source { path: Path::Ring, has_mark: false };

    fn in_ring() -> Memory {
        let memory = Memory::default();
        memory.enter_ring();
        memory
    }

    #[test]
    fn bytes_are_in_the_ring_from_the_first_one_on_where_none_went_over_tcp() {
        let memory = Memory::default();
        assert_eq!(memory.end().source(), KERNEL);
        assert_eq!(memory.end().readable(KERNEL), None);
        TxCursor::set_mark(&memory.end().theirs.prod, 0);
        memory.receive(3);
        assert_eq!(memory.end().source(), RING);
        assert_eq!(memory.end().readable(RING), Some(3));
    }

    #[test]
    fn bytes_behind_an_open_mark_count() {
        let memory = Memory::default();
        TxCursor::set_mark(&memory.end().theirs.prod, 100);
        memory.receive(3);
        let source = memory.end().source();
        assert_eq!(source, Source { path: Path::Tcp, has_mark: true });
        assert_eq!(memory.end().readable(source), Some(3));
        // Unless some come a second time before.
        memory.end().record.rx.again.store(1, Relaxed);
        assert_eq!(memory.end().readable(source), None);
    }

    #[test]
    fn one_that_has_left_reads_up_to_where_the_peer_left() {
        let memory = in_ring();
        memory.receive(10);
        memory.end().put(FROZEN, true);
        assert_eq!(memory.end().readable(memory.end().source()), Some(10));
        TxCursor::set_mark(&memory.end().theirs.prod, 4);
        assert_eq!(memory.end().readable(memory.end().source()), Some(4));
        memory.end().theirs.prod.mark_at[0].store(0, Relaxed);
        assert_eq!(memory.end().readable(memory.end().source()), None);
    }

    #[test]
    fn whatever_a_peer_writes_is_right_or_a_violation() {
        let memory = in_ring();
        assert!(!memory.end().is_violated());
        // More marks than may be open.
        memory.end().theirs.prod.marks.store(7, Relaxed);
        assert!(memory.end().is_violated());
        memory.end().theirs.prod.marks.store(1, Relaxed);
        // Room that is not there.
        memory.end().theirs.cons.cons.store(1, Relaxed);
        assert!(memory.end().is_violated());
        memory.end().theirs.cons.cons.store(0, Relaxed);
        // A mark behind what was put into the ring.
        memory.receive(5);
        TxCursor::set_mark(&memory.end().theirs.prod, 6);
        assert!(memory.end().is_violated());
        memory.end().theirs.prod.mark_at[0].store(5, Relaxed);
        assert!(!memory.end().is_violated());
        // Grants that are too many to be.
        memory.end().theirs.prod.grants.store(u32::MAX / 2, Relaxed);
        assert!(memory.end().is_violated());
    }

    #[test]
    fn each_thing_that_comes_is_news_and_changes_the_stamp() {
        type Change = fn(&Memory);
        let changes: [(Change, bool); 8] = [
            (|memory| memory.receive(1), true),
            (|memory| TxCursor::set_mark(&memory.end().theirs.prod, 0), true),
            (|memory| memory.end().theirs.prod.fin.store(1, Relaxed), true),
            (|memory| memory.end().theirs.ctl.closed.store(1, Relaxed), true),
            (|memory| memory.end().theirs.ctl.handed_over.store(1, Relaxed), true),
            // Room is for who asks for it.
            (|memory| memory.end().theirs.cons.cons.store(1, Relaxed), false),
            (|memory| memory.end().theirs.ctl.window.store(1 << 31, Relaxed), false),
            (|memory| memory.end().record.tx.buffer.store(1 << 31, Relaxed), false),
        ];
        for (n, (change, is_news)) in changes.into_iter().enumerate() {
            let memory = in_ring();
            memory.send(1);
            let before = memory.end().stamp(0);
            assert!(!memory.end().has_news(), "{n}");
            change(&memory);
            assert_ne!(memory.end().stamp(0), before, "{n}");
            assert_eq!(memory.end().has_news(), is_news, "{n}");
        }
        let memory = in_ring();
        assert_ne!(memory.end().stamp(0), memory.end().stamp(1));
        memory.end().record.id.phase.store(Phase::Broken as u32, Relaxed);
        assert!(memory.end().has_news());
    }

    #[test]
    fn sends_go_to_the_ring_when_both_can() {
        let in_tcp = || {
            let memory = Memory::default();
            assert!(memory.end().sends_to_ring(true));
            memory
        };
        assert!(!in_tcp().end().sends_to_ring(false), "nobody could be told");
        type Change = fn(&Memory);
        let changes: [Change; 6] = [
            |memory| memory.end().put(WANT_TCP, true),
            |memory| memory.end().put(SHUT_WR, true),
            |memory| memory.end().theirs.ctl.closed.store(1, Relaxed),
            |memory| memory.end().theirs.ctl.handed_over.store(1, Relaxed),
            |memory| memory.end().record.tx.replay.store(1, Relaxed),
            // The receiver has not left the ring yet.
            |memory| memory.end().mine.prod.marks.store(2, Relaxed),
        ];
        for (n, change) in changes.into_iter().enumerate() {
            let memory = in_tcp();
            change(&memory);
            assert!(!memory.end().sends_to_ring(true), "{n}");
        }
    }
}
