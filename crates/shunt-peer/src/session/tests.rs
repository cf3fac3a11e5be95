use core::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::association::BACKLOG;
use crate::message::{Malformed, Token};

const NOW: Duration = Duration::from_secs(100);

fn hello(name: &str) -> Hello {
    let (incarnation, ring, slots, messages) = (name.len() as u64, 1 << 16, 32, 256);
    Hello { incarnation, ring, slots, messages, name: name.into(), ..Hello::default() }
}

struct Two {
    dialer: Session,
    answerer: Session,
    keys: [PublicKey; 2],
}

fn pair() -> (SecretKey, PublicKey) {
    let secret = SecretKey::generate().unwrap();
    let public = secret.public().unwrap();
    (secret, public)
}

fn two() -> Two {
    let ((mine, me), (yours, you)) = (pair(), pair());
    let dialer = Session::dial(mine, you, hello("one"), NOW);
    let answerer = Session::answer(yours, [me].into(), hello("second"), NOW);
    Two { dialer, answerer, keys: [me, you] }
}

/// Takes what one sends, to be given to the other one.
fn bytes(of: &mut Session) -> Vec<u8> {
    let bytes = of.outgoing().to_vec();
    of.sent(bytes.len());
    bytes
}

fn carry(from: &mut Session, to: &mut Session) -> Result<(), End> {
    to.receive(&bytes(from), NOW)
}

fn events(of: &mut Session) -> Vec<Event> {
    core::iter::from_fn(|| of.event()).collect()
}

impl Two {
    /// Until neither has anything to send.
    fn settle(&mut self) -> Result<(), End> {
        while !(self.dialer.outgoing().is_empty() && self.answerer.outgoing().is_empty()) {
            carry(&mut self.dialer, &mut self.answerer)?;
            carry(&mut self.answerer, &mut self.dialer)?;
        }
        Ok(())
    }

    fn opened() -> Self {
        let mut two = two();
        two.settle().unwrap();
        events(&mut two.dialer);
        events(&mut two.answerer);
        two
    }

    fn begun() -> Self {
        let mut two = Self::opened();
        for (own, end) in [(1, &mut two.dialer), (2, &mut two.answerer)] {
            end.begin(Association::new(own), NOW).unwrap();
        }
        two.settle().unwrap();
        for end in [&mut two.dialer, &mut two.answerer] {
            assert_eq!(events(end), [Event::Begun(false)]);
        }
        two
    }
}

#[test]
fn both_know_who_the_other_one_is() {
    let mut two = two();
    assert_eq!(two.dialer.peer(), None);
    two.settle().unwrap();
    let [me, you] = two.keys;
    assert_eq!(events(&mut two.dialer), [Event::Open(you, hello("second"))]);
    assert_eq!(events(&mut two.answerer), [Event::Open(me, hello("one"))]);
    assert_eq!((two.dialer.peer(), two.answerer.peer()), (Some(you), Some(me)));
    let mut two = Two::begun();
    two.dialer.send(&Message::Gone(7), NOW).unwrap();
    two.answerer.send(&Message::Gone(8), NOW).unwrap();
    two.settle().unwrap();
    assert_eq!(events(&mut two.answerer), [Event::Said(Message::Gone(7))]);
    assert_eq!(events(&mut two.dialer), [Event::Said(Message::Gone(8))]);
}

#[test]
fn nothing_that_was_said_can_be_read_on_the_way() {
    let mut two = Two::begun();
    let listeners = vec!["10.9.8.7:4321".parse().unwrap()];
    let said = Message::Listeners(listeners);
    two.dialer.send(&said, NOW).unwrap();
    let (clear, seen) = (said.bytes(), bytes(&mut two.dialer));
    assert!(!seen.windows(6).any(|part| part == &clear[15..21]));
}

#[test]
fn a_strangers_key_is_named_and_refused() {
    let ((stranger, key), (yours, you), (_, peer)) = (pair(), pair(), pair());
    let mut dialer = Session::dial(stranger, you, hello("x"), NOW);
    let mut answerer = Session::answer(yours, [peer].into(), hello("y"), NOW);
    carry(&mut dialer, &mut answerer).unwrap();
    carry(&mut answerer, &mut dialer).unwrap();
    assert_eq!(carry(&mut dialer, &mut answerer), Err(End::Stranger(key)));
    // Which is told nothing, not even who is there.
    assert!(answerer.outgoing().is_empty() && events(&mut answerer).is_empty());
    assert_eq!(dialer.closed(), End::Closed(Stage::Proof));
    assert!(dialer.closed().is_refusal());
}

#[test]
fn an_agent_with_another_key_than_expected_is_refused_by_both() {
    let ((mine, me), (other, _), (_, expected)) = (pair(), pair(), pair());
    let mut dialer = Session::dial(mine, expected, hello("x"), NOW);
    let mut answerer = Session::answer(other, [me].into(), hello("y"), NOW);
    carry(&mut dialer, &mut answerer).unwrap();
    carry(&mut answerer, &mut dialer).unwrap();
    assert_eq!(carry(&mut dialer, &mut answerer), Err(End::OtherKey));
    // One that answers all the same has not the key that would make its answer right.
    let mut two = two();
    carry(&mut two.dialer, &mut two.answerer).unwrap();
    carry(&mut two.answerer, &mut two.dialer).unwrap();
    let _ = bytes(&mut two.dialer);
    let made_up = [&48_u16.to_be_bytes()[..], &[9; SECOND]].concat();
    assert_eq!(two.dialer.receive(&made_up, NOW), Err(End::Unproved));
}

#[test]
fn the_first_message_of_another_connection_opens_none() {
    let mut two = two();
    carry(&mut two.answerer, &mut two.dialer).unwrap();
    let overheard = bytes(&mut two.dialer);
    // A third one says it again to the same agent.
    let mut again =
        Session::answer(two.answerer.secret.clone(), [two.keys[0]].into(), hello("second"), NOW);
    again.receive(&overheard, NOW).unwrap();
    assert_eq!(again.peer(), None);
    assert_eq!(events(&mut again), []);
    // And whatever follows it is not proved.
    two.answerer.receive(&overheard, NOW).unwrap();
    carry(&mut two.answerer, &mut two.dialer).unwrap();
    assert_eq!(again.receive(&bytes(&mut two.dialer), NOW), Err(End::Forged));
    assert_eq!(again.peer(), None);
}

#[test]
fn nobody_on_the_way_changes_the_versions() {
    let mut two = two();
    let mut preamble = bytes(&mut two.dialer);
    // Bytes that are not looked at, but proved.
    preamble[15] = 1;
    two.answerer.receive(&preamble, NOW).unwrap();
    carry(&mut two.answerer, &mut two.dialer).unwrap();
    assert_eq!(carry(&mut two.dialer, &mut two.answerer), Err(End::OtherKey));
}

#[test]
fn other_versions_are_named() {
    let other = |oldest: u16, newest: u16| {
        let mut preamble = Preamble::OWN.bytes();
        preamble[8..10].copy_from_slice(&oldest.to_be_bytes());
        preamble[10..12].copy_from_slice(&newest.to_be_bytes());
        two().answerer.receive(&preamble, NOW)
    };
    assert_eq!(other(NEWEST + 1, NEWEST + 4), Err(End::Version(NEWEST + 1, NEWEST + 4)));
    assert_eq!(other(0, 0), Err(End::Version(0, 0)));
    assert_eq!(other(NEWEST, NEWEST + 4), Ok(()));
    assert_eq!(other(0, OLDEST), Ok(()));
}

#[test]
fn what_is_no_agent_is_noticed_at_its_first_bytes() {
    assert_eq!(two().answerer.receive(b"GET / HTTP/1.1\r\n", NOW), Err(End::NoAgent));
    assert_eq!(two().dialer.receive(b"S", NOW), Err(End::NoAgent));
    assert_eq!(two().dialer.receive(b"shuntrd", NOW), Ok(()));
}

#[test]
fn a_connection_to_measure_by_is_known_by_its_first_bytes_whatever_their_pieces() {
    let token = Token([7; 16]);
    let bytes = measures(token);
    let (secret, key) = pair();
    for cut in 1..bytes.len() {
        let peers = BTreeSet::from([key]);
        let mut answerer = Session::answer(secret.clone(), peers, hello("b"), NOW);
        assert_eq!(answerer.receive(&bytes[..cut], NOW), Ok(()));
        assert_eq!(answerer.receive(&bytes[cut..], NOW), Err(End::Measures(token)));
        assert_eq!((answerer.peer(), answerer.event()), (None, None));
    }
    // A side that dials awaits an agent.
    let mut dialer = Session::dial(secret, key, hello("a"), NOW);
    assert_eq!(dialer.receive(&bytes, NOW), Err(End::NoAgent));
}

#[test]
fn every_byte_on_the_way_counts() {
    for at in 0..64 {
        let mut two = Two::begun();
        two.dialer.send(&Message::Addresses(vec!["10.0.0.1".parse().unwrap()]), NOW).unwrap();
        let mut bytes = bytes(&mut two.dialer);
        let Some(byte) = bytes.get_mut(at) else { return assert!(at > 30) };
        *byte ^= 1 << (at % 8);
        let result = two.answerer.receive(&bytes, NOW);
        // A longer length: it waits for the rest.
        let waits = at < PREFIX && result.is_ok();
        assert!(waits || matches!(result, Err(End::Forged | End::Length(_))), "{at}: {result:?}");
        assert_eq!(events(&mut two.answerer), []);
    }
}

#[test]
fn packets_come_once_and_in_order() {
    let mut two = Two::begun();
    two.dialer.send(&Message::Gone(1), NOW).unwrap();
    let first = bytes(&mut two.dialer);
    two.dialer.send(&Message::Gone(2), NOW).unwrap();
    let second = bytes(&mut two.dialer);
    let mut swapped = Two::begun();
    swapped.answerer.receive(&first, NOW).unwrap_err();
    two.answerer.receive(&first, NOW).unwrap();
    assert_eq!(two.answerer.receive(&first, NOW), Err(End::Forged));
    // It is over.
    assert_eq!(two.answerer.receive(&second, NOW), Ok(()));
    assert_eq!(events(&mut two.answerer), [Event::Said(Message::Gone(1))]);
    assert_eq!(two.answerer.deadline(), None);
}

#[test]
fn lengths_that_no_packet_has_are_refused_before_it_comes() {
    let mut two = two();
    carry(&mut two.dialer, &mut two.answerer).unwrap();
    assert_eq!(two.answerer.receive(&[0xff, 0xff], NOW), Err(End::Length(0xffff)));
    let mut two = Two::opened();
    assert_eq!(two.answerer.receive(&[0, 16], NOW), Err(End::Length(16)));
    let mut two = Two::opened();
    assert_eq!(two.answerer.receive(&[0xff, 0xff], NOW), Err(End::Length(0xffff)));
}

/// What an authenticated, hostile peer sends.
fn say(two: &mut Two, bytes: &[u8]) -> Result<(), End> {
    let State::Proved(transport) = &mut two.dialer.state else { panic!() };
    let mut packet = vec![0; bytes.len() + TAG];
    transport.write_message(bytes, &mut packet).unwrap();
    two.dialer.frame(&packet);
    carry(&mut two.dialer, &mut two.answerer)
}

#[test]
fn a_peer_that_says_what_cannot_be_is_given_up() {
    let said = |bytes: &[u8]| say(&mut Two::begun(), bytes);
    let resume = Message::Resume(Resume { own: 1, far: 2, heard: 0 }).bytes();
    assert_eq!(said(&[99]), Err(End::Malformed(Malformed::Kind)));
    assert_eq!(said(&Message::Hello(hello("again")).bytes()), Err(End::Twice));
    assert_eq!(said(&resume), Err(End::Twice));
    assert_eq!(said(&Message::Ping(1).bytes()), Err(End::Unsaid));
    assert_eq!(said(&Message::Bye(Bye::Ends).bytes()), Err(End::Bye(Bye::Ends)));
    // Before this side has said where it is.
    let mut two = Two::opened();
    assert_eq!(say(&mut two, &resume), Ok(()));
    assert_eq!(say(&mut two, &resume), Err(End::Twice));
    assert_eq!(say(&mut Two::opened(), &Message::Gone(1).bytes()), Err(End::BeforeHello));
    assert_eq!(say(&mut Two::opened(), &Message::Ping(0).bytes()), Err(End::BeforeHello));
}

#[test]
fn a_side_cannot_have_heard_what_was_not_said() {
    let mut two = Two::begun();
    two.answerer.send(&Message::Gone(1), NOW).unwrap();
    let mut association = two.answerer.into_association().unwrap();
    let resume = |heard| Resume { own: 1, far: 2, heard };
    assert_eq!(association.meet(&resume(2)), Err(End::Unsaid));
    assert_eq!(association.meet(&resume(1)), Ok(true));
    // Nor forgotten it.
    assert_eq!(association.meet(&resume(0)), Err(End::Unsaid));
    let mut two = Two::opened();
    two.answerer.begin(association, NOW).unwrap();
    assert_eq!(say(&mut two, &Message::Resume(resume(3)).bytes()), Err(End::Unsaid));
}

#[test]
fn nothing_comes_before_the_hello() {
    let mut two = two();
    carry(&mut two.dialer, &mut two.answerer).unwrap();
    carry(&mut two.answerer, &mut two.dialer).unwrap();
    carry(&mut two.dialer, &mut two.answerer).unwrap();
    carry(&mut two.answerer, &mut two.dialer).unwrap();
    let _ = bytes(&mut two.dialer);
    // The nonce of the Hello that was thrown away is used up, so this one is made without it.
    let State::Proved(transport) = &mut two.answerer.state else { panic!() };
    transport.set_receiving_nonce(1);
    assert_eq!(say(&mut two, &Message::Gone(1).bytes()), Err(End::BeforeHello));
}

#[test]
fn it_takes_only_so_long() {
    let mut two = two();
    assert_eq!(two.answerer.deadline(), Some(NOW + HANDSHAKE));
    carry(&mut two.dialer, &mut two.answerer).unwrap();
    assert_eq!(two.answerer.tick(NOW + HANDSHAKE - Duration::from_millis(1)), Ok(()));
    assert_eq!(two.answerer.tick(NOW + HANDSHAKE), Err(End::Late));
    assert_eq!(two.answerer.tick(NOW + HANDSHAKE), Ok(()));
    // Also to say where it is.
    let mut two = Two::opened();
    assert_eq!(two.answerer.deadline(), Some(NOW + HANDSHAKE));
    assert_eq!(two.answerer.tick(NOW + HANDSHAKE), Err(End::Late));
}

#[test]
fn both_say_that_they_are_there() {
    let mut two = Two::begun();
    for second in 1..20 {
        let now = NOW + KEEP * second;
        for end in [&mut two.dialer, &mut two.answerer] {
            assert_eq!(end.deadline(), Some(now));
            end.tick(now).unwrap();
        }
        let (one, other) = (bytes(&mut two.dialer), bytes(&mut two.answerer));
        assert!(!one.is_empty());
        two.dialer.receive(&other, now).unwrap();
        two.answerer.receive(&one, now).unwrap();
    }
    assert_eq!(events(&mut two.dialer), []);
    // One of them falls silent.
    let last = NOW + KEEP * 19;
    for second in 1..5 {
        two.dialer.tick(last + KEEP * second).unwrap();
    }
    assert_eq!(two.dialer.tick(last + SILENCE), Err(End::Silent));
}

#[test]
fn a_peer_that_does_not_read_is_given_up() {
    let mut two = Two::begun();
    let listeners = vec!["10.0.0.1:80".parse().unwrap(); crate::message::LISTENERS];
    let message = Message::Listeners(listeners);
    let end = (0..100).find_map(|_| two.dialer.send(&message, NOW).err());
    assert_eq!(end, Some(End::Backlog));
    assert!(two.dialer.outgoing().len() <= BACKLOG);
}

#[test]
fn nothing_is_sent_before_it_is_open() {
    let mut two = two();
    two.dialer.send(&Message::Gone(1), NOW).unwrap();
    assert_eq!(two.dialer.outgoing(), Preamble::OWN.bytes());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn bytes_may_come_in_any_pieces(cuts in prop::collection::vec(1_usize..80, 1..40)) {
        let mut two = two();
        let mut cuts = cuts.iter().cycle();
        // Even one byte at a time brings what both have to say in fewer turns.
        for turn in 0..4_000 {
            let (from, to) = if turn % 2 == 0 {
                (&mut two.dialer, &mut two.answerer)
            } else {
                (&mut two.answerer, &mut two.dialer)
            };
            let len = (*cuts.next().unwrap()).min(from.outgoing().len());
            let part = from.outgoing()[..len].to_vec();
            from.sent(len);
            to.receive(&part, NOW).unwrap();
        }
        prop_assert!(two.dialer.peer().is_some() && two.answerer.peer().is_some());
    }

    #[test]
    fn no_bytes_do_harm_or_open_it(
        whole in 0_usize..4,
        bytes in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let mut two = two();
        for turn in 0..whole {
            if turn % 2 == 0 {
                carry(&mut two.dialer, &mut two.answerer).unwrap();
            } else {
                carry(&mut two.answerer, &mut two.dialer).unwrap();
            }
        }
        let (was, are) = (two.answerer.peer(), two.answerer.receive(&bytes, NOW));
        prop_assert!(two.answerer.peer() == was);
        prop_assert!(are.is_ok() || two.answerer.deadline().is_none());
    }
}
