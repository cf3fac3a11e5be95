//! What a program can ask of Shunt that knows of it: `shunt.h` for Rust.
//!
//! Nothing is linked. All goes through libc, where a preloaded library hears of it; without Shunt, and on connections
//! that are not shunted, everything does the same with copies.
//!
//! * [`Memory`]: what is sent from it need not be copied.
//! * [`send`]: `MSG_ZEROCOPY`, and hints which buffers of a call are to be granted.
//! * [`Room`]: received bytes where they are.

mod block;
mod borrow;
mod memory;
pub mod send;

pub use block::BLOCK;
pub use borrow::{Borrowed, Piece, Released, Room};
pub use memory::Memory;

/// Level of the control messages of recvmsg(2) and sendmsg(2) that are Shunt's (`SHUNT_LEVEL`): kernel TCP does not look
/// at them.
const LEVEL: libc::c_int = 0x5368_756e;
