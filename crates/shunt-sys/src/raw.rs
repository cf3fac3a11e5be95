//! System calls that rustix does not have, by an instruction of our own.
//!
//! libc's `syscall` would do, but inside of `libshunt.so` that name is the library's hook: each such call would be looked
//! up as the program's, and could come back into the handler that makes it. And it sets `errno`, which is the program's.

use core::arch::asm;
use core::ffi::c_long;

use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::{Errno, Result};

/// Enters the kernel with up to five arguments. A call that takes fewer ignores the rest.
///
/// # Safety
/// What the call does with these arguments is sound: the addresses among them (with their provenance exposed) are valid for
/// what the kernel reads and writes there.
pub(crate) unsafe fn syscall(number: c_long, args: [usize; 5]) -> Result<usize> {
    let [a, b, c, d, e] = args;
    let result: isize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller promises that the call is sound with these arguments; the kernel takes its number in rax, its arguments in rdi, rsi, rdx, r10, r8
    // and r9, and changes no register but rax, rcx and r11 (syscall(2)). It may read and write memory, so it is not said
    // that the assembly does not; it uses no stack of ours.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") a,
            in("rsi") b,
            in("rdx") c,
            in("r10") d,
            in("r8") e,
            in("r9") 0_usize,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack, preserves_flags),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the caller promises that the call is sound with these arguments; the kernel takes its number in x8, its arguments
    // from x0 on, and changes x0 alone. It may read and write memory, so it is not said that the assembly does not.
    unsafe {
        asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a => result,
            in("x1") b,
            in("x2") c,
            in("x3") d,
            in("x4") e,
            in("x5") 0_usize,
            options(nostack, preserves_flags),
        );
    }
    match result {
        // What is no error: an address of the kernel's own is never returned.
        0.. => Ok(result.cast_unsigned()),
        _ => Err(Errno::from_raw_os_error(i32::try_from(-result).unwrap_or(libc::EINVAL))),
    }
}

/// A descriptor as an argument.
pub(crate) fn descriptor(fd: BorrowedFd<'_>) -> usize {
    int(fd.as_raw_fd())
}

/// An `int` as an argument: the kernel looks at the low half of the register.
pub(crate) const fn int(value: i32) -> usize {
    value.cast_unsigned() as usize
}
