//! How many processors this process may use: its affinity, and its group's quota.

use core::num::NonZero;
use core::sync::atomic::{AtomicUsize, Ordering};

/// As it was last asked for; 0: never.
static KNOWN: AtomicUsize = AtomicUsize::new(0);

/// Asks for it, by system calls.
pub fn ask() {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    KNOWN.store(cores, Ordering::Relaxed);
}

/// What was found out before; 1 until then.
#[inline]
pub fn known() -> usize {
    KNOWN.load(Ordering::Relaxed).max(1)
}
