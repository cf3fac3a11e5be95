//! A small NVMe/TCP host, made of the protocol's machine and blocking sockets: one thread, one queue at a time.

mod host;
mod queue;

pub use host::{Disk, Host, Way};
pub use queue::{Ended, Queue};

/// Bytes that a block has after it was written: those of its number, and of how often it was written.
#[must_use]
pub fn pattern(block: u64, round: u64, len: usize) -> Vec<u8> {
    let mut state = (block << 8 ^ round).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
