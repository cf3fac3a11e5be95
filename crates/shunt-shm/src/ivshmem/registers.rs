//! The registers of an ivshmem device, in a guest (QEMU's `docs/specs/ivshmem-spec.rst`).

use core::ptr::NonNull;
use std::io;
use std::os::fd::AsFd;

use crate::memfd::Map;

const IV_POSITION: usize = 8;
const DOORBELL: usize = 12;
/// Bytes of registers.
const LEN: usize = 256;

/// The registers, mapped.
#[derive(Debug)]
pub struct Registers {
    map: Map,
    /// Where they begin in the page.
    at: usize,
}

impl Registers {
    /// Maps the registers, which begin `at` bytes from the start of a page.
    ///
    /// # Errors
    /// `EINVAL` for registers that do not lie in one page, else those of mmap(2).
    pub fn map(bar: impl AsFd, at: usize) -> io::Result<Self> {
        if at + LEN > 4096 || !at.is_multiple_of(4) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(Self { map: Map::device(bar, 0, 4096)?, at })
    }

    const fn register(&self, offset: usize) -> NonNull<u32> {
        // SAFETY: registers lie in the page, which is mapped as long as self.
        unsafe { self.map.base().byte_add(self.at + offset).cast() }
    }

    /// The ID that the server has given this machine; `None` before it has.
    #[must_use]
    pub fn id(&self) -> Option<u16> {
        // SAFETY: a device's register, aligned; reading it has no effect.
        let id = unsafe { self.register(IV_POSITION).read_volatile() };
        u16::try_from(id).ok()
    }

    /// Interrupts a peer.
    pub fn ring(&self, peer: u16, vector: u8) {
        // What was stored before is to be seen by whoever is interrupted: stores are not reordered with one to a
        // device's register on x86; elsewhere the fence sees to it.
        crate::sync::fence(crate::sync::Ordering::SeqCst);
        let what = u32::from(peer) << 16 | u32::from(vector);
        // SAFETY: a device's register, aligned; any value is one that it understands or ignores.
        unsafe { self.register(DOORBELL).write_volatile(what) };
    }
}
