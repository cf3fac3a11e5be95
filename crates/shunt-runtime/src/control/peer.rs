//! The parties at the other end of a link group.
//!
//! A party's doorbells are descriptors, of which a process has few, and a server that forks for
//! each connection has a new endpoint for each. So a process keeps a peer while connections use it,
//! and beyond that only as long as there is room. It drops unused ones then, and fetches them from
//! the agent again when it needs them. A place in the list stays where it is, for the data path
//! follows pointers to it without a lock; a thread that comes too late rings nothing.

use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

use shunt_wire::agent::EndpointId;

use crate::control::bells;
use crate::control::process::Process;
use crate::fds::own_fds::OwnFd;

/// [`Peer::users`] of a place in which nobody is.
const VACANT: u32 = 1 << 31;
/// The same while a thread empties the place, or moves in.
const CHANGING: u32 = VACANT | 1;

/// What has become of a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rung {
    /// The doorbell is rung.
    Rung,
    /// It has to be had first, of this endpoint.
    NotHere(EndpointId),
    /// There is nobody any more.
    Nobody,
}

/// Another endpoint.
#[derive(Debug)]
pub struct Peer {
    endpoint: AtomicU64,
    /// Connections of this process to it, or [`VACANT`].
    users: AtomicU32,
    /// Threads that are just ringing a doorbell.
    ringing: AtomicU32,
    /// The process, of [`Arc::into_raw`]; null: none.
    process: AtomicPtr<Process>,
    next: AtomicPtr<Self>,
}

impl Peer {
    fn vacant() -> Self {
        Self {
            endpoint: AtomicU64::new(0),
            users: AtomicU32::new(VACANT),
            ringing: AtomicU32::new(0),
            process: AtomicPtr::default(),
            next: AtomicPtr::default(),
        }
    }

    /// Rings the doorbell of a completion vector.
    pub fn ring(&self, vector: usize) -> Rung {
        let rung = self.with(|process| match process.bells.ring(vector) {
            true => Rung::Rung,
            false => Rung::NotHere(process.endpoint),
        });
        rung.unwrap_or(Rung::Nobody)
    }

    /// Takes up the doorbell of a completion vector.
    pub fn keep(&self, vector: usize, bell: OwnFd) {
        self.with(|process| process.bells.keep(vector, bell));
    }

    /// Does something with the process, if there is one.
    fn with<T>(&self, with: impl FnOnce(&Process) -> T) -> Option<T> {
        // SYNC POINT bells: said before the look; whoever empties the place does it the other way round.
        self.ringing.fetch_add(1, Ordering::SeqCst);
        let is_here = self.users.load(Ordering::SeqCst) & VACANT == 0;
        // SAFETY: whoever empties the place sees that we are here, and leaves it as it is.
        let process = unsafe { self.process.load(Ordering::Acquire).as_ref() };
        let result = process.filter(|_| is_here).map(with);
        self.ringing.fetch_sub(1, Ordering::SeqCst);
        result
    }

    /// One more connection uses it; false when nobody is here any more.
    fn acquire(&self) -> bool {
        let more = |users: u32| (users & VACANT == 0).then(|| users + 1);
        self.users.fetch_update(Ordering::SeqCst, Ordering::Relaxed, more).is_ok()
    }

    /// A connection less.
    pub fn release(&self) {
        self.users.fetch_sub(1, Ordering::SeqCst);
    }

    /// Empties the place if nobody uses it. True when it is empty.
    fn vacate(&self) -> bool {
        if !self.begin_change(0) && !self.begin_change(VACANT) {
            return false;
        }
        // SYNC POINT bells.
        let empty = self.ringing.load(Ordering::SeqCst) == 0;
        if empty {
            self.endpoint.store(0, Ordering::Relaxed);
            self.let_go();
        }
        self.users.store(VACANT, Ordering::SeqCst);
        empty
    }

    /// Of the threads that want to change who is in the place, one may.
    fn begin_change(&self, from: u32) -> bool {
        let (ok, no) = (Ordering::SeqCst, Ordering::Relaxed);
        self.users.compare_exchange(from, CHANGING, ok, no).is_ok()
    }

    fn let_go(&self) {
        let process = self.process.swap(core::ptr::null_mut(), Ordering::AcqRel);
        if !process.is_null() {
            // SAFETY: made by Arc::into_raw in `move_in`, and taken out just now.
            drop(unsafe { Arc::from_raw(process) });
        }
    }

    /// Takes the empty place for a process that one connection uses. False when it is not empty.
    fn move_in(&self, process: &Arc<Process>) -> bool {
        if !self.begin_change(VACANT) {
            return false;
        }
        if !self.process.load(Ordering::Relaxed).is_null() {
            // Not emptied yet, because its doorbell was just being rung.
            self.users.store(VACANT, Ordering::SeqCst);
            return false;
        }
        let new = Arc::into_raw(Arc::clone(process)).cast_mut();
        self.process.store(new, Ordering::Release);
        self.endpoint.store(process.endpoint, Ordering::Release);
        self.users.store(1, Ordering::SeqCst);
        true
    }
}

/// The peers of a link group.
#[derive(Debug, Default)]
pub struct Peers(AtomicPtr<Peer>);

impl Peers {
    fn all(&self) -> impl Iterator<Item = &'static Peer> {
        // SAFETY: places are leaked with their link group, and freed with it when no connection of it
        // is left (see `Drop`).
        let follow = |at: &AtomicPtr<Peer>| unsafe { at.load(Ordering::Acquire).as_ref() };
        core::iter::successors(follow(&self.0), move |peer| follow(&peer.next))
    }

    /// An endpoint whose doorbells are known; a connection uses it from now on.
    pub fn find(&self, endpoint: EndpointId) -> Option<&'static Peer> {
        let is = |peer: &Peer| peer.endpoint.load(Ordering::Acquire) == endpoint;
        self.all().find(|peer| {
            if !is(peer) || !peer.acquire() {
                return false;
            }
            // It may have moved out and another in, between the two.
            let still = is(peer);
            if !still {
                peer.release();
            }
            still
        })
    }

    /// Adds an endpoint that a connection uses from now on.
    pub fn add(&self, process: &Arc<Process>) -> &'static Peer {
        if let Some(place) = self.all().find(|place| place.move_in(process)) {
            return place;
        }
        let place: &'static Peer = Box::leak(Box::new(Peer::vacant()));
        place.move_in(process);
        let new = core::ptr::from_ref(place).cast_mut();
        let mut head = self.0.load(Ordering::Acquire);
        loop {
            place.next.store(head, Ordering::Relaxed);
            match self.0.compare_exchange(head, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return place,
                Err(now) => head = now,
            }
        }
    }

    /// Drops those that nobody uses.
    pub fn drop_idle(&self) {
        self.all().for_each(|peer| {
            peer.vacate();
        });
    }

    /// In a forked child: what other threads of the parent were about to do will not be done. Its
    /// connections are counted anew, by [`Peer::count_again`].
    pub fn forget_users(&self) {
        for peer in self.all() {
            peer.ringing.store(0, Ordering::Relaxed);
            // Also of a change that was not brought to its end.
            peer.users.fetch_and(VACANT, Ordering::Relaxed);
        }
    }
}

impl Peer {
    /// In a forked child: a connection that the child has uses it.
    pub fn count_again(&self) {
        self.acquire();
    }
}

/// True when peers that nobody uses are to be dropped before others are added.
pub fn crowded() -> bool {
    bells::are_enough()
}

impl Drop for Peers {
    fn drop(&mut self) {
        let mut at = self.0.swap(core::ptr::null_mut(), Ordering::AcqRel);
        while !at.is_null() {
            // SAFETY: made by Box::leak in `add`; no connection refers to it any more.
            let gone = unsafe { Box::from_raw(at) };
            at = gone.next.load(Ordering::Relaxed);
            gone.let_go();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use rustix::event::epoll;
    use shunt_shm::doorbell;

    use super::*;
    use crate::control::bells::Kept;
    use crate::control::doorbells::Doorbells;
    use crate::fds::own_fds::adopt;

    fn process(endpoint: EndpointId, bells: &[&OwnedFd]) -> Arc<Process> {
        let kept = Kept::default();
        for (vector, bell) in bells.iter().enumerate() {
            kept.keep(vector, adopt(bell.try_clone().unwrap()).unwrap());
        }
        Arc::new(Process::of(endpoint, Doorbells::Here(kept)))
    }

    #[test]
    fn idle_peers_give_their_descriptors_back_and_used_ones_ring() {
        assert!(crate::fds::fd_table::reserve());
        let [one, two] = [(); 2].map(|()| doorbell::create().unwrap());
        let ears = [&one, &two].map(|bell| {
            let ear = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
            epoll::add(&ear, bell, epoll::EventData::new_u64(0), doorbell::RUNG).unwrap();
            ear
        });
        let rung = |which: usize| {
            let mut events = Vec::with_capacity(1);
            let now = rustix::event::Timespec::default();
            epoll::wait(&ears[which], rustix::buffer::spare_capacity(&mut events), Some(&now))
                .unwrap()
        };
        // The start.
        assert_eq!((rung(0), rung(1)), (1, 1));
        let peers = Peers::default();
        let first = peers.add(&process(1, &[&one, &two]));
        let second = peers.add(&process(2, &[&two]));
        assert_eq!(first.ring(0), Rung::Rung);
        assert_eq!(first.ring(7), Rung::NotHere(1));
        assert_eq!(second.ring(0), Rung::Rung);
        assert_eq!(second.ring(99), Rung::NotHere(2));
        assert_eq!((rung(0), rung(1)), (1, 1));

        second.release();
        peers.drop_idle();
        assert!(peers.find(2).is_none());
        assert_eq!(second.ring(0), Rung::Nobody);
        assert_eq!(rung(1), 0, "a late ring is nobody's");
        assert!(core::ptr::eq(peers.find(1).unwrap(), first));
        first.release();
        let third = peers.add(&process(3, &[&one]));
        assert!(core::ptr::eq(third, second), "the place is used again");
        assert_eq!(third.ring(0), Rung::Rung);
        assert_eq!(rung(0), 1);
        first.release();
        first.ringing.store(1, Ordering::SeqCst);
        peers.drop_idle();
        assert!(!first.process.load(Ordering::Relaxed).is_null(), "being rung");
        first.ringing.store(0, Ordering::SeqCst);
        first.users.store(CHANGING, Ordering::SeqCst);
        peers.drop_idle();
        assert!(!first.move_in(&process(4, &[&two])));
        assert!(!first.process.load(Ordering::Relaxed).is_null(), "another thread is at it");
        first.users.store(VACANT, Ordering::SeqCst);
        assert!(!first.move_in(&process(4, &[&two])), "not emptied yet");
        peers.drop_idle();
        assert!(first.process.load(Ordering::Relaxed).is_null());
    }
}
