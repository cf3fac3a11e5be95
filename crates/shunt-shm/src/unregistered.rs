//! Listening sockets that the agent does not know, so that `shunt list` can say which these are and why.
//!
//! The process that listens writes a place when the agent has not taken the listener, and frees it when it
//! closes the socket; the agent reads. A place that changes while it is read may be shown half old
//! and half new, once.

use shunt_wire::addr::Addr;
use shunt_wire::reason::Reason;

use crate::sync::{AtomicI32, AtomicU32, AtomicU64, Ordering};

/// Listeners of one endpoint that can be shown. Beyond them the counters alone tell.
pub const PLACES: usize = 256;

const FREE: u32 = 0;
const TAKEN: u32 = 1;
const SHOWN: u32 = 2;

/// One listener.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Place {
    state: AtomicU32,
    pid: AtomicU32,
    fd: AtomicI32,
    reason: AtomicU32,
    ip: [AtomicU64; 2],
    port: AtomicU32,
}

/// What a place says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unregistered {
    /// Process that listens.
    pub pid: u32,
    /// The descriptor by which it does.
    pub fd: i32,
    /// Address of the socket.
    pub addr: Addr,
    /// Why clients cannot find it.
    pub reason: Reason,
}

impl Place {
    fn write(&self, what: &Unregistered) {
        let mut halves = what.addr.ip.chunks_exact(8);
        for word in &self.ip {
            let half = halves.next().and_then(|half| half.try_into().ok()).unwrap_or([0; 8]);
            word.store(u64::from_ne_bytes(half), Ordering::Relaxed);
        }
        self.port.store(u32::from(what.addr.port), Ordering::Relaxed);
        self.pid.store(what.pid, Ordering::Relaxed);
        self.fd.store(what.fd, Ordering::Relaxed);
        self.reason.store(what.reason as u32, Ordering::Relaxed);
        self.state.store(SHOWN, Ordering::Release);
    }

    /// `None` where nothing stands, or nothing that can be.
    fn read(&self) -> Option<Unregistered> {
        if self.state.load(Ordering::Acquire) != SHOWN {
            return None;
        }
        let mut ip = [0; 16];
        for (half, word) in ip.chunks_exact_mut(8).zip(&self.ip) {
            half.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        let port = u16::try_from(self.port.load(Ordering::Relaxed)).ok()?;
        let reason = u8::try_from(self.reason.load(Ordering::Relaxed)).ok();
        Some(Unregistered {
            pid: self.pid.load(Ordering::Relaxed),
            fd: self.fd.load(Ordering::Relaxed),
            addr: Addr { ip, port },
            reason: reason.and_then(Reason::from_code)?,
        })
    }

    /// The process that has written it.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid.load(Ordering::Relaxed)
    }

    /// Another try has failed, too.
    pub fn set_reason(&self, reason: Reason) {
        self.reason.store(reason as u32, Ordering::Relaxed);
    }

    /// The listener is closed, or registered.
    pub fn free(&self) {
        self.state.store(FREE, Ordering::Release);
    }
}

/// The places of an endpoint.
#[repr(C)]
#[derive(Debug)]
pub struct Places([Place; PLACES]);

impl Places {
    /// Notes a listener; `None` where there is no room.
    #[must_use]
    pub fn note(&self, what: &Unregistered) -> Option<&Place> {
        let (ok, no) = (Ordering::Acquire, Ordering::Relaxed);
        let is_mine = |p: &&Place| p.state.compare_exchange(FREE, TAKEN, ok, no).is_ok();
        let place = self.0.iter().find(is_mine)?;
        place.write(what);
        Some(place)
    }

    /// What stands there.
    pub fn read(&self) -> impl Iterator<Item = Unregistered> + '_ {
        self.0.iter().filter_map(Place::read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::{self, Arena};

    fn listener(fd: i32) -> Unregistered {
        let addr = Addr { ip: *b"0123456789abcdef", port: 8080 };
        Unregistered { pid: 7, fd, addr, reason: Reason::NoAgent }
    }

    #[test]
    fn a_place_says_what_was_noted_until_it_is_free() {
        let arena = Arena::map(arena::create().unwrap()).unwrap();
        let places = arena.unregistered();
        assert_eq!(places.read().count(), 0);
        let first = places.note(&listener(3)).unwrap();
        let second = places.note(&listener(4)).unwrap();
        second.set_reason(Reason::Refused);
        let expected = [listener(3), Unregistered { reason: Reason::Refused, ..listener(4) }];
        assert!(places.read().eq(expected));
        first.free();
        assert!(places.read().eq(expected[1..].iter().copied()));
        assert!(core::ptr::eq(places.note(&listener(5)).unwrap(), first));
    }

    #[test]
    fn there_is_room_for_so_many() {
        let arena = Arena::map(arena::create().unwrap()).unwrap();
        let places = arena.unregistered();
        for fd in 0..PLACES {
            assert!(places.note(&listener(i32::try_from(fd).unwrap())).is_some());
        }
        assert!(places.note(&listener(-1)).is_none());
        assert_eq!(places.read().count(), PLACES);
    }

    /// The process can write anything there.
    #[test]
    fn what_cannot_be_is_not_shown() {
        let arena = Arena::map(arena::create().unwrap()).unwrap();
        let place = arena.unregistered().note(&listener(3)).unwrap();
        for (word, wrong) in [(&place.reason, 0), (&place.reason, 300), (&place.port, 1 << 16)] {
            let right = word.swap(wrong, Ordering::Relaxed);
            assert_eq!(arena.unregistered().read().count(), 0);
            word.store(right, Ordering::Relaxed);
        }
        place.state.store(3, Ordering::Relaxed);
        assert_eq!(arena.unregistered().read().count(), 0);
    }
}
