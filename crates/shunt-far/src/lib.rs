//! Link groups between hosts over RDMA, as values without I/O.
//!
//! Each host has a mirror of the link group's region. What a program publishes in its mirror, a [`Link`] sends to the other one:
//! bytes by WRITEs into the far ring, cursors by a message behind them. What the far side says it checks, and only then writes
//! it in the peer's section. The design is `docs/design/rdma.md`.
//!
//! * [`message`]: what the two sides say, in bytes.
//! * [`lane`]: one connection: what it sends next, and what of the far side is believed.
//! * [`link`]: one queue pair: order, receives, acknowledgement, failure.
//! * [`kernel`]: the same to a kernel's SMC-R server, which writes into the region by itself.
//! * [`worker`]: a completion queue with the links that it serves.
//! * [`placement`]: which link group a connection takes, and which queue a link group.
//! * [`mirror`]: the port to the region.
//!
//! Time comes in as a duration since any beginning, and nothing blocks. The device is a [`shunt_verbs::port::Port`], so a
//! simulator runs all of it over a device in the process (`tests/simulator`).

#![forbid(unsafe_code)]

mod device;
pub mod kernel;
pub mod lane;
pub mod link;
pub mod message;
pub mod mirror;
pub mod placement;
mod turns;
pub mod worker;

pub use kernel::KernelLink;
pub use link::{Cause, Halt, Link, Settings};
pub use message::Message;
pub use mirror::{Mirror, News};
pub use worker::Worker;
