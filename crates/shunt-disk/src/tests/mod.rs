//! The device with a front end of the tests' own, over a disk in memory.

#![allow(clippy::cast_possible_truncation, reason = "numbers of the tests' own")]

mod exact;
mod hostile;
mod ram;
mod resized;
mod served;
mod vfio;
