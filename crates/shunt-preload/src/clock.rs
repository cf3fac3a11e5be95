//! Time, through the vDSO.

use rustix::time::{ClockId, clock_gettime};

/// Monotonic nanoseconds.
#[inline]
#[must_use]
pub fn now() -> u64 {
    let t = clock_gettime(ClockId::Monotonic);
    t.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(t.tv_nsec.cast_unsigned())
}
