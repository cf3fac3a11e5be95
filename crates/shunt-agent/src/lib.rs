//! The agent: Shunt's control plane.
//!
//! One per user, or one for all users and containers of the host. It keeps the registry of listeners, makes the memory of link groups and hands it,
//! with the doorbells, to exactly the two processes that it belongs to, and adds up the counters of
//! programs that have ended. It is on no data path: when it dies, connections run on.
//!
//! Single thread, driven by epoll, which never receives or closes what others pass: [`shunt_inspector`] does, in processes of
//! its own. [`server`] moves packets and knows nothing of their meaning;
//! [`state`] holds the policy and does no socket I/O; [`socket`] sees to it that there is one agent;
//! [`totals`] and [`report`] are what the tools read, [`metrics`] what a monitoring system does.
//!
//! Everything that a client sends is checked; what is not a message of the protocol costs that
//! client its connection and nobody else anything.

mod acceptor;
mod allowance;
pub mod book;
pub mod config;
mod container;
mod error;
pub mod held;
mod hosts;
#[cfg(not(fuzzing))]
mod ivshmem;
#[cfg(fuzzing)]
pub mod ivshmem;
mod membership;
mod memory_limit;
pub mod metrics;
pub mod party;
pub mod policy;
pub mod programs;
mod rdma_section;
pub mod report;
pub mod server;
mod smc_section;
pub mod socket;
pub mod state;
pub mod totals;
pub mod waits;
mod wake_ups;

pub use config::{Config, HostConfig, Limits, Metrics};
pub use error::ServeError;
pub use metrics::MetricsError;
pub use policy::Policy;
pub use rdma_section::RdmaSection;
pub use server::Server;
use shunt_sys::signals;
pub use smc_section::SmcSection;
use socket::Access;
pub use socket::ClaimError;

/// Runs an agent until SIGTERM, SIGINT, or until nobody has used it for `config.idle_exit`. Calls
/// `ready` once its socket takes connections.
///
/// # Errors
/// [`ClaimError`] when it cannot become the agent of its directory; [`MetricsError`] when it is to serve metrics and
/// cannot; system errors of the loop.
pub fn serve(config: Config, ready: impl FnOnce()) -> Result<(), ServeError> {
    // Blocked before anything else, so that no signal can leave the socket's file behind.
    let stop = signals::stop_fd()?;
    let reload = config.host.is_some().then(|| signals::fd(&[signals::HUP])).transpose()?;
    let access = if config.host.is_some() { Access::All } else { Access::User };
    let claim = socket::Claim::take(config.run_dir, access, config.lock_wait)?;
    let mut server = Server::new(config, claim, stop)?;
    reload.map_or(Ok(()), |signal| server.reload_on(signal))?;
    ready();
    server.run()?;
    Ok(())
}
