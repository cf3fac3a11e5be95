//! Ports.

use shunt_bench::rig::ports;

pub use ports::is_listening;

/// A port that nothing uses, on any address, with TCP or UDP.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn free_port() -> u16 {
    ports::free_port().unwrap_or_else(|| panic!("no port is free"))
}
