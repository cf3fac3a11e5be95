//! Regions: the memory of link groups, and who may have it.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use shunt_shm::region::{self, LANES, SLOTS, Side};
use shunt_shm::sync::Ordering;
use shunt_sys::fds::{Fds, close};
use shunt_sys::sockinfo;
use shunt_wire::addr::FourTuple;
use shunt_wire::agent::{EndpointId, ListenerId, RegionId, Reply};
use shunt_wire::reason::Reason;

use super::{Answer, No, Outcome, State};

/// The memory of a link group.
#[derive(Debug)]
pub(crate) struct Region {
    /// The client; `None` once it is gone or has let go.
    owner: Option<EndpointId>,
    listener: ListenerId,
    attached: HashSet<EndpointId>,
    memory: Rc<OwnedFd>,
    map: region::Region,
}

impl Region {
    /// Its memory.
    pub(crate) const fn memory(&self) -> &Rc<OwnedFd> {
        &self.memory
    }

    /// Those who share it.
    pub(super) fn parties(&self) -> impl Iterator<Item = EndpointId> {
        self.owner.into_iter().chain(self.attached.iter().copied())
    }

    /// True for one of them.
    pub(super) fn has_party(&self, endpoint: EndpointId) -> bool {
        self.owner == Some(endpoint) || self.attached.contains(&endpoint)
    }
}

/// The connection that a passed socket is, and its network namespace. Closes the socket: the agent
/// must not keep the connection open.
pub(super) fn inspect(socket: OwnedFd) -> Option<(FourTuple, u64)> {
    let facts = sockinfo::is_tcp(&socket)
        .then(|| Some((sockinfo::four_tuple(&socket).ok()?, sockinfo::netns_cookie(&socket))))
        .flatten();
    close(socket);
    facts
}

impl State {
    pub(super) fn connect(&mut self, me: EndpointId, listener: ListenerId) -> Outcome {
        let endpoint = self.endpoints.get(&me).ok_or(No::Refused(Reason::Internal))?;
        let to = self.listeners.get(&listener).ok_or(No::Refused(Reason::PeerNotShunted))?;
        if endpoint.uid != to.name.uid {
            return Err(No::Refused(Reason::OtherUser));
        }
        if endpoint.netns != to.name.netns {
            return Err(No::Refused(Reason::OtherNamespace));
        }
        if endpoint.owns.len() >= self.limits.regions_per_endpoint
            || self.regions.len() >= self.limits.regions
        {
            return Err(No::Refused(Reason::Refused));
        }
        let table = Rc::clone(&to.table_fd);
        let region = self.new_id();
        let memory = Rc::new(region::create(region)?);
        let entry = Region {
            owner: Some(me),
            listener,
            attached: HashSet::new(),
            map: region::Region::map(&memory)?,
            memory: Rc::clone(&memory),
        };
        self.regions.insert(region, entry);
        if let Some(endpoint) = self.endpoints.get_mut(&me) {
            endpoint.owns.insert(region);
        }
        Ok(Answer { reply: Reply::Linked { region }, fds: vec![table, memory] })
    }

    pub(super) fn attach(
        &mut self,
        me: EndpointId,
        region: RegionId,
        slot: u32,
        fds: &mut Fds,
    ) -> Outcome {
        let socket = fds.take().ok_or(No::Misconduct("an Attach without a socket"))?;
        let (tuple, netns) = inspect(socket).ok_or(No::Refused(Reason::Unsupported))?;
        let slot = usize::try_from(slot).ok().filter(|slot| *slot < SLOTS);
        let slot = slot.ok_or(No::Misconduct("a slot that no region has"))?;
        let known = self.regions.get_mut(&region).ok_or(No::Refused(Reason::PeerGone))?;
        let owner = known.owner.ok_or(No::Refused(Reason::PeerGone))?;
        let client = self.endpoints.get(&owner).ok_or(No::Refused(Reason::PeerGone))?;
        // Who holds the other end of the proposal's connection is its acceptor; nothing else is
        // asked, for a worker may have changed its user, or never have held the listener. The same
        // addresses can exist once in each network namespace, so that is compared too.
        let proposed = known.map.view().section(slot, Side::Client).setup.tuple();
        if proposed != tuple.reversed() || client.netns != netns {
            return Err(No::Refused(Reason::Refused));
        }
        let mut fds = vec![Rc::clone(&known.memory), Rc::clone(&client.pidfd)];
        fds.extend(client.bells.iter().map(Rc::clone));
        known.attached.insert(me);
        if let Some(endpoint) = self.endpoints.get_mut(&me) {
            endpoint.attached.insert(region);
        }
        Ok(Answer { reply: Reply::Attached { endpoint: owner }, fds })
    }

    pub(super) fn bells(&self, me: EndpointId, region: RegionId, of: EndpointId) -> Outcome {
        let known = self.regions.get(&region).ok_or(No::Refused(Reason::Refused))?;
        if known.owner != Some(me) {
            return Err(No::Refused(Reason::Refused));
        }
        let endpoint = self.endpoints.get(&of).ok_or(No::Refused(Reason::PeerGone))?;
        if !known.attached.contains(&of) {
            return Err(No::Refused(Reason::Refused));
        }
        let fds = endpoint.bells.iter().map(Rc::clone).collect();
        Ok(Answer { reply: Reply::Bells, fds })
    }

    pub(super) fn detach(&mut self, me: EndpointId, region: RegionId) -> Outcome {
        let endpoint = self.endpoints.get_mut(&me).ok_or(No::Refused(Reason::Internal))?;
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
            Err(No::Refused(Reason::Refused))
        }
    }

    /// The client of a link group is gone. Its open proposals must not be taken up any more; its
    /// acceptors keep the memory for as long as they like.
    pub(super) fn owner_left(&mut self, region: RegionId) {
        let Some(known) = self.regions.get_mut(&region) else { return };
        known.owner = None;
        if let Some(listener) = self.listeners.get(&known.listener) {
            listener.table.scrub(region);
        }
        self.drop_unused(region);
    }

    pub(super) fn attacher_left(&mut self, me: EndpointId, region: RegionId) {
        if let Some(known) = self.regions.get_mut(&region) {
            known.attached.remove(&me);
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
