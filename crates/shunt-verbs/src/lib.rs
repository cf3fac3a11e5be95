//! RDMA verbs: a port for what a link between hosts needs, and the devices behind it.
//!
//! * [`port`]: registered memory, completion queues and queue pairs of reliable connections, as traits. [`value`] has the
//!   requests, completions and states that go over it, [`memory`] the memory that a device shares with the program.
//! * [`Device`]: libibverbs, which is loaded when a device is first asked for ([`Library`]). Where it is missing, or there is no
//!   device, or no permission, the answer is an [`Unavailable`] that says so, and nothing else happens: nothing is linked.
//! * [`fake`]: a device in the process with the same semantics, and faults by a seed.
//!
//! The only crate that calls libibverbs, and so unsafe. The layouts of its structures are compared with the installed header by
//! a test ([`abi`]); the calls run against a stub of the library that is compiled with that header (`tests/stub`).

pub mod abi;
mod completion;
mod context;
mod device;
mod error;
pub mod fake;
mod library;
pub mod memory;
pub mod port;
mod protection;
mod queue_pair;
pub mod value;

pub use completion::{CompletionChannel, CompletionQueue};
pub use device::{Address, Device, PortInfo};
pub use error::{Refused, Unavailable};
pub use library::Library;
pub use memory::Memory;
pub use protection::MemoryRegion;
pub use queue_pair::QueuePair;
