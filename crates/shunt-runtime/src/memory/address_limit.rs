//! `RLIMIT_AS`. The library's mappings count against it, though they are none of the program's business: a program that
//! limits itself gets them on top of its limit, and sees the limit that it has set. One that was limited before it began
//! leaves the library a half at most. What the library may not map stays on TCP.

use core::sync::atomic::{AtomicU64, Ordering};

use shunt_shm::{arena, capture, memfd};

use crate::activity;
use crate::control::endpoint::Endpoint;
use crate::fds::owner;
use crate::system::abi::{c_int, c_uint, pid_t, rlimit};
use crate::system::errno::KeepErrno;

/// Added for link groups that are yet to come, at least.
const ROOM: u64 = 128 << 20;

/// And what a conversation with the agent maps; its registry and proposals are small.
const CONVERSATION: u64 = (arena::LEN + capture::LEN) as u64;

const NONE: u64 = libc::RLIM_INFINITY;

/// A limit that the program has set, and what stands in its place in the kernel.
struct Widened {
    asked: Words,
    set: Words,
}

/// Of an rlimit, which signal handlers may read and set.
struct Words {
    soft: AtomicU64,
    hard: AtomicU64,
}

impl Words {
    const fn none() -> Self {
        Self { soft: AtomicU64::new(NONE), hard: AtomicU64::new(NONE) }
    }

    fn put(&self, limit: rlimit) {
        self.soft.store(limit.rlim_cur, Ordering::Relaxed);
        self.hard.store(limit.rlim_max, Ordering::Relaxed);
    }
}

static WIDENED: Widened = Widened { asked: Words::none(), set: Words::none() };

impl Widened {
    /// True when the program has set a soft limit.
    fn is_there(&self) -> bool {
        self.asked.soft.load(Ordering::Relaxed) != NONE
    }

    /// What the program is to see where the kernel says `real`: its own number wherever the kernel still has what was set
    /// for it. Another process may have set another one.
    fn shown(&self, real: rlimit) -> rlimit {
        let pick = |real: u64, set: &AtomicU64, asked: &AtomicU64| match set.load(Ordering::Relaxed)
        {
            set if set == real => asked.load(Ordering::Relaxed),
            _ => real,
        };
        rlimit {
            rlim_cur: pick(real.rlim_cur, &self.set.soft, &self.asked.soft),
            rlim_max: pick(real.rlim_max, &self.set.hard, &self.asked.hard),
        }
    }
}

/// What to set for `asked` where the library has `own` bytes besides, the kernel's hard limit is `hard`, and the program
/// takes that for `shown`. A limit that the kernel would refuse it refuses still.
fn widen(asked: rlimit, own: u64, hard: u64, shown: u64) -> rlimit {
    // No sum of finite numbers is "no limit".
    let wide =
        |limit: u64| if limit == NONE { NONE } else { limit.saturating_add(own).min(NONE - 1) };
    if asked.rlim_cur > asked.rlim_max {
        return asked;
    }
    let most = match asked.rlim_max {
        // Only a privileged program may.
        raised if raised > shown => wide(raised).max(hard.saturating_add(1)),
        kept => wide(kept).min(hard),
    };
    rlimit { rlim_cur: wide(asked.rlim_cur).min(most), rlim_max: most }
}

/// At start-up: the program has the limit that it was started with.
pub fn learn() {
    let limit = current().rlim_cur;
    if limit != NONE {
        memfd::keep_within(as_len(limit / 2));
    }
}

/// setrlimit(2), by `kernel`.
///
/// # Safety
/// As the C function.
pub unsafe fn set(
    resource: c_uint,
    limit: *const rlimit,
    kernel: impl Fn(*const rlimit) -> c_int,
) -> c_int {
    // SAFETY: null, or what the kernel reads too.
    match unsafe { limit.as_ref() } {
        Some(asked) if concerns_us(resource) => set_widened(*asked, |wide| kernel(wide)),
        _ => kernel(limit),
    }
}

/// getrlimit(2), by `kernel`.
///
/// # Safety
/// As the C function.
pub unsafe fn get(resource: c_uint, limit: *mut rlimit, kernel: impl FnOnce() -> c_int) -> c_int {
    let result = kernel();
    if result == 0 && concerns_us(resource) {
        // SAFETY: the kernel has just written there.
        unsafe { limit.write(WIDENED.shown(limit.read())) };
    }
    result
}

/// prlimit(2), by `kernel`.
///
/// # Safety
/// As the C function.
pub unsafe fn change(
    pid: pid_t,
    resource: c_uint,
    (new, old): (*const rlimit, *mut rlimit),
    kernel: impl Fn(*const rlimit) -> c_int,
) -> c_int {
    if !concerns_us(resource) || pid != 0 && pid.cast_unsigned() != std::process::id() {
        return kernel(new);
    }
    let was = WIDENED.shown(current());
    // SAFETY: null, or what the kernel reads too.
    let result = match unsafe { new.as_ref() } {
        Some(asked) => set_widened(*asked, |wide| kernel(wide)),
        None => kernel(new),
    };
    if result == 0 && !old.is_null() {
        // SAFETY: the kernel has just written there.
        unsafe { old.write(was) };
    }
    result
}

/// While another program may take the place of this one: it has the limit as it was asked for.
pub struct AsAsked(Option<rlimit>);

impl AsAsked {
    /// Begins. The hard limit stays, as the exec may fail.
    #[must_use]
    pub fn begin() -> Self {
        let _keep = KeepErrno::new();
        if !WIDENED.is_there() {
            return Self(None);
        }
        let real = current();
        put(rlimit { rlim_cur: WIDENED.shown(real).rlim_cur, ..real });
        Self(Some(real))
    }
}

impl Drop for AsAsked {
    fn drop(&mut self) {
        if let Some(real) = self.0 {
            let _keep = KeepErrno::new();
            put(real);
        }
    }
}

/// What the library has mapped.
fn mapped() -> u64 {
    memfd::unlocked().map(|range| range.len()).sum::<usize>() as u64
}

/// What it may have to map yet, beside a limit of `soft`: link groups, and what a conversation with the agent takes, which a
/// forked child begins anew.
fn to_come(soft: u64) -> u64 {
    let conversation = if Endpoint::current().is_some() { 0 } else { CONVERSATION };
    ROOM.max(soft / 4).saturating_add(conversation)
}

/// Not in a child that runs in this memory (vfork), whose limit is its own.
fn concerns_us(resource: c_uint) -> bool {
    resource == libc::RLIMIT_AS && activity::active() && owner::owns_process_state()
}

fn set_widened(asked: rlimit, kernel: impl Fn(&rlimit) -> c_int) -> c_int {
    let real = current();
    let own = if asked.rlim_cur == NONE {
        mapped()
    } else {
        mapped().saturating_add(to_come(asked.rlim_cur))
    };
    let wide = widen(asked, own, real.rlim_max, WIDENED.shown(real).rlim_max);
    let result = kernel(&wide);
    if result == 0 {
        WIDENED.asked.put(asked);
        WIDENED.set.put(wide);
        let given = match wide.rlim_cur {
            NONE => u64::MAX,
            // A hard limit may have cut it.
            cur => cur.saturating_sub(asked.rlim_cur).max(asked.rlim_cur / 2),
        };
        memfd::keep_within(as_len(given));
    }
    result
}

fn as_len(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// What the kernel has for this process.
fn current() -> rlimit {
    let limit = rustix::process::getrlimit(rustix::process::Resource::As);
    let word = |limit: Option<u64>| limit.unwrap_or(NONE);
    rlimit { rlim_cur: word(limit.current), rlim_max: word(limit.maximum) }
}

fn put(limit: rlimit) {
    let word = |limit: u64| (limit != NONE).then_some(limit);
    let limit =
        rustix::process::Rlimit { current: word(limit.rlim_cur), maximum: word(limit.rlim_max) };
    let _ = rustix::process::setrlimit(rustix::process::Resource::As, limit);
}

#[cfg(test)]
mod tests {
    use core::ffi::c_void;
    use core::ptr;

    use super::*;
    use crate::testing::exit_status;

    const HARD: u64 = 9_000;

    fn limit(rlim_cur: u64, rlim_max: u64) -> rlimit {
        rlimit { rlim_cur, rlim_max }
    }

    /// Widened by 500, where the program sees the hard limit that the kernel has.
    fn widened(soft: u64, hard: u64, kernels: u64) -> (u64, u64) {
        let wide = widen(limit(soft, hard), 500, kernels, kernels);
        (wide.rlim_cur, wide.rlim_max)
    }

    #[test]
    fn a_limit_gets_the_librarys_on_top() {
        assert_eq!(widened(1_000, 2_000, NONE), (1_500, 2_500));
        assert_eq!(widened(1_000, NONE, NONE), (1_500, NONE));
        assert_eq!(widened(NONE, NONE, NONE), (NONE, NONE));
        assert_eq!(widened(NONE - 1, NONE - 1, NONE), (NONE - 1, NONE - 1));
    }

    #[test]
    fn the_hard_limit_of_the_kernel_is_not_passed() {
        assert_eq!(widened(1_000, HARD, HARD), (1_500, HARD));
        assert_eq!(widened(HARD, HARD, HARD), (HARD, HARD));
    }

    #[test]
    fn what_the_kernel_refuses_it_refuses() {
        assert_eq!(widened(3_000, 2_000, NONE), (3_000, 2_000));
        assert!(widened(1_000, HARD + 1, HARD).1 > HARD);
        // Lowered to 2,000, which became 2,500: back to 2,100 is more than it has.
        assert!(widen(limit(1_000, 2_100), 100, 2_500, 2_000).rlim_max > 2_500);
    }

    #[test]
    fn a_child_in_this_memory_has_a_limit_of_its_own() {
        extern "C" fn child(_: *mut c_void) -> c_int {
            let asked = limit(1 << 50, NONE);
            // SAFETY: the limit is valid, and the kernel is not asked.
            unsafe {
                set(libc::RLIMIT_AS, &raw const asked, |to| c_int::from(to == &raw const asked))
            }
        }
        assert!(owner::claim());
        // As the hook does, which a test executable has not.
        owner::lend();
        activity::activate();
        let mut stack = vec![0_u128; 16 << 10];
        // SAFETY: the child has a stack of its own, which outlives it: CLONE_VFORK waits.
        let pid = unsafe {
            let top = stack.as_mut_ptr_range().end.cast();
            let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
            libc::clone(child, top, flags, ptr::null_mut())
        };
        activity::deactivate();
        assert_eq!(exit_status(pid), 1, "it gets what it asks for");
        assert!(!WIDENED.is_there());
    }

    #[test]
    fn the_program_sees_its_own_numbers() {
        let known = Widened { asked: Words::none(), set: Words::none() };
        let seen = |real: rlimit| {
            let seen = known.shown(real);
            (seen.rlim_cur, seen.rlim_max)
        };
        assert_eq!(seen(limit(7, NONE)), (7, NONE));
        known.asked.put(limit(1_000, 2_000));
        known.set.put(limit(1_500, 2_500));
        assert_eq!(seen(limit(1_500, 2_500)), (1_000, 2_000));
        // Another process has set one of them.
        assert_eq!(seen(limit(700, 2_500)), (700, 2_000));
    }
}
