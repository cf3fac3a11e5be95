//! The agent, the endpoint, link groups, peers and their doorbells, listeners.

pub mod agent_client;
pub mod bells;
pub mod doorbells;
pub mod endpoint;
pub mod invitation;
pub mod link;
pub mod listener;
pub mod members;
pub mod peer;
pub mod process;
pub mod thread_doorbell;
pub mod unregistered;
pub mod user;
pub mod vectors;
