//! What a service manager passes to a program of our own (never the library): sd_listen_fds(3).

use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::{env, process};

/// The first descriptor that is passed.
const FIRST: i32 = 3;

/// The descriptors that were passed to this process, each with its name, close-on-exec. The second
/// call finds none.
#[must_use]
pub fn take() -> Vec<(String, OwnedFd)> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let number = |name| env::var(name).ok().and_then(|v| v.parse::<u32>().ok());
    if number("LISTEN_PID") != Some(process::id()) || TAKEN.swap(true, Ordering::Relaxed) {
        return Vec::new();
    }
    let count = number("LISTEN_FDS").and_then(|n| i32::try_from(n).ok()).unwrap_or(0);
    let names = env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':');
    let mut passed = Vec::new();
    for fd in FIRST..FIRST.saturating_add(count) {
        // SAFETY: sets a flag of a descriptor that nothing else in this process knows; fails when
        // there is none of that number.
        if unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } != 0 {
            break;
        }
        // SAFETY: it is open, and by the protocol, checked above, it was passed to this very process
        // to take. Nothing else takes it: this place is reached once.
        let owned = unsafe { OwnedFd::from_raw_fd(fd) };
        passed.push((names.next().unwrap_or_default().to_owned(), owned));
    }
    passed
}
