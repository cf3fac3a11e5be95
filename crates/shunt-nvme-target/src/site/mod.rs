//! What all threads serve: the subsystems with their hosts' controllers, and the stores of their namespaces.
//!
//! The rules are [`shunt_nvme::subsystem`]'s; here are the lock around them, the clock, and who is told of what.

mod notices;
mod rules;
mod served;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use shunt_nvme::controller::{self, Transfer};
use shunt_nvme::subsystem::{Context, Plan, Reply, Session, Target, Unpaired};
use shunt_nvme::wire::{Nqn, Sqe, Status};

use crate::config::{Config, Limits, Subsystem};
use crate::control::report;
use crate::store::Mailbox;
use crate::stores::Unavailable;
pub use notices::Post;
use notices::Posts;
pub use served::Namespace;
use served::Served;

/// The namespaces of a subsystem, as a host sees them, at a moment.
#[derive(Debug, Default)]
pub struct View {
    /// By number.
    pub namespaces: BTreeMap<u32, Namespace>,
    /// The moment.
    generation: u64,
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
    posts: Posts,
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
        let site = Self {
            limits: config.limits,
            started: Instant::now(),
            target: RwLock::new(Target::new(rules::limits(&config.limits))),
            served: RwLock::new(Served::nothing(config)),
            generation: AtomicU64::new(1),
            posts: Posts::default(),
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
            target.add_subsystem(rules::subsystem(subsystem));
            let earlier = served.config.subsystems.iter().find(|s| s.nqn == subsystem.nqn);
            // What a host has mapped it has until its connections end.
            for host in earlier.map(|e| rules::no_more_granted(e, subsystem)).unwrap_or_default() {
                target.end_host(&subsystem.nqn, host);
            }
            for namespace in &subsystem.namespaces {
                let (nqn, nsid) = (&subsystem.nqn, namespace.nsid);
                let Some(store) = served.stores.get(nqn, nsid) else { continue };
                let now = rules::namespace(namespace, store.as_ref());
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
        self.publish(&served, &mut target);
        self.generation.fetch_add(1, Ordering::Release);
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
            in_capsule: self.limits.in_capsule,
            max_in_flight: u32::try_from(in_flight).unwrap_or(usual.max_in_flight),
            ..usual
        }
    }

    /// A thread that is told of what concerns its connections.
    #[must_use]
    pub fn register(&self, mailbox: &Arc<Mailbox>) -> Arc<Post> {
        self.posts.register(mailbox)
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
        self.publish(&served, &mut write(&self.target));
        port
    }

    /// Says on all ports what is served there, and in which state.
    fn publish(&self, served: &Served, target: &mut Target) {
        for (nqn, port, group, state) in served.ana_states() {
            target.set_ana(nqn, port, group, state);
        }
        target.set_discovery(served.records(self.limits.queue_depth));
        self.tell(target);
    }

    /// The time, as sessions have it.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// What a command takes; and what becomes of the first one of a fused operation, if that gets no second.
    pub fn plan(
        &self,
        session: &mut Session,
        sqe: &Sqe,
        transfer: Transfer,
    ) -> (Plan, Option<Unpaired>) {
        let plan = session.plan(&read(&self.target), sqe, transfer);
        (plan, session.unpaired())
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

    /// Commands for stores have come from this host.
    pub fn heard(&self, session: &Session) {
        session.heard(&mut write(&self.target), self.now());
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

    /// A command was aborted, or could not be.
    pub fn aborted(&self, cntlid: u16, qid: u16, cid: u16, is_aborted: bool) {
        let mut target = write(&self.target);
        target.aborted(cntlid, qid, cid, is_aborted);
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

    /// The subsystems, their namespaces, and the hosts that are connected.
    #[must_use]
    pub fn report(&self) -> Vec<report::Subsystem> {
        let mut subsystems = read(&self.served).report();
        for (cntlid, of, host, io_queues) in read(&self.target).controllers() {
            let of = of.map(Nqn::as_str);
            if let Some(found) = subsystems.iter_mut().find(|s| Some(s.nqn.as_str()) == of) {
                let host = host.as_str().to_owned();
                found.controllers.push(report::Controller { cntlid, host, io_queues });
            }
        }
        subsystems
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
        View { namespaces: read(&self.served).namespaces(nqn, host), generation }
    }

    /// Tells all threads what the rules have to say.
    fn tell(&self, target: &mut Target) {
        let notices: Vec<_> = std::iter::from_fn(|| target.poll()).collect();
        self.posts.tell(&notices);
    }
}

/// IPv4 in the clothes of IPv6 is IPv4.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
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
