//! Connections as processes begin, share, hand over and end them.

pub mod account;
pub mod close;
pub mod exec;
pub mod fork;
pub mod fork_sharing;
pub mod forking;
pub mod namespaces;
pub mod offers;
pub mod open;
