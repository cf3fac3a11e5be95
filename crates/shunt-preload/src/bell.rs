//! A thread's ear for doorbells where poll(2) is to hear them.
//!
//! Doorbells are never drained, so poll(2) would find them readable for ever. Each thread that
//! needs it has an epoll instance of its own which watches a doorbell edge-triggered: that is
//! readable exactly when the doorbell was rung since this thread last looked.

use core::cell::RefCell;
use std::os::fd::BorrowedFd;

use rustix::event::Timespec;
use rustix::event::epoll::{CreateFlags, Event, EventData, EventFlags, add, create, wait};
use shunt_shm::doorbell::RUNG;

use crate::conn::Sock;
use crate::endpoint::Endpoint;
use crate::own_fds::{OwnFd, adopt};
use crate::stream::tid;

struct Ear {
    epoll: OwnFd,
    /// Whose doorbell it hears.
    endpoint: *const Endpoint,
    vector: usize,
    pid: u32,
}

thread_local! {
    static EARS: RefCell<Vec<Ear>> = const { RefCell::new(Vec::new()) };
}

/// An ear for the doorbells of one endpoint.
#[derive(Clone, Copy)]
pub struct Bell {
    fd: i32,
    vector: usize,
}

impl Bell {
    /// Readable when the doorbell was rung.
    pub fn fd(&self) -> BorrowedFd<'static> {
        // SAFETY: the thread's own epoll instance stays open as long as the thread runs.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }

    /// The completion vector whose doorbell it is.
    pub const fn vector(&self) -> usize {
        self.vector
    }

    /// True for the same ear.
    pub const fn same(&self, other: &Self) -> bool {
        self.fd == other.fd
    }

    /// Forgets rings that were heard.
    pub fn quiet(&self) {
        let none = Event { flags: EventFlags::empty(), data: EventData::new_u64(0) };
        let mut events = [none; 4];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let _ = wait(self.fd(), &mut events, Some(&now));
    }
}

/// The calling thread's ear for the side of the connection that is ours.
pub fn of_this_thread(sock: &Sock) -> Option<Bell> {
    hear(sock.link()?.endpoint)
}

/// The calling thread's ear for the endpoint's doorbells.
pub fn hear(endpoint: &'static Endpoint) -> Option<Bell> {
    EARS.try_with(|ears| {
        let mut ears = ears.try_borrow_mut().ok()?;
        let pid = tid();
        // A forked child gets epoll instances of its own.
        ears.retain(|ear| ear.pid == pid);
        if let Some(ear) = ears.iter().find(|ear| core::ptr::eq(ear.endpoint, endpoint)) {
            return Some(Bell { fd: ear.epoll.raw(), vector: ear.vector });
        }
        let vector = tid() as usize % endpoint.bells.len().max(1);
        let bell = endpoint.bells.get(vector)?;
        let epoll = adopt(create(CreateFlags::CLOEXEC).ok()?).ok()?;
        add(epoll.borrow(), bell.borrow(), EventData::new_u64(0), RUNG).ok()?;
        let bell = Bell { fd: epoll.raw(), vector };
        bell.quiet();
        ears.push(Ear { epoll, endpoint, vector, pid });
        Some(bell)
    })
    .ok()
    .flatten()
}
