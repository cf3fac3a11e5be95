//! Watches that go over to Shunt or back to the kernel, and the events that the kernel is asked
//! for.

use core::ptr;

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD};
use shunt_engine::events;

use crate::conn::Conn;
use crate::control::endpoint::Endpoint;
use crate::control::link::{self, Link};
use crate::epoll::instance::Instance;
use crate::epoll::state::{Watch, Watched, is_asked_for};
use crate::epoll::{Ours, tag};
use crate::fds::own_fds::OwnFd;
use crate::system::abi::{c_int, epoll_event};
use crate::system::next;

impl Instance {
    /// Has the kernel tell of room in the socket of a shunted connection in a TCP stretch.
    pub fn ask_for_room(&self, fd: c_int) {
        let mut state = self.lock();
        let Some(index) = state.find(fd) else { return };
        if state.get(index).is_some_and(|w| w.conn.is_some() && w.interest & events::OUT != 0) {
            let mut event = kernel_event(index, true);
            // SAFETY: the event is valid.
            unsafe { next::epoll_ctl(self.raw(), EPOLL_CTL_MOD, fd, &raw mut event) };
        }
    }

    /// Looks what the descriptors have become, of which it was not told.
    pub(in crate::epoll) fn catch_up(&'static self) {
        if !self.is_live() {
            return self.clear();
        }
        let watches: Vec<Watch> = self.lock().watches.iter().flatten().copied().collect();
        for Watch { fd, conn, .. } in watches {
            let now = Conn::named(fd);
            match conn {
                None => {
                    if let Some(now) = now {
                        self.convert(fd, Some(now));
                    }
                }
                Some(Watched { conn, .. }) if conn.is_named() => match now {
                    Some(_) => {
                        self.ask_for_room(fd);
                        self.tell_again(fd);
                    }
                    None => self.convert(fd, None),
                },
                Some(Watched { conn, .. }) => {
                    let other = conn.is_current().then(|| conn.find_descriptor(fd)).flatten();
                    self.descriptor_closed(fd, other, conn.sock());
                }
            }
        }
    }

    /// The connections that it watches.
    pub fn connections(&self) -> Vec<Conn> {
        let state = self.lock();
        let watched = state.watches.iter().flatten().filter_map(|watch| watch.conn);
        watched.map(|watched| watched.conn).collect()
    }

    /// Leaves the kernel's set as if the library had never been there; not one that another process
    /// needs as it is.
    pub fn dissolve(&self) {
        let mut ours: Vec<c_int> = Vec::new();
        {
            let mut state = self.lock();
            if state.inherited {
                return;
            }
            let ear = state.ear.take();
            let bells = core::mem::take(&mut state.bells);
            let bells = bells.iter().filter_map(|(endpoint, vector)| {
                // SAFETY: endpoints are never freed.
                unsafe { &**endpoint }.bells.raw(*vector)
            });
            let lifelines = link::all().filter_map(Link::lifeline);
            for own in ear.iter().map(OwnFd::raw).chain(bells).chain(lifelines) {
                // What is in the ear, or was not put here, does no harm.
                // SAFETY: a deletion reads no event.
                unsafe {
                    next::epoll_ctl(self.raw(), EPOLL_CTL_DEL, own, ptr::null_mut());
                }
            }
            for watch in state.watches.iter().flatten() {
                if watch.conn.is_some() {
                    ours.push(watch.fd);
                } else if watch.inner.is_some() {
                    let mut event = epoll_event { events: watch.interest, u64: watch.data };
                    // SAFETY: the event is valid.
                    unsafe { next::epoll_ctl(self.raw(), EPOLL_CTL_MOD, watch.fd, &raw mut event) };
                }
            }
        }
        ours.into_iter().for_each(|fd| self.convert(fd, None));
    }

    /// True when this descriptor is watched here.
    fn watches(&self, fd: c_int) -> bool {
        self.lock().find(fd).is_some()
    }

    /// A descriptor is about to be connected. Where it is watched here already, the instance takes its vector now: while the
    /// connection is set up nobody talks to the agent.
    pub fn prepare_for(&self, fd: c_int, endpoint: &'static Endpoint) {
        if self.watches(fd) {
            self.prepare_at(endpoint);
        }
    }

    /// The watch of a descriptor goes over to Shunt, or back to the kernel.
    pub fn convert(&self, fd: c_int, conn: Option<Conn>) {
        if let Some(conn) = &conn
            && self.watches(fd)
        {
            self.prepare(conn);
        }
        let mut state = self.lock();
        let Some(index) = state.find(fd) else { return };
        let Some(watch) = state.watches.get(index).copied().flatten() else { return };
        // What goes back to the kernel in a child is still asked by the library, as it is in the parent.
        if watch.conn.is_some() == conn.is_some() || (conn.is_none() && state.inherited) {
            return;
        }
        if watch.parked.is_some() {
            self.unpark_for_good(&mut state, index);
            return;
        }
        let event = match conn {
            Some(_) => kernel_event(index, false),
            None => epoll_event { events: watch.interest, u64: watch.data },
        };
        let is_changed = self.change(&watch, event);
        match conn {
            _ if !is_changed => self.forget(&mut state, fd),
            Some(conn) => self.register(&mut state, index, conn),
            None => {
                self.unregister(index, &watch);
                state.direct.retain(|w| *w != index);
                state.ready.retain(|w| *w != index);
                if let Some(Some(watch)) = state.watches.get_mut(index) {
                    watch.conn = None;
                    watch.listed = false;
                }
            }
        }
        self.ring_if_awaited(&state);
    }
}

impl Instance {
    /// Changes what the kernel has of a watch, from what the program asked for to what is asked about a shunted connection, or back.
    fn change(&self, watch: &Watch, mut event: epoll_event) -> bool {
        let mut control = |op| {
            // SAFETY: the event is valid.
            unsafe { next::epoll_ctl(self.raw(), op, watch.fd, &raw mut event) == 0 }
        };
        // A registration with that flag can't be changed, nor another one become one (`do_epoll_ctl` in fs/eventpoll.c).
        if watch.interest & events::EXCLUSIVE != 0 {
            return control(EPOLL_CTL_DEL) && control(EPOLL_CTL_ADD);
        }
        control(EPOLL_CTL_MOD)
    }
}

/// What the kernel is asked about a shunted connection: whatever comes there is news, once. Room to
/// write is asked for only while a sender waits for it in a TCP stretch.
pub fn kernel_event(watch: usize, room: bool) -> epoll_event {
    let events = events::IN | events::PRI | events::RDHUP | events::ET;
    let events = if room { events | events::OUT } else { events };
    epoll_event { events, u64: tag(Ours::Watch(watch)) }
}

/// What the kernel is asked about another instance with this interest: of one that is not asked for, each
/// ring of its doorbells would wake a thread that has nothing to report.
pub fn kernel_event_of_inner(watch: usize, interest: u32) -> epoll_event {
    let event = kernel_event(watch, false);
    let events = if is_asked_for(interest) { event.events } else { events::ET };
    epoll_event { events, ..event }
}

/// Whether the kernel takes these flags for this operation (`fs/eventpoll.c`): it is not asked about
/// a shunted connection with the program's own.
pub const fn flags_are_valid(op: c_int, asked: u32, before: Option<u32>) -> bool {
    const EXCLUSIVE_OK: u32 = events::EXCLUSIVE
        | events::ET
        | events::IN
        | events::OUT
        | events::ERR
        | events::HUP
        | libc::EPOLLWAKEUP.cast_unsigned();
    let exclusive = asked & events::EXCLUSIVE != 0;
    if op == EPOLL_CTL_MOD {
        let was = match before {
            Some(interest) => interest & events::EXCLUSIVE != 0,
            None => false,
        };
        return !exclusive && !was;
    }
    !exclusive || asked & !EXCLUSIVE_OK == 0
}
