//! Models of everything in this crate that two threads or processes touch at once, run by loom
//! through every interleaving and every value that the memory model lets a load return:
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test --release -p shunt-shm --test loom
//! ```
//!
//! A lost wake-up shows as a deadlock, a torn or early-overwritten byte as a concurrent access to a
//! loom `UnsafeCell`.
#![cfg_attr(
    not(feature = "sim"),
    allow(clippy::disallowed_types, reason = "those of `sync` are core's then")
)]
#![cfg(loom)]

mod cq;
mod grants;
mod handover;
mod looks;
mod ring;
mod stretch;
mod wake;
mod world;
