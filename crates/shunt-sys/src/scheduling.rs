//! How the kernel schedules the calling thread.

use core::ffi::c_int;

use crate::raw::syscall;

/// True when it shares its processor with all others by a fair share (`SCHED_OTHER`, `SCHED_BATCH`, `SCHED_IDLE`). One of the other
/// policies may keep a processor for as long as it likes: sched(7).
#[must_use]
pub fn is_fair() -> bool {
    // SAFETY: reads this thread's policy, and no memory.
    let policy = unsafe { syscall(libc::SYS_sched_getscheduler, [0; 5]) };
    let policy = policy.ok().and_then(|policy| c_int::try_from(policy).ok());
    matches!(policy, Some(libc::SCHED_OTHER | libc::SCHED_BATCH | libc::SCHED_IDLE))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(policy: libc::c_int, priority: libc::c_int) -> bool {
        let param = libc::sched_param { sched_priority: priority };
        // SAFETY: this thread's alone; the parameters are live.
        unsafe { libc::sched_setscheduler(0, policy, &raw const param) == 0 }
    }

    #[test]
    fn a_thread_of_real_time_is_not() {
        assert!(is_fair());
        let policies = [libc::SCHED_BATCH, libc::SCHED_IDLE, libc::SCHED_FIFO, libc::SCHED_RR];
        for (policy, fair) in policies.into_iter().zip([true, true, false, false]) {
            // Not without privileges.
            if set(policy, libc::c_int::from(!fair)) {
                assert_eq!(is_fair(), fair, "{policy}");
            }
            assert!(set(libc::SCHED_OTHER, 0) || policy == libc::SCHED_IDLE);
        }
    }
}
