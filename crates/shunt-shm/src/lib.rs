//! The one crate that touches shared memory.
//!
//! These kinds of memory are told apart everywhere:
//!
//! * **shared with the peer** ([`region`], [`table`]): never trusted. Every index and cursor read
//!   from it is bounded against private copies before use; a violation is the error [`Violation`].
//! * **shared with other machines** ([`ivshmem`]): the same.
//! * **shared with own forks and read by the agent** ([`arena`], [`counters`], [`decisions`], [`completions`]): trusted.
//! * **shared with own forks and with tools** ([`capture`]): never trusted.
//! * **written by the agent, mapped read-only** ([`registry`]).
//! * **left by the program that this one was before exec** ([`leftover`]): never trusted.
//!
//! No `&[u8]` or `&mut [u8]` ever points into shared memory: words are atomics, bytes are copied
//! through raw pointers. All atomics come through [`sync`], so that loom can model them.
//!
//! The layout (ABI) is described in `docs/shm-abi.md`; it changes only together with
//! [`shunt_wire::PROTOCOL_VERSION`].

#![cfg_attr(
    not(feature = "sim"),
    allow(clippy::disallowed_types, reason = "those of `sync` are core's then")
)]

pub mod completions;
pub mod cq;
pub mod doorbell;
pub mod grants;
pub mod handover;
pub mod reach;
mod reset;
pub mod ring;
pub mod sync;
pub mod waker;
pub mod zerocopy;

#[cfg(not(loom))]
pub mod arena;
#[cfg(not(loom))]
pub mod capture;
#[cfg(not(loom))]
pub mod counters;
#[cfg(not(loom))]
pub mod decisions;
#[cfg(not(loom))]
mod geometry;
#[cfg(not(loom))]
pub mod holders;
#[cfg(not(loom))]
pub mod ivshmem;
#[cfg(not(loom))]
pub mod leftover;
#[cfg(not(loom))]
pub mod lock;
#[cfg(not(loom))]
pub mod memfd;
#[cfg(not(loom))]
pub mod region;
#[cfg(not(loom))]
pub mod registry;
#[cfg(not(loom))]
mod rings;
#[cfg(not(loom))]
pub mod table;
#[cfg(not(loom))]
mod tuple;
#[cfg(not(loom))]
pub mod unregistered;
#[cfg(not(loom))]
pub mod waits;

/// The peer wrote something that the protocol does not allow. The connection it concerns is ended;
/// nothing else is touched (property P5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Violation {
    /// The producer cursor ran backwards or further ahead than the ring is long.
    Producer,
    /// The consumer cursor ran backwards or past what was produced.
    Consumer,
    /// Marks of switch points ran ahead of what their reader has acknowledged, or backwards.
    Marks,
    /// More grants than there can be, or of memory that was not offered.
    Grants,
}

impl core::fmt::Display for Violation {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Producer => "producer cursor out of bounds",
            Self::Consumer => "consumer cursor out of bounds",
            Self::Marks => "switch points out of order",
            Self::Grants => "a grant that cannot be",
        })
    }
}

impl core::error::Error for Violation {}
