//! How many bytes a read would find (`FIONREAD`), and how many have not arrived (`SIOCOUTQ`).

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use shunt_shm::ring::RxCursor;

use crate::buffers;
use crate::conn::End;
use crate::conn::flags::{FROZEN, SHUT_RD};
use crate::conn::repeated::are_awaited;
use crate::kernel::KernelSocket;
use crate::stretch::{Path, path};

impl End<'_> {
    /// Bytes that a read would find where the ring alone says so: in a ring stretch that has no end yet. Without a lock.
    #[must_use]
    pub fn unread_in_ring_alone(&self) -> Option<u64> {
        let marks = self.record.rx.marks.load(Relaxed);
        if path(marks) == Path::Tcp
            || self.theirs.prod.marks.load(Acquire) != marks
            || self.has(FROZEN | SHUT_RD)
        {
            return None;
        }
        // More than the ring holds: the next read finds the peer out.
        Some(self.in_ring()).filter(|n| *n <= self.ring)
    }

    /// Bytes that a read would find, or `None` for what the kernel says. With the receiving direction's lock held.
    pub fn unread(&self, socket: &impl KernelSocket) -> Option<u64> {
        if self.is_under_agreement() {
            return Some(0);
        }
        let (rx, theirs) = (&self.record.rx, self.theirs);
        let marks = rx.marks.load(Relaxed);
        let has_mark = RxCursor::next_mark(&theirs.prod, marks).ok()?.is_some();
        if path(marks) == Path::Tcp && (!has_mark || are_awaited(self.record)) {
            // More may just have come of what comes twice.
            return are_awaited(self.record).then(|| self.not_repeated(socket.waiting()));
        }
        let left_at =
            if self.has(FROZEN) { RxCursor::ring_end(&theirs.prod, marks).ok()? } else { None };
        let in_ring = match left_at {
            // What this side has left there comes once more over TCP; but not what lies in front of the mark of a
            // peer that left by itself.
            Some(at) => at.saturating_sub(rx.cursor.pos()),
            None => rx.cursor.refresh(&theirs.prod, self.ring).ok()?,
        };
        // Bytes on both sides of a mark count together.
        let beside = if has_mark { self.not_repeated(socket.waiting()) } else { 0 };
        in_ring.checked_add(beside)
    }

    /// True while there are bytes in the ring that come before whatever the kernel socket has. With the receiving direction's
    /// lock held.
    #[must_use]
    pub fn reads_ring_first(&self) -> bool {
        let rx = &self.record.rx;
        path(rx.marks.load(Relaxed)) == Path::Ring
            && !self.has(FROZEN)
            && rx.cursor.refresh(&self.theirs.prod, self.ring).is_ok_and(|n| n > 0)
    }

    /// True in a ring stretch: the kernel knows nothing of what was sent last.
    #[must_use]
    pub fn sends_through_ring(&self) -> bool {
        path(self.record.tx.marks.load(Relaxed)) == Path::Ring
    }

    /// Bytes of a ring stretch that have not arrived yet, as the kernel would count those in the ring: they arrive when the
    /// receiver's buffer has room for them, and not when they are read. `None` where the peer breaks the protocol. With the
    /// sending direction's lock held.
    #[must_use]
    pub fn not_arrived(&self) -> Option<u64> {
        let tx = &self.record.tx;
        let unread = tx.cursor.refresh(&self.theirs.cons).ok()?;
        let sizes = (tx.buffer.load(Relaxed), self.theirs.ctl.window.load(Relaxed));
        Some(buffers::not_arrived(unread, sizes))
    }

    /// Something else whenever bytes have come by the ring, or a stretch or the direction has ended.
    #[must_use]
    pub fn arrivals(&self) -> u64 {
        let theirs = self.theirs;
        let words =
            [&theirs.prod.marks, &theirs.prod.fin, &theirs.ctl.closed, &theirs.ctl.handed_over];
        let words = words.iter().map(|word| u64::from(word.load(Acquire)));
        super::readiness::stamp_of(words.chain([theirs.prod.prod.load(Acquire)]))
    }
}

#[cfg(test)]
mod tests {
    use shunt_shm::ring::TxCursor;

    use super::*;
    use crate::conn::flags::STAYS;
    use crate::handshake::Phase;
    use crate::model::{Arrival, Memory, Socket};

    fn in_ring(received: u64) -> Memory {
        let memory = Memory::default();
        memory.enter_ring();
        memory.receive(received);
        memory
    }

    fn kernel(bytes: u64) -> Socket {
        let socket = Socket::default();
        socket.arrive(Arrival::Bytes(bytes));
        socket
    }

    #[test]
    fn what_an_agent_is_told_over_tcp_does_not_count() {
        let memory = Memory::default();
        memory.end().put(STAYS, true);
        for (phase, unread) in [(Phase::Proposed, Some(0)), (Phase::Tcp, None)] {
            memory.end().record.id.phase.store(phase as u32, Relaxed);
            assert_eq!(memory.end().unread(&kernel(5)), unread);
        }
    }

    #[test]
    fn a_ring_without_an_end_speaks_for_itself() {
        let memory = in_ring(10);
        assert_eq!(memory.end().unread_in_ring_alone(), Some(10));
        assert_eq!(memory.end().unread(&kernel(5)), Some(10), "nothing is to be there");
        assert!(memory.end().reads_ring_first());
        memory.take(10);
        assert_eq!(memory.end().unread_in_ring_alone(), Some(0));
        assert!(!memory.end().reads_ring_first());
    }

    #[test]
    fn over_tcp_the_kernel_says_it() {
        let memory = Memory::default();
        assert_eq!(memory.end().unread_in_ring_alone(), None);
        assert_eq!(memory.end().unread(&kernel(5)), None);
    }

    #[test]
    fn bytes_on_both_sides_of_a_mark_count_together() {
        let memory = Memory::default();
        TxCursor::set_mark(&memory.end().theirs.prod, 5);
        memory.receive(10);
        assert_eq!(memory.end().unread(&kernel(5)), Some(15));
        let memory = in_ring(10);
        TxCursor::set_mark(&memory.end().theirs.prod, 10);
        assert_eq!(memory.end().unread_in_ring_alone(), None);
        assert_eq!(memory.end().unread(&kernel(5)), Some(15));
    }

    #[test]
    fn what_comes_twice_counts_once() {
        let memory = in_ring(10);
        TxCursor::set_mark(&memory.end().theirs.prod, 4);
        assert_eq!(memory.end().unread(&kernel(7)), Some(11), "six of them are in the ring, too");
        memory.take(10);
        memory.end().pass_end_of_ring();
        assert_eq!(memory.end().unread(&kernel(7)), Some(1));
        assert_eq!(memory.end().unread(&kernel(2)), Some(0));
    }

    #[test]
    fn what_comes_twice_is_in_front_of_the_next_stretch() {
        let memory = Memory::default();
        TxCursor::set_mark(&memory.end().theirs.prod, 5);
        memory.receive(10);
        memory.end().record.rx.again.store(2, Relaxed);
        assert_eq!(memory.end().unread(&kernel(7)), Some(5));
    }

    #[test]
    fn one_that_has_left_counts_up_to_the_mark() {
        let memory = in_ring(10);
        memory.end().put(FROZEN, true);
        assert_eq!(memory.end().unread(&Socket::default()), Some(10));
        assert!(!memory.end().reads_ring_first());
        TxCursor::set_mark(&memory.end().theirs.prod, 4);
        assert_eq!(memory.end().unread(&Socket::default()), Some(4));
    }

    #[test]
    fn a_peer_that_lies_is_not_believed() {
        let memory = in_ring(Memory::RING + 1);
        assert_eq!(memory.end().unread_in_ring_alone(), None);
        assert_eq!(memory.end().unread(&Socket::default()), None);
        assert!(!memory.end().reads_ring_first());
        memory.end().theirs.cons.cons.store(1, Relaxed);
        assert_eq!(memory.end().not_arrived(), None);
    }

    #[test]
    fn what_the_receivers_buffer_takes_has_arrived() {
        let memory = Memory::default();
        assert!(!memory.end().sends_through_ring());
        memory.enter_ring();
        memory.send(60_000);
        assert!(memory.end().sends_through_ring());
        assert_eq!(memory.end().not_arrived(), Some(0));
        memory.end().record.tx.buffer.store(4096, Relaxed);
        memory.end().theirs.ctl.window.store(10_000, Relaxed);
        assert_eq!(memory.end().not_arrived(), Some(50_000));
    }

    #[test]
    fn each_arrival_changes_what_tells_of_it() {
        type Change = fn(&Memory);
        let changes: [Change; 5] = [
            |memory| memory.receive(1),
            |memory| TxCursor::set_mark(&memory.end().theirs.prod, 0),
            |memory| memory.end().theirs.prod.fin.store(1, Relaxed),
            |memory| memory.end().theirs.ctl.closed.store(1 << 31, Relaxed),
            |memory| memory.end().theirs.ctl.handed_over.store(1 << 31, Relaxed),
        ];
        for (n, change) in changes.into_iter().enumerate() {
            let memory = in_ring(0);
            let before = memory.end().arrivals();
            change(&memory);
            assert_ne!(memory.end().arrivals(), before, "{n}");
        }
    }
}
