//! Thin wrappers around system calls, without policy, for the library, the agent and the tools.
//!
//! The library runs inside other programs, so nothing here prints, allocates on the heap, panics,
//! or changes `errno`: calls go through rustix, whose Linux backend enters the kernel directly and
//! so reaches neither libc's `errno` nor the library's own hooks.

pub mod fds;
pub mod process;
pub mod run_dir;
pub mod seqpacket;
pub mod sockinfo;
mod sockopt;
