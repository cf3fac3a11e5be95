//! Doorbells of completion vectors, which come one by one as they are needed.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::os::fd::BorrowedFd;

use shunt_shm::doorbell;
use shunt_wire::agent::MAX_VECTORS;

use crate::fds::own_fds::{self, OwnFd};

/// The vector whose doorbell all hear (see [`crate::control::vectors`]).
pub const COMMON: usize = 0;

/// A place for each vector's doorbell, read without a lock.
#[derive(Debug)]
pub struct Bells([AtomicU32; MAX_VECTORS]);

impl Default for Bells {
    fn default() -> Self {
        // A doorbell's place among the library's own descriptors plus one; 0: none.
        Self([const { AtomicU32::new(0) }; MAX_VECTORS])
    }
}

impl Bells {
    /// The number of a vector's doorbell, if it is there. Use it at once: as [`OwnFd::raw`].
    #[inline]
    pub fn raw(&self, vector: usize) -> Option<i32> {
        let place = self.0.get(vector)?.load(Ordering::SeqCst).checked_sub(1)?;
        Some(OwnFd::raw_at(u16::try_from(place).ok()?))
    }

    /// True when there is one.
    pub fn has(&self, vector: usize) -> bool {
        self.raw(vector).is_some()
    }

    /// Rings for a vector. False: there is no doorbell.
    ///
    /// The caller sees to it that the doorbells stay ([`Kept`]), where they are ever taken out.
    pub fn ring(&self, vector: usize) -> bool {
        let bell = self.raw(vector);
        if let Some(bell) = bell {
            // SAFETY: a doorbell stays open as long as it has its place here.
            doorbell::ring(unsafe { BorrowedFd::borrow_raw(bell) });
        }
        bell.is_some()
    }

    /// Takes a vector's doorbell up. False: another thread was faster.
    pub fn keep(&self, vector: usize, bell: OwnFd) -> bool {
        let Some(place) = self.0.get(vector) else { return false };
        let (ok, no) = (Ordering::SeqCst, Ordering::Relaxed);
        let new = u32::from(bell.into_place()) + 1;
        let is_kept = place.compare_exchange(0, new, ok, no).is_ok();
        if !is_kept {
            drop(OwnFd::from_place(new));
        }
        is_kept
    }

    /// Closes them all; how many there were.
    fn clear(&self) -> usize {
        let bells = self.0.iter().map(|place| OwnFd::from_place(place.swap(0, Ordering::SeqCst)));
        bells.flatten().map(drop).count()
    }
}

impl Drop for Bells {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Descriptors that are kept for the sake of peers: doorbells, and processes.
static HELD: AtomicUsize = AtomicUsize::new(0);

/// So many more of them.
pub fn hold(more: usize) {
    HELD.fetch_add(more, Ordering::Relaxed);
}

/// So many less.
pub fn let_go(less: usize) {
    HELD.fetch_sub(less, Ordering::Relaxed);
}

/// True where no more of them are to be kept.
#[must_use]
pub fn are_enough() -> bool {
    own_fds::are_enough(HELD.load(Ordering::Relaxed))
}

/// In [`Kept::ringing`]: a thread gives them back.
const EMPTYING: u32 = 1 << 31;

/// Doorbells of a peer: they are given back where descriptors run out, and fetched again when they are needed again.
#[derive(Debug, Default)]
pub struct Kept {
    bells: Bells,
    /// Threads that are just ringing one of them.
    ringing: AtomicU32,
    /// One of them was rung since this was last asked.
    is_in_use: AtomicBool,
}

impl Kept {
    /// Rings for a vector. False: its doorbell is not here.
    pub fn ring(&self, vector: usize) -> bool {
        // SYNC POINT bells-kept: said before the look; whoever gives them back does it the other way round.
        let before = self.ringing.fetch_add(1, Ordering::SeqCst);
        let is_rung = before & EMPTYING == 0 && self.bells.ring(vector);
        self.ringing.fetch_sub(1, Ordering::SeqCst);
        self.is_in_use.store(true, Ordering::Relaxed);
        is_rung
    }

    /// Takes a vector's doorbell up.
    pub fn keep(&self, vector: usize, bell: OwnFd) {
        hold(usize::from(self.bells.keep(vector, bell)));
    }

    /// Gives them back, unless they were rung since it was last asked to. True when descriptors have come free.
    pub fn give_back_idle(&self) -> bool {
        let is_idle = !self.is_in_use.swap(false, Ordering::Relaxed);
        is_idle && (0..MAX_VECTORS).any(|vector| self.bells.has(vector)) && self.give_back()
    }

    fn give_back(&self) -> bool {
        let (ok, no) = (Ordering::SeqCst, Ordering::Relaxed);
        // SYNC POINT bells-kept.
        let is_free = self.ringing.compare_exchange(0, EMPTYING, ok, no).is_ok();
        if is_free {
            let_go(self.bells.clear());
            self.ringing.fetch_sub(EMPTYING, Ordering::SeqCst);
        }
        is_free
    }

    /// In a forked child: what other threads of the parent were about to do will not be done.
    pub fn forget_ringing(&self) {
        self.ringing.store(0, Ordering::Relaxed);
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let_go(self.bells.clear());
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{Timespec, epoll};

    use super::*;
    use crate::fds::fd_table;
    use crate::fds::own_fds::adopt;

    /// A doorbell, and whether it was rung since the last look.
    fn heard() -> (OwnFd, impl Fn() -> bool) {
        assert!(fd_table::reserve());
        let bell = doorbell::create().unwrap();
        let ear = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        epoll::add(&ear, &bell, epoll::EventData::new_u64(0), doorbell::RUNG).unwrap();
        let is_rung = move || {
            let mut events = Vec::with_capacity(1);
            let now = Timespec::default();
            let found = rustix::buffer::spare_capacity(&mut events);
            epoll::wait(&ear, found, Some(&now)).unwrap() == 1
        };
        assert!(is_rung(), "the start");
        (adopt(bell).unwrap(), is_rung)
    }

    #[test]
    fn the_first_to_come_is_kept() {
        let bells = Bells::default();
        let ((first, is_first_rung), (second, is_second_rung)) = (heard(), heard());
        assert!(!bells.ring(63) && !bells.ring(64));
        assert!(bells.keep(63, first) && !bells.keep(63, second));
        assert!(bells.ring(63) && bells.has(63) && !bells.has(62));
        assert!(is_first_rung() && !is_second_rung());
        assert!(!bells.keep(64, heard().0) && !bells.ring(64));
    }

    #[test]
    fn those_that_are_not_rung_are_given_back_and_no_others() {
        let kept = Kept::default();
        assert!(!kept.give_back_idle(), "there is nothing");
        let (bell, is_rung) = heard();
        kept.keep(5, bell);
        assert!(kept.ring(5) && is_rung());
        assert!(!kept.give_back_idle(), "it was rung a moment ago");
        kept.ringing.store(1, Ordering::SeqCst);
        assert!(!kept.give_back_idle(), "it is just being rung");
        kept.forget_ringing();
        assert!(kept.give_back_idle());
        assert!(!kept.ring(5) && !is_rung());
        kept.keep(5, heard().0);
        kept.ringing.store(EMPTYING, Ordering::SeqCst);
        assert!(!kept.ring(5), "another thread is at it");
        assert_eq!(kept.ringing.load(Ordering::SeqCst), EMPTYING);
    }
}
