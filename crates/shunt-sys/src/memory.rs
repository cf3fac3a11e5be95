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

/// False when these few bytes (less than a page) cannot be read: a read would end the program.
///
/// The kernel is asked to read a signal mask there, for a change that there is none of: it looks at the mask
/// first. `errno` stays as it is.
#[must_use]
pub fn is_readable(address: usize, len: usize) -> bool {
    /// None of `SIG_BLOCK` and the others.
    const NO_CHANGE: i32 = -1;
    // Masks of 8 bytes, aligned so that none reaches into another page.
    [address & !7, address.wrapping_add(len).wrapping_sub(1) & !7].into_iter().all(|at| {
        // SAFETY: the kernel reads 8 bytes, or refuses the address, and changes nothing.
        let looked = unsafe { syscall(libc::SYS_rt_sigprocmask, [int(NO_CHANGE), at, 0, MASK, 0]) };
        at != 0 && looked != Err(Errno::FAULT)
    })
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
