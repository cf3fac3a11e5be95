//! A connection's name as words of shared memory: four of addresses, and one of both ports.

use shunt_wire::addr::{Addr, FourTuple};

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Writes a name.
pub(crate) fn store(ips: &[AtomicU64; 4], ports: &AtomicU32, t: &FourTuple) {
    let ends = [t.local.ip, t.peer.ip];
    for (i, word) in ips.iter().enumerate() {
        let mut half = [0; 8];
        half.copy_from_slice(&ends[i / 2][(i % 2) * 8..][..8]);
        word.store(u64::from_ne_bytes(half), Ordering::Relaxed);
    }
    let both = u32::from(t.local.port) << 16 | u32::from(t.peer.port);
    ports.store(both, Ordering::Relaxed);
}

/// Reads it; as untrusted as the memory.
#[allow(clippy::cast_possible_truncation, reason = "two ports are packed in one word")]
pub(crate) fn load(ips: &[AtomicU64; 4], ports: &AtomicU32) -> FourTuple {
    let mut ends = [[0; 16]; 2];
    for (i, word) in ips.iter().enumerate() {
        let half = word.load(Ordering::Relaxed).to_ne_bytes();
        ends[i / 2][(i % 2) * 8..][..8].copy_from_slice(&half);
    }
    let ports = ports.load(Ordering::Relaxed);
    FourTuple {
        local: Addr { ip: ends[0], port: (ports >> 16) as u16 },
        peer: Addr { ip: ends[1], port: ports as u16 },
    }
}
