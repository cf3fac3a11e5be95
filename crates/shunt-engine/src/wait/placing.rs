//! Where a thread that is woken is to run.
//!
//! A scheduler leaves a thread on the processor on which it slept, unless another one idles. Where none does, two who answer each
//! other may stay on two processors for good, and each message then interrupts a processor that has other work: on a virtual
//! machine that costs more than the message itself. Kernel TCP tells the scheduler that whoever sends will wait
//! (`WF_SYNC` in `kernel/sched/fair.c`), so both come together there; futex(2) and eventfd(2) cannot say it. So a thread that is
//! nearly always woken from one other processor goes there itself.

use shunt_shm::waker::Waker;

use crate::spin::Nanos;

/// What a thread has learnt of the processors of those who wake it.
///
/// It goes to another one when many wake-ups have come from there, and hardly one from its own: whoever serves peers on several
/// processors stays. Where processors idle, the next wake-up takes it to one of those all the same, so it has gone in vain: what
/// did not last is tried again after twice as many wake-ups, up to 4096. Two who are woken by each other do not both go at
/// once, as the numbers of wake-ups differ by when they come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Placing {
    /// Wake-ups from elsewhere, less [`Self::SAME`] for each from here.
    score: u32,
    /// The score at which it goes, as a power of two above [`Self::FIRST`].
    doubled: u32,
    /// Wake-ups since it went.
    stayed: u32,
    /// Where it is to go before it sleeps next.
    to: Option<u32>,
}

impl Placing {
    /// It knows nothing.
    pub const NEW: Self = Self { score: 0, doubled: 0, stayed: 0, to: None };
    /// The lowest score at which it goes.
    const FIRST: u32 = 64;
    const MOST_DOUBLED: u32 = 6;
    /// A wake-up from the same processor weighs as much as so many from elsewhere.
    const SAME: u32 = 3;
    /// It has gone for good, more or less, where the next time comes after so many times that score.
    const LASTS: u32 = 4;

    /// It was woken, while it runs on processor `here`.
    #[must_use]
    pub fn woken(self, by: Waker, here: u32) -> Self {
        let Some(from) = by.cpu else { return self };
        let stayed = self.stayed.saturating_add(1);
        if from == here {
            return Self { score: self.score.saturating_sub(Self::SAME), stayed, to: None, ..self };
        }
        let (score, limit) = (self.score + 1, Self::FIRST << self.doubled);
        if score < limit + Self::spread(by.at, limit) {
            return Self { score, stayed, to: None, ..self };
        }
        let doubled = if stayed >= limit * Self::LASTS {
            self.doubled / 2
        } else {
            (self.doubled + 1).min(Self::MOST_DOUBLED)
        };
        Self { score: 0, doubled, stayed: 0, to: Some(from) }
    }

    /// Less than a quarter of `limit`, by when it is.
    fn spread(at: Nanos, limit: u32) -> u32 {
        u32::try_from((at >> 10) % u64::from(limit / 4)).unwrap_or(0)
    }

    /// Where it is to go now, before it sleeps.
    #[must_use]
    pub const fn take(self) -> (Option<u32>, Self) {
        (self.to, Self { to: None, ..self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread that is woken so often. `from` says by whom; `here` where it is when it was last on such a processor. How often it
    /// went, and where to last.
    fn wakes(
        times: u32,
        from: impl Fn(u32) -> u32,
        here: impl Fn(u32, u32) -> u32,
    ) -> (Vec<u32>, u32) {
        let (mut placing, mut at, mut went) = (Placing::default(), 0, Vec::new());
        for n in 0..times {
            at = here(n, at);
            let by = Waker { at: u64::from(n) * 5_000, cpu: Some(from(n)) };
            let (to, next) = placing.woken(by, at).take();
            placing = next;
            if let Some(to) = to {
                at = to;
                went.push(n);
            }
        }
        (went, at)
    }

    #[test]
    fn who_is_woken_from_elsewhere_goes_there_once() {
        let (went, at) = wakes(100_000, |_| 3, |_, at| at);
        assert_eq!((went.len(), at), (1, 3));
        assert!((Placing::FIRST..Placing::FIRST * 2).contains(&went[0]), "{went:?}");
    }

    #[test]
    fn who_is_taken_away_by_each_wake_up_tries_it_ever_more_seldom() {
        let (went, _) = wakes(100_000, |_| 3, |_, _| 0);
        assert!((20..=30).contains(&went.len()), "{went:?}");
        let gaps: Vec<_> = went.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(gaps[..5].windows(2).all(|pair| pair[1] > pair[0]), "{gaps:?}");
        // Then it stays where it goes, and is taken away now and then: it follows within a moment again.
        let balanced = |n, at| if n < 100_000 || n % 50_000 == 0 { 0 } else { at };
        let (went, _) = wakes(2_000_000, |_| 3, balanced);
        let late = went.iter().filter(|n| **n >= 1_000_000).map(|n| n % 50_000);
        let late: Vec<_> = late.collect();
        assert!(late.len() == 20 && late.iter().all(|n| *n < 100), "{late:?}");
    }

    #[test]
    fn who_is_woken_from_several_processors_stays() {
        for share in [2, 3, 4] {
            let (went, _) = wakes(100_000, |n| u32::from(n % share > 0), |_, at| at);
            assert!(went.is_empty(), "{share}: {went:?}");
        }
        let (went, _) = wakes(100_000, |n| u32::from(n % 8 > 0), |_, at| at);
        assert_eq!(went.len(), 1, "{went:?}");
        // Whose processor is not known wakes from nowhere.
        let by = Waker { at: 0, cpu: None };
        assert_eq!(Placing::default().woken(by, 1), Placing::default());
    }

    /// Two that wake each other in turn, on two processors.
    #[test]
    fn two_who_wake_each_other_come_together() {
        for ahead in 0..200 {
            let (mut sides, mut at, mut went) = ([Placing::default(); 2], [0, 1], 0);
            for n in 0..20_000_u32 {
                let me = (n % 2) as usize;
                let by = Waker { at: u64::from(n + ahead) * 2_500, cpu: Some(at[1 - me]) };
                let (to, next) = sides[me].woken(by, at[me]).take();
                sides[me] = next;
                if let Some(to) = to {
                    (at[me], went) = (to, went + 1);
                }
            }
            assert!(at[0] == at[1] && went <= 5, "{ahead}: {at:?} after {went}");
        }
    }
}
