//! How many threads of a process spin at a time.
//!
//! A spinner that nobody can answer for want of a processor spins in vain. So only some threads of a process do it for
//! longer than a moment: each has a place, which it renews while it spins. A place that was not renewed is free: a thread
//! may have been cancelled, or gone on elsewhere from a signal handler.

use shunt_shm::sync::{AtomicU64, Ordering};

use crate::spin::Nanos;

/// A place is free when it was not renewed for so long.
const LEFT: Nanos = 5_000_000;

/// A spinner's place, until it is dropped.
#[derive(Debug)]
pub struct Place<'a>(&'a AtomicU64);

/// A place among these; `None`: all are taken.
pub fn enter(places: &[AtomicU64], now: Nanos) -> Option<Place<'_>> {
    places.iter().find_map(|place| {
        let renewed = place.load(Ordering::Relaxed);
        // One that was renewed later than now belongs to somebody who looked at the clock after this thread.
        let is_free = renewed == 0 || now.saturating_sub(renewed) > LEFT;
        let (ok, no) = (Ordering::Relaxed, Ordering::Relaxed);
        let is_mine = is_free && place.compare_exchange(renewed, now.max(1), ok, no).is_ok();
        is_mine.then(|| Place(place))
    })
}

impl Place<'_> {
    /// It spins still.
    pub fn renew(&self, now: Nanos) {
        self.0.store(now.max(1), Ordering::Relaxed);
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_spin_as_there_are_places() {
        let places = [const { AtomicU64::new(0) }; 2];
        let first = enter(&places, 0).expect("free");
        let _second = enter(&places, 10).expect("free");
        assert!(enter(&places, 20).is_none());
        drop(first);
        assert!(enter(&places, 30).is_some());
        assert!(enter(&[], 40).is_none());
    }

    #[test]
    fn who_has_gone_without_a_word_leaves_its_place() {
        let places = [const { AtomicU64::new(0) }; 1];
        core::mem::forget(enter(&places, 100));
        assert!(enter(&places, 100 + LEFT).is_none());
        let mine = enter(&places, 101 + LEFT).expect("left");
        mine.renew(LEFT * 3);
        assert!(enter(&places, LEFT * 3 + 1).is_none(), "it was renewed");
        assert!(enter(&places, 7).is_none(), "later than now");
    }
}
