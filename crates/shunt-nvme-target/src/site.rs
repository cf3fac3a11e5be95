//! What all threads serve: the subsystems with their hosts' controllers, and the stores of their namespaces.
//!
//! The rules are [`shunt_nvme::subsystem`]'s; here are the lock around them, the clock, and who is told of what.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use shunt_nvme::controller::{self, Transfer};
use shunt_nvme::subsystem::{self, Context, Notice, Plan, Reply, Session, Target};
use shunt_nvme::wire::discovery::{Record, SubsystemType};
use shunt_nvme::wire::{Nqn, Sqe, Status, nqn};

use crate::config::{Config, Hosts, Limits, Subsystem};
use crate::store::{Mailbox, Store};
use crate::stores::{Stores, Unavailable};

/// The revision that controllers report: the version of this program.
const FIRMWARE: &str = env!("CARGO_PKG_VERSION");

/// A namespace, as a host sees it.
#[derive(Clone, Debug)]
pub struct Namespace {
    /// What keeps its blocks.
    pub store: Arc<dyn Store>,
    /// The host may map its memory.
    pub grant: bool,
}

/// The namespaces of a subsystem, as a host sees them, at a moment.
#[derive(Debug, Default)]
pub struct View {
    /// By number.
    pub namespaces: HashMap<u32, Namespace>,
    /// The moment.
    generation: u64,
}

/// Where a thread finds notices.
#[derive(Debug)]
pub struct Post {
    notices: Mutex<Vec<Notice>>,
    mailbox: Arc<Mailbox>,
}

impl Post {
    /// Takes them.
    pub fn take(&self) -> Vec<Notice> {
        std::mem::take(&mut *locked(&self.notices))
    }
}

/// What is served now.
#[derive(Debug)]
struct Served {
    config: Config,
    stores: Stores,
    /// What each namespace is to hosts.
    known: BTreeMap<(Nqn, u32), subsystem::NamespaceConfig>,
    /// Addresses at which hosts have come in, with the numbers of these ports. Those of the configuration are told to
    /// all hosts; others, behind a wildcard, to hosts that come in there.
    ports: BTreeMap<SocketAddr, u16>,
    listening: Vec<SocketAddr>,
}

/// See the module's description.
#[derive(Debug)]
pub struct Site {
    limits: Limits,
    started: Instant,
    target: RwLock<Target>,
    served: RwLock<Served>,
    /// Counts changes of what is served.
    generation: AtomicU64,
    posts: Mutex<Vec<Arc<Post>>>,
}

fn locked<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

impl Site {
    /// Opens what a configuration names, for hosts that come in at these addresses.
    ///
    /// # Errors
    /// The first namespace that cannot be had.
    pub fn open(config: &Config, listening: &[SocketAddr]) -> Result<Self, Unavailable> {
        let limits = config.limits;
        let of_target = subsystem::Limits {
            controllers: u16::try_from(limits.connections).unwrap_or(u16::MAX),
            io_queues: limits.queues,
            queue_depth: limits.queue_depth,
            max_transfer: limits.transfer,
            ..subsystem::Limits::default()
        };
        let empty = Config { subsystems: Vec::new(), ..config.clone() };
        let served = Served {
            config: empty,
            stores: Stores::default(),
            known: BTreeMap::new(),
            ports: BTreeMap::new(),
            listening: Vec::new(),
        };
        let site = Self {
            limits,
            started: Instant::now(),
            target: RwLock::new(Target::new(of_target)),
            served: RwLock::new(served),
            generation: AtomicU64::new(1),
            posts: Mutex::default(),
        };
        site.change(config, listening)?;
        Ok(site)
    }

    /// Serves something else from now on. Where something cannot be had everything stays as it is.
    ///
    /// # Errors
    /// The first namespace that cannot be had.
    pub fn change(&self, config: &Config, listening: &[SocketAddr]) -> Result<(), Unavailable> {
        let mut served = write(&self.served);
        let before = served.stores.clone();
        served.stores = before.changed(config)?;
        let mut target = write(&self.target);
        let gone =
            |subsystem: &&Subsystem| !config.subsystems.iter().any(|s| s.nqn == subsystem.nqn);
        for subsystem in served.config.subsystems.iter().filter(gone) {
            target.remove_subsystem(&subsystem.nqn);
        }
        let mut known = BTreeMap::new();
        for subsystem in &config.subsystems {
            target.add_subsystem(of_protocol(subsystem));
            for namespace in &subsystem.namespaces {
                let (nqn, nsid) = (&subsystem.nqn, namespace.nsid);
                let Some(store) = served.stores.get(nqn, nsid) else { continue };
                let geometry = store.geometry();
                let now = subsystem::NamespaceConfig {
                    blocks: geometry.blocks,
                    block_shift: geometry.block.shift(),
                    uuid: namespace.identity.uuid,
                    nguid: namespace.identity.nguid.unwrap_or_default(),
                    ana_group: 1,
                    read_only: store.is_read_only(),
                    write_cache: store.has_volatile_cache(),
                    deallocate: true,
                    preferred_write: 0,
                };
                let is_kept = before.get(nqn, nsid).is_some_and(|old| Arc::ptr_eq(old, store));
                let place = (nqn.clone(), nsid);
                if !is_kept {
                    // Another disk, also where it looks the same.
                    target.remove_namespace(nqn, nsid);
                }
                if !is_kept || served.known.get(&place) != Some(&now) {
                    target.add_namespace(nqn, nsid, now);
                }
                known.insert(place, now);
            }
        }
        for (nqn, nsid) in served.known.keys().filter(|place| !known.contains_key(place)) {
            target.remove_namespace(nqn, *nsid);
        }
        served.known = known;
        served.config = config.clone();
        served.listening = listening.to_vec();
        for address in listening.iter().filter(|address| !address.ip().is_unspecified()) {
            served.port(*address);
        }
        target.set_discovery(served.records(self.limits.queue_depth));
        self.generation.fetch_add(1, Ordering::Release);
        self.tell(&mut target);
        Ok(())
    }

    /// The bounds; those of the start.
    #[must_use]
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The bounds of a connection's machine.
    #[must_use]
    pub fn queue_limits(&self) -> controller::Limits {
        let usual = controller::Limits::default();
        let in_flight = u64::from(usual.max_in_flight).min(self.limits.in_flight / 4);
        controller::Limits {
            max_transfer: self.limits.transfer,
            max_in_flight: u32::try_from(in_flight).unwrap_or(usual.max_in_flight),
            ..usual
        }
    }

    /// A thread that is told of what concerns its connections.
    #[must_use]
    pub fn register(&self, mailbox: &Arc<Mailbox>) -> Arc<Post> {
        let post = Arc::new(Post { notices: Mutex::default(), mailbox: Arc::clone(mailbox) });
        locked(&self.posts).push(Arc::clone(&post));
        post
    }

    /// The number of the port with the address at which a host has come in.
    #[must_use]
    pub fn port(&self, address: SocketAddr) -> u16 {
        let address = canonical(address);
        if let Some(port) = read(&self.served).ports.get(&address) {
            return *port;
        }
        let mut served = write(&self.served);
        let port = served.port(address);
        let mut target = write(&self.target);
        target.set_discovery(served.records(self.limits.queue_depth));
        self.tell(&mut target);
        port
    }

    /// The time, as sessions have it.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// What a command takes; and whether the first one of a fused operation has lost its second.
    pub fn plan(&self, session: &mut Session, sqe: &Sqe, transfer: Transfer) -> (Plan, bool) {
        let plan = session.plan(&read(&self.target), sqe, transfer);
        (plan, session.orphaned())
    }

    /// Does a command that is not for a store.
    pub fn execute(
        &self,
        session: &mut Session,
        sqe: &Sqe,
        transfer: Transfer,
        data: &[u8],
    ) -> Reply {
        let mut context = Context { now: self.now(), random: &mut random };
        let mut target = write(&self.target);
        let reply = session.execute(&mut target, sqe, transfer, data, &mut context);
        self.tell(&mut target);
        reply
    }

    /// Notes a command that a store has failed.
    pub fn failed(&self, session: &Session, sqe: &Sqe, status: Status) {
        session.failed(&mut write(&self.target), sqe, status);
    }

    /// A connection is over.
    pub fn closed(&self, session: &mut Session) {
        let mut target = write(&self.target);
        session.closed(&mut target);
        self.tell(&mut target);
    }

    /// What a shutdown has asked for is done.
    pub fn shutdown_complete(&self, cntlid: u16) {
        write(&self.target).shutdown_complete(cntlid);
    }

    /// Ends controllers of which nothing was heard for their Keep Alive time.
    pub fn expire(&self) {
        let now = self.now();
        if read(&self.target).deadline().is_some_and(|deadline| deadline <= now) {
            let mut target = write(&self.target);
            target.expire(now);
            self.tell(&mut target);
        }
    }

    /// True if what is served has changed since a view was taken.
    #[must_use]
    pub fn is_stale(&self, view: &View) -> bool {
        self.generation.load(Ordering::Acquire) != view.generation
    }

    /// The namespaces of a subsystem, as a host sees them.
    #[must_use]
    pub fn view(&self, nqn: &Nqn, host: &Nqn) -> View {
        // First: what changes meanwhile makes it stale.
        let generation = self.generation.load(Ordering::Acquire);
        let served = read(&self.served);
        let found = served.config.subsystems.iter().find(|subsystem| subsystem.nqn == *nqn);
        let Some(subsystem) = found else {
            return View { namespaces: HashMap::new(), generation };
        };
        let grant = match &subsystem.hosts {
            Hosts::Any => false,
            Hosts::Listed(hosts) => hosts.iter().any(|h| h.nqn == *host && h.grant),
        };
        let namespaces = subsystem.namespaces.iter().filter_map(|namespace| {
            let store = Arc::clone(served.stores.get(nqn, namespace.nsid)?);
            Some((namespace.nsid, Namespace { store, grant }))
        });
        View { namespaces: namespaces.collect(), generation }
    }

    /// Tells all threads what the rules have to say.
    fn tell(&self, target: &mut Target) {
        let mut notices = Vec::new();
        while let Some(notice) = target.poll() {
            notices.push(notice);
        }
        if notices.is_empty() {
            return;
        }
        for post in locked(&self.posts).iter() {
            locked(&post.notices).extend_from_slice(&notices);
            post.mailbox.ring();
        }
    }
}

impl Served {
    fn port(&mut self, address: SocketAddr) -> u16 {
        let next = u16::try_from(self.ports.len() + 1).unwrap_or(u16::MAX);
        *self.ports.entry(address).or_insert(next)
    }

    /// The discovery log: every subsystem at every address, and other discovery services.
    fn records(&self, queue_depth: u16) -> Vec<(u16, Record)> {
        let record = |kind, nqn: &Nqn, address, portid| Record {
            kind,
            subnqn: nqn.clone(),
            address,
            portid,
            max_admin_queue: queue_depth,
        };
        let mut records = Vec::new();
        for (address, portid) in &self.ports {
            let named = self.listening.contains(address);
            let behind = |l: &SocketAddr| l.ip().is_unspecified() && l.port() == address.port();
            if !named && !self.listening.iter().any(behind) {
                continue;
            }
            let told_at = if named { 0 } else { *portid };
            let of = |s: &Subsystem| record(SubsystemType::Nvm, &s.nqn, *address, *portid);
            records.extend(self.config.subsystems.iter().map(|s| (told_at, of(s))));
        }
        let discovery = Nqn::new(nqn::DISCOVERY);
        for referral in &self.config.referrals {
            let nqn = referral.nqn.as_ref().or(discovery.as_ref().ok());
            if let Some(nqn) = nqn {
                records.push((0, record(SubsystemType::Referral, nqn, referral.address, 0)));
            }
        }
        records
    }
}

/// IPv4 in the clothes of IPv6 is IPv4.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn of_protocol(subsystem: &Subsystem) -> subsystem::SubsystemConfig {
    let hosts = match &subsystem.hosts {
        Hosts::Any => subsystem::Hosts::Any,
        Hosts::Listed(hosts) => subsystem::Hosts::Listed(
            hosts
                .iter()
                .map(|host| {
                    let keys = host.key.as_ref().map(|key| subsystem::Keys {
                        host: key.secret().clone(),
                        controller: host.controller_key.as_ref().map(|key| key.secret().clone()),
                    });
                    (host.nqn.clone(), keys)
                })
                .collect(),
        ),
    };
    subsystem::SubsystemConfig {
        nqn: subsystem.nqn.clone(),
        serial: subsystem.serial.clone(),
        model: subsystem.model.clone(),
        firmware: FIRMWARE.to_owned(),
        hosts,
    }
}

/// Bytes that nobody can guess. Without a source of them nobody is let in: the process ends.
fn random(bytes: &mut [u8]) {
    let mut done = 0;
    while done < bytes.len() {
        match rustix::rand::getrandom(&mut bytes[done..], rustix::rand::GetRandomFlags::empty()) {
            Ok(n) => done += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => {
                tracing::error!("no random bytes: {}", io::Error::from(e));
                std::process::exit(1);
            }
        }
    }
}
