use core::cell::{Cell, RefCell};

use shunt_shm::region::Side;
use shunt_wire::clc::{Answer, Proposal};

use super::*;
use crate::conn::put;
use crate::handshake::{CLIENT_PATIENCE, SERVER_PATIENCE};
use crate::model::Memory;

const SECOND: u64 = 1_000_000_000;

/// What a step asks of others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Did {
    Accepted(Time),
    Claimed(Time),
    Resumed,
    TookPlace(RegionId, usize),
    Unanswered,
    Met(EndpointId),
    Agreed,
    Withdrew,
    Joined,
    Greeted,
    Declined(Reason),
}

/// A connection on its way.
struct Way {
    memory: Memory,
    is_linked: Cell<bool>,
    is_closed: bool,
    /// Its end has come, and its place is another connection's.
    is_over: bool,
    time: Cell<u64>,
    /// In a handler that may set nothing up.
    is_barred: bool,
    /// In a handler above another step.
    is_nested: bool,
    /// What others do while this step waits to be alone.
    meanwhile: Option<fn(&Self)>,
    is_put_off: bool,
    /// The proposal is found at this look, counted from 1.
    found_at: Option<u32>,
    looks: Cell<u32>,
    is_connecting: bool,
    /// What a proposal, a claim and a place come to.
    accepted: Result<(), Reason>,
    claimed: Result<bool, Reason>,
    place: Result<(), Reason>,
    cannot_meet: bool,
    /// What others do while it gets the acceptor's doorbells.
    meets_late: Option<fn(&Self)>,
    cannot_join: bool,
    cannot_withdraw: bool,
    did: RefCell<Vec<Did>>,
}

impl Way {
    fn of(phase: Phase) -> Self {
        let way = Self {
            memory: Memory::default(),
            is_linked: Cell::new(false),
            is_closed: false,
            is_over: false,
            time: Cell::new(SECOND),
            is_barred: false,
            is_nested: false,
            meanwhile: None,
            is_put_off: false,
            found_at: None,
            looks: Cell::new(0),
            is_connecting: false,
            accepted: Ok(()),
            claimed: Ok(false),
            place: Ok(()),
            cannot_meet: false,
            meets_late: None,
            cannot_join: false,
            cannot_withdraw: false,
            did: RefCell::default(),
        };
        way.id().phase.store(phase as u32, Relaxed);
        way.id().since.store(SECOND, Relaxed);
        way
    }

    /// A client that has proposed.
    fn client() -> Self {
        let way = Self::of(Phase::Proposed);
        way.is_linked.set(true);
        way.memory.end().mine.setup.state.store(Proposal::Proposed as u32, Relaxed);
        way
    }

    /// One that has offered its socket.
    fn offered(offer: Offer) -> Self {
        let way = Self::of(Phase::Candidate);
        way.id().offer.store(offer.to_word(), Relaxed);
        way
    }

    fn id(&self) -> &Identity {
        &self.memory.record().id
    }

    fn phase(&self) -> Phase {
        phase(self)
    }

    fn is_answered_by(&self, endpoint: EndpointId) {
        let setup = &self.memory.end().theirs.setup;
        setup.endpoint.store(endpoint, Relaxed);
        setup.state.store(Answer::Accepted as u32, Relaxed);
    }

    fn proposal(&self) -> u32 {
        self.memory.end().mine.setup.state.load(Relaxed)
    }

    fn did(&self) -> Vec<Did> {
        self.did.take()
    }

    fn does(&self, what: Did) {
        self.did.borrow_mut().push(what);
    }
}

impl Course for Way {
    type Ticket = ();

    fn record(&self) -> &Record {
        self.memory.record()
    }

    fn end(&self) -> Option<End<'_>> {
        self.is_linked.get().then(|| self.memory.end())
    }

    fn is_open(&self) -> bool {
        !self.is_closed
    }

    fn now(&self) -> u64 {
        self.time.get()
    }

    fn kept<T>(&self, steps: impl FnOnce() -> T) -> Option<T> {
        (!self.is_over).then(steps)
    }

    fn alone<T>(&self, step: impl FnOnce(bool) -> T) -> Option<T> {
        if let Some(meanwhile) = self.meanwhile {
            meanwhile(self);
        }
        (!self.is_barred).then(|| step(self.is_nested))
    }

    fn is_put_off(&self) -> bool {
        self.is_put_off
    }

    fn find(&self) -> Option<()> {
        self.looks.set(self.looks.get() + 1);
        (self.found_at == Some(self.looks.get())).then_some(())
    }

    fn is_connecting(&self) -> bool {
        self.is_connecting
    }

    fn accept(&self, (): &(), time: Time) -> Result<(), Reason> {
        self.does(Did::Accepted(time));
        self.is_linked.set(self.accepted.is_ok());
        self.accepted
    }

    fn resumes(&self) -> bool {
        self.does(Did::Resumed);
        self.is_linked.set(!self.cannot_join);
        !self.cannot_join
    }

    fn claim(&self, time: Time) -> Result<bool, Reason> {
        self.does(Did::Claimed(time));
        self.is_linked.set(self.claimed == Ok(true));
        self.claimed
    }

    fn takes_place(&self, region: RegionId, slot: usize) -> Result<(), Reason> {
        self.does(Did::TookPlace(region, slot));
        self.is_linked.set(self.place.is_ok());
        self.place
    }

    fn is_unanswered(&self) {
        self.does(Did::Unanswered);
    }

    fn meets(&self, acceptor: EndpointId) -> bool {
        self.does(Did::Met(acceptor));
        if let Some(meanwhile) = self.meets_late {
            meanwhile(self);
        }
        !self.cannot_meet
    }

    fn has_agreed(&self) {
        self.does(Did::Agreed);
    }

    fn withdraw(&self) -> bool {
        self.does(Did::Withdrew);
        !self.cannot_withdraw
    }

    fn joins(&self) -> bool {
        self.does(Did::Joined);
        self.is_linked.set(!self.cannot_join);
        !self.cannot_join
    }

    fn greets(&self) {
        self.does(Did::Greeted);
    }

    fn decline(&self, why: Reason) {
        self.does(Did::Declined(why));
    }
}

#[test]
fn what_is_settled_needs_no_step() {
    for phase in [Phase::Tcp, Phase::Broken] {
        let way = Way::of(phase);
        assert_eq!((advance(&way), poll_handshake(&way), way.did()), (phase, phase, vec![]));
    }
    let way = Way::of(Phase::Active);
    way.is_linked.set(true);
    assert_eq!((advance(&way), way.did()), (Phase::Active, vec![]));
}

#[test]
fn one_that_is_put_off_looks_when_it_has_lasted() {
    for lasts in [
        |way: &Way| way.id().looks.store(1 << 20, Relaxed),
        |way: &Way| {
            way.time.set(3 * SECOND);
        },
    ] {
        let mut way = Way::of(Phase::Candidate);
        (way.is_put_off, way.found_at) = (true, Some(1));
        for _ in 0..20 {
            assert_eq!((advance(&way), poll_handshake(&way)), (Phase::Candidate, Phase::Candidate));
        }
        assert_eq!((way.looks.get(), way.did(), way.id().looks.load(Relaxed)), (0, vec![], 20));
        lasts(&way);
        assert_eq!((advance(&way), way.did()), (Phase::Active, vec![Did::Accepted(Time::AtUse)]));
    }
}

#[test]
fn a_server_takes_up_the_proposal_that_it_finds() {
    let mut way = Way::of(Phase::Candidate);
    way.found_at = Some(1);
    assert_eq!(advance(&way), Phase::Active);
    assert_eq!(way.did(), [Did::Accepted(Time::AtUse)]);
    let mut way = Way::of(Phase::Candidate);
    way.found_at = Some(1);
    assert_eq!(at_accept(&way), Phase::Active);
    assert_eq!(way.did(), [Did::Accepted(Time::AtAccept)]);
}

#[test]
fn one_that_was_posted_meanwhile_is_found_by_the_second_look() {
    let mut way = Way::of(Phase::Candidate);
    way.found_at = Some(2);
    assert_eq!(advance(&way), Phase::Active);
}

#[test]
fn without_a_proposal_it_declines_unless_somebody_connects() {
    let mut way = Way::of(Phase::Candidate);
    assert_eq!(advance(&way), Phase::Tcp);
    let declined = Did::Declined(Reason::NoProposal);
    assert_eq!(way.did(), [Did::Claimed(Time::AtUse), declined]);
    assert_eq!(way.phase(), Phase::Tcp, "before others can decline it a second time");
    way = Way::of(Phase::Candidate);
    way.is_connecting = true;
    assert_eq!((advance(&way), way.phase()), (Phase::Candidate, Phase::Candidate));
    assert_eq!(way.did(), [Did::Claimed(Time::AtUse)]);
    way.time.set(SECOND + SERVER_PATIENCE);
    assert_eq!(advance(&way), Phase::Tcp);
}

#[test]
fn a_claim_is_an_answer_too() {
    let mut way = Way::of(Phase::Candidate);
    way.claimed = Ok(true);
    assert_eq!((advance(&way), way.did()), (Phase::Active, vec![Did::Claimed(Time::AtUse)]));
    way.claimed = Err(Reason::NoResources);
    assert_eq!(advance(&way), Phase::Tcp);
    assert_eq!(way.did()[1], Did::Declined(Reason::NoResources));
}

#[test]
fn a_proposal_that_cannot_be_taken_up_is_declined_once() {
    let mut way = Way::of(Phase::Candidate);
    (way.found_at, way.accepted) = (Some(1), Err(Reason::ProtocolViolation));
    assert_eq!(advance(&way), Phase::Tcp);
    let declined = Did::Declined(Reason::ProtocolViolation);
    assert_eq!(way.did(), [Did::Accepted(Time::AtUse), declined]);
    assert_eq!((advance(&way), way.did()), (Phase::Tcp, vec![]));
}

#[test]
fn who_comes_second_finds_what_the_first_has_settled() {
    let mut way = Way::of(Phase::Candidate);
    way.found_at = Some(1);
    way.meanwhile = Some(|way| {
        way.is_linked.set(true);
        way.id().phase.store(Phase::Active as u32, Relaxed);
    });
    assert_eq!((advance(&way), way.did()), (Phase::Active, vec![]));
    way.id().phase.store(Phase::Candidate as u32, Relaxed);
    assert_eq!((poll_handshake(&way), way.did()), (Phase::Active, vec![]));
    // Where the first one is another process.
    for look in [advance, poll_handshake] {
        let mut way = Way::of(Phase::Candidate);
        way.meanwhile = Some(|way| way.id().phase.store(Phase::Active as u32, Relaxed));
        assert_eq!((look(&way), way.did()), (Phase::Active, vec![Did::Joined, Did::Greeted]));
    }
}

#[test]
fn the_next_connection_in_the_place_of_one_that_has_ended_is_left_alone() {
    for phase in [Phase::Candidate, Phase::Proposed, Phase::Active] {
        let mut way = Way::of(phase);
        (way.is_over, way.found_at, way.accepted) = (true, Some(1), Err(Reason::NoProposal));
        way.is_linked.set(phase == Phase::Proposed);
        way.is_answered_by(4);
        assert_eq!((advance(&way), poll_handshake(&way), way.phase()), (phase, phase, phase));
        assert_eq!((at_accept(&way), way.phase()), (Phase::Candidate, phase));
        assert_eq!(way.did(), []);
    }
}

#[test]
fn who_is_answered_second_changes_nothing() {
    let mut way = Way::client();
    way.is_answered_by(4);
    way.meets_late = Some(|way| way.id().phase.store(Phase::Broken as u32, Relaxed));
    assert_eq!((advance(&way), way.phase()), (Phase::Broken, Phase::Broken));
    assert_eq!(way.did(), [Did::Met(4)]);
}

#[test]
fn handlers_leave_the_step_to_the_call_that_they_interrupted() {
    let nested = |way: &mut Way| way.is_nested = true;
    let barred = |way: &mut Way| way.is_barred = true;
    for bar in [nested as fn(&mut Way), barred] {
        let mut way = Way::of(Phase::Candidate);
        way.found_at = Some(1);
        bar(&mut way);
        assert_eq!((advance(&way), poll_handshake(&way)), (Phase::Candidate, Phase::Candidate));
        assert_eq!(way.did(), []);
    }
}

#[test]
fn polling_takes_a_proposal_up_and_declines_nothing() {
    let mut way = Way::of(Phase::Candidate);
    assert_eq!((poll_handshake(&way), way.did()), (Phase::Candidate, vec![]));
    assert_eq!(way.phase(), Phase::Candidate);
    way.found_at = Some(2);
    assert_eq!(poll_handshake(&way), Phase::Active);
    let mut way = Way::of(Phase::Candidate);
    (way.found_at, way.accepted) = (Some(1), Err(Reason::NoResources));
    assert_eq!((poll_handshake(&way), way.phase()), (Phase::Candidate, Phase::Candidate));
    for offer in [Offer::Open(1), Offer::Declined(Reason::PeerNotShunted)] {
        let way = Way::offered(offer);
        assert_eq!((poll_handshake(&way), way.phase()), (Phase::Candidate, Phase::Candidate));
    }
}

#[test]
fn a_client_meets_who_has_answered() {
    for look in [advance, poll_handshake] {
        let way = Way::client();
        assert_eq!((look(&way), way.did()), (Phase::Proposed, vec![]));
        assert_eq!(way.proposal(), Proposal::Used as u32, "what comes will be read");
        way.is_answered_by(7);
        assert_eq!(look(&way), Phase::Active);
        assert_eq!(way.did(), [Did::Met(7), Did::Agreed]);
        assert_eq!(way.phase(), Phase::Active);
    }
}

#[test]
fn an_acceptor_that_cannot_be_met_is_read_and_not_written_to() {
    let mut way = Way::client();
    way.cannot_meet = true;
    way.is_answered_by(7);
    assert_eq!((advance(&way), way.phase()), (Phase::Proposed, Phase::Proposed));
    assert_eq!(way.did(), [Did::Met(7)]);
}

#[test]
fn a_client_that_has_waited_long_takes_its_proposal_back() {
    let way = Way::client();
    way.time.set(SECOND + CLIENT_PATIENCE);
    for _ in 0..CLIENT_LOOKS {
        assert_eq!((advance(&way), way.did()), (Phase::Proposed, vec![]));
    }
    assert_eq!(poll_handshake(&way), Phase::Proposed, "who only looks gives nothing up");
    assert_eq!(advance(&way), Phase::Tcp);
    assert_eq!(way.did(), [Did::Withdrew, Did::Declined(Reason::NotAccepted)]);
}

#[test]
fn a_client_whose_proposal_was_declined_waits_no_longer() {
    let way = Way::client();
    let answer = &way.memory.end().theirs.setup.state;
    answer.store(Answer::Declined as u32, Relaxed);
    assert_eq!(poll_handshake(&way), Phase::Proposed, "who only looks gives nothing up");
    assert_eq!(advance(&way), Phase::Tcp);
    assert_eq!(way.did(), [Did::Declined(Reason::PeerNotShunted)], "who declines has taken it");
    let way = Way::client();
    let setup = &way.memory.end().theirs.setup;
    setup.why.store(Reason::SmcEchoed as u32, Relaxed);
    setup.state.store(Answer::Declined as u32, Relaxed);
    assert_eq!((advance(&way), way.did()), (Phase::Tcp, vec![Did::Declined(Reason::SmcEchoed)]));
    let way = Way::client();
    way.memory.end().theirs.setup.state.store(Answer::Declined as u32, Relaxed);
    assert_eq!((ends(&way), way.did()), (AtEnd::GivesBack, vec![]));
}

#[test]
fn an_acceptor_that_was_quicker_is_waited_for() {
    let mut way = Way::client();
    way.cannot_withdraw = true;
    way.time.set(SECOND + CLIENT_PATIENCE);
    way.id().looks.store(CLIENT_LOOKS, Relaxed);
    assert_eq!((advance(&way), way.did()), (Phase::Proposed, vec![Did::Withdrew]));
}

#[test]
fn a_child_does_not_wait_for_what_its_parent_has_proposed_since() {
    let way = Way::of(Phase::Proposed);
    assert_eq!((advance(&way), way.did()), (Phase::Tcp, vec![]));
    way.id().offer.store(Offer::Claimed { region: 1, slot: 2 }.to_word(), Relaxed);
    assert_eq!((advance(&way), way.did()), (Phase::Proposed, vec![Did::Joined]));
    let mut way = Way::of(Phase::Proposed);
    way.id().offer.store(Offer::Claimed { region: 1, slot: 2 }.to_word(), Relaxed);
    way.cannot_join = true;
    assert_eq!(advance(&way), Phase::Tcp);
}

#[test]
fn a_relative_adopts_what_another_one_has_settled() {
    for look in [advance, poll_handshake] {
        let way = Way::of(Phase::Active);
        assert_eq!((look(&way), way.did()), (Phase::Active, vec![Did::Joined, Did::Greeted]));
        let mut way = Way::of(Phase::Active);
        way.cannot_join = true;
        assert_eq!(look(&way), Phase::Broken);
        way.is_closed = true;
        assert_eq!(look(&way), Phase::Active, "the call says what is to be said");
    }
}

/// An acceptor's candidate, whose place stands in the record: a relative was killed as it answered.
fn half_settled() -> Way {
    let way = Way::of(Phase::Candidate);
    way.id().side.store(Side::Server as u32, Relaxed);
    way.id().region.store(9, Relaxed);
    way
}

#[test]
fn a_relative_goes_on_where_one_was_killed_as_it_answered() {
    for look in [advance, poll_handshake] {
        let mut way = half_settled();
        (way.is_put_off, way.is_connecting) = (true, true);
        assert_eq!((look(&way), way.did()), (Phase::Active, vec![Did::Resumed]));
        let mut way = half_settled();
        put(way.record(), RESET_DUE, true);
        way.cannot_join = true;
        assert_eq!((look(&way), way.phase()), (Phase::Broken, Phase::Candidate), "for this call");
        way.is_closed = true;
        assert_eq!(look(&way), Phase::Candidate, "the call says what is to be said");
        way.did();
        (way.is_closed, way.is_nested) = (false, true);
        assert_eq!((look(&way), way.did()), (Phase::Candidate, vec![]));
    }
    let way = half_settled();
    way.id().side.store(Side::Client as u32, Relaxed);
    assert_eq!(advance(&way), Phase::Tcp, "it has taken no proposal up");
}

#[test]
fn an_offer_is_waited_for_and_withdrawn() {
    let way = Way::offered(Offer::Open(3));
    assert!(is_offered(way.id()));
    assert_eq!((advance(&way), way.did()), (Phase::Candidate, vec![]));
    way.time.set(SECOND + CLIENT_PATIENCE);
    way.id().looks.store(CLIENT_LOOKS, Relaxed);
    assert_eq!(advance(&way), Phase::Tcp);
    assert_eq!(way.did(), [Did::Declined(Reason::NotAccepted)]);
    assert!(!is_offered(way.id()));
    let way = Way::offered(Offer::Open(3));
    withdraw_offer(way.id());
    assert!(!is_offered(way.id()));
}

#[test]
fn a_place_that_was_found_is_taken_and_the_acceptor_met() {
    for look in [advance, poll_handshake] {
        let way = Way::offered(Offer::Claimed { region: 9, slot: 5 });
        way.is_answered_by(4);
        assert_eq!(look(&way), Phase::Active);
        assert_eq!(way.did(), [Did::TookPlace(9, 5), Did::Met(4), Did::Agreed]);
        let mut way = Way::offered(Offer::Claimed { region: 9, slot: 5 });
        way.cannot_meet = true;
        way.is_answered_by(4);
        assert_eq!((look(&way), way.phase()), (Phase::Proposed, Phase::Proposed));
    }
    let mut way = Way::offered(Offer::Claimed { region: 9, slot: 5 });
    way.place = Err(Reason::NoResources);
    assert_eq!(poll_handshake(&way), Phase::Candidate);
    assert_eq!(way.did(), [Did::TookPlace(9, 5)]);
    assert_eq!(advance(&way), Phase::Tcp);
    assert_eq!(way.did(), [Did::TookPlace(9, 5), Did::Declined(Reason::NoResources)]);
}

#[test]
fn a_declined_offer_says_why() {
    let way = Way::offered(Offer::Declined(Reason::PeerNotShunted));
    assert_eq!(advance(&way), Phase::Tcp);
    assert_eq!(way.did(), [Did::Unanswered, Did::Declined(Reason::PeerNotShunted)]);
    let way = Way::offered(Offer::Declined(Reason::NoResources));
    assert_eq!(advance(&way), Phase::Tcp);
    assert_eq!(way.did(), [Did::Declined(Reason::NoResources)]);
}

#[test]
fn a_word_that_no_acceptor_writes_is_no_answer() {
    let way = Way::client();
    way.memory.end().theirs.setup.state.store(99, Relaxed);
    assert_eq!((advance(&way), way.did()), (Phase::Proposed, vec![]));
}

#[test]
fn at_the_end_what_nobody_has_taken_up_is_taken_back() {
    for phase in [Phase::Tcp, Phase::Candidate, Phase::Active, Phase::Broken] {
        let way = Way::of(phase);
        let expected = if phase == Phase::Tcp { AtEnd::GivesBack } else { AtEnd::Tells };
        assert_eq!((ends(&way), way.did()), (expected, vec![]), "{phase:?}");
    }
    let way = Way::client();
    assert_eq!((ends(&way), way.did()), (AtEnd::GivesBack, vec![Did::Withdrew]));
    let mut way = Way::client();
    way.cannot_withdraw = true;
    assert_eq!(ends(&way), AtEnd::Tells, "an acceptor has it");
    let way = Way::offered(Offer::Open(3));
    assert_eq!(ends(&way), AtEnd::Tells);
    assert!(!is_offered(way.id()));
}

#[test]
fn the_last_relative_tells_the_peer_also_of_a_connection_that_only_others_have_used() {
    let has_to = |way: &Way| is_to_join_at_end(way);
    for phase in [Phase::Active, Phase::Broken] {
        let way = Way::of(phase);
        assert!(has_to(&way), "{phase:?}");
        way.is_linked.set(true);
        assert!(!has_to(&way), "{phase:?}: it takes part");
    }
    for phase in [Phase::Tcp, Phase::Candidate, Phase::Proposed] {
        assert!(!has_to(&Way::of(phase)), "{phase:?}: nobody else has a place for it");
    }
    assert!(has_to(&half_settled()), "the client may know the answer of one that was killed");
    let way = Way::offered(Offer::Claimed { region: 9, slot: 5 });
    assert!(!has_to(&way), "nobody has taken the place");
    set_phase(&way, Phase::Proposed);
    assert!(has_to(&way), "a child has");
}

#[test]
fn the_last_relative_is_looked_for_where_the_peer_may_have_an_answer() {
    for (phase, is_told) in [
        (Phase::Tcp, false),
        (Phase::Proposed, true),
        (Phase::Candidate, false),
        (Phase::Active, true),
        (Phase::Broken, false),
    ] {
        assert_eq!(is_to_be_told(Way::of(phase).record()), is_told, "{phase:?}");
    }
    assert!(is_to_be_told(half_settled().record()));
}

#[test]
fn one_that_owes_the_program_a_reset_is_not_left_to_the_kernel() {
    let way = Way::of(Phase::Candidate);
    put(way.record(), RESET_DUE, true);
    assert_eq!((advance(&way), way.did()), (Phase::Candidate, vec![]));
    put(way.record(), RESET_DUE, false);
    assert_eq!(advance(&way), Phase::Tcp);
    let way = Way::client();
    way.time.set(SECOND + CLIENT_PATIENCE);
    way.id().looks.store(CLIENT_LOOKS, Relaxed);
    put(way.record(), RESET_DUE, true);
    assert_eq!((advance(&way), way.did()), (Phase::Proposed, vec![]));
}
