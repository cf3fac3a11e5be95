//! The link groups with one peer: which there are, how far each is, and what is said of them. No I/O.
//!
//! | Side | Steps |
//! |---|---|
//! | Offers | makes its queue pair; `Offer`; hears `Accept`; connects; asks on the link; up when it is answered |
//! | Takes | hears `Offer`; makes and connects its queue pair; `Accept`; up when it is answered on the link |
//!
//! Each side names those that it offers: the dialer of the control connection by even numbers, the other one by odd ones.
//!
//! A link that has failed goes on with another queue pair, where both sides find one in time, and no rule was broken:
//!
//! | Side | Steps |
//! |---|---|
//! | Offered it | its link fails, or it hears `Failed`; makes a queue pair; `Renew`; hears `Renewed`; connects, asks on the link; up when it is answered |
//! | Took it | its link fails: `Failed`; hears `Renew`; makes and connects a queue pair; `Renewed`; up |
//!
//! Else, or if that fails as well, both say where each connection stood (`Halted`), then what the link has not delivered of programs that
//! have ended (`Rest`), and that this was all (`Gone`). A side lets go of it when it has said and heard that. With a peer that is gone
//! all link groups end.

use std::collections::BTreeMap;

use shunt_far::lane::Rest;
use shunt_far::{Cause, Halt};
use shunt_peer::Message;
use shunt_peer::message::{Group, Halted, Place, Refusal, Renewal};
use shunt_verbs::value::PeerPair;

/// Most link groups with a peer: queue pairs and registered memory are the device's.
pub(crate) const GROUPS: usize = 64;

/// What is to be done about a link group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// Say this.
    Say(Message),
    /// Make its queue pair; then [`Groups::made`].
    Make(u32),
    /// Connect it, and ask on the link; then [`Groups::connected`], or [`Groups::failed`].
    Connect(u32, PeerPair),
    /// Give its link up; then [`Groups::failed`].
    Fail(u32),
    /// Its link has failed: make another queue pair; then [`Groups::renewed`].
    Renew(u32),
    /// The peer has made one: the same, and go on with it, give the link up before if it has not failed; then [`Groups::renewed`].
    Answer(Renewal),
    /// Both have one: connect it, and ask on the link; then [`Groups::connected`], [`Groups::failed`] or [`Groups::gives_up`].
    GoOn(Renewal),
    /// Look where its connections stand, whose link has failed for good; then [`Groups::stood`].
    Halt(u32),
    /// The peer has stood here when the link failed: what it has not received goes on over TCP. Then [`Groups::settled`].
    Settle(u32, Vec<Halt>),
    /// Give this to a program, whose peer has ended.
    Deliver(Place, Rest),
    /// Let go of its queue pair, and of all that is registered for it: the peer has nothing more to say of it.
    Remove(u32),
    /// The same, though the peer may have had more to say.
    Abandon(u32),
}

/// The peer has said of a link group what cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Impossible(pub(crate) &'static str);

/// How far a link group is.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Stage {
    /// Its queue pair is being made; with the peer's, where the peer has offered it.
    Making(Option<PeerPair>),
    /// The peer has to accept it.
    Offered(PeerPair),
    /// The same, and its link has failed meanwhile: the peer does not know yet that there is one.
    OfferedInVain,
    /// It is being connected; its own queue pair, where the peer has to be told.
    Connecting(Option<PeerPair>),
    /// Connected.
    Up,
    /// Its link has failed, and another queue pair is being made.
    Renewing,
    /// The same: the peer has to make one, too.
    Renew,
    /// Its link has failed, and the peer, which has offered it, has to make another queue pair first.
    Failed,
    /// The peer has made one, and this side is about to.
    Answering,
    /// Both have one, and it is being connected.
    GoingOn,
    /// Its link has failed for good: this side is about to say where it stood. The peer has, or not.
    Halting(Option<Vec<Halt>>),
    /// This side has said where it stood; the peer has not.
    Halted,
    /// Both have; this side is about to say what is missing, and the peer has said all that it had to say, or not.
    Settling(bool),
    /// This side has said it all; the peer has not.
    Said,
}

impl Stage {
    /// Its link has failed, and is to go on.
    const fn is_renewed(&self) -> bool {
        matches!(
            self,
            Self::Renewing | Self::Renew | Self::Failed | Self::Answering | Self::GoingOn
        )
    }
}

/// The link groups with one peer.
#[derive(Debug)]
pub(crate) struct Groups {
    /// 0 for the dialer, 1 for the other one.
    parity: u32,
    next: u32,
    groups: BTreeMap<u32, Stage>,
    /// Why the last one failed, or was refused.
    why: Option<String>,
}

impl Groups {
    pub(crate) const fn new(is_dialer: bool) -> Self {
        let parity = if is_dialer { 0 } else { 1 };
        Self { parity, next: parity, groups: BTreeMap::new(), why: None }
    }

    /// Those that are up, and all.
    pub(crate) fn count(&self) -> (usize, usize) {
        let up = self.groups.values().filter(|stage| **stage == Stage::Up).count();
        (up, self.groups.len())
    }

    /// True for one that is up.
    pub(crate) fn is_up(&self, name: u32) -> bool {
        self.groups.get(&name) == Some(&Stage::Up)
    }

    /// Those that are up.
    pub(crate) fn up(&self) -> impl Iterator<Item = u32> {
        self.groups.iter().filter(|(_, stage)| **stage == Stage::Up).map(|(name, _)| *name)
    }

    /// The same of this side's offering: connections begin there.
    pub(crate) fn own(&self) -> impl Iterator<Item = u32> {
        self.up().filter(|name| name % 2 == self.parity)
    }

    /// True for one that is up, or about to be, of the peer's offering.
    pub(crate) fn is_far(&self, name: u32) -> bool {
        let stage = self.groups.get(&name);
        let is_there = matches!(
            stage,
            Some(
                Stage::Up
                    | Stage::Connecting(_)
                    | Stage::Failed
                    | Stage::Answering
                    | Stage::Halting(_)
                    | Stage::Halted
                    | Stage::Settling(_)
                    | Stage::Said
            )
        );
        name % 2 != self.parity && is_there
    }

    /// Why the last one failed, or was refused.
    pub(crate) fn why(&self) -> Option<&str> {
        self.why.as_deref()
    }

    /// Begins a link group.
    pub(crate) fn offer(&mut self) -> Vec<Order> {
        if self.groups.len() >= GROUPS {
            self.why = Some(Refusal::Many.to_string());
            return Vec::new();
        }
        let name = self.next;
        self.next = self.next.wrapping_add(2);
        self.groups.insert(name, Stage::Making(None));
        vec![Order::Make(name)]
    }

    /// Its queue pair is made, or cannot be.
    pub(crate) fn made(
        &mut self,
        name: u32,
        made: Result<PeerPair, (Refusal, String)>,
    ) -> Vec<Order> {
        let Some(stage) = self.groups.get_mut(&name) else { return Vec::new() };
        let Stage::Making(far) = *stage else { return Vec::new() };
        match (made, far) {
            (Ok(pair), None) => {
                *stage = Stage::Offered(pair);
                vec![Order::Say(Message::Offer(Group { group: name, pair }))]
            }
            (Ok(pair), Some(far)) => {
                *stage = Stage::Connecting(Some(pair));
                vec![Order::Connect(name, far)]
            }
            // Also of one that this side would have offered: the other host's operator sees why there is none.
            (Err((refusal, why)), _) => {
                self.groups.remove(&name);
                self.why = Some(why);
                vec![Order::Say(Message::Refuse(name, refusal))]
            }
        }
    }

    /// Its queue pair is connected.
    pub(crate) fn connected(&mut self, name: u32) -> Vec<Order> {
        match self.groups.get_mut(&name) {
            Some(stage @ Stage::GoingOn) => {
                *stage = Stage::Up;
                Vec::new()
            }
            Some(stage @ Stage::Connecting(_)) => {
                let Stage::Connecting(own) = core::mem::replace(stage, Stage::Up) else {
                    return Vec::new();
                };
                let says = own.map(|pair| Order::Say(Message::Accept(Group { group: name, pair })));
                says.into_iter().collect()
            }
            _ => Vec::new(),
        }
    }

    /// Its link has failed, or was given up. `may_renew`: it was not renewed just now.
    pub(crate) fn failed(&mut self, name: u32, cause: &Cause, may_renew: bool) -> Vec<Order> {
        let is_own = name % 2 == self.parity;
        let Some(stage) = self.groups.get_mut(&name) else { return Vec::new() };
        let (next, orders) = match stage {
            Stage::Offered(_) => (Stage::OfferedInVain, Vec::new()),
            // The peer has not heard yet that there is one.
            Stage::Connecting(Some(_)) => {
                self.groups.remove(&name);
                self.why = Some(cause.to_string());
                let refused = Message::Refuse(name, Refusal::Failed);
                return vec![Order::Say(refused), Order::Remove(name)];
            }
            Stage::Up if may_renew && cause.is_curable() => match is_own {
                true => (Stage::Renewing, vec![Order::Renew(name)]),
                false => (Stage::Failed, vec![Order::Say(Message::Failed(name))]),
            },
            Stage::Connecting(None) | Stage::Up | Stage::GoingOn => {
                (Stage::Halting(None), vec![Order::Halt(name)])
            }
            _ => return Vec::new(),
        };
        *stage = next;
        self.why = Some(cause.to_string());
        orders
    }

    /// Another queue pair is made for it, by which the peer can go on; or there is none.
    pub(crate) fn renewed(&mut self, name: u32, renewed: Option<Renewal>) -> Vec<Order> {
        let Some(stage) = self.groups.get_mut(&name) else { return Vec::new() };
        let (next, says) = match (&*stage, renewed) {
            (Stage::Renewing, Some(renewal)) => (Stage::Renew, Message::Renew(renewal)),
            (Stage::Answering, Some(renewal)) => (Stage::Up, Message::Renewed(renewal)),
            (Stage::Renewing | Stage::Answering, None) => return self.gives_up(name),
            _ => return Vec::new(),
        };
        *stage = next;
        vec![Order::Say(says)]
    }

    /// It does not go on with another queue pair, if it was about to.
    pub(crate) fn gives_up(&mut self, name: u32) -> Vec<Order> {
        match self.groups.get_mut(&name) {
            Some(stage) if stage.is_renewed() => {
                *stage = Stage::Halting(None);
                vec![Order::Fail(name), Order::Halt(name)]
            }
            _ => Vec::new(),
        }
    }

    /// True for one whose link has failed, and is to go on.
    pub(crate) fn is_renewed(&self, name: u32) -> bool {
        self.groups.get(&name).is_some_and(Stage::is_renewed)
    }

    /// Where its connections stood.
    pub(crate) fn stood(&mut self, name: u32, halts: Vec<Halt>) -> Vec<Order> {
        let Some(stage) = self.groups.get_mut(&name) else { return Vec::new() };
        let Stage::Halting(far) = stage else { return Vec::new() };
        let far = far.take();
        *stage = if far.is_some() { Stage::Settling(false) } else { Stage::Halted };
        let says = Order::Say(Message::Halted(Halted { group: name, halts }));
        [says].into_iter().chain(far.map(|far| Order::Settle(name, far))).collect()
    }

    /// All connections of it are settled: what the peer is to be sent of programs that have ended.
    pub(crate) fn settled(&mut self, name: u32, rests: Vec<(Place, Rest)>) -> Vec<Order> {
        let Some(stage) = self.groups.get_mut(&name) else { return Vec::new() };
        let Stage::Settling(is_over) = *stage else { return Vec::new() };
        let says = rests.into_iter().map(|(place, rest)| Message::Rest(place, rest));
        let says = says.chain([Message::Gone(name)]).map(Order::Say);
        if is_over {
            self.groups.remove(&name);
            return says.chain([Order::Remove(name)]).collect();
        }
        *stage = Stage::Said;
        says.collect()
    }

    /// The peer says something of a link group.
    ///
    /// # Errors
    /// It cannot be; the control connection ends.
    pub(crate) fn hear(&mut self, message: &Message) -> Result<Vec<Order>, Impossible> {
        match message {
            Message::Offer(group) => self.offered(group),
            Message::Accept(group) => self.accepted(group),
            Message::Refuse(name, why) => self.refused(*name, *why),
            Message::Halted(halted) => self.halted(halted),
            Message::Rest(place, rest) => match self.groups.get(&place.group) {
                Some(Stage::Settling(false) | Stage::Said) => {
                    Ok(vec![Order::Deliver(*place, rest.clone())])
                }
                _ => Err(Impossible("the rest of a connection whose link has not failed")),
            },
            Message::Gone(name) => self.is_gone(*name),
            Message::Failed(name) => self.far_failed(*name),
            Message::Renew(renewal) => self.far_renews(renewal),
            Message::Renewed(renewal) => self.far_renewed(renewal),
            _ => Err(Impossible("a connection in a link group, which this version does not have")),
        }
    }

    fn is_gone(&mut self, name: u32) -> Result<Vec<Order>, Impossible> {
        match self.groups.get_mut(&name) {
            Some(stage @ Stage::Settling(false)) => {
                *stage = Stage::Settling(true);
                Ok(Vec::new())
            }
            Some(Stage::Said) => {
                self.groups.remove(&name);
                Ok(vec![Order::Remove(name)])
            }
            _ => Err(Impossible("the end of a link group that has not failed")),
        }
    }

    fn offered(&mut self, group: &Group) -> Result<Vec<Order>, Impossible> {
        let name = group.group;
        if name % 2 == self.parity || self.groups.contains_key(&name) {
            return Err(Impossible("a link group under a name that is not its to give"));
        }
        if self.groups.len() >= GROUPS {
            return Ok(vec![Order::Say(Message::Refuse(name, Refusal::Many))]);
        }
        self.groups.insert(name, Stage::Making(Some(group.pair)));
        Ok(vec![Order::Make(name)])
    }

    fn accepted(&mut self, group: &Group) -> Result<Vec<Order>, Impossible> {
        match self.groups.get_mut(&group.group) {
            Some(stage @ Stage::Offered(_)) => {
                *stage = Stage::Connecting(None);
                Ok(vec![Order::Connect(group.group, group.pair)])
            }
            // It has no connections.
            Some(stage @ Stage::OfferedInVain) => {
                *stage = Stage::Halted;
                let halted = Halted { group: group.group, halts: Vec::new() };
                Ok(vec![Order::Say(Message::Halted(halted))])
            }
            _ => Err(Impossible("the acceptance of a link group that was not offered")),
        }
    }

    fn refused(&mut self, name: u32, why: Refusal) -> Result<Vec<Order>, Impossible> {
        match self.groups.get(&name) {
            Some(Stage::Offered(_) | Stage::OfferedInVain) => {
                self.groups.remove(&name);
                self.why = Some(format!("the peer refuses: {why}"));
                Ok(vec![Order::Remove(name)])
            }
            // One that the peer cannot offer.
            None if name % 2 != self.parity => {
                self.why = Some(format!("the peer refuses: {why}"));
                Ok(Vec::new())
            }
            _ => Err(Impossible("the refusal of a link group that was not offered")),
        }
    }

    fn halted(&mut self, halted: &Halted) -> Result<Vec<Order>, Impossible> {
        let name = halted.group;
        let far = || halted.halts.clone();
        match self.groups.get_mut(&name) {
            Some(stage)
                if stage.is_renewed() || matches!(stage, Stage::Connecting(None) | Stage::Up) =>
            {
                *stage = Stage::Halting(Some(far()));
                self.why = Some("the peer's end of the link has failed".to_owned());
                Ok(vec![Order::Fail(name), Order::Halt(name)])
            }
            Some(Stage::Halting(said @ None)) => {
                *said = Some(far());
                Ok(Vec::new())
            }
            Some(stage @ Stage::Halted) => {
                *stage = Stage::Settling(false);
                Ok(vec![Order::Settle(name, far())])
            }
            _ => Err(Impossible("where a link group stood that was not connected")),
        }
    }

    /// The peer's end of a link has failed, of a link group that this side has offered.
    fn far_failed(&mut self, name: u32) -> Result<Vec<Order>, Impossible> {
        let is_own = name % 2 == self.parity;
        match self.groups.get_mut(&name).filter(|_| is_own) {
            Some(stage @ Stage::Up) => {
                *stage = Stage::Renewing;
                self.why = Some("the peer's end of the link has failed".to_owned());
                Ok(vec![Order::Fail(name), Order::Renew(name)])
            }
            // Before it is up again, or was for the first time.
            Some(stage @ (Stage::Connecting(None) | Stage::GoingOn)) => {
                *stage = Stage::Halting(None);
                Ok(vec![Order::Fail(name), Order::Halt(name)])
            }
            // It is known, or is over.
            Some(Stage::Renewing | Stage::Renew | Stage::Halting(None) | Stage::Halted) => {
                Ok(Vec::new())
            }
            _ => Err(Impossible("the failure of a link that was not connected")),
        }
    }

    /// The peer has another queue pair for a link group that it has offered.
    fn far_renews(&mut self, renewal: &Renewal) -> Result<Vec<Order>, Impossible> {
        let is_own = renewal.group % 2 == self.parity;
        match self.groups.get_mut(&renewal.group).filter(|_| !is_own) {
            Some(stage @ (Stage::Up | Stage::Failed)) => {
                *stage = Stage::Answering;
                Ok(vec![Order::Answer(renewal.clone())])
            }
            Some(Stage::Halting(None) | Stage::Halted) => Ok(Vec::new()),
            _ => Err(Impossible("another queue pair of a link group that was not connected")),
        }
    }

    /// So has the peer that was asked for one.
    fn far_renewed(&mut self, renewal: &Renewal) -> Result<Vec<Order>, Impossible> {
        match self.groups.get_mut(&renewal.group) {
            Some(stage @ Stage::Renew) => {
                *stage = Stage::GoingOn;
                Ok(vec![Order::GoOn(renewal.clone())])
            }
            // It took too long.
            Some(Stage::Halting(None) | Stage::Halted) if renewal.group % 2 == self.parity => {
                Ok(Vec::new())
            }
            _ => Err(Impossible("another queue pair of a link group, for which nobody has asked")),
        }
    }

    /// The peer is gone: nothing is left of them.
    pub(crate) fn end(&mut self) -> Vec<Order> {
        let all = core::mem::take(&mut self.groups).into_iter();
        all.map(|(name, stage)| match stage {
            Stage::Settling(true) => Order::Remove(name),
            _ => Order::Abandon(name),
        })
        .collect()
    }
}

#[cfg(test)]
mod tests;
