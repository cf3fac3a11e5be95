use core::cell::{Cell, RefCell};

use super::*;
use crate::conn::flags::SHUT_WR;
use crate::conn::repeated::are_awaited;
use crate::model::{Arrival, Memory, Socket};
use shunt_shm::arena::Mode;
use shunt_shm::region::{DEAF, RESET};
use shunt_shm::ring::TxCursor;

/// What an end has beside the ring, and what it did.
struct Port<'a> {
    end: End<'a>,
    socket: Socket,
    room: Cell<u64>,
    gives_back: Cell<bool>,
    is_orphaned: Cell<bool>,
    fails: Cell<Option<Errno>>,
    resets: Cell<u32>,
    left: Cell<u32>,
    /// Marks of which the peer was told.
    told: RefCell<Vec<u32>>,
    sent: RefCell<Vec<(usize, u64)>>,
    moments: RefCell<Vec<Moment>>,
    handler: Cell<Option<fn(&Self)>>,
    /// One that comes in as this end looks for room.
    comes_before: Cell<Option<fn(&Self)>>,
}

impl<'a> Port<'a> {
    fn new(memory: &'a Memory, room: u64) -> Self {
        Self {
            end: memory.end(),
            socket: Socket::default(),
            room: Cell::new(room),
            gives_back: Cell::new(true),
            is_orphaned: Cell::default(),
            fails: Cell::new(None),
            resets: Cell::default(),
            left: Cell::default(),
            told: RefCell::default(),
            sent: RefCell::default(),
            moments: RefCell::default(),
            handler: Cell::default(),
            comes_before: Cell::default(),
        }
    }

    fn repeated(&self) -> u64 {
        self.sent.borrow().iter().map(|(_, n)| n).sum()
    }
}

impl Repeating for Port<'_> {
    fn socket(&self) -> impl KernelSocket {
        &self.socket
    }

    fn send_again(&self, at: usize, len: usize, note: &mut dyn FnMut(u64)) -> Result<(), Errno> {
        if let Some(error) = self.fails.take() {
            return Err(error);
        }
        let n = self.room.get().min(len as u64);
        if n == 0 {
            return Err(Errno::AGAIN);
        }
        self.room.set(self.room.get() - n);
        self.sent.borrow_mut().push((at, n));
        note(n);
        Ok(())
    }

    fn is_orphaned(&self) -> bool {
        self.is_orphaned.get()
    }

    fn was_reset(&self) {
        self.resets.set(self.resets.get() + 1);
    }

    fn uninterrupted(&self, step: impl FnOnce()) {
        step();
        // As one comes in right behind it.
        if let Some(handler) = self.handler.take() {
            handler(self);
        }
    }
}

impl Leaving for Port<'_> {
    fn take_back(&self) -> bool {
        self.gives_back.get()
    }

    fn room(&self) -> u64 {
        if let Some(handler) = self.comes_before.take() {
            handler(self);
        }
        self.room.get()
    }

    fn has_left(&self) {
        self.left.set(self.left.get() + 1);
    }

    fn tell(&self) {
        self.told.borrow_mut().push(self.end.mine.prod.marks.load(Relaxed));
    }

    fn reaches(&self, moment: Moment) {
        if moment == Moment::Marked {
            assert_eq!(self.end.record.tx.marks.load(Relaxed), 1, "it does not know yet");
        }
        self.moments.borrow_mut().push(moment);
    }
}

fn in_the_ring(sent: u64) -> Memory {
    let memory = Memory::default();
    memory.enter_ring();
    memory.end().record.id.mode.store(Mode::Attach as u32, Relaxed);
    memory.send(sent);
    memory
}

/// The peer has left, with so many bytes taken.
fn peer_leaves(memory: &Memory, taken: u64) {
    memory.end().theirs.cons.cons.store(taken, Relaxed);
    handover::leave(&memory.end().theirs.ctl.handed_over, || 1);
}

#[test]
fn who_leaves_takes_nothing_more_and_says_so_once() {
    let memory = in_the_ring(0);
    let end = memory.end();
    memory.receive(5);
    let said = || handover::has_left(&end.mine.ctl.handed_over);
    assert_eq!(end.freeze(Below::Nothing, || assert!(end.has(FROZEN) && !said())), Frozen::Now);
    assert!(said());
    end.put(HAD_ROOM, true);
    assert_eq!(end.freeze(Below::Nothing, || unreachable!()), Frozen::Before);
    assert!(!end.has(HAD_ROOM), "another program may take it");
}

#[test]
fn a_step_below_a_handler_that_leaves_is_not_frozen_in_the_middle() {
    let memory = in_the_ring(0);
    let end = memory.end();
    assert_eq!(end.freeze(Below::GoesOn, || unreachable!()), Frozen::Later);
    assert!(!end.has(FROZEN) && !handover::has_left(&end.mine.ctl.handed_over));
    // One that only copies does it once more.
    end.record.rx.copying.open.store(1, Relaxed);
    assert_eq!(end.freeze(Below::GoesOn, || ()), Frozen::Now);
    assert_eq!(end.record.rx.copying.calls.load(Relaxed), 1);
    // And one that does not go on is left as it is.
    let memory = in_the_ring(0);
    assert_eq!(memory.end().freeze(Below::IsOver, || ()), Frozen::Now);
}

#[test]
fn nor_is_a_mark_set_in_the_middle_of_one_that_sends() {
    let memory = in_the_ring(10);
    let (end, port) = (memory.end(), Port::new(&memory, 10));
    assert_eq!(end.leave(Below::GoesOn, &port), Ok(false));
    assert!(end.has(WANT_TCP), "what is sent next goes over TCP");
    assert!(end.is_to_leave(), "once the step is over");
    assert_eq!(path(end.mine.prod.marks.load(Relaxed)), Path::Ring);
    end.record.tx.copying.open.store(1, Relaxed);
    assert_eq!(end.leave(Below::GoesOn, &port), Ok(true));
    assert!(!end.is_to_leave());
    assert_eq!(path(end.mine.prod.marks.load(Relaxed)), Path::Tcp);
    assert_eq!(end.record.tx.copying.calls.load(Relaxed), 1);
}

#[test]
fn an_end_that_was_reset_neither_says_more_nor_sets_a_mark() {
    let memory = in_the_ring(10);
    let (end, port) = (memory.end(), Port::new(&memory, 10));
    end.record.id.phase.store(Phase::Broken as u32, Relaxed);
    assert_eq!(end.freeze(Below::Nothing, || unreachable!()), Frozen::Before);
    assert_eq!(end.leave(Below::Nothing, &port), Ok(true));
    peer_leaves(&memory, 4);
    assert_eq!(end.follow(false, &port), Ok(true));
    assert_eq!((end.mine.prod.marks.load(Relaxed), end.record.tx.marks.load(Relaxed)), (1, 1));
    assert!(!handover::has_left(&end.mine.ctl.handed_over) && port.moments.borrow().is_empty());
}

#[test]
fn nor_does_one_that_a_handler_above_it_resets() {
    let memory = in_the_ring(10);
    let (end, port) = (memory.end(), Port::new(&memory, 10));
    port.comes_before.set(Some(|port| {
        port.end.record.id.phase.store(Phase::Broken as u32, Relaxed);
    }));
    assert_eq!(end.leave(Below::Nothing, &port), Ok(true));
    assert_eq!((end.mine.prod.marks.load(Relaxed), end.record.tx.marks.load(Relaxed)), (1, 1));
    assert!(port.moments.borrow().is_empty() && port.sent.borrow().is_empty());
}

#[test]
fn a_mark_that_is_there_is_passed_with_what_was_had_behind_it() {
    let memory = in_the_ring(0);
    memory.receive(10);
    memory.take(7);
    TxCursor::set_mark(&memory.end().theirs.prod, 4);
    assert_eq!(memory.end().freeze(Below::Nothing, || ()), Frozen::Now);
    assert_eq!(memory.end().record.rx.marks.load(Relaxed), 2);
    assert_eq!(memory.end().record.rx.again.load(Relaxed), 3);
}

#[test]
fn what_somebody_read_who_was_killed_leaves_the_connection_in_doubt() {
    let memory = in_the_ring(0);
    let _killed = memory.end().record.rx.pipe_reads.begin();
    assert!(memory.end().record.rx.pipe_reads.are_open());
    assert_eq!(memory.end().freeze(Below::Nothing, || unreachable!()), Frozen::InDoubt);
    assert!(!memory.end().has(FROZEN));
}

#[test]
fn the_kernel_goes_on_with_a_connection_of_which_it_has_all() {
    let spoils: [fn(&End<'_>); 3] = [
        |end| end.record.tx.replay.store(3, Relaxed),
        |end| end.record.rx.again.store(3, Relaxed),
        |end| assert!(end.stay()),
    ];
    for spoil in spoils {
        let memory = in_the_ring(0);
        let end = memory.end();
        end.record.id.phase.store(Phase::Active as u32, Relaxed);
        assert_eq!(end.freeze(Below::Nothing, || ()), Frozen::Now);
        assert!(end.is_the_kernels());
        spoil(&end);
        assert!(!end.is_the_kernels());
    }
}

#[test]
fn who_has_left_reads_on_until_the_peer_has_marked_its_end() {
    for is_marked in [false, true] {
        let memory = in_the_ring(0);
        let end = memory.end();
        end.freeze(Below::Nothing, || ());
        if is_marked {
            TxCursor::set_mark(&end.theirs.prod, 0);
        }
        assert_eq!(end.stay(), !is_marked);
        assert_eq!(end.has(FROZEN), is_marked);
        end.record.id.phase.store(Phase::Active as u32, Relaxed);
        assert_eq!(end.has_come_back(), !is_marked);
        end.record.id.phase.store(Phase::Broken as u32, Relaxed);
        assert!(!end.has_come_back(), "there is nothing to be read");
    }
}

#[test]
fn what_the_peer_has_not_taken_goes_once_more_where_there_is_room() {
    for (room, gives_back, repeats) in [(10, true, 10), (9, true, 0), (10, false, 0)] {
        let memory = in_the_ring(10);
        let port = Port::new(&memory, room);
        port.gives_back.set(gives_back);
        memory.end().leave(Below::Nothing, &port).unwrap();
        assert_eq!(memory.end().to_repeat(), Some(repeats), "{room} {gives_back}");
        assert!(memory.end().has(WANT_TCP));
        assert_eq!(*port.moments.borrow(), [Moment::Marked]);
        assert_eq!(path(memory.end().record.tx.marks.load(Relaxed)), Path::Tcp);
    }
}

#[test]
fn to_one_who_has_shut_both_directions_or_resets_nothing_is_sent_once_more() {
    for (has_left, closed) in [(false, DEAF), (true, DEAF), (false, RESET), (true, RESET)] {
        let memory = in_the_ring(10);
        if has_left {
            peer_leaves(&memory, 4);
        }
        memory.end().theirs.ctl.closed.store(closed, Relaxed);
        let port = Port::new(&memory, 10);
        let end = memory.end();
        assert!(!end.is_to_leave() && !end.is_to_follow());
        end.leave(Below::Nothing, &port).unwrap();
        assert_eq!(end.follow(false, &port), Ok(true));
        assert_eq!((end.to_repeat(), port.repeated()), (Some(0), 0));
        // So it may come back to the ring, and read on.
        assert_eq!(path(end.mine.prod.marks.load(Relaxed)), Path::Ring);
    }
}

#[test]
fn who_has_left_the_ring_before_has_nothing_to_mark() {
    let memory = Memory::default();
    let port = Port::new(&memory, 10);
    memory.end().leave(Below::Nothing, &port).unwrap();
    assert!(port.moments.borrow().is_empty());
    assert!(!are_pending(memory.end().record));
}

#[test]
fn after_its_end_a_side_that_leaves_marks_nothing() {
    let memory = in_the_ring(10);
    memory.end().put(SHUT_WR, true);
    let port = Port::new(&memory, 10);
    memory.end().leave(Below::Nothing, &port).unwrap();
    assert!(port.moments.borrow().is_empty() && !are_pending(memory.end().record));
    assert_eq!(path(memory.end().mine.prod.marks.load(Relaxed)), Path::Ring);
}

#[test]
fn in_a_handler_above_a_call_that_grants_nothing_is_sent_once_more() {
    let memory = in_the_ring(10);
    let port = Port::new(&memory, 10);
    memory.end().leave(Below::IsOver, &port).unwrap();
    assert_eq!(memory.end().to_repeat(), Some(0));
    // Nor followed; above one that only copies, it is.
    let memory = in_the_ring(10);
    peer_leaves(&memory, 4);
    let port = Port::new(&memory, 10);
    assert_eq!(memory.end().follow(true, &port), Ok(false));
    assert!(port.moments.borrow().is_empty() && !memory.end().has(WANT_TCP));
    memory.end().record.tx.copying.open.store(1, Relaxed);
    assert_eq!(memory.end().follow(true, &port), Ok(true));
    assert_eq!(port.repeated(), 6);
}

#[test]
fn of_two_that_leave_at_once_each_follows_the_other() {
    let memory = in_the_ring(10);
    peer_leaves(&memory, 4);
    // There is no room for all; but the peer takes nothing more from the ring.
    let port = Port::new(&memory, 2);
    memory.end().leave(Below::Nothing, &port).unwrap();
    assert_eq!(port.repeated(), 2);
    assert_eq!(memory.end().to_repeat(), Some(4));
    port.room.set(9);
    assert!(memory.end().repeat(&port));
    assert_eq!(*port.sent.borrow(), [(4, 2), (6, 4)]);
}

#[test]
fn who_follows_says_why_once() {
    let memory = in_the_ring(10);
    peer_leaves(&memory, 10);
    let port = Port::new(&memory, 9);
    let end = memory.end();
    assert!(end.is_to_follow());
    assert_eq!(end.follow(false, &port), Ok(true));
    assert_eq!(*port.moments.borrow(), [Moment::Follows, Moment::Marked, Moment::Noted]);
    assert!(!end.is_to_follow() && !are_pending(end.record));
    // Whoever left may read on in the ring, and sleep there.
    assert_eq!(*port.told.borrow(), [2]);
    end.notes_left(Reason::Unsupported, &port);
    assert_eq!(port.left.get(), 1);
    assert_eq!(end.record.id.reason.load(Relaxed), Reason::HandedOver as u32);
}

/// The link to another host has failed before it carried a byte.
#[test]
fn a_ring_that_was_never_entered_is_left_once() {
    let memory = Memory::default();
    let end = memory.end();
    end.record.id.mode.store(Mode::Attach as u32, Relaxed);
    peer_leaves(&memory, 0);
    assert!(!end.is_let_go(), "a peer on this host may only have left its own direction");
    end.put(HOSTED, true);
    assert!(end.is_let_go());
    let port = Port::new(&memory, 9);
    for _ in 0..2 {
        assert_eq!(end.follow(false, &port), Ok(true));
        assert!(!end.is_let_go());
        assert_eq!((port.left.get(), port.repeated()), (1, 0));
    }
    assert_eq!(end.record.id.reason.load(Relaxed), Reason::PeerGone as u32);
    assert_eq!(end.record.tx.marks.load(Relaxed), 0);
}

#[test]
fn after_its_end_a_side_has_nothing_to_follow_with() {
    let memory = in_the_ring(10);
    memory.end().put(SHUT_WR, true);
    peer_leaves(&memory, 4);
    let port = Port::new(&memory, 9);
    assert_eq!(memory.end().follow(false, &port), Ok(true));
    assert_eq!(path(memory.end().record.tx.marks.load(Relaxed)), Path::Ring);
    assert_eq!(port.repeated(), 0);
    assert!(port.told.borrow().is_empty(), "there is no mark");
}

#[test]
fn who_cannot_put_all_into_the_ring_or_is_lied_to_breaks() {
    let memory = in_the_ring(10);
    peer_leaves(&memory, 4);
    let port = Port::new(&memory, 9);
    port.gives_back.set(false);
    assert_eq!(memory.end().follow(false, &port), Err(Violation::Grants));
    port.gives_back.set(true);
    memory.end().theirs.cons.cons.store(11, Relaxed);
    assert!(memory.end().follow(false, &port).is_err());
    assert_eq!(path(memory.end().record.tx.marks.load(Relaxed)), Path::Ring);
}

#[test]
fn a_signal_costs_nothing_and_an_end_ends_it() {
    for (error, resets) in [(Errno::PIPE, 0), (Errno::CONNRESET, 1)] {
        let memory = in_the_ring(10);
        memory.end().leave_ring(10, || ());
        let port = Port::new(&memory, 3);
        port.fails.set(Some(Errno::INTR));
        assert!(!memory.end().repeat(&port));
        assert_eq!(port.repeated(), 3);
        port.fails.set(Some(error));
        assert!(memory.end().repeat(&port), "{error}");
        assert_eq!((port.resets.get(), memory.end().to_repeat()), (resets, Some(0)));
    }
}

#[test]
fn a_reset_is_left_for_the_program_to_hear() {
    let memory = in_the_ring(10);
    memory.end().leave_ring(10, || ());
    let port = Port::new(&memory, 9);
    port.socket.arrive(Arrival::Reset);
    assert!(memory.end().repeat(&port));
    assert_eq!((port.repeated(), port.resets.get()), (0, 0));
    assert!(!are_awaited(memory.end().record));
}

#[test]
fn a_peer_that_is_killed_while_it_leaves_is_not_waited_for() {
    for end_of in [Arrival::Fin, Arrival::Reset] {
        let memory = Memory::default();
        memory.enter_ring();
        memory.send(5);
        let (end, port) = (memory.end(), Port::new(&memory, 100));
        end.leave_ring(5, || {});
        end.theirs.ctl.handed_over.store(handover::LEAVING, Relaxed);
        assert!(!end.repeat(&port), "it is about to say where it has stopped");
        assert!(are_pending(end.record));
        port.socket.arrive(end_of);
        assert!(end.repeat(&port));
        assert!(!are_pending(end.record) && port.repeated() == 0);
    }
    // Also where it had announced its end before.
    let memory = in_the_ring(5);
    let (end, port) = (memory.end(), Port::new(&memory, 100));
    end.leave_ring(5, || {});
    end.theirs.prod.fin.store(1, Relaxed);
    end.theirs.ctl.handed_over.store(handover::LEAVING, Relaxed);
    assert!(!end.repeat(&port) && are_pending(end.record));
    port.is_orphaned.set(true);
    assert!(end.repeat(&port) && !are_pending(end.record));
}
