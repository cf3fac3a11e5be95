//! Epoll instances that others wait for: an outer epoll instance, poll(2), select(2).
//!
//! The kernel calls an epoll descriptor readable when something in its ready list is. Of shunted
//! connections it knows only that a doorbell was rung, and doorbells are never drained, so what it says
//! of an instance is too much. Hence the doorbells of such an instance move into an epoll instance of
//! the library's own, its *ear*, which stands for them in the kernel's set and can be emptied. An
//! instance is readable if one of its connections is, or if the kernel says so while the ear is quiet.
//!
//! An outer instance is told by the kernel that something has happened in an inner one, as it is about
//! a connection, and finds out here what that means. The lock of one instance is never taken with that
//! of another held (but for a fork, which takes all); completions are taken out of the queues with no
//! lock held.

use core::sync::atomic::Ordering;

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL};
use rustix::event::Timespec;
use rustix::event::epoll::{CreateFlags, Event, EventData, EventFlags, create, wait};
use shunt_engine::events;
use shunt_shm::doorbell::RUNG;

use crate::control::bells::COMMON;
use crate::control::link;
use crate::epoll::instance::Instance;
use crate::epoll::state::{Inner, State, is_asked_for};
use crate::epoll::{Ours, all, get, tag, wait as waiting};
use crate::fds::own_fds::adopt;
use crate::stream::tcp;
use crate::system::abi;
use crate::system::abi::epoll_event;
use crate::system::errno::KeepErrno;
use crate::system::next;

/// Looks at an instance whose ear is rung all the time before it is called readable.
const LOOKS: usize = 8;

/// An instance for which a thread sleeps elsewhere than in it: whoever takes a completion away from
/// it wakes the sleeper.
pub struct Awaited {
    instance: &'static Instance,
    _inner: Vec<Self>,
}

impl Awaited {
    /// Says so, and arms. Look again after it, then sleep.
    pub fn new(instance: &'static Instance) -> Self {
        instance.sharers.is_awaited();
        instance.arm_for_others();
        Self { instance, _inner: instance.await_inner() }
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        self.instance.sharers.wakes_up();
    }
}

impl Instance {
    /// Others than epoll_wait's callers wait for the instance: its doorbell is rung for every completion
    /// from now on, so that the kernel finds it readable. Look again after this, then sleep.
    pub fn arm_for_others(&self) {
        if !self.nested.swap(true, Ordering::AcqRel) {
            let mut state = self.lock();
            self.make_ear(&mut state);
            for index in state.parked() {
                self.unpark_for_good(&mut state, index);
            }
        }
        self.arm_queues();
        waiting::arm_direct(self);
        self.arm_inner();
    }

    fn arm_inner(&self) {
        if self.sets.load(Ordering::Relaxed) == 0 {
            return;
        }
        let inner: Vec<_> = self.lock().inner().filter_map(|(_, set)| get(set.instance)).collect();
        inner.into_iter().for_each(Instance::arm_for_others);
    }

    /// The instances that are watched here, to be waited for.
    pub fn await_inner(&self) -> Vec<Awaited> {
        if self.sets.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let inner: Vec<_> = self.lock().inner().filter_map(|(_, set)| get(set.instance)).collect();
        inner.into_iter().map(Awaited::new).collect()
    }

    /// The doorbells move out of the kernel's set. If there is no descriptor to be had for an ear they
    /// stay, and the instance may be called readable once too often.
    fn make_ear(&self, state: &mut State) {
        let _keep = KeepErrno::new();
        let Ok(ear) = create(CreateFlags::CLOEXEC).and_then(adopt) else { return };
        let flags = (libc::EPOLLIN | libc::EPOLLET).cast_unsigned();
        let mut event = epoll_event { events: flags, u64: tag(Ours::Bell(COMMON)) };
        // SAFETY: the event is valid; the descriptors are ours and the program's own.
        if unsafe { next::epoll_ctl(self.raw(), EPOLL_CTL_ADD, ear.raw(), &raw mut event) } != 0 {
            return;
        }
        event.events = RUNG.bits();
        for (endpoint, vector) in &state.bells {
            // SAFETY: endpoints are never freed.
            let Some(bell) = unsafe { &**endpoint }.bells.raw(*vector) else { continue };
            // SAFETY: the event is valid; the descriptors are ours.
            unsafe {
                next::epoll_ctl(ear.raw(), EPOLL_CTL_ADD, bell, &raw mut event);
                next::epoll_ctl(self.raw(), EPOLL_CTL_DEL, bell, &raw mut event);
            }
        }
        state.ear = Some(ear);
    }

    /// Arms the queues of the instance's vectors, once for each link group.
    pub fn arm_queues(&self) {
        let vectors = self.sharers.vectors();
        link::all().for_each(|link| link.arm_for_others(vectors));
    }

    /// The instance is gone: queues that no other one needs are rung no more, and whoever watched it
    /// forgets it.
    pub fn disarm_for_others(&'static self) {
        if !self.nested.swap(false, Ordering::AcqRel) {
            return;
        }
        let needed = all()
            .filter(|i| i.nested.load(Ordering::Relaxed))
            .fold(0, |all, i| all | i.sharers.vectors());
        link::all().for_each(|link| link.disarm_for_others(needed));
        all().for_each(|outer| outer.forget_inner(self));
    }

    /// Forgets rings that were heard; true if there were any.
    fn quiet(&self) -> bool {
        let Some(ear) = self.lock().ear.as_ref().map(crate::fds::own_fds::OwnFd::raw) else {
            return false;
        };
        let none = Event { flags: EventFlags::empty(), data: EventData::new_u64(0) };
        let mut found = [none; 16];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let rung = wait(abi::borrow(ear), &mut found, Some(&now)).is_ok_and(|n| n > 0);
        if rung {
            self.edges.fetch_add(1, Ordering::AcqRel);
        }
        rung
    }

    /// Whether the descriptor is readable, as the kernel would say if it knew of the connections.
    pub fn is_readable(&self) -> bool {
        for _ in 0..LOOKS {
            if self.has_ready() {
                return true;
            }
            if tcp::readiness(self.raw(), events::IN) & events::IN == 0 {
                return false;
            }
            // Was it the ear? Then look what for.
            if !self.quiet() {
                return true;
            }
        }
        true
    }

    /// True when a connection, or an inner instance, has something to report. What has not leaves the
    /// ready list.
    fn has_ready(&self) -> bool {
        self.look_at_inner();
        waiting::pop_queues(self);
        let mut state = self.lock();
        self.promote_direct(&mut state);
        state.list_direct();
        let mut found = false;
        for _ in 0..state.ready.len() {
            let Some(index) = state.ready.pop_front() else { break };
            if waiting::has_news_or_awaits(self, &mut state, index) {
                state.ready.push_back(index);
                found = true;
            } else if let Some(watch) = state.get(index) {
                watch.listed = false;
            }
        }
        if found && self.sharers.are_asleep() {
            // The ring that was to wake a sleeper may be the one that was just heard.
            self.ring_own(&state);
        }
        found
    }

    /// Starts to watch another instance from here.
    pub fn watch_inner(&self, state: &mut State, index: usize, instance: &'static Instance) {
        let Some(watch) = state.get(index) else { return };
        watch.inner = Some(Inner { instance: instance.index(), readable: false, seen: 0 });
        state.sets.push(index);
        self.sets.fetch_add(1, Ordering::AcqRel);
        self.active.fetch_add(1, Ordering::AcqRel);
        self.look_anew(state, index);
    }

    /// After a change of an inner instance's registration: what it has is reported, once.
    pub fn look_anew(&self, state: &mut State, index: usize) {
        state.list(index);
        // The kernel first, so that what it has to tell of the change goes into the same report.
        self.visited.store(0, Ordering::Relaxed);
    }

    /// Looks at the instances that are watched here. To be called with no lock held.
    pub fn look_at_inner(&self) {
        if self.sets.load(Ordering::Relaxed) == 0 {
            return;
        }
        let all: Vec<_> = self.lock().inner().collect();
        for (index, Inner { instance, .. }) in all {
            let Some(instance) = get(instance) else { continue };
            let readable = instance.is_readable();
            self.lock().looked(index, instance, readable);
        }
    }

    /// While a connection here, or in an instance that is watched here, looks for a proposal: when to look
    /// again, in nanoseconds from now.
    pub fn next_look(&self) -> Option<u64> {
        let (mine, inner) = {
            let state = self.lock();
            let inner: Vec<_> = state.inner().filter_map(|(_, set)| get(set.instance)).collect();
            (state.next_look(), inner)
        };
        inner.into_iter().filter_map(Self::next_look).chain(mine).min()
    }

    /// True when a look has promoted a connection here, or in an instance that is watched here: nobody rings for it before the next look.
    /// To be called with no lock held.
    pub fn has_unregistered(&self) -> bool {
        self.lock().has_unregistered() || self.has_unregistered_inside()
    }

    /// The same of instances that are watched here alone.
    pub fn has_unregistered_inside(&self) -> bool {
        if self.sets.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let inner: Vec<_> = self.lock().inner().filter_map(|(_, set)| get(set.instance)).collect();
        inner.into_iter().any(Self::has_unregistered)
    }

    fn forget_inner(&self, inner: &Instance) {
        if self.sets.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut state = self.lock();
        for index in state.sets.clone() {
            let watched = state.get(index).and_then(|watch| watch.inner);
            if watched.is_some_and(|set| set.instance == inner.index()) {
                self.forget_watch(&mut state, index);
            }
        }
    }
}

impl State {
    /// The instances that are watched and asked for, with the numbers of their watches. Of the others
    /// nobody is to hear: neither do they keep a thread awake, nor do they wake one.
    fn inner(&self) -> impl Iterator<Item = (usize, Inner)> + '_ {
        self.sets.iter().filter_map(|index| {
            let watch = self.watches.get(*index)?.as_ref()?;
            Some((*index, watch.inner?)).filter(|_| is_asked_for(watch.interest))
        })
    }

    /// The watches that are parked.
    pub(super) fn parked(&self) -> Vec<usize> {
        (0..self.watches.len()).filter(|index| self.is_parked(*index)).collect()
    }

    /// Notes what a look at an inner instance has found.
    fn looked(&mut self, index: usize, instance: &Instance, readable: bool) {
        let Some(watch) = self.get(index) else { return };
        let edge_triggered = watch.interest & events::ET != 0;
        let Some(set) = watch.inner.as_mut().filter(|s| s.instance == instance.index()) else {
            return;
        };
        let edges = instance.edges.load(Ordering::Acquire);
        let edge = core::mem::replace(&mut set.seen, edges) != edges;
        set.readable = readable;
        if readable && (edge || !edge_triggered) {
            self.list(index);
        }
    }
}
