//! Connections of a link that goes on with another queue pair, by what the far side says of them.

use std::time::Duration;

use shunt_far::Cause;
use shunt_far::lane::Impossible;
use shunt_far::link::{Event, Position, Rings};
use shunt_far::message::{Kind, Words};
use shunt_shm::region::DEAF;
use shunt_verbs::Refused;
use shunt_verbs::value::PeerPair;

use crate::hostile::{Hostile, LANE, RING, TEN, cursors, says};

/// The link has a new queue pair, and the far side says this of its own.
fn goes_on(far: &mut Hostile, pair: &PeerPair, positions: &[Position]) -> Result<(), Cause> {
    far.link.go_on((pair, positions), true, Duration::ZERO)
}

/// Where the far side is that has heard nothing.
fn position(far: &Hostile) -> Position {
    let (slot, generation) = (usize::from(LANE.slot), LANE.generation);
    Position { slot, generation, heard: Words::default(), has_left: false, ring: far.ring }
}

#[test]
fn a_link_that_has_not_failed_has_no_other_queue_pair() {
    let mut far = Hostile::new();
    assert!(matches!(far.renew(), Err(Refused::State)));
    assert_eq!((far.link.cause(), far.link.renewals()), (None, 0));
    // Nor has one that is over.
    for cause in [Cause::Ends, Cause::Parts, Cause::NoConnection, Cause::Order] {
        let mut far = Hostile::new();
        far.link.fail(cause);
        assert!(matches!(far.renew(), Err(Refused::State)), "{cause}");
    }
}

#[test]
fn what_was_heard_is_said_to_the_far_side() {
    let mut far = Hostile::new();
    far.say(0, 0, cursors(TEN));
    let before = far.link.described().number;
    far.link.fail(Cause::Silence);
    let (pair, positions) = far.renew().unwrap();
    assert_ne!(pair.number, before);
    assert_eq!(far.link.cause(), Some(Cause::Silence), "until the far side has one, too");
    let expected = Position { heard: TEN, ring: positions[0].ring, ..position(&far) };
    assert_eq!(positions, [expected]);
    let at = [position(&far)];
    assert_eq!(goes_on(&mut far, &pair, &at), Ok(()));
    assert_eq!((far.link.cause(), far.link.renewals()), (None, 1));
}

#[test]
fn a_connection_that_was_not_opened_by_then_stays_on_tcp() {
    let mut far = Hostile::new();
    let port = far.port.clone();
    let both = Rings { memory: far.rings.clone(), outgoing: 0..RING, incoming: RING..2 * RING };
    far.link.open(&port, 1, 9, &both).unwrap();
    far.link.fail(Cause::Told);
    let (pair, positions) = far.renew().unwrap();
    assert_eq!(positions.len(), 1, "nothing is said of it");
    let at = [position(&far)];
    goes_on(&mut far, &pair, &at).unwrap();
    assert!(!far.link.attach(1, 9, far.ring));
    far.link.abandon(1);
    assert_eq!(says(&far, 1), (0, true));
    // Its place has room for another one.
    let both = Rings { memory: far.rings.clone(), outgoing: 0..RING, incoming: RING..2 * RING };
    far.link.open(&port, 1, 10, &both).unwrap();
    assert!(far.link.attach(1, 10, far.ring));
}

#[test]
fn one_that_the_far_side_had_not_opened_goes_back_to_tcp_alone() {
    // Nothing is said of it, or of another use of its place.
    for other in [false, true] {
        let mut far = Hostile::new();
        far.link.fail(Cause::Told);
        let (pair, _) = far.renew().unwrap();
        let position = Position { generation: LANE.generation + 1, ..position(&far) };
        let said = if other { vec![position] } else { Vec::new() };
        goes_on(&mut far, &pair, &said).unwrap();
        assert_eq!(says(&far, 0), (0, true));
        assert_eq!(far.link.mirror().woken.len(), 1);
        // Its place in the link is free, and the far side hears nothing of it.
        assert_eq!(far.link.event(), Some(Event::Free(0)));
        assert_eq!((far.link.registered(), far.link.is_attached(0)), (0, false));
    }
}

#[test]
fn one_that_both_have_left_is_over() {
    let mut far = Hostile::new();
    far.link.leave(0);
    far.turn();
    far.link.fail(Cause::Told);
    let (pair, positions) = far.renew().unwrap();
    assert_eq!(positions.len(), 1);
    assert_eq!(goes_on(&mut far, &pair, &[]), Ok(()));
    assert_eq!(far.link.event(), Some(Event::Free(0)));
    assert_eq!(says(&far, 0), (1, false), "its program is through");
}

#[test]
fn a_far_side_that_has_left_is_not_asked_again() {
    let mut far = Hostile::new();
    far.say(0, 0, cursors(Words { fin: 1, ..TEN }));
    far.say(1, 0, Kind::Leave(LANE));
    far.link.fail(Cause::Told);
    let (pair, positions) = far.renew().unwrap();
    assert!(positions[0].has_left);
    // It says that it has heard a leave that nobody has said: that changes nothing.
    let at = [Position { has_left: true, ..position(&far) }];
    goes_on(&mut far, &pair, &at).unwrap();
    assert_eq!(far.link.event(), None);
    assert!(far.link.is_attached(0));
}

#[test]
fn a_far_side_that_cannot_have_heard_that_ends_the_link() {
    let impossible = [
        (Words { prod: 1, ..Words::default() }, Impossible::Producer),
        (Words { cons: 11, ..Words::default() }, Impossible::Consumer),
        (Words { marks: 1, ..Words::default() }, Impossible::Marks),
        (Words { marks_passed: 1, ..Words::default() }, Impossible::Passed),
        (Words { heard: 1, ..Words::default() }, Impossible::Passed),
        (Words { fin: 1, ..Words::default() }, Impossible::End),
        (Words { closed: DEAF + 1, ..Words::default() }, Impossible::End),
    ];
    for (heard, why) in impossible {
        let mut far = Hostile::new();
        far.say(0, 0, cursors(TEN));
        far.link.fail(Cause::Told);
        let (pair, _) = far.renew().unwrap();
        let at = [Position { heard, ..position(&far) }];
        let cause = Cause::Impossible(why);
        assert_eq!(goes_on(&mut far, &pair, &at), Err(cause), "{heard:?}");
        assert_eq!(far.link.cause(), Some(cause));
        // And its connections go back to TCP as those of any link.
        assert_eq!(far.link.halts().len(), 1);
    }
}
