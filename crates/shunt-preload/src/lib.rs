//! `libshunt.so`: the part of Shunt that runs inside unmodified programs.
//!
//! The library is preloaded and takes the place of libc's socket functions ([`hooks`] lists them,
//! once). It is a guest: it never prints, aborts, or takes a signal or a thread, it keeps errno,
//! and whatever it can't do it hands to the next definition of the function ([`next`]), which is
//! libc's as a rule.
//!
//! The way of a call: exported function ([`guard`]: contains panics) → handler in [`ops`] → one
//! look into the [`fd_table`]. A file descriptor that is not Shunt's business goes straight on to
//! [`next`]; what is, is the work of [`object`].
#![cfg(target_os = "linux")]

pub mod abi;
pub mod account;
pub mod activity;
pub mod agent_client;
pub mod api;
pub mod bell;
pub mod callback;
pub mod calls;
pub mod clock;
pub mod close;
pub mod conn;
pub mod contain;
pub mod doorbells;
mod dynamic;
pub mod endpoint;
pub mod epoll;
pub mod errno;
pub mod exports;
pub mod fd_table;
pub mod fork;
pub mod found;
pub mod fresh;
pub mod guard;
pub mod hand_over;
pub mod handlers;
pub mod hooks;
pub mod imports;
pub mod in_doubt;
pub mod init;
pub mod invitation;
mod jump;
pub mod kernel_poll;
pub mod knobs;
pub mod link;
pub mod listener;
pub mod members;
pub mod mutex;
pub mod next;
pub mod offers;
pub mod open;
pub mod ops;
pub mod own_fds;
pub mod owner;
pub mod panics;
pub mod peer;
pub mod points;
pub mod poll_set;
pub mod process;
pub mod relatives;
pub mod sanitizers;
pub mod signals;
pub mod stream;
pub mod unregistered;
pub mod windows;

/// The library's own heap, so that it never enters the program's allocator: a hook may run inside
/// of that allocator (jemalloc reads files while it starts) or in a signal handler above it. It
/// has no lock, so that a handler above a hook, or a forked child, can use it, too.
#[global_allocator]
static HEAP: shunt_heap::heap::Heap = shunt_heap::heap::Heap;
