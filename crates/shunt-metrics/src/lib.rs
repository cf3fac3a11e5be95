//! Where metrics are served, and as much HTTP as a scraper needs: for the agent and the NVMe/TCP target, which have
//! loops and metrics of their own.
#![forbid(unsafe_code)]

pub mod address;
pub mod http;

pub use address::{Address, BadAddress, Listener, MetricsError};
