//! What the thread does about link groups: carries out what they ask for, and hands on what workers tell.

use std::time::Duration;

use shunt_far::{Cause, Halt};
use shunt_peer::message::{Refusal, Renewal};
use shunt_verbs::port::Port;
use shunt_verbs::value::PeerPair;
use tracing::{info, warn};

use super::Hub;
use crate::endings::{Endings, Rests};
use crate::groups::Order;
use crate::links::{Name, Outcome, refusal};
use crate::peers::Peer;
use crate::pool::Told;

/// Time between two offers of a link group, while there is none.
const OFFER_AGAIN: Duration = Duration::from_secs(5);

/// What has come of a link group.
enum Came {
    Made(Result<PeerPair, (Refusal, String)>),
    Connected,
    Failed(Cause),
    Renewed(Option<Renewal>),
    GivenUp,
    Stood(Vec<Halt>),
    Settled(Rests),
}

impl<P: Port + Clone + Send + 'static> Hub<P> {
    /// When to offer a link group to a peer.
    pub(super) fn offer_at(&self, peer: &Peer) -> Option<Duration> {
        peer.offer_at.filter(|_| self.device().is_some())
    }

    /// Offers a link group to peers that have none.
    pub(super) fn offer(&mut self, now: Duration) {
        for at in 0..self.peers.len() {
            if self.offer_at(&self.peers[at]).is_none_or(|offer_at| offer_at > now) {
                continue;
            }
            let peer = &mut self.peers[at];
            // One that fails is offered anew; one that does not stays.
            peer.offer_at = Some(now + OFFER_AGAIN);
            if peer.groups.count().1 == 0 {
                let orders = peer.groups.offer();
                self.carry_out(at, orders, now);
            }
        }
    }

    /// Does what is to be done about a peer's link groups.
    pub(super) fn carry_out(&mut self, at: usize, orders: Vec<Order>, now: Duration) {
        let (key, dials) = (self.peers[at].name.key, self.peers[at].dials);
        for order in orders {
            let has_device = self.device().is_some();
            self.heed_failover(key, &order, now);
            let Some(links) = &mut self.links else {
                self.refuse(at, order, now);
                continue;
            };
            let has_said_all = matches!(order, Order::Remove(_));
            match order {
                Order::Say(message) => self.say_to(at, &message, now),
                Order::Make(name) if has_device => links.make((key, name)),
                Order::Make(_) => self.refuse(at, order, now),
                Order::Connect(name, far) => {
                    links.connect((key, name), far, name.is_multiple_of(2) == dials);
                }
                Order::Fail(name) => links.fail((key, name)),
                Order::Renew(name) => links.renew((key, name)),
                Order::Answer(renewal) => {
                    let name = (key, renewal.group);
                    links.answer(name, renewal);
                    self.refuse_next(name, now);
                }
                Order::GoOn(renewal) => links.go_on((key, renewal.group), renewal),
                Order::Halt(name) => {
                    let host = &self.peers[at].name;
                    info!("peer {host}: connections of link group {name} go back to TCP");
                    links.halt((key, name));
                }
                Order::Settle(name, far) => links.settle((key, name), far),
                Order::Deliver(place, rest) => links.deliver((key, place.group), place, rest),
                Order::Remove(name) | Order::Abandon(name) => {
                    links.remove((key, name), has_said_all);
                    self.endings.remove(&(key, name));
                    self.failovers.forget((key, name));
                    self.no_more_measuring((key, name), now);
                    self.group_is_over((key, name));
                }
            }
        }
    }

    /// Without a device nothing is offered, and what the peer offers is refused.
    fn refuse(&mut self, at: usize, order: Order, now: Duration) {
        match order {
            Order::Say(message) => self.say_to(at, &message, now),
            Order::Make(name) => {
                let lacks = self.device_lacks.clone().unwrap_or_default();
                let orders = self.peers[at].groups.made(name, Err((Refusal::Device, lacks)));
                orders.into_iter().for_each(|order| self.refuse(at, order, now));
            }
            _ => {}
        }
    }

    /// Connections of a link are settled: what the peer is to be sent, once all of them are.
    fn settled(
        &mut self,
        name: Name,
        rests: Rests,
        slots: Vec<usize>,
        now: Duration,
    ) -> Option<Rests> {
        let mut endings = self.endings.remove(&name).unwrap_or_else(|| Endings::new(now));
        endings.rests.extend(rests);
        if slots.is_empty() {
            return Some(endings.rests);
        }
        endings.await_those(slots, now);
        self.endings.insert(name, endings);
        None
    }

    /// When to look at programs that are about to end.
    pub(super) fn endings_at(&self) -> Option<Duration> {
        self.endings.values().filter_map(Endings::look_at).min()
    }

    /// Looks at them.
    pub(super) fn see_to_endings(&mut self, now: Duration) {
        let Some(links) = &self.links else { return };
        for (name, endings) in &mut self.endings {
            if let Some((slots, is_over)) = endings.due(now) {
                links.settle_endings(*name, slots, is_over);
            }
        }
    }

    /// A worker has done something, or tells of a link.
    pub(super) fn came_of_it(&mut self, outcome: Outcome, now: Duration) {
        let Some(links) = &mut self.links else { return };
        let (name, came) = match outcome {
            // Nobody wants it any more, and it goes.
            Outcome::Made(name, link, _) if links.named(link) != Some(name) => return,
            Outcome::Made(name, _, Ok(pair)) => (name, Came::Made(Ok(pair))),
            Outcome::Made(name, _, Err(refused)) => {
                links.remove(name, false);
                (name, Came::Made(Err((refusal(&refused), refused.to_string()))))
            }
            Outcome::Connected(name) => (name, Came::Connected),
            Outcome::Renewed(name, renewal) => (name, Came::Renewed(renewal)),
            Outcome::GivenUp(name) => (name, Came::GivenUp),
            Outcome::Stood(name, halts) => (name, Came::Stood(halts)),
            Outcome::Settled(name, rests, endings) => {
                match self.settled(name, rests, endings, now) {
                    Some(rests) => (name, Came::Settled(rests)),
                    None => return,
                }
            }
            Outcome::Opened(name, slot, opened) => {
                return self.registered(name, slot, opened, now);
            }
            Outcome::Attached(name, slot, is_attached) => {
                return self.attached(name, slot, is_attached, now);
            }
            Outcome::KernelOpened(number, at, opened) => {
                return self.kernel_opened(number, at, opened, now);
            }
            outcome @ (Outcome::Looked(..)
            | Outcome::Scratched(..)
            | Outcome::Loaded(..)
            | Outcome::NotLoaded(_)
            | Outcome::WokenUp(..)
            | Outcome::Loads(..)
            | Outcome::Sampled(..)) => return self.came_of_measuring(outcome, now),
            Outcome::Told(told) => {
                let (link, came) = match told {
                    Told::Called(link, slot) => {
                        let Some(name) = links.named(link) else { return };
                        return self.called(name, slot);
                    }
                    Told::Free(link, slot) => {
                        let Some(name) = links.named(link) else { return };
                        return self.is_over(name, slot);
                    }
                    Told::Measured(link, time) => {
                        let Some(name) = links.named(link) else { return };
                        return self.came_of_measuring(Outcome::Loaded(name, time), now);
                    }
                    Told::Kernel(link, event) => return self.kernel_told(link, &event, now),
                    Told::Answered(link) => (link, Came::Connected),
                    Told::Failed(link, cause) => (link, Came::Failed(cause)),
                };
                let Some(name) = links.named(link) else { return };
                (name, came)
            }
        };
        let Some(at) = self.peers.iter().position(|peer| peer.name.key == name.0) else { return };
        let may_renew = self.may_renew(name, now);
        let Peer { name: host, groups, judge, .. } = &mut self.peers[at];
        let was_renewed = groups.is_renewed(name.1);
        let orders = match came {
            Came::Made(made) => {
                if let Err((_, why)) = &made {
                    warn!("peer {host}: no link group: {why}");
                }
                groups.made(name.1, made)
            }
            Came::Connected => {
                if !was_renewed {
                    info!("peer {host}: link group {} is up", name.1);
                }
                if groups.up().next().is_none() {
                    judge.is_renewed(now);
                }
                groups.connected(name.1)
            }
            Came::Failed(cause) => {
                if !matches!(cause, Cause::Ends | Cause::Parts) {
                    warn!("peer {host}: the link of link group {} has failed: {cause}", name.1);
                }
                let orders = groups.failed(name.1, &cause, may_renew);
                self.no_more_measuring(name, now);
                orders
            }
            Came::Renewed(renewal) => groups.renewed(name.1, renewal),
            Came::GivenUp => groups.gives_up(name.1),
            Came::Stood(halts) => groups.stood(name.1, halts),
            Came::Settled(rests) => {
                if !rests.is_empty() {
                    info!(
                        "peer {host}: sends {} pieces of connections that have ended",
                        rests.len()
                    );
                }
                groups.settled(name.1, rests)
            }
        };
        let Peer { name: host, groups, failovers, .. } = &mut self.peers[at];
        if was_renewed && groups.is_up(name.1) {
            info!("peer {host}: link group {} goes on with another queue pair", name.1);
            *failovers += 1;
            self.failovers.goes_on(name, now);
        }
        self.carry_out(at, orders, now);
    }
}
