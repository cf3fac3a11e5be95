//! The calling thread's errno.

use libc::c_int;

/// Reads errno.
#[must_use]
pub fn get() -> c_int {
    // SAFETY: libc returns a valid pointer to the calling thread's errno, always.
    unsafe { *libc::__errno_location() }
}

/// Sets errno.
pub fn set(value: c_int) {
    // SAFETY: libc returns a valid pointer to the calling thread's errno, always.
    unsafe { *libc::__errno_location() = value }
}

/// Sets errno and returns what a failed call returns.
#[must_use]
pub fn fail<T: From<i8>>(value: c_int) -> T {
    set(value);
    T::from(-1)
}

/// Puts errno back when it goes out of scope, for work that the program must not notice.
#[must_use = "errno is restored when this is dropped"]
pub struct KeepErrno(c_int);

impl KeepErrno {
    /// Remembers errno as it is now.
    pub fn new() -> Self {
        Self(get())
    }
}

impl Default for KeepErrno {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for KeepErrno {
    fn drop(&mut self) {
        set(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errno_survives_the_scope() {
        set(libc::EAGAIN);
        {
            let _keep = KeepErrno::new();
            let failed: isize = fail(libc::EBADF);
            assert_eq!((failed, get()), (-1, libc::EBADF));
        }
        assert_eq!(get(), libc::EAGAIN);
    }
}
