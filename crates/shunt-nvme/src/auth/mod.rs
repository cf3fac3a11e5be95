//! DH-HMAC-CHAP: how hosts and controllers prove who they are (Base 8.13.5).
//!
//! [`Responder`] is the controller's part, [`Initiator`] the host's. Messages go in Authentication
//! Send (to the controller) and Authentication Receive (to the host). Neither has I/O or entropy
//! of its own.

mod dh;
mod groups;
mod hash;
mod initiator;
mod message;
mod responder;
mod secret;

pub use dh::Group;
pub use hash::Hash;
pub use initiator::{AuthenticationError, Initiator, Step};
pub use message::Failure;
pub use responder::Responder;
pub use secret::{Secret, SecretError};
