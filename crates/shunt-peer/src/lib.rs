//! The control connection between the agents of two hosts, as values without I/O.
//!
//! Two agents that are to make link groups over RDMA first have to know that they talk to each other. Each has a key pair, and the
//! configuration of each names the public key of the other one. Over one TCP connection they prove that, and say what the
//! other one has to know: addresses, listeners, queue pairs, registered memory, and where each stood when a link failed.
//!
//! * [`key`]: the key pair, and its text forms.
//! * [`message`]: what is said, in bytes.
//! * [`session`]: one connection, from the first byte on: versions, proof of the keys, then messages.
//! * [`association`]: what is said over one connection after another, when one of them ends though both agents live on.
//!
//! The proof is Noise's `IK` (the [`snow`] crate): both keys, fresh keys for each connection, nothing that a third one can read,
//! change or repeat. The design is `docs/design/rdma.md`.
//!
//! Time comes in as a duration since any beginning, and nothing blocks.

#![forbid(unsafe_code)]

pub mod association;
pub mod key;
pub mod message;
pub mod session;

pub use association::Association;
pub use key::{KeyError, PublicKey, SecretKey};
pub use message::Message;
pub use session::{End, Event, Session};
