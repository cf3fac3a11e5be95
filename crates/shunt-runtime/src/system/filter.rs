//! Whether the process is under a filter of system calls (seccomp(2)).

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

use rustix::thread::{SecureComputingMode, secure_computing_mode};

/// As far as that is known: [`NOT_KNOWN`], ...
static FILTERED: AtomicU32 = AtomicU32::new(NOT_KNOWN);
const NOT_KNOWN: u32 = 0;
const NO: u32 = 1;
const YES: u32 = 2;

/// It is about to be: threads whose calls are under way are to make no such calls from now on.
pub fn comes() {
    FILTERED.store(YES, Relaxed);
}

/// True when it is, or may be. A filter may kill for a call that hardly any program makes, so the library does without such calls
/// then.
pub fn is_there() -> bool {
    let known = FILTERED.load(Relaxed);
    if known != NOT_KNOWN {
        return known == YES;
    }
    let is_there = !matches!(secure_computing_mode(), Ok(SecureComputingMode::Disabled));
    FILTERED.store(if is_there { YES } else { NO }, Relaxed);
    is_there
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::in_child;
    use crate::threads::futexes::can_sleep_on;

    #[test]
    fn one_that_comes_is_there_for_those_who_have_asked_before() {
        assert!(in_child(|| {
            let before = is_there();
            let could = can_sleep_on(2);
            comes();
            before != could && is_there() && !can_sleep_on(2) && can_sleep_on(1)
        }));
    }
}
