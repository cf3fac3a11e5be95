//! How long a thread looks for more before it sleeps: as long as looking has paid lately.

use std::time::{Duration, Instant};

/// The longest look: what a sleep and a wake-up cost in a virtual machine.
const MOST: Duration = Duration::from_micros(50);
/// The shortest look that is not none.
const LEAST: Duration = Duration::from_micros(2);

/// The length of looks, and when the one that goes on ends.
#[derive(Debug)]
pub struct Spin {
    budget: Duration,
    began: Option<Instant>,
    slept: Option<Instant>,
}

impl Default for Spin {
    fn default() -> Self {
        Self { budget: MOST, began: None, slept: None }
    }
}

impl Spin {
    /// The thread has been woken up: where that came soon, a longer look would have spared the sleep.
    pub fn woken(&mut self, now: Instant) {
        if let Some(slept) = self.slept.take()
            && now.saturating_duration_since(slept) < MOST
        {
            self.budget = (self.budget * 2).clamp(LEAST, MOST);
        }
    }

    /// Something was found, so the next look is a new one.
    pub fn found(&mut self) {
        if self.began.take().is_some() {
            self.budget = (self.budget * 2).clamp(LEAST, MOST);
        }
    }

    /// Nothing was found: true to look again, false to sleep.
    pub fn goes_on(&mut self, now: Instant) -> bool {
        let began = *self.began.get_or_insert(now);
        if now.saturating_duration_since(began) < self.budget {
            return true;
        }
        self.began = None;
        self.slept = Some(now);
        self.budget /= 2;
        if self.budget < LEAST {
            self.budget = Duration::ZERO;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_micros(1);

    /// Looks from `at` on; how long it did.
    fn look(spin: &mut Spin, at: Instant) -> Duration {
        let mut now = at;
        while spin.goes_on(now) {
            now += STEP;
        }
        now - at
    }

    #[test]
    fn looks_that_find_nothing_become_short_and_end() {
        let (mut spin, mut now) = (Spin::default(), Instant::now());
        assert_eq!(look(&mut spin, now), MOST);
        for _ in 0..10 {
            now += Duration::from_secs(1);
            spin.woken(now);
            look(&mut spin, now);
        }
        assert_eq!(look(&mut spin, now), Duration::ZERO);
    }

    #[test]
    fn short_sleeps_bring_them_back() {
        let (mut spin, mut now) = (Spin::default(), Instant::now());
        for _ in 0..10 {
            now += Duration::from_secs(1);
            look(&mut spin, now);
        }
        for _ in 0..10 {
            assert!(!spin.goes_on(now) || spin.budget > Duration::ZERO);
            spin.woken(now + STEP);
            spin.found();
        }
        assert!(look(&mut spin, now) > Duration::ZERO);
    }
}
