//! Has links that have failed go on with another queue pair, or their connections go back to TCP.

use std::time::Duration;

use shunt_peer::message::{Refusal, Renewal};
use shunt_peer::{Message, PublicKey};
use shunt_verbs::port::Port;

use super::Hub;
use crate::groups::Order;
use crate::links::Name;
use crate::peers::Way;

impl<P: Port + Clone + Send + 'static> Hub<P> {
    /// True where a link that has failed may go on with another queue pair.
    pub(super) fn may_renew(&self, name: Name, now: Duration) -> bool {
        self.device().is_some() && self.ends_by.is_none() && self.failovers.may_go_on(name, now)
    }

    /// Notes what an order means for that.
    pub(super) fn heed_failover(&mut self, peer: PublicKey, order: &Order, now: Duration) {
        match order {
            Order::Renew(name)
            | Order::Say(Message::Failed(name))
            | Order::Answer(Renewal { group: name, .. }) => {
                self.failovers.begins((peer, *name), now, now + self.host.patience);
                // A worker that has another queue pair at once does not tell that the one before has failed.
                self.no_more_measuring((peer, *name), now);
            }
            Order::Halt(name) => self.failovers.is_over((peer, *name)),
            _ => {}
        }
    }

    /// With this peer nothing goes on any more: what is about to goes back to TCP.
    pub(super) fn no_more_failovers(&mut self, at: usize, now: Duration) {
        for name in self.failovers.with(self.peers[at].name.key) {
            let orders = self.peers[at].groups.gives_up(name.1);
            self.carry_out(at, orders, now);
        }
    }

    /// Has those go back to TCP that have waited long enough. Where the peer has not been heard meanwhile, both may lack the same network.
    pub(super) fn see_to_failovers(&mut self, now: Duration) {
        for (name, since) in self.failovers.due(now) {
            let Some(at) = self.peers.iter().position(|peer| peer.name.key == name.0) else {
                self.failovers.is_over(name);
                continue;
            };
            if !self.has_heard(at, since) {
                self.failovers.waits(name, now + self.host.patience);
                continue;
            }
            self.failovers.is_over(name);
            let orders = self.peers[at].groups.gives_up(name.1);
            self.carry_out(at, orders, now);
        }
    }

    fn has_heard(&self, at: usize, since: Duration) -> bool {
        let conn = match self.peers[at].way {
            Way::Open(id) => self.conns.get(&id),
            _ => None,
        };
        conn.is_some_and(|conn| conn.heard_at() > since)
    }

    /// With a peer that is back there is time again.
    pub(super) fn failovers_wait_again(&mut self, peer: PublicKey, now: Duration) {
        for name in self.failovers.with(peer) {
            self.failovers.waits(name, now + self.host.patience);
        }
    }

    /// The peer's rings may be others with its new queue pair: what it has asked for before is not looked at any more.
    pub(super) fn refuse_next(&mut self, name: Name, now: Duration) {
        let of_it = self.lanes.range_mut((name, 0)..=(name, usize::MAX));
        let asked: Vec<_> = of_it.filter_map(|(_, lane)| lane.next.take()).collect();
        for asked in asked {
            self.say_to_key(name.0, &Message::NotOpened(asked.place, Refusal::Failed), now);
        }
    }
}
