//! The sans-IO engine: what to do, decided from values; never doing it.
//!
//! Time, cursors and the kernel's answers come in as arguments, actions go out as values, so each
//! rule is tested here on virtual time, without sockets or shared memory. The library
//! (`shunt-preload`) carries the actions out.
//!
//! The data path proper (reserve, copy, publish) lies in `shunt-shm` and is called by the library
//! without a detour through this crate: it has no decisions in it, only copies.
#![forbid(unsafe_code)]

pub mod buffers;
pub mod call;
// What it works on has no models in loom.
#[cfg(not(loom))]
pub mod conn;
pub mod events;
pub mod handshake;
pub mod kernel;
#[cfg(all(test, not(loom)))]
mod model;
pub mod pinning;
pub mod ports;
pub mod spin;
pub mod stretch;
