//! Waiting for what threads come to do.

use std::time::{Duration, Instant};

/// Longer than anything takes.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until it is so.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "in vain for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
