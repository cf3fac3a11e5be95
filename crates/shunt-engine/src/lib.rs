//! What decides: values and state machines over ports, without descriptors, system calls or statics.
//!
//! A connection's end ([`conn::End`]) works on shared memory; the kernel socket ([`kernel::KernelSocket`]) and the program's calls
//! ([`conn::send::Outgoing`], [`conn::recv::Incoming`]) are ports, and so are what a call waits for and the process in which it
//! does ([`wait::Wait`], [`wait::Host`]). So each rule is tested here with models of them, in which
//! something may come before every question. The library (`shunt-preload`) implements the ports.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(any(test, feature = "sim")),
    allow(clippy::disallowed_types, reason = "those of `shunt_shm::sync` may be core's then")
)]

pub mod buffers;
// What these work on has no models in loom.
#[cfg(not(loom))]
pub mod call;
#[cfg(not(loom))]
pub mod conn;
pub mod events;
pub mod handshake;
pub mod kernel;
#[cfg(all(test, not(loom)))]
mod model;
pub mod pinning;
#[cfg(all(any(test, feature = "sim"), not(loom)))]
pub mod sim;
pub mod spin;
pub mod stretch;
pub mod wait;
pub mod zerocopy;
