//! Where metrics are served, and as much HTTP as a scraper needs: for the agent, the NVMe/TCP target and the emulated
//! disk, which have metrics of their own. [`Exporter`] serves in a loop of the caller's, [`Serving`] in a thread.
#![forbid(unsafe_code)]

pub mod address;
pub mod counters;
pub mod exporter;
pub mod http;
pub mod serving;

pub use address::{Address, BadAddress, Listener, MetricsError};
pub use exporter::Exporter;
pub use serving::Serving;
