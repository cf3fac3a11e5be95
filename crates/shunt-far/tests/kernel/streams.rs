//! Bytes of many connections, and both ends of each.

use shunt_far::kernel::{Event, Settings};
use shunt_smc::wire::RmbSize;
use shunt_verbs::fake::{Faults, Random};

use crate::{SLOTS, World, size};

/// Moves so many bytes each way on all connections, in pieces.
fn stream(world: &mut World, random: &mut Random, bytes: u64) {
    let lines: Vec<usize> = (0..SLOTS).collect();
    let is_done = |world: &World| {
        lines.iter().all(|at| {
            world.kernel.lines[*at].read == bytes && world.host.programs[*at].read == bytes
        })
    };
    for round in 0.. {
        if is_done(world) {
            return;
        }
        assert!(round < 20_000, "it stands still");
        for at in &lines {
            let left = usize::try_from(bytes - world.host.sent(*at)).unwrap();
            world.host.send(*at, left.min(random.below(9_000)));
            let given = &mut world.kernel.lines[*at].given;
            *given += (bytes - *given).min(random.below(9_000) as u64);
            world.host.take(*at, random.below(12_000) as u64);
            world.kernel.take(*at, random.below(12_000) as u32);
        }
        if round % 2 == 0 {
            world.host.turn();
        }
        world.kernel.turn();
        world.network.settle(random.below(400));
    }
}

/// A link group's whole life: the first contact, later connections, all bytes, ends.
fn whole_life(ring: RmbSize, kernels: &[RmbSize], bytes: u64, faults: Faults, settings: Settings) {
    let mut world = World::with(u64::from(ring.bytes()), faults, ring, settings);
    for slot in 0..SLOTS {
        world.connect(slot, kernels[slot % kernels.len()]);
    }
    assert_eq!(world.host.link().connections(), SLOTS);
    assert_eq!(world.host.link().registered(), SLOTS * 2 * ring.bytes() as usize);
    stream(&mut world, &mut Random::new(7), bytes);
    for slot in 0..SLOTS {
        world.host.finish(slot);
        world.kernel.finish(slot);
    }
    world.settle();
    for slot in 0..SLOTS {
        assert!(world.host.has_end(slot) && !world.host.is_reset(slot));
        let state = world.kernel.lines[slot].connection().peer_state();
        assert!(state.is_finished && !state.is_closed && !state.is_aborted);
        world.host.close(slot);
        world.kernel.lines[slot].connection().close();
    }
    world.settle();
    let free = world.events();
    assert!(free.iter().all(|event| matches!(event, Event::Free(_))), "{free:?}");
    assert_eq!((free.len(), world.host.link().connections()), (SLOTS, 0));
    assert!(world.kernel.lines.iter_mut().all(|line| line.connection().is_over()));
    assert!(world.kernel.known().is_empty());
    assert_eq!(world.kernel.withdrawn().len(), SLOTS, "that of the first contact as well");
    assert_eq!(world.host.link().registered(), 0);
    assert_eq!(world.host.link().cause(), None);
}

#[test]
fn small_rings_wrap_around() {
    whole_life(size(0), &[size(0), size(1)], 400_000, Faults::NONE, Settings::default());
}

#[test]
fn rings_of_all_lengths_go_together() {
    let kernels = [size(0), size(2), size(4), size(6)];
    whole_life(size(4), &kernels, 1_500_000, Faults::NONE, Settings::default());
}

/// Else a program waits for room that its kernel does not tell of before it has read more than the program's ring holds.
#[test]
fn a_kernel_with_a_long_ring_does_not_stop_a_program() {
    let mut world = World::connected(0, size(0));
    let line = world.connect(0, size(4));
    let (mut sent, bytes) = (0, 10 * 16_384);
    for _ in 0..100 {
        sent += world.host.send(0, bytes - sent);
        world.settle();
    }
    assert_eq!(sent, bytes);
    assert_eq!(world.kernel.lines[line].connection().readable() as usize, bytes);
}

/// The device says now and then that the kernel has no receive request, and tries again.
#[test]
fn receivers_that_are_not_ready_are_asked_again() {
    let faults = Faults { not_ready: 3_000, ..Faults::NONE };
    whole_life(size(0), &[size(0)], 100_000, faults, Settings::default());
}

/// The queue pair takes no more than it has room for: it would refuse, and the link be given up.
#[test]
fn few_messages_on_their_way_are_enough() {
    let settings = Settings { sends: 1, burst: 3_000, ..Settings::default() };
    whole_life(size(0), &[size(0), size(1)], 60_000, Faults::NONE, settings);
}

#[test]
fn a_place_is_used_again() {
    let mut world = World::connected(2, size(0));
    for _ in 0..5 {
        let line = world.kernel.lines.len() - 1;
        world.exchanges(1, line);
        world.host.close(1);
        world.kernel.lines[line].connection().close();
        world.settle();
        assert!(matches!(world.events()[..], [Event::Free(name)] if name.slot == 1));
        let line = world.connect(1, size(1));
        world.exchanges(1, line);
        world.exchanges(0, 0);
    }
}

/// A connection that has much to say does not hold up the others.
#[test]
fn connections_take_turns() {
    let settings = Settings { sends: 2, burst: 1_000, ..Settings::default() };
    let mut world = World::with(1, Faults::NONE, size(0), settings);
    let lines: Vec<_> = (0..3).map(|slot| world.connect(slot, size(0))).collect();
    world.settle();
    (0..3).for_each(|slot| assert_eq!(world.host.send(slot, 16_000), 16_000));
    for round in 1..=5 {
        // Two messages on their way each time.
        (0..3).for_each(|_| {
            world.host.turn();
            world.network.settle(10_000);
            world.kernel.turn();
        });
        let read: Vec<_> =
            lines.iter().map(|line| world.kernel.lines[*line].connection().readable()).collect();
        let (least, most) = (read.iter().min().unwrap(), read.iter().max().unwrap());
        assert!(most - least <= 1_000, "{round}: {read:?}");
    }
}

/// What the server sends before the handshake is known to be ready is there afterwards.
#[test]
fn bytes_wait_until_both_ends_have_agreed() {
    let mut world = World::connected(1, size(0));
    let (line, opened) = world.open(1, size(0));
    world.settle();
    world.events();
    world.kernel.confirm(line, &opened.unwrap());
    world.kernel.lines[line].given = 500;
    world.host.enter(1);
    assert_eq!(world.host.send(1, 700), 700);
    world.settle();
    assert_eq!((world.host.readable(1), world.kernel.lines[line].connection().readable()), (0, 0));
    assert!(world.host.link().attach(1, crate::OVER_TCP));
    world.settle();
    assert_eq!(world.host.readable(1), 500);
    world.exchanges(1, line);
}
