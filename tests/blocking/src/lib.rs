//! Descriptors that block whoever closes them, or asks them something, for as long as their maker likes.
//!
//! Each comes with a value that keeps it so. When that value goes, whoever was blocked goes on.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

mod file;
mod held;
mod sockets;

pub use file::HungFile;
pub use held::Held;
pub use sockets::{Lingering, chain};

/// Memory that nobody can cut short: which blocks nobody.
///
/// # Errors
/// Those of memfd_create(2).
pub fn sealed_memory() -> io::Result<OwnedFd> {
    let memory = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    fcntl_add_seals(&memory, SealFlags::SHRINK)?;
    Ok(memory)
}
