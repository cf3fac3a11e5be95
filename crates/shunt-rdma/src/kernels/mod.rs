//! Servers that speak the kernel's SMC-R, as programs of this host reach them.
//!
//! They are a member of the memory in which programs find those of other hosts, all of them together (`machine.rs`): so a
//! program proposes a connection to them as to any other. The agent is the acceptor. It answers when it has agreed with the server
//! over the program's TCP connection, or has not; until then the program sends and takes nothing.
//!
//! ```text
//!   passed, connecting --SMC--> proposed to the server --accept--> registered, confirmed --ready--> accepted: the worker's
//!           |                            |                                 |
//!           +--other answer--------------+--decline------------------------+--decline--> declined: TCP
//!                                        +--anything else------------------+-----------> the TCP connection ends
//! ```
//!
//! * `proposals`: of programs.
//! * `agreement`: the messages over TCP.
//! * `talk`: one connection on that way.
//! * `groups`: link groups with those servers.
//! * `state`: all of it.

pub(crate) mod agreement;
pub(crate) mod groups;
pub(crate) mod proposals;
mod servers;
pub(crate) mod socket;
pub(crate) mod state;
pub(crate) mod talk;

pub use servers::{Marks, Servers};
