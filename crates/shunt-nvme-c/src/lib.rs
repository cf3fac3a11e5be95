//! The NVMe/TCP host for programs in C: what `shunt_nvme.h` declares, and nothing else is exported.
//!
//! A translation of [`shunt_nvme_host`]: structures of C to its values and back, and its errors to
//! numbers. What is promised to the program is said in the header: no call prints, none unwinds into
//! it, the library's threads take none of its signals.
//!
//! | Module | What |
//! |---|---|
//! | `entries` | The functions |
//! | `commands` | A queue: whose commands are under way, and calls that wait for theirs |
//! | `options` | How to reach a subsystem |
//! | `errors` | Numbers of errors |
//! | `guest` | What a call does in somebody else's thread |
//! | `types` | Structures and constants of the header |

mod commands;
mod entries;
mod errors;
mod guest;
mod options;
mod types;

#[cfg(test)]
mod header;
