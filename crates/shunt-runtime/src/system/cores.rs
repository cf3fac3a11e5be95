//! How many processors there are, and how many of them this process may use: its affinity, and its group's quota.

use core::num::NonZero;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// As it was last asked for; 0: never.
static KNOWN: AtomicUsize = AtomicUsize::new(0);

/// The same of the machine's. 0: it is not known.
static ONLINE: AtomicU32 = AtomicU32::new(0);

/// Asks for it, by system calls.
pub fn ask() {
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online");
    ONLINE.store(online.ok().and_then(|list| count(&list)).unwrap_or(0), Ordering::Relaxed);
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    KNOWN.store(cores, Ordering::Relaxed);
}

/// What was found out before; 1 until then.
#[inline]
pub fn known() -> usize {
    KNOWN.load(Ordering::Relaxed).max(1)
}

/// How many the machine has, whatever this process may use; `None`: it is not known.
pub fn online() -> Option<u32> {
    Some(ONLINE.load(Ordering::Relaxed)).filter(|online| *online > 0)
}

/// How many are in such a list as the kernel writes: `0-3,8`.
fn count(list: &str) -> Option<u32> {
    let part = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let [first, last]: [u32; 2] = [first.parse().ok()?, last.parse().ok()?];
        last.checked_sub(first)?.checked_add(1)
    };
    list.trim().split(',').try_fold(0_u32, |sum, next| sum.checked_add(part(next)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_counted() {
        for (list, expected) in [("0\n", 1), ("0-1\n", 2), ("0-3,8,10-11\n", 7)] {
            assert_eq!(count(list), Some(expected), "{list}");
        }
        for wrong in ["", "\n", "0-", "3-1", "a", "0-4294967295"] {
            assert_eq!(count(wrong), None, "{wrong}");
        }
    }
}
