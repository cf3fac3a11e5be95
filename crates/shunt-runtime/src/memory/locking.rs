//! mlockall(2). Of the library's memory, most of which is never used, nothing is locked: all would be brought in.

use core::ops::Range;
use core::ptr;

use rustix::mm::{mlock, munlock};
use rustix::process::{Resource, getrlimit};
use shunt_shm::memfd;

use crate::activity;
use crate::system::abi::c_int;
use crate::system::errno::{self, KeepErrno};

/// Locks what the program has mapped, by `kernel`.
pub fn lock_all(flags: c_int, kernel: impl Fn(c_int) -> c_int) -> c_int {
    if !activity::active() || flags & libc::MCL_CURRENT == 0 {
        return kernel(flags);
    }
    // What is mapped counts as locked, and is not brought in.
    match kernel(flags | libc::MCL_ONFAULT) {
        0 => {
            let _keep = KeepErrno::new();
            for ours in memfd::unlocked() {
                // SAFETY: an unlocked page is where it was.
                let _ =
                    unsafe { munlock(ptr::with_exposed_provenance_mut(ours.start), ours.len()) };
            }
            if flags & libc::MCL_ONFAULT == 0 {
                if all_but_ours().is_none() {
                    // Without /proc.
                    return kernel(flags);
                }
                if flags & libc::MCL_FUTURE != 0 {
                    kernel(libc::MCL_FUTURE);
                }
            }
            0
        }
        // Kernels before 4.4, and flags that there are not.
        _ if errno::get() == libc::EINVAL => kernel(flags),
        // More is mapped than the program may lock, but maybe not by the program.
        failed if errno::get() == libc::ENOMEM && is_permitted() => {
            let _keep = KeepErrno::new();
            if flags & libc::MCL_FUTURE != 0 && kernel(flags & !libc::MCL_CURRENT) < 0 {
                return failed;
            }
            all_but_ours().map_or(failed, |()| 0)
        }
        failed => failed,
    }
}

/// Everything that is mapped but the library's; `None` where the kernel does not tell.
fn ranges() -> Option<Vec<Range<usize>>> {
    let mut ours: Vec<Range<usize>> = memfd::unlocked().collect();
    ours.sort_unstable_by_key(|range| range.start);
    Some(without(shunt_sys::memory::mappings()?.into_iter(), &ours))
}

/// What is left of `all` without `ours`, which begin in order.
fn without(all: impl Iterator<Item = Range<usize>>, ours: &[Range<usize>]) -> Vec<Range<usize>> {
    let mut left = Vec::new();
    for mapped in all {
        let mut from = mapped.start;
        for own in ours.iter().filter(|own| own.start < mapped.end && mapped.start < own.end) {
            left.push(from..own.start.max(from));
            from = own.end.min(mapped.end);
        }
        left.push(from..mapped.end);
    }
    left.retain(|range| !range.is_empty());
    left
}

/// Locks and brings in. As in mlockall(2), it does no harm that some of it cannot be brought in.
fn all_but_ours() -> Option<()> {
    for range in ranges()? {
        // SAFETY: locked pages are where they were.
        let _ = unsafe { mlock(ptr::with_exposed_provenance_mut(range.start), range.len()) };
    }
    Some(())
}

/// True when the program may lock as much as it has mapped itself.
fn is_permitted() -> bool {
    let limit = getrlimit(Resource::Memlock).current;
    let mapped = || ranges().map(|all| all.iter().map(Range::len).sum::<usize>() as u64);
    limit.is_some_and(|limit| mapped().is_some_and(|mapped| mapped <= limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ours_is_left_out() {
        let left = |ours: &[(usize, usize)]| {
            let ours: Vec<_> = ours.iter().map(|(start, end)| *start..*end).collect();
            let left = without([10..20, 30..40].into_iter(), &ours);
            left.into_iter().map(|range| (range.start, range.end)).collect::<Vec<_>>()
        };
        assert_eq!(left(&[]), [(10, 20), (30, 40)]);
        assert_eq!(left(&[(12, 14), (16, 18)]), [(10, 12), (14, 16), (18, 20), (30, 40)]);
        assert_eq!(left(&[(0, 12), (18, 35), (39, 50)]), [(12, 18), (35, 39)]);
        assert_eq!(left(&[(10, 20)]), [(30, 40)]);
        assert_eq!(left(&[(20, 30), (40, 50)]), [(10, 20), (30, 40)]);
        assert_eq!(left(&[(0, 50)]), []);
    }
}
