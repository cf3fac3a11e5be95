//! The thread's loop: connections, their time limits, and what is said on them.

mod control;
mod device;
mod ends;
mod failover;
mod kernels;
mod lanes;
mod link_groups;
mod machines;
mod measuring;
mod strangers;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use std::{io, mem};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use shunt_far::Cause;
use shunt_peer::message::{ADDRESSES, Bye, Hello, LISTENERS, is_reachable};
use shunt_peer::{Message, PublicKey, SecretKey};
use shunt_shm::ivshmem::Home;
use shunt_verbs::port::Port;
use tracing::{info, warn};

use crate::config::{Config, PeerName, Promote};
use crate::conn::Conn;
use crate::device::Wanted;
use crate::dial::Dialed;
use crate::endings::Endings;
use crate::failovers::Failovers;
use crate::host::Host;
use crate::kernels::state::Kernels;
use crate::lane::{Lane, Waiting};
use crate::links::{Links, Name, Outcome};
use crate::machine::{Machine, random};
use crate::measuring::Measuring;
use crate::mirror::Bells;
use crate::peers::{self, Outlook, Peer};
use crate::report::Report;
use crate::shared::{Board, Shared};

/// Time between two looks at the addresses.
const LOOK_AT_ADDRESSES: Duration = Duration::from_secs(5);

/// How long an agent that ends waits for its connections to be back on TCP.
const ENDING: Duration = Duration::from_secs(2);

/// Sizes of link groups: bytes of a ring, connections, messages that may be unacknowledged.
const RING: u32 = 256 * 1024;
const SLOTS: u16 = 32;
const MESSAGES: u16 = 256;

/// The thread's own.
pub(crate) struct Hub<P: Port> {
    shared: Arc<Shared>,
    listener: TcpListener,
    listen: SocketAddr,
    secret: SecretKey,
    own: PublicKey,
    incarnation: u64,
    wanted: Wanted,
    open: Opener<P>,
    links: Option<Links<P>>,
    device_lacks: Option<String>,
    /// When to look at the device, or for one; looks since that found none.
    device_at: Duration,
    device_tries: u32,
    peers: Vec<Peer>,
    conns: BTreeMap<u64, Conn>,
    /// Of a connection, or an attempt at one. The smaller one is the older one.
    next: u64,
    dialed: (Sender<Dialed>, Receiver<Dialed>),
    host: Host,
    addresses: Vec<IpAddr>,
    addresses_at: Duration,
    listeners: Vec<SocketAddr>,
    /// From when on to accept.
    accept_at: Duration,
    turned_away: (u64, Option<String>),
    memory_limit: Option<u64>,
    outcomes: (Sender<Outcome>, Receiver<Outcome>),
    /// The peers as members of the memory of this host's programs; those that are just gone.
    machines: BTreeMap<PublicKey, Machine>,
    retired: Vec<(Duration, Machine)>,
    /// Of a member: numbers are not used again.
    member: u16,
    lanes: BTreeMap<(Name, usize), Lane>,
    waiting: Vec<Waiting>,
    endings: BTreeMap<Name, Endings>,
    failovers: Failovers,
    /// When a link group was last offered for them.
    offered_at: Duration,
    /// Of the last connection.
    generation: u32,
    /// When members show that they are there.
    beat_at: Duration,
    /// Listeners here whose acceptors look for proposals.
    awaited: BTreeSet<u64>,
    /// What the agent's home had when they were last looked through, and where it is.
    awaited_news: Option<u64>,
    agents_home: Option<(Home, usize)>,
    began: Instant,
    /// It is to end: by when.
    ends_by: Option<Duration>,
    /// When connections are promoted, and what is being measured for that.
    promote: Promote,
    measuring: Option<Measuring>,
    /// Servers that speak the kernel's SMC-R, where any are named.
    kernels: Option<Kernels>,
    /// The peers that are named now, which are taken when connections with others are back on TCP: by when.
    named: Option<(Vec<PeerName>, Duration)>,
}

/// Opens the device, or says why it cannot.
pub(crate) type Opener<P> = Box<dyn FnMut() -> Result<P, String> + Send>;

impl<P: Port + Clone + Send + 'static> Hub<P> {
    pub(crate) fn new(
        config: Config,
        own: PublicKey,
        listener: TcpListener,
        shared: Arc<Shared>,
        open: Opener<P>,
    ) -> io::Result<Self> {
        let listen = listener.local_addr()?;
        let peers = peers::named(config.peers, &own, Vec::new(), Duration::ZERO);
        let bells = Arc::new(Bells::new(Arc::clone(&shared.memory)));
        let mut hub = Self {
            shared,
            listener,
            listen,
            secret: config.key,
            own,
            incarnation: random(),
            wanted: config.device,
            open,
            links: None,
            device_lacks: None,
            device_at: Duration::ZERO,
            device_tries: 0,
            peers,
            conns: BTreeMap::new(),
            next: 0,
            dialed: channel(),
            host: config.host,
            addresses: Vec::new(),
            addresses_at: Duration::ZERO,
            listeners: Vec::new(),
            accept_at: Duration::ZERO,
            turned_away: (0, None),
            memory_limit: (config.host.memory_limit)(),
            outcomes: channel(),
            machines: BTreeMap::new(),
            retired: Vec::new(),
            member: crate::memory::AGENT,
            lanes: BTreeMap::new(),
            waiting: Vec::new(),
            endings: BTreeMap::new(),
            failovers: Failovers::default(),
            offered_at: Duration::ZERO,
            generation: 0,
            beat_at: Duration::ZERO,
            awaited: BTreeSet::new(),
            awaited_news: None,
            agents_home: None,
            began: Instant::now(),
            ends_by: None,
            promote: config.promote,
            measuring: None,
            kernels: config.servers.map(|servers| Kernels::new(servers, bells)),
            named: None,
        };
        hub.look_for_device(Duration::ZERO);
        info!("agents of other hosts are heard at {listen}; this one's key is {own}");
        Ok(hub)
    }

    /// Goes on until the agent ends.
    pub(crate) fn run(&mut self) {
        loop {
            if let Err(error) = self.wait() {
                warn!("agents of other hosts are not heard any more: {error}");
                return;
            }
            if !self.turn() {
                return self.end();
            }
        }
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Sleeps until there is something to do.
    fn wait(&self) -> io::Result<()> {
        let now = self.now();
        let mut fds = vec![PollFd::new(&*self.shared.ear, PollFlags::IN)];
        if now >= self.accept_at {
            fds.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        fds.extend(
            self.conns.values().map(|conn| PollFd::from_borrowed_fd(conn.fd(), conn.wants())),
        );
        fds.extend(self.kernel_fds());
        let events = self.device().map(Port::events);
        fds.extend(events.map(|events| PollFd::from_borrowed_fd(events, PollFlags::IN)));
        let accept = (now < self.accept_at).then_some(self.accept_at);
        let conns = self.conns.values().filter_map(Conn::deadline);
        let of_peer = |peer: &Peer| {
            [peer.dial_at(), self.offer_at(peer), peer.kept_until, peer.reached_until]
        };
        let peers = self.peers.iter().flat_map(of_peer);
        let peers = peers.flatten();
        let addresses = self.conns.values().any(Conn::is_open).then_some(self.addresses_at);
        let has_members = !self.machines.is_empty() || self.kernels.is_some();
        let beat = has_members.then_some(self.beat_at);
        let retired = self.retired.iter().map(|(until, _)| *until);
        let deadline = conns.chain(peers).chain(accept).chain([self.device_at]).chain(addresses);
        let deadline = deadline.chain(beat).chain(retired).chain(self.proposals_at());
        let deadline = deadline.chain(self.endings_at()).chain(self.ends_by);
        let deadline = deadline.chain(self.failovers.at());
        let deadline = deadline.chain(self.measure_at()).chain(self.kernels_at());
        let deadline = deadline.chain(self.named.as_ref().map(|(_, by)| *by)).min();
        let wait = deadline.map(|deadline| {
            let wait = deadline.saturating_sub(now);
            Timespec {
                tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: wait.subsec_nanos().into(),
            }
        });
        match poll(&mut fds, wait.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// False: it is time to end.
    fn turn(&mut self) -> bool {
        let now = self.now();
        let inbox = self.shared.take();
        if inbox.must_end && self.ends_by.is_none() {
            self.ends_by = Some(now + ENDING);
            self.let_go_of_device(Cause::Ends, now);
            (0..self.peers.len()).for_each(|at| self.no_more_failovers(at, now));
        }
        if let Some(listeners) = inbox.listeners {
            self.set_listeners(listeners, now);
        }
        if let Some(names) = inbox.peers {
            self.set_peers(names, now);
        }
        if let Some(promote) = inbox.promote {
            self.set_promote(promote, now);
        }
        self.see_to_device(now);
        self.accept(now);
        while let Ok(dialed) = self.dialed.1.try_recv() {
            self.dialed(dialed, now);
        }
        self.serve(now);
        while let Ok(outcome) = self.outcomes.1.try_recv() {
            self.came_of_it(outcome, now);
        }
        self.see_to_endings(now);
        self.see_to_failovers(now);
        self.see_to_names(now);
        self.see_to_absent(now);
        self.see_to_machines(now);
        self.hear_programs(now);
        self.see_to_kernels(now);
        self.dial(now);
        self.offer(now);
        self.measure(now);
        if now >= self.addresses_at && self.conns.values().any(Conn::is_open) {
            self.look_at_addresses(now);
        }
        self.flush(now);
        self.show();
        !self.has_ended(now)
    }

    /// True when it is to end, and all connections are back on TCP, or a peer does not answer.
    fn has_ended(&self, now: Duration) -> bool {
        let has_groups = self.peers.iter().any(|peer| peer.groups.count().1 > 0);
        self.ends_by.is_some_and(|by| now >= by || !has_groups)
    }

    /// Of a host that has other addresses now, the peers are told.
    fn look_at_addresses(&mut self, now: Duration) {
        self.addresses_at = now + LOOK_AT_ADDRESSES;
        let mut found = (self.host.addresses)().unwrap_or_default();
        found.retain(|ip| is_reachable(*ip));
        found.sort();
        found.dedup();
        found.truncate(ADDRESSES);
        if found != self.addresses {
            self.addresses = found;
            self.say_to_all(&Message::Addresses(self.addresses.clone()), now);
        }
    }

    fn set_listeners(&mut self, listeners: Vec<SocketAddr>, now: Duration) {
        let reaches =
            |at: &SocketAddr| at.port() != 0 && (at.ip().is_unspecified() || is_reachable(at.ip()));
        let mut listeners: Vec<_> = listeners.into_iter().filter(reaches).collect();
        listeners.sort();
        listeners.dedup();
        if listeners.len() > LISTENERS {
            warn!("peers hear of {LISTENERS} of {} listeners", listeners.len());
            listeners.truncate(LISTENERS);
        }
        if listeners != self.listeners {
            self.listeners = listeners;
            self.say_to_all(&Message::Listeners(self.listeners.clone()), now);
        }
    }

    /// Other peers are named: with those that are missing nothing new begins, and what there is goes back to TCP.
    fn set_peers(&mut self, names: Vec<PeerName>, now: Duration) {
        for at in 0..self.peers.len() {
            let peer = &mut self.peers[at];
            let is_named = names.contains(&peer.name);
            if peer.parts != is_named {
                continue;
            }
            peer.is_named(is_named, now);
            let key = peer.name.key;
            self.no_more_waits(at);
            if let Some(links) = self.links.as_ref().filter(|_| !is_named) {
                links.part_with(key);
                self.no_more_failovers(at, now);
            }
        }
        self.named = Some((names, now + ENDING));
    }

    /// Takes the peers that are named now, when others have no connections any more, or do not answer.
    fn see_to_names(&mut self, now: Duration) {
        let waits = self.peers.iter().any(|peer| peer.parts && peer.groups.count().1 > 0);
        if let Some((names, _)) = self.named.take_if(|(_, by)| !waits || *by <= now) {
            self.take_names(names, now);
        }
    }

    fn take_names(&mut self, names: Vec<PeerName>, now: Duration) {
        for at in 0..self.peers.len() {
            if self.peers[at].parts {
                let orders = self.peers[at].groups.end();
                self.carry_out(at, orders, now);
            }
        }
        let before = mem::take(&mut self.peers);
        self.peers = peers::named(names, &self.own, before, now);
        // Those that are none any more, and those that dial no more.
        let is_wanted =
            |id: &u64, conn: &Conn| !conn.is_open() || self.peers.iter().any(|peer| peer.has(*id));
        let gone = self.conns.iter().filter(|(id, conn)| !is_wanted(id, conn));
        let gone: Vec<_> = gone.map(|(id, _)| *id).collect();
        for id in gone {
            self.part(id, Bye::Removed, now);
        }
        // What is being proved was begun with the keys of before.
        self.conns.retain(|id, conn| conn.is_open() || self.peers.iter().any(|peer| peer.has(*id)));
        info!("{} peers are named now", self.peers.len());
    }

    fn end(&mut self) {
        let now = self.now();
        for id in self.conns.keys().copied().collect::<Vec<_>>() {
            self.part(id, Bye::Ends, now);
            if let Some(at) = self.peers.iter().position(|peer| peer.has(id)) {
                self.lost(at, "this agent ends".to_owned(), Outlook::Open, now);
            }
        }
    }

    fn hello(&self) -> Hello {
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let name = name.chars().filter(|c| !c.is_control()).collect();
        let device = self.device_state();
        let (incarnation, ring, slots, messages) = (self.incarnation, RING, SLOTS, MESSAGES);
        Hello { incarnation, ring, slots, messages, device, name }
    }

    pub(crate) fn show(&self) {
        let report = Report {
            device: self.wanted.to_string(),
            device_lacks: self.device_lacks.clone(),
            listen: self.listen,
            key: self.own.to_string(),
            device_address: self.device().map(|port| port.gid().to_string()),
            memory_limit: self.memory_limit,
            memory_registered: self.links.as_ref().map_or(0, Links::registered),
            turned_away: self.turned_away.0,
            turned_away_last: self.turned_away.1.clone(),
            peers: self.peers.iter().map(|peer| self.report(peer)).collect(),
            servers: self.kernels.as_ref().map_or_else(Vec::new, Kernels::report),
            server_links: self.kernels.as_ref().map_or(0, |kernels| kernels.groups.up()),
        };
        let since = self.peers.iter().map(|peer| peer.since).collect();
        self.shared.show(Board { report, since });
    }
}
