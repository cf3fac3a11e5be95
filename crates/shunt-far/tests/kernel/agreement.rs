//! The whole agreement: messages over TCP, by `shunt-smc`'s handshake, beside those on the link.

use shunt_far::kernel::Event;
use shunt_smc::Handshake;
use shunt_smc::handshake::Event as Agreed;
use shunt_smc::wire::clc::{Confirm, Decline, Diagnosis, Proposal};
use shunt_verbs::fake::Faults;
use shunt_verbs::value::RemoteKey;

use crate::host::OVER_TCP;
use crate::{World, scripted, size};

/// Proposes; the server accepts on this line.
fn accepted(world: &mut World, line: usize) -> Handshake {
    let host = scripted::host(2);
    let proposal = Proposal { host, gid: host.gid, ..scripted::proposal() };
    let mut handshake = Handshake::propose(proposal, "host", world.host.now);
    let length = handshake.outgoing().len();
    Proposal::parse(handshake.outgoing()).unwrap();
    handshake.sent(length);
    let bytes = world.kernel.accept(line).bytes();
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let (next, behind) = rest.split_at(handshake.wanted());
        handshake.receive(next, world.host.now).unwrap();
        rest = behind;
    }
    handshake
}

/// What this end says next.
fn says(handshake: &mut Handshake) -> Vec<u8> {
    let bytes = handshake.outgoing().to_vec();
    handshake.sent(bytes.len());
    bytes
}

#[test]
fn connections_are_agreed_upon_over_tcp_and_the_link() {
    let mut world = World::new(1, Faults::NONE, size(0));
    for slot in 0..3 {
        let line = world.kernel.prepare(size(0));
        world.settle();
        let mut handshake = accepted(&mut world, line);
        let Some(Agreed::Accepted(accept)) = handshake.event() else { panic!("not accepted") };
        let (now, port, rings) = (world.host.now, world.host.port.clone(), world.host.rings(slot));
        let mut host = scripted::host(2);
        host.gid = world.host.link().described().gid;
        let is_first = accept.first_contact.is_some();
        assert_eq!((is_first, world.host.link().is_that_of(&accept)), (slot == 0, slot > 0));
        if is_first {
            world.host.link().connect(host, &accept, now).unwrap();
        }
        world.host.renew(slot, accept.end.token);
        let end = world.host.link().open(&port, slot, &rings, &accept, now).unwrap();
        if !is_first {
            // The kernel takes note of the ring before the confirm.
            world.settle();
            assert!(matches!(world.events()[..], [Event::Announced { is_taken: true, .. }]));
        }
        handshake.confirm(end, &[host.gid], now);
        let confirm = Confirm::parse(&says(&mut handshake)).unwrap();
        assert_eq!((confirm.first_contact.is_some(), confirm.end), (is_first, end));
        world.kernel.confirm(line, &confirm.end);
        if is_first {
            assert_eq!(handshake.event(), None);
            world.settle();
            assert_eq!(world.events(), [Event::Confirmed]);
            handshake.established();
        }
        assert_eq!(handshake.event(), Some(Agreed::Ready));
        assert!(world.host.link().attach(slot, OVER_TCP));
        world.host.enter(slot);
        world.exchanges(slot, line);
    }
}

#[test]
fn what_cannot_be_opened_is_declined() {
    let mut world = World::connected(1, size(0));
    let line = world.kernel.prepare(size(0));
    world.settle();
    // A ring that was not announced.
    world.kernel.lines[line].end.rmb.key = RemoteKey(4_711);
    let mut handshake = accepted(&mut world, line);
    let Some(Agreed::Accepted(accept)) = handshake.event() else { panic!("not accepted") };
    let (now, port, rings) = (world.host.now, world.host.port.clone(), world.host.rings(1));
    let opened = world.host.link().open(&port, 1, &rings, &accept, now);
    handshake.decline(opened.unwrap_err().diagnosis());
    let decline = Decline::parse(&says(&mut handshake)).unwrap();
    assert_eq!(decline.diagnosis, Diagnosis::KEY);
    assert!(matches!(handshake.event(), Some(Agreed::Declined { is_peers: false, .. })));
    world.exchanges(0, 0);
}
