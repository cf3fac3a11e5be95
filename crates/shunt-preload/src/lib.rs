//! `libshunt.so`: the part of Shunt that runs inside unmodified programs.
//!
//! The library is preloaded and takes the place of libc's socket functions ([`hooks`] lists them,
//! once). It is a guest: it never prints, aborts, or takes a signal or a thread, it keeps errno,
//! and whatever it can't do it hands to the next definition of the function ([`next`]), which is
//! libc's as a rule.
//!
//! The way of a call: exported function ([`guard`]: contains panics) → handler in [`ops`] → one
//! look into the [descriptor table](shunt_runtime::fds::fd_table). A file descriptor that is not Shunt's business goes straight
//! on to [`next`]; what is, is the work of [`shunt_runtime`].
#![cfg(target_os = "linux")]

pub mod api;
#[cfg(not(test))]
mod exports;
pub mod guard;
pub mod hooks;
mod in_list;
pub mod init;
pub mod next;
pub mod ops;
pub mod panics;
pub mod sanitizers;
mod tail_call;

/// The library's own heap, so that it never enters the program's allocator: a hook may run inside
/// of that allocator (jemalloc reads files while it starts) or in a signal handler above it. It
/// has no lock, so that a handler above a hook, or a forked child, can use it, too.
#[global_allocator]
static HEAP: shunt_heap::heap::Heap = shunt_heap::heap::Heap;
