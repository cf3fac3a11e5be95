use crate::conn::flags::{HOSTED, STAYS};
use core::cell::{Cell, RefCell};
use std::rc::Rc;

use shunt_shm::doorbell::AWAKE;
use shunt_shm::handover;
use shunt_shm::region::DEAF;
use shunt_shm::ring::TxCursor;
use shunt_wire::clc::Answer;

use super::*;
use crate::conn::overflow::is_watched;
use crate::events::{ERR, HUP, IN, OUT, PRI, RDHUP, RDNORM, WRNORM};
use crate::model::{Arrival, Memory, Socket};

/// What a look does beside its questions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Did {
    Followed,
    Repeated,
    Settled,
    BrokeOff,
    Doubted,
    FoundUnmarked,
}

/// A connection that is looked at.
#[derive(Default)]
struct Looks {
    memory: Rc<Memory>,
    socket: Socket,
    is_closed: bool,
    cannot_tell: bool,
    is_orphaned: bool,
    is_cut_off: bool,
    time: Cell<u64>,
    low_water: u64,
    questions: Cell<u32>,
    did: RefCell<Vec<Did>>,
}

impl Looks {
    fn in_ring() -> Self {
        let looks = Self { time: Cell::new(1 << 20), ..Self::default() };
        looks.memory.enter_ring();
        looks
    }

    fn end(&self) -> End<'_> {
        self.memory.end()
    }

    fn of(&self, wanted: u32, heard: &mut KernelReadiness) -> u32 {
        self.did.borrow_mut().clear();
        self.questions.set(0);
        look((self.end().record, Some(self.end())), Phase::Active, (wanted, heard), self)
    }

    fn ready(&self, wanted: u32) -> u32 {
        self.of(wanted, &mut KernelReadiness::Nothing)
    }

    fn did(&self) -> Vec<Did> {
        self.did.borrow().clone()
    }

    fn does(&self, what: Did) {
        self.did.borrow_mut().push(what);
    }
}

impl Polled for Looks {
    type Socket = Socket;

    fn ask<T>(&self, mut question: impl FnMut(&Socket) -> T) -> Option<T> {
        self.questions.set(self.questions.get() + 1);
        (!self.is_closed).then(|| question(&self.socket))
    }

    fn now(&self) -> u64 {
        self.time.get()
    }

    fn low_water(&self) -> u64 {
        self.low_water.max(1)
    }

    fn can_tell(&self) -> bool {
        !self.cannot_tell
    }

    fn is_cut_off(&self) -> bool {
        self.is_cut_off
    }

    fn is_orphaned(&self) -> bool {
        self.is_orphaned
    }

    fn follows(&self) {
        self.does(Did::Followed);
    }

    fn repeats(&self) {
        self.does(Did::Repeated);
    }

    fn settles(&self) {
        self.does(Did::Settled);
        if self.end().pass_end_of_ring() == Path::Tcp {
            self.end().drop_repeated(&self.socket);
        }
    }

    fn breaks_off(&self) {
        self.does(Did::BrokeOff);
    }

    fn doubts(&self) {
        self.does(Did::Doubted);
    }

    fn finds_unmarked(&self) {
        self.does(Did::FoundUnmarked);
    }
}

#[test]
fn in_the_ring_the_kernel_is_not_asked() {
    let looks = Looks::in_ring();
    assert_eq!(looks.ready(IN), OUT | WRNORM);
    looks.memory.receive(1);
    assert_eq!(looks.ready(IN | OUT | RDHUP), IN | RDNORM | OUT | WRNORM);
    assert_eq!((looks.questions.get(), looks.did()), (0, vec![]));
}

#[test]
fn bytes_that_come_twice_behind_a_mark_that_has_just_come_are_not_told_of() {
    let looks = Looks::in_ring();
    let memory = Rc::clone(&looks.memory);
    // Its sender has left the ring before it heard that two of its bytes were taken.
    memory.receive(2);
    memory.take(2);
    looks.memory.end().put(KERNEL_HINT, true);
    looks.socket.before(0, move || TxCursor::set_mark(&memory.end().theirs.prod, 0));
    looks.socket.arrive_at(0, Arrival::Bytes(2));
    assert_eq!(looks.ready(IN), OUT | WRNORM);
    assert_eq!(looks.did(), [Did::Settled]);
}

#[test]
fn what_is_known_counts_for_one_look_and_not_in_shared_sets() {
    assert_eq!(KernelReadiness::Silent.at(3, false), KernelReadiness::Silent);
    assert_eq!(KernelReadiness::Silent.at(3, true), KernelReadiness::Nothing);
    assert_eq!(KernelReadiness::Told(IN, 3).at(3, true), KernelReadiness::Told(IN, 3));
    assert_eq!(KernelReadiness::Told(IN, 3).at(4, false), KernelReadiness::Nothing);
    assert_eq!(KernelReadiness::Told(IN, 3).answer(), Some(IN | RDNORM));
    assert_eq!(KernelReadiness::Told(RDHUP, 3).answer(), Some(RDHUP));
}

#[test]
fn over_tcp_the_kernel_is_asked_unless_it_has_told() {
    let looks = Looks { time: Cell::new(1 << 20), cannot_tell: true, ..Looks::default() };
    let mut heard = KernelReadiness::Nothing;
    assert_eq!(looks.of(IN, &mut heard), 0);
    assert_eq!((heard, looks.questions.get()), (KernelReadiness::Silent, 1));
    looks.socket.arrive(Arrival::Bytes(5));
    assert_eq!(looks.of(IN, &mut heard), 0, "nobody has told of them");
    assert_eq!(looks.questions.get(), 0);
    heard = KernelReadiness::Told(IN, 0);
    assert_eq!(looks.of(IN, &mut heard), IN | RDNORM);
    assert_eq!(looks.questions.get(), 0);
    heard = KernelReadiness::Nothing;
    assert_eq!(looks.of(IN, &mut heard), IN);
    assert_eq!(heard, KernelReadiness::Nothing, "it may have more to say");
}

#[test]
fn without_shared_memory_and_after_a_violation_there_is_one_answer() {
    let looks = Looks::in_ring();
    let answer = |phase, end| {
        looks.questions.set(0);
        let ready =
            look((looks.end().record, end), phase, (IN, &mut KernelReadiness::Nothing), &looks);
        (ready, looks.questions.get())
    };
    looks.memory.receive(1);
    assert_eq!(answer(Phase::Broken, Some(looks.end())), (BROKEN, 0));
    for (phase, end) in [
        (Phase::Tcp, Some(looks.end())),
        (Phase::Candidate, None),
        (Phase::Proposed, None),
        (Phase::Active, None),
    ] {
        assert_eq!(answer(phase, end), (0, 1), "{phase:?}");
    }
    looks.end().theirs.prod.marks.store(9, Relaxed);
    assert_eq!((looks.ready(IN), looks.did()), (BROKEN, vec![Did::BrokeOff]));
}

#[test]
fn what_waits_for_a_call_goes_on_before() {
    let looks = Looks::in_ring();
    handover::leave(&looks.end().theirs.ctl.handed_over, || 1);
    looks.ready(IN);
    assert_eq!(looks.did()[0], Did::Followed);
    let looks = Looks::in_ring();
    looks.end().record.tx.replay.store(1, Relaxed);
    looks.ready(IN);
    assert_eq!(looks.did(), [Did::Repeated]);
}

#[test]
fn what_comes_twice_is_no_news() {
    let looks = Looks { time: Cell::new(1 << 20), ..Looks::default() };
    looks.end().record.rx.again.store(6, Relaxed);
    looks.socket.arrive(Arrival::Bytes(3));
    let mut heard = KernelReadiness::Silent;
    assert_eq!(looks.of(IN, &mut heard) & IN, 0);
    assert_eq!(looks.did()[0], Did::Settled);
    looks.socket.arrive(Arrival::Bytes(4));
    assert_eq!(looks.ready(IN) & IN, IN, "the fourth is new");
}

#[test]
fn who_is_told_of_an_end_finds_it() {
    for (arrival, told) in [(Arrival::Fin, IN | RDHUP), (Arrival::Reset, IN | RDHUP | HUP | ERR)] {
        let looks = Looks { time: Cell::new(1 << 20), cannot_tell: true, ..Looks::default() };
        assert!(!looks.end().has(KERNEL_HINT));
        looks.socket.arrive(arrival);
        assert_eq!(looks.ready(IN | RDHUP), told);
        assert!(looks.end().has(KERNEL_HINT), "{arrival:?}");
    }
    let looks = Looks { time: Cell::new(1 << 20), cannot_tell: true, ..Looks::default() };
    looks.socket.arrive(Arrival::Bytes(1));
    assert_eq!(looks.ready(IN), IN);
    assert!(!looks.end().has(KERNEL_HINT), "bytes are no end");
}

#[test]
fn an_announced_end_is_asked_for_by_who_wants_it() {
    let looks = Looks::in_ring();
    looks.memory.receive(1);
    looks.socket.arrive(Arrival::Fin);
    looks.end().theirs.prod.fin.store(1, Relaxed);
    assert_eq!(looks.ready(IN) & RDHUP, 0, "there are bytes before it");
    assert_eq!(looks.questions.get(), 0);
    assert_eq!(looks.ready(IN | RDHUP) & RDHUP, RDHUP);
    looks.end().put(KERNEL_HINT, false);
    looks.memory.take(1);
    assert_eq!(looks.ready(IN) & IN, IN, "end of file");
    let looks = Looks::in_ring();
    looks.memory.receive(1);
    looks.socket.arrive(Arrival::Fin);
    looks.end().theirs.prod.fin.store(1, Relaxed);
    looks.end().put(SHUT_WR, true);
    looks.ready(IN);
    assert_eq!(looks.questions.get(), 1, "both directions may be over");
}

#[test]
fn the_kernel_speaks_for_what_the_rings_cannot_know() {
    let rings = |looks: &Looks| looks.end().asked_of_rings(true);
    type Change = fn(&Looks);
    let changes: [(Change, u32, Needs); 5] = [
        (|looks| looks.end().put(KERNEL_HINT, true), 0, Needs { end: true, ..Needs::default() }),
        (|looks| looks.end().put(SHUT_RD, true), 0, Needs { end: true, ..Needs::default() }),
        (|looks| looks.end().put(FROZEN, true), IN, Needs { end: true, ..Needs::default() }),
        (
            |looks| TxCursor::set_mark(&looks.end().theirs.prod, 0),
            IN,
            Needs { end: true, ..Needs::default() },
        ),
        (
            |looks| TxCursor::set_mark(&looks.end().theirs.prod, 0),
            PRI,
            Needs { end: true, urgent: true, ..Needs::default() },
        ),
    ];
    for (n, (change, wanted, needs)) in changes.into_iter().enumerate() {
        let looks = Looks::in_ring();
        let before = looks.end().needs(wanted, &rings(&looks), KernelReadiness::Nothing, false);
        assert_eq!(before, Needs::default(), "{n}");
        change(&looks);
        let after = looks.end().needs(wanted, &rings(&looks), KernelReadiness::Nothing, false);
        assert_eq!(after, needs, "{n}");
    }
}

#[test]
fn one_that_waits_at_its_own_limit_looks_for_a_killed_peer_where_the_kernel_is_not_heard() {
    for is_deaf in [false, true] {
        let looks = Looks::in_ring();
        let record = looks.end().record;
        record.tx.buffer.store(1, Relaxed);
        looks.end().theirs.ctl.window.store(1, Relaxed);
        if is_deaf {
            looks.socket.end_reading();
            put(record, SHUT_RD | KERNEL_HINT, true);
        }
        looks.memory.send(Memory::RING);
        for _ in 0..3 {
            assert_eq!(looks.ready(OUT) & OUT, 0);
            let expected: &[Did] = if is_deaf { &[Did::Doubted] } else { &[] };
            assert_eq!((looks.did(), is_watched(record)), (expected.to_vec(), is_deaf));
            looks.time.set(looks.time.get() + (1 << 30));
        }
        looks.socket.arrive(Arrival::Fin);
        looks.socket.give_room();
        assert_eq!(looks.ready(OUT) & OUT, OUT, "{is_deaf}");
    }
}

#[test]
fn an_end_that_the_program_has_made_is_told_of_in_front_of_what_comes_twice() {
    let looks = Looks::in_ring();
    looks.memory.receive(2);
    looks.memory.take(2);
    TxCursor::set_mark(&looks.end().theirs.prod, 0);
    looks.socket.end_reading();
    looks.end().put(SHUT_RD | KERNEL_HINT, true);
    assert_eq!(looks.ready(IN) & (IN | RDHUP), IN | RDHUP);
    looks.socket.arrive(Arrival::Bytes(2));
    assert_eq!(looks.ready(IN) & (IN | RDHUP), IN | RDHUP);
    assert_eq!(looks.socket.waiting(), 0);
}

#[test]
fn bytes_behind_a_mark_come_after_those_in_the_ring() {
    let urgent = Needs { urgent: true, ..Needs::default() };
    assert_eq!(urgent.heed(IN | RDNORM | PRI, 3), PRI);
    assert_eq!(urgent.heed(IN | RDNORM | PRI, 0), IN | RDNORM | PRI);
    assert_eq!(urgent.heed(IN | RDHUP, 3), IN | RDHUP, "an end");
    assert_eq!(Needs { bytes: true, ..urgent }.heed(IN | PRI, 3), IN | PRI);
}

#[test]
fn a_third_of_the_ring_is_room() {
    let looks = Looks::in_ring();
    let free = Memory::RING / 3 + 1;
    looks.memory.send(Memory::RING - free);
    assert_eq!(looks.ready(OUT), OUT | WRNORM);
    assert_eq!(looks.end().mine.ctl.tx_arm.load(Relaxed), AWAKE);
    looks.memory.send(2);
    assert_eq!(looks.ready(IN), 0, "who does not ask is not told of it");
    assert_eq!(looks.end().mine.ctl.tx_arm.load(Relaxed), AWAKE);
    assert_eq!(looks.ready(OUT), 0);
    assert_eq!(looks.end().mine.ctl.tx_arm.load(Relaxed) & ON_QUEUE, ON_QUEUE);
    assert_eq!(looks.did(), [Did::Doubted]);
}

#[test]
fn a_ring_that_stays_full_is_room_over_tcp() {
    let looks = Looks::in_ring();
    looks.memory.send(Memory::RING);
    looks.socket.give_room();
    assert_eq!(looks.ready(OUT), 0);
    looks.time.set(1_000_000_000);
    assert_eq!(looks.ready(OUT), OUT);
    for change in [
        (|looks| looks.is_orphaned = true) as fn(&mut Looks),
        |looks| looks.end().record.id.side.store(shunt_shm::region::Side::Server as u32, Relaxed),
        |looks| looks.socket.arrive(Arrival::Fin),
    ] {
        let mut looks = Looks::in_ring();
        looks.memory.send(Memory::RING);
        change(&mut looks);
        looks.socket.give_room();
        assert_eq!(looks.ready(OUT) & OUT, OUT);
    }
}

#[test]
fn room_in_the_kernel_socket_is_good_for_one_answer() {
    let looks = Looks { time: Cell::new(1 << 20), cannot_tell: true, ..Looks::default() };
    looks.end().put(HAD_ROOM | FILLS_KERNEL, true);
    let mut heard = KernelReadiness::Silent;
    assert_eq!(looks.of(IN | OUT, &mut heard), OUT | WRNORM);
    assert_eq!(looks.questions.get(), 0);
    looks.of(IN | OUT, &mut heard);
    assert_eq!(looks.questions.get(), 1);
    looks.socket.give_room();
    assert_eq!(looks.ready(OUT) & OUT, OUT);
    assert!(looks.end().has(HAD_ROOM) && !looks.end().has(FILLS_KERNEL));
}

#[test]
fn a_kernel_socket_that_was_filled_is_asked_before_the_ring_is_entered() {
    let looks = Looks { time: Cell::new(1 << 20), ..Looks::default() };
    assert_eq!(looks.ready(OUT), OUT | WRNORM, "into the ring");
    assert_eq!(looks.questions.get(), 0);
    looks.end().put(FILLS_KERNEL, true);
    assert_eq!(looks.ready(OUT), 0);
    assert_eq!(looks.questions.get(), 1);
}

#[test]
fn bytes_that_no_mark_explains_are_found_when_the_kernel_has_told_of_them() {
    let looks = Looks::in_ring();
    looks.socket.arrive(Arrival::Bytes(1));
    looks.of(IN, &mut KernelReadiness::Told(IN, 0));
    assert_eq!(looks.did(), [Did::FoundUnmarked]);
    for change in [
        (|looks| TxCursor::set_mark(&looks.end().theirs.prod, 0)) as fn(&Looks),
        |looks| looks.end().theirs.prod.fin.store(1, Relaxed),
        |looks| looks.end().put(FROZEN, true),
    ] {
        change(&looks);
        let asked = looks.socket.asked();
        assert!(!looks.end().has_unmarked(&looks.socket));
        let is_announced = looks.end().theirs.prod.fin.load(Relaxed) != 0;
        assert_eq!(looks.socket.asked() == asked, is_announced, "bytes before an end come with it");
        looks.end().put(FROZEN, false);
        looks.end().theirs.prod.fin.store(0, Relaxed);
    }
    let looks = Looks::in_ring();
    assert!(!looks.end().has_unmarked(&looks.socket), "there are none");
}

#[test]
fn a_closed_socket_and_a_deaf_peer_say_nothing() {
    let mut looks = Looks::in_ring();
    looks.is_closed = true;
    looks.end().theirs.ctl.closed.store(DEAF, Relaxed);
    assert_eq!(looks.ready(IN | OUT), 0);
}

#[test]
fn the_low_water_mark_counts_where_it_is_set() {
    let mut looks = Looks::in_ring();
    looks.low_water = 10;
    looks.memory.receive(9);
    assert_eq!(looks.ready(IN) & IN, 0);
    looks.memory.receive(1);
    assert_eq!(looks.ready(IN) & IN, IN);
}

/// The peer is on another host, and the link to it is behind the kernel's connection.
#[test]
fn an_end_that_the_kernel_tells_of_before_the_link_is_not_told() {
    let wanted = IN | RDHUP;
    let mut looks = Looks::in_ring();
    looks.end().theirs.prod.behind.store(1, Relaxed);
    looks.end().put(HOSTED | KERNEL_HINT, true);
    looks.socket.arrive(Arrival::Fin);
    assert_eq!((looks.ready(wanted) & wanted, looks.did()), (0, vec![Did::Doubted]));
    looks.memory.receive(3);
    assert_eq!(looks.ready(wanted) & wanted, IN);
    looks.memory.take(3);
    looks.end().theirs.prod.behind.store(0, Relaxed);
    looks.did.borrow_mut().clear();
    assert_eq!((looks.ready(wanted) & wanted, looks.did()), (wanted, vec![]));
    looks.end().theirs.prod.behind.store(1, Relaxed);
    looks.is_cut_off = true;
    assert_eq!((looks.ready(wanted), looks.did()), (BROKEN, vec![Did::BrokeOff]));
}

/// Its agent and the server agree over TCP: their words are none of the program's.
#[test]
fn what_comes_while_an_agent_agrees_is_not_told() {
    let none = Answer::None as u32;
    for (phase, answer) in [
        (Phase::Proposed, none),
        // The program has not seen that yet.
        (Phase::Proposed, Answer::Declined as u32),
        (Phase::Tcp, none),
    ] {
        let looks = Looks::default();
        let waits = phase == Phase::Proposed && answer == none;
        looks.end().theirs.setup.state.store(answer, Relaxed);
        looks.end().record.id.phase.store(phase as u32, Relaxed);
        looks.end().put(HOSTED | STAYS, true);
        let ready = |wanted| {
            looks.did.borrow_mut().clear();
            let heard = &mut KernelReadiness::Nothing;
            look((looks.end().record, Some(looks.end())), phase, (wanted, heard), &looks)
        };
        looks.socket.arrive(Arrival::Bytes(9));
        let bytes = if waits { 0 } else { IN };
        let did = if waits { vec![Did::Doubted] } else { vec![] };
        assert_eq!((ready(IN) & IN, looks.did()), (bytes, did));
        // The server has ended the connection, or never speaks: the call that follows says so.
        looks.socket.arrive(Arrival::Fin);
        assert_eq!((ready(IN | RDHUP) & (IN | RDHUP), looks.did()), (IN | RDHUP, vec![]));
    }
}

/// Nobody brings what would come, and the kernel has nothing to tell: the other host may be through with the link.
#[test]
fn an_agent_that_is_gone_is_the_end_of_what_needs_it() {
    for has_come in [false, true] {
        let mut looks = Looks::in_ring();
        looks.memory.receive(3);
        looks.end().theirs.prod.fin.store(u32::from(has_come), Relaxed);
        looks.end().theirs.ctl.closed.store(u32::from(has_come), Relaxed);
        looks.end().put(HOSTED | KERNEL_HINT, true);
        assert_eq!((looks.ready(IN) & IN, looks.did()), (IN, vec![]));
        looks.is_cut_off = true;
        let broken = if has_come { vec![] } else { vec![Did::BrokeOff] };
        assert_eq!((looks.ready(IN) & IN, looks.did()), (IN, broken));
    }
}
