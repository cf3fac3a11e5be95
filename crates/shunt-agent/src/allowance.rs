//! The share of the agent's time that a client may take.

use std::time::Instant;

use crate::config::Limits;

/// What a report costs, in messages of a library: it looks at every connection.
pub(crate) const REPORT_COST: u32 = 20;

/// What the first message of a client costs its account: memory is made for it.
pub(crate) const INTRODUCTION_COST: u32 = 20;

/// Messages that may still be sent: a token bucket.
#[derive(Debug)]
pub(crate) struct Allowance {
    left: u32,
    at: Instant,
    /// So many times what the limits say.
    scale: u32,
}

/// All clients of one account together may send so many times as much as one client.
const ACCOUNT: u32 = 4;

impl Allowance {
    pub(crate) const fn new(limits: &Limits, now: Instant) -> Self {
        Self { left: limits.burst, at: now, scale: 1 }
    }

    /// Of all clients of an account.
    pub(crate) const fn of_account(limits: &Limits, now: Instant) -> Self {
        let left = limits.burst.saturating_mul(ACCOUNT);
        Self { left, at: now, scale: ACCOUNT }
    }

    /// True when nothing was taken for a while.
    pub(crate) fn is_full(&mut self, limits: &Limits) -> bool {
        self.covers(limits.burst.saturating_mul(self.scale), limits, Instant::now())
    }

    /// Takes `cost`; `false` when there is not so much left.
    pub(crate) fn take(&mut self, cost: u32, limits: &Limits, now: Instant) -> bool {
        let covered = self.covers(cost, limits, now);
        if covered {
            self.left -= cost;
        }
        covered
    }

    /// True when there is so much left.
    pub(crate) fn covers(&mut self, cost: u32, limits: &Limits, now: Instant) -> bool {
        let nanos = now.duration_since(self.at).as_nanos();
        let rate = u128::from(limits.rate) * u128::from(self.scale);
        let earned = nanos.saturating_mul(rate) / 1_000_000_000;
        if earned > 0 {
            let earned = u32::try_from(earned).unwrap_or(u32::MAX);
            self.left =
                self.left.saturating_add(earned).min(limits.burst.saturating_mul(self.scale));
            self.at = now;
        }
        self.left >= cost
    }
}
