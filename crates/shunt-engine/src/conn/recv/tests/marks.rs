//! Switch points: where bytes come over TCP, and where from the ring.

use super::*;

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
