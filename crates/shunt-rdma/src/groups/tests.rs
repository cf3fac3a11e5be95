use std::collections::{BTreeSet, VecDeque};

use shunt_far::lane::Stand;
use shunt_verbs::value::{Gid, Mtu, PacketNumber, PairNumber};

use super::*;

fn pair(number: u32) -> PeerPair {
    let (number, first_packet) = (PairNumber(number), PacketNumber::new(1));
    PeerPair { gid: Gid([1; 16]), number, first_packet, mtu: Mtu::B1024 }
}

fn halt(received: u64) -> Halt {
    Halt { slot: 3, generation: 1, stand: Stand { received, ..Stand::default() } }
}

const GROUP: u32 = 0;

fn said(group: u32, number: u32) -> Group {
    Group { group, pair: pair(number) }
}

/// The dialer with a link group that is up.
fn up() -> Groups {
    let mut groups = Groups::new(true);
    assert_eq!(groups.offer(), [Order::Make(GROUP)]);
    let offered = groups.made(GROUP, Ok(pair(1)));
    assert_eq!(offered, [Order::Say(Message::Offer(said(GROUP, 1)))]);
    let accepted = groups.hear(&Message::Accept(said(GROUP, 2))).unwrap();
    assert_eq!(accepted, [Order::Connect(GROUP, pair(2))]);
    assert_eq!(groups.connected(GROUP), []);
    assert_eq!(groups.count(), (1, 1));
    groups
}

#[test]
fn one_that_is_offered_is_made_connected_and_accepted() {
    let mut groups = Groups::new(false);
    let made = groups.hear(&Message::Offer(said(4, 7))).unwrap();
    assert_eq!(made, [Order::Make(4)]);
    assert_eq!(groups.made(4, Ok(pair(8))), [Order::Connect(4, pair(7))]);
    assert_eq!(groups.count(), (0, 1));
    let accepts = Order::Say(Message::Accept(said(4, 8)));
    assert_eq!(groups.connected(4), [accepts]);
    assert_eq!(groups.count(), (1, 1));
}

#[test]
fn what_cannot_be_made_is_refused_with_the_reason() {
    let mut groups = Groups::new(false);
    groups.hear(&Message::Offer(said(4, 7))).unwrap();
    let refused = groups.made(4, Err((Refusal::Memory, "why".into())));
    assert_eq!(refused, [Order::Say(Message::Refuse(4, Refusal::Memory))]);
    assert_eq!((groups.count(), groups.why()), ((0, 0), Some("why")));
    // Nor is one that cannot be connected.
    groups.hear(&Message::Offer(said(6, 7))).unwrap();
    groups.made(6, Ok(pair(8)));
    let refused = groups.failed(6, &Cause::Refused, true);
    let says = Order::Say(Message::Refuse(6, Refusal::Failed));
    assert_eq!(refused, [says, Order::Remove(6)]);
    // The other side hears it.
    let mut groups = Groups::new(true);
    groups.offer();
    groups.made(GROUP, Ok(pair(1)));
    let removed = groups.hear(&Message::Refuse(GROUP, Refusal::Memory)).unwrap();
    assert_eq!(removed, [Order::Remove(GROUP)]);
    assert!(groups.why().unwrap().contains("RLIMIT_MEMLOCK"));
}

#[test]
fn what_cannot_be_offered_is_told_with_the_reason() {
    let mut groups = Groups::new(true);
    groups.offer();
    let says = groups.made(GROUP, Err((Refusal::Memory, "why".into())));
    let refuse = Message::Refuse(GROUP, Refusal::Memory);
    assert_eq!(says, [Order::Say(refuse.clone())]);
    let mut other = Groups::new(false);
    assert_eq!(other.hear(&refuse), Ok(Vec::new()));
    assert!(other.why().unwrap().contains("RLIMIT_MEMLOCK"));
    assert_eq!(other.count(), (0, 0));
}

const PLACE: Place = Place { group: GROUP, slot: 3, generation: 1 };

fn rest() -> Rest {
    Rest { at: 7, base: 0, bytes: vec![1], end: None }
}

#[test]
fn both_sides_say_where_they_stood_before_anything_goes_on() {
    let halted = |received| Message::Halted(Halted { group: GROUP, halts: vec![halt(received)] });
    let settles = Order::Settle(GROUP, vec![halt(6)]);
    let says = [Message::Rest(PLACE, rest()), Message::Gone(GROUP)].map(Order::Say);
    let rests = || vec![(PLACE, rest())];
    // This side's link fails first.
    let mut groups = up();
    assert_eq!(groups.failed(GROUP, &Cause::Order, true), [Order::Halt(GROUP)]);
    assert_eq!(groups.stood(GROUP, vec![halt(5)]), [Order::Say(halted(5))]);
    assert_eq!(groups.count(), (0, 1));
    assert_eq!(groups.hear(&halted(6)).unwrap(), core::slice::from_ref(&settles));
    assert_eq!(groups.settled(GROUP, rests()), says);
    let delivers = Order::Deliver(PLACE, rest());
    assert_eq!(groups.hear(&Message::Rest(PLACE, rest())).unwrap(), [delivers]);
    assert_eq!(groups.count(), (0, 1), "the peer may have more to say");
    assert_eq!(groups.hear(&Message::Gone(GROUP)).unwrap(), [Order::Remove(GROUP)]);
    assert_eq!(groups.count(), (0, 0));
    // The peer's does, and it is through before this side is.
    let mut groups = up();
    let looks = [Order::Fail(GROUP), Order::Halt(GROUP)];
    assert_eq!(groups.hear(&halted(6)).unwrap(), looks);
    assert_eq!(groups.failed(GROUP, &Cause::Told, true), []);
    let second = groups.stood(GROUP, vec![halt(5)]);
    assert_eq!(second, [Order::Say(halted(5)), settles]);
    assert_eq!(groups.hear(&Message::Gone(GROUP)), Ok(Vec::new()));
    assert!(groups.hear(&Message::Rest(PLACE, rest())).is_err(), "it has said that this was all");
    let mut all = says.to_vec();
    all.push(Order::Remove(GROUP));
    assert_eq!(groups.settled(GROUP, rests()), all);
    assert_eq!(groups.count(), (0, 0));
}

fn renewal(group: u32) -> Renewal {
    Renewal { group, pair: pair(9), positions: Vec::new() }
}

/// The other side of [`up`].
fn up_there() -> Groups {
    let mut groups = Groups::new(false);
    groups.hear(&Message::Offer(said(GROUP, 1))).unwrap();
    groups.made(GROUP, Ok(pair(2)));
    groups.connected(GROUP);
    assert_eq!(groups.count(), (1, 1));
    groups
}

#[test]
fn a_link_that_fails_goes_on_with_another_queue_pair() {
    let (renews, renewed) = (Message::Renew(renewal(GROUP)), Message::Renewed(renewal(GROUP)));
    // Whoever offered it makes the first one, whoever's end fails.
    let mut own = up();
    assert_eq!(own.failed(GROUP, &Cause::Silence, true), [Order::Renew(GROUP)]);
    assert_eq!(own.count(), (0, 1));
    let mut far = up_there();
    let failed = Message::Failed(GROUP);
    assert_eq!(far.failed(GROUP, &Cause::Pair, true), [Order::Say(failed.clone())]);
    assert_eq!(own.hear(&failed), Ok(Vec::new()), "it knows");
    let mut other = up();
    let renew = [Order::Fail(GROUP), Order::Renew(GROUP)];
    assert_eq!(other.hear(&failed).unwrap(), renew);
    assert_eq!(other.failed(GROUP, &Cause::Told, true), []);
    assert_eq!(own.renewed(GROUP, Some(renewal(GROUP))), [Order::Say(renews.clone())]);
    // Whether it has failed there or not.
    for mut far in [far, up_there()] {
        assert_eq!(far.hear(&renews).unwrap(), [Order::Answer(renewal(GROUP))]);
        assert_eq!(far.failed(GROUP, &Cause::Told, true), []);
        assert!(far.is_far(GROUP) && far.is_renewed(GROUP));
        assert_eq!(far.renewed(GROUP, Some(renewal(GROUP))), [Order::Say(renewed.clone())]);
        assert_eq!(far.count(), (1, 1));
    }
    assert_eq!(own.hear(&renewed).unwrap(), [Order::GoOn(renewal(GROUP))]);
    assert_eq!((own.count(), own.is_renewed(GROUP)), ((0, 1), true));
    assert_eq!(own.connected(GROUP), []);
    assert_eq!((own.count(), own.is_renewed(GROUP)), ((1, 1), false));
}

#[test]
fn one_that_does_not_go_on_leaves_its_connections_to_tcp() {
    let halts = [Order::Halt(GROUP)];
    let both = [Order::Fail(GROUP), Order::Halt(GROUP)];
    // A rule was broken, it is to end, or it was renewed just now.
    for (cause, may) in [(Cause::NoConnection, true), (Cause::Ends, true), (Cause::Silence, false)]
    {
        assert_eq!(up().failed(GROUP, &cause, may), halts, "{cause}");
        assert_eq!(up_there().failed(GROUP, &cause, may), halts, "{cause}");
    }
    // There is no other queue pair.
    let mut own = up();
    own.failed(GROUP, &Cause::Silence, true);
    assert_eq!(own.renewed(GROUP, None), both);
    let mut far = up_there();
    far.hear(&Message::Renew(renewal(GROUP))).unwrap();
    assert_eq!(far.renewed(GROUP, None), both);
    // It takes too long, and what the peer says then is of no use.
    let mut own = up();
    own.failed(GROUP, &Cause::Silence, true);
    own.renewed(GROUP, Some(renewal(GROUP)));
    assert_eq!(own.gives_up(GROUP), both);
    assert_eq!(own.hear(&Message::Renewed(renewal(GROUP))), Ok(Vec::new()));
    let mut far = up_there();
    far.failed(GROUP, &Cause::Silence, true);
    assert_eq!(far.gives_up(GROUP), both);
    assert_eq!(far.hear(&Message::Renew(renewal(GROUP))), Ok(Vec::new()));
    // The new one fails before it is up, here or there.
    let going_on = || {
        let mut own = up();
        own.failed(GROUP, &Cause::Silence, true);
        own.renewed(GROUP, Some(renewal(GROUP)));
        own.hear(&Message::Renewed(renewal(GROUP))).unwrap();
        own
    };
    assert_eq!(going_on().failed(GROUP, &Cause::Silence, true), halts);
    assert_eq!(going_on().hear(&Message::Failed(GROUP)).unwrap(), both);
    let halted = Message::Halted(Halted { group: GROUP, halts: Vec::new() });
    assert_eq!(going_on().hear(&halted).unwrap(), both);
}

#[test]
fn a_peer_that_says_what_cannot_be_is_noticed() {
    let halted = Message::Halted(Halted { group: GROUP, halts: Vec::new() });
    let accept = Message::Accept(said(GROUP, 2));
    let refuse = Message::Refuse(GROUP, Refusal::Many);
    let impossible = |groups: &mut Groups, message: &Message| groups.hear(message).is_err();
    let mut none = Groups::new(true);
    let (gone, rest) = (Message::Gone(GROUP), Message::Rest(PLACE, rest()));
    for message in [&halted, &accept, &refuse, &gone, &rest] {
        assert!(impossible(&mut none, message), "{message:?}");
    }
    for message in [&gone, &rest] {
        assert!(impossible(&mut up(), message), "{message:?}");
    }
    // Of a link group that it has not offered, or of its own; twice; and of none.
    let (failed, renews, renewed) =
        (Message::Failed(GROUP), Message::Renew(renewal(GROUP)), Message::Renewed(renewal(GROUP)));
    for message in [&failed, &renews, &renewed] {
        assert!(impossible(&mut none, message), "{message:?}");
    }
    assert!(impossible(&mut up(), &renews) && impossible(&mut up(), &renewed));
    assert!(impossible(&mut up_there(), &failed) && impossible(&mut up_there(), &renewed));
    let mut far = up_there();
    far.hear(&renews).unwrap();
    assert!(impossible(&mut far, &renews));
    // Under names that are this side's, or twice.
    assert!(impossible(&mut none, &Message::Offer(said(2, 1))));
    none.hear(&Message::Offer(said(3, 1))).unwrap();
    assert!(impossible(&mut none, &Message::Offer(said(3, 1))));
    // One that it has offered itself it cannot accept, nor say that it has failed.
    for message in [Message::Accept(said(3, 1)), Message::Refuse(3, Refusal::Many)] {
        assert!(impossible(&mut none, &message));
    }
    for message in [&accept, &refuse] {
        assert!(impossible(&mut up(), message));
    }
    let lane = Message::NotOpened(Place { group: GROUP, slot: 0, generation: 0 }, Refusal::Many);
    assert!(impossible(&mut up(), &lane));
}

#[test]
fn there_are_only_so_many() {
    let mut groups = Groups::new(true);
    let name = |at: usize| u32::try_from(at).unwrap() * 2 + 1;
    for at in 0..GROUPS {
        assert_eq!(groups.hear(&Message::Offer(said(name(at), 1))).unwrap().len(), 1);
    }
    let refused = groups.hear(&Message::Offer(said(name(GROUPS), 1))).unwrap();
    assert_eq!(refused, [Order::Say(Message::Refuse(name(GROUPS), Refusal::Many))]);
    assert_eq!(groups.offer(), []);
    assert_eq!(groups.end().len(), GROUPS);
    assert_eq!((groups.count(), groups.offer().len()), ((0, 0), 1));
}

#[test]
fn a_peer_that_is_gone_has_said_all_or_not() {
    let settling = || {
        let mut groups = up();
        groups.failed(GROUP, &Cause::Order, true);
        groups.stood(GROUP, Vec::new());
        let halted = Message::Halted(Halted { group: GROUP, halts: Vec::new() });
        groups.hear(&halted).unwrap();
        groups
    };
    assert_eq!(settling().end(), [Order::Abandon(GROUP)]);
    let mut groups = settling();
    groups.settled(GROUP, Vec::new());
    assert_eq!(groups.end(), [Order::Abandon(GROUP)], "this side has said all");
    let mut groups = settling();
    groups.hear(&Message::Gone(GROUP)).unwrap();
    assert_eq!(groups.end(), [Order::Remove(GROUP)]);
}

#[test]
fn what_a_worker_tells_of_one_that_is_gone_leads_to_nothing() {
    let mut groups = up();
    groups.end();
    assert_eq!(groups.made(GROUP, Ok(pair(1))), []);
    assert_eq!(groups.connected(GROUP), []);
    assert_eq!(groups.failed(GROUP, &Cause::Silence, true), []);
    assert_eq!(groups.renewed(GROUP, Some(renewal(GROUP))), []);
    assert_eq!(groups.gives_up(GROUP), []);
    assert_eq!(groups.stood(GROUP, Vec::new()), []);
    assert_eq!(groups.settled(GROUP, Vec::new()), []);
}

/// Two sides with a wire each way, and workers that do what they are told, now or later.
#[derive(Default)]
struct Side {
    orders: VecDeque<Order>,
    heard: VecDeque<Message>,
    /// Link groups with a queue pair, and those whose link has failed.
    pairs: BTreeSet<u32>,
    failed: BTreeSet<u32>,
    settled: Vec<u32>,
    delivered: Vec<u32>,
    /// It makes no second queue pair.
    refuses: bool,
    /// Link groups that went on with one.
    renewed: usize,
}

struct Two {
    groups: [Groups; 2],
    sides: [Side; 2],
}

impl Two {
    /// A worker tells of a failure once.
    fn fail(&mut self, who: usize, name: u32, cause: &Cause) {
        if self.sides[who].failed.insert(name) {
            let orders = self.groups[who].failed(name, cause, true);
            self.give(who, orders);
        }
    }

    fn renewed(&mut self, who: usize, name: u32) -> Vec<Order> {
        let renewal = (!self.sides[who].refuses).then(|| renewal(name));
        self.groups[who].renewed(name, renewal)
    }

    fn give(&mut self, who: usize, orders: Vec<Order>) {
        self.sides[who].orders.extend(orders);
    }

    /// Does one thing of a side. False: it has nothing to do.
    fn step(&mut self, who: usize, hears: bool) -> bool {
        if hears && let Some(message) = self.sides[who].heard.pop_front() {
            let orders = self.groups[who].hear(&message).expect("honest");
            self.give(who, orders);
            return true;
        }
        let Some(order) = self.sides[who].orders.pop_front() else { return false };
        let orders = match order {
            Order::Say(message) => {
                self.sides[1 - who].heard.push_back(message);
                Vec::new()
            }
            Order::Make(name) => {
                assert!(self.sides[who].pairs.insert(name));
                self.groups[who].made(name, Ok(pair(name)))
            }
            Order::Connect(name, _) => {
                // One that has failed meanwhile is not.
                let fails = self.sides[who].failed.contains(&name);
                if fails { Vec::new() } else { self.groups[who].connected(name) }
            }
            Order::Fail(name) => {
                self.fail(who, name, &Cause::Told);
                Vec::new()
            }
            Order::Renew(name) => {
                assert!(self.sides[who].failed.contains(&name));
                self.renewed(who, name)
            }
            Order::Answer(Renewal { group: name, .. }) => {
                self.fail(who, name, &Cause::Told);
                if !self.sides[who].refuses {
                    self.sides[who].failed.remove(&name);
                }
                self.renewed(who, name)
            }
            Order::GoOn(Renewal { group: name, .. }) => {
                assert!(self.sides[who].failed.remove(&name));
                self.sides[who].renewed += 1;
                self.groups[who].connected(name)
            }
            Order::Halt(name) => {
                assert!(self.sides[who].failed.contains(&name));
                self.groups[who].stood(name, Vec::new())
            }
            Order::Settle(name, _) => {
                assert!(self.sides[who].failed.contains(&name));
                self.sides[who].settled.push(name);
                let place = Place { group: name, ..PLACE };
                self.groups[who].settled(name, vec![(place, rest())])
            }
            Order::Deliver(place, _) => {
                assert!(self.sides[who].pairs.contains(&place.group));
                self.sides[who].delivered.push(place.group);
                Vec::new()
            }
            Order::Remove(name) | Order::Abandon(name) => {
                assert!(self.sides[who].pairs.remove(&name));
                Vec::new()
            }
        };
        self.give(who, orders);
        true
    }

    fn settle(&mut self) {
        while (0..4).any(|turn| self.step(turn % 2, turn < 2)) {}
    }
}

proptest::proptest! {
    #[test]
    fn two_honest_sides_agree_in_any_order(
        acts in proptest::collection::vec(0_u8..14, 0..120),
        refuses in proptest::array::uniform2(proptest::bool::weighted(0.2)),
    ) {
        let groups = [Groups::new(true), Groups::new(false)];
        let sides = refuses.map(|refuses| Side { refuses, ..Side::default() });
        let mut two = Two { groups, sides };
        for act in acts {
            let who = usize::from(act % 2);
            match act / 2 {
                0 => {
                    let orders = two.groups[who].offer();
                    two.give(who, orders);
                }
                // A link fails, which may not be connected yet.
                fails @ (1 | 2) => {
                    let cause = if fails == 1 { Cause::Silence } else { Cause::Order };
                    let first = two.sides[who].pairs.first().copied();
                    if let Some(name) = first {
                        two.fail(who, name, &cause);
                    }
                }
                // It takes too long.
                3 => {
                    let first = two.sides[who].pairs.first().copied();
                    let orders = first.map(|name| two.groups[who].gives_up(name));
                    two.give(who, orders.unwrap_or_default());
                }
                4 => drop(two.step(who, true)),
                _ => drop(two.step(who, false)),
            }
        }
        two.settle();
        // Both have the same, all of it up, and nothing is left of the others.
        let names = two.sides.each_ref().map(|side| side.pairs.iter().copied().collect::<Vec<_>>());
        proptest::prop_assert_eq!(&names[0], &names[1]);
        for (who, groups) in two.groups.iter().enumerate() {
            let (up, all) = groups.count();
            proptest::prop_assert_eq!((up, all), (names[who].len(), names[who].len()));
        }
        let [one, other] = two.sides.each_mut().map(|side| {
            side.settled.sort_unstable();
            side.delivered.sort_unstable();
            (side.settled.clone(), side.delivered.clone())
        });
        proptest::prop_assert_eq!(&one, &other);
        proptest::prop_assert_eq!(&one.0, &one.1);
    }
}
