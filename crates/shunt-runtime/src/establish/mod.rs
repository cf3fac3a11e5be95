//! Making connections.

pub mod accept;
pub mod connect;
pub mod listen;
pub mod socket;
