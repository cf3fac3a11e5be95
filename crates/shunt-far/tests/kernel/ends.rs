//! Ends of connections, as TCP would show them.

use shunt_far::kernel::{Event, Reset};
use shunt_far::lane::Broken;
use shunt_shm::Violation;
use shunt_shm::handover;
use shunt_shm::region::{CLOSED, DEAF, RESET};
use shunt_shm::sync::Ordering;
use shunt_smc::wire::cdc::State;

use crate::{World, size};

const ABORTED: State = State { is_finished: true, is_closed: false, is_aborted: true };

fn peer_state(world: &mut World, line: usize) -> State {
    world.kernel.lines[line].connection().peer_state()
}

/// The place is free, and its ring's key withdrawn; the other connection goes on.
fn is_free(world: &mut World, slot: usize) {
    world.settle();
    let events = world.events();
    assert!(matches!(events[..], [Event::Free(name)] if name.slot == slot), "{events:?}");
    world.exchanges(0, 0);
}

#[test]
fn the_programs_direction_ends_first() {
    let mut world = World::connected(2, size(0));
    world.host.send(1, 5_000);
    world.host.finish(1);
    world.settle();
    let state = peer_state(&mut world, 1);
    assert_eq!(state, State { is_finished: true, ..State::default() });
    assert_eq!(world.kernel.take(1, u32::MAX), 5_000);
    // The other direction goes on.
    world.kernel.lines[1].given = 3_000;
    world.settle();
    assert_eq!((world.host.take(1, u64::MAX), world.host.has_end(1)), (3_000, false));
    world.kernel.lines[1].connection().close();
    world.settle();
    assert!(world.host.has_end(1));
    assert_eq!(world.host.theirs(1).ctl.closed.load(Ordering::Relaxed), CLOSED);
    world.host.close(1);
    is_free(&mut world, 1);
}

#[test]
fn the_kernels_direction_ends_first() {
    let mut world = World::connected(2, size(0));
    world.kernel.lines[1].given = 3_000;
    world.kernel.finish(1);
    world.settle();
    let theirs = world.host.theirs(1);
    let words = [&theirs.prod.fin, &theirs.ctl.closed, &theirs.prod.behind];
    assert_eq!(words.map(|word| word.load(Ordering::Relaxed)), [1, 0, 0]);
    assert!(world.host.link().mirror_mut().woken[1].bytes);
    assert_eq!(world.host.take(1, u64::MAX), 3_000);
    assert_eq!(world.host.send(1, 7_000), 7_000);
    world.host.close(1);
    world.settle();
    assert_eq!(world.kernel.take(1, u32::MAX), 7_000);
    let state = peer_state(&mut world, 1);
    assert_eq!(state, State { is_finished: true, is_closed: true, is_aborted: false });
    assert_eq!(world.events(), []);
    world.kernel.lines[1].connection().close();
    is_free(&mut world, 1);
}

/// Until all bytes before it are here, no end counts.
#[test]
fn an_end_does_not_come_before_its_bytes() {
    let mut world = World::connected(1, size(0));
    world.kernel.lines[0].given = 40_000;
    world.kernel.finish(0);
    world.settle();
    assert_eq!(world.host.theirs(0).prod.behind.load(Ordering::Relaxed), 1);
    let mut taken = 0;
    for _ in 0..10 {
        taken += world.host.take(0, u64::MAX);
        world.settle();
        assert_eq!(world.host.has_end(0), taken + world.host.readable(0) == 40_000);
    }
    assert_eq!(taken, 40_000);
}

/// A program that closes waits for nobody: its last bytes go as the kernel makes room.
#[test]
fn a_close_does_not_come_before_its_bytes() {
    let mut world = World::connected(2, size(0));
    assert_eq!(world.host.send(1, 16_000), 16_000);
    world.settle();
    assert_eq!(world.host.send(1, 16_000), 16_000);
    world.host.close(1);
    world.settle();
    assert!(!peer_state(&mut world, 1).is_finished);
    let mut taken = 0;
    for _ in 0..10 {
        taken += world.kernel.take(1, 16_000);
        world.settle();
    }
    assert_eq!(taken, 32_000);
    assert!(peer_state(&mut world, 1).is_closed);
    world.kernel.lines[1].connection().close();
    is_free(&mut world, 1);
}

#[test]
fn a_program_that_is_killed_closes() {
    let mut world = World::connected(2, size(0));
    world.host.send(1, 2_000);
    world.host.link().end(1);
    world.settle();
    assert_eq!(world.kernel.take(1, u32::MAX), 2_000);
    assert!(peer_state(&mut world, 1).is_closed);
    world.kernel.lines[1].connection().close();
    is_free(&mut world, 1);
}

/// As TCP resets a connection then.
#[test]
fn a_program_that_is_killed_with_bytes_unread_aborts() {
    let mut world = World::connected(2, size(0));
    world.kernel.lines[1].given = 100;
    world.settle();
    world.host.link().end(1);
    world.settle();
    assert_eq!(peer_state(&mut world, 1), ABORTED);
    world.kernel.lines[1].connection().close();
    is_free(&mut world, 1);
}

/// What was not sent before it is not sent.
#[test]
fn a_program_resets() {
    let mut world = World::connected(2, size(0));
    (0..2).for_each(|_| {
        world.host.send(1, 16_000);
        world.settle();
    });
    world.host.close_as(1, RESET);
    world.settle();
    assert_eq!(peer_state(&mut world, 1), ABORTED);
    assert_eq!(world.resets(), [(1, Reset::Program)]);
    // The kernel's program closes: it tells of an abort as well.
    world.kernel.lines[1].connection().close();
    is_free(&mut world, 1);
}

#[test]
fn the_kernel_aborts() {
    let mut world = World::connected(2, size(0));
    world.kernel.lines[1].given = 600;
    world.host.send(1, 100);
    world.settle();
    world.sleep();
    // With bytes unread.
    world.kernel.lines[1].connection().close();
    world.settle();
    assert_eq!(world.resets(), [(1, Reset::Aborted)]);
    assert!(world.host.is_reset(1));
    let woken = world.host.link().mirror_mut().woken[1];
    assert!(woken.bytes && woken.room);
    // What came before it is read first, as over TCP.
    assert_eq!(world.host.take(1, u64::MAX), 600);
    assert_eq!(world.events(), []);
    world.host.close(1);
    is_free(&mut world, 1);
}

/// TCP answers these with a reset.
#[test]
fn bytes_to_a_program_that_has_closed_reset() {
    let mut world = World::connected(2, size(0));
    world.kernel.lines[1].connection().close();
    world.settle();
    assert!(world.host.has_end(1) && !world.host.is_reset(1));
    world.host.send(1, 10);
    world.settle();
    assert_eq!(world.resets(), [(1, Reset::PeerClosed)]);
    assert!(world.host.is_reset(1));
    world.host.close(1);
    is_free(&mut world, 1);
}

/// Both directions are shut: what has come may be read, and more is answered with a reset.
#[test]
fn bytes_to_a_program_that_has_shut_both_directions_reset() {
    let mut world = World::connected(2, size(0));
    world.kernel.lines[1].given = 50;
    world.settle();
    let mine = world.host.mine(1);
    mine.prod.fin.store(1, Ordering::Release);
    mine.ctl.closed.store(DEAF, Ordering::Release);
    world.host.tell(1);
    world.settle();
    assert_eq!(peer_state(&mut world, 1), State { is_finished: true, ..State::default() });
    assert_eq!(world.host.take(1, u64::MAX), 50);
    world.kernel.lines[1].given += 1;
    world.settle();
    assert_eq!(world.resets(), [(1, Reset::Deaf)]);
    assert_eq!(peer_state(&mut world, 1), ABORTED);
}

/// It would go on over TCP. No byte behind its switch point may: the program hears that it is not seen.
#[test]
fn a_program_that_leaves_the_ring_is_reset() {
    let leave: [fn(&World); 2] = [
        |world| world.host.set_mark(1),
        |world| {
            handover::leave(&world.host.mine(1).ctl.handed_over, || 1);
            world.host.tell(1);
        },
    ];
    for leave in leave {
        let mut world = World::connected(2, size(0));
        world.settle();
        // Also where the kernel has no room for what is before it.
        (0..2).for_each(|_| {
            world.host.send(1, 16_000);
            world.settle();
        });
        leave(&world);
        world.settle();
        assert_eq!(world.resets(), [(1, Reset::Leaves)]);
        assert!(world.host.is_reset(1));
        assert_eq!(world.host.theirs(1).cons.heard.load(Ordering::Relaxed), 1 << 32 | 1);
        assert_eq!(peer_state(&mut world, 1), ABORTED);
        // What the kernel says then is not told: the program's checks would find nothing.
        world.kernel.lines[1].given = 10;
        world.settle();
        assert_eq!(world.host.theirs(1).cons.cons.load(Ordering::Relaxed), u64::MAX);
        world.host.close(1);
        world.kernel.lines[1].connection().close();
        is_free(&mut world, 1);
    }
}

/// The mark that leads into the ring is seen and passed, as by a far program.
#[test]
fn a_program_enters_the_ring() {
    let mut world = World::connected(1, size(0));
    world.settle();
    let theirs = world.host.theirs(0);
    assert_eq!(theirs.cons.heard.load(Ordering::Relaxed), 1 << 32 | 1);
    assert_eq!(theirs.cons.marks_passed.load(Ordering::Relaxed), 1);
    assert_eq!(theirs.prod.behind.load(Ordering::Relaxed), 1);
}

/// Its descriptors are gone without a word.
#[test]
fn a_program_that_lets_go_closes() {
    let mut world = World::connected(2, size(0));
    world.host.send(1, 400);
    world.host.mine(1).setup.done.store(1, Ordering::Release);
    world.host.tell(1);
    world.settle();
    assert_eq!(world.kernel.take(1, u32::MAX), 400);
    assert!(peer_state(&mut world, 1).is_closed);
    world.kernel.lines[1].connection().close();
    is_free(&mut world, 1);
}

/// Its memory is not kept any longer than the kernel may write there.
#[test]
fn a_ring_is_let_go_of_before_its_program_lets_go() {
    let mut world = World::connected(2, size(0));
    world.settle();
    let one = world.host.link().registered() / 2;
    world.host.mine(1).prod.fin.store(1, Ordering::Release);
    world.host.mine(1).ctl.closed.store(CLOSED, Ordering::Release);
    world.host.tell(1);
    world.kernel.lines[1].connection().close();
    world.settle();
    assert_eq!((world.host.link().registered(), world.host.link().connections()), (one, 2));
    world.host.close(1);
    is_free(&mut world, 1);
}

#[test]
fn a_program_that_writes_what_cannot_be_breaks_its_own_connection() {
    type Case = (fn(&World), Violation);
    let cases: [Case; 3] = [
        (
            |world| world.host.mine(1).prod.prod.store(1 << 20, Ordering::Release),
            Violation::Producer,
        ),
        (|world| world.host.mine(1).cons.cons.store(1, Ordering::Release), Violation::Consumer),
        (
            |world| world.host.mine(1).cons.marks_passed.store(2, Ordering::Release),
            Violation::Marks,
        ),
    ];
    for (with, violation) in cases {
        let mut world = World::connected(2, size(0));
        world.settle();
        with(&world);
        world.host.tell(1);
        world.settle();
        assert_eq!(world.resets(), [(1, Reset::Broken(Broken(violation)))]);
        assert_eq!(peer_state(&mut world, 1), ABORTED);
        assert!(world.host.is_reset(1));
        world.host.close(1);
        world.kernel.lines[1].connection().close();
        is_free(&mut world, 1);
    }
}
