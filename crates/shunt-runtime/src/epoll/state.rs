//! The registrations of an epoll instance, and those of them that need a look.

use std::collections::VecDeque;

use shunt_engine::conn::SendPath;
use shunt_engine::conn::poll::KernelReadiness;
use shunt_engine::events;
use shunt_shm::doorbell::arm_bell;

use crate::conn::{Conn, KERNEL_HINT, Sock};
use crate::control::endpoint::Endpoint;
use crate::control::link::Link;
use crate::epoll::fd_map::FdMap;
use crate::fds::own_fds::OwnFd;
use crate::stream::{liveness, tcp};
use crate::system::abi::c_int;

/// A connection that is watched here.
#[derive(Clone, Copy, Debug)]
pub struct Watched {
    /// The connection, by the watched descriptor.
    pub conn: Conn,
    /// Completions come through the queue; else it is looked at by itself.
    pub queued: bool,
    /// Its proposal was not found yet when it was registered.
    pub candidate: bool,
}

impl Watched {
    /// True for a watch of this connection.
    pub fn is(&self, conn: &Conn) -> bool {
        self.conn.entry().is_same_object(conn.entry())
    }

    /// Promoted since it was registered as a candidate: nobody rings for it before it is registered
    /// anew.
    pub fn is_unregistered(self) -> bool {
        self.candidate && self.conn.link().is_some()
    }
}

/// Another epoll instance that is watched here.
#[derive(Clone, Copy, Debug)]
pub struct Inner {
    /// The instance's place ([`crate::epoll::get`]).
    pub instance: usize,
    /// What the last look at it found.
    pub readable: bool,
    /// Its `edges` at that time.
    pub seen: u32,
}

/// Whether this interest in another instance asks whether it is readable, which is all that one can be.
pub const fn is_asked_for(interest: u32) -> bool {
    interest & (events::IN | events::RDNORM) != 0
}

/// One registration.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    /// The descriptor.
    pub fd: c_int,
    /// What the program is interested in.
    pub interest: u32,
    /// The program's data.
    pub data: u64,
    /// A shunted connection; `None`: the kernel's business, with the program's own data.
    pub conn: Option<Watched>,
    /// An epoll instance.
    pub inner: Option<Inner>,
    /// What an edge-triggered connection that is looked at by itself was when it was last listed.
    pub stamp: u64,
    /// What the kernel says of the connection, as far as that is known.
    pub kernel: KernelReadiness,
    /// It is in the ready list.
    pub listed: bool,
    /// The program has taken it out, see [`super::instance::Instance::park`].
    pub parked: Option<Parked>,
}

/// A registration that only the kernel still has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parked {
    /// What came for it: when they go on coming it is taken out for good.
    pub completions: u8,
}

impl Watch {
    /// Which way its connection sends.
    pub fn sends(&self) -> Option<SendPath> {
        self.conn.map(|watched| watched.conn.sends())
    }

    /// A new registration, which is the kernel's business so far.
    pub const fn new(fd: c_int, interest: u32, data: u64) -> Self {
        Self {
            fd,
            interest,
            data,
            conn: None,
            inner: None,
            stamp: 0,
            kernel: KernelReadiness::Nothing,
            listed: false,
            parked: None,
        }
    }

    /// True when the kernel reports it with data of ours.
    pub const fn is_ours(&self) -> bool {
        self.conn.is_some() || self.inner.is_some()
    }
}

/// What the lock protects.
#[derive(Debug, Default)]
pub struct State {
    pub(super) by_fd: FdMap,
    pub(super) watches: Vec<Option<Watch>>,
    pub(super) free: Vec<usize>,
    /// Watches to look at.
    pub ready: VecDeque<usize>,
    /// Watches that are looked at by themselves at each wait.
    pub direct: Vec<usize>,
    /// Watches of other epoll instances.
    pub(super) sets: Vec<usize>,
    /// Where the doorbells are when others wait for the instance ([`super::nested`]).
    pub(super) ear: Option<OwnFd>,
    /// Watches that are left of a descriptor that is closed.
    pub(super) orphans: usize,
    /// The look at the ready list that is next or under way.
    pub(super) look: u64,
    /// A process that was forked, or its parent, has the kernel's set, too.
    pub(super) shared: bool,
    /// It was made before a fork by the process that this one comes from, whose registrations are in the
    /// kernel's set: they stay as they are.
    pub(super) inherited: bool,
    /// Doorbells in the kernel's set.
    pub(super) bells: Vec<(*const Endpoint, usize)>,
}

// SAFETY: the pointers are only compared.
unsafe impl Send for State {}

impl State {
    /// Makes all lists anew from the watches themselves, after a call that has left them as they were.
    pub(super) fn make_anew(&mut self) {
        self.by_fd = FdMap::default();
        (self.free, self.direct, self.sets) = (Vec::new(), Vec::new(), Vec::new());
        self.ready = VecDeque::new();
        self.orphans = 0;
        for index in 0..self.watches.len() {
            let Some(watch) = &mut self.watches[index] else {
                self.free.push(index);
                continue;
            };
            watch.listed = false;
            watch.kernel = KernelReadiness::Nothing;
            let (fd, conn, is_set) = (watch.fd, watch.conn, watch.inner.is_some());
            if self.by_fd.get(fd).is_none() {
                self.by_fd.insert(fd, index);
            } else {
                self.orphans += 1;
            }
            if conn.is_some_and(|conn| !conn.queued) {
                self.direct.push(index);
            }
            if is_set {
                self.sets.push(index);
            }
            self.list(index);
        }
    }

    /// The number of a descriptor's watch.
    pub fn find(&self, fd: c_int) -> Option<usize> {
        self.by_fd.get(fd)
    }

    /// A watch.
    pub fn get(&mut self, index: usize) -> Option<&mut Watch> {
        self.watches.get_mut(index)?.as_mut()
    }

    /// True for what [`super::instance::Instance::park`] has parked.
    pub fn is_parked(&self, index: usize) -> bool {
        self.watches.get(index).and_then(Option::as_ref).is_some_and(|w| w.parked.is_some())
    }

    /// A place for a new watch.
    pub fn reserve(&mut self) -> Option<usize> {
        if let Some(index) = self.free.last() {
            return Some(*index);
        }
        if self.watches.len() >= super::WATCHES {
            return None;
        }
        self.watches.push(None);
        self.free.push(self.watches.len() - 1);
        self.free.last().copied()
    }

    /// Puts a watch to the reserved place.
    pub fn insert(&mut self, index: usize, watch: Watch) {
        match self.free.last() {
            Some(last) if *last == index => {
                self.free.pop();
            }
            _ => self.free.retain(|i| *i != index),
        }
        self.by_fd.insert(watch.fd, index);
        if let Some(place) = self.watches.get_mut(index) {
            *place = Some(watch);
        }
    }

    /// Puts a watch into the ready list, unless it is there.
    pub fn list(&mut self, index: usize) {
        if let Some(Some(watch)) = self.watches.get_mut(index)
            && watch.is_ours()
            && watch.parked.is_none()
            && !watch.listed
        {
            watch.listed = true;
            self.ready.push_back(index);
        }
    }

    /// True when a connection that is looked at by itself has been promoted: nobody rings for it before it is registered anew.
    pub fn has_unregistered(&self) -> bool {
        let watched = |i: &usize| self.watches.get(*i)?.as_ref()?.conn;
        self.direct.iter().filter_map(watched).any(Watched::is_unregistered)
    }

    /// While the proposal of some connection is still looked for: when to look again, in nanoseconds from
    /// now.
    pub fn next_look(&self) -> Option<u64> {
        let look = |i: &usize| {
            let watch = self.watches.get(*i)?.as_ref()?;
            watch.conn.filter(|c| c.candidate)?.conn.next_look()
        };
        self.direct.iter().filter_map(look).min()
    }

    /// A vector of the endpoint whose doorbell is in the kernel's set.
    pub fn heard(&self, endpoint: &'static Endpoint) -> Option<usize> {
        self.bells.iter().find(|(e, _)| core::ptr::eq(*e, endpoint)).map(|(_, v)| *v)
    }

    /// True when there is one.
    pub fn hears(&self, endpoint: &'static Endpoint) -> bool {
        self.heard(endpoint).is_some()
    }

    /// The same for a watch that was just registered with the kernel, which is about to report what it
    /// knows of: an edge is told once.
    pub fn list_unless_told(&mut self, index: usize) {
        const TOLD: u32 = events::IN | events::PRI | events::RDHUP | events::HUP | events::ERR;
        let Some(Some(watch)) = self.watches.get(index) else { return };
        let is_told = watch.conn.is_some_and(|conn| {
            let room = events::OUT | events::WRNORM;
            let only_kernel = watch.interest & room == 0 && !conn.conn.has_news();
            let is_edge = watch.interest & events::ET != 0;
            only_kernel || (is_edge && tcp::readiness(watch.fd, TOLD) & TOLD != 0)
        });
        if !is_told {
            self.list(index);
        }
    }

    /// An agent is gone that brought what came from another host: its connections are looked at, and end if they cannot go on without.
    pub fn have_lost_agent(&mut self) {
        for index in 0..self.watches.len() {
            let conn = self.watches[index].as_ref().and_then(|watch| watch.conn);
            let Some(Watched { conn, .. }) = conn.filter(|c| c.conn.is_current()) else { continue };
            if liveness::is_cut_off(&conn) {
                conn.put(KERNEL_HINT, true);
                self.list(index);
            }
        }
    }

    /// The watches of a connection, by whatever descriptor.
    pub fn of_sock(&self, sock: &Sock) -> impl Iterator<Item = usize> {
        self.watches.iter().enumerate().filter_map(move |(i, watch)| {
            let conn = watch.as_ref()?.conn?;
            core::ptr::eq(conn.conn.sock(), sock).then_some(i)
        })
    }

    /// The watches that the completion queue of `link` tells of the connection in `slot`.
    pub fn of_place(&self, link: &Link, slot: usize) -> Vec<usize> {
        let told = |watch: &Watch| {
            watch.conn.is_some_and(|c| {
                c.queued
                    && c.conn.link().is_some_and(|l| core::ptr::eq(l, link))
                    && c.conn.record().slot() == slot
            })
        };
        let all = self.watches.iter().enumerate();
        all.filter(|(_, watch)| watch.as_ref().is_some_and(told)).map(|(i, _)| i).collect()
    }

    /// No watch is told of by a completion queue any more.
    pub fn all_direct(&mut self) {
        for (i, watch) in self.watches.iter_mut().enumerate() {
            if let Some(Watch { conn: Some(conn), .. }) = watch
                && conn.queued
            {
                conn.queued = false;
                self.direct.push(i);
            }
        }
    }

    /// A connection that is looked at by itself is told to ring a doorbell that is heard here.
    pub fn arm(&mut self, index: usize) {
        let watch = self.get(index).filter(|w| w.parked.is_none());
        let Some(conn) = watch.and_then(|w| w.conn) else { return };
        let (Some(link), Some((mine, _))) = (conn.conn.link(), conn.conn.sections()) else {
            return;
        };
        // Any of the doorbells that `register` put into the kernel's set.
        if let Some(vector) = self.heard(link.endpoint) {
            arm_bell(&mine.ctl.rx_arm, &mine.ctl.rx_bells, vector);
            arm_bell(&mine.ctl.tx_arm, &mine.ctl.tx_bells, vector);
        }
    }
}
