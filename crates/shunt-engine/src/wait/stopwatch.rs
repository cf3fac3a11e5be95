//! How long a wait lasts, by times that the waiter has read for other purposes.

use crate::spin::Nanos;

/// A spin: when it began, and when it ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Spell {
    /// Its beginning.
    pub from: Nanos,
    /// Its end.
    pub to: Nanos,
}

/// When the wait that is under way began: with its first spin or sleep. Naps in which nothing came do not end it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stopwatch {
    /// 0: none is under way.
    began: Nanos,
}

impl Stopwatch {
    /// A spin has found nothing, or a sleep begins.
    pub const fn goes_on(&mut self, since: Nanos) {
        if self.began == 0 {
            self.began = since;
        }
    }

    /// It is over; returns how long it has lasted, where it began no later than at `since`.
    pub const fn ends(&mut self, since: Nanos, now: Nanos) -> Nanos {
        self.goes_on(since);
        let lasted = now.saturating_sub(self.began);
        self.began = 0;
        lasted
    }

    /// It is over, and nobody knows when that was.
    pub const fn stops(&mut self) {
        self.began = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_lasts_from_its_first_spin_through_all_of_its_naps() {
        let mut stopwatch = Stopwatch::default();
        assert_eq!(stopwatch.ends(100, 130), 30, "a spin alone");
        stopwatch.goes_on(200);
        stopwatch.goes_on(250);
        stopwatch.goes_on(900);
        assert_eq!(stopwatch.ends(950, 1000), 800);
        assert_eq!(stopwatch.ends(2000, 2001), 1, "the next one");
        stopwatch.goes_on(3000);
        stopwatch.stops();
        assert_eq!(stopwatch.ends(4000, 4005), 5);
    }
}
