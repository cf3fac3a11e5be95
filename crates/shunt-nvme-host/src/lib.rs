//! An NVMe/TCP host: reads and writes the namespaces of a subsystem from this process, without the
//! kernel's block layer.
//!
//! * [`Subsystem`]: all paths to one subsystem. A thread per path connects, keeps alive, listens for
//!   changes, and connects again.
//! * [`Queue`]: commands of one thread. [`Queue::submit`] takes a [`Request`] (made by a
//!   [`Namespace`]) and its [`Data`], [`Queue::poll`] gives completions; neither waits unless told
//!   to. The data belongs to the queue in between, so no controller reads what was changed.
//! * [`Watch`]: tells a thread that waits for descriptors of namespaces that come, go or change.
//! * [`Buffers`]: memory that a controller may read in place when both ends run under Shunt.
//! * [`Controller`], [`discover`]: one Admin Queue, for tools.
//!
//! ```no_run
//! use shunt_nvme::wire::Nqn;
//! use shunt_nvme_host::{Buffers, Options, Subsystem};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let name = Nqn::new("nqn.2024-01.org.shunt:target")?;
//! let subsystem = Subsystem::connect(Options::new(vec!["127.0.0.1:4420".parse()?], name))?;
//! let disk = subsystem.namespace(1).ok_or("no disk")?;
//! let mut queue = subsystem.queue()?;
//! let buffers = Buffers::new(64, 64 << 10)?;
//! let buffer = buffers.take().ok_or("all in use")?;
//! queue.submit(disk.write(0, 16), buffer.into(), 7)?;
//! let mut done = Vec::new();
//! queue.poll(&mut done, None)?;
//! assert_eq!((done[0].token, done[0].result), (7, Ok(0)));
//! # Ok(())
//! # }
//! ```
//!
//! Sockets are called through libc, so that a preloaded `libshunt.so` hears of them. What the host
//! does of the protocol is in `docs/nvme-coverage.md`.

mod bell;
mod call;
mod controller;
mod error;
mod keeper;
mod lane;
mod link;
mod memory;
mod options;
mod outcome;
mod path;
mod queue;
mod request;
mod socket;
mod subsystem;
#[cfg(fuzzing)]
pub mod victim;

pub use controller::{Attributes, Controller, Notice, discover};
pub use error::Error;
pub use memory::{Buffer, Buffers, Data, Segment, Segments};
pub use options::{Identity, Options};
pub use outcome::{Completion, Failure, Refusal, Refused, Traffic};
pub use queue::Queue;
pub use request::{MAX_RANGES, Namespace, Range, Request};
pub use subsystem::{PathStatus, Subsystem, Watch};
