//! Calls that close, duplicate or control a descriptor, of whatever kind it is.
//!
//! Two rules hold throughout. The table changes *before* the kernel closes a number and *after* it
//! gives one out, because in between no other thread can be given that number. And the library's
//! own descriptors do not exist for the program: calls on them fail with `EBADF`.

pub mod close;
pub mod control;
pub mod duplicate;
pub mod replaced;
pub mod unseen;
