//! Whether the library takes up connections: not before start-up has gone well, and not after the
//! library has stepped back.

use core::sync::atomic::{AtomicBool, Ordering};

static ACTIVE: AtomicBool = AtomicBool::new(false);
static RETIRED: AtomicBool = AtomicBool::new(false);

/// True when the library may take connections up: start-up went well and `SHUNT_DISABLE` is not
/// set.
#[inline]
#[must_use]
pub fn active() -> bool {
    ACTIVE.load(Ordering::Relaxed) && !RETIRED.load(Ordering::Relaxed)
}

/// True when the library takes no more connections up, because the program makes calls that it does not see.
#[must_use]
pub fn retired() -> bool {
    ACTIVE.load(Ordering::Relaxed) && RETIRED.load(Ordering::Relaxed)
}

/// Takes no more connections up.
pub fn retire() {
    RETIRED.store(true, Ordering::Relaxed);
}

/// True when the process ends, or the library has never become active.
pub fn is_over() -> bool {
    !ACTIVE.load(Ordering::Relaxed)
}

/// Takes nothing up any more, because the process ends. True for the first who says so, if the
/// library was active.
pub fn deactivate() -> bool {
    ACTIVE.swap(false, Ordering::AcqRel)
}

/// Start-up has gone well.
pub fn activate() {
    ACTIVE.store(true, Ordering::Release);
}
