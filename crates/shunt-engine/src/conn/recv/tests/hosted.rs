//! The peer is on another host.

use super::*;

/// The peer is on another host, and the link to it is behind the kernel's connection.
#[test]
fn an_end_that_the_kernel_tells_of_before_the_link_is_waited_for() {
    for is_in_ring in [true, false] {
        let (memory, socket) = (Memory::default(), Socket::default());
        if is_in_ring {
            memory.enter_ring();
        }
        let prod = &memory.end().theirs.prod;
        put(memory.end().record, HOSTED, true);
        prod.behind.store(1, Relaxed);
        put(memory.end().record, KERNEL_HINT, true);
        socket.arrive(Arrival::Fin);
        let mut call = Receives::new(&memory, &socket, 100);
        assert_eq!((step(&mut call), call.got), (Step::Wait(Until::Both), 0));
        if !is_in_ring {
            TxCursor::set_mark(prod, 0);
        }
        memory.receive(7);
        prod.fin.store(1, Relaxed);
        prod.behind.store(0, Relaxed);
        assert_eq!((step(&mut call), call.got), (Step::Done, 7));
        let mut call = Receives::new(&memory, &socket, 100);
        assert_eq!((step(&mut call), call.got), (Step::Done, 0));
    }
}

/// The peer's agent was killed: its program has ended its direction before, and resets the connection now. This host's agent does not
/// know of it yet.
#[test]
fn a_reset_behind_an_end_is_not_the_end_of_what_the_link_lacks() {
    for is_in_ring in [true, false] {
        let (memory, socket) = (Memory::default(), Socket::default());
        if is_in_ring {
            memory.enter_ring();
        }
        let end = memory.end();
        end.theirs.prod.behind.store(1, Relaxed);
        put(end.record, HOSTED | KERNEL_HINT, true);
        socket.arrive(Arrival::Fin);
        socket.arrive(Arrival::Reset);
        let mut call = Receives::new(&memory, &socket, 100);
        assert_eq!((step(&mut call), call.got), (Step::Wait(Until::Both), 0));
        call.is_cut_off = true;
        assert!(receive(end.record, Some(&end), &mut call, true).is_err());
        // What was missing has come.
        if !is_in_ring {
            TxCursor::set_mark(&end.theirs.prod, 0);
        }
        memory.receive(7);
        end.theirs.prod.behind.store(0, Relaxed);
        call.is_cut_off = false;
        assert_eq!((step(&mut call), call.got), (Step::Done, 7));
        let mut call = Receives::new(&memory, &socket, 100);
        assert_eq!((step(&mut call), call.got), (Step::Done, 0));
    }
}

#[test]
fn a_reset_and_the_programs_own_end_wait_for_no_link() {
    let (memory, socket) = (in_ring(0), Socket::default());
    memory.end().theirs.prod.behind.store(1, Relaxed);
    put(memory.end().record, HOSTED | KERNEL_HINT, true);
    socket.arrive(Arrival::Reset);
    let mut call = Receives::new(&memory, &socket, 100);
    assert_eq!(step(&mut call), Step::Failed(Errno::CONNRESET));
    let (memory, socket) = (in_ring(0), Socket::default());
    memory.end().theirs.prod.behind.store(1, Relaxed);
    put(memory.end().record, HOSTED | SHUT_RD | KERNEL_HINT, true);
    socket.arrive(Arrival::Fin);
    let mut call = Receives::new(&memory, &socket, 100);
    assert_eq!((step(&mut call), call.got), (Step::Done, 0));
}

/// An agent is gone in the middle: what its peer has sent over TCP since is not what comes next.
#[test]
fn bytes_that_no_mark_explains_are_not_the_last_ones_of_another_host() {
    let (memory, socket) = (in_ring(0), Socket::default());
    memory.end().theirs.prod.behind.store(1, Relaxed);
    put(memory.end().record, HOSTED | KERNEL_HINT, true);
    socket.arrive(Arrival::Bytes(7));
    socket.arrive(Arrival::Fin);
    let mut call = Receives::new(&memory, &socket, 100);
    assert_eq!((step(&mut call), call.got), (Step::Wait(Until::Ring), 0));
    memory.end().theirs.prod.behind.store(0, Relaxed);
    assert_eq!((step(&mut call), call.got), (Step::Done, 7));
}

/// The link has failed: the peer's agent has told it, and this host's is slower.
#[test]
fn the_mark_of_another_host_may_take_its_time() {
    let (memory, socket) = (in_ring(0), Socket::default());
    memory.end().theirs.prod.behind.store(1, Relaxed);
    put(memory.end().record, HOSTED | KERNEL_HINT, true);
    socket.arrive(Arrival::Bytes(7));
    let mut call = Receives::new(&memory, &socket, 100);
    call.is_unmarked_for_long = true;
    assert_eq!((step(&mut call), call.got), (Step::Wait(Until::Ring), 0));
    let end = memory.end();
    call.is_cut_off = true;
    assert_eq!(receive(end.record, Some(&end), &mut call, true), Err(Violation::Marks));
    TxCursor::set_mark(&end.theirs.prod, 0);
    assert_eq!((step(&mut call), call.got), (Step::Done, 7));
}

/// Nobody brings what is missing any more.
#[test]
fn an_end_behind_which_the_agent_is_gone_breaks_the_connection() {
    for is_in_ring in [true, false] {
        let (memory, socket) = (Memory::default(), Socket::default());
        if is_in_ring {
            memory.enter_ring();
        }
        memory.end().theirs.prod.behind.store(1, Relaxed);
        put(memory.end().record, HOSTED | KERNEL_HINT, true);
        let mut call = Receives::new(&memory, &socket, 100);
        call.is_cut_off = true;
        assert!(matches!(step(&mut call), Step::Wait(_)), "not before the end");
        socket.arrive(Arrival::Fin);
        let end = memory.end();
        put(end.record, KERNEL_HINT, true);
        assert!(receive(end.record, Some(&end), &mut call, true).is_err());
    }
}

/// A peer on this host cannot say that it is behind: it could keep a program waiting for an end that the kernel has told.
#[test]
fn a_peer_of_this_host_is_not_waited_for() {
    let (memory, socket) = (in_ring(0), Socket::default());
    memory.end().theirs.prod.behind.store(1, Relaxed);
    put(memory.end().record, KERNEL_HINT, true);
    socket.arrive(Arrival::Fin);
    let mut call = Receives::new(&memory, &socket, 100);
    assert_eq!((step(&mut call), call.got), (Step::Done, 0));
}

/// The agent is gone, and the kernel has nothing to tell: the other host may be through with the link.
#[test]
fn who_never_sleeps_hears_that_the_agent_is_gone() {
    for is_in_ring in [true, false] {
        let (memory, socket) = (Memory::default(), Socket::default());
        memory.enter_ring();
        if !is_in_ring {
            // What this side sends alone goes through a ring.
            memory.end().record.rx.marks.store(0, Relaxed);
            memory.end().theirs.prod.marks.store(0, Relaxed);
        }
        put(memory.end().record, HOSTED, true);
        let end = memory.end();
        let mut call = Receives::new(&memory, &socket, 100);
        assert!(matches!(step_now(&mut call), Step::Wait(_)));
        call.is_cut_off = true;
        call.time += 1 << 21;
        assert!(receive(end.record, Some(&end), &mut call, false).is_err(), "{is_in_ring}");
    }
}
