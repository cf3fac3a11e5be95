use super::*;
use crate::call::enter;
use crate::conn::flags::{FROZEN, HOSTED, KERNEL_HINT, LEFTOVER, RESET_TOLD};
use crate::conn::put;
use crate::model::{Arrival, Memory, Receives, Socket};
use shunt_shm::handover;
use shunt_shm::ring::TxCursor;
use std::rc::Rc;

mod ends;
mod far;
mod hosted;
mod leaving;
mod looks;
mod marks;
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
