//! NVMe over TCP without I/O: what stands on the wire, and what both ends make of it.
//!
//! Followed are the NVM Express TCP Transport Specification 1.0 ("TCP" in the comments), the NVM
//! Express Base Specification 2.0 ("Base") and the NVM Command Set Specification 1.0 ("NVM").
//! The crate has no sockets, no threads and no clock: bytes and points in time come in, what is to
//! be sent and what is to be done comes out. `docs/nvme-coverage.md` lists what is implemented.
//!
//! | Module | What it is |
//! |---|---|
//! | [`wire`] | PDUs, queue entries, data structures: checked views and values |
//! | [`transport`] | Where received bytes go, and pieces of what is to be sent |
//! | [`controller`] | The controller's end of a connection: a queue of a target |
//! | [`host`] | The host's end: a queue of an initiator |
//! | [`subsystem`] | What a controller does with commands: subsystems, namespaces, controllers |
//! | [`auth`] | DH-HMAC-CHAP, both ends |

#![forbid(unsafe_code)]

pub mod auth;
pub mod controller;
pub mod host;
pub mod subsystem;
pub mod transport;
pub mod wire;
