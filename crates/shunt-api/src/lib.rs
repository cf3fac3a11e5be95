//! What a program can ask of Shunt that knows of it: `shunt.h` for Rust.
//!
//! Nothing is linked. All goes through libc, where a preloaded library hears of it; without Shunt, and on connections
//! that are not shunted, everything does the same with copies.
//!
//! * [`Memory`]: what is sent from it need not be copied.
//! * [`send`]: `MSG_ZEROCOPY`, and hints which buffers of a call are to be granted.
//! * [`Room`]: received bytes where they are.
//! * [`message`]: the control messages by which it is asked, for programs that make their calls themselves.

mod block;
mod borrow;
mod memory;
pub mod message;
pub mod send;

pub use block::BLOCK;
pub use borrow::{Borrowed, Piece, Released, Room};
pub use memory::Memory;
