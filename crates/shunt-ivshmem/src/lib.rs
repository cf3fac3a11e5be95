//! The ivshmem server: shared memory and doorbells for QEMU's `ivshmem-doorbell` devices.
//!
//! Each virtual machine that connects gets an ID, the shared memory, an eventfd per interrupt vector
//! to be woken by, and those of all the others to wake them by. The server is on no data path: when it
//! dies, those that are connected go on, but learn nothing more of each other.
//!
//! Single thread, driven by epoll. [`state`] holds the rules (who is told what, in which order, which
//! ID is free) and does no I/O; [`server`] moves its messages; [`endpoint`] makes the sockets;
//! [`memory`] the memory; [`handover`] takes everything to the next server, whether that one asks for it
//! ([`control`]) or the service manager keeps it in between ([`notify`]).
//!
//! The protocol has no bytes from clients to the server. A client that sends some, does not read, or
//! goes, costs its own connection and nobody else anything.
#![forbid(unsafe_code)]

pub mod config;
pub mod control;
pub mod endpoint;
mod error;
pub mod handover;
mod ids;
pub mod memory;
pub mod message;
pub mod name;
pub mod notify;
mod peer;
pub mod reason;
pub mod report;
pub mod server;
pub mod snapshot;
pub mod state;

pub use config::{Config, Limits, Start};
pub use error::Error;
pub use server::Server;

/// Runs a server until SIGTERM or SIGINT, or until another one takes over.
///
/// # Errors
/// Why it cannot serve.
pub fn serve(config: Config) -> Result<(), Error> {
    // Blocked before anything else, so that no signal can leave the sockets' files behind.
    let stop = shunt_sys::signals::stop_fd()?;
    let mut notifier = notify::Notifier::from_environment();
    let passed = shunt_sys::activation::take();
    let kept = handover::names_of(&passed);
    let mut server = Server::start(config, passed, stop)?;
    // It is held here now; what is kept of it for the next start must not be mixed with it.
    notifier.forget(&kept);
    notifier.tell("READY=1");
    server.run(&mut notifier)
}
