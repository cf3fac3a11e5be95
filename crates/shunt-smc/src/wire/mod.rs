//! Bytes and values: messages over TCP ([`clc`]), about the link ([`llc`]) and about a connection
//! ([`cdc`]).
//!
//! Structures are layouts of the `zerocopy` crate: network byte order, unaligned, without padding.
//! A message is a value that was checked, or a [`Malformed`]. Reserved fields are sent as zero and
//! not looked at when received.
//!
//! Layouts are those of Linux 6.12 (`net/smc/smc_clc.h`, `smc_llc.c`, `smc_cdc.h`), the peer that
//! they were tried with. They are RFC 7609's (appendix A) with the additions of version 2.

pub mod cdc;
pub mod clc;
mod eid;
pub mod llc;
mod malformed;
mod size;

pub use eid::Eid;
pub use malformed::Malformed;
pub use size::RmbSize;

use shunt_verbs::value::{Mtu, PacketNumber, PairNumber};

/// A byte-wise integer of 16 bits in network order.
type U16 = zerocopy::network_endian::U16;
/// A byte-wise integer of 32 bits in network order.
type U32 = zerocopy::network_endian::U32;
/// A byte-wise integer of 64 bits in network order.
type U64 = zerocopy::network_endian::U64;

/// Bytes of a message on a link, except the longer ones of version 2 (`smc_wr.h`:
/// `SMC_WR_TX_SIZE`).
pub const LINK_MESSAGE: usize = 44;

/// Bytes of the longest message that a server sends on a link: ADD LINK with keys of 255 RMBs.
pub const LONGEST_LINK_MESSAGE: usize = LINK_MESSAGE + 28 + 255 * 16;

const fn pair(bytes: [u8; 3]) -> PairNumber {
    let [a, b, c] = bytes;
    PairNumber(u32::from_be_bytes([0, a, b, c]))
}

const fn packet(bytes: [u8; 3]) -> PacketNumber {
    let [a, b, c] = bytes;
    PacketNumber::new(u32::from_be_bytes([0, a, b, c]))
}

/// The low 24 bits.
const fn of_24_bits(number: u32) -> [u8; 3] {
    let [_, a, b, c] = number.to_be_bytes();
    [a, b, c]
}

/// By its number on the wire, which is that of verbs (IBTA table 17).
const fn mtu(code: u8) -> Option<Mtu> {
    Some(match code {
        1 => Mtu::B256,
        2 => Mtu::B512,
        3 => Mtu::B1024,
        4 => Mtu::B2048,
        5 => Mtu::B4096,
        _ => return None,
    })
}

const fn mtu_code(mtu: Mtu) -> u8 {
    match mtu {
        Mtu::B256 => 1,
        Mtu::B512 => 2,
        Mtu::B1024 => 3,
        Mtu::B2048 => 4,
        Mtu::B4096 => 5,
    }
}
