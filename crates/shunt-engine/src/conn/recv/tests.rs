use super::*;
use crate::call::enter;
use crate::conn::flags::{FROZEN, HOSTED, KERNEL_HINT, LEFTOVER, RESET_TOLD};
use crate::conn::put;
use crate::model::{Arrival, Memory, Receives, Socket};
use shunt_shm::handover;
use shunt_shm::ring::TxCursor;
use std::rc::Rc;

mod far;
mod hosted;
mod relatives;

fn in_ring(there: u64) -> Memory {
    let memory = Memory::default();
    memory.enter_ring();
    memory.receive(there);
    memory
}

/// The peer has written so many bytes over TCP, of which so many have arrived, and went on in the ring with so many more.
fn behind_tcp(written: u64, arrived: u64, in_ring: u64) -> (Memory, Socket) {
    let (memory, socket) = (Memory::default(), Socket::default());
    TxCursor::set_mark(&memory.end().theirs.prod, written);
    memory.receive(in_ring);
    socket.arrive(Arrival::Bytes(arrived));
    (memory, socket)
}

fn step(call: &mut Receives<'_>) -> Step {
    let end = call.memory.end();
    receive(end.record, Some(&end), call, true).unwrap()
}

fn step_now(call: &mut Receives<'_>) -> Step {
    let end = call.memory.end();
    receive(end.record, Some(&end), call, false).unwrap()
}

fn look_step(call: &mut Receives<'_>) -> Step {
    call.only_looks = true;
    let end = call.memory.end();
    peek(end.record, Some(&end), call, true).unwrap()
}

#[test]
fn bytes_are_taken_from_the_ring_and_the_sender_learns_of_it() {
    let (memory, socket) = (in_ring(10), Socket::default());
    let mut call = Receives::new(&memory, &socket, 4);
    assert_eq!((step(&mut call), call.got), (Step::Done, 4));
    let end = memory.end();
    assert_eq!(end.mine.cons.cons.load(Relaxed), 4);
    assert_eq!((end.record.rx.bytes.load(Relaxed), end.record.rx.messages.load(Relaxed)), (4, 1));
    let mut call = Receives::new(&memory, &socket, 100);
    assert_eq!((step(&mut call), call.got), (Step::Done, 6));
    assert_eq!(step(&mut Receives::new(&memory, &socket, 1)), Step::Wait(Until::Ring));
}

#[test]
fn a_sender_that_waits_for_much_room_is_told_now_and_then() {
    let (memory, socket) = (in_ring(Memory::RING), Socket::default());
    let mut call = Receives::new(&memory, &socket, usize::try_from(Memory::RING).unwrap());
    assert_eq!((step(&mut call), call.told.get()), (Step::Done, 1));
}

#[test]
fn a_look_takes_nothing() {
    let (memory, socket) = (in_ring(10), Socket::default());
    let mut call = Receives::new(&memory, &socket, 4);
    for _ in 0..2 {
        assert_eq!((look_step(&mut call), call.got), (Step::Done, 4));
    }
    assert_eq!(memory.end().mine.cons.cons.load(Relaxed), 0);
}

#[test]
fn a_look_that_wants_more_waits_for_more_and_sees_the_end() {
    let (memory, socket) = (in_ring(10), Socket::default());
    let mut call = Receives::new(&memory, &socket, 40);
    call.enough = 40;
    let Step::Wait(Until::More(known)) = look_step(&mut call) else { panic!() };
    assert_eq!(known, memory.end().arrivals());
    memory.receive(1);
    assert_ne!(known, memory.end().arrivals());
    memory.end().theirs.prod.fin.store(1, Relaxed);
    assert_eq!((look_step(&mut call), call.got), (Step::Done, 11));
    let (memory, socket) = (in_ring(10), Socket::default());
    socket.arrive(Arrival::Fin);
    let mut call = Receives { enough: 40, ..Receives::new(&memory, &socket, 40) };
    assert_eq!((look_step(&mut call), call.got), (Step::Done, 10), "the kernel tells of it, too");
    let (memory, socket) = (in_ring(10), Socket::default());
    put(memory.end().record, SHUT_RD, true);
    let mut call = Receives { enough: 40, ..Receives::new(&memory, &socket, 40) };
    assert_eq!((look_step(&mut call), call.got), (Step::Done, 10), "and so does the program");
}

#[test]
fn a_look_that_begins_where_the_last_one_ended_sees_each_byte_once() {
    let (memory, socket) = (Memory::default(), Socket::default());
    let mut call = Receives::new(&memory, &socket, 36);
    (call.enough, call.looked_at) = (36, Some(0));
    for (comes, got) in [(1, 1), (10, 11), (0, 11)] {
        socket.arrive(Arrival::Bytes(comes));
        assert!(matches!(look_step(&mut call), Step::Wait(Until::More(_))), "{got}");
        assert_eq!(call.got, got);
    }
    socket.arrive(Arrival::Bytes(25));
    assert_eq!((look_step(&mut call), call.got), (Step::Done, 36));
    // All that is there was seen: the kernel's poll would tell of it all the same.
    let mut call = Receives { looked_at: Some(36), ..Receives::new(&memory, &socket, 4) };
    assert!(matches!(look_step(&mut call), Step::Wait(Until::More(_))));
    socket.arrive(Arrival::Bytes(9));
    assert_eq!((look_step(&mut call), call.got), (Step::Done, 4));
}

#[test]
fn a_look_sees_bytes_on_both_sides_of_a_mark() {
    let (memory, socket) = behind_tcp(3, 3, 5);
    let mut call = Receives::new(&memory, &socket, 100);
    assert_eq!((look_step(&mut call), call.got, call.in_ring), (Step::Done, 8, 5));
    // Not all of the stretch has come: what is in the ring is not next.
    let (memory, socket) = behind_tcp(4, 3, 5);
    let mut call = Receives::new(&memory, &socket, 100);
    assert_eq!((look_step(&mut call), call.got), (Step::Done, 3));
    // And the other way round, where the first two of the kernel's were in the ring, too.
    let (memory, socket) = (in_ring(5), Socket::default());
    TxCursor::set_mark(&memory.end().theirs.prod, 3);
    socket.arrive(Arrival::Bytes(6));
    let mut call = Receives::new(&memory, &socket, 100);
    assert_eq!((look_step(&mut call), call.got, call.in_ring), (Step::Done, 9, 5));
}

#[test]
fn where_a_look_cannot_reach_behind_the_ring_it_does_not_wait_for_more() {
    let (memory, socket) = (in_ring(5), Socket::default());
    TxCursor::set_mark(&memory.end().theirs.prod, 5);
    let mut call = Receives { enough: 40, ..Receives::new(&memory, &socket, 40) };
    assert_eq!((look_step(&mut call), call.got), (Step::Done, 5));
    call.can_look_behind = true;
    assert!(matches!(look_step(&mut call), Step::Wait(Until::More(_))));
}

#[test]
fn a_call_goes_on_across_marks() {
    let (memory, socket) = behind_tcp(3, 3, 5);
    let mut call = Receives::new(&memory, &socket, 100);
    assert_eq!((step(&mut call), call.got, call.in_ring), (Step::Done, 8, 5));
    assert_eq!(*call.passed.borrow(), [true], "those who were told of 3 bytes look again");
    assert_eq!(memory.end().mine.cons.marks_passed.load(Relaxed), 1);
    // Out of the ring, with two bytes that come twice.
    memory.receive(4);
    TxCursor::set_mark(&memory.end().theirs.prod, 7);
    socket.arrive(Arrival::Bytes(5));
    let mut call = Receives::new(&memory, &socket, 100);
    assert_eq!((step(&mut call), call.got, call.in_ring), (Step::Done, 7, 4));
    assert_eq!((memory.end().mine.cons.marks_passed.load(Relaxed), socket.waiting()), (2, 0));
}

#[test]
fn a_ring_from_the_first_byte_is_entered_without_a_question() {
    let (memory, socket) = (Memory::default(), Socket::default());
    TxCursor::set_mark(&memory.end().theirs.prod, 0);
    memory.receive(5);
    let mut call = Receives::new(&memory, &socket, 100);
    assert_eq!((step(&mut call), call.got), (Step::Done, 5));
    assert_eq!(*call.passed.borrow(), [false]);
}

#[test]
fn bytes_in_front_of_a_mark_are_read_whenever_they_and_the_end_come() {
    for first in 0..16 {
        for gap in 0..8 {
            let (memory, socket) = behind_tcp(6, 1, 5);
            socket.arrive_at(first, Arrival::Bytes(5));
            socket.arrive_at(first + gap, Arrival::Fin);
            let mut call = Receives { enough: 12, ..Receives::new(&memory, &socket, 12) };
            for _ in 0..20 {
                if step(&mut call) == Step::Done {
                    break;
                }
            }
            assert_eq!((call.got, call.in_ring), (11, 5), "{first} {gap}");
        }
    }
}

#[test]
fn what_is_behind_a_ring_that_is_not_known_of_yet_is_not_read() {
    // Before any question: three bytes, a mark behind them; then the peer leaves the ring, and sends two more.
    for moment in 0..8 {
        let (memory, socket) = (Rc::new(Memory::default()), Socket::default());
        socket.arrive(Arrival::Bytes(3));
        let peer = Rc::clone(&memory);
        socket.before(moment, move || {
            let prod = &peer.end().theirs.prod;
            TxCursor::set_mark(prod, 3);
            peer.receive(4);
            TxCursor::set_mark(prod, 4);
        });
        socket.arrive_at(moment, Arrival::Bytes(2));
        let mut call = Receives { enough: 9, ..Receives::new(&memory, &socket, 9) };
        let mut from_tcp_first = 0;
        for _ in 0..20 {
            let done = step(&mut call) == Step::Done;
            if call.in_ring == 0 {
                from_tcp_first = call.got;
            }
            if done {
                break;
            }
        }
        assert_eq!((call.got, call.in_ring), (9, 4), "{moment}");
        assert!(from_tcp_first <= 3, "{moment}");
    }
}

#[test]
fn an_end_that_the_program_has_made_hides_no_mark() {
    // Before any question the peer goes into the ring with four bytes, leaves it, and sends two more.
    for moment in 0..8 {
        let (memory, socket) = (Rc::new(Memory::default()), Socket::default());
        socket.end_reading();
        let peer = Rc::clone(&memory);
        socket.before(moment, move || {
            let prod = &peer.end().theirs.prod;
            TxCursor::set_mark(prod, 0);
            peer.receive(4);
            TxCursor::set_mark(prod, 4);
        });
        socket.arrive_at(moment, Arrival::Bytes(2));
        let mut got = (0, 0);
        for _ in 0..8 {
            let mut call = Receives::new(&memory, &socket, 2);
            assert_eq!(step(&mut call), Step::Done, "{moment}: nobody waits behind an end");
            got = (got.0 + call.got, got.1 + call.in_ring);
            assert!(got.0 == got.1 || got.1 == 4, "{moment}: what is behind the ring came first");
        }
        assert_eq!(got, (6, 4), "{moment}");
    }
}

#[test]
fn what_comes_twice_behind_an_end_that_the_program_has_made_is_not_read() {
    let (memory, socket) = (in_ring(4), Socket::default());
    socket.end_reading();
    put(memory.end().record, HOSTED | SHUT_RD | KERNEL_HINT, true);
    let mut call = Receives::new(&memory, &socket, 9);
    assert_eq!((step(&mut call), call.got), (Step::Done, 4));
    // The peer has left the ring with two of them untaken, as far as it knew.
    TxCursor::set_mark(&memory.end().theirs.prod, 2);
    let mut call = Receives::new(&memory, &socket, 9);
    assert_eq!((step(&mut call), call.got), (Step::Done, 0));
    socket.arrive(Arrival::Bytes(3));
    let mut call = Receives::new(&memory, &socket, 9);
    assert_eq!((step(&mut call), call.got), (Step::Done, 1));
}

#[test]
fn a_handler_takes_nothing_between_a_look_for_bytes_and_their_read() {
    let (memory, socket) = (Rc::new(Memory::default()), Socket::default());
    socket.arrive(Arrival::Bytes(3));
    let below = Rc::clone(&memory);
    // After the look for bytes.
    socket.before(1, move || assert!(enter(true, &below.record().rx.copying).is_none()));
    let mut call = Receives::new(&memory, &socket, 3);
    assert_eq!((step(&mut call), call.got), (Step::Done, 3));
}

#[test]
fn marks_that_a_handler_passes_above_the_telling_are_no_breach() {
    let (memory, socket) = (in_ring(Memory::RING), Socket::default());
    let mut call = Receives::new(&memory, &socket, usize::try_from(Memory::RING).unwrap() + 1);
    call.passes_at_tell = Some(3);
    assert_eq!(step(&mut call), Step::Done);
}

#[test]
fn a_stretch_whose_bytes_were_lost_ends_the_stream() {
    for (end_of, expected) in
        [(Arrival::Fin, Step::Done), (Arrival::Reset, Step::Failed(Errno::CONNRESET))]
    {
        let (memory, socket) = behind_tcp(6, 3, 5);
        let mut call = Receives::new(&memory, &socket, 3);
        assert_eq!(step(&mut call), Step::Done);
        socket.arrive(end_of);
        let mut call = Receives::new(&memory, &socket, 100);
        assert_eq!((step(&mut call), call.got), (expected, 0), "{end_of:?}");
    }
}

#[test]
fn an_error_behind_bytes_is_for_the_next_call() {
    let (memory, socket) = (Memory::default(), Socket::default());
    socket.arrive(Arrival::Bytes(3));
    socket.arrive(Arrival::Reset);
    let mut call = Receives { enough: 9, ..Receives::new(&memory, &socket, 9) };
    assert_eq!((step(&mut call), call.got), (Step::Done, 3));
    let mut call = Receives::new(&memory, &socket, 9);
    assert_eq!(step(&mut call), Step::Failed(Errno::CONNRESET));
    assert_eq!(step(&mut Receives::new(&memory, &socket, 9)), Step::Done, "told once");
    // Without a ring it is the same.
    let (memory, socket) = (Memory::default(), Socket::default());
    socket.arrive(Arrival::Reset);
    let record = memory.end().record;
    let mut call = Receives { got: 3, ..Receives::new(&memory, &socket, 9) };
    assert_eq!(receive(record, None, &mut call, true), Ok(Step::Done));
    call.got = 0;
    assert_eq!(receive(record, None, &mut call, true), Ok(Step::Failed(Errno::CONNRESET)));
}

#[test]
fn a_call_waits_for_as_much_as_it_asks() {
    for (there, enough, total, blocking, expected) in [
        (3, 1, 9, true, Step::Done),
        (3, 5, 9, true, Step::Wait(Until::Ring)),
        (3, 5, 3, true, Step::Done),
        (3, 5, 9, false, Step::Done),
        (5, 5, 9, true, Step::Done),
        (0, 1, 9, false, Step::Wait(Until::Ring)),
    ] {
        let (memory, socket) = (in_ring(there), Socket::default());
        let mut call = Receives { enough, ..Receives::new(&memory, &socket, total) };
        let end = memory.end();
        let mut step = || receive(end.record, Some(&end), &mut call, blocking).unwrap();
        let first = step();
        let last = if first == Step::Again { step() } else { first };
        assert_eq!(last, expected, "{there} {enough} {total} {blocking}");
    }
}

#[test]
fn a_copy_that_a_handler_interrupts_is_done_again() {
    let (memory, socket) = (in_ring(10), Socket::default());
    let mut call = Receives { is_interrupted: true, ..Receives::new(&memory, &socket, 4) };
    assert_eq!((step(&mut call), call.got), (Step::Done, 4));
    assert_eq!(memory.end().mine.cons.cons.load(Relaxed), 4);
}

#[test]
fn after_a_panic_in_a_handler_nothing_more_is_taken() {
    let (memory, socket) = (in_ring(10), Socket::default());
    let mut call = Receives { is_interrupted: true, ..Receives::new(&memory, &socket, 4) };
    memory.end().record.id.phase.store(Phase::Broken as u32, Relaxed);
    assert_eq!((step(&mut call), call.got), (Step::Again, 0), "the call sees to the rest");
    assert_eq!(memory.end().mine.cons.cons.load(Relaxed), 0);
}

#[test]
fn behind_a_panic_in_a_step_for_whose_lock_it_waited_a_call_takes_nothing() {
    let (memory, socket) = (in_ring(10), Socket::default());
    memory.end().record.id.phase.store(Phase::Broken as u32, Relaxed);
    let mut call = Receives::new(&memory, &socket, 4);
    assert_eq!((step(&mut call), call.got), (Step::Again, 0), "the call sees to the rest");
}

#[test]
fn bytes_that_another_program_has_are_passed_over() {
    let (memory, socket) = (in_ring(10), Socket::default());
    put(memory.end().record, LEFTOVER, true);
    let mut call = Receives::new(&memory, &socket, 4);
    (call.is_leftover, call.is_claimed) = (true, true);
    assert_eq!((step(&mut call), call.got), (Step::Wait(Until::Ring), 0));
}

#[test]
fn memory_that_cannot_be_written_fails_the_call_alone() {
    let (memory, socket) = (in_ring(10), Socket::default());
    let mut call = Receives { is_bad: true, ..Receives::new(&memory, &socket, 4) };
    assert_eq!(step(&mut call), Step::Failed(Errno::FAULT));
    assert_eq!(memory.end().in_ring(), 10);
}

#[test]
fn a_call_for_no_bytes_finds_some() {
    let (memory, socket) = (in_ring(1), Socket::default());
    assert_eq!(step(&mut Receives::new(&memory, &socket, 0)), Step::Done);
    memory.take(1);
    assert_eq!(step_now(&mut Receives::new(&memory, &socket, 0)), Step::Wait(Until::Ring));
}

#[test]
fn a_program_that_polls_has_the_kernel_asked_now_and_then() {
    let (memory, socket) = (in_ring(0), Socket::default());
    socket.arrive(Arrival::Fin);
    let mut call = Receives::new(&memory, &socket, 4);
    assert_eq!(step_now(&mut call), Step::Wait(Until::Ring), "just begun");
    call.time = 20 << 10;
    assert_eq!(step(&mut call), Step::Wait(Until::Ring), "who sleeps is told");
    assert_eq!((step_now(&mut call), call.got), (Step::Done, 0));
    assert!(memory.end().has(KERNEL_HINT), "it stays");
}

#[test]
fn one_that_waits_asks_when_it_is_told_to() {
    let (memory, socket) = (in_ring(0), Socket::default());
    socket.arrive(Arrival::Fin);
    let mut call = Receives::new(&memory, &socket, 4);
    assert_eq!(step(&mut call), Step::Wait(Until::Ring));
    memory.end().put(KERNEL_HINT, true);
    assert_eq!(step(&mut call), Step::Done);
    // An end that is announced, and on its way.
    let (memory, socket) = (in_ring(0), Socket::default());
    memory.end().theirs.prod.fin.store(1, Relaxed);
    let mut call = Receives::new(&memory, &socket, 4);
    assert_eq!(step(&mut call), Step::Wait(Until::Both));
}

#[test]
fn bytes_of_the_ring_come_before_an_end_whenever_that_comes() {
    for moment in 0..6 {
        let (memory, socket) = (Rc::new(in_ring(0)), Socket::default());
        memory.end().put(KERNEL_HINT, true);
        let peer = Rc::clone(&memory);
        socket.before(moment, move || peer.receive(3));
        socket.arrive_at(moment, Arrival::Fin);
        let mut call = Receives::new(&memory, &socket, 4);
        let mut result = step(&mut call);
        for _ in 0..4 {
            if result == Step::Done {
                break;
            }
            // Who sleeps is told by the kernel.
            socket.settle();
            memory.end().put(KERNEL_HINT, true);
            result = step(&mut call);
        }
        assert_eq!((result, call.got), (Step::Done, 3), "{moment}");
    }
}

#[test]
fn an_end_that_was_found_while_bytes_came_is_known_once_these_are_read() {
    for moment in 0..2 {
        let (memory, socket) = (Rc::new(in_ring(0)), Socket::default());
        let peer = Rc::clone(&memory);
        socket.before(moment, move || peer.receive(3));
        socket.arrive_at(moment, Arrival::Fin);
        let mut call = Receives { time: 20 << 10, ..Receives::new(&memory, &socket, 3) };
        assert_eq!((step_now(&mut call), call.got), (Step::Done, 3), "{moment}");
        let mut call = Receives::new(&memory, &socket, 3);
        assert_eq!(
            (step(&mut call), call.got),
            (Step::Done, 0),
            "nobody tells of it again: {moment}"
        );
    }
}

#[test]
fn a_killed_peer_that_left_bytes_of_ours_unread_resets_once() {
    let (memory, socket) = (in_ring(0), Socket::default());
    memory.send(5);
    socket.arrive(Arrival::Fin);
    memory.end().put(KERNEL_HINT, true);
    let mut call = Receives::new(&memory, &socket, 4);
    assert_eq!(step(&mut call), Step::Failed(Errno::CONNRESET));
    assert!(memory.end().has(RESET_TOLD));
    assert_eq!(step(&mut call), Step::Done);
}

#[test]
fn bytes_that_no_mark_explains_are_the_last_or_break_the_protocol() {
    let found = |change: fn(&Memory, &Socket), long: bool| {
        let (memory, socket) = (in_ring(0), Socket::default());
        memory.end().put(KERNEL_HINT, true);
        socket.arrive(Arrival::Bytes(3));
        change(&memory, &socket);
        let mut call = Receives::new(&memory, &socket, 9);
        call.is_unmarked_for_long = long;
        let end = memory.end();
        (receive(end.record, Some(&end), &mut call, true), call.got)
    };
    let nothing = |_: &Memory, _: &Socket| {};
    assert_eq!(found(nothing, false), (Ok(Step::Wait(Until::Ring)), 0));
    assert_eq!(found(nothing, true), (Err(Violation::Marks), 0));
    let ended = |_: &Memory, socket: &Socket| socket.arrive(Arrival::Fin);
    assert_eq!(found(ended, true), (Ok(Step::Done), 3));
    let announced = |memory: &Memory, _: &Socket| memory.end().theirs.prod.fin.store(1, Relaxed);
    assert_eq!(found(announced, true), (Ok(Step::Done), 3));
    let marked = |memory: &Memory, _: &Socket| TxCursor::set_mark(&memory.end().theirs.prod, 0);
    assert_eq!(found(marked, true), (Ok(Step::Done), 3));
}

#[test]
fn one_that_has_left_reads_what_nobody_sends_again() {
    // The peer has ended before it heard of it.
    for (ends, shut) in [(true, false), (false, false), (true, true)] {
        let (memory, socket) = (in_ring(4), Socket::default());
        memory.end().put(FROZEN, true);
        memory.end().put(SHUT_RD, shut);
        if ends {
            memory.end().theirs.prod.fin.store(1, Relaxed);
            socket.arrive(Arrival::Fin);
        }
        let mut call = Receives::new(&memory, &socket, 9);
        assert_eq!((step(&mut call), call.got), (Step::Done, 4), "{ends} {shut}");
        assert_eq!(memory.end().has(FROZEN), !ends, "{ends} {shut}");
    }
}

#[test]
fn one_that_has_left_takes_what_is_sent_again_from_the_kernel() {
    let (memory, socket) = (in_ring(4), Socket::default());
    let end = memory.end();
    end.put(FROZEN, true);
    handover::leave(&end.mine.ctl.handed_over, || 1);
    TxCursor::set_mark(&end.theirs.prod, 0);
    socket.arrive(Arrival::Bytes(4));
    let mut call = Receives::new(&memory, &socket, 9);
    assert_eq!((step(&mut call), call.got, call.in_ring), (Step::Done, 4, 0));
}

#[test]
fn a_peer_that_leaves_while_one_comes_back_has_it_go_to_tcp() {
    let (memory, socket) = (in_ring(4), Socket::default());
    memory.end().put(FROZEN, true);
    socket.arrive(Arrival::Bytes(4));
    let mut call = Receives { stays: false, ..Receives::new(&memory, &socket, 9) };
    assert_eq!((step(&mut call), call.got, call.in_ring), (Step::Done, 4, 0));
}

#[test]
fn what_a_program_before_exec_has_left_is_read_in_the_ring() {
    let (memory, socket) = (in_ring(4), Socket::default());
    put(memory.end().record, LEFTOVER, true);
    let mut call =
        Receives { is_leftover: true, stays: false, ..Receives::new(&memory, &socket, 9) };
    assert_eq!((step(&mut call), call.got, call.in_ring), (Step::Done, 4, 4));
}

#[test]
fn a_call_that_has_all_drops_what_comes_twice_behind_it() {
    let (memory, socket) = (in_ring(5), Socket::default());
    TxCursor::set_mark(&memory.end().theirs.prod, 3);
    socket.arrive(Arrival::Bytes(2));
    let mut call = Receives::new(&memory, &socket, 5);
    assert_eq!((step(&mut call), call.got, socket.waiting()), (Step::Done, 5, 0));
}

#[test]
fn a_peer_that_has_left_is_followed_first() {
    for there in [0, 4] {
        let (memory, socket) = (in_ring(there), Socket::default());
        memory.activate();
        handover::leave(&memory.end().theirs.ctl.handed_over, || 1);
        let mut call = Receives::new(&memory, &socket, 9);
        let expected = if there == 0 { Step::Follow } else { Step::Done };
        assert_eq!(step(&mut call), expected, "{there}");
    }
    // Also by one that has seen what there is on both sides of a mark, and waits for more.
    let (memory, socket) = (in_ring(5), Socket::default());
    memory.activate();
    TxCursor::set_mark(&memory.end().theirs.prod, 3);
    socket.arrive(Arrival::Bytes(6));
    handover::leave(&memory.end().theirs.ctl.handed_over, || 1);
    let mut call =
        Receives { enough: 20, can_look_behind: true, ..Receives::new(&memory, &socket, 20) };
    assert_eq!(look_step(&mut call), Step::Follow);
    // Who never waits is in a TCP stretch when it hears of it.
    let (memory, socket) = (Memory::default(), Socket::default());
    let end = memory.end();
    end.record.tx.marks.store(1, Relaxed);
    memory.activate();
    handover::leave(&end.theirs.ctl.handed_over, || 1);
    assert_eq!(step_now(&mut Receives::new(&memory, &socket, 9)), Step::Follow);
}

#[test]
fn what_comes_twice_is_waited_for_at_the_kernel() {
    let (memory, socket) = (Memory::default(), Socket::default());
    memory.end().record.rx.again.store(4, Relaxed);
    let mut call = Receives::new(&memory, &socket, 9);
    assert_eq!(step(&mut call), Step::Wait(Until::Kernel));
    socket.arrive(Arrival::Bytes(6));
    assert_eq!((step(&mut call), call.got), (Step::Done, 2));
}

#[test]
fn bytes_in_front_of_urgent_data_come_alone() {
    let (memory, socket) = (Memory::default(), Socket::default());
    socket.come_to_urgent_mark();
    socket.arrive(Arrival::Bytes(2));
    let mut call = Receives { got: 3, enough: 9, ..Receives::new(&memory, &socket, 9) };
    assert_eq!((step(&mut call), call.got), (Step::Done, 3));
}

#[test]
fn who_has_granted_is_told_when_the_last_byte_of_an_entry_is_passed() {
    let (memory, socket) = (in_ring(30), Socket::default());
    memory.end().theirs.prod.grants.store(2, Relaxed);
    for (entries, told) in [(0, 0), (1, 1), (1, 0), (2, 1)] {
        let mut call = Receives::new(&memory, &socket, 5);
        call.entries = Some(entries);
        assert_eq!((step(&mut call), call.told.get()), (Step::Done, told), "{entries}");
        assert_eq!(memory.end().record.rx.grants.load(Relaxed), entries);
    }
}

#[test]
fn marks_and_grants_that_cannot_be_break_the_protocol() {
    let changes: [fn(&Memory); 3] = [
        |memory| memory.end().theirs.prod.marks.store(9, Relaxed),
        |memory| TxCursor::set_mark(&memory.end().theirs.prod, 7),
        |memory| memory.end().theirs.prod.grants.store(u32::MAX / 2, Relaxed),
    ];
    for (n, change) in changes.iter().enumerate() {
        let (memory, socket) = (in_ring(0), Socket::default());
        change(&memory);
        let end = memory.end();
        let mut call = Receives::new(&memory, &socket, 9);
        assert!(receive(end.record, Some(&end), &mut call, true).is_err(), "{n}");
    }
}

#[test]
fn a_look_that_waits_knows_of_nothing_that_came_after_it() {
    let (memory, socket) = (in_ring(10), Socket::default());
    let mut call = Receives { enough: 40, ..Receives::new(&memory, &socket, 40) };
    call.comes_at_copy = 5;
    let Step::Wait(Until::More(known)) = look_step(&mut call) else { panic!() };
    assert_eq!(call.got, 10);
    assert_ne!(known, memory.end().arrivals(), "it does not wait for five bytes that are there");
}

#[test]
fn an_end_right_behind_a_mark_is_none_of_the_stretch_before_it() {
    for is_urgent in [false, true] {
        for moment in 0..8 {
            let (memory, socket) = (Rc::new(Memory::default()), Socket::default());
            if is_urgent {
                socket.come_to_urgent_mark();
            }
            let peer = Rc::clone(&memory);
            socket.before(moment, move || {
                TxCursor::set_mark(&peer.end().theirs.prod, 0);
                peer.receive(5);
            });
            socket.arrive_at(moment, Arrival::Fin);
            let mut call = Receives::new(&memory, &socket, 9);
            while step(&mut call) != Step::Done {}
            assert_eq!((call.got, call.in_ring), (5, 5), "{is_urgent} {moment}");
            if moment == 0 && !is_urgent {
                // It was told of the end as it looked for bytes in front of the mark, and asks for it in the ring, too.
                let mut next = Receives::new(&memory, &socket, 9);
                assert_eq!((step(&mut next), next.got), (Step::Done, 0));
            }
        }
    }
}

#[test]
fn bytes_of_the_ring_come_before_those_that_no_mark_explains_whenever_they_come() {
    for moment in 0..4 {
        let (memory, socket) = (Rc::new(in_ring(0)), Socket::default());
        memory.end().put(KERNEL_HINT, true);
        socket.arrive(Arrival::Bytes(3));
        let peer = Rc::clone(&memory);
        socket.before(moment, move || peer.receive(4));
        socket.arrive_at(moment, Arrival::Fin);
        let mut call = Receives { enough: 7, ..Receives::new(&memory, &socket, 7) };
        let (mut from_kernel_first, mut steps) = (0, 0);
        while step(&mut call) != Step::Done {
            if call.in_ring == 0 {
                from_kernel_first = call.got;
            }
            steps += 1;
            assert!(steps < 20, "{moment}");
        }
        assert_eq!((call.got, call.in_ring, from_kernel_first), (7, 4, 0), "{moment}");
    }
    // In the very look that finds the end.
    let (memory, socket) = (Rc::new(in_ring(0)), Socket::default());
    memory.end().put(KERNEL_HINT, true);
    socket.arrive(Arrival::Bytes(3));
    let peer = Rc::clone(&memory);
    socket.before(1, move || peer.receive(4));
    socket.arrive_at(1, Arrival::Fin);
    let mut call = Receives::new(&memory, &socket, 9);
    assert_eq!((step(&mut call), call.got, call.in_ring), (Step::Done, 4, 4));
}

#[test]
fn one_that_has_left_reads_what_nobody_sends_again_before_the_last_bytes() {
    let (memory, socket) = (in_ring(4), Socket::default());
    memory.end().put(FROZEN, true);
    socket.arrive(Arrival::Bytes(3));
    socket.arrive(Arrival::Fin);
    let mut call = Receives { stays: false, ..Receives::new(&memory, &socket, 4) };
    assert_eq!((step(&mut call), call.got, call.in_ring), (Step::Done, 4, 4));
    assert!(!memory.end().has(FROZEN));
}
