//! A thread's ear for doorbells where poll(2) is to hear them.
//!
//! Doorbells are never drained, so poll(2) would find them readable for ever. Each thread that
//! needs it has an epoll instance of its own which watches a doorbell edge-triggered: that is
//! readable exactly when the doorbell was rung since this thread last looked.
//!
//! Handlers ask for ears, too, above a thread that is doing so. So the list of a thread's ears is a
//! few words that change one at a time; and it is closed, when the thread ends, by a key of libc's
//! (pthread_key_create(3)), for a thread-local value with a destructor would take memory of the
//! program's allocator.

use core::cell::Cell;
use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering};
use std::os::fd::BorrowedFd;

use rustix::event::Timespec;
use rustix::event::epoll::{CreateFlags, Event, EventData, EventFlags, add, create, wait};
use rustix::io::Errno;
use shunt_shm::doorbell::RUNG;

use crate::calls::tid;
use crate::control::bells::COMMON;
use crate::control::endpoint::Endpoint;
use crate::control::vectors;
use crate::fds::own_fds::{OwnFd, adopt};
use crate::system::abi;
use crate::threads::signals::Uninterrupted;

/// Endpoints for which a thread has an ear at a time: a process has one for each agent that it has seen.
const EARS: usize = 4;

/// A place for an ear.
struct Place {
    /// Whose doorbell it hears; null: none.
    endpoint: Cell<*const Endpoint>,
    /// Its epoll descriptor's place among the library's own, plus one.
    epoll: Cell<u32>,
    vector: Cell<usize>,
    /// The thread that has made it, which in a forked child is another one.
    tid: Cell<u32>,
}

thread_local! {
    static PLACES: [Place; EARS] = const {
        [const {
            Place {
                endpoint: Cell::new(ptr::null()),
                epoll: Cell::new(0),
                vector: Cell::new(0),
                tid: Cell::new(0),
            }
        }; EARS]
    };
}

/// An ear for the doorbells of one endpoint.
#[derive(Clone, Copy)]
pub struct ThreadDoorbell {
    fd: i32,
    vector: usize,
}

impl ThreadDoorbell {
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

impl Place {
    fn bell(&self) -> Option<ThreadDoorbell> {
        let place = u16::try_from(self.epoll.get().checked_sub(1)?).ok()?;
        Some(ThreadDoorbell { fd: OwnFd::raw_at(place), vector: self.vector.get() })
    }

    fn clear(&self) {
        let endpoint = self.endpoint.replace(ptr::null());
        // SAFETY: null, or an endpoint, which is never freed.
        if let Some(endpoint) = unsafe { endpoint.as_ref() } {
            endpoint.give_vector(self.vector.get());
        }
        drop(OwnFd::from_place(self.epoll.replace(0)));
    }
}

/// The calling thread's ear for the endpoint's doorbells.
pub fn hear(endpoint: &'static Endpoint) -> Option<ThreadDoorbell> {
    let name = ptr::from_ref(endpoint);
    PLACES.with(|places| {
        let known = |place: &&Place| place.endpoint.get() == name && place.tid.get() == tid();
        match places.iter().find(known) {
            Some(place) => place.bell(),
            None => make(places, endpoint),
        }
    })
}

#[cold]
fn make(places: &[Place; EARS], endpoint: &'static Endpoint) -> Option<ThreadDoorbell> {
    let _uninterrupted = Uninterrupted::begin();
    // A forked child gets epoll instances of its own.
    let strange = |place: &&Place| place.epoll.get() != 0 && place.tid.get() != tid();
    places.iter().filter(strange).for_each(Place::clear);
    // Where all are taken, the first endpoint is that of an agent which was there long ago.
    let place = places.iter().find(|place| place.epoll.get() == 0).or(places.first())?;
    place.clear();
    let epoll = adopt(create(CreateFlags::CLOEXEC).ok()?).ok()?;
    if !close_at_exit() {
        return None;
    }
    let vector = vectors::take(endpoint);
    let heard = [COMMON, vector].into_iter().all(|vector| {
        let bell = endpoint.bells.raw(vector).map(abi::borrow);
        let added = bell.map(|bell| add(epoll.borrow(), bell, EventData::new_u64(0), RUNG));
        matches!(added, Some(Ok(()) | Err(Errno::EXIST)))
    });
    if !heard {
        endpoint.give_vector(vector);
        return None;
    }
    let new = ThreadDoorbell { fd: epoll.raw(), vector };
    new.quiet();
    place.vector.set(vector);
    place.tid.set(tid());
    place.epoll.set(u32::from(epoll.into_place()) + 1);
    place.endpoint.set(ptr::from_ref(endpoint));
    Some(new)
}

/// The key plus one; 0: none.
static KEY: AtomicU32 = AtomicU32::new(0);

/// Makes the key by which threads close their ears; for the constructor, so that it is among the first,
/// for which libc needs no memory.
pub fn prepare() -> bool {
    extern "C" fn thread_ends(_: *mut c_void) {
        crate::contain::contain(|| PLACES.with(|places| places.iter().for_each(Place::clear)));
    }
    if KEY.load(Ordering::Acquire) != 0 {
        return true;
    }
    let mut key = 0;
    // SAFETY: the destructor lives as long as the library, which is never unloaded.
    let made = unsafe { libc::pthread_key_create(&raw mut key, Some(thread_ends)) } == 0;
    if made {
        KEY.store(key + 1, Ordering::Release);
    }
    made
}

/// Has the calling thread close its ears when it ends.
fn close_at_exit() -> bool {
    let Some(key) = KEY.load(Ordering::Acquire).checked_sub(1) else { return false };
    // Any value but null has the destructor called.
    // SAFETY: the key was made by `prepare`.
    unsafe { libc::pthread_setspecific(key, ptr::from_ref(&KEY).cast()) == 0 }
}
