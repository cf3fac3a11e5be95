//! Sending without copies (`MSG_ZEROCOPY`): which bytes are granted, who reads them where, and when they are the program's again.
//!
//! Bytes that are granted have their place in the ring like others ([`shunt_shm::grants`]); so these rules stand beside those of
//! sending and receiving, which know no more of them than that a piece has a place. One module each:
//!
//! * [`order`]: the accesses by which a grant changes hands; loom runs them as they are;
//! * [`choice`]: which bytes are granted, and which are copied;
//! * [`sender`]: the value on which the sender's rules work;
//! * [`batch`]: pieces of a call that go together;
//! * [`granting`]: the sender's grants: made, offered, withdrawn, taken back;
//! * [`received`]: where a receiver finds its next bytes, and what it does with them;
//! * [`pipes`]: private memory that lies in pipes, at both ends;
//! * [`lent`]: bytes that a program reads where they are;
//! * [`numbers`]: the numbers of calls, and what the program is told of them on the error queue.
//!
//! Memory (mapped files, pipes, the program's buffers), the time, and the direction's lock are [`ports`].

pub mod order;

#[cfg(not(loom))]
pub mod batch;
#[cfg(not(loom))]
pub mod choice;
#[cfg(not(loom))]
pub mod granting;
#[cfg(all(test, not(loom)))]
mod histories;
#[cfg(not(loom))]
pub mod lent;
#[cfg(all(test, not(loom)))]
mod model;
#[cfg(not(loom))]
pub mod numbers;
#[cfg(not(loom))]
pub mod pipes;
#[cfg(not(loom))]
pub mod ports;
#[cfg(not(loom))]
pub mod received;
#[cfg(not(loom))]
pub mod sender;
