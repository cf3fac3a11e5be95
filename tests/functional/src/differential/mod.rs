//! Programs that nobody wrote.
//!
//! A [`plan`] says what some processes and their threads do with sockets and other descriptors; [`generate`] makes one
//! of a seed.

pub mod generate;
pub mod plan;
