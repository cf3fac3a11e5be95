//! Link groups between machines.

use std::collections::HashSet;
use std::io;
use std::rc::Rc;

use shunt_device::ivshmem::Means;
use shunt_shm::ivshmem::{EXTENT, Kind, MemberId, offset, table_offset};
use shunt_shm::region::{self, Geometry, LANES, Lane, Region, Side};
use shunt_shm::sync::Ordering;
use shunt_shm::table::Table;
use shunt_wire::addr::FourTuple;
use shunt_wire::agent::{EndpointId, FarBells, Interrupt, ListenerId, MAX_VECTORS, RegionId};
use shunt_wire::reason::Reason;

use super::link::{Attached, Link, Linked};
use super::{Doorbells, Fabric, News};
use crate::held::Held;

fn no_resources(_: io::Error) -> Reason {
    Reason::NoResources
}

impl Fabric {
    /// True for a listener of another machine.
    pub(crate) fn serves(&self, listener: ListenerId) -> bool {
        self.remotes.contains_key(&listener)
    }

    /// By which number the member is known whose listener it is.
    pub(crate) fn peer_of(&self, listener: ListenerId) -> Option<u16> {
        let remote = self.remotes.get(&listener)?;
        self.control.member(remote.member.index).peer()
    }

    /// The same of the member to which a link group of a program leads.
    pub(crate) fn peer_at(&self, me: EndpointId, region: RegionId) -> Option<u16> {
        let link = self.links.get(&region).filter(|link| link.parties.contains(&me))?;
        self.control.member(link.other.index).peer()
    }

    /// True for a link group that leads to another machine, or that may: who asks has it from the memory.
    pub(crate) fn has(&self, region: RegionId) -> bool {
        self.links.contains_key(&region)
    }

    /// Link groups of a program.
    pub(crate) fn count(&self, endpoint: EndpointId) -> usize {
        self.links.values().filter(|link| link.parties.contains(&endpoint)).count()
    }

    /// A region for proposals of `me`, which has so many completion vectors, to a listener of another machine.
    pub(crate) fn connect(
        &mut self,
        me: Doorbells<'_>,
        listener: ListenerId,
        region: RegionId,
    ) -> Result<Linked, Reason> {
        let remote = self.remotes.get(&listener).ok_or(Reason::PeerNotShunted)?.clone();
        let home = self.hold_home(remote.member)?;
        self.settle(me).ok_or(Reason::NoResources)?;
        let memory = self.memory()?;
        let (me, _) = me;
        let extent = self.control.take_extent(self.me).ok_or(Reason::NoResources)?;
        let before = self.control.extent(extent).kind();
        let made =
            region::create_in_device(self.transport.memory(), offset(extent), region, before);
        let (of, heeds) = ((region, me), self.transport.wants_news());
        let lease = self.leases.give(of, heeds, &self.epoll, &mut self.next_token);
        let (map, lease) = match (made, lease) {
            (Ok(map), Ok(lease)) => (map, lease),
            (made, _) => {
                // Of a kind that is wiped whole, whatever was done to it.
                self.control.describe(extent, Kind::Home, EXTENT, 0, 0);
                self.control.give_extent(extent, self.me);
                return Err(made.err().map_or(Reason::NoResources, no_resources));
            }
        };
        self.control.describe(extent, Kind::Region, EXTENT, me, region);
        let parties = HashSet::from([me]);
        let table = offset(home) + table_offset(remote.place);
        let link =
            Link { extent, owner: self.me, other: remote.member, map, table: Some(table), parties };
        self.links.insert(region, link);
        Ok(Linked {
            table: table as u64,
            region: offset(extent) as u64,
            fds: vec![memory, Rc::new(Held::own(lease))],
        })
    }

    /// The region that holds the proposal for the connection `tuple`, as the acceptor `me` sees it.
    pub(crate) fn attach(
        &mut self,
        me: Doorbells<'_>,
        (region, slot): (RegionId, usize),
        tuple: &FourTuple,
    ) -> Result<Attached, Reason> {
        if region == 0 || slot >= Geometry::Device.slots() {
            return Err(Reason::Refused);
        }
        let is_new = !self.links.contains_key(&region);
        if is_new {
            self.find(region)?;
        }
        let attached = self.take_part(me, (region, slot), tuple);
        if attached.is_err() && is_new {
            // Nobody here has a lease that would end it.
            self.let_go(region);
        }
        attached
    }

    /// The same of a region that is held.
    fn take_part(
        &mut self,
        me: Doorbells<'_>,
        (region, slot): (RegionId, usize),
        tuple: &FourTuple,
    ) -> Result<Attached, Reason> {
        let link = self.links.get(&region).ok_or(Reason::PeerGone)?;
        let (extent, owner) = (link.extent, link.owner);
        if owner == self.me || !self.control.lives(owner) {
            return Err(Reason::PeerGone);
        }
        // As on one machine, the addresses are the proof; and they are the client's machine's.
        let proposed = link.map.view().section(slot, Side::Client).setup.tuple();
        if proposed != tuple.reversed() || !self.is_address_of(owner, &tuple.peer.ip) {
            return Err(Reason::Refused);
        }
        let endpoint = self.control.extent(extent).endpoint();
        let (bells, means) = self.bells_of(owner, endpoint)?;
        self.settle(me).ok_or(Reason::NoResources)?;
        let (of, heeds) = ((region, me.0), self.transport.wants_news());
        let lease = self.leases.give(of, heeds, &self.epoll, &mut self.next_token);
        let mut fds = vec![self.memory()?, Rc::new(Held::own(lease.map_err(no_resources)?))];
        fds.extend(means);
        if let Some(link) = self.links.get_mut(&region) {
            link.parties.insert(me.0);
        }
        Ok(Attached { endpoint, region: offset(extent) as u64, bells, fds })
    }

    /// Looks a region of another member up, and holds it.
    fn find(&mut self, region: RegionId) -> Result<(), Reason> {
        let (extent, owner) = self.control.find_extent(region).ok_or(Reason::PeerGone)?;
        if owner == self.me || self.control.extent(extent).kind() != Kind::Region {
            return Err(Reason::PeerGone);
        }
        if !self.control.hold(extent, (owner, region), self.me) {
            return Err(Reason::PeerGone);
        }
        let memory = self.transport.memory();
        let map = match Region::map_device(memory, offset(extent)) {
            Ok(map) if map.name() == region => map,
            _ => {
                self.control.extent(extent).release(self.me.index);
                return Err(Reason::NoResources);
            }
        };
        if let Err(why) = self.hold_home(owner) {
            self.control.extent(extent).release(self.me.index);
            return Err(why);
        }
        let link = Link { extent, owner, other: owner, map, table: None, parties: HashSet::new() };
        self.links.insert(region, link);
        Ok(())
    }

    /// The extent of a member's home, which nobody uses for anything else while a program here may write to it: its
    /// proposals go there, and its rings.
    fn hold_home(&mut self, member: MemberId) -> Result<usize, Reason> {
        if let Some(extent) = self.homes.get(&member) {
            return Ok(*extent);
        }
        let extent = self.control.home_of(member).ok_or(Reason::PeerGone)?;
        if !self.control.hold(extent, (member, 0), self.me) {
            return Err(Reason::PeerGone);
        }
        self.homes.insert(member, extent);
        Ok(extent)
    }

    /// Lets go of homes to which no link group leads any more.
    pub(super) fn release_homes(&mut self) {
        let Self { homes, links, control, me, .. } = self;
        homes.retain(|member, extent| {
            let stays = links.values().any(|link| link.other == *member);
            if !stays {
                control.extent(*extent).release(me.index);
            }
            stays
        });
    }

    fn bells_of(
        &self,
        member: MemberId,
        id: EndpointId,
    ) -> Result<(FarBells, Vec<Rc<Held>>), Reason> {
        let peer = self.peers.get(&member).filter(|_| id != 0).ok_or(Reason::PeerGone)?;
        let place = peer.home.find_endpoint(id).ok_or(Reason::PeerGone)?;
        let home = *self.homes.get(&member).ok_or(Reason::PeerGone)?;
        let facts = self.control.member(member.index);
        let means = facts.peer().map(|peer| Ok((peer, self.transport.means(peer)?))).transpose();
        let (interrupt, fds) = match means.map_err(no_resources)? {
            Some((_, Means::Eventfds(mut eventfds))) => {
                eventfds.truncate(MAX_VECTORS + 1);
                (Interrupt::Eventfds, eventfds)
            }
            Some((peer, Means::Register { bar, at })) => {
                let at = u16::try_from(at).map_err(|_| Reason::Internal)?;
                let vectors = u8::try_from(facts.vectors()).unwrap_or(u8::MAX);
                (Interrupt::Register { at, peer, vectors }, vec![bar])
            }
            Some((_, Means::None)) | None => (Interrupt::Nobody, Vec::new()),
        };
        let place = u32::try_from(place).map_err(|_| Reason::Internal)?;
        let bells = FarBells { home: offset(home) as u64, place, interrupt };
        Ok((bells, fds.into_iter().map(|fd| Rc::new(Held::own(fd))).collect()))
    }

    /// The doorbells of an endpoint at the other end of a link group of `me`, with the memory and what they need.
    pub(crate) fn bells(
        &self,
        me: EndpointId,
        region: RegionId,
        of: EndpointId,
    ) -> Result<(FarBells, Vec<Rc<Held>>), Reason> {
        let link = self.links.get(&region).filter(|link| link.parties.contains(&me));
        let other = link.ok_or(Reason::Refused)?.other;
        let (bells, means) = self.bells_of(other, of)?;
        let mut fds = vec![self.memory()?];
        fds.extend(means);
        Ok((bells, fds))
    }

    /// A program does not use a link group any more. False: it did not.
    pub(crate) fn detach(&mut self, me: EndpointId, region: RegionId) -> bool {
        let Some(link) = self.links.get_mut(&region) else { return false };
        let was = link.parties.contains(&me);
        link.left(me);
        was
    }

    /// The last process here that had it mapped is gone.
    pub(super) fn let_go(&mut self, region: RegionId) {
        let Some(link) = self.links.remove(&region) else { return };
        if link.owner == self.me {
            // Its open proposals.
            if self.control.lives(link.other)
                && let Some(at) = link.table
                && let Ok(table) = Table::map_device(self.transport.memory(), at)
            {
                table.scrub(region);
            }
            self.control.give_extent(link.extent, self.me);
        } else {
            self.control.extent(link.extent).release(self.me.index);
        }
        self.release_homes();
    }

    /// A machine is gone: what was agreed on with it is over, and all who may wait are woken.
    pub(super) fn break_links_to(&mut self, member: MemberId, news: &mut News) {
        for link in self.links.values().filter(|link| link.other == member) {
            let view = link.map.view();
            let broken: Vec<_> = view.break_all().collect();
            let is_used = |lane: &Lane<'_>| lane.owner.load(Ordering::Relaxed) != 0;
            for lane in (0..LANES).map(|lane| view.lane(lane)).filter(is_used) {
                for vector in (0..MAX_VECTORS).map(|vector| lane.vector(vector)) {
                    for slot in &broken {
                        let _ = vector.queue.push(&vector.arm, *slot);
                    }
                }
            }
            // Who has attached it sees that it can let go.
            if link.owner == member {
                view.lane(0).owner.store(0, Ordering::Release);
            }
            // The first doorbell is heard by all.
            news.rings.extend(link.parties.iter().map(|party| (*party, 1)));
        }
        // The dead member's own proposals.
        for place in self.published.values() {
            let at = offset(self.home_at) + table_offset(*place);
            if let Ok(table) = Table::map_device(self.transport.memory(), at) {
                table.scrub_where(|region| self.control.find_extent(region).is_none());
            }
        }
    }
}
