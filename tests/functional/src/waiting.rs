//! Waiting for what is not due at once.

use std::fmt::Debug;
use std::thread;
use std::time::{Duration, Instant};

/// Time for an agent that learns of an end, or a kernel that tears a process down.
const SOON: Duration = Duration::from_secs(10);

/// Waits until `look` gives `wanted`.
///
/// # Panics
/// When it does not.
pub fn settles<T: PartialEq + Debug>(what: &str, wanted: &T, look: impl FnMut() -> T) {
    settles_or(what, wanted, look, String::new);
}

/// The same; what else there is to know when it does not.
///
/// # Panics
/// See there.
pub fn settles_or<T: PartialEq + Debug>(
    what: &str,
    wanted: &T,
    mut look: impl FnMut() -> T,
    else_: impl FnOnce() -> String,
) {
    let started = Instant::now();
    loop {
        let found = look();
        if found == *wanted {
            return;
        }
        if started.elapsed() >= SOON {
            panic!("{what}: {found:?} instead of {wanted:?}\n{}", else_());
        }
        thread::sleep(Duration::from_millis(5));
    }
}
