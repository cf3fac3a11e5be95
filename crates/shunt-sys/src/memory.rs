//! Questions about memory of the program.

use core::ops::Range;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

use crate::fds::close;
use crate::raw::{int, syscall};

/// Bytes of the kernel's signal mask.
const MASK: usize = 8;

/// True when 8 bytes can be written at this address, which are overwritten: without a fault where they cannot.
///
/// The kernel is asked for the thread's signal mask there: the cheapest call that writes, and one that
/// no system call filter forbids. `errno` stays as it is.
#[must_use]
pub fn is_writable(address: usize) -> bool {
    // The kernel takes null for the wish not to be told.
    if address == 0 {
        return false;
    }
    // SAFETY: changes no mask; the kernel writes 8 bytes, or refuses the address.
    unsafe { syscall(libc::SYS_rt_sigprocmask, [int(libc::SIG_BLOCK), 0, address, MASK, 0]) }
        .is_ok()
}

/// The page of an address; where pages are larger, a part of one.
const fn page(address: usize) -> usize {
    address & !4095
}

/// False when these few bytes (less than a page) cannot be read: a read would end the program.
///
/// What the caller has on its stack is mostly in the page of this function's own frame, and then no question. Else
/// the kernel is asked, once if it is in one page, to read a signal mask there, for a change that there
/// is none of: it looks at the mask first. `errno` stays as it is.
#[must_use]
pub fn is_readable(address: usize, len: usize) -> bool {
    let frame = 0_u8;
    let last = address.wrapping_add(len).wrapping_sub(1);
    let pages = [page(address), page(last)];
    if pages == [page((&raw const frame).addr()); 2] {
        return true;
    }
    has_mask(address) && (pages[0] == pages[1] || has_mask(last))
}

/// True when the 8 bytes around this address can be read.
fn has_mask(address: usize) -> bool {
    /// None of `SIG_BLOCK` and the others.
    const NO_CHANGE: i32 = -1;
    // Aligned, so that they do not reach into another page.
    let at = address & !7;
    // SAFETY: the kernel reads 8 bytes, or refuses the address, and changes nothing.
    let looked = unsafe { syscall(libc::SYS_rt_sigprocmask, [int(NO_CHANGE), at, 0, MASK, 0]) };
    at != 0 && looked != Err(Errno::FAULT)
}

/// What this process has mapped; `None` where the kernel does not tell.
#[must_use]
pub fn mappings() -> Option<Vec<Range<usize>>> {
    let maps = open("/proc/self/maps", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut text = Vec::new();
    let mut piece = vec![0; 16 << 10];
    let read = loop {
        match rustix::io::read(&maps, &mut piece[..]) {
            Ok(0) => break Some(()),
            Ok(n) => text.extend_from_slice(&piece[..n]),
            Err(Errno::INTR) => {}
            Err(_) => break None,
        }
    };
    close(maps);
    read?;
    let text = core::str::from_utf8(&text).ok()?;
    text.lines().map(range).collect()
}

/// The range at the beginning of a line of `/proc/self/maps`.
fn range(line: &str) -> Option<Range<usize>> {
    let (start, rest) = line.split_once('-')?;
    let (end, _) = rest.split_once(' ')?;
    let number = |hex| usize::from_str_radix(hex, 16).ok();
    Some(number(start)?..number(end)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_told() {
        static CONSTANT: u64 = 7;
        let on_stack = 7_u64;
        for at in [(&raw const CONSTANT).addr(), (&raw const on_stack).addr()] {
            assert_eq!(mappings().unwrap().iter().filter(|range| range.contains(&at)).count(), 1);
        }
        assert_eq!(range("7f00-8000 r--p 00000000 00:00 0"), Some(0x7f00..0x8000));
        assert_eq!(range("7f00"), None);
    }

    #[test]
    fn only_memory_that_is_there() {
        static CONSTANT: [u8; 5] = [7; 5];
        assert!(is_readable(CONSTANT.as_ptr().addr(), 5));
        assert!(!is_readable(0, 4));
        assert!(!is_readable(4096, 4));
        assert!(!is_readable(usize::MAX - 2, 16));
    }

    /// Runs `check` where a system call that it makes ends it; what it says, if it made none.
    fn without_calls(check: impl FnOnce() -> bool) -> Option<bool> {
        // SAFETY: the child makes two system calls besides those of `check`.
        let status = unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_STRICT);
                libc::syscall(libc::SYS_exit, libc::c_int::from(check()));
            }
            let mut status = 0;
            libc::waitpid(child, &raw mut status, 0);
            status
        };
        libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status) == 1)
    }

    /// Calls `f` with the address of a variable that lies in the upper half of a page of the stack, and so
    /// in the page of what it calls.
    #[inline(never)]
    fn with_variable(f: &dyn Fn(usize) -> Option<bool>) -> Option<bool> {
        let variable = core::hint::black_box([0_u8; 64]);
        let at = variable.as_ptr().addr();
        let found = if at % 4096 > 3072 { f(at) } else { with_variable(f) };
        core::hint::black_box(&variable);
        found
    }

    #[test]
    fn memory_beside_the_own_frame_is_no_question() {
        let asked = |len| with_variable(&move |at| without_calls(|| is_readable(at, len)));
        assert_eq!(asked(16), Some(true));
        static CONSTANT: [u8; 5] = [7; 5];
        // It ends at the question.
        assert_eq!(without_calls(|| is_readable(CONSTANT.as_ptr().addr(), 5)), None);
        assert_eq!(without_calls(|| is_readable(4096, 4)), None);
    }

    /// Of each page that it lies in.
    #[test]
    fn memory_at_the_end_of_what_is_there() {
        use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
        // SAFETY: a fresh mapping of two pages, to which nothing refers.
        let first = unsafe {
            let at = core::ptr::null_mut();
            let both = mmap_anonymous(at, 8192, ProtFlags::READ, MapFlags::PRIVATE).unwrap();
            mprotect(both.byte_add(4096), 4096, MprotectFlags::empty()).unwrap();
            both
        };
        let end = first.addr() + 4096;
        assert!(is_readable(end - 16, 16) && !is_readable(end - 15, 16) && !is_readable(end, 1));
        // SAFETY: the first of the two fresh pages, to which nothing refers.
        unsafe { mprotect(first, 4096, MprotectFlags::empty()).unwrap() };
        assert!(!is_readable(end - 16, 16));
        // SAFETY: both fresh pages, to which nothing refers.
        unsafe { munmap(first, 8192).unwrap() };
    }

    #[test]
    fn only_memory_that_is_there_and_not_constant() {
        let mut word = 0_u64;
        assert!(is_writable((&raw mut word).addr()));
        assert!(!is_writable(0));
        static CONSTANT: u64 = 7;
        assert!(!is_writable((&raw const CONSTANT).addr()));
        assert_eq!(CONSTANT, 7);
    }
}
