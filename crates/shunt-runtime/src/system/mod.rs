//! The kernel and libc, as seen from behind the hooks.

pub mod abi;
pub mod clock;
pub mod cores;
pub mod dynamic;
pub mod errno;
pub mod filter;
pub mod kernel_abi;
pub mod kernel_poll;
pub mod loaded;
pub mod next;
pub mod timeout;
