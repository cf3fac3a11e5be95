//! Listening sockets that the agent does not know, each with the reason, for `shunt list`.
//!
//! Such a socket is an entry of the descriptor table like any other listener, so the library sees
//! its duplicates and its end. The entry to be shown stands in the endpoint's arena, where the
//! agent reads it. A process without an endpoint keeps the reason, and reports it when a
//! conversation begins.

use core::ffi::c_int;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use shunt_shm::unregistered::{Place, Unregistered};
use shunt_sys::sockinfo;
use shunt_wire::reason::Reason;

use crate::control::endpoint::Endpoint;
use crate::fds::owner::owner_pid;
use crate::system::abi;

/// Why a listener is not registered; nothing for those that are.
#[derive(Debug, Default)]
pub struct Why {
    /// The reason's code; 0: it is registered.
    code: AtomicU32,
    /// Where the agent reads it; null: nowhere.
    place: AtomicPtr<Place>,
}

impl Why {
    /// For this reason.
    pub const fn because(why: Reason) -> Self {
        Self { code: AtomicU32::new(why as u32), place: AtomicPtr::new(ptr::null_mut()) }
    }

    /// The reason; `None`: it is registered.
    pub fn reason(&self) -> Option<Reason> {
        u8::try_from(self.code.load(Ordering::Relaxed)).ok().and_then(Reason::from_code)
    }

    /// Another try has failed.
    pub fn change(&self, why: Reason) {
        self.code.store(why as u32, Ordering::Relaxed);
        if let Some(place) = own(self.place.load(Ordering::Acquire)) {
            place.set_reason(why);
        }
    }

    /// Tells the agent of `endpoint`.
    pub fn tell(&self, fd: c_int, endpoint: &'static Endpoint) {
        let (Some(reason), Ok(addr)) = (self.reason(), sockinfo::local_addr(abi::borrow(fd)))
        else {
            return;
        };
        let what = Unregistered { pid: endpoint.pid, fd, addr, reason };
        let new = endpoint.arena.unregistered().note(&what);
        let new = new.map_or(ptr::null_mut(), |place| ptr::from_ref(place).cast_mut());
        free(self.place.swap(new, Ordering::AcqRel));
    }

    /// The listener is closed, or registered.
    pub fn forget(&self) {
        free(self.place.swap(ptr::null_mut(), Ordering::AcqRel));
    }
}

/// A place that this process has written: that of a parent stays the parent's.
fn own<'a>(place: *mut Place) -> Option<&'a Place> {
    // SAFETY: null, or in the arena of an endpoint, which is never unmapped.
    unsafe { place.as_ref() }.filter(|place| place.pid() == owner_pid())
}

fn free(place: *mut Place) {
    if let Some(place) = own(place) {
        place.free();
    }
}
