//! Arguments of system calls where they differ from those of libc's functions.

use core::mem::MaybeUninit;
use core::ptr;

use crate::system::abi::{sigset_t, timespec};
use crate::system::clock;
use crate::system::timeout::{is_valid, nanos, of_nanos};

/// The kernel's set of signals, which is shorter than libc's.
pub struct Mask {
    set: MaybeUninit<sigset_t>,
    given: bool,
}

impl Mask {
    /// Of the set at this address, or of none. `None`: the kernel will refuse it.
    ///
    /// # Safety
    /// `set` is null, or the address of a set of `len` bytes.
    #[must_use]
    pub unsafe fn read(set: *const u8, len: usize) -> Option<Self> {
        const KERNEL_SET: usize = 8;
        let mut copy = MaybeUninit::<sigset_t>::zeroed();
        if set.is_null() {
            return Some(Self { set: copy, given: false });
        }
        if len != KERNEL_SET {
            return None;
        }
        // SAFETY: the caller's promise; a sigset_t is no shorter.
        unsafe { ptr::copy_nonoverlapping(set, copy.as_mut_ptr().cast(), KERNEL_SET) };
        Some(Self { set: copy, given: true })
    }

    /// The same as libc's functions take it.
    #[must_use]
    pub const fn get(&self) -> *const sigset_t {
        if self.given { self.set.as_ptr() } else { ptr::null() }
    }
}

/// The time that a call may wait, which the kernel writes back, and libc's functions do not.
pub struct Remaining {
    place: *mut timespec,
    asked: Option<timespec>,
    began: u64,
}

impl Remaining {
    /// Of the time at this address, from now on.
    ///
    /// # Safety
    /// `place` is null or points to a time.
    #[must_use]
    pub unsafe fn of(place: *mut timespec) -> Self {
        // SAFETY: the caller's promise.
        let asked = (!place.is_null()).then(|| unsafe { place.read_unaligned() });
        Self { place, asked, began: clock::now() }
    }

    /// The time that was asked for; null: without end.
    #[must_use]
    pub fn asked(&self) -> *const timespec {
        self.asked.as_ref().map_or(ptr::null(), ptr::from_ref)
    }

    /// Writes back what is left of it.
    ///
    /// # Safety
    /// As [`Self::of`].
    pub unsafe fn write_back(&self) {
        let Some(asked) = self.asked.filter(|t| is_valid(Some(t))) else { return };
        let spent = clock::now().saturating_sub(self.began);
        let time = of_nanos(nanos(&asked).saturating_sub(spent));
        // SAFETY: the caller's promise.
        unsafe { self.place.write_unaligned(time) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_is_as_long_as_the_kernels() {
        let set = [0b10_u8, 0, 0, 0, 0, 0, 0, 1 << 7];
        // SAFETY: a set of eight bytes, or none.
        unsafe {
            assert!(Mask::read(ptr::null(), 3).is_some_and(|mask| mask.get().is_null()));
            assert!(
                Mask::read(set.as_ptr(), 7).is_none() && Mask::read(set.as_ptr(), 128).is_none()
            );
            let mask = Mask::read(set.as_ptr(), 8).unwrap();
            let members: Vec<_> =
                (1..=64).filter(|n| libc::sigismember(mask.get(), *n) == 1).collect();
            assert_eq!(members, [2, 64]);
        }
    }

    #[test]
    fn what_is_left_of_a_time_is_written_back() {
        let mut time = timespec { tv_sec: 5, tv_nsec: 0 };
        // SAFETY: a time, or none.
        unsafe {
            let remaining = Remaining::of(&raw mut time);
            assert_eq!((*remaining.asked()).tv_sec, 5);
            let long_ago = Remaining { began: remaining.began - 2_000_000_000, ..remaining };
            long_ago.write_back();
            assert!(nanos(&time) <= 3_000_000_000, "{time:?}");
            let too_long = Remaining { began: 0, ..long_ago };
            too_long.write_back();
            assert_eq!(nanos(&time), 0);
            let without_end = Remaining::of(ptr::null_mut());
            assert!(without_end.asked().is_null());
            without_end.write_back();
        }
    }

    #[test]
    fn what_is_no_time_stays() {
        let mut time = timespec { tv_sec: -1, tv_nsec: 7 };
        // SAFETY: it is there.
        unsafe { Remaining::of(&raw mut time).write_back() };
        assert_eq!((time.tv_sec, time.tv_nsec), (-1, 7));
    }
}
