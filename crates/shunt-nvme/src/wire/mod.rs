//! Bytes and values: PDUs, queue entries, data structures of commands.
//!
//! Structures are layouts of the `zerocopy` crate: little-endian, unaligned, without padding. So a
//! view of received bytes is `Type::ref_from_bytes`, and what is sent is `as_bytes`.
//!
//! Reserved fields are sent as zero and not looked at when received (Base 1.5).

pub mod capsule;
pub mod data;
pub mod digest;
pub mod discovery;
pub mod fabrics;
pub mod feature;
pub mod identify;
pub mod init;
pub mod log;
pub mod nqn;
pub mod opcode;
pub mod pdu;
mod pdu_type;
pub mod queue_entry;
pub mod registers;
pub mod reservation;
pub mod sgl;
pub mod status;
pub mod term;
pub mod violation;

pub use capsule::{CapsuleCmd, CapsuleResp};
pub use data::{C2hData, H2cData, R2t};
pub use init::{IcReq, IcResp};
pub use nqn::{Nqn, NqnError};
pub use pdu::{CommonHeader, Layout, Rules};
pub use pdu_type::{PduType, Receiver};
pub use queue_entry::{Cqe, Direction, Fuse, Sqe};
pub use sgl::{Sgl, SglKind};
pub use status::Status;
pub use term::TermReq;
pub use violation::{FatalStatus, Violation};

/// A byte-wise little-endian integer of 16 bits.
pub type U16 = zerocopy::little_endian::U16;
/// A byte-wise little-endian integer of 32 bits.
pub type U32 = zerocopy::little_endian::U32;
/// A byte-wise little-endian integer of 64 bits.
pub type U64 = zerocopy::little_endian::U64;
/// A byte-wise little-endian integer of 128 bits.
pub type U128 = zerocopy::little_endian::U128;
