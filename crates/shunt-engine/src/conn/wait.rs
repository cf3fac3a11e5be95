//! What ends a wait.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use shunt_shm::arena::Record;
use shunt_shm::grants::Grants;
use shunt_shm::region::Section;

use crate::call::{Direction, Until};
use crate::conn::flags::{FROZEN, KERNEL_HINT, SHORT, SHUT_RD, SHUT_WR, TELLS_ERRORS};
use crate::conn::repeated::{are_known, are_pending};
use crate::conn::{End, has};
use crate::events;
use crate::handshake::Phase;
use crate::stretch::{Path, path};
use crate::wait::tell::Untold;

/// The events of the kernel socket that end a sleep, beside the doorbell; bits are those of poll(2). `theirs`: what the peer
/// writes, where there is a ring.
#[must_use]
pub fn kernel_events(
    record: &Record,
    theirs: Option<&Section>,
    direction: Direction,
    until: Until,
) -> u32 {
    match (direction, until) {
        (Direction::Receiving, _) => {
            // Of more bytes the kernel says nothing where there are some.
            let bytes = if matches!(until, Until::More(_)) { 0 } else { events::IN };
            // What is to be sent once more goes on when there is room.
            let room = if are_known(record) { events::OUT } else { 0 };
            bytes | events::RDHUP | room
        }
        // In a ring stretch the kernel socket always has room, and so it has where the receiver is about to say how much is to be
        // sent once more; only an end that the peer did not announce is of interest.
        (Direction::Sending, until)
            if until == Until::Ring || (are_pending(record) && !are_known(record)) =>
        {
            let is_unannounced = theirs.is_some_and(|theirs| theirs.prod.fin.load(Relaxed) == 0);
            if is_unannounced && !has(record, SHUT_RD) { events::RDHUP } else { 0 }
        }
        (Direction::Sending, _) => events::OUT,
    }
}

impl End<'_> {
    /// Before a call in a handler of a signal sleeps: what a call below it may have done and not told of yet. The handler may
    /// wait for the answer.
    #[cold]
    #[must_use]
    pub fn untold(&self) -> Untold {
        let Self { mine, theirs, ring, .. } = self;
        let is_untaken = mine.prod.prod.load(Relaxed) != theirs.cons.cons.load(Acquire);
        let is_unpassed = mine.prod.marks.load(Relaxed) != theirs.cons.marks_passed.load(Acquire);
        let unread = theirs.prod.prod.load(Acquire).wrapping_sub(mine.cons.cons.load(Relaxed));
        // As much as a sender in poll takes for room. One that is not in the ring waits for the kernel's.
        let is_in_ring = path(theirs.prod.marks.load(Relaxed)) == Path::Ring;
        let has_room = is_in_ring && ring.saturating_sub(unread).saturating_mul(3) >= *ring;
        Untold {
            data: is_untaken || is_unpassed || mine.prod.fin.load(Relaxed) != 0,
            room: has_room && theirs.ctl.tx_arm.load(Relaxed) != 0,
        }
    }

    /// True when all that ends a wait in poll(2) for these events is told by the arm words, but for ends that nobody announces.
    /// Behind a mark the kernel tells: also while a handler of a signal waits that cannot pass it, as a call below is in a step.
    #[must_use]
    pub fn is_heard_by_words(&self, wanted: u32) -> bool {
        let Self { record, theirs, .. } = self;
        let reads = wanted & (events::IN | events::RDNORM | events::RDHUP) != 0;
        let writes = wanted & (events::OUT | events::WRNORM) != 0;
        let passed = record.rx.marks.load(Relaxed);
        self.phase() == Phase::Active
            && !self.has(KERNEL_HINT | SHUT_RD | FROZEN | TELLS_ERRORS | SHORT)
            && wanted & events::PRI == 0
            && theirs.prod.fin.load(Relaxed) == 0
            && theirs.ctl.handed_over.load(Relaxed) == 0
            && !are_pending(record)
            && (!reads || (path(passed) == Path::Ring && theirs.prod.marks.load(Relaxed) == passed))
            && (!writes || path(record.tx.marks.load(Relaxed)) == Path::Ring)
    }

    /// True when there is something to look at for who waits in that direction. What the kernel socket tells is not asked here.
    #[inline]
    #[must_use]
    pub fn ends_wait(&self, direction: Direction, until: Until) -> bool {
        let Self { record, theirs, .. } = self;
        // Another thread, or a handler, may have reset the connection since the call has looked.
        let is_broken = self.phase() == Phase::Broken;
        if is_broken || (theirs.ctl.handed_over.load(Relaxed) != 0 && self.is_to_follow()) {
            return true;
        }
        if let Until::More(known) = until {
            return self.arrivals() != known;
        }
        match direction {
            Direction::Receiving => {
                let marks = record.rx.marks.load(Relaxed);
                // In a TCP stretch the ring holds nothing to read before a mark leads there.
                (theirs.prod.prod.load(Acquire) != record.rx.cursor.pos()
                    && path(marks) == Path::Ring)
                    || theirs.prod.marks.load(Relaxed) != marks
                    // A call of another thread, or in a handler above this one, has left the ring meanwhile.
                    || (until == Until::Ring && path(marks) == Path::Tcp)
                    || !Grants::are_possible(&theirs.prod, record.rx.grants.load(Relaxed))
                    // The kernel tells the end itself to those who wait for it, too.
                    || (until == Until::Ring && theirs.prod.fin.load(Relaxed) != 0)
                    // Another thread or a relative has ended the direction, and the kernel tells those alone who wait for it.
                    || (until == Until::Ring && self.has(SHUT_RD))
            }
            // Room in the ring is of use only to a sender that is in it; the others learn also of an
            // end from the kernel.
            Direction::Sending => {
                until == Until::Ring
                    && (self.room().0 > 0
                        || theirs.ctl.closed.load(Relaxed) != 0
                        || self.has(SHUT_WR)
                        || !record.tx.cursor.is_possible(&theirs.cons))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Memory;
    use Direction::{Receiving, Sending};
    use shunt_shm::arena::UNDECIDED;
    use shunt_shm::handover;
    use shunt_shm::region::DEAF;
    use shunt_shm::ring::TxCursor;

    const ALL: [Until; 3] = [Until::Ring, Until::Both, Until::Kernel];

    fn in_ring() -> Memory {
        let memory = Memory::default();
        memory.enter_ring();
        memory
    }

    #[test]
    fn a_receiver_in_the_ring_looks_for_bytes_marks_and_the_end() {
        let changes: [fn(&Memory); 4] = [
            |memory| memory.receive(1),
            |memory| TxCursor::set_mark(&memory.end().theirs.prod, 0),
            |memory| memory.end().theirs.prod.grants.store(u32::MAX / 2, Relaxed),
            |memory| handover::leave(&memory.end().theirs.ctl.handed_over, || 1),
        ];
        for until in ALL {
            assert!(!in_ring().end().ends_wait(Receiving, until));
            for (n, change) in changes.iter().enumerate() {
                let memory = in_ring();
                change(&memory);
                assert!(memory.end().ends_wait(Receiving, until), "{n} {until:?}");
            }
            let memory = in_ring();
            memory.end().theirs.prod.fin.store(1, Relaxed);
            assert_eq!(memory.end().ends_wait(Receiving, until), until == Until::Ring);
            let memory = in_ring();
            memory.end().put(SHUT_RD, true);
            assert_eq!(memory.end().ends_wait(Receiving, until), until == Until::Ring, "its own");
        }
    }

    #[test]
    fn bytes_in_a_ring_that_is_not_entered_are_no_news() {
        let memory = Memory::default();
        memory.receive(1);
        assert!(!memory.end().ends_wait(Receiving, Until::Both));
    }

    #[test]
    fn one_that_waits_in_the_ring_looks_again_when_another_call_has_left_it() {
        let memory = in_ring();
        assert!(!memory.end().ends_wait(Receiving, Until::Ring));
        TxCursor::set_mark(&memory.end().theirs.prod, 0);
        memory.end().pass_into_tcp(0);
        assert!(memory.end().ends_wait(Receiving, Until::Ring), "no doorbell tells of what comes");
        assert!(!memory.end().ends_wait(Receiving, Until::Both));
    }

    #[test]
    fn nobody_waits_on_a_connection_that_was_reset() {
        for (until, direction) in ALL.into_iter().flat_map(|it| [(it, Receiving), (it, Sending)]) {
            let memory = in_ring();
            memory.send(Memory::RING);
            assert!(!memory.end().ends_wait(direction, until));
            memory.end().record.id.phase.store(Phase::Broken as u32, Relaxed);
            assert!(memory.end().ends_wait(direction, until), "{direction:?} {until:?}");
        }
    }

    #[test]
    fn a_look_waits_for_more_alone() {
        let memory = in_ring();
        memory.receive(1);
        let until = Until::More(memory.end().arrivals());
        assert!(!memory.end().ends_wait(Receiving, until));
        memory.receive(1);
        assert!(memory.end().ends_wait(Receiving, until));
    }

    #[test]
    fn a_sender_in_the_ring_waits_for_room_or_an_end() {
        let changes: [fn(&Memory); 4] = [
            |memory| memory.end().theirs.cons.cons.store(Memory::RING, Relaxed),
            |memory| memory.end().theirs.cons.cons.store(u64::MAX, Relaxed),
            |memory| memory.end().theirs.ctl.closed.store(DEAF, Relaxed),
            |memory| memory.end().put(SHUT_WR, true),
        ];
        for (n, change) in changes.iter().enumerate() {
            let memory = in_ring();
            memory.send(Memory::RING);
            memory.end().put(SHUT_RD, true);
            assert!(!memory.end().ends_wait(Sending, Until::Ring), "{n}");
            change(&memory);
            assert!(memory.end().ends_wait(Sending, Until::Ring), "{n}");
            assert!(!memory.end().ends_wait(Sending, Until::Both), "{n}");
        }
        let memory = in_ring();
        memory.send(Memory::RING);
        handover::leave(&memory.end().theirs.ctl.handed_over, || 1);
        assert!(memory.end().ends_wait(Sending, Until::Both), "a peer that has left is followed");
    }

    #[test]
    fn a_sleep_hears_of_the_kernel_what_no_doorbell_tells() {
        let memory = in_ring();
        let end = memory.end();
        let asked =
            |direction, until| kernel_events(end.record, Some(end.theirs), direction, until);
        assert_eq!(asked(Receiving, Until::Ring), events::IN | events::RDHUP);
        assert_eq!(asked(Receiving, Until::More(1)), events::RDHUP, "there are bytes already");
        assert_eq!(asked(Sending, Until::Both), events::OUT);
        assert_eq!(asked(Sending, Until::Kernel), events::OUT);
        assert_eq!(asked(Sending, Until::Ring), events::RDHUP, "an end that was not announced");
        end.record.tx.replay.store(1, Relaxed);
        assert!(are_pending(end.record));
        assert_eq!(asked(Receiving, Until::More(1)), events::RDHUP | events::OUT);
        assert_eq!(asked(Receiving, Until::Ring), events::IN | events::RDHUP | events::OUT);
        end.record.tx.replay.store(1 | UNDECIDED, Relaxed);
        assert_eq!(asked(Receiving, Until::Ring), events::IN | events::RDHUP);
        assert_eq!(asked(Sending, Until::Both), events::RDHUP, "no room is waited for");
        assert_eq!(kernel_events(end.record, None, Sending, Until::Ring), 0, "there is no ring");
        end.put(SHUT_RD, true);
        assert_eq!(asked(Sending, Until::Ring), 0, "its own end is no news");
        end.put(SHUT_RD, false);
        end.theirs.prod.fin.store(1, Relaxed);
        assert_eq!(asked(Sending, Until::Ring), 0, "it was announced");
    }

    #[test]
    fn what_the_peer_has_not_taken_it_may_not_have_been_told_of() {
        assert_eq!(in_ring().end().untold(), Untold { data: false, room: false });
        let changes: [fn(&Memory); 3] = [
            |memory| memory.send(1),
            |memory| TxCursor::set_mark(&memory.end().mine.prod, 0),
            |memory| memory.end().announce_end(),
        ];
        for (n, change) in changes.iter().enumerate() {
            let memory = in_ring();
            change(&memory);
            assert_eq!(memory.end().untold(), Untold { data: true, room: false }, "{n}");
        }
        // Of room only one that waits for it, in the ring.
        let ring = Memory::RING;
        for (taken, arm, marks, room) in [
            (ring / 3, 1, 1, false),
            (ring / 3 + 1, 1, 1, true),
            (ring, 0, 1, false),
            (ring, 1, 2, false),
        ] {
            let memory = in_ring();
            memory.receive(ring);
            memory.take(taken);
            let theirs = memory.end().theirs;
            theirs.ctl.tx_arm.store(arm, Relaxed);
            theirs.prod.marks.store(marks, Relaxed);
            assert_eq!(memory.end().untold().room, room, "{taken} {arm} {marks}");
        }
    }

    #[test]
    fn a_set_of_connections_that_are_in_their_rings_needs_no_kernel() {
        use crate::conn::flags::KERNEL_HINT;
        use crate::events::{IN, OUT, PRI};
        type Change = fn(&Memory);
        let active = || {
            let memory = in_ring();
            memory.activate();
            memory
        };
        for wanted in [IN, OUT, IN | OUT] {
            assert!(active().end().is_heard_by_words(wanted));
            assert!(!in_ring().end().is_heard_by_words(wanted), "it is only proposed");
        }
        assert!(!active().end().is_heard_by_words(IN | PRI), "the kernel tells of urgent bytes");
        let changes: [Change; 6] = [
            |memory| memory.end().put(KERNEL_HINT, true),
            |memory| memory.end().put(SHUT_RD, true),
            |memory| memory.end().put(FROZEN, true),
            |memory| memory.end().theirs.prod.fin.store(1, Relaxed),
            |memory| memory.end().theirs.ctl.handed_over.store(1, Relaxed),
            |memory| memory.end().record.tx.replay.store(1, Relaxed),
        ];
        for (n, change) in changes.iter().enumerate() {
            let memory = active();
            change(&memory);
            assert!(!memory.end().is_heard_by_words(IN), "{n}");
        }
        let memory = active();
        memory.record().rx.marks.store(2, Relaxed);
        assert!(!memory.end().is_heard_by_words(IN) && memory.end().is_heard_by_words(OUT));
        let memory = active();
        memory.record().tx.marks.store(2, Relaxed);
        assert!(memory.end().is_heard_by_words(IN) && !memory.end().is_heard_by_words(OUT));
    }

    #[test]
    fn of_bytes_behind_a_mark_that_is_not_passed_yet_the_kernel_tells() {
        let memory = in_ring();
        memory.activate();
        assert!(memory.end().is_heard_by_words(events::IN));
        TxCursor::set_mark(&memory.end().theirs.prod, 0);
        assert!(!memory.end().is_heard_by_words(events::IN));
        assert!(memory.end().is_heard_by_words(events::OUT), "who sends does not come to it");
    }
}
