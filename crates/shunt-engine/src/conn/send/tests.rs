use super::*;
use crate::conn::flags::{HOSTED, RESET_TOLD, SHUT_RD};
use crate::conn::put;
use crate::model::Did::{Copied, Left, Repeated, Told, TookBack, Unlocked, Wrote};
use crate::model::{Arrival, Memory, Sends, Socket};
use shunt_shm::doorbell;
use shunt_shm::handover;
use shunt_shm::region::{DEAF, Side};
use shunt_shm::ring::heard;
use shunt_wire::clc::Proposal;

const PATIENCE: u64 = 40_000_000;

fn in_ring() -> Memory {
    let memory = Memory::default();
    memory.enter_ring();
    memory
}

fn marks(memory: &Memory) -> (u32, u32) {
    (memory.end().record.tx.marks.load(Relaxed), memory.end().mine.prod.marks.load(Relaxed))
}

#[test]
fn bytes_are_copied_then_seen_then_told_of_without_the_lock() {
    let (memory, socket) = (in_ring(), Socket::default());
    let mut call = Sends::new(&memory, &socket, 10);
    assert_eq!(call.step(), Step::Again);
    assert_eq!(call.did(), [Copied(10), Unlocked, Told(10)]);
    assert_eq!((call.sent, memory.end().record.tx.bytes.load(Relaxed)), (10, 10));
    assert_eq!(memory.end().record.tx.saved.load(Relaxed), 1);
}

#[test]
fn the_first_bytes_go_into_the_ring_behind_what_went_over_tcp() {
    let (memory, socket) = (Memory::default(), Socket::default());
    let mut call = Sends::new(&memory, &socket, 10);
    call.can_tell = false;
    assert_eq!((call.step(), call.did()), (Step::Again, vec![Wrote(10)]));
    socket.write(10);
    let mut call = Sends::new(&memory, &socket, 3);
    assert_eq!((call.step(), marks(&memory)), (Step::Again, (1, 1)));
    assert_eq!(call.did(), [Copied(3), Unlocked, Told(3)]);
    assert_eq!(memory.end().mine.prod.mark_at[1].load(Relaxed), 10);
}

#[test]
fn a_direction_stays_on_tcp_where_the_ring_leads_nowhere() {
    type Change = fn(&Memory, &Socket);
    let reasons: [Change; 6] = [
        |memory, _| memory.end().put(WANT_TCP, true),
        |memory, _| memory.end().put(SHUT_WR, true),
        |memory, _| memory.end().theirs.ctl.closed.store(DEAF, Relaxed),
        |memory, _| memory.end().theirs.ctl.handed_over.store(1, Relaxed),
        |memory, _| memory.end().record.tx.replay.store(5, Relaxed),
        // The peer's process has ended, and has not said so.
        |_, socket| socket.arrive(Arrival::Fin),
    ];
    for (n, change) in reasons.iter().enumerate() {
        let (memory, socket) = (Memory::default(), Socket::default());
        change(&memory, &socket);
        let mut call = Sends::new(&memory, &socket, 10);
        assert_eq!(call.step(), Step::Again, "{n}");
        assert_eq!(call.did().last(), Some(&Wrote(10)), "{n}");
        assert_eq!(marks(&memory), (0, 0), "{n}");
    }
}

#[test]
fn a_ring_that_the_peer_left_while_this_end_came_into_it_gets_no_bytes() {
    let (memory, socket) = (Memory::default(), Socket::default());
    let mut call = Sends::new(&memory, &socket, 10);
    call.handed_over_at_mark = handover::LEFT;
    assert_eq!((call.step(), call.did(), marks(&memory)), (Step::Follow, vec![], (1, 1)));
    // One that is about to leave wakes those who wait for it, and they see the mark.
    let (memory, socket) = (Memory::default(), Socket::default());
    let mut call = Sends::new(&memory, &socket, 10);
    call.handed_over_at_mark = handover::LEAVING;
    assert_eq!((call.step(), call.did()), (Step::Again, vec![Copied(10), Unlocked, Told(10)]));
}

#[test]
fn behind_a_panic_in_a_step_for_whose_lock_it_waited_a_call_sends_nothing() {
    let (memory, socket) = (in_ring(), Socket::default());
    memory.end().record.id.phase.store(Phase::Broken as u32, Relaxed);
    let mut call = Sends::new(&memory, &socket, 10);
    assert_eq!((call.step(), call.did()), (Step::Again, vec![]), "the call sees to the rest");
}

#[test]
fn a_peer_that_has_half_closed_is_there() {
    let (memory, socket) = (Memory::default(), Socket::default());
    memory.end().theirs.prod.fin.store(1, Relaxed);
    socket.arrive(Arrival::Fin);
    let mut call = Sends::new(&memory, &socket, 10);
    assert_eq!((call.step(), call.did()), (Step::Again, vec![Copied(10), Unlocked, Told(10)]));
}

#[test]
fn what_waits_to_be_sent_once_more_comes_first() {
    let (memory, socket) = (Memory::default(), Socket::default());
    memory.end().record.tx.replay.store(5, Relaxed);
    let mut call = Sends::new(&memory, &socket, 10);
    call.can_repeat = false;
    assert_eq!((call.step(), call.did()), (Step::Wait(Until::Both), vec![Repeated]));
    call.can_repeat = true;
    assert_eq!((call.step(), call.did()), (Step::Again, vec![Repeated, Wrote(10)]));
}

#[test]
fn a_ring_is_left_once_the_receiver_is_in_it() {
    let (memory, socket) = (in_ring(), Socket::default());
    memory.send(7);
    memory.end().put(WANT_TCP, true);
    memory.end().theirs.cons.marks_passed.store(0, Relaxed);
    let mut call = Sends::new(&memory, &socket, 10);
    assert_eq!((call.step(), call.did()), (Step::Again, vec![Copied(10), Unlocked, Told(17)]));
    memory.end().theirs.cons.marks_passed.store(1, Relaxed);
    let mut call = Sends::new(&memory, &socket, 10);
    assert_eq!(call.step(), Step::Again);
    assert_eq!(call.did(), [TookBack, Left(17), Told(17), Repeated, Wrote(10)]);
    assert_eq!(marks(&memory), (2, 2));
}

#[test]
fn what_was_granted_and_cannot_be_put_is_not_sent_once_more() {
    let (memory, socket) = (in_ring(), Socket::default());
    memory.send(7);
    memory.end().put(WANT_TCP, true);
    let mut call = Sends::new(&memory, &socket, 10);
    call.can_take_back = false;
    assert_eq!(call.step(), Step::Again);
    assert_eq!(call.did(), [TookBack, Left(0), Told(7), Wrote(10)]);
}

#[test]
fn a_handler_above_a_copy_sends_over_tcp_and_the_copy_is_done_again() {
    let (memory, socket) = (in_ring(), Socket::default());
    let mut call = Sends::new(&memory, &socket, 10);
    call.is_interrupted = true;
    assert_eq!((call.step(), call.did()), (Step::Again, vec![Copied(10)]));
    assert_eq!((call.sent, memory.end().mine.prod.prod.load(Relaxed)), (0, 0));
    let mut above = Sends::new(&memory, &socket, 4);
    // The receiver was not seen in the ring: two marks are open then.
    memory.end().theirs.cons.marks_passed.store(0, Relaxed);
    assert_eq!(memory.end().send(&mut above, true, true), Ok(Step::Again));
    assert_eq!(above.did(), [Left(0), Told(0), Wrote(4)]);
    assert_eq!(marks(&memory), (2, 2));
}

#[test]
fn a_full_ring_is_waited_for_and_left_when_nobody_takes_anything() {
    let (memory, socket) = (in_ring(), Socket::default());
    memory.send(Memory::RING);
    let mut call = Sends::new(&memory, &socket, 10);
    assert_eq!((call.step(), call.did()), (Step::Wait(Until::Ring), vec![]));
    assert_eq!(memory.end().record.tx.full.load(Relaxed), 1);
    call.time += PATIENCE;
    assert_eq!(call.step(), Step::Again);
    assert_eq!(call.did()[1..3], [Left(Memory::RING), Told(Memory::RING)]);
    assert_eq!(call.sent, 10);
}

#[test]
fn who_does_not_wait_is_told_of_room_by_the_queue() {
    let (memory, socket) = (in_ring(), Socket::default());
    memory.send(Memory::RING);
    let mut call = Sends::new(&memory, &socket, 10);
    assert_eq!(memory.end().send(&mut call, false, false), Ok(Step::Wait(Until::Ring)));
    assert_eq!(memory.end().mine.ctl.tx_arm.load(Relaxed) & doorbell::ON_QUEUE, doorbell::ON_QUEUE);
}

#[test]
fn who_cannot_be_rung_does_not_wait_for_room() {
    let (memory, socket) = (in_ring(), Socket::default());
    let end = memory.end();
    end.record.id.side.store(Side::Server as u32, Relaxed);
    end.theirs.setup.state.store(Proposal::Used as u32, Relaxed);
    memory.send(Memory::RING);
    let mut call = Sends::new(&memory, &socket, 10);
    assert_eq!((call.step(), call.sent), (Step::Again, 10));
    assert_eq!(marks(&memory), (2, 2));
}

#[test]
fn a_peer_that_was_killed_is_found_at_the_second_message_of_an_acceptor_and_now_and_then() {
    for (sends, side, found) in [
        (0, Side::Server, false),
        (1, Side::Server, true),
        (1, Side::Client, false),
        (5, Side::Server, false),
        (NOW_AND_THEN - 1, Side::Client, true),
        (3 * NOW_AND_THEN - 1, Side::Server, true),
    ] {
        let (memory, socket) = (in_ring(), Socket::default());
        let end = memory.end();
        end.record.id.side.store(side as u32, Relaxed);
        end.theirs.setup.state.store(Proposal::Active as u32, Relaxed);
        end.record.tx.messages.store(sends, Relaxed);
        socket.arrive(Arrival::Fin);
        let mut call = Sends::new(&memory, &socket, 10);
        assert_eq!(call.step(), Step::Again);
        assert_eq!(call.did().contains(&Wrote(10)), found, "{sends} {side:?}");
        assert_eq!(socket.asked() > 0, found, "{sends} {side:?}");
        // Into a ring that nothing was put into, nothing more is put.
        assert_eq!(marks(&memory).0, if found { 2 } else { 1 }, "{sends} {side:?}");
    }
}

#[test]
fn bytes_that_a_killed_peer_has_not_read_reset_the_connection_once() {
    let (memory, socket) = (in_ring(), Socket::default());
    memory.send(5);
    socket.arrive(Arrival::Fin);
    memory.end().put(UNREAD, true);
    let mut call = Sends::new(&memory, &socket, 10);
    call.kernel = Kernel::Failed(Errno::PIPE);
    assert_eq!(call.step(), Step::Failed(Errno::CONNRESET));
    assert!(!memory.end().has(UNREAD) && socket.is_shut());
    assert_eq!(call.step(), Step::Failed(Errno::PIPE));
}

#[test]
fn a_full_ring_of_a_peer_that_is_gone_without_a_word_is_left_to_the_kernel() {
    let (memory, socket) = (in_ring(), Socket::default());
    memory.send(Memory::RING);
    // It has half-closed: the kernel tells nothing new.
    memory.end().theirs.prod.fin.store(1, Relaxed);
    let mut call = Sends::new(&memory, &socket, 10);
    assert_eq!(call.step(), Step::Wait(Until::Ring));
    call.is_orphaned = true;
    call.kernel = Kernel::Failed(Errno::CONNRESET);
    assert_eq!(call.step(), Step::Failed(Errno::CONNRESET));
}

#[test]
fn a_program_to_which_the_connection_was_handed_over_is_no_killed_peer() {
    let (memory, socket) = (in_ring(), Socket::default());
    memory.send(5);
    memory.end().put(UNREAD, true);
    // It has left, and its new owner has ended its direction, after this step was begun.
    socket.arrive(Arrival::Fin);
    shunt_shm::handover::leave(&memory.end().theirs.ctl.handed_over, || 1);
    let mut call = Sends::new(&memory, &socket, 10);
    assert_eq!((call.step(), call.did()), (Step::Follow, vec![]));
}

#[test]
fn who_reads_no_more_tells_its_own_end_from_that_of_a_killed_peer() {
    let (memory, socket) = (in_ring(), Socket::default());
    socket.end_reading();
    memory.end().put(UNREAD | SHUT_RD, true);
    let mut call = Sends::new(&memory, &socket, 10);
    assert_eq!((call.step(), call.did()), (Step::Again, vec![Copied(10), Unlocked, Told(10)]));
    // Also where it waits for room for good, as it has said how much may lie unread.
    memory.send(Memory::RING - 10);
    let mut call = Sends::new(&memory, &socket, 10);
    assert_eq!(call.step(), Step::Wait(Until::Ring));
    socket.arrive(Arrival::Fin);
    call.kernel = Kernel::Failed(Errno::PIPE);
    assert_eq!(call.step(), Step::Failed(Errno::PIPE));
}

#[test]
fn a_peer_that_was_killed_is_found_when_the_kernel_has_told_or_the_ring_is_full() {
    for is_full in [false, true] {
        let (memory, socket) = (in_ring(), Socket::default());
        memory.send(if is_full { Memory::RING } else { 5 });
        memory.end().put(KERNEL_HINT, !is_full);
        socket.arrive(Arrival::Fin);
        let mut call = Sends::new(&memory, &socket, 10);
        assert_eq!((call.step(), call.did()), (Step::Failed(Errno::CONNRESET), vec![]));
        // A ring in which bytes lie is not left: they would come once more.
        assert_eq!(marks(&memory), (1, 1));
    }
}

#[test]
fn a_call_that_has_sent_something_leaves_the_reset_to_the_next_one() {
    for over_tcp in [false, true] {
        let (memory, socket) = (in_ring(), Socket::default());
        memory.send(5);
        socket.arrive(Arrival::Fin);
        let end = memory.end();
        end.put(if over_tcp { SHUT_WR | RESET_DUE } else { UNREAD }, true);
        let mut call = Sends { sent: 3, ..Sends::new(&memory, &socket, 10) };
        call.kernel = Kernel::Failed(Errno::PIPE);
        assert_eq!(call.step(), Step::Failed(Errno::PIPE), "{over_tcp}");
        assert!(!end.has(RESET_TOLD), "{over_tcp}");
    }
}

#[test]
fn a_ring_that_was_left_unused_is_not_entered_again() {
    let (memory, socket) = (in_ring(), Socket::default());
    memory.end().put(UNREAD, true);
    socket.arrive(Arrival::Fin);
    let mut call = Sends::new(&memory, &socket, 10);
    assert_eq!((call.step(), marks(&memory)), (Step::Again, (2, 2)));
    assert!(memory.end().has(WANT_TCP));
}

#[test]
fn a_ring_is_not_left_before_the_receiver_is_known_to_be_in_it_but_by_a_second_mark() {
    let (memory, socket) = (in_ring(), Socket::default());
    memory.send(Memory::RING);
    let end = memory.end();
    // Two marks are open already.
    end.mine.prod.marks.store(3, Relaxed);
    end.record.tx.marks.store(3, Relaxed);
    end.theirs.cons.marks_passed.store(1, Relaxed);
    let mut call = Sends::new(&memory, &socket, 10);
    assert_eq!(call.step(), Step::Wait(Until::Ring));
    call.time += PATIENCE;
    assert_eq!((call.step(), call.did()), (Step::Wait(Until::Ring), vec![]));
}

#[test]
fn a_direction_comes_back_once_the_receiver_is_out_of_the_ring() {
    let (memory, socket) = (Memory::default(), Socket::default());
    let end = memory.end();
    end.mine.prod.marks.store(2, Relaxed);
    end.record.tx.marks.store(2, Relaxed);
    end.theirs.cons.marks_passed.store(1, Relaxed);
    let mut call = Sends::new(&memory, &socket, 10);
    assert_eq!((call.step(), call.did()), (Step::Again, vec![Wrote(10)]));
    end.theirs.cons.marks_passed.store(2, Relaxed);
    let mut call = Sends::new(&memory, &socket, 10);
    assert_eq!((call.step(), marks(&memory)), (Step::Again, (3, 3)));
}

#[test]
fn a_full_ring_is_forgotten_with_the_first_byte_that_fits() {
    let (memory, socket) = (in_ring(), Socket::default());
    memory.send(Memory::RING);
    let mut call = Sends::new(&memory, &socket, 10);
    assert_eq!(call.step(), Step::Wait(Until::Ring));
    assert_ne!(memory.end().record.tx.full_since.load(Relaxed), 0);
    memory.end().theirs.cons.cons.store(Memory::RING, Relaxed);
    assert_eq!(call.step(), Step::Again);
    assert_eq!(memory.end().record.tx.full_since.load(Relaxed), 0);
}

#[test]
fn room_that_comes_while_the_queue_is_asked_for_is_taken() {
    let (memory, socket) = (in_ring(), Socket::default());
    memory.send(Memory::RING);
    let mut call = Sends::new(&memory, &socket, 10);
    call.room_at_find = Some(2);
    assert_eq!(memory.end().send(&mut call, false, false), Ok(Step::Again));
    assert_eq!((call.sent, memory.end().record.tx.full.load(Relaxed)), (10, 0));
}

#[test]
fn the_queue_is_asked_for_before_the_last_look_for_room() {
    let (memory, socket) = (in_ring(), Socket::default());
    memory.send(Memory::RING);
    let mut call = Sends::new(&memory, &socket, 10);
    assert_eq!(memory.end().send(&mut call, false, false), Ok(Step::Wait(Until::Ring)));
    assert_eq!(call.is_queued_at_find, [false, true]);
}

#[test]
fn an_empty_file_ends_the_call() {
    for on_tcp in [false, true] {
        let (memory, socket) = (in_ring(), Socket::default());
        memory.end().put(SHUT_WR, on_tcp);
        let mut call = Sends::new(&memory, &socket, 10);
        call.is_dry = true;
        call.kernel = Kernel::Moved(0);
        assert_eq!((call.step(), call.sent), (Step::Done, 0), "{on_tcp}");
        assert_eq!(memory.end().mine.prod.prod.load(Relaxed), 0);
    }
}

#[test]
fn a_receiver_that_takes_what_was_never_sent_breaks_the_protocol() {
    let (memory, socket) = (in_ring(), Socket::default());
    memory.send(Memory::RING);
    memory.end().theirs.cons.cons.store(Memory::RING + 1, Relaxed);
    let mut call = Sends::new(&memory, &socket, 10);
    assert_eq!(memory.end().send(&mut call, false, true), Err(Violation::Consumer));
}

#[test]
fn without_a_ring_bytes_go_over_the_kernel_socket() {
    let (memory, socket) = (Memory::default(), Socket::default());
    let record = memory.end().record;
    put(record, HAD_ROOM, true);
    let mut call = Sends::new(&memory, &socket, 10);
    assert_eq!(over_kernel(record, None, &mut call), Step::Again);
    assert!(has(record, FILLS_KERNEL) && !has(record, HAD_ROOM));
    call.kernel = Kernel::Nothing;
    assert_eq!(over_kernel(record, None, &mut call), Step::Wait(Until::Both));
}

#[test]
fn no_byte_goes_over_tcp_where_another_program_may_have_gone_into_the_ring() {
    let (memory, socket) = (Memory::default(), Socket::default());
    let id = &memory.end().record.id;
    id.side.store(Side::Server as u32, Relaxed);
    for (phase, region, goes) in [
        (Phase::Candidate, 0, true),
        (Phase::Candidate, 7, false),
        (Phase::Active, 7, false),
        (Phase::Tcp, 7, true),
    ] {
        id.phase.store(phase as u32, Relaxed);
        id.region.store(region, Relaxed);
        let mut call = Sends::new(&memory, &socket, 10);
        assert_eq!(over_kernel(memory.record(), None, &mut call), Step::Again, "it looks first");
        assert_eq!(call.sent > 0, goes, "{phase:?} {region}");
    }
}

/// The peer is on another host.
#[test]
fn no_byte_goes_over_tcp_behind_a_mark_that_has_not_come_there() {
    let (memory, socket) = (in_ring(), Socket::default());
    let end = memory.end();
    end.theirs.cons.heard.store(heard(1), Relaxed);
    end.put(HOSTED | WANT_TCP, true);
    let mut call = Sends::new(&memory, &socket, 10);
    assert_eq!((call.step(), marks(&memory)), (Step::Wait(Until::Both), (2, 2)));
    assert_eq!(call.step(), Step::Wait(Until::Both));
    assert!(!call.did().contains(&Wrote(10)));
    // It has come there; or the link is gone, and the agents have settled it.
    for heard in [heard(2), 0] {
        end.theirs.cons.heard.store(heard, Relaxed);
        let mut call = Sends::new(&memory, &socket, 10);
        assert_eq!((call.step(), call.did().last()), (Step::Again, Some(&Wrote(10))));
    }
}

#[test]
fn an_end_that_the_kernel_tells_of_before_the_link_is_no_death() {
    let (memory, socket) = (in_ring(), Socket::default());
    memory.end().theirs.prod.behind.store(1, Relaxed);
    put(memory.end().record, HOSTED | KERNEL_HINT, true);
    socket.arrive(Arrival::Fin);
    let mut call = Sends::new(&memory, &socket, 10);
    assert_eq!((call.step(), call.did()), (Step::Again, vec![Copied(10), Unlocked, Told(10)]));
    socket.arrive(Arrival::Reset);
    let mut call = Sends::new(&memory, &socket, 10);
    call.step();
    assert!(!call.did().contains(&Copied(10)), "a reset counts");
}

#[test]
fn a_sender_whose_agent_is_gone_waits_for_neither_room_nor_marks() {
    for is_full in [true, false] {
        let (memory, socket) = (in_ring(), Socket::default());
        let end = memory.end();
        end.theirs.cons.heard.store(heard(1), Relaxed);
        end.put(HOSTED, true);
        if is_full {
            memory.send(Memory::RING);
        } else {
            end.put(WANT_TCP, true);
        }
        let mut call = Sends::new(&memory, &socket, 10);
        assert!(matches!(end.send(&mut call, false, true), Ok(Step::Wait(_))));
        call.is_cut_off = true;
        assert!(end.send(&mut call, false, true).is_err());
    }
}

#[test]
fn nothing_goes_into_a_ring_from_which_no_agent_takes_it() {
    for is_cut_off in [false, true] {
        let (memory, socket) = (Memory::default(), Socket::default());
        memory.activate();
        memory.end().put(HOSTED, true);
        let mut call = Sends::new(&memory, &socket, 10);
        call.is_cut_off = is_cut_off;
        assert_eq!(call.step(), Step::Again);
        assert_eq!(
            (marks(&memory).0, call.did().contains(&Wrote(10))),
            (u32::from(!is_cut_off), is_cut_off)
        );
    }
}
