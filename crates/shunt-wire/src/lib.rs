//! Bytes and values that cross a process boundary.
//!
//! No I/O, no allocation, no `unsafe`: every other crate builds on these names, and each list
//! (reasons, decisions, counters, metrics, waits, knobs) stands here exactly once so that the docs, the CLI and the library
//! cannot drift apart.
#![no_std]
#![forbid(unsafe_code)]

pub mod addr;
pub mod agent;
pub mod clc;
pub mod counter;
pub mod decision;
pub mod knob;
pub mod metric;
pub mod offer;
pub mod reason;
pub mod version;
pub mod waits;

pub use version::PROTOCOL_VERSION;
