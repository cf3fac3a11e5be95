//! What is known of each peer, and when to connect to it. No I/O.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use shunt_peer::message::{Device, Hello, Judgement, Message};
use shunt_peer::{Association, PublicKey};

use crate::config::{PEERS, PeerName, Promote};
use crate::error::StartError;
use crate::groups::{Groups, Impossible, Order};
use crate::judge::{Judge, Verdict};
use crate::report::{PeerReport, PeerState, Promotion};

/// Time from one attempt to the next: it doubles with each that fails.
const SOON: Duration = Duration::from_secs(1);
const LATE: Duration = Duration::from_secs(30);
/// The same while connections wait for it: the first time at once.
const AT_ONCE: Duration = Duration::from_millis(250);
const WAITED_FOR: Duration = Duration::from_secs(2);
/// How long new connections are promoted with one that is away.
const PAUSE: Duration = Duration::from_secs(1);

/// What is to be expected of the next attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outlook {
    /// It may succeed.
    Open,
    /// It fails until the configuration of one of both is changed.
    Refused,
    /// It would throw out another agent with the same key.
    Shared,
}

/// How far it is with a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// There is no connection; from when on to try.
    Down(Duration),
    /// A thread connects: which attempt.
    Dialing(u64),
    /// It proves who it is, on this connection, or both find out where they were.
    Proving(u64),
    /// It has, on this one.
    Open(u64),
}

/// A peer.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) name: PeerName,
    /// This agent connects to it, not the other way round.
    pub(crate) dials: bool,
    pub(crate) way: Way,
    /// Attempts that have failed since the last connection.
    failures: u32,
    /// What both have said, while there is no connection; until when that is kept.
    pub(crate) association: Option<Association>,
    pub(crate) kept_until: Option<Duration>,
    /// Until when new connections are promoted all the same: it may be back at once.
    pub(crate) reached_until: Option<Duration>,
    /// Whether this agent has a device, and how it judges, as it was told last.
    pub(crate) knows_device: bool,
    pub(crate) knows_judgement: Judgement,
    /// Why the last connection ended, or the last attempt failed.
    why: Option<(String, Outlook)>,
    hello: Option<Hello>,
    address: Option<SocketAddr>,
    pub(crate) since: Option<Instant>,
    addresses: Vec<IpAddr>,
    listeners: Vec<SocketAddr>,
    /// One of both is another than before.
    pub(crate) is_changed: bool,
    /// Connections that were ever in a link group with it.
    pub(crate) connections: u64,
    /// How often the link of a link group has gone on with another queue pair.
    pub(crate) failovers: u64,
    /// How often both were connected again, and all went on.
    resumptions: u64,
    pub(crate) groups: Groups,
    /// When to offer a link group; `None`: it is not this side's turn, or there is one.
    pub(crate) offer_at: Option<Duration>,
    /// What is known of the link to it, and how it judges itself.
    pub(crate) judge: Judge,
    far: Judgement,
    /// It is named no more, and stays until its connections are back on TCP.
    pub(crate) parts: bool,
}

impl Peer {
    fn new(name: PeerName, own: &PublicKey, now: Duration) -> Self {
        let dials = *own < name.key;
        Self {
            name,
            dials,
            way: Way::Down(now),
            failures: 0,
            association: None,
            kept_until: None,
            reached_until: None,
            knows_device: false,
            knows_judgement: Judgement::Unmeasured,
            why: None,
            hello: None,
            address: None,
            since: None,
            addresses: Vec::new(),
            listeners: Vec::new(),
            is_changed: false,
            connections: 0,
            failovers: 0,
            resumptions: 0,
            groups: Groups::new(dials),
            offer_at: None,
            judge: Judge::default(),
            far: Judgement::default(),
            parts: false,
        }
    }

    /// When this agent is to connect to it. `None`: it is not to.
    pub(crate) fn dial_at(&self) -> Option<Duration> {
        match self.way {
            Way::Down(at) if self.dials => Some(at),
            _ => None,
        }
    }

    /// True while both have something with each other: on a connection, or until the next one.
    pub(crate) const fn is_known(&self) -> bool {
        matches!(self.way, Way::Open(_)) || self.association.is_some()
    }

    /// True when this connection is of this peer.
    pub(crate) fn has(&self, conn: u64) -> bool {
        matches!(self.way, Way::Proving(has) | Way::Open(has) if has == conn)
    }

    /// Both are connected, and begin.
    pub(crate) fn opened(&mut self, conn: u64, at: SocketAddr, hello: Hello, now: Duration) {
        self.hello = Some(hello);
        self.addresses.clear();
        self.listeners.clear();
        (self.judge, self.far) = (Judge::default(), Judgement::default());
        self.is_connected(conn, at, now);
    }

    /// Both are connected again, and go on.
    pub(crate) fn resumed(&mut self, conn: u64, at: SocketAddr, now: Duration) {
        self.resumptions += 1;
        self.is_connected(conn, at, now);
    }

    fn is_connected(&mut self, conn: u64, at: SocketAddr, now: Duration) {
        self.way = Way::Open(conn);
        (self.failures, self.why) = (0, None);
        (self.kept_until, self.reached_until) = (None, None);
        (self.address, self.since) = (Some(at), Some(Instant::now()));
        self.look_whether_it_is_ready(now);
    }

    /// Its connection is over, or could not be made. What both have stays until then; no longer than it would have before.
    pub(crate) fn is_away(&mut self, association: Association, until: Duration, now: Duration) {
        self.association = Some(association);
        if self.kept_until.is_none() {
            self.reached_until = Some(now + PAUSE);
        }
        self.kept_until = Some(self.kept_until.map_or(until, |before| before.min(until)));
        (self.address, self.since) = (None, None);
        self.offer_at = None;
        self.is_changed = true;
        self.tries_again(now);
    }

    /// An attempt to connect has failed, while connections wait for it.
    pub(crate) fn tries_again(&mut self, now: Duration) {
        let wait = match self.failures {
            0 => Duration::ZERO,
            failures => AT_ONCE.saturating_mul(1 << (failures - 1).min(5)).min(WAITED_FOR),
        };
        self.failures += 1;
        self.way = Way::Down(now + wait);
    }

    /// Why there is no connection.
    pub(crate) fn note(&mut self, why: String, outlook: Outlook) {
        self.why = Some((why, outlook));
    }

    /// Its connection is over, or could not be made.
    pub(crate) fn lost(&mut self, why: String, outlook: Outlook, now: Duration) {
        let wait = match outlook {
            Outlook::Open | Outlook::Refused => SOON.saturating_mul(1 << self.failures.min(5)),
            Outlook::Shared => LATE,
        };
        let wait = wait.min(LATE);
        self.failures += 1;
        self.way = Way::Down(now + wait);
        self.why = Some((why, outlook));
        (self.hello, self.address, self.since) = (None, None, None);
        self.addresses.clear();
        self.listeners.clear();
        self.offer_at = None;
        (self.association, self.kept_until, self.reached_until) = (None, None, None);
        (self.judge, self.far) = (Judge::default(), Judgement::default());
    }

    /// It says this; what is to be done about it.
    ///
    /// # Errors
    /// It cannot be; the connection ends.
    pub(crate) fn said(&mut self, message: Message) -> Result<Vec<Order>, Impossible> {
        self.is_changed |= matches!(message, Message::Addresses(_) | Message::Listeners(_));
        match message {
            Message::Addresses(addresses) => self.addresses = addresses,
            Message::Listeners(listeners) => self.listeners = listeners,
            Message::Judged(judgement) => {
                self.is_changed = true;
                self.far = judgement;
            }
            message => return self.groups.hear(&message),
        }
        Ok(Vec::new())
    }

    /// Its device is lost, or there is one again.
    pub(crate) fn has_device(&mut self, device: Device, now: Duration) {
        if let Some(hello) = &mut self.hello {
            hello.device = device;
        }
        self.look_whether_it_is_ready(now);
    }

    /// It is named no more, or again.
    pub(crate) fn is_named(&mut self, is_named: bool, now: Duration) {
        self.parts = !is_named;
        self.look_whether_it_is_ready(now);
    }

    fn look_whether_it_is_ready(&mut self, now: Duration) {
        self.is_changed = true;
        self.offer_at = (self.dials && self.is_ready()).then_some(now);
    }

    /// True when it is connected, and has a device.
    pub(crate) fn is_ready(&self) -> bool {
        matches!(self.way, Way::Open(_)) && self.has_link()
    }

    /// True when new connections with it are promoted: it is connected, or was just now, and has a device.
    pub(crate) fn is_reached(&self) -> bool {
        (matches!(self.way, Way::Open(_)) || self.reached_until.is_some()) && self.has_link()
    }

    fn has_link(&self) -> bool {
        let has_device = self.hello.as_ref().is_some_and(|hello| hello.device == Device::Ready);
        has_device && !self.parts
    }

    /// True while connections with it are in memory: also those of a device that was lost, until they are settled.
    pub(crate) fn is_met(&self) -> bool {
        // Without a connection there are only those of an association that is kept.
        self.is_ready() || self.groups.count().1 > 0
    }

    /// How this side judges, as the peer hears it.
    pub(crate) const fn judgement(&self, promote: Promote) -> Judgement {
        match (promote, self.judge.verdict()) {
            (Promote::Always, _) => Judgement::Always,
            (Promote::Faster, Verdict::Unmeasured) => Judgement::Unmeasured,
            (Promote::Faster, Verdict::Faster) => Judgement::Faster,
            (Promote::Faster, Verdict::Slower) => Judgement::Slower,
        }
    }

    /// True when both sides promote connections.
    pub(crate) fn promotes(&self, promote: Promote) -> bool {
        let both = [self.judgement(promote), self.far];
        both.iter().all(|it| matches!(it, Judgement::Faster | Judgement::Always))
    }

    /// True when one of both sides wants the link to be measured.
    pub(crate) const fn is_to_be_judged(&self, promote: Promote) -> bool {
        matches!(promote, Promote::Faster) || !matches!(self.far, Judgement::Always)
    }

    /// Why connections are not promoted though there is a link; `None`: they are.
    fn why_not_promoted(&self, promote: Promote) -> Option<String> {
        let own = self.judge.reason().filter(|_| promote == Promote::Faster);
        own.or_else(|| match self.far {
            Judgement::Faster | Judgement::Always => None,
            Judgement::Slower => {
                Some("the peer judges that the link is slower than TCP".to_owned())
            }
            Judgement::Unmeasured => Some("the peer has not measured the link yet".to_owned()),
        })
    }

    /// True when there is a link with it.
    fn is_linked(&self) -> bool {
        matches!(self.way, Way::Open(_)) && self.groups.count().0 > 0
    }

    /// What becomes of connections with it; `None`: there is no link.
    fn promotion(&self, promote: Promote) -> Option<Promotion> {
        let of = |judgement| match judgement {
            Judgement::Unmeasured => Promotion::Unmeasured,
            Judgement::Faster => Promotion::Faster,
            Judgement::Slower => Promotion::Slower,
            Judgement::Always => Promotion::Always,
        };
        let own = of(self.judgement(promote));
        let is_refused = own.promotes() && !of(self.far).promotes();
        self.is_linked().then_some(if is_refused { Promotion::Refused } else { own })
    }

    /// The other end of the connection.
    pub(crate) const fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// True for an address that it has, as it says.
    pub(crate) fn is_at(&self, ip: IpAddr) -> bool {
        self.addresses.contains(&ip)
    }

    pub(crate) fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    pub(crate) fn listeners(&self) -> &[SocketAddr] {
        &self.listeners
    }

    /// The reason, if it is not the one that was said before.
    pub(crate) fn is_news(&self, why: &str) -> bool {
        self.why.as_ref().is_none_or(|(before, _)| before != why)
    }

    pub(crate) fn report(&self, promote: Promote) -> PeerReport {
        let is_refused = self.why.as_ref().is_some_and(|(_, outlook)| *outlook != Outlook::Open);
        let state = match self.way {
            Way::Open(_) => PeerState::Connected,
            _ if is_refused => PeerState::Refused,
            _ if self.dials => PeerState::Connecting,
            _ => PeerState::Awaited,
        };
        let hello = self.hello.as_ref();
        PeerReport {
            host: self.name.to_string(),
            key: self.name.key.to_string(),
            state,
            reason: self.why.as_ref().map(|(why, _)| why.clone()),
            name: hello.map(|hello| hello.name.clone()),
            address: self.address,
            connected_s: None,
            has_device: hello.map(|hello| hello.device == Device::Ready),
            promotion: self.promotion(promote),
            promotion_reason: self.why_not_promoted(promote).filter(|_| self.is_linked()),
            measured: self.judge.figures().copied(),
            link_groups: self.groups.count().0,
            failovers_total: self.failovers,
            resumptions_total: self.resumptions,
            connections: 0,
            connections_total: self.connections,
            link_group_reason: self.groups.why().map(str::to_owned),
            addresses: self.addresses.clone(),
            listeners: self.listeners.clone(),
        }
    }
}

/// Peers as they were named; those of `before` stay as they are, where they are still named alike.
///
/// # Errors
/// More than there may be, one twice, or this agent itself.
pub(crate) fn named(
    names: Vec<PeerName>,
    own: &PublicKey,
    mut before: Vec<Peer>,
    now: Duration,
) -> Vec<Peer> {
    let peer = |name: PeerName| match before.iter().position(|peer| peer.name == name) {
        Some(at) => before.swap_remove(at),
        None => Peer::new(name, own, now),
    };
    names.into_iter().map(peer).collect()
}

/// Looks whether these can be an agent's peers.
///
/// # Errors
/// More than there may be, one twice, or this agent itself.
pub(crate) fn check(names: &[PeerName], own: &PublicKey) -> Result<(), StartError> {
    if names.len() > PEERS {
        return Err(StartError::Peers(names.len()));
    }
    let mut keys = BTreeSet::new();
    for name in names {
        if name.key == *own {
            return Err(StartError::Own(name.to_string()));
        }
        if !keys.insert(name.key) {
            return Err(StartError::Twice(name.to_string()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use shunt_peer::SecretKey;

    use super::*;

    const NOW: Duration = Duration::from_secs(50);

    /// Keys in their order.
    fn keys() -> [PublicKey; 3] {
        let mut keys = [(); 3].map(|()| SecretKey::generate().unwrap().public().unwrap());
        keys.sort();
        keys
    }

    fn name(host: &str, key: PublicKey) -> PeerName {
        PeerName::new(host, key).unwrap()
    }

    #[test]
    fn the_smaller_key_dials() {
        let [small, own, large] = keys();
        let peers = named(vec![name("a", small), name("b", large)], &own, Vec::new(), NOW);
        assert_eq!([peers[0].dial_at(), peers[1].dial_at()], [None, Some(NOW)]);
        assert_eq!(peers[0].report(Promote::Faster).state, PeerState::Awaited);
        assert_eq!(peers[1].report(Promote::Faster).state, PeerState::Connecting);
    }

    #[test]
    fn attempts_become_rarer_until_one_succeeds() {
        let [own, key, _] = keys();
        let mut peer = Peer::new(name("a", key), &own, NOW);
        let waits = [1, 2, 4, 8, 16, 30, 30, 30].map(|wait| {
            peer.lost("x".into(), Outlook::Open, NOW);
            (peer.dial_at(), Some(NOW + Duration::from_secs(wait)))
        });
        waits.iter().for_each(|(is, wanted)| assert_eq!(is, wanted));
        peer.opened(7, "10.0.0.1:1".parse().unwrap(), Hello::default(), NOW);
        assert_eq!((peer.dial_at(), peer.report(Promote::Faster).reason), (None, None));
        peer.lost("y".into(), Outlook::Refused, NOW);
        assert_eq!(peer.dial_at(), Some(NOW + SOON));
        assert_eq!(peer.report(Promote::Faster).state, PeerState::Refused);
        assert_eq!(peer.report(Promote::Faster).reason.as_deref(), Some("y"));
        // Two hosts with one key would throw each other out for ever.
        peer.opened(7, "10.0.0.1:1".parse().unwrap(), Hello::default(), NOW);
        peer.lost("z".into(), Outlook::Shared, NOW);
        assert_eq!(peer.dial_at(), Some(NOW + LATE));
    }

    #[test]
    fn what_a_peer_said_stays_while_it_is_away() {
        let [own, key, _] = keys();
        let mut peer = Peer::new(name("a", key), &own, NOW);
        peer.opened(7, "10.0.0.1:1".parse().unwrap(), Hello::default(), NOW);
        peer.said(Message::Listeners(vec!["10.0.0.1:80".parse().unwrap()])).unwrap();
        peer.is_away(Association::new(1), NOW + 9 * SOON, NOW);
        // It is looked for at once, then again and again: connections wait for it.
        let waits = [0, 1, 2, 4, 8, 8].map(|wait| {
            let at = peer.dial_at();
            peer.tries_again(NOW);
            (at, Some(NOW + wait * AT_ONCE))
        });
        waits.iter().for_each(|(is, wanted)| assert_eq!(is, wanted));
        assert!(peer.is_known() && !peer.is_ready() && peer.listeners().len() == 1);
        assert_eq!(peer.reached_until, Some(NOW + PAUSE));
        // An attempt that fails does not make it wait longer for the peer.
        peer.is_away(Association::new(1), NOW + 20 * SOON, NOW);
        assert_eq!(peer.kept_until, Some(NOW + 9 * SOON));
        peer.resumed(8, "10.0.0.1:2".parse().unwrap(), NOW);
        assert_eq!((peer.kept_until, peer.report(Promote::Faster).resumptions_total), (None, 1));
        assert_eq!(peer.report(Promote::Faster).listeners.len(), 1);
    }

    #[test]
    fn what_a_peer_said_is_gone_with_it() {
        let [own, key, _] = keys();
        let mut peer = Peer::new(name("a", key), &own, NOW);
        peer.opened(
            7,
            "10.0.0.1:1".parse().unwrap(),
            Hello { name: "db".into(), ..Hello::default() },
            NOW,
        );
        peer.said(Message::Addresses(vec!["10.0.0.1".parse().unwrap()])).unwrap();
        peer.said(Message::Listeners(vec!["10.0.0.1:80".parse().unwrap()])).unwrap();
        let report = peer.report(Promote::Faster);
        assert_eq!((report.addresses.len(), report.listeners.len()), (1, 1));
        assert_eq!((report.name.as_deref(), report.has_device), (Some("db"), Some(false)));
        peer.lost("x".into(), Outlook::Open, NOW);
        let report = peer.report(Promote::Faster);
        assert_eq!((report.addresses.len(), report.listeners.len()), (0, 0));
        assert_eq!((report.name, report.address), (None, None));
    }

    #[test]
    fn peers_that_stay_named_keep_their_connections() {
        let [own, one, two] = keys();
        let mut peers = named(vec![name("a", one), name("b", two)], &own, Vec::new(), NOW);
        peers[1].way = Way::Open(3);
        let peers = named(vec![name("b", two)], &own, peers, NOW);
        assert_eq!((peers.len(), peers[0].way), (1, Way::Open(3)));
        // At another place it is to be connected to anew.
        let peers = named(vec![name("c", two)], &own, peers, NOW);
        assert_eq!(peers[0].way, Way::Down(NOW));
    }

    #[test]
    fn impossible_peers_are_refused() {
        let [own, one, _] = keys();
        assert!(
            matches!(check(&[name("a", own)], &own), Err(StartError::Own(host)) if host == "a")
        );
        let twice = [name("a", one), name("b", one)];
        assert!(matches!(check(&twice, &own), Err(StartError::Twice(host)) if host == "b"));
        let many = vec![name("a", one); PEERS + 1];
        assert!(matches!(check(&many, &own), Err(StartError::Peers(_))));
        check(&[name("a", one)], &own).unwrap();
    }
}
