//! Questions about memory of the program.

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
    // SAFETY: libc returns a valid pointer to the calling thread's errno, always.
    let errno = unsafe { &mut *libc::__errno_location() };
    let before = *errno;
    let none = core::ptr::null::<libc::sigset_t>();
    // SAFETY: changes no mask; the kernel writes 8 bytes, or refuses the address.
    let rc = unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, none, address, 8) };
    *errno = before;
    rc == 0
}

#[cfg(test)]
mod tests {
    use super::*;

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
