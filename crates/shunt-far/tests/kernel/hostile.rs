//! A kernel that breaks rules: it can choose the bytes of its streams, and nothing else.

use shunt_far::Cause;
use shunt_far::kernel::{Event, Reset};
use shunt_shm::sync::Ordering;
use shunt_smc::connection::Violation;
use shunt_smc::link;
use shunt_smc::wire::Malformed;
use shunt_smc::wire::cdc::{Cdc, Cursor, Producer, State};
use shunt_smc::wire::llc::{Llc, TestLink};

use crate::host::OVER_TCP;
use crate::{World, size};

/// The message that the kernel would send next about a connection, of 100 bytes more.
fn next(world: &mut World, line: usize) -> Cdc {
    world.kernel.breaks = true;
    world.kernel.lines[line].given += 100;
    let bytes = {
        let line = &mut world.kernel.lines[line];
        line.connection().produce(100).unwrap();
        line.placed += 100;
        line.connection().message().unwrap()
    };
    Cdc::parse(&bytes).unwrap()
}

fn say(world: &mut World, message: &Cdc) {
    world.kernel.send(&message.bytes());
    world.settle();
}

fn cursor(count: u32) -> Cursor {
    Cursor { wraps: 0, count }
}

/// That connection is reset, and its place free without a word of the kernel's; the others go on.
#[test]
fn what_cannot_be_ends_its_connection() {
    type Case = (fn(Cdc) -> Cdc, Violation);
    let cases: [Case; 4] = [
        (|message| Cdc { produced: Cursor { wraps: 1, count: 1 }, ..message }, Violation::Produced),
        (|message| Cdc { produced: cursor(1 << 14), ..message }, Violation::Produced),
        (|message| Cdc { consumed: cursor(1), ..message }, Violation::Consumed),
        (
            |message| {
                let producer = Producer { is_failover: true, ..Producer::default() };
                Cdc { producer, ..message }
            },
            Violation::Failover,
        ),
    ];
    for (with, violation) in cases {
        let mut world = World::connected(2, size(0));
        world.settle();
        let message = with(next(&mut world, 1));
        say(&mut world, &message);
        assert_eq!(world.resets(), [(1, Reset::Violation(violation))]);
        assert_eq!(world.host.theirs(1).prod.prod.load(Ordering::Relaxed), 0);
        assert!(world.host.is_reset(1));
        assert!(world.kernel.lines[1].connection().peer_state().is_aborted);
        assert_eq!(world.kernel.withdrawn().len(), 1);
        world.host.close(1);
        world.settle();
        assert!(matches!(world.events()[..], [Event::Free(name)] if name.slot == 1));
        world.exchanges(0, 0);
    }
}

#[test]
fn bytes_behind_an_end_are_not_believed() {
    let mut world = World::connected(2, size(0));
    world.settle();
    let state = State { is_finished: true, ..State::default() };
    let message = Cdc { state, ..next(&mut world, 1) };
    say(&mut world, &message);
    assert_eq!(world.resets(), []);
    let message = next(&mut world, 1);
    say(&mut world, &message);
    assert_eq!(world.resets(), [(1, Reset::Violation(Violation::Finished))]);
    assert_eq!(world.host.theirs(1).prod.prod.load(Ordering::Relaxed), 100);
}

/// Also where it was broken before the program had come to the ring.
#[test]
fn what_cannot_be_before_both_ends_have_agreed_ends_its_connection() {
    let mut world = World::connected(1, size(0));
    let (line, opened) = world.open(1, size(0));
    world.settle();
    world.kernel.confirm(line, &opened.unwrap());
    let message = Cdc { consumed: cursor(1), ..next(&mut world, line) };
    say(&mut world, &message);
    assert_eq!(world.resets(), []);
    assert!(!world.host.link().attach(1, OVER_TCP));
    world.settle();
    assert_eq!(world.resets(), [(1, Reset::Violation(Violation::Consumed))]);
    world.host.close(1);
    world.settle();
    assert!(matches!(world.events()[..], [Event::Free(_)]));
    world.exchanges(0, 0);
}

/// Bytes wait for room in its ring, which it says it has closed, and read to the end.
#[test]
fn a_kernel_that_closes_a_full_ring_keeps_no_place() {
    let mut world = World::connected(2, size(0));
    (0..2).for_each(|_| {
        world.host.send(1, 16_384);
        world.settle();
    });
    let state = State { is_closed: true, ..State::default() };
    let message = Cdc { state, ..next(&mut world, 1) };
    say(&mut world, &message);
    assert_eq!(world.resets(), [(1, Reset::PeerClosed)]);
    world.host.close(1);
    world.settle();
    assert!(matches!(world.events()[..], [Event::Free(_)]));
}

/// The ring has no word for it: the program would take it for one of the stream.
#[test]
fn an_urgent_byte_resets() {
    let mut world = World::connected(2, size(0));
    assert!(world.kernel.lines[1].connection().mark_urgent(1));
    world.kernel.lines[1].given = 1;
    world.settle();
    assert_eq!(world.resets(), [(1, Reset::Urgent)]);
    world.exchanges(0, 0);
}

#[test]
fn a_ring_that_is_withdrawn_in_use_resets() {
    let mut world = World::connected(2, size(0));
    world.settle();
    world.kernel.forget(1);
    world.settle();
    assert_eq!(world.resets(), [(1, Reset::Forgotten)]);
    world.exchanges(0, 0);
}

/// Between the agreement and the word to the worker.
#[test]
fn a_ring_that_is_withdrawn_before_both_ends_have_agreed_resets() {
    let mut world = World::connected(1, size(0));
    let (line, opened) = world.open(1, size(0));
    world.settle();
    world.kernel.confirm(line, &opened.unwrap());
    world.kernel.forget(line);
    world.settle();
    assert_eq!(world.resets(), []);
    assert!(!world.host.link().attach(1, OVER_TCP));
    world.settle();
    assert_eq!(world.resets(), [(1, Reset::Forgotten)]);
}

/// A kernel forgets the ring of a connection that is over: nothing is reset.
#[test]
fn a_ring_that_is_withdrawn_behind_the_end_resets_nothing() {
    let mut world = World::connected(2, size(0));
    world.host.finish(1);
    world.kernel.lines[1].connection().close();
    world.settle();
    world.host.mine(1).ctl.closed.store(1, Ordering::Release);
    world.host.tell(1);
    world.settle();
    world.kernel.forget(1);
    world.settle();
    assert_eq!(world.resets(), []);
}

#[test]
fn a_message_about_no_connection_is_left_alone() {
    let mut world = World::connected(2, size(0));
    world.settle();
    let message = next(&mut world, 1);
    for token in [0, message.token ^ 1, message.token ^ 0x100, u32::MAX] {
        say(&mut world, &Cdc { token, ..message });
    }
    assert_eq!(world.events(), []);
    assert_eq!(world.host.theirs(1).prod.prod.load(Ordering::Relaxed), 0);
    world.exchanges(0, 0);
}

#[test]
fn what_is_no_message_ends_the_link() {
    let short: [&[u8]; 2] = [&[0xfe, 44, 0, 1], &[0xfe; 44]];
    for bytes in short {
        let mut world = World::connected(2, size(0));
        world.kernel.send(bytes);
        world.settle();
        let cause = Cause::Smc(link::Cause::Malformed(Malformed::Length));
        let why = Reset::Link(cause);
        assert_eq!(world.resets(), [(0, why), (1, why)]);
        assert_eq!(world.host.link().cause(), Some(cause));
    }
}

/// It is told so before the queue pair fails.
#[test]
fn a_broken_rule_of_the_link_ends_it() {
    let mut world = World::connected(2, size(0));
    // TEST LINK of another length.
    world.kernel.send(&[0x07, 43, 0, 0, 0, 0]);
    world.settle();
    let cause = world.host.link().cause().unwrap();
    assert!(matches!(cause, Cause::Smc(link::Cause::Malformed(_))), "{cause:?}");
    assert_eq!(world.host.events.last(), Some(&Event::Down(cause)));
    assert!(matches!(world.kernel.llc.heard.last(), Some(Llc::DeleteLink(_))));
}

/// What it asks is answered as far as it takes answers, and no further.
#[test]
fn a_kernel_that_asks_without_end_ends_the_link() {
    let mut world = World::connected(2, size(0));
    world.settle();
    world.kernel.is_deaf = true;
    for asked in 0..200 {
        let test = TestLink { is_answer: false, data: [7; 16] };
        world.kernel.say(Llc::TestLink(test));
        world.kernel.turn();
        world.network.settle(200);
        world.host.turn();
        let cause = world.host.link().cause();
        // As many as it has requests, as this end has messages on their way, and as wait for these.
        assert_eq!(cause.is_some(), asked >= 48 + 16 + 64, "{asked}: {cause:?}");
    }
    assert_eq!(world.host.link().cause(), Some(Cause::Smc(link::Cause::Flooded)));
}

/// The kernel's card writes into a ring that was withdrawn, or never was: the device fails the queue pair.
#[test]
fn a_write_that_misses_ends_the_link() {
    let mut world = World::connected(2, size(0));
    let (line, opened) = world.open(2, size(0));
    world.settle();
    let now = world.host.now;
    world.host.link().abandon(2, now);
    world.settle();
    assert_eq!(world.kernel.withdrawn().len(), 1);
    world.kernel.confirm(line, &opened.unwrap());
    world.kernel.lines[line].given = 100;
    world.settle();
    assert!(matches!(world.host.link().cause(), Some(Cause::Request(_))));
    assert!(world.host.is_on_tcp(2));
}
