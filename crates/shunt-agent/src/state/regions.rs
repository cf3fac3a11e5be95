//! Regions: the memory of link groups, and the processes that may have it.

use std::collections::HashSet;
use std::rc::Rc;

use shunt_shm::region::{self, LANES, SLOTS, Side};
use shunt_shm::sync::Ordering;
use shunt_wire::addr::FourTuple;
use shunt_wire::agent::{EndpointId, ListenerId, RegionId, Reply};
use shunt_wire::reason::Reason;

use super::region::Purpose;
use super::{Answer, Endpoint, Outcome, Region, Rejection, State};
use crate::held::{Held, Passed, Thing};

/// The connection that a passed socket is, and its network namespace.
pub(super) fn connected(thing: &Thing) -> Option<Connected> {
    let Thing::Socket(socket) = thing else { return None };
    let tuple = FourTuple { local: socket.local?, peer: socket.peer? };
    Some(Connected { tuple, netns: socket.netns, cookie: socket.cookie })
}

pub(super) struct Connected {
    pub(super) tuple: FourTuple,
    pub(super) netns: u64,
    cookie: u64,
}

impl State {
    /// True for a socket that is either end of the connection in this slot.
    pub(super) fn is_held_by(&self, known: &Region, slot: u32, socket: &Thing) -> bool {
        let slot = usize::try_from(slot).ok().filter(|slot| *slot < SLOTS);
        let (Some(slot), Some(held)) = (slot, connected(socket)) else { return false };
        match &known.purpose {
            Purpose::Claims(claims) => {
                claims.is_acceptor(slot, held.cookie) || claims.is_client(slot, held.cookie)
            }
            Purpose::Listener(_) => {
                let client = known.owner.and_then(|owner| self.endpoints.get(&owner));
                let proposed = known.view().section(slot, Side::Client).setup.tuple();
                client.is_some_and(|client| client.netns == held.netns)
                    && (proposed == held.tuple || proposed == held.tuple.reversed())
            }
        }
    }

    pub(super) fn connect(&mut self, me: EndpointId, listener: ListenerId) -> Outcome {
        let endpoint = self.endpoints.get(&me).ok_or(Rejection::Refused(Reason::Internal))?;
        let to = self.listeners.get(&listener).ok_or(Rejection::Refused(Reason::PeerNotShunted))?;
        if endpoint.origin.party != to.name.party {
            return Err(Rejection::Refused(Reason::OtherUser));
        }
        if endpoint.netns != to.name.netns {
            return Err(Rejection::Refused(Reason::OtherNamespace));
        }
        if !self.policy_permits_listener(endpoint, to) {
            return Err(Rejection::Refused(Reason::Denied));
        }
        let table = Rc::clone(&to.table_fd);
        let (region, memory) = self.open_region(me, Purpose::Listener(listener))?;
        Ok(Answer { reply: Reply::Linked { region }, fds: vec![table, memory] })
    }

    /// A new region of this client's.
    pub(super) fn open_region(
        &mut self,
        me: EndpointId,
        purpose: Purpose,
    ) -> Result<(RegionId, Rc<Held>), Rejection> {
        let endpoint = self.endpoints.get(&me).ok_or(Rejection::Refused(Reason::Internal))?;
        let account = &endpoint.origin.account;
        let of_account = |e: &&Endpoint| e.origin.account == *account;
        if endpoint.owns.len() >= self.limits.regions_per_endpoint
            || self.regions.len() >= self.limits.regions
            || self.exceeds_share(account, self.limits.regions, || {
                self.endpoints.values().filter(of_account).map(|e| e.owns.len()).sum()
            })
        {
            return Err(Rejection::Refused(Reason::Refused));
        }
        let region = self.new_id();
        let memory = Rc::new(self.grave.keep(region::create(region)?));
        let entry = Region {
            owner: Some(me),
            purpose,
            attached: HashSet::new(),
            map: region::Region::map(&memory)?,
            memory: Rc::clone(&memory),
        };
        self.regions.insert(region, entry);
        if let Some(endpoint) = self.endpoints.get_mut(&me) {
            endpoint.owns.insert(region);
        }
        Ok((region, memory))
    }

    pub(super) fn attach(
        &mut self,
        me: EndpointId,
        region: RegionId,
        slot: u32,
        passed: &mut Passed,
    ) -> Outcome {
        let socket = passed.take().ok_or(Rejection::Misconduct("an Attach without a socket"))?;
        let connected = connected(&socket).ok_or(Rejection::Refused(Reason::Unsupported))?;
        let slot = usize::try_from(slot).ok().filter(|slot| *slot < SLOTS);
        let slot = slot.ok_or(Rejection::Misconduct("a slot that no region has"))?;
        let known = self.regions.get_mut(&region).ok_or(Rejection::Refused(Reason::PeerGone))?;
        let owner = known.owner.ok_or(Rejection::Refused(Reason::PeerGone))?;
        let client = self.endpoints.get(&owner).ok_or(Rejection::Refused(Reason::PeerGone))?;
        // Who holds the other end of the proposal's connection is its acceptor; nothing else is
        // asked, for a worker may have changed its user, or never have held the listener. The same
        // addresses can exist once in each network namespace, so that is compared too.
        let proposed = known.map.view().section(slot, Side::Client).setup.tuple();
        let is_party = match &known.purpose {
            Purpose::Listener(_) => {
                proposed == connected.tuple.reversed() && client.netns == connected.netns
            }
            Purpose::Claims(claims) => claims.is_acceptor(slot, connected.cookie),
        };
        if !is_party {
            return Err(Rejection::Refused(Reason::Refused));
        }
        // A pidfd lets who has it reach into the process, where users alone would permit that: not between
        // parties, who may be of one user in two containers.
        let pidfd = matches!(known.purpose, Purpose::Listener(_));
        let mut fds = vec![Rc::clone(&known.memory)];
        fds.extend(pidfd.then(|| Rc::clone(&client.pidfd)));
        fds.extend(client.bells.first().map(Rc::clone));
        known.attached.insert(me);
        if let Some(endpoint) = self.endpoints.get_mut(&me) {
            endpoint.attached.insert(region);
        }
        Ok(Answer { reply: Reply::Attached { endpoint: owner, pidfd }, fds })
    }

    pub(super) fn bells(&self, me: EndpointId, region: RegionId, of: EndpointId) -> Outcome {
        let known = self.regions.get(&region).ok_or(Rejection::Refused(Reason::Refused))?;
        if known.owner != Some(me) {
            return Err(Rejection::Refused(Reason::Refused));
        }
        let endpoint = self.endpoints.get(&of).ok_or(Rejection::Refused(Reason::PeerGone))?;
        if !known.attached.contains(&of) {
            return Err(Rejection::Refused(Reason::Refused));
        }
        let fds = endpoint.bells.first().map(Rc::clone).into_iter().collect();
        Ok(Answer { reply: Reply::Bells, fds })
    }

    /// The doorbell of a completion vector of an endpoint with which the asker shares a link group.
    pub(super) fn bell(
        &self,
        me: EndpointId,
        (region, slot): (RegionId, u32),
        (of, vector): (EndpointId, u8),
        passed: &mut Passed,
    ) -> Outcome {
        let socket = passed.take();
        let known = self.regions.get(&region).ok_or(Rejection::Refused(Reason::Refused))?;
        let by_socket = || socket.is_some_and(|socket| self.is_held_by(known, slot, &socket));
        if !known.has_party(of) || !(known.has_party(me) || by_socket()) {
            return Err(Rejection::Refused(Reason::Refused));
        }
        let endpoint = self.endpoints.get(&of).ok_or(Rejection::Refused(Reason::PeerGone))?;
        let bell = endpoint.bells.get(usize::from(vector));
        let bell = bell.ok_or(Rejection::Refused(Reason::Refused))?;
        Ok(Answer { reply: Reply::Bell, fds: vec![Rc::clone(bell)] })
    }

    /// Rings for an endpoint that has no descriptor for it. Others than parties of the link group ring nothing.
    pub(crate) fn ring(&self, me: EndpointId, region: RegionId, of: EndpointId, vector: u8) {
        if let Some(known) = self.regions.get(&region)
            && known.has_party(me)
            && known.has_party(of)
            && let Some(endpoint) = self.endpoints.get(&of)
        {
            endpoint.ring(vector.into());
        }
    }

    pub(super) fn detach(&mut self, me: EndpointId, region: RegionId) -> Outcome {
        let endpoint = self.endpoints.get_mut(&me).ok_or(Rejection::Refused(Reason::Internal))?;
        let owned = endpoint.owns.remove(&region);
        let attached = endpoint.attached.remove(&region);
        if owned {
            self.owner_left(region);
        }
        if attached {
            self.attacher_left(me, region);
        }
        if owned || attached {
            Ok(Answer::bare(Reply::Done))
        } else {
            Err(Rejection::Refused(Reason::Refused))
        }
    }

    /// The client of a link group is gone. Its open proposals must not be taken up any more; its
    /// acceptors keep the memory for as long as they like.
    pub(super) fn owner_left(&mut self, region: RegionId) {
        let Some(known) = self.regions.get_mut(&region) else { return };
        known.owner = None;
        // Their next look at the kernel finds its end.
        known.map.view().rouse(Side::Server);
        // So its acceptors know where they have no pidfd.
        known.map.view().lane(0).owner.store(0, Ordering::Release);
        if let Purpose::Listener(listener) = &known.purpose
            && let Some(listener) = self.listeners.get(listener)
        {
            listener.table.scrub(region);
        }
        self.drop_unused(region);
    }

    pub(super) fn attacher_left(&mut self, me: EndpointId, region: RegionId) {
        if let Some(known) = self.regions.get_mut(&region) {
            known.attached.remove(&me);
            // Also those of others: what one has taken up a child of it may have had, of which this is the end.
            known.map.view().rouse(Side::Client);
            // Its lanes are free for other workers. Their owner words are shared memory, but only
            // this link group's parties can forge them, to their own harm.
            for lane in (0..LANES).map(|lane| known.map.view().lane(lane)) {
                let _ = lane.owner.compare_exchange(me, 0, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
        self.drop_unused(region);
    }

    fn drop_unused(&mut self, region: RegionId) {
        let unused = |r: &Region| r.owner.is_none() && r.attached.is_empty();
        if self.regions.get(&region).is_some_and(unused) {
            self.regions.remove(&region);
        }
    }
}
