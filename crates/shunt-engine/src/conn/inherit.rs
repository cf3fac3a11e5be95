//! What a program that was killed in a step has left half done, for the others that hold the connection with it. They find out as
//! they take the lock of the direction from it ([`Guard::is_inherited`](shunt_shm::lock::Guard::is_inherited)), and bring it to an
//! end. It has told nobody: its call has not returned, and each thing that it has stored stands.

use core::sync::atomic::Ordering::{Relaxed, Release};

use shunt_shm::arena::Copying;
use shunt_shm::handover;

use crate::conn::End;
use crate::conn::flags::FROZEN;
use crate::stretch::{Path, path};

/// No handler of a signal runs above a copy of the one that was killed.
fn shut_door(copying: &Copying) {
    copying.open.store(0, Relaxed);
}

impl End<'_> {
    /// The sending direction: bytes behind the cursor are shown to the peer, a mark that is set counts.
    #[cold]
    pub fn inherit_sending(&self) {
        let (tx, mine) = (&self.record.tx, &self.mine.prod);
        shut_door(&tx.copying);
        tx.cursor.publish(mine, 0);
        let (known, set) = (tx.marks.load(Relaxed), mine.marks.load(Relaxed));
        if set == known.wrapping_add(1) {
            tx.marks.store(set, Relaxed);
        } else if path(known) == Path::Ring {
            // Noted for a mark that was not set.
            tx.replay.store(0, Relaxed);
        }
    }

    /// The receiving direction: the peer hears what was taken, which marks were passed, and that this end has left.
    #[cold]
    pub fn inherit_receiving(&self) {
        let (rx, mine) = (&self.record.rx, self.mine);
        shut_door(&rx.copying);
        let _ = rx.cursor.consume(&mine.cons, self.ring, 0);
        let marks = rx.marks.load(Relaxed);
        if path(marks) == Path::Ring {
            rx.again.store(0, Relaxed);
        }
        mine.cons.marks_passed.store(marks, Release);
        if self.has(FROZEN) && !handover::has_left(&mine.ctl.handed_over) {
            self.say_left();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn::put;
    use crate::handshake::Phase;
    use crate::model::Memory;
    use shunt_shm::arena::UNDECIDED;
    use shunt_shm::region::Section;
    use shunt_shm::ring::{ConsLine, ProdLine, TxCursor};

    fn in_ring() -> Memory {
        let memory = Memory::default();
        memory.enter_ring();
        memory.end().record.id.phase.store(Phase::Active as u32, Relaxed);
        memory
    }

    #[test]
    fn bytes_and_marks_that_a_killed_one_has_not_shown_are_shown() {
        let memory = in_ring();
        let (end, elsewhere) = (memory.end(), ProdLine::default());
        let (tx, shown) = (&end.record.tx, &end.mine.prod);
        let before = tx.marks.load(Relaxed);
        // Killed between its own cursor and the peer's.
        tx.cursor.publish(&elsewhere, 5);
        tx.copying.open.store(1, Relaxed);
        tx.replay.store(5 | UNDECIDED, Relaxed);
        end.inherit_sending();
        assert_eq!((shown.prod.load(Relaxed), tx.copying.open.load(Relaxed)), (5, 0));
        assert_eq!((tx.marks.load(Relaxed), tx.replay.load(Relaxed)), (before, 0));
        // Killed behind the mark out of the ring.
        tx.replay.store(5 | UNDECIDED, Relaxed);
        TxCursor::set_mark(shown, 0);
        end.inherit_sending();
        assert_eq!(tx.marks.load(Relaxed), before.wrapping_add(1));
        assert_eq!(tx.replay.load(Relaxed), 5 | UNDECIDED);
        end.inherit_sending();
        assert_eq!(tx.replay.load(Relaxed), 5 | UNDECIDED, "it is over TCP by now");
    }

    #[test]
    fn what_a_killed_one_has_taken_and_passed_is_told() {
        let memory = in_ring();
        let (end, elsewhere) = (memory.end(), ConsLine::default());
        memory.receive(9);
        let rx = &end.record.rx;
        assert_eq!(rx.cursor.refresh(&end.theirs.prod, end.ring), Ok(9));
        let _ = rx.cursor.consume(&elsewhere, end.ring, 4);
        rx.copying.open.store(1, Relaxed);
        rx.again.store(4, Relaxed);
        let marks = rx.marks.load(Relaxed);
        end.mine.cons.marks_passed.store(marks.wrapping_sub(1), Relaxed);
        end.inherit_receiving();
        let Section { cons, ctl, .. } = end.mine;
        assert_eq!((cons.cons.load(Relaxed), cons.marks_passed.load(Relaxed)), (4, marks));
        assert_eq!((rx.again.load(Relaxed), rx.copying.open.load(Relaxed)), (0, 0));
        assert_eq!(ctl.handed_over.load(Relaxed), 0, "it was not to leave");
    }

    #[test]
    fn one_that_was_killed_as_it_left_has_left() {
        for said in [0, handover::LEAVING] {
            let memory = in_ring();
            let end = memory.end();
            put(end.record, FROZEN, true);
            end.mine.ctl.handed_over.store(said, Relaxed);
            end.inherit_receiving();
            assert!(handover::has_left(&end.mine.ctl.handed_over), "{said}");
        }
    }
}
