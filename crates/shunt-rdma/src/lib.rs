//! The agent's part in link groups between hosts: who its peers are, the connections to them, the device.
//!
//! A [`Plane`] is a thread beside the agent's own one. It listens for peers, connects to them, has both prove who they are, and
//! tells them the addresses and listeners of this host; what it knows it shows as a [`Report`]. The rules of a connection are
//! `shunt-peer`'s.
//!
//! * [`config`]: what it is told. [`key_file`]: where the key is.
//! * [`device`]: which device, and why there is none.
//! * [`report`]: what it knows.
//! * [`pool`]: threads that serve link groups.
//! * [`kernels`]: servers that speak the kernel's SMC-R.
//!
//! * [`memory`]: where programs of this host find those of others.
//!
//! The design is `docs/design/rdma.md`.

#![forbid(unsafe_code)]

pub mod config;
mod conn;
pub mod device;
mod dial;
mod endings;
mod error;
mod failovers;
mod groups;
mod host;
mod hub;
mod judge;
pub mod kernels;
pub mod key_file;
mod lane;
mod links;
mod machine;
mod measuring;
pub mod memory;
mod mirror;
mod peers;
mod plane;
pub mod pool;
mod probe;
mod reach;
pub mod report;
mod sampling;
mod shared;
mod wake_up;

pub use config::{Config, PeerName, Promote};
pub use error::StartError;
pub use host::Host;
pub use key_file::KeyFileError;
pub use memory::SharedMemory;
pub use plane::Plane;
pub use reach::{NoReach, Reach};
pub use report::Report;
pub use shunt_peer::{PublicKey, SecretKey};
