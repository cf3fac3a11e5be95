//! What is said over one connection after another: whatever is lost with each of them, either side hears all that the other one says, once
//! and in order.

use core::time::Duration;

use proptest::prelude::*;
use shunt_peer::message::{Hello, Place};
use shunt_peer::{Association, End, Event, Message, PublicKey, SecretKey, Session};

const NOW: Duration = Duration::from_secs(100);

/// An agent, whose messages have numbers.
struct Agent {
    secret: SecretKey,
    key: PublicKey,
    session: Option<Session>,
    /// Between two connections.
    association: Option<Association>,
    said: u32,
    heard: u32,
    /// How often it was told that an association goes on, and that one is new.
    goes_on: usize,
    begins: usize,
}

fn hello() -> Hello {
    Hello { ring: 1 << 16, slots: 32, messages: 64, ..Hello::default() }
}

/// Of different lengths.
fn message(number: u32) -> Message {
    match number % 3 {
        0 => Message::Gone(number),
        1 => Message::Listeners(vec!["10.0.0.1:80".parse().unwrap(); (number % 299) as usize]),
        _ => {
            let place = Place { group: number, slot: 1, generation: 2 };
            let (bytes, base, at) = (vec![7; 1000], 1 << 57, 0);
            Message::Rest(place, shunt_far::lane::Rest { at, base, bytes, end: None })
        }
    }
}

impl Agent {
    fn new(own: u64) -> Self {
        let secret = SecretKey::generate().unwrap();
        let key = secret.public().unwrap();
        let (session, association) = (None, Some(Association::new(own)));
        let (said, heard, goes_on, begins) = (0, 0, 0, 0);
        Self { secret, key, session, association, said, heard, goes_on, begins }
    }

    fn says(&mut self) {
        let message = message(self.said);
        self.said += 1;
        match (&mut self.association, &mut self.session) {
            (Some(association), _) => association.say(&message).unwrap(),
            (None, Some(session)) => session.send(&message, NOW).unwrap(),
            _ => unreachable!(),
        }
    }

    /// So many of the bytes that it sends come to the other one.
    fn carry(&mut self, to: &mut Self, most: usize) {
        let (Some(from), Some(far)) = (&mut self.session, &mut to.session) else { return };
        let bytes = &from.outgoing()[..most.min(from.outgoing().len())];
        far.receive(bytes, NOW).unwrap();
        from.sent(bytes.len());
        from.fill(NOW).unwrap();
    }

    /// Takes so many events.
    fn hears(&mut self, most: usize) {
        for _ in 0..most {
            let Some(session) = &mut self.session else { return };
            match session.event() {
                Some(Event::Open(..)) => {
                    session.begin(self.association.take().unwrap(), NOW).unwrap();
                }
                Some(Event::Begun(true)) => self.goes_on += 1,
                Some(Event::Begun(false)) => self.begins += 1,
                Some(Event::Said(said)) => {
                    assert_eq!(said, message(self.heard));
                    self.heard += 1;
                }
                None => break,
            }
        }
    }

    fn connects(&mut self, to: &mut Self) {
        self.loses();
        to.loses();
        self.session = Some(Session::dial(self.secret.clone(), to.key, hello(), NOW));
        let session = Session::answer(to.secret.clone(), [self.key].into(), hello(), NOW);
        to.session = Some(session);
    }

    /// Its connection is over.
    fn loses(&mut self) {
        if let Some(association) = self.session.take().and_then(Session::into_association) {
            self.association = Some(association);
        }
    }
}

/// Until both are through with what they have.
fn settle(one: &mut Agent, other: &mut Agent) {
    for turn in 0.. {
        assert!(turn < 100_000);
        one.carry(other, usize::MAX);
        other.carry(one, usize::MAX);
        one.hears(usize::MAX);
        other.hears(usize::MAX);
        let sessions = [&mut one.session, &mut other.session].map(|it| it.as_mut().unwrap());
        sessions.into_iter().for_each(|session| session.tick(NOW).unwrap());
        let is_through = |agent: &Agent| agent.session.as_ref().unwrap().outgoing().is_empty();
        if is_through(one) && is_through(other) {
            return;
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Says(bool, u8),
    Carries(bool, usize),
    Hears(bool, usize),
    Connects,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (any::<bool>(), 0_u8..40).prop_map(|(who, most)| Step::Says(who, most)),
        16 => (any::<bool>(), 0_usize..20_000).prop_map(|(who, most)| Step::Carries(who, most)),
        8 => (any::<bool>(), 0_usize..40).prop_map(|(who, most)| Step::Hears(who, most)),
        1 => Just(Step::Connects),
    ];
    prop::collection::vec(step, 1..100)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn each_message_is_heard_once_and_in_order(steps in steps()) {
        let (mut one, mut other) = (Agent::new(7), Agent::new(8));
        one.connects(&mut other);
        settle(&mut one, &mut other);
        assert_eq!((one.begins, other.begins), (1, 1));
        for step in steps {
            let (from, to) = match &step {
                Step::Says(true, _) | Step::Carries(true, _) | Step::Hears(true, _) => {
                    (&mut other, &mut one)
                }
                _ => (&mut one, &mut other),
            };
            match step {
                Step::Says(_, most) => (0..most).for_each(|_| from.says()),
                Step::Carries(_, most) => from.carry(to, most),
                Step::Hears(_, most) => from.hears(most),
                Step::Connects => from.connects(to),
            }
        }
        one.connects(&mut other);
        settle(&mut one, &mut other);
        assert_eq!((one.heard, other.heard), (other.said, one.said));
        // It was the first one all the time.
        assert_eq!((one.begins, other.begins), (1, 1));
        assert!(one.goes_on > 0 && other.goes_on > 0);
    }
}

#[test]
fn one_that_a_side_does_not_know_any_more_is_a_new_one_at_both() {
    let (mut one, mut other) = (Agent::new(7), Agent::new(8));
    one.connects(&mut other);
    settle(&mut one, &mut other);
    one.says();
    other.says();
    settle(&mut one, &mut other);
    // What it has said last is void.
    one.says();
    other.loses();
    other.association = Some(Association::new(9));
    one.connects(&mut other);
    let heard = (one.heard, other.heard);
    settle(&mut one, &mut other);
    assert_eq!((one.begins, other.begins, one.goes_on, other.goes_on), (2, 2, 0, 0));
    assert_eq!((one.heard, other.heard), heard);
    // From there on it goes on as any other.
    (one.said, other.heard, other.said, one.heard) = (0, 0, 0, 0);
    one.says();
    one.connects(&mut other);
    settle(&mut one, &mut other);
    assert_eq!((one.goes_on, other.goes_on, other.heard), (1, 1, 1));
}

/// A connection that ends before both know each other's number was none.
#[test]
fn one_that_only_one_side_knows_of_is_a_new_one_at_both() {
    let (mut one, mut other) = (Agent::new(7), Agent::new(8));
    one.connects(&mut other);
    loop {
        one.carry(&mut other, usize::MAX);
        other.hears(usize::MAX);
        if other.begins > 0 {
            break;
        }
        other.carry(&mut one, usize::MAX);
        one.hears(usize::MAX);
    }
    assert_eq!(one.begins, 0);
    one.connects(&mut other);
    settle(&mut one, &mut other);
    assert_eq!((one.begins, other.begins, one.goes_on, other.goes_on), (1, 2, 0, 0));
}

#[test]
fn a_side_that_says_nothing_else_tells_what_it_has_heard() {
    let (mut one, mut other) = (Agent::new(7), Agent::new(8));
    one.connects(&mut other);
    settle(&mut one, &mut other);
    // Far more than may wait to be heard, by a side that reads.
    for _ in 0..300 {
        (0..10).for_each(|_| one.says());
        settle(&mut one, &mut other);
    }
    assert_eq!(other.heard, 3000);
    // One that reads, and does not take what it has read.
    let end = (0..3000).find_map(|_| {
        one.carry(&mut other, usize::MAX);
        one.session.as_mut().unwrap().send(&message(895), NOW).err()
    });
    assert_eq!(end, Some(End::Backlog));
}
