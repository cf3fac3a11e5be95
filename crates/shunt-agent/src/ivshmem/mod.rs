//! The agent's part in memory that machines share. It publishes the listeners of its own programs,
//! finds those of others, makes link groups' regions there, and rings its own programs for others.
//!
//! Agents send each other no messages. An agent writes its news into its home or into the table of
//! extents, where the others read it. So no agent waits for an answer, and a killed one leaves
//! nothing half said. An agent copies all of it to private memory and checks it before use.

mod leases;
mod link;
mod links;
#[cfg(any(test, fuzzing))]
mod memory;
mod peer;
mod peers;
#[cfg(test)]
mod tests;
#[cfg(fuzzing)]
pub mod victim;

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use serde_json::{Value, json};
use shunt_device::ivshmem::Transport;
use shunt_shm::ivshmem::{
    Control, ENDPOINTS, Home, Kind, LISTENERS, MemberId, Published, TO_AGENT, offset, table_offset,
};
use shunt_shm::memfd::Map;
use shunt_shm::table::Table;
use shunt_sys::addresses::{self, Attachment};
use shunt_wire::agent::{EndpointId, ListenerId, RegionId};
use shunt_wire::reason::Reason;
use tracing::{info, warn};

use crate::held::Held;
use leases::{Leases, Told};
use link::Link;
pub(crate) use link::{Attached, Linked};
use peer::{Peer, Remote};

/// Time between two signs of life.
pub(crate) const BEAT: Duration = Duration::from_secs(1);

/// Time between two looks where nobody interrupts.
const SHORTEST_NAP: Duration = Duration::from_micros(50);
const LONGEST_NAP: Duration = Duration::from_millis(20);

/// What the ear is marked with; other numbers are leases'.
const EAR: u64 = 0;

/// This agent as a member of those who share the memory.
pub(crate) struct Fabric {
    transport: Box<dyn Transport>,
    control: Control,
    me: MemberId,
    home: Home,
    home_at: usize,
    /// Everything that there is to hear.
    epoll: OwnedFd,
    /// The next number of a lease in it.
    next_token: u64,
    uid: u32,
    netns: u64,
    addresses: Vec<Attachment>,
    /// Own listeners that others know of, with their places.
    published: HashMap<ListenerId, usize>,
    /// Own endpoints that others can wake, by place.
    places: HashMap<usize, EndpointId>,
    /// Whose doorbell each of this machine's interrupt vectors leads to; 0: nobody's. The first one is the agent's.
    lines: Vec<EndpointId>,
    peers: HashMap<MemberId, Peer>,
    /// Others' listeners by the name that this agent's programs know them by.
    remotes: HashMap<ListenerId, Remote>,
    links: HashMap<RegionId, Link>,
    /// The extents of others' homes that programs here write to, as long as link groups lead there.
    homes: HashMap<MemberId, usize>,
    leases: Leases,
    beaten: Instant,
    /// When something was last pending, where nobody interrupts.
    busy: Instant,
    /// The server is gone.
    deaf: bool,
    /// Another memory has taken its place: it stays until the last link group in it is gone.
    retired: bool,
}

impl std::fmt::Debug for Fabric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fabric").field("me", &self.me).finish_non_exhaustive()
    }
}

/// An own endpoint with its doorbells.
pub(crate) type Doorbells<'a> = (EndpointId, &'a [Rc<Held>]);

/// What the agent has to do about what a fabric has heard.
#[derive(Debug, Default)]
pub(crate) struct News {
    /// Doorbells of own endpoints that others ring: which completion vectors (a bit each).
    pub(crate) rings: Vec<(EndpointId, u32)>,
    /// Listeners of others that have come.
    pub(crate) come: Vec<(ListenerId, Published)>,
    /// Listeners of others that have gone.
    pub(crate) gone: Vec<ListenerId>,
}

fn random() -> u64 {
    std::hash::RandomState::new().build_hasher().finish()
}

/// An extent with nothing in it as the home of `me`.
fn make_home(
    transport: &dyn Transport,
    control: &Control,
    me: MemberId,
) -> io::Result<(usize, Home)> {
    let full = || io::Error::other("the shared memory is full");
    let home_at = control.take_extent(me).ok_or_else(full)?;
    if control.extent(home_at).kind() != Kind::Fresh {
        let len = shunt_shm::ivshmem::EXTENT;
        Map::device(transport.memory(), offset(home_at), len)?.zero(0, len);
    }
    let home = Home::map(transport.memory(), offset(home_at))?;
    control.describe(home_at, Kind::Home, shunt_shm::ivshmem::EXTENT, 0, 0);
    Ok((home_at, home))
}

impl Fabric {
    /// Joins those who share the memory of `transport`.
    ///
    /// # Errors
    /// Why it can't.
    pub(crate) fn join(transport: Box<dyn Transport>, uid: u32, netns: u64) -> io::Result<Self> {
        let control = Control::map(transport.memory(), transport.len())?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io::Error::from)?;
        if let Some(ear) = transport.ear() {
            let data = epoll::EventData::new_u64(EAR);
            epoll::add(&epoll, ear, data, epoll::EventFlags::IN).map_err(io::Error::from)?;
        }
        let vectors = u32::try_from(transport.vectors()).unwrap_or(1);
        let me = control.join(random(), transport.peer(), vectors);
        let me =
            me.ok_or_else(|| io::Error::other("as many machines as can be share the memory"))?;
        let home = make_home(&*transport, &control, me).inspect_err(|_| control.is_gone(me));
        let (home_at, home) = home?;
        let now = Instant::now();
        let mut fabric = Self {
            transport,
            control,
            me,
            home,
            home_at,
            epoll,
            next_token: EAR + 1,
            uid,
            netns,
            addresses: Vec::new(),
            published: HashMap::new(),
            places: HashMap::new(),
            lines: vec![0; vectors.min(u32::from(u8::MAX)) as usize],
            peers: HashMap::new(),
            remotes: HashMap::new(),
            links: HashMap::new(),
            homes: HashMap::new(),
            leases: Leases::default(),
            beaten: now,
            busy: now,
            deaf: false,
            retired: false,
        };
        fabric.look_at_addresses();
        fabric.control.moves_in(me, home_at);
        fabric.tell_all();
        info!(member = me.index, "sharing memory with other machines");
        Ok(fabric)
    }

    /// Takes a number of those `wanted` above which no other member's names lie.
    pub(crate) fn names_from(&self, mut wanted: impl FnMut() -> u64) -> u64 {
        let taken: HashSet<_> =
            self.control.members().map(|m| self.control.member(m.index).ids()).collect();
        let ids = loop {
            let ids = wanted();
            if !taken.contains(&ids) {
                break ids;
            }
        };
        self.control.names_from(self.me, ids);
        ids
    }

    /// The user whose programs are told of others' listeners.
    pub(crate) const fn uid(&self) -> u32 {
        self.uid
    }

    /// The network namespace in which they can be reached.
    pub(crate) const fn netns(&self) -> u64 {
        self.netns
    }

    /// True when nobody tells any more who comes and goes: the server is gone.
    pub(crate) const fn is_deaf(&self) -> bool {
        self.deaf
    }

    /// Another memory takes its place: nothing new is begun here. The listeners of others, which are to be forgotten.
    pub(crate) fn retire(&mut self) -> Vec<ListenerId> {
        self.retired = true;
        for (_, place) in self.published.drain() {
            self.home.withdraw(place);
        }
        self.tell_all();
        for peer in self.peers.values_mut() {
            peer.published.clear();
        }
        self.remotes.drain().map(|(listener, _)| listener).collect()
    }

    /// True while link groups lead to other machines, or programs there still have some that lead here: they may not have read
    /// all that was sent, and would lose it if this machine were gone.
    pub(crate) fn is_in_use(&self) -> bool {
        let holders = self.control.extent(self.home_at).holders() & self.control.living();
        !self.links.is_empty() || holders & !(1 << self.me.index) != 0
    }

    /// Readable when there is something to hear.
    pub(crate) fn ear(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// How long the agent may sleep.
    pub(crate) fn patience(&self, now: Instant) -> Duration {
        let beat = (self.beaten + BEAT).saturating_duration_since(now);
        if self.transport.ear().is_some() {
            return beat;
        }
        // Nobody interrupts: look often while there is traffic, and ever more rarely without.
        let idle = now.saturating_duration_since(self.busy);
        beat.min((idle / 16).clamp(SHORTEST_NAP, LONGEST_NAP))
    }

    /// Takes in what there is to hear, and sees who is there.
    pub(crate) fn turn(&mut self, name: impl FnMut() -> u64) -> News {
        let mut news = News::default();
        let now = Instant::now();
        let mut room = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }; 64];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let count = epoll::wait(&self.epoll, &mut room[..], Some(&at_once)).unwrap_or(0);
        let mut look = self.transport.ear().is_none();
        for event in room.iter().take(count) {
            match event.data.u64() {
                EAR => look = true,
                token => {
                    let heeds = self.transport.wants_news();
                    match self.leases.told(token, heeds, &self.epoll) {
                        Some(Told::Proposed(region)) => self.transport.proposed(region),
                        Some(Told::Ended(region, endpoint, is_last)) => {
                            self.transport.gone(region, endpoint);
                            if is_last {
                                self.let_go(region);
                            }
                        }
                        None => {}
                    }
                }
            }
        }
        let beat = now.saturating_duration_since(self.beaten) >= BEAT;
        if look || beat {
            self.hear();
            self.take_rings(&mut news, now);
            self.see_who_is_there(&mut news, beat, name);
        }
        if beat {
            self.beaten = now;
            self.control.beats(self.me);
            self.look_at_addresses();
            self.release_homes();
        }
        news
    }

    fn hear(&mut self) {
        let heard = self.transport.hear();
        for gone in heard.left {
            self.control.has_left(gone);
        }
        if heard.over && !self.deaf {
            self.deaf = true;
            warn!(
                "the ivshmem server is gone: what is connected goes on, machines that come are not \
                 seen; its successor's memory is joined as soon as it is there"
            );
        }
    }

    fn take_rings(&mut self, news: &mut News, now: Instant) {
        let places = &self.places;
        let mut any = false;
        self.home.take_pending(|place, vectors| {
            any = true;
            if let Some(endpoint) = places.get(&place) {
                news.rings.push((*endpoint, vectors));
            }
        });
        if any {
            self.busy = now;
        }
    }

    /// Interrupts all others: there is news in the home, or of the members.
    fn tell_all(&self) {
        for member in self.control.members().filter(|member| *member != self.me) {
            if let Some(peer) = self.control.member(member.index).peer() {
                self.transport.ring(peer, TO_AGENT.into());
            }
        }
    }

    fn look_at_addresses(&mut self) {
        let Ok(mut addresses) = addresses::of_this_machine() else { return };
        addresses.sort_unstable();
        if addresses != self.addresses {
            let own: Vec<_> = addresses.iter().map(|attachment| attachment.ip).collect();
            self.home.set_addresses(&own);
            self.addresses = addresses;
            self.tell_all();
        }
    }

    /// Publishes a listener of an own program: the offset of its table of proposals. `None` where others could not
    /// reach it, or there is no room.
    pub(crate) fn publish(&mut self, listener: &Published, netns: u64) -> Option<u64> {
        if let Some(place) = self.published.get(&listener.id) {
            return Some((offset(self.home_at) + table_offset(*place)) as u64);
        }
        let reachable = netns == self.netns && !listener.addr.is_loopback();
        let place = (0..LISTENERS).find(|place| !self.published.values().any(|p| p == place));
        let place = place.filter(|_| reachable)?;
        let at = offset(self.home_at) + table_offset(place);
        Table::create_in_device(self.transport.memory(), at).ok()?;
        self.home.publish(place, listener);
        self.published.insert(listener.id, place);
        self.tell_all();
        Some(at as u64)
    }

    /// A listener of an own program is closed.
    pub(crate) fn withdraw(&mut self, listener: ListenerId) {
        if let Some(place) = self.published.remove(&listener) {
            self.home.withdraw(place);
            self.tell_all();
        }
    }

    /// Lets others wake an own endpoint, by these doorbells.
    fn settle(&mut self, (endpoint, bells): Doorbells<'_>) -> Option<()> {
        if self.places.values().any(|known| *known == endpoint) {
            return Some(());
        }
        let place = (0..ENDPOINTS).find(|place| !self.places.contains_key(place))?;
        let interrupts = self.lead(endpoint, bells);
        self.home.set_endpoint(place, endpoint, bells.len(), &interrupts);
        self.places.insert(place, endpoint);
        Some(())
    }

    /// An own endpoint that others wake has one more vector, which is the last of these.
    pub(crate) fn add_bell(&mut self, (endpoint, bells): Doorbells<'_>) {
        let Some(place) = self.places.iter().find(|(_, e)| **e == endpoint).map(|(p, _)| *p) else {
            return;
        };
        let is_led = |line: &usize| self.lines[*line] == endpoint;
        let Some(first) = (1..self.lines.len()).find(is_led) else { return };
        let led = (first..self.lines.len()).take_while(is_led).count();
        let (line, bell) = (first + led, bells.last());
        // Interrupts lead to the vectors from the first one on, one after the other.
        if led + 1 == bells.len()
            && self.lines.get(line) == Some(&0)
            && bell.is_some_and(|bell| self.transport.lead(line, Some(bell.as_fd())))
        {
            self.lines[line] = endpoint;
            self.home.set_vectors(place, bells.len(), &(first..line + 1));
        }
    }

    /// Leads interrupts that nobody has to an endpoint's doorbells, so that its peers wake it without the agent: from the
    /// first doorbell on, as many as there are.
    fn lead(&mut self, endpoint: EndpointId, bells: &[Rc<Held>]) -> Range<usize> {
        let is_free = |line: &usize| self.lines[*line] == 0;
        let Some(first) = (1..self.lines.len()).find(is_free) else { return 0..0 };
        let mut interrupts = first..first;
        for (line, bell) in (first..self.lines.len()).take_while(is_free).zip(bells) {
            if !self.transport.lead(line, Some(bell.as_fd())) {
                break;
            }
            interrupts.end = line + 1;
        }
        self.lines[interrupts.clone()].fill(endpoint);
        interrupts
    }

    /// An own endpoint is gone. Its memory may still be in use, by a child of it: its leases tell.
    pub(crate) fn endpoint_left(&mut self, endpoint: EndpointId) {
        if let Some(place) = self.places.iter().find(|(_, e)| **e == endpoint).map(|(p, _)| *p) {
            self.places.remove(&place);
            self.home.set_endpoint(place, 0, 0, &(0..0));
        }
        for (line, led) in self.lines.iter_mut().enumerate().filter(|(_, led)| **led == endpoint) {
            self.transport.lead(line, None);
            *led = 0;
        }
        for link in self.links.values_mut() {
            link.left(endpoint);
        }
    }

    /// The memory that all share, to be passed on.
    pub(crate) fn memory(&self) -> Result<Rc<Held>, Reason> {
        let memory = self.transport.memory().try_clone();
        memory.map(|fd| Rc::new(Held::own(fd))).map_err(|_| Reason::NoResources)
    }

    /// For `Status`.
    pub(crate) fn describe(&self) -> Value {
        let members = self.control.members().map(|member| {
            let published = self.peers.get(&member).map(|peer| peer.published.len());
            json!({
                "member": member.index,
                "peer": self.control.member(member.index).peer(),
                "self": member == self.me,
                "listeners": published.unwrap_or(self.published.len()),
            })
        });
        let used = (1..self.control.extents())
            .filter(|i| self.control.find(self.control.extent(*i).owner()).is_some());
        let reachable = self.remotes.values().flat_map(|remote| &remote.addresses);
        let reachable: Vec<_> = reachable.map(ToString::to_string).collect();
        json!({
            "memory_bytes": self.transport.len(),
            "extents": self.control.extents() - 1,
            "extents_used": used.count(),
            "link_groups": self.links.len(),
            "server_gone": self.deaf,
            "reachable": reachable,
            "members": members.collect::<Vec<_>>(),
        })
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        self.control.is_gone(self.me);
        self.tell_all();
    }
}
