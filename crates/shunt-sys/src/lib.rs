//! Thin wrappers around system calls, without policy, for the library, the agent and the tools.
//!
//! The library runs inside other programs, so nothing here prints, allocates on the heap, panics,
//! or changes `errno`: calls go through rustix, whose Linux backend enters the kernel directly and
//! so reaches neither libc's `errno` nor the library's own hooks; the few that rustix has not do so in `raw`. What is for our own programs alone
//! ([`activation`], [`bpf`], [`cgroup`], [`epoll`], [`namespaces`], [`reach`], [`signals`],
//! [`stdio`], [`usage`]) says so.

pub mod activation;
pub mod addresses;
pub mod bpf;
pub mod cgroup;
pub mod epoll;
pub mod fds;
pub mod memory;
pub mod namespaces;
pub mod pending;
pub mod process;
mod raw;
pub mod reach;
pub mod run_dir;
pub mod scheduling;
pub mod seqpacket;
pub mod signals;
pub mod sockdiag;
pub mod sockinfo;
mod sockopt;
pub mod stdio;
pub mod usage;
pub mod vfio;
