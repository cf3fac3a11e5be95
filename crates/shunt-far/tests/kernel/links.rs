//! Links: how they are made, shared and ended.

use std::time::Duration;

use shunt_far::kernel::{Event, Name, NotOpened, Reset, Settings};
use shunt_far::{Cause, KernelLink};
use shunt_shm::sync::Ordering;
use shunt_smc::handshake::PATIENCE;
use shunt_smc::link;
use shunt_smc::wire::clc::Diagnosis;
use shunt_smc::wire::llc::{DeleteLink, Llc, Reason, TestLink};
use shunt_verbs::Refused;
use shunt_verbs::fake::Faults;
use shunt_verbs::port::Port;
use shunt_verbs::value::{Failure, Loss, PacketNumber, RemoteKey};

use crate::host::{OVER_TCP, SimMirror};
use crate::{SLOTS, World, size};

/// All connections are reset, of which their programs are told, and places are free when these have let go.
fn all_are_reset(world: &mut World, connections: usize, cause: Cause) {
    let events = world.events();
    let why = Reset::Link(cause);
    let resets = |event: &&Event| matches!(event, Event::Reset { why: it, .. } if *it == why);
    assert_eq!(events.iter().filter(resets).count(), connections, "{events:?}");
    assert_eq!(events.last(), Some(&Event::Down(cause)));
    assert_eq!(world.host.link().registered(), 0);
    for slot in 0..connections {
        assert!(world.host.is_reset(slot));
        let woken = world.host.link().mirror_mut().woken[slot];
        assert!(woken.bytes && woken.room);
        world.host.close(slot);
    }
    world.host.turn();
    let free = world.events();
    assert!(free.iter().all(|event| matches!(event, Event::Free(_))));
    assert_eq!((free.len(), world.host.link().connections()), (connections, 0));
    assert_eq!(world.host.link().deadline(), None);
}

/// Bytes are on their way in both directions.
fn in_mid_stream(connections: usize) -> World {
    let mut world = World::connected(connections, size(0));
    world.settle();
    for slot in 0..connections {
        world.host.send(slot, 9_000);
        world.kernel.lines[slot].given += 9_000;
    }
    world.host.turn();
    world.kernel.turn();
    world.network.settle(20);
    world
}

#[test]
fn the_server_ends_the_link() {
    for is_all in [true, false] {
        let mut world = World::connected(3, size(0));
        world.settle();
        world.sleep();
        world.kernel.say(Llc::DeleteLink(DeleteLink {
            is_answer: false,
            is_all,
            is_orderly: true,
            link: 1,
            reason: Reason::PROGRAM,
        }));
        world.settle();
        let asked = |message: &Llc| matches!(message, Llc::DeleteLink(it) if it.is_answer);
        // Linux waits for no answer where all ends.
        assert_eq!(world.kernel.llc.heard.iter().any(asked), !is_all);
        all_are_reset(&mut world, 3, Cause::Smc(link::Cause::Deleted(Reason::PROGRAM)));
        // The queue pair takes nothing any more.
        assert_eq!(world.kernel.failure, None);
        world.kernel.lines[0].given = 100;
        world.settle();
        assert_eq!(world.kernel.failure, Some(Failure::Retries));
    }
}

#[test]
fn the_queue_pair_fails_in_mid_stream() {
    let mut world = in_mid_stream(3);
    let pair = world.host.link().described().number;
    world.network.break_pair(pair);
    world.settle();
    let cause = world.host.link().cause().unwrap();
    assert!(matches!(cause, Cause::Request(_)), "{cause:?}");
    all_are_reset(&mut world, 3, cause);
    // And where the device tells of it by an event.
    let mut world = in_mid_stream(2);
    let (pair, now) = (world.host.link().described().number, world.host.now);
    world.host.worker.fail(pair, now);
    world.host.turn();
    all_are_reset(&mut world, 2, Cause::Pair);
}

#[test]
fn the_kernels_host_is_gone() {
    let mut world = in_mid_stream(2);
    world.network.set_cut(true);
    world.host.send(0, 100);
    world.settle();
    let cause = world.host.link().cause().unwrap();
    all_are_reset(&mut world, 2, cause);
}

#[test]
fn the_device_is_lost() {
    let mut world = in_mid_stream(3);
    let cause = Cause::Lost(Loss::Removed);
    world.host.worker.let_go(cause);
    assert_eq!(world.host.port.objects(), 0);
    world.host.turn();
    all_are_reset(&mut world, 3, cause);
}

#[test]
fn a_quiet_server_is_asked_and_a_silent_one_given_up() {
    let mut world = World::connected(2, size(0));
    world.settle();
    let quiet = Settings::default().patience.quiet;
    let asked = |world: &World| {
        let is_test = |it: &&Llc| matches!(it, Llc::TestLink(TestLink { is_answer: false, .. }));
        world.kernel.llc.heard.iter().filter(is_test).count()
    };
    for times in 1..=3 {
        world.host.now = world.host.link().deadline().unwrap();
        world.settle();
        assert_eq!((asked(&world), world.host.link().cause()), (times, None));
    }
    world.kernel.is_silent = true;
    world.host.now += quiet;
    world.settle();
    assert_eq!((asked(&world), world.host.link().cause()), (4, None));
    world.host.now += Settings::default().patience.answer;
    world.settle();
    all_are_reset(&mut world, 2, Cause::Smc(link::Cause::Silent));
}

/// Also what is said of connections shows that a kernel lives.
#[test]
fn a_kernel_that_talks_is_not_asked() {
    let mut world = World::connected(1, size(0));
    world.settle();
    let quiet = Settings::default().patience.quiet;
    world.host.now += quiet / 2;
    world.kernel.lines[0].given = 10;
    world.settle();
    let until = world.host.now + quiet;
    assert_eq!(world.host.link().deadline(), Some(until));
    assert_eq!(world.host.worker.deadline(), Some(until));
}

/// The device tells of nothing any more. A last message is not waited for without end.
#[test]
fn a_device_that_tells_nothing_is_given_up() {
    let mut world = World::connected(2, size(0));
    world.settle();
    let pair = world.host.link().described().number;
    world.network.withhold(pair);
    let patience = Settings::default().patience;
    world.host.now += patience.quiet;
    world.settle();
    world.host.now += patience.answer;
    world.settle();
    assert_eq!(world.host.link().cause(), Some(Cause::Smc(link::Cause::Silent)));
    let resets = world.resets();
    assert_eq!(resets.len(), 2);
    world.host.now += patience.answer;
    world.settle();
    let cause = Cause::Smc(link::Cause::Silent);
    assert_eq!(world.events(), [Event::Down(cause)]);
    assert_eq!(world.host.link().deadline(), None);
}

#[test]
fn a_link_without_connections_is_left() {
    let mut world = World::connected(1, size(0));
    world.host.close(0);
    world.kernel.lines[0].connection().close();
    world.settle();
    let now = world.host.now;
    world.host.link().part(now);
    world.settle();
    let left = Event::Down(Cause::Smc(link::Cause::Left));
    assert_eq!(world.events().last(), Some(&left));
    let pair = world.host.link().described().number;
    let link = world.host.worker.remove_kernel(crate::host::NAME).unwrap();
    assert_eq!(link.described().number, pair);
    drop(link);
    // The queue has room again.
    let settings = Settings::default();
    let (port, first) = (world.host.port.clone(), PacketNumber::new(1));
    let mirror = SimMirror::new(1 << 14, 1);
    world.host.worker.add_kernel(crate::host::NAME, &port, mirror, settings, first).unwrap();
}

#[test]
fn a_connection_is_declined_behind_the_announcement_of_its_ring() {
    let mut world = World::connected(2, size(0));
    let (_, opened) = world.open(2, size(0));
    let key = opened.unwrap().rmb.key;
    world.settle();
    assert_eq!(world.kernel.known().len(), 2);
    world.events();
    let now = world.host.now;
    let before = world.host.link().registered();
    world.host.link().abandon(2, now);
    // At once, and the program is on TCP.
    assert_eq!(world.host.link().registered(), before / 3 * 2);
    assert!(world.host.is_on_tcp(2));
    assert!(!world.host.link().attach(2, OVER_TCP));
    world.settle();
    assert_eq!((world.kernel.known().len(), world.kernel.withdrawn()), (1, vec![key]));
    assert_eq!(world.events(), []);
    let line = world.connect(2, size(1));
    world.exchanges(2, line);
    // One that is attached is not abandoned.
    world.host.link().abandon(2, now);
    world.exchanges(2, line);
}

/// Its ring the kernel knows by the confirm. The link stays.
#[test]
fn the_connection_of_a_first_contact_is_abandoned() {
    for is_confirmed in [true, false] {
        let mut world = World::new(1, Faults::NONE, size(0));
        let (line, opened) = world.open(0, size(0));
        let end = opened.unwrap();
        if is_confirmed {
            world.kernel.confirm(line, &end);
            world.settle();
        }
        let now = world.host.now;
        world.host.link().abandon(0, now);
        // It is no ring of a connection that ends.
        world.kernel.breaks = true;
        world.kernel.lines[line].connection = None;
        world.settle();
        let withdrawn = if is_confirmed { vec![end.rmb.key] } else { vec![] };
        assert_eq!(world.kernel.withdrawn(), withdrawn);
        assert!(world.host.is_on_tcp(0));
        assert_eq!(world.host.link().is_active(), is_confirmed);
        assert_eq!((world.host.link().registered(), world.host.link().cause()), (0, None));
    }
}

#[test]
fn a_ring_that_is_refused_is_told_of() {
    let mut world = World::connected(1, size(0));
    world.kernel.refuses = true;
    let (_, opened) = world.open(1, size(0));
    let of = Name { slot: 1, token: opened.unwrap().token };
    world.settle();
    assert_eq!(world.events(), [Event::Announced { of, is_taken: false }]);
}

/// The answer to an earlier use of the place is told apart by the token.
#[test]
fn each_use_of_a_place_has_a_name_of_its_own() {
    let mut world = World::connected(1, size(0));
    let mut tokens: Vec<_> = (0..3)
        .map(|_| {
            let (_, opened) = world.open(1, size(0));
            let now = world.host.now;
            world.host.link().abandon(1, now);
            opened.unwrap().token
        })
        .collect();
    assert!(tokens.iter().all(|token| token % 256 == 1));
    tokens.dedup();
    assert_eq!(tokens.len(), 3);
}

#[test]
fn only_what_was_agreed_on_is_opened() {
    let mut world = World::connected(1, size(0));
    let line = world.kernel.prepare(size(0));
    world.settle();
    let accept = world.kernel.accept(line);
    let (now, port, rings) = (world.host.now, world.host.port.clone(), world.host.rings(1));
    let link = world.host.link();
    assert!(link.is_that_of(&accept) && link.is_active());
    let diagnosis = |opened: Result<_, NotOpened>| opened.map(|_| ()).unwrap_err().diagnosis();
    let mut other = accept;
    other.end.pair.0 += 1;
    assert!(!link.is_that_of(&other));
    let opened = link.open(&port, 1, &rings, &other, now);
    assert_eq!(diagnosis(opened), Diagnosis::OUT_OF_STEP);
    let mut other = accept;
    other.first_contact = Some(crate::scripted::contact());
    let opened = link.open(&port, 1, &rings, &other, now);
    assert_eq!(diagnosis(opened), Diagnosis::OUT_OF_STEP);
    assert!(matches!(link.connect(crate::scripted::host(2), &other, now), Err(Refused::State)));
    let mut other = accept;
    other.end.rmb.key = RemoteKey(12_345);
    assert_eq!(diagnosis(link.open(&port, 1, &rings, &other, now)), Diagnosis::KEY);
    let opened = link.open(&port, 0, &rings, &accept, now);
    assert!(matches!(opened, Err(NotOpened::Place)));
    let opened = link.open(&port, SLOTS, &rings, &accept, now);
    assert!(matches!(opened, Err(NotOpened::Place)));
    let mut short = rings.clone();
    short.incoming.end -= 1;
    assert!(matches!(link.open(&port, 1, &short, &accept, now), Err(NotOpened::Place)));
    assert_eq!(link.connections(), 1);
    link.open(&port, 1, &rings, &accept, now).unwrap();
}

#[test]
fn a_link_has_no_more_connections_than_were_agreed_upon() {
    let mut world = World::new(1, Faults::NONE, size(0));
    world.kernel.most_connections = 2;
    (0..2).for_each(|slot| assert_eq!(world.connect(slot, size(0)), slot));
    assert!(matches!(world.open(2, size(0)).1, Err(NotOpened::Many)));
}

#[test]
fn memory_that_is_refused_declines() {
    let mut world = World::connected(0, size(0));
    let full = world.network.host_with_limit(100);
    let line = world.kernel.prepare(size(0));
    let accept = world.kernel.accept(line);
    let (now, rings) = (world.host.now, world.host.rings(0));
    let host = crate::scripted::host(2);
    world.host.link().connect(host, &accept, now).unwrap();
    let opened = world.host.link().open(&full, 0, &rings, &accept, now);
    assert_eq!(opened.unwrap_err().diagnosis(), Diagnosis::REGISTRATION);
}

#[test]
fn rings_have_a_length_of_smcs() {
    let world = World::connected(0, size(0));
    let port = world.network.host();
    let queue = port.queue(200, &port.channel().unwrap(), 0, 0).unwrap();
    let with = |ring, slots, settings| {
        let mirror = SimMirror::new(ring, slots);
        KernelLink::new(&port, &queue, mirror, settings, PacketNumber::new(1)).map(|_| ())
    };
    let settings = Settings::default();
    assert!(with(1 << 18, 32, settings).is_ok());
    for ring in [1 << 13, 20_000, 1 << 30] {
        assert!(matches!(with(ring, 1, settings), Err(Refused::Invalid("length of rings"))));
    }
    assert!(with(1 << 14, 257, settings).is_err());
    assert!(with(1 << 14, 1, Settings { sends: 0, ..settings }).is_err());
    assert!(with(1 << 14, 1, Settings { receives: 0, ..settings }).is_err());
}

/// Between the agreement and the word to the worker: nothing is on TCP any more.
#[test]
fn a_connection_that_is_attached_to_a_link_that_has_ended_is_reset() {
    let mut world = World::connected(1, size(0));
    let (_, opened) = world.open(1, size(0));
    let of = Name { slot: 1, token: opened.unwrap().token };
    world.settle();
    world.host.link().fail(Cause::Told);
    world.host.turn();
    world.events();
    assert!(!world.host.is_reset(1), "it may still be declined");
    assert!(!world.host.link().attach(1, OVER_TCP));
    world.host.turn();
    let why = Reset::Link(Cause::Told);
    assert_eq!(world.events(), [Event::Reset { of, why }]);
    assert!(world.host.is_reset(1));
    // It finds that in the ring.
    assert_eq!(world.host.theirs(1).prod.marks.load(Ordering::Relaxed), 1);
    world.host.close(1);
    world.host.turn();
    assert_eq!(world.events(), [Event::Free(of)]);
    // One that is declined.
    let mut world = World::connected(1, size(0));
    world.open(1, size(0)).1.unwrap();
    world.host.link().fail(Cause::Told);
    let now = world.host.now;
    world.host.link().abandon(1, now);
    assert!(world.host.is_on_tcp(1) && world.host.link().connections() == 1);
}

/// The program has closed while the handshake went on.
#[test]
fn a_program_that_closes_early_closes_when_both_ends_have_agreed() {
    let mut world = World::connected(1, size(0));
    let (line, opened) = world.open(1, size(0));
    world.settle();
    world.events();
    world.host.enter(1);
    world.host.send(1, 300);
    world.host.close(1);
    world.settle();
    world.kernel.confirm(line, &opened.unwrap());
    assert!(world.host.link().attach(1, OVER_TCP));
    world.settle();
    assert_eq!(world.kernel.take(line, u32::MAX), 300);
    assert!(world.kernel.lines[line].connection().peer_state().is_closed);
    world.kernel.lines[line].connection().close();
    world.settle();
    assert!(matches!(world.events()[..], [Event::Free(_)]));
}

/// It is confirmed and deleted at once: nothing was established.
#[test]
fn a_link_that_ends_as_it_is_confirmed_is_not_told_as_confirmed() {
    let mut world = World::new(1, Faults::NONE, size(0));
    let (line, opened) = world.open(0, size(0));
    world.kernel.confirm(line, &opened.unwrap());
    world.kernel.say(Llc::DeleteLink(DeleteLink {
        is_answer: false,
        is_all: true,
        is_orderly: true,
        link: 0,
        reason: Reason::PROGRAM,
    }));
    world.kernel.turn();
    while world.network.step() {}
    world.settle();
    let cause = Cause::Smc(link::Cause::Deleted(Reason::PROGRAM));
    assert_eq!(world.events(), [Event::Down(cause)]);
}

#[test]
fn a_first_contact_without_a_word_on_the_link_is_given_up() {
    let mut world = World::new(1, Faults::NONE, size(0));
    let (_, opened) = world.open(0, size(0));
    opened.unwrap();
    world.host.now += PATIENCE - Duration::from_secs(1);
    world.settle();
    assert_eq!(world.events(), []);
    world.host.now += Duration::from_secs(1);
    world.settle();
    let cause = Cause::Smc(link::Cause::Silent);
    assert_eq!(world.events(), [Event::Down(cause)]);
    assert!(!world.host.is_reset(0));
}
