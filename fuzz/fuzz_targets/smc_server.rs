//! Any server of SMC-R: what it says over TCP, about the link and about a connection. A message is
//! bytes and a value alike, or none; a client takes no byte behind an answer, writes into the
//! server's ring and nowhere else, and reads in its own.
#![no_main]

use std::time::Duration;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use shunt_smc::link::{self, Own, Settings};
use shunt_smc::wire::cdc::Cdc;
use shunt_smc::wire::clc::{Accept, EYE_CATCHER, End, FirstContact, Host, Proposal};
use shunt_smc::wire::llc::Llc;
use shunt_smc::wire::{Eid, RmbSize};
use shunt_smc::{Connection, Handshake, Link, handshake};
use shunt_verbs::value::{Gid, Mtu, PacketNumber, PairNumber, Remote, RemoteKey};

const NOW: Duration = Duration::from_secs(1);

#[derive(Arbitrary, Debug)]
enum Op {
    /// About the link; of this type, so that it is one more often.
    OfLink(u8, Vec<u8>),
    /// About the connection, in its layout.
    OfConnection([u8; 32]),
    /// The same with cursors that are possible ones more often.
    Cursors {
        produced: (bool, u16),
        consumed: (bool, u16),
        flags: u8,
        state: u8,
    },
    Produce(u32),
    Urgent(u16),
    Consume(u16),
    Announce(u32),
    Withdraw(u32),
    Later(u16),
    Close,
}

fn host(n: u8) -> Host {
    Host { id: [n; 8], gid: Gid([n; 16]), mac: [n; 6] }
}

fn own_end() -> End {
    End {
        host: host(1),
        pair: PairNumber(1),
        first_packet: PacketNumber::new(1),
        mtu: Mtu::B1024,
        rmb: Remote { address: 1 << 20, key: RemoteKey(1) },
        index: 1,
        size: RmbSize::SMALLEST,
        token: 1,
    }
}

/// What was accepted, if anything was.
fn accepted(mut bytes: &[u8]) -> Option<Accept> {
    let eid = Eid::new("SHUNT").unwrap();
    let proposal = Proposal {
        host: host(1),
        gid: Gid([1; 16]),
        eids: vec![eid],
        release: 1,
        max_connections: 255,
        max_links: 2,
    };
    assert_eq!(Proposal::parse(&proposal.bytes()).as_ref(), Ok(&proposal));
    let mut handshake = Handshake::propose(proposal, "fuzz", NOW);
    while handshake.wanted() > 0 && !bytes.is_empty() {
        let (now, later) = bytes.split_at(handshake.wanted().min(bytes.len()));
        handshake.receive(now, NOW).ok()?;
        bytes = later;
    }
    let handshake::Event::Accepted(accept) = handshake.event()? else { return None };
    assert_eq!(accept.eid, eid);
    handshake.confirm(own_end(), &[], NOW);
    Some(accept)
}

/// The same of an accept that is one but for its numbers.
fn plausible(numbers: &[u8]) -> Option<Accept> {
    let eid = Eid::new("SHUNT").unwrap();
    let contact = FirstContact {
        is_direct: true,
        release: 1,
        name: [b' '; 32],
        max_connections: 255,
        max_links: 2,
    };
    let mut bytes = Accept { end: own_end(), eid, first_contact: Some(contact) }.bytes();
    bytes[8..64].iter_mut().zip(numbers).for_each(|(byte, number)| *byte ^= number);
    accepted(&bytes)
}

fuzz_target!(|input: (Vec<u8>, Vec<Op>)| {
    let (mut said, ops) = input;
    // Most servers know how messages begin and end.
    if said.len() > 12 {
        let length = u16::try_from(said.len()).unwrap_or(u16::MAX).to_be_bytes();
        said[..4].copy_from_slice(&EYE_CATCHER);
        said[5..7].copy_from_slice(&length);
        let end = said.len() - 4;
        said[end..].copy_from_slice(&EYE_CATCHER);
    }
    let Some(accept) = accepted(&said).or_else(|| plausible(&said)) else { return };
    let own = Own { host: host(1), pair: PairNumber(1), id: [1; 4] };
    let mut now = NOW;
    let mut link = Link::new(own, &accept, Settings::default(), now);
    let mut connection = Connection::new(RmbSize::SMALLEST, &accept.end);
    let (ring, size) = (accept.end.ring().address, accept.end.size.bytes());
    for op in ops {
        match op {
            Op::OfLink(kind, mut bytes) => {
                bytes.resize(bytes.len().max(44), 0);
                bytes[..3].copy_from_slice(&[0x20 | kind & 15, 44, 0]);
                if let Ok(message) = Llc::parse(&bytes) {
                    assert_eq!(Llc::parse(&message.bytes()), Ok(message));
                }
                link.receive(&bytes, now);
            }
            Op::OfConnection(said) => {
                let mut bytes = [0; 44];
                bytes[..32].copy_from_slice(&said);
                bytes[..2].copy_from_slice(&[0xfe, 44]);
                let message = Cdc::parse(&bytes).unwrap();
                assert_eq!(Cdc::parse(&message.bytes()), Ok(message));
                let _ = connection.receive(&message);
            }
            Op::Cursors { produced, consumed, flags, state } => {
                let mut bytes = [0; 44];
                bytes[..2].copy_from_slice(&[0xfe, 44]);
                (bytes[11], bytes[19]) = (produced.0.into(), consumed.0.into());
                bytes[14..16].copy_from_slice(&(produced.1 & 0x3fff).to_be_bytes());
                bytes[22..24].copy_from_slice(&consumed.1.to_be_bytes());
                (bytes[24], bytes[25]) = (flags, state);
                let _ = connection.receive(&Cdc::parse(&bytes).unwrap());
            }
            Op::Produce(waiting) => {
                if let Some(placement) = connection.produce(waiting.into()) {
                    assert!(u64::from(placement.length()) <= waiting.into());
                    for (to, length) in placement.parts {
                        assert!(to.address >= ring);
                        assert!(to.address - ring + u64::from(length) <= size.into());
                    }
                }
            }
            Op::Urgent(waiting) => {
                connection.mark_urgent(waiting.into());
            }
            Op::Consume(bytes) => connection.consume(connection.readable().min(bytes.into())),
            Op::Announce(key) => {
                link.announce(Remote { address: 1 << 20, key: RemoteKey(key) }, now);
            }
            Op::Withdraw(key) => link.withdraw(RemoteKey(key), now),
            Op::Later(millis) => {
                now += Duration::from_millis(millis.into());
                link.tick(now);
            }
            Op::Close => connection.close(),
        }
        assert!(connection.readable() <= RmbSize::SMALLEST.bytes() && connection.room() <= size);
        let most = RmbSize::SMALLEST.bytes();
        assert!(connection.unread().iter().all(|part| part.end <= most));
        connection.message();
        while let Some(event) = link.event() {
            if event == link::Event::Confirm {
                link.activate();
            }
        }
        while link.outgoing().is_some() {}
    }
});
