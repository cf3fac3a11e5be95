//! Whether the process is under a filter of system calls (seccomp(2)).

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

use rustix::thread::{SecureComputingMode, secure_computing_mode};

/// As it was when it was asked for: [`NOT_KNOWN`], ...
static FILTERED: AtomicU32 = AtomicU32::new(NOT_KNOWN);
const NOT_KNOWN: u32 = 0;
const NO: u32 = 1;
const YES: u32 = 2;

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
