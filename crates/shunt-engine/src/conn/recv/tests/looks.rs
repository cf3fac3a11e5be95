//! Calls that only look (`MSG_PEEK`).

use super::*;

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
fn a_look_that_waits_knows_of_nothing_that_came_after_it() {
    let (memory, socket) = (in_ring(10), Socket::default());
    let mut call = Receives { enough: 40, ..Receives::new(&memory, &socket, 40) };
    call.comes_at_copy = 5;
    let Step::Wait(Until::More(known)) = look_step(&mut call) else { panic!() };
    assert_eq!(call.got, 10);
    assert_ne!(known, memory.end().arrivals(), "it does not wait for five bytes that are there");
}
