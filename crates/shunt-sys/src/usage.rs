//! What ended children have cost.

use std::mem::MaybeUninit;
use std::time::Duration;

/// Resources that processes have used.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Usage {
    /// Processor time, in user and in kernel mode.
    pub cpu: Duration,
    /// Context switches, of both kinds.
    pub switches: u64,
}

/// Of all children, and theirs, that this process has waited for (`RUSAGE_CHILDREN`).
#[must_use]
pub fn of_children() -> Usage {
    let mut room = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the room is live; the call fills it, and all zeroes is a valid value if it fails.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_CHILDREN, room.as_mut_ptr());
        room.assume_init()
    };
    let time = |t: libc::timeval| {
        let micros = u64::try_from(t.tv_usec).unwrap_or(0);
        Duration::from_secs(u64::try_from(t.tv_sec).unwrap_or(0)) + Duration::from_micros(micros)
    };
    let count = |n: libc::c_long| u64::try_from(n).unwrap_or(0);
    Usage {
        cpu: time(usage.ru_utime) + time(usage.ru_stime),
        switches: count(usage.ru_nvcsw) + count(usage.ru_nivcsw),
    }
}
