//! Connections as processes begin, share, hand over and end them.

pub mod account;
pub mod close;
pub mod exec;
pub mod fork;
pub mod forking;
pub mod namespaces;
pub mod offers;
pub mod open;
pub mod relatives;
