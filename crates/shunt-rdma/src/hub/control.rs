//! Connections to the agents of peers: how they are made, taken up again, and end, and what is said on them.

use std::io;
use std::time::Duration;

use shunt_peer::message::{Bye, Hello, Judgement};
use shunt_peer::session::Event;
use shunt_peer::{Association, End, Message, PublicKey, Session};
use shunt_verbs::port::Port;
use tracing::{info, warn};

use super::Hub;
use crate::conn::{Conn, Over};
use crate::dial::{self, Dialed};
use crate::groups::Impossible;
use crate::machine::random;
use crate::peers::{Outlook, Peer, Way};

impl<P: Port + Clone + Send + 'static> Hub<P> {
    pub(super) const fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(super) fn dial(&mut self, now: Duration) {
        for at in 0..self.peers.len() {
            if self.peers[at].dial_at().is_none_or(|dial_at| dial_at > now) {
                continue;
            }
            let number = self.number();
            let peer = &mut self.peers[at];
            let (host, key) = ((peer.name.host.clone(), peer.name.port), peer.name.key);
            match dial::begin(host, (key, number), &self.dialed.0, &self.shared) {
                Ok(()) => peer.way = Way::Dialing(number),
                Err(error) => self.not_dialed(at, &error, now),
            }
        }
    }

    pub(super) fn dialed(&mut self, dialed: Dialed, now: Duration) {
        let Dialed { key, number, outcome } = dialed;
        let is_his = |peer: &Peer| peer.name.key == key && peer.way == Way::Dialing(number);
        let Some(at) = self.peers.iter().position(is_his) else { return };
        let (hello, has_device) = (self.hello(), self.device().is_some());
        let session = Session::dial(self.secret.clone(), key, hello, now);
        match outcome.and_then(|(stream, at)| Conn::new(stream, at, session, has_device)) {
            Ok(conn) => {
                self.peers[at].way = Way::Proving(number);
                self.conns.insert(number, conn);
            }
            Err(error) => self.not_dialed(at, &error, now),
        }
    }

    fn not_dialed(&mut self, at: usize, error: &io::Error, now: Duration) {
        let peer = &mut self.peers[at];
        let why = format!("it cannot be connected to: {error}");
        if peer.is_news(&why) {
            warn!("peer {}: {why}", peer.name);
        }
        // Its host is there, and no agent.
        let has_ended = error.kind() == io::ErrorKind::ConnectionRefused;
        if peer.association.is_none() || has_ended {
            return self.lost(at, why, Outlook::Open, now);
        }
        peer.note(why, Outlook::Open);
        peer.tries_again(now);
    }

    /// Takes what has come on all connections.
    pub(super) fn serve(&mut self, now: Duration) {
        for id in self.conns.keys().copied().collect::<Vec<_>>() {
            let Some(conn) = self.conns.get_mut(&id) else { continue };
            let mut over = conn.read(now).err();
            // What is taken counts as heard by this side, so nothing of it is left where it lies.
            while let Some(event) = self.conns.get_mut(&id).and_then(Conn::event) {
                self.heard(id, event, now);
            }
            let Some(conn) = self.conns.get_mut(&id) else { continue };
            if over.is_none() {
                over = conn.tick(now).err();
            }
            if let Some(why) = over {
                self.over(id, &why, now);
            }
        }
    }

    fn heard(&mut self, id: u64, event: Event, now: Duration) {
        match event {
            Event::Open(key, hello) => self.opened(id, key, hello, now),
            Event::Begun(goes_on) => self.begun(id, goes_on, now),
            Event::Said(message) => {
                let Some(at) = self.peers.iter().position(|peer| peer.has(id)) else { return };
                if let Err(Impossible(what)) = self.said(at, message, now) {
                    self.over(id, &Over::Impossible(what), now);
                }
            }
        }
    }

    fn said(&mut self, at: usize, message: Message, now: Duration) -> Result<(), Impossible> {
        match message {
            Message::Open(lane) => self.hear_open(at, &lane, now).map_err(Impossible),
            Message::Opened(place, region) => {
                self.hear_opened(at, place, region).map_err(Impossible)
            }
            Message::NotOpened(place, _) => {
                self.hear_not_opened(at, place, now).map_err(Impossible)
            }
            Message::Device(device) => {
                self.peers[at].has_device(device, now);
                self.no_more_waits(at);
                Ok(())
            }
            Message::Measure(asked, token) => {
                self.hear_measure(at, asked, token, now).map_err(Impossible)
            }
            Message::Measurable(far) => self.hear_measurable(at, far, now).map_err(Impossible),
            Message::NotMeasurable(group, why) => {
                self.hear_not_measurable(at, group, why, now);
                Ok(())
            }
            message => {
                let orders = self.peers[at].said(message)?;
                self.carry_out(at, orders, now);
                Ok(())
            }
        }
    }

    /// A peer has proved who it is. Both find out whether they go on where they were.
    fn opened(&mut self, id: u64, key: PublicKey, hello: Hello, now: Duration) {
        let Some(at) = self.peers.iter().position(|peer| peer.name.key == key) else {
            return self.part(id, Bye::Removed, now);
        };
        let mut association = self.peers[at].association.take();
        if let Way::Open(before) | Way::Proving(before) = self.peers[at].way
            && before != id
            && let Some(conn) = self.conns.remove(&before)
        {
            association = conn.part(Some(Bye::Replaced), now).or(association);
        }
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.hello = Some(hello);
        self.peers[at].way = Way::Proving(id);
        let association = association.unwrap_or_else(|| Association::new(random()));
        if let Err(why) = conn.begin(association, now) {
            self.over(id, &why, now);
        }
    }

    /// Both know whether they go on where they were.
    fn begun(&mut self, id: u64, goes_on: bool, now: Duration) {
        let Some(at) = self.peers.iter().position(|peer| peer.has(id)) else { return };
        if !goes_on {
            // What was agreed upon before is not known to an agent that was started anew.
            let orders = self.peers[at].groups.end();
            self.carry_out(at, orders, now);
        }
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let peer = &mut self.peers[at];
        let Some(hello) = conn.hello.take() else { return };
        if goes_on {
            info!("peer {}: connected again, to {}; all goes on", peer.name, conn.at);
            peer.resumed(id, conn.at, now);
            let key = peer.name.key;
            self.failovers_wait_again(key, now);
        } else {
            info!("peer {}: connected, {} calls itself {}", peer.name, conn.at, hello.name);
            (peer.knows_device, peer.knows_judgement) = (conn.has_device, Judgement::Unmeasured);
            peer.opened(id, conn.at, hello, now);
            // All that was said before, again: this peer has not heard it.
            self.say_to(at, &Message::Addresses(self.addresses.clone()), now);
            self.say_to(at, &Message::Listeners(self.listeners.clone()), now);
        }
        // The device may have come, or gone, since this side's Hello.
        self.tell_of_device(now);
        self.tell_of_judgements(now);
    }

    /// A connection is over.
    pub(super) fn over(&mut self, id: u64, why: &Over, now: Duration) {
        let Some(conn) = self.conns.remove(&id) else { return };
        let address = conn.at;
        if let Over::End(End::Measures(token)) = why {
            if self.take_measured(*token, conn.into_stream(), now).is_some() {
                self.turn_away(address, &why.to_string());
            }
            return;
        }
        let outlook = match why {
            Over::End(End::Bye(Bye::Replaced)) => Outlook::Shared,
            Over::End(end) if end.is_refusal() => Outlook::Refused,
            _ => Outlook::Open,
        };
        let has_proved = conn.is_open();
        let violates = matches!(why, Over::Impossible(_)).then_some(Bye::Violation);
        let association = conn.part(violates, now);
        let said = why.to_string();
        let Some(at) = self.peers.iter().position(|peer| peer.has(id)) else {
            return self.turn_away(address, &said);
        };
        let peer = &mut self.peers[at];
        if peer.is_news(&said) {
            warn!("peer {}: {said}", peer.name);
        }
        let is_attempt = matches!(peer.way, Way::Proving(_)) && why.says_nothing(has_proved);
        let reunion = self.host.reunion;
        let patience = if is_attempt { Some(reunion) } else { why.patience(reunion) };
        match (peer.association.take().or(association), patience) {
            (Some(association), Some(patience)) if self.ends_by.is_none() => {
                let until = peer.kept_until.filter(|_| is_attempt).unwrap_or(now + patience);
                peer.is_away(association, until, now);
                peer.note(said, outlook);
            }
            _ => self.lost(at, said, outlook, now),
        }
    }

    /// With peers that stay away nothing new begins, and those that were away for too long are gone.
    pub(super) fn see_to_absent(&mut self, now: Duration) {
        for at in 0..self.peers.len() {
            let peer = &mut self.peers[at];
            if peer.reached_until.take_if(|until| *until <= now).is_some() {
                peer.is_changed = true;
                self.no_more_waits(at);
            }
            let peer = &mut self.peers[at];
            if peer.association.is_some() && peer.kept_until.is_some_and(|until| until <= now) {
                if peer.groups.count().1 > 0 {
                    warn!("peer {}: it was away for too long: its link groups end", peer.name);
                }
                self.lost(at, "it was away for too long".to_owned(), Outlook::Open, now);
            }
        }
    }

    /// A peer is gone, and with it its link groups.
    pub(super) fn lost(&mut self, at: usize, why: String, outlook: Outlook, now: Duration) {
        let orders = self.peers[at].groups.end();
        self.carry_out(at, orders, now);
        self.peers[at].lost(why, outlook, now);
    }

    /// Says farewell on a connection, and ends it.
    pub(super) fn part(&mut self, id: u64, why: Bye, now: Duration) {
        if let Some(conn) = self.conns.remove(&id) {
            let _ = conn.part(Some(why), now);
        }
    }

    /// Says something to a peer: on its connection, or on the next one.
    pub(super) fn say_to(&mut self, at: usize, message: &Message, now: Duration) {
        let peer = &mut self.peers[at];
        let (id, said) = match (&mut peer.association, peer.way) {
            (Some(association), _) => (None, association.say(message).map_err(Over::from)),
            (None, Way::Open(id) | Way::Proving(id)) => {
                let Some(conn) = self.conns.get_mut(&id) else { return };
                (Some(id), conn.say(message, now))
            }
            _ => return,
        };
        match (said, id) {
            (Ok(()), _) => {}
            (Err(why), Some(id)) => self.over(id, &why, now),
            (Err(why), None) => self.lost(at, why.to_string(), Outlook::Open, now),
        }
    }

    pub(super) fn say_to_all(&mut self, message: &Message, now: Duration) {
        (0..self.peers.len()).for_each(|at| self.say_to(at, message, now));
    }

    /// Sends what there is to send.
    pub(super) fn flush(&mut self, now: Duration) {
        let mut over = Vec::new();
        for (id, conn) in &mut self.conns {
            if let Err(why) = conn.flush(now) {
                over.push((*id, why));
            }
        }
        over.iter().for_each(|(id, why)| self.over(*id, why, now));
    }
}
