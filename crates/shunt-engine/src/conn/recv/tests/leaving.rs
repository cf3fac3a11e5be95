//! An end that has left the ring, and a peer that has: what comes twice.

use super::*;

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
fn one_that_has_left_reads_what_nobody_sends_again_before_the_last_bytes() {
    let (memory, socket) = (in_ring(4), Socket::default());
    memory.end().put(FROZEN, true);
    socket.arrive(Arrival::Bytes(3));
    socket.arrive(Arrival::Fin);
    let mut call = Receives { stays: false, ..Receives::new(&memory, &socket, 4) };
    assert_eq!((step(&mut call), call.got, call.in_ring), (Step::Done, 4, 4));
    assert!(!memory.end().has(FROZEN));
}
