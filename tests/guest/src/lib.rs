//! Guests that have no processor: memory as a virtual machine's, and drivers of the emulated disks ([`vhost`], [`vfio`]).
//!
//! They say what a test wants said, right or wrong.

#![allow(clippy::cast_possible_truncation, reason = "numbers of the tests' own")]
#![allow(clippy::missing_panics_doc, reason = "tests end by panics")]

mod memory;
pub mod vfio;
pub mod vhost;

pub use memory::Memory;
