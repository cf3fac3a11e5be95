//! Connections between parties, or between networks: the client offers them, the acceptor claims
//! them.
//!
//! The same addresses can exist in any number of network namespaces, and can be rewritten on the
//! way. So addresses are no evidence. The marks say which two sockets are the ends of one
//! connection, and both ends pass their socket to the agent. The agent gives each connection a slot
//! in a region that the client shares with acceptors of one party only.

use std::rc::Rc;

use shunt_shm::arena::RECORDS;
use shunt_shm::region::Side;
use shunt_shm::sync::Ordering;
use shunt_sys::bpf::Made;
use shunt_wire::agent::{EndpointId, RegionId, Reply};
use shunt_wire::clc::Proposal;
use shunt_wire::offer::Offer;
use shunt_wire::reason::Reason;

use super::offer::{Claimed, Claims, Offered};
use super::region::Purpose;
use super::{Answer, Endpoint, Outcome, Rejection, State};
use crate::held::{Passed, Socket, Thing};
use crate::party::Party;

/// The TCP socket that a request is about.
fn socket_of(passed: &mut Passed) -> Result<Socket, Rejection> {
    match passed.take() {
        Some(Thing::Socket(socket)) => Ok(socket),
        Some(_) => Err(Rejection::Refused(Reason::Unsupported)),
        None => Err(Rejection::Misconduct("a request about a socket without one")),
    }
}

/// The acceptor's end of a connection.
struct Accepted {
    cookie: u64,
    netns: u64,
    port: u16,
}

impl State {
    pub(super) fn await_clients(&mut self, me: EndpointId, passed: &mut Passed) -> Outcome {
        let socket = socket_of(passed)?.cookie;
        let most = self.limits.sockets_per_listener;
        let endpoint = self.endpoints.get_mut(&me).ok_or(Rejection::Refused(Reason::Internal))?;
        if endpoint.awaits.len() >= most {
            return Err(Rejection::Refused(Reason::Refused));
        }
        endpoint.awaits.insert(socket);
        self.answer_marks_at(socket);
        Ok(Answer::bare(Reply::Done))
    }

    /// Connections that are offered may lead to this listener.
    pub(super) fn answer_marks_at(&self, listener: u64) {
        let marks = self.host.as_ref().and_then(|host| host.marks.as_ref());
        // Where there is no room its clients stay on TCP.
        let _ = marks.map(|marks| marks.await_at(listener));
    }

    pub(super) fn leave_marks_at(&self, listener: u64) {
        if let Some(marks) = self.host.as_ref().and_then(|host| host.marks.as_ref()) {
            marks.leave(listener);
        }
    }

    pub(super) fn offer(
        &mut self,
        me: EndpointId,
        (record, number): (u32, u64),
        passed: &mut Passed,
    ) -> Outcome {
        let Socket { cookie: socket, netns, listens, .. } = socket_of(passed)?;
        if usize::try_from(record).map_or(true, |record| record >= RECORDS) {
            return Err(Rejection::Misconduct("a record that no arena has"));
        }
        let most = self.limits.offers_per_endpoint;
        let offers = |state: &Self| state.endpoints.get(&me).map_or(0, |e| e.offers.len());
        if offers(self) >= most {
            self.sweep();
        }
        if offers(self) >= most || listens {
            return Err(Rejection::Refused(Reason::Refused));
        }
        let host = self.host.as_mut().ok_or(Rejection::Refused(Reason::Unmarked))?;
        let marks = host.marks.as_ref().ok_or(Rejection::Refused(Reason::Unmarked))?;
        if host.offers.get(&socket).is_some_and(|known| known.client != me) {
            return Err(Rejection::Refused(Reason::Refused));
        }
        marks.offer(socket).map_err(|_| Rejection::Refused(Reason::NoResources))?;
        host.offers.insert(socket, Offered { client: me, netns, record, number });
        if let Some(endpoint) = self.endpoints.get_mut(&me) {
            endpoint.offers.insert(socket);
        }
        Ok(Answer::bare(Reply::Done))
    }

    /// An offer is over, in whatever way; `accepted` is the other end's socket, if it has claimed the connection.
    fn end_offer(&mut self, socket: u64, accepted: Option<u64>) -> Option<Offered> {
        let host = self.host.as_mut()?;
        let offered = host.offers.remove(&socket)?;
        match (&host.marks, accepted) {
            (Some(marks), Some(accepted)) => marks.withdraw_pair(socket, accepted),
            (Some(marks), None) => marks.withdraw(socket),
            (None, _) => {}
        }
        if let Some(client) = self.endpoints.get_mut(&offered.client) {
            client.offers.remove(&socket);
        }
        Some(offered)
    }

    /// True while there are offers to be swept.
    #[must_use]
    pub fn has_offers(&self) -> bool {
        self.host.as_ref().is_some_and(|host| !host.offers.is_empty())
    }

    /// Ends the offers whose client has given up, or whose connection leads elsewhere.
    pub fn sweep(&mut self) {
        let Some(host) = &self.host else { return };
        let is_over = |socket: u64, offered: &Offered| {
            let Some(client) = self.endpoints.get(&offered.client) else { return true };
            if client.arena.offer(offered.record) != Offer::Open(offered.number) {
                return true;
            }
            match host.marks.as_ref().and_then(|marks| marks.made(socket)) {
                Some(Made::Connecting | Made::To(_)) => false,
                Some(Made::Elsewhere) | None => {
                    let declined = Offer::Declined(Reason::PeerNotShunted);
                    let _ = client.arena.answer(offered.record, offered.number, declined);
                    true
                }
            }
        };
        let over = host.offers.iter().filter(|(socket, offered)| is_over(**socket, offered));
        let over: Vec<_> = over.map(|(socket, _)| *socket).collect();
        for socket in over {
            self.end_offer(socket, None);
        }
    }

    /// A client is gone.
    pub(super) fn forget_offers(&mut self, endpoint: &Endpoint) {
        for socket in &endpoint.offers {
            self.end_offer(*socket, None);
        }
        for listener in endpoint.awaits.iter().filter(|l| !self.by_cookie.contains_key(l)) {
            self.leave_marks_at(*listener);
        }
    }

    pub(super) fn claim(&mut self, me: EndpointId, passed: &mut Passed) -> Outcome {
        let Socket { cookie, netns, local, .. } = socket_of(passed)?;
        let port = local.ok_or(Rejection::Refused(Reason::Unsupported))?.port;
        let marks = self.host.as_ref().and_then(|host| host.marks.as_ref());
        let offered = marks.and_then(|marks| marks.other_end(cookie));
        let offered = offered.ok_or(Rejection::Refused(Reason::NoProposal))?;
        let offer =
            self.end_offer(offered, Some(cookie)).ok_or(Rejection::Refused(Reason::NoProposal))?;
        let outcome = self.join(me, &Accepted { cookie, netns, port }, offered, &offer);
        if let Err(Rejection::Refused(why)) = &outcome
            && let Some(client) = self.endpoints.get(&offer.client)
        {
            let _ = client.arena.answer(offer.record, offer.number, Offer::Declined(*why));
        }
        outcome
    }

    /// Gives both ends of a connection a place.
    fn join(
        &mut self,
        me: EndpointId,
        socket: &Accepted,
        offered: u64,
        offer: &Offered,
    ) -> Outcome {
        let client =
            self.endpoints.get(&offer.client).ok_or(Rejection::Refused(Reason::PeerGone))?;
        let server = self.endpoints.get(&me).ok_or(Rejection::Refused(Reason::Internal))?;
        if !self.policy_permits((client, offer.netns), (server, socket.netns), socket.port) {
            return Err(Rejection::Refused(Reason::Denied));
        }
        let (region, slot) = self.place_for(offer.client, server.origin.party)?;
        let client =
            self.endpoints.get(&offer.client).ok_or(Rejection::Refused(Reason::PeerGone))?;
        let known = self.regions.get_mut(&region).ok_or(Rejection::Refused(Reason::Internal))?;
        let view = known.view();
        for side in [Side::Client, Side::Server] {
            view.section(slot, side).reset();
        }
        let setup = &view.section(slot, Side::Client).setup;
        let generation = setup.generation.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        setup.endpoint.store(offer.client, Ordering::Relaxed);
        setup.state.store(Proposal::Proposed as u32, Ordering::Release);
        let Ok(number) = u8::try_from(slot) else {
            return Err(Rejection::Refused(Reason::Internal));
        };
        let told = Offer::Claimed { region, slot: number };
        if !client.arena.answer(offer.record, offer.number, told) {
            return Err(Rejection::Refused(Reason::PeerGone));
        }
        if let Purpose::Claims(claims) = &mut known.purpose {
            let claimed = Claimed { accepted: socket.cookie, offered, record: offer.record, told };
            claims.slots.insert(slot, claimed);
        }
        let mut fds = Vec::new();
        if known.attached.insert(me) {
            fds.push(Rc::clone(known.memory()));
            fds.extend(client.bells.first().map(Rc::clone));
        }
        if let Some(endpoint) = self.endpoints.get_mut(&me) {
            endpoint.attached.insert(region);
        }
        #[allow(clippy::cast_possible_truncation, reason = "below 255")]
        let slot = slot as u32;
        let reply = Reply::Claimed { endpoint: offer.client, region, slot, generation };
        Ok(Answer { reply, fds })
    }

    /// A free slot in a region that a client shares with acceptors of a party.
    fn place_for(
        &mut self,
        client: EndpointId,
        acceptors: Party,
    ) -> Result<(RegionId, usize), Rejection> {
        let endpoint = self.endpoints.get(&client).ok_or(Rejection::Refused(Reason::PeerGone))?;
        for region in &endpoint.owns {
            let Some(known) = self.regions.get_mut(region) else { continue };
            let view = known.view();
            if let Purpose::Claims(claims) = &mut known.purpose
                && claims.acceptors == acceptors
                && let Some(slot) = claims.free_slot(view, &endpoint.arena)
            {
                return Ok((*region, slot));
            }
        }
        let (region, _) = self.open_region(client, Purpose::Claims(Claims::of(acceptors)))?;
        Ok((region, 0))
    }

    pub(super) fn fetch(
        &self,
        me: EndpointId,
        region: RegionId,
        slot: u32,
        passed: &mut Passed,
    ) -> Outcome {
        let socket = socket_of(passed)?.cookie;
        let _ = self.endpoints.get(&me).ok_or(Rejection::Refused(Reason::Internal))?;
        let known = self.regions.get(&region).ok_or(Rejection::Refused(Reason::PeerGone))?;
        let slot = usize::try_from(slot).map_err(|_| Rejection::Refused(Reason::Refused))?;
        match &known.purpose {
            Purpose::Claims(claims) if claims.is_client(slot, socket) => {
                Ok(Answer { reply: Reply::Fetched, fds: vec![Rc::clone(known.memory())] })
            }
            _ => Err(Rejection::Refused(Reason::Refused)),
        }
    }
}
