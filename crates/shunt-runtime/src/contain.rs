//! The end of panics.

use core::sync::atomic::{AtomicU64, Ordering};
use std::panic::{self, AssertUnwindSafe};

use shunt_wire::counter::Counter;

use crate::control::endpoint;
use crate::threads::signals::Uncancelled;

/// Panics that were contained since the program started.
pub static PANICS: AtomicU64 = AtomicU64::new(0);

/// Makes panics silent. For the constructor.
pub fn silence_panics() {
    panic::set_hook(Box::new(|_| {}));
}

/// Runs `work` and contains its panic, for entries that are not hooked functions (constructor,
/// fork handlers). `work` must hold no cancellation point. True when it did not panic.
pub fn contain(work: impl FnOnce()) -> bool {
    match panic::catch_unwind(AssertUnwindSafe(work)) {
        Ok(()) => true,
        Err(payload) => {
            dispose(payload);
            false
        }
    }
}

/// The same for work that may hold a cancellation point, which is none then.
pub fn contain_uncancelled(work: impl FnOnce()) -> bool {
    let _uncancelled = Uncancelled::begin();
    contain(work)
}

/// Counts a panic and drops what it carried; a panic in that very drop is left where it is.
fn dispose(payload: Box<dyn core::any::Any + Send>) {
    PANICS.fetch_add(1, Ordering::Relaxed);
    endpoint::count(Counter::Contained, 1);
    if let Err(second) = panic::catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        core::mem::forget(second);
    }
}

/// Panics that were contained, for tests.
#[cfg(feature = "points")]
#[unsafe(no_mangle)]
pub extern "C" fn shunt_points_contained() -> core::ffi::c_ulong {
    PANICS.load(Ordering::Relaxed)
}
