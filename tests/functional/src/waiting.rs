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
pub fn settles<T: PartialEq + Debug>(what: &str, wanted: &T, mut look: impl FnMut() -> T) {
    let started = Instant::now();
    loop {
        let found = look();
        if found == *wanted {
            return;
        }
        assert!(started.elapsed() < SOON, "{what}: {found:?} instead of {wanted:?}");
        thread::sleep(Duration::from_millis(5));
    }
}
