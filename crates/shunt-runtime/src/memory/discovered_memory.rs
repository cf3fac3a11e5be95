//! Memory that the program has not got of the library, and from which it may send without copies all the same: shared
//! mappings of memfds that nobody can cut short, found when the program makes them.
//!
//! A peer maps the memory, and must never get `SIGBUS` for what becomes of it. So it has to be sealed
//! (`F_SEAL_SHRINK`), which only memfds can be. The seals are looked at when the program first sends from it, since they are often
//! set after it was mapped. All other memory is copied by the call.
//!
//! The hooks run inside of the program's allocator, in signal handlers, and after a fork: they take no memory, wait for
//! nobody for long, and ask the kernel nothing about mappings that are private, anonymous or small. A mapping that is
//! made by an instruction of the program's own is not seen, and copied.

use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};
use std::os::fd::BorrowedFd;

use rustix::fs::{OFlags, SealFlags, fcntl_get_seals, fstat};
use shunt_sys::fds::reopen;

use crate::activity;
use crate::fds::own_fds;
use crate::fds::owner;
use crate::memory::exports::{self, Found, Memory};
use crate::memory::mappings::Window;
use crate::system::abi::{c_int, c_void};
use crate::system::errno::KeepErrno;

/// Before the program has asked for `SO_ZEROCOPY` smaller mappings are not looked at: each that is takes one of the
/// program's descriptors, and what is to be sent from is large as a rule.
const LARGE: usize = 1 << 20;
/// The same once it has.
const SMALL: usize = 32 << 10;

/// The program has asked for `SO_ZEROCOPY`.
static WANTED: AtomicBool = AtomicBool::new(false);

/// The program has asked for `SO_ZEROCOPY`: its mappings are of interest from now on.
pub fn want() {
    WANTED.store(true, Ordering::Relaxed);
}

/// True for flags of mmap(2) with which others see what is written.
const fn is_shared(flags: c_int) -> bool {
    let kind = flags & libc::MAP_TYPE;
    (kind == libc::MAP_SHARED || kind == libc::MAP_SHARED_VALIDATE)
        && flags & libc::MAP_ANONYMOUS == 0
}

/// The program has made this mapping.
#[inline]
pub fn mapped(at: *mut c_void, len: usize, flags: c_int, fd: c_int, offset: i64) {
    let least = if WANTED.load(Ordering::Relaxed) { SMALL } else { LARGE };
    if is_shared(flags) && len >= least && at != libc::MAP_FAILED {
        note(at.addr(), len, fd, offset);
    }
}

#[cold]
fn note(base: usize, len: usize, fd: c_int, offset: i64) {
    let (Ok(from), true) = (usize::try_from(offset), activity::active()) else { return };
    let _keep = KeepErrno::new();
    if fd < 0 || !owner::owns_process_state() {
        return;
    }
    // SAFETY: the program's, which has just mapped it; if another thread closes it meanwhile, it has not.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    // What has been sealed against seals stays as it is. So are files of tmpfs, where closing a descriptor of ours
    // would end the program's locks.
    let may_be_sealed =
        |seals: SealFlags| seals.contains(SealFlags::SHRINK) || !seals.contains(SealFlags::SEAL);
    if !fcntl_get_seals(fd).is_ok_and(may_be_sealed) {
        return;
    }
    let Ok(stat) = fstat(fd) else { return };
    let file = (stat.st_dev, stat.st_ino);
    exports::change(|changes| {
        let make = || {
            let fd = own_fds::adopt(reopen(fd, OFlags::RDONLY).ok()?).ok()?;
            Some(Memory::found(fd, Found { file, verdict: None }))
        };
        if let Some(export) = changes.found(|found| found.file == file, make) {
            changes.show(Window { base, len: whole_pages(len), export, from });
        }
    });
    exports::release_unused();
}

fn whole_pages(len: usize) -> usize {
    len.checked_next_multiple_of(exports::page_size()).unwrap_or(len)
}

/// All pages of so many bytes.
fn pages(at: *mut c_void, len: usize) -> Range<usize> {
    at.addr()..at.addr().saturating_add(whole_pages(len))
}

/// The program's mappings there are about to go, or to become others.
#[inline]
pub fn unmapped(at: *mut c_void, len: usize) {
    if exports::is_any_known() {
        exports::forget(pages(at, len));
    }
}

/// A mapping that is about to move or to become longer or shorter.
#[derive(Debug)]
pub struct Moving {
    window: Window,
    is_taken: bool,
}

impl Moving {
    /// mremap(2) of `len` bytes; 0: they are to be mapped once more.
    pub fn begin(at: *mut c_void, len: usize) -> Option<Self> {
        if !exports::is_any_known() {
            return None;
        }
        let range = pages(at, len.max(1));
        if !exports::may_touch(&range) {
            return None;
        }
        let _keep = KeepErrno::new();
        let window = exports::window_at(range.start, range.len());
        if let Some(window) = window {
            exports::change(|changes| changes.pin(window.export, true))?;
        }
        if len > 0 {
            exports::withdraw(&range);
        }
        window.map(|window| Self { window, is_taken: len > 0 })
    }

    /// What has come of it: `len` bytes at `at`, or nothing.
    pub fn end(self, at: *mut c_void, len: usize) {
        let _keep = KeepErrno::new();
        let window = match at {
            libc::MAP_FAILED => self.is_taken.then_some(self.window),
            _ => Some(Window { base: at.addr(), len: whole_pages(len), ..self.window }),
        };
        exports::change(|changes| {
            window.into_iter().for_each(|window| changes.show(window));
            changes.pin(self.window.export, false);
        });
        exports::release_unused();
    }
}
