//! A client against a server of the kernel's kind: first contact, a link that is there, rings,
//! ends.

mod common;

use std::time::Duration;

use common::{NOW, SETTINGS, Server, accept, contact, eid, end, host, own, proposal};
use proptest::prelude::*;
use shunt_smc::handshake::{Event, Failure, PATIENCE};
use shunt_smc::link::{self, Cause};
use shunt_smc::wire::clc::{Accept, Decline, Diagnosis, EYE_CATCHER, FirstContact, Kind, Proposal};
use shunt_smc::wire::llc::{
    AddLink, ConfirmLink, ConfirmRkey, DeleteLink, DeleteRkey, Llc, Reason, TestLink,
};
use shunt_smc::wire::{Malformed, RmbSize};
use shunt_smc::{Handshake, Link};
use shunt_verbs::value::{Mtu, RemoteKey};

/// Gives a handshake bytes as it wants them; what is left of them is the program's.
fn give(client: &mut Handshake, mut bytes: &[u8]) -> Result<usize, Failure> {
    while client.wanted() > 0 && !bytes.is_empty() {
        let (now, later) = bytes.split_at(client.wanted().min(bytes.len()));
        client.receive(now, NOW)?;
        bytes = later;
    }
    Ok(bytes.len())
}

fn sent(client: &mut Handshake) -> Vec<u8> {
    let bytes = client.outgoing().to_vec();
    client.sent(bytes.len());
    bytes
}

/// A link and a server say all that they have to.
fn talk(link: &mut Link, server: &mut Server) {
    loop {
        if let Some(message) = link.outgoing() {
            server.hear(&message);
        } else if let Some(message) = server.says.pop_front() {
            link.receive(&message.bytes(), NOW);
        } else {
            return;
        }
    }
}

fn events(link: &mut Link) -> Vec<link::Event> {
    std::iter::from_fn(|| link.event()).collect()
}

/// A first contact, up to the ready connection.
fn first_contact(server: &mut Server) -> Link {
    let mut client = Handshake::propose(proposal(), "client", NOW);
    let answer = server.answer(&sent(&mut client));
    assert_eq!(give(&mut client, &answer), Ok(0));
    let Some(Event::Accepted(accept)) = client.event() else { panic!("not accepted") };
    let mut link = Link::new(own(), &accept, SETTINGS, NOW);
    client.confirm(end(2, 1, RmbSize::SMALLEST), &[host(2).gid], NOW);
    server.confirm(&sent(&mut client));
    assert_eq!(client.event(), None);
    talk(&mut link, server);
    assert_eq!(events(&mut link), [link::Event::Confirm]);
    assert!(!link.is_active());
    link.activate();
    talk(&mut link, server);
    client.established();
    assert_eq!(client.event(), Some(Event::Ready));
    assert!(client.wanted() == 0 && client.deadline().is_none());
    link
}

#[test]
fn a_first_contact_makes_a_link_and_stays_with_one() {
    let mut server = Server::with(&["SHUNT"]);
    let link = first_contact(&mut server);
    assert!(link.is_active());
    assert_eq!(link.max_connections(), 32);
    let confirm = server.confirmed.take().unwrap();
    let (said, gids) = confirm.first_contact.unwrap();
    let name = *b"client                          ";
    assert_eq!((said, gids), (FirstContact { name, ..contact() }, vec![host(2).gid]));
    assert_eq!((confirm.end.mtu, confirm.eid), (Mtu::B1024, eid("SHUNT")));
    let [Llc::ConfirmLink(answer), Llc::AddLink(rejection)] = &server.heard[..] else {
        panic!("{:?}", server.heard)
    };
    assert!(answer.is_answer && answer.is_plain);
    assert_eq!((answer.link, answer.pair, answer.id), (1, own().pair, own().id));
    assert_eq!((answer.max_links, answer.max_connections), (2, 32));
    assert!(rejection.is_answer && rejection.is_rejected);
}

#[test]
fn the_next_connection_has_the_same_link_and_rings_of_its_own() {
    let mut server = Server::with(&["SHUNT"]);
    let mut link = first_contact(&mut server);
    let mut client = Handshake::propose(proposal(), "client", NOW);
    let answer = server.answer(&sent(&mut client));
    talk(&mut link, &mut server);
    give(&mut client, &answer).unwrap();
    let Some(Event::Accepted(accept)) = client.event() else { panic!("not accepted") };
    assert!(link.is_that_of(&accept) && link.has_ring(accept.end.rmb));
    let ring = end(2, 2, RmbSize::SMALLEST);
    link.announce(ring.rmb, NOW);
    talk(&mut link, &mut server);
    let key = ring.rmb.key;
    assert_eq!(events(&mut link), [link::Event::Announced { key, is_taken: true }]);
    client.confirm(ring, &[], NOW);
    server.confirm(&sent(&mut client));
    assert_eq!(client.event(), Some(Event::Ready));
    assert_eq!(server.confirmed.take().unwrap().first_contact, None);
    // It ends.
    link.withdraw(key, NOW);
    talk(&mut link, &mut server);
    assert_eq!(events(&mut link), [link::Event::Withdrawn(key)]);
    link.leave(Reason::PROGRAM, NOW);
    talk(&mut link, &mut server);
    assert_eq!(events(&mut link), [link::Event::Down(Cause::Left)]);
    assert!(!link.is_that_of(&accept));
}

#[test]
fn one_ring_after_another_is_announced() {
    let mut server = Server::with(&["SHUNT"]);
    let mut link = first_contact(&mut server);
    let rings = [2, 3].map(|token| end(2, token, RmbSize::SMALLEST).rmb);
    rings.into_iter().for_each(|ring| link.announce(ring, NOW));
    link.withdraw(rings[0].key, NOW);
    for asked in 0..3 {
        let message = link.outgoing().expect("a question");
        assert_eq!(link.outgoing(), None, "{asked}");
        server.hear(&message);
        let answer = server.says.pop_front().expect("an answer");
        link.receive(&answer.bytes(), NOW);
    }
    let announced = rings.map(|ring| link::Event::Announced { key: ring.key, is_taken: true });
    let [one, two] = announced;
    assert_eq!(events(&mut link), [one, two, link::Event::Withdrawn(rings[0].key)]);
}

#[test]
fn a_ring_may_be_refused() {
    let mut server = Server::with(&["SHUNT"]);
    let mut link = first_contact(&mut server);
    let ring = end(2, 2, RmbSize::SMALLEST).rmb;
    link.announce(ring, NOW);
    let Ok(Llc::ConfirmRkey(mut answer)) = Llc::parse(&link.outgoing().unwrap()) else { panic!() };
    // An answer about another one is none about this one.
    let other = end(2, 3, RmbSize::SMALLEST).rmb;
    let stray = ConfirmRkey { is_answer: true, ..ConfirmRkey::of_ring(other) };
    link.receive(&Llc::ConfirmRkey(stray).bytes(), NOW);
    assert_eq!(events(&mut link), []);
    (answer.is_answer, answer.is_refused) = (true, true);
    link.receive(&Llc::ConfirmRkey(answer).bytes(), NOW);
    let key = ring.key;
    assert_eq!(events(&mut link), [link::Event::Announced { key, is_taken: false }]);
}

#[test]
fn without_an_eid_in_common_the_stream_goes_on_over_tcp() {
    let mut server = Server::with(&["ELSEWHERE"]);
    let mut client = Handshake::propose(proposal(), "client", NOW);
    let mut answer = server.answer(&sent(&mut client));
    answer.extend(b"the program's");
    assert_eq!(give(&mut client, &answer), Ok(13));
    let diagnosis = Diagnosis::NO_DEVICE;
    let declined = Event::Declined { diagnosis, is_peers: true, is_out_of_step: false };
    assert_eq!(client.event(), Some(declined));
    assert!(client.outgoing().is_empty() && client.wanted() == 0);
    assert_eq!(client.tick(NOW + PATIENCE), Ok(()));
}

/// What a client answers to an accept.
fn declined(change: impl FnOnce(&mut Accept)) -> Diagnosis {
    let mut client = Handshake::propose(proposal(), "client", NOW);
    sent(&mut client);
    let mut accept = accept();
    change(&mut accept);
    give(&mut client, &accept.bytes()).unwrap();
    let event = client.event();
    let Some(Event::Declined { diagnosis, is_peers: false, .. }) = event else {
        panic!("{event:?}")
    };
    let said = Decline::parse(&sent(&mut client)).unwrap();
    assert_eq!((said.diagnosis, said.id), (diagnosis, host(2).id));
    diagnosis
}

fn change_contact(change: impl FnOnce(&mut FirstContact)) -> impl FnOnce(&mut Accept) {
    |accept| change(accept.first_contact.as_mut().unwrap())
}

#[test]
fn an_accept_of_something_else_is_declined() {
    assert_eq!(declined(|accept| accept.eid = eid("NEVER")), Diagnosis::CONFIGURATION);
    assert_eq!(declined(change_contact(|contact| contact.release = 2)), Diagnosis::RELEASE);
    for connections in [15, 33] {
        let change = change_contact(|contact| contact.max_connections = connections);
        assert_eq!(declined(change), Diagnosis::MAX_CONNECTIONS);
    }
    for links in [0, 3] {
        let change = change_contact(|contact| contact.max_links = links);
        assert_eq!(declined(change), Diagnosis::MAX_LINKS);
    }
}

#[test]
fn a_link_that_the_client_has_not_is_out_of_step() {
    let mut server = Server::with(&["SHUNT"]);
    drop(first_contact(&mut server));
    let mut client = Handshake::propose(proposal(), "client", NOW);
    let answer = server.answer(&sent(&mut client));
    give(&mut client, &answer).unwrap();
    let Some(Event::Accepted(accept)) = client.event() else { panic!("not accepted") };
    assert_eq!(accept.first_contact, None);
    client.decline(Diagnosis::OUT_OF_STEP);
    let said = Decline::parse(&sent(&mut client)).unwrap();
    assert!(said.is_out_of_step);
    assert!(matches!(client.event(), Some(Event::Declined { is_out_of_step: false, .. })));
}

#[test]
fn what_is_no_answer_fails_the_connection() {
    let fails = |bytes: &[u8]| {
        let mut client = Handshake::propose(proposal(), "client", NOW);
        let failure = give(&mut client, bytes).unwrap_err();
        assert_eq!(client.wanted(), 0);
        failure
    };
    assert_eq!(fails(b"HTTP/1.1 400"), Failure::Malformed(Malformed::EyeCatcher));
    let mut kind = accept().bytes();
    kind[4] = 9;
    assert_eq!(fails(&kind), Failure::Malformed(Malformed::Kind(9)));
    assert_eq!(fails(&proposal().bytes()), Failure::Unexpected(Kind::Proposal));
    let mut long = accept().bytes();
    long[5] = 0xff;
    assert_eq!(fails(&long), Failure::Malformed(Malformed::Length));
    let mut client = Handshake::propose(proposal(), "client", NOW);
    let (wanted, bytes) = (client.wanted(), accept().bytes());
    assert_eq!(client.receive(&bytes[..=wanted], NOW), Err(Failure::Unwanted));
}

#[test]
fn a_server_has_so_long_and_no_longer() {
    let mut client = Handshake::propose(proposal(), "client", NOW);
    assert_eq!(client.deadline(), Some(NOW + PATIENCE));
    assert_eq!(client.tick(NOW + PATIENCE - Duration::from_millis(1)), Ok(()));
    assert_eq!(client.tick(NOW + PATIENCE), Err(Failure::Silent));
    assert_eq!((client.wanted(), client.deadline()), (0, None));
    // A second accept does not come where a link is to be confirmed; a decline does.
    let mut client = Handshake::propose(proposal(), "client", NOW);
    give(&mut client, &accept().bytes()).unwrap();
    client.confirm(end(2, 1, RmbSize::SMALLEST), &[], NOW + PATIENCE);
    assert_eq!(client.deadline(), Some(NOW + PATIENCE * 2));
    client.event();
    let decline = Decline { id: [0; 8], diagnosis: Diagnosis::MEMORY, is_out_of_step: true };
    let mut other = client_confirmed();
    assert_eq!(give(&mut other, &accept().bytes()), Err(Failure::Unexpected(Kind::Accept)));
    assert_eq!(give(&mut client, &decline.bytes()), Ok(0));
    assert!(matches!(client.event(), Some(Event::Declined { is_out_of_step: true, .. })));
    client.established();
    assert_eq!(client.event(), None);
}

fn client_confirmed() -> Handshake {
    let mut client = Handshake::propose(proposal(), "client", NOW);
    give(&mut client, &accept().bytes()).unwrap();
    client.confirm(end(2, 1, RmbSize::SMALLEST), &[], NOW);
    client
}

/// An active link, and a server that has said nothing since.
fn active() -> Link {
    let mut link = Link::new(own(), &accept(), SETTINGS, NOW);
    link.receive(&Llc::ConfirmLink(Server::default().confirm_link()).bytes(), NOW);
    link.activate();
    while link.outgoing().is_some() {}
    events(&mut link);
    link
}

#[test]
fn a_quiet_peer_is_asked_and_then_given_up() {
    let mut link = active();
    let quiet = NOW + SETTINGS.quiet;
    assert_eq!(link.deadline(), Some(quiet));
    link.heard(NOW + Duration::from_secs(1));
    link.tick(quiet);
    assert_eq!(link.outgoing(), None);
    let asked = link.deadline().unwrap();
    link.tick(asked);
    let Ok(Llc::TestLink(test)) = Llc::parse(&link.outgoing().unwrap()) else { panic!() };
    assert!(!test.is_answer);
    link.receive(&Llc::TestLink(TestLink { is_answer: true, ..test }).bytes(), asked);
    assert_eq!(link.deadline(), Some(asked + SETTINGS.quiet));
    link.tick(asked + SETTINGS.quiet);
    link.tick(asked + SETTINGS.quiet + SETTINGS.answer);
    assert_eq!(events(&mut link), [link::Event::Down(Cause::Silent)]);
}

#[test]
fn a_peer_that_talks_and_does_not_answer_is_given_up() {
    let mut link = active();
    link.announce(end(2, 2, RmbSize::SMALLEST).rmb, NOW);
    let later = NOW + SETTINGS.answer;
    link.heard(later);
    assert_eq!(link.deadline(), Some(later));
    link.tick(later);
    assert_eq!(events(&mut link), [link::Event::Down(Cause::Silent)]);
}

#[test]
fn a_link_that_is_not_confirmed_in_time_is_given_up() {
    let mut link = Link::new(own(), &accept(), SETTINGS, NOW);
    link.tick(link.deadline().unwrap());
    assert_eq!(events(&mut link), [link::Event::Down(Cause::Silent)]);
    assert_eq!(Cause::Silent.diagnosis(), Diagnosis::CONFIRM_LINK_TIMEOUT);
}

#[test]
fn only_the_link_of_the_accept_is_confirmed() {
    let ask = Server::default().confirm_link();
    let asks = [
        (Llc::ConfirmLink(ConfirmLink { is_plain: false, ..ask }), Cause::EyeCatchers),
        (Llc::ConfirmLink(ConfirmLink { gid: host(9).gid, ..ask }), Cause::OtherLink),
    ];
    for (ask, cause) in asks {
        let mut link = Link::new(own(), &accept(), SETTINGS, NOW);
        link.receive(&ask.bytes(), NOW);
        assert_eq!(events(&mut link), [link::Event::Down(cause)]);
        link.activate();
        assert_eq!(link.outgoing(), None);
    }
}

#[test]
fn requests_are_answered() {
    let mut link = active();
    let mut answer = |message: Llc| {
        link.receive(&message.bytes(), NOW);
        Llc::parse(&link.outgoing().expect("an answer")).unwrap()
    };
    let data = *b"0123456789abcdef";
    let test = TestLink { is_answer: false, data };
    assert_eq!(answer(Llc::TestLink(test)), Llc::TestLink(TestLink { is_answer: true, data }));
    let unknown = |keys: &[u32]| {
        let keys = keys.iter().map(|key| RemoteKey(*key)).collect();
        Llc::DeleteRkey(DeleteRkey { is_answer: false, unknown: 0, keys })
    };
    let deleted = |unknown| Llc::DeleteRkey(DeleteRkey { is_answer: true, unknown, keys: vec![] });
    assert_eq!(answer(unknown(&[7, 8])), deleted(1));
    assert_eq!(answer(unknown(&[7])), deleted(1));
    let delete = |link, is_answer, reason| {
        let (is_all, is_orderly) = (false, true);
        Llc::DeleteLink(DeleteLink { is_answer, is_all, is_orderly, link, reason })
    };
    let gone = delete(5, true, Reason::NO_LINK);
    assert_eq!(answer(delete(5, false, Reason::OPERATOR)), gone);
    assert_eq!(answer(delete(1, false, Reason::OPERATOR)), delete(1, true, Reason(0)));
    let down = link::Event::Down(Cause::Deleted(Reason::OPERATOR));
    assert_eq!(events(&mut link), [link::Event::Forgotten(RemoteKey(7)), down]);
}

#[test]
fn a_peer_has_so_many_rings_and_no_more() {
    let mut link = active();
    for key in 1000..1254 {
        let message = ring_message(key);
        link.receive(&message.bytes(), NOW);
        let Ok(Llc::ConfirmRkey(answer)) = Llc::parse(&link.outgoing().unwrap()) else { panic!() };
        assert!(answer.is_answer && !answer.is_refused, "{key}");
    }
    for (key, is_refused) in [(2000, true), (1000, false)] {
        link.receive(&ring_message(key).bytes(), NOW);
        let Ok(Llc::ConfirmRkey(answer)) = Llc::parse(&link.outgoing().unwrap()) else { panic!() };
        assert_eq!((answer.is_refused, answer.may_retry), (is_refused, is_refused));
    }
}

fn ring_message(key: u32) -> Llc {
    Llc::ConfirmRkey(ConfirmRkey::of_ring(end(3, key, RmbSize::SMALLEST).rmb))
}

#[test]
fn a_peer_that_takes_no_answers_is_given_up() {
    let mut link = active();
    for _ in 0..100 {
        link.receive(&ring_message(7).bytes(), NOW);
    }
    assert_eq!(events(&mut link), [link::Event::Down(Cause::Flooded)]);
    assert_eq!(link.outgoing(), None);
}

#[test]
fn what_is_no_message_ends_the_link_and_what_is_unknown_does_not() {
    let mut link = active();
    let mut message = ring_message(7).bytes();
    message[0] = 0x2f;
    link.receive(&message, NOW);
    assert_eq!(events(&mut link), []);
    message[0] = 0x26;
    link.receive(&message[..43], NOW);
    assert_eq!(events(&mut link), [link::Event::Down(Cause::Malformed(Malformed::Length))]);
    let Ok(Llc::DeleteLink(delete)) = Llc::parse(&link.outgoing().unwrap()) else { panic!() };
    assert!(delete.is_all && !delete.is_orderly && delete.reason == Reason::VIOLATION);
}

#[test]
fn a_link_ends_once_with_its_queue_pair_or_as_the_server_says() {
    let mut link = active();
    link.announce(end(2, 2, RmbSize::SMALLEST).rmb, NOW);
    link.fail();
    assert_eq!(
        (events(&mut link), link.outgoing()),
        (vec![link::Event::Down(Cause::Failed)], None)
    );
    assert!(!link.is_active() && link.deadline().is_none());
    assert_eq!(Cause::Failed.diagnosis(), Diagnosis::QUEUE_PAIR);
    link.receive(&ring_message(7).bytes(), NOW);
    link.leave(Reason::PROGRAM, NOW);
    assert_eq!((events(&mut link), link.outgoing()), (vec![], None));
    let mut link = active();
    let reason = Reason::LOST_PATH;
    let (is_answer, is_all, is_orderly) = (false, true, false);
    let delete = DeleteLink { is_answer, is_all, is_orderly, link: 0, reason };
    link.receive(&Llc::DeleteLink(delete).bytes(), NOW);
    assert_eq!(events(&mut link), [link::Event::Down(Cause::Deleted(reason))]);
    assert_eq!(link.outgoing(), None);
}

#[test]
fn a_server_that_does_not_delete_the_link_is_left_without() {
    let mut link = active();
    link.leave(Reason::OPERATOR, NOW);
    let Ok(Llc::DeleteLink(delete)) = Llc::parse(&link.outgoing().unwrap()) else { panic!() };
    assert!(delete.is_all && delete.is_orderly && !delete.is_answer);
    assert_eq!(events(&mut link), []);
    assert_eq!(link.deadline(), Some(NOW + SETTINGS.answer));
    link.tick(NOW + SETTINGS.answer);
    assert_eq!(events(&mut link), [link::Event::Down(Cause::Left)]);
}

#[test]
fn answers_that_nothing_waits_for_are_left_alone() {
    let mut link = active();
    let ask = Server::default().confirm_link();
    let ring = end(2, 2, RmbSize::SMALLEST).rmb;
    let mut ring = ConfirmRkey::of_ring(ring);
    ring.is_answer = true;
    let stray = [
        Llc::ConfirmLink(ask),
        Llc::ConfirmRkey(ring),
        Llc::DeleteRkey(DeleteRkey { is_answer: true, unknown: 0, keys: vec![] }),
        Llc::AddLink(AddLink {
            is_answer: true,
            is_rejected: true,
            mac: [0; 6],
            gid: ask.gid,
            pair: ask.pair,
            link: 2,
            mtu: None,
            first_packet: accept().end.first_packet,
        }),
    ];
    stray.iter().for_each(|message| link.receive(&message.bytes(), NOW));
    assert_eq!((events(&mut link), link.outgoing()), (vec![], None));
    assert!(link.is_active());
}

proptest! {
    /// In whatever pieces an answer comes, it is the same, and not a byte behind it is taken.
    #[test]
    fn pieces_do_not_matter(cuts in proptest::collection::vec(1_usize..20, 1..40), is_declined: bool) {
        let mut server = Server::with(if is_declined { &[] } else { &["OTHER"] });
        let mut client = Handshake::propose(proposal(), "client", NOW);
        let mut bytes = server.answer(&sent(&mut client));
        bytes.extend(EYE_CATCHER);
        let mut rest = &bytes[..];
        for cut in cuts.into_iter().cycle() {
            let take = cut.min(client.wanted());
            if take == 0 {
                break;
            }
            let (now, later) = rest.split_at(take);
            client.receive(now, NOW).unwrap();
            rest = later;
        }
        prop_assert_eq!(rest, EYE_CATCHER);
        let event = client.event();
        if is_declined {
            let is_so = matches!(event, Some(Event::Declined { is_peers: true, .. }));
            prop_assert!(is_so);
        } else {
            let Some(Event::Accepted(accept)) = event else { panic!("{event:?}") };
            prop_assert_eq!(accept.eid, eid("OTHER"));
            let Proposal { max_connections, .. } = proposal();
            prop_assert_eq!(accept.first_contact.unwrap().max_connections, max_connections);
        }
    }
}
