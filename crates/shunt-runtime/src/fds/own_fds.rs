//! The library's own file descriptors.
//!
//! They sit at high numbers, close-on-exec, so that the program's descriptors get the numbers they
//! would have without Shunt. The program does not know of them: it can't close them, and when it
//! duplicates another descriptor onto the number of one, that one moves out of the way
//! ([`relocate`]). So an [`OwnFd`] is a place in a fixed slab where the number stands, not the
//! number itself.

use core::ffi::c_int;
use core::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::process::Resource;
use shunt_wire::knob::LEAST_DESCRIPTORS;

use crate::fds::fd_table::{self, Entry, Kind};
use crate::threads::signals::Uncancelled;

/// Most descriptors that the library holds at a time.
pub const SLOTS: usize = 4096;

/// Own descriptors are sought in the last so many numbers below the limit.
const BAND: u64 = 64;

/// Own descriptors stay below this number even where RLIMIT_NOFILE permits more: the kernel's table
/// reaches up to the largest descriptor, and every fork copies all of it (measured: a descriptor at
/// 16,000 makes a fork and exit of 150 µs 100 µs longer, one at 4,000 25 µs).
const CEILING: u64 = 4096;

const FREE: c_int = -1;
/// Reserved, its number not yet known.
const CLAIMED: c_int = -2;

/// In one page with the first numbers, which a forked child writes to when it closes its parent's.
#[repr(C)]
struct Slab {
    /// How many there are.
    in_use: AtomicUsize,
    /// Where the next one is looked for.
    next: AtomicUsize,
    numbers: [AtomicI32; SLOTS],
}

static SLAB: Slab = Slab {
    in_use: AtomicUsize::new(0),
    next: AtomicUsize::new(0),
    numbers: [const { AtomicI32::new(FREE) }; SLOTS],
};

/// A free place, which holds `fd` from now on.
fn claim(fd: c_int) -> Option<u16> {
    let start = SLAB.next.load(Ordering::Relaxed);
    let index = (0..SLOTS).map(|n| (start + n) % SLOTS).find(|index| {
        let slot = &SLAB.numbers[*index];
        slot.load(Ordering::Relaxed) == FREE
            && slot.compare_exchange(FREE, fd, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    })?;
    SLAB.next.store(index + 1, Ordering::Relaxed);
    SLAB.in_use.fetch_add(1, Ordering::Relaxed);
    u16::try_from(index).ok()
}

/// The place is free again.
fn free(index: u16) {
    SLAB.numbers[usize::from(index)].store(FREE, Ordering::Release);
    SLAB.next.store(index.into(), Ordering::Relaxed);
    SLAB.in_use.fetch_sub(1, Ordering::Relaxed);
}

/// True where no more are to be kept for the sake of peers, for whom there are so many: the program, or the library for what it
/// cannot do without, may need them.
#[must_use]
pub fn are_enough(held: usize) -> bool {
    held >= part(8) || in_use() >= SLOTS - SLOTS / 8
}

/// True where one more may be taken for something that goes without, too.
#[must_use]
pub fn has_room() -> bool {
    in_use() < part(4)
}

/// One in so many of the descriptors that the program may have.
fn part(of: u64) -> usize {
    let limit = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(limit / of).map_or(SLOTS / 2, |most| most.min(SLOTS / 2))
}

/// A descriptor of the library's own; closed when dropped.
#[derive(Debug)]
pub struct OwnFd {
    index: u16,
}

impl OwnFd {
    /// The number as it is now. Use it at once: it may change (see [`relocate`]).
    #[inline]
    #[must_use]
    pub fn raw(&self) -> c_int {
        SLAB.numbers[usize::from(self.index)].load(Ordering::Acquire)
    }

    /// For a system call, at once.
    #[inline]
    #[must_use]
    pub fn borrow(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as self lives; a relocation keeps the old number
        // open until the program's own dup2 replaces it.
        unsafe { BorrowedFd::borrow_raw(self.raw()) }
    }
}

impl OwnFd {
    /// Makes it the program's again, as it was before [`adopt_here`].
    pub fn give_back(self) {
        let index = self.into_place();
        let slot = &SLAB.numbers[usize::from(index)];
        fd_table::replace_if(slot.load(Ordering::Acquire), Entry::own(index), Entry::KERNEL);
        free(index);
    }

    /// Its place, for what can only keep a number: [`Self::from_place`] with one more takes it back.
    #[must_use]
    pub fn into_place(self) -> u16 {
        let index = self.index;
        core::mem::forget(self);
        index
    }

    /// Its place, while it stays.
    #[must_use]
    pub const fn place(&self) -> u16 {
        self.index
    }

    /// The descriptor of a place plus one; `None` for 0.
    #[must_use]
    pub fn from_place(place: u32) -> Option<Self> {
        let index = u16::try_from(place.checked_sub(1)?).ok()?;
        (usize::from(index) < SLOTS).then_some(Self { index })
    }

    /// The number of the descriptor at a place.
    #[must_use]
    pub fn raw_at(place: u16) -> c_int {
        SLAB.numbers.get(usize::from(place)).map_or(-1, |slot| slot.load(Ordering::Acquire))
    }
}

/// The highest number of them; `None` when there are none.
#[must_use]
pub fn highest() -> Option<c_int> {
    SLAB.numbers.iter().map(|slot| slot.load(Ordering::Relaxed)).max().filter(|fd| *fd >= 0)
}

/// How many there are.
#[must_use]
pub fn in_use() -> usize {
    SLAB.in_use.load(Ordering::Relaxed)
}

impl Drop for OwnFd {
    fn drop(&mut self) {
        let slot = &SLAB.numbers[usize::from(self.index)];
        let fd = slot.load(Ordering::Acquire);
        if fd_table::replace_if(fd, Entry::own(self.index), Entry::KERNEL) {
            // SAFETY: the table said that the number is this descriptor's.
            unsafe { rustix::io::close(fd) };
        }
        free(self.index);
    }
}

/// Takes `fd` over as one of the library's own: moves it to a high number and hides it.
///
/// # Errors
/// `MFILE` when the slab is full or the table does not cover the number; `fd` is then closed.
pub fn adopt(fd: OwnedFd) -> Result<OwnFd, Errno> {
    let _uncancelled = Uncancelled::begin();
    let limit = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    if limit < LEAST_DESCRIPTORS {
        return Err(Errno::MFILE);
    }
    let index = claim(CLAIMED).ok_or(Errno::MFILE)?;
    let slot = &SLAB.numbers[usize::from(index)];

    let fd = move_high(fd.as_fd()).unwrap_or(fd);
    slot.store(fd.as_raw_fd(), Ordering::Release);
    if !fd_table::set(fd.as_raw_fd(), Entry::own(index)) {
        free(index);
        return Err(Errno::MFILE);
    }
    let _ = fd.into_raw_fd();
    Ok(OwnFd { index })
}

/// Makes a descriptor of the program's one of the library's own that keeps its number; `None` when there
/// are too many.
pub fn adopt_here(fd: c_int) -> Option<OwnFd> {
    let index = claim(fd)?;
    let is_set = fd_table::set(fd, Entry::own(index));
    if !is_set {
        free(index);
    }
    is_set.then_some(OwnFd { index })
}

/// A descriptor of the library's own for what `fd` stands for.
///
/// # Errors
/// As [`adopt`], and `MFILE` when there is no number to be had.
pub fn duplicate(fd: c_int) -> Result<OwnFd, Errno> {
    // SAFETY: only duplicated; if it is closed the kernel says so.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    adopt(move_high(fd).map_or_else(|| rustix::io::fcntl_dupfd_cloexec(fd, 0), Ok)?)
}

/// Moves the own descriptor behind `entry` to another number, because the program is about to put
/// something else at `fd`. The old number stays open until then. False when there is no other
/// number to be had.
pub fn relocate(fd: c_int, entry: Entry) -> bool {
    if entry.kind() != Kind::Own {
        return false;
    }
    let _uncancelled = Uncancelled::begin();
    let Some(slot) = SLAB.numbers.get(entry.own_index()) else { return false };
    // SAFETY: an own descriptor is open as long as the table names it.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    let Some(moved) = move_high(borrowed) else { return false };
    if !fd_table::set(moved.as_raw_fd(), entry) {
        return false;
    }
    if slot.compare_exchange(fd, moved.as_raw_fd(), Ordering::AcqRel, Ordering::Relaxed).is_err() {
        // Its owner dropped it meanwhile, and closes `fd`; ours goes with `moved`.
        fd_table::take(moved.as_raw_fd());
        return true;
    }
    fd_table::replace_if(fd, entry, Entry::KERNEL);
    let _ = moved.into_raw_fd();
    true
}

/// A duplicate at a high number, or `None` when every number is taken.
fn move_high(fd: BorrowedFd<'_>) -> Option<OwnedFd> {
    let limit = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    starts(limit).find_map(|min| rustix::io::fcntl_dupfd_cloexec(fd, min).ok())
}

/// Where to look for a free number, best first: the band below the limit, then from ever lower
/// numbers on (the kernel takes the lowest that is free, counted from there).
fn starts(limit: u64) -> impl Iterator<Item = c_int> {
    let top = limit.min(CEILING);
    core::iter::successors(Some(BAND), |below| Some(below * 2))
        .take_while(move |below| *below < top)
        .filter_map(move |below| c_int::try_from(top - below).ok())
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;
    use crate::testing::in_child;

    fn event() -> OwnedFd {
        eventfd(0, EventfdFlags::empty()).unwrap()
    }

    #[test]
    fn adopted_descriptors_are_high_hidden_and_close_on_exec() {
        assert!(fd_table::reserve());
        let own = adopt(event()).unwrap();
        let fd = own.raw();
        assert!(fd >= 128, "{fd}");
        assert_eq!(fd_table::lookup(fd).kind(), Kind::Own);
        let flags = rustix::io::fcntl_getfd(own.borrow()).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        assert!(in_child(|| {
            drop(own);
            fd_table::lookup(fd) == Entry::KERNEL
        }));
    }

    #[test]
    fn a_relocated_descriptor_is_the_same_file_elsewhere() {
        assert!(fd_table::reserve());
        let own = adopt(event()).unwrap();
        let old = own.raw();
        rustix::io::write(own.borrow(), &5_u64.to_ne_bytes()).unwrap();
        assert!(relocate(old, fd_table::lookup(old)));
        assert_ne!(own.raw(), old);
        assert_eq!(fd_table::lookup(old), Entry::KERNEL);
        assert_eq!(fd_table::lookup(own.raw()).kind(), Kind::Own);
        let mut value = [0; 8];
        rustix::io::read(own.borrow(), &mut value).unwrap();
        assert_eq!(u64::from_ne_bytes(value), 5);
        // SAFETY: the old number is left to whoever asked for the move: this test.
        unsafe { rustix::io::close(old) };
    }

    #[test]
    fn low_limits_are_searched_down_to_the_first_numbers() {
        assert_eq!(starts(1024).collect::<Vec<_>>(), [960, 896, 768, 512]);
        assert_eq!(starts(1 << 20).next(), Some(4096 - 64));
        assert_eq!(starts(64).count(), 0);
        assert_eq!(starts(u64::MAX).next(), Some(4096 - 64));
    }
}
