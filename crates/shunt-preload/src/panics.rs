//! What a call returns after a panic in its handler; what becomes of the connection is [`shunt_runtime::panics`].

use shunt_runtime::system::errno;

pub use shunt_runtime::panics::{
    after, after_poll, after_select, after_wait_for, epoll_ctl, whole,
};

/// What a failed call returns, with errno set.
pub trait Failed {
    /// After `ECONNRESET`.
    fn failed() -> Self;
}

macro_rules! numbers {
    ($($ty:ty)*) => { $(impl Failed for $ty {
        fn failed() -> Self {
            errno::fail(libc::ECONNRESET)
        }
    })* };
}
numbers!(i32 i64 isize);

impl<T> Failed for *mut T {
    fn failed() -> Self {
        errno::set(libc::ECONNRESET);
        core::ptr::null_mut()
    }
}
