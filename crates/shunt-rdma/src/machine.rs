//! A peer as a member of the memory of this host's programs: its home, with its addresses and listeners, and its regions.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use shunt_shm::ivshmem::{
    Control, EXTENT, Home, Kind, LISTENERS, MemberId, Published, offset, table_offset,
};
use shunt_shm::memfd::Map;
use shunt_shm::region::{self, Geometry, Region, Side};
use shunt_shm::sync::Ordering;
use shunt_shm::table::{Place, Table};
use shunt_wire::addr::{Addr, FourTuple};
use shunt_wire::agent::{EndpointId, RegionId};

use crate::memory::SharedMemory;
use crate::reach::Reach;

/// A region that this peer's programs have here.
#[derive(Debug)]
pub(crate) struct Own {
    pub(crate) name: RegionId,
    extent: usize,
    pub(crate) region: Arc<Region>,
    /// The link group that its connections are in: programs tell of all of them by one queue, which one link hears.
    group: u32,
    /// Its places that are taken.
    pub(crate) taken: [bool; Geometry::Device.slots()],
}

impl Own {
    fn is_unused(&self) -> bool {
        !self.taken.contains(&true)
    }

    /// A place for a connection of a link group.
    fn free(&self, group: u32) -> Option<usize> {
        let may = self.group == group || self.is_unused();
        let is_free = |slot: &usize| !self.taken[*slot] && is_unused(&self.region, *slot);
        (0..self.taken.len()).find(|slot| may && is_free(slot))
    }
}

/// A region that a program of this host has made for connections to the peer.
#[derive(Debug)]
pub(crate) struct Held {
    extent: usize,
    pub(crate) region: Arc<Region>,
    /// The number of the last use of each place that was looked at.
    pub(crate) seen: [u32; Geometry::Device.slots()],
    /// Connections in it.
    pub(crate) users: usize,
    /// Its programs are gone.
    pub(crate) is_over: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Machine {
    memory: Arc<SharedMemory>,
    control: Control,
    me: MemberId,
    home: Home,
    home_at: usize,
    /// Where the next name is.
    next: u64,
    /// The endpoints as which its programs are known, one for each worker.
    endpoints: Vec<EndpointId>,
    listeners: BTreeMap<Reach, usize>,
    /// Where listeners were that are gone, the first one first. Programs may have proposals there.
    former: Vec<(Reach, usize)>,
    /// Of each worker.
    pub(crate) own: Vec<Vec<Own>>,
    pub(crate) held: BTreeMap<RegionId, Held>,
}

/// A number that is most likely not given twice. It is no secret.
pub(crate) fn random() -> u64 {
    std::hash::RandomState::new().build_hasher().finish()
}

/// True for a place that no program here has any more.
fn is_unused(region: &Region, slot: usize) -> bool {
    let setups = [Side::Client, Side::Server].map(|side| &region.view().section(slot, side).setup);
    let is_new = setups[0].generation.load(Ordering::Relaxed) == 0;
    is_new || setups.iter().all(|setup| setup.done.load(Ordering::Acquire) != 0)
}

fn full() -> io::Error {
    io::Error::other("the memory for other hosts is full")
}

impl Machine {
    /// Joins as number `peer`, with so many workers.
    pub(crate) fn join(memory: &Arc<SharedMemory>, peer: u16, workers: usize) -> io::Result<Self> {
        let control = Control::map(memory.fd(), memory.len())?;
        let vectors = u32::try_from(workers + 1).unwrap_or(1);
        let me = control.join(random(), Some(peer), vectors).ok_or_else(full)?;
        let home_at = control.take_extent(me).ok_or_else(full)?;
        if control.extent(home_at).kind() != Kind::Fresh {
            Map::device(memory.fd(), offset(home_at), EXTENT)?.zero(0, EXTENT);
        }
        let home = Home::map(memory.fd(), offset(home_at))?;
        control.describe(home_at, Kind::Home, EXTENT, 0, 0);
        // As agents choose theirs, and apart from those of others as far as that goes.
        let next = (random() & 0xf_ffff) << 32 | 1;
        control.names_from(me, next);
        let mut machine = Self {
            memory: Arc::clone(memory),
            control,
            me,
            home,
            home_at,
            next,
            endpoints: Vec::new(),
            listeners: BTreeMap::new(),
            former: Vec::new(),
            own: (0..workers).map(|_| Vec::new()).collect(),
            held: BTreeMap::new(),
        };
        for worker in 0..workers {
            let id = machine.name();
            machine.home.set_endpoint(worker, id, 1, &(worker + 1..worker + 2));
            machine.endpoints.push(id);
        }
        machine.control.moves_in(me, home_at);
        machine.memory.tell_agent();
        Ok(machine)
    }

    const fn name(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(crate) fn endpoint(&self, worker: usize) -> EndpointId {
        self.endpoints.get(worker).copied().unwrap_or(0)
    }

    /// Shows that it is there.
    pub(crate) fn beats(&self) {
        self.control.beats(self.me);
    }

    pub(crate) fn set_addresses(&self, addresses: &[IpAddr]) {
        let ips: Vec<_> =
            addresses.iter().map(|ip| Addr::from(SocketAddr::new(*ip, 0)).ip).collect();
        self.home.set_addresses(&ips);
        self.memory.tell_agent();
    }

    /// Its listeners; what does not fit is left out. One that comes back finds the proposals that it had: a program takes its proposal back only
    /// where it finds it.
    pub(crate) fn set_listeners(&mut self, listeners: &[Reach]) {
        let gone: Vec<_> =
            self.listeners.keys().filter(|at| !listeners.contains(at)).copied().collect();
        for at in gone {
            if let Some(place) = self.listeners.remove(&at) {
                self.home.withdraw(place);
                self.former.push((at, place));
            }
        }
        for at in listeners {
            if self.listeners.contains_key(at) {
                continue;
            }
            let Some((place, is_its)) = self.place_for(at) else { break };
            if self.prepare_table(place, is_its).is_err() {
                continue;
            }
            let id = self.name();
            // A listener at all addresses takes both families, unless it says so; then those of one that it does not are TCP.
            let Reach { at: addr, bits } = *at;
            self.home.publish(place, &Published { id, addr, v6only: false, bits });
            self.listeners.insert(*at, place);
        }
        self.memory.tell_agent();
    }

    /// A place for a listener, and whether it had it before.
    fn place_for(&mut self, at: &Reach) -> Option<(usize, bool)> {
        if let Some(found) = self.former.iter().position(|(reach, _)| reach == at) {
            return Some((self.former.remove(found).1, true));
        }
        let former = |place: &usize| self.former.iter().any(|(_, taken)| taken == place);
        let is_free =
            |place: &usize| !self.listeners.values().any(|taken| taken == place) && !former(place);
        let free = (0..LISTENERS).find(is_free).map(|place| (place, false));
        free.or_else(|| (!self.former.is_empty()).then(|| (self.former.remove(0).1, false)))
    }

    fn prepare_table(&self, place: usize, is_its: bool) -> io::Result<()> {
        let table = offset(self.home_at) + table_offset(place);
        if !is_its {
            return Table::create_in_device(self.memory.fd(), table).map(|_| ());
        }
        // Programs that have ended meanwhile take nothing back.
        let is_gone = |region| self.control.find_extent(region).is_none();
        Table::map_device(self.memory.fd(), table).map(|table| table.scrub_where(is_gone))
    }

    /// Takes a program's proposal, so that its place stays its: `tuple` as the program has it. False: it has taken the proposal back.
    pub(crate) fn takes(&self, to: SocketAddr, tuple: &FourTuple, place: Place) -> bool {
        self.tables_of(to).any(|table| {
            let ticket = table.find(&tuple.reversed()).filter(|ticket| ticket.place() == place);
            ticket.is_some_and(|ticket| table.take(&ticket))
        })
    }

    /// True for a proposal that is posted, and that nobody has taken.
    pub(crate) fn has_posted(&self, to: SocketAddr, tuple: &FourTuple, place: Place) -> bool {
        let is_it =
            |table: Table| table.find(&tuple.reversed()).is_some_and(|it| it.place() == place);
        self.tables_of(to).any(is_it)
    }

    /// The proposals to listeners that take connections to this address, or have. To which one of several a program proposes is up to it.
    fn tables_of(&self, to: SocketAddr) -> impl Iterator<Item = Table> {
        let any =
            move |at: &Reach| at.at.port == to.port() && !at.is_wide() && at.at.is_unspecified();
        let takes = move |at: &Reach| at.holds(to) || any(at);
        let listeners = self.listeners.iter().map(|(at, place)| (at, *place));
        let all = listeners.chain(self.former.iter().map(|(at, place)| (at, *place)));
        all.filter(move |(at, _)| takes(at)).filter_map(|(_, place)| {
            Table::map_device(self.memory.fd(), offset(self.home_at) + table_offset(place)).ok()
        })
    }

    /// A region that a program here has made. `None`: there is none any more.
    pub(crate) fn hold(&mut self, name: RegionId) -> Option<&mut Held> {
        if !self.held.contains_key(&name) {
            let (extent, owner) = self.control.find_extent(name)?;
            if self.control.extent(extent).kind() != Kind::Region
                || !self.control.hold(extent, (owner, name), self.me)
            {
                return None;
            }
            let map = Region::map_device(self.memory.fd(), offset(extent));
            let Some(map) = map.ok().filter(|map| map.name() == name) else {
                self.control.extent(extent).release(self.me.index);
                return None;
            };
            let (seen, region) = ([0; Geometry::Device.slots()], Arc::new(map));
            let held = Held { extent, region, seen, users: 0, is_over: false };
            self.held.insert(name, held);
        }
        self.held.get_mut(&name)
    }

    /// A connection in it is over, or its programs are.
    pub(crate) fn let_go(&mut self, name: RegionId) {
        if self.held.get(&name).is_some_and(|held| held.users == 0 && held.is_over)
            && let Some(held) = self.held.remove(&name)
        {
            self.control.extent(held.extent).release(self.me.index);
        }
    }

    /// A place for a connection of a peer's program, in this link group, which a worker serves.
    pub(crate) fn take(
        &mut self,
        worker: usize,
        group: u32,
    ) -> io::Result<(RegionId, Arc<Region>, usize)> {
        let endpoint = self.endpoint(worker);
        let regions = self.own.get(worker).ok_or_else(full)?;
        let found = regions.iter().position(|own| own.free(group).is_some());
        let at = match found {
            Some(at) => at,
            None => {
                let name = self.name();
                let extent = self.control.take_extent(self.me).ok_or_else(full)?;
                let before = self.control.extent(extent).kind();
                let made = region::create_in_device(self.memory.fd(), offset(extent), name, before);
                let region = match made {
                    Ok(region) => Arc::new(region),
                    Err(error) => {
                        self.control.describe(extent, Kind::Home, EXTENT, 0, 0);
                        self.control.give_extent(extent, self.me);
                        return Err(error);
                    }
                };
                self.control.describe(extent, Kind::Region, EXTENT, endpoint, name);
                let taken = [false; Geometry::Device.slots()];
                self.own[worker].push(Own { name, extent, region, group, taken });
                self.own[worker].len() - 1
            }
        };
        let own = &mut self.own[worker][at];
        let slot = own.free(group).ok_or_else(full)?;
        own.group = group;
        own.taken[slot] = true;
        Ok((own.name, Arc::clone(&own.region), slot))
    }

    /// Such a place is free again.
    pub(crate) fn give_back(&mut self, name: RegionId, slot: usize) {
        for regions in &mut self.own {
            for own in regions.iter_mut().filter(|own| own.name == name) {
                own.taken[slot % Geometry::Device.slots()] = false;
            }
            // The last one of a worker stays for the next connection.
            while regions.len() > 1 && regions.last().is_some_and(Own::is_unused) {
                if let Some(own) = regions.pop() {
                    self.control.give_extent(own.extent, self.me);
                }
            }
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.control.is_gone(self.me);
        self.memory.tell_agent();
    }
}
