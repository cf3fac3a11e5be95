//! Ends and resets, and when the kernel is asked for them.

use super::*;

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
