//! Sealed memory, and pieces of it that sockets, files and stores fill and read.
//!
//! Several threads, the kernel, and peers to which a piece was granted access these bytes at the same time.
//! So no Rust reference ever points at them: bytes are copied by address, and whoever has to be sure of
//! what it has read (a digest, a comparison) copies first. This file and [`crate::socket`] are the only ones
//! of this crate with `unsafe` in them.

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

/// A memfd that is sealed against shrinking, mapped once. Without that seal its owner could not be sure to
/// find its bytes, and no peer would map it.
pub struct Memory {
    at: NonNull<u8>,
    len: usize,
    memfd: OwnedFd,
}

// SAFETY: the address names a mapping that lives as long as the value; bytes are only copied by address.
unsafe impl Send for Memory {}
// SAFETY: methods copy bytes by address and make no reference to them, so nothing is assumed of bytes that another thread writes at
// the same time.
unsafe impl Sync for Memory {}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Memory {
    /// So many bytes, zero.
    ///
    /// # Errors
    /// Those of memfd_create(2), ftruncate(2), fcntl(2) and mmap(2).
    pub fn new(name: &str, len: usize) -> io::Result<Arc<Self>> {
        let memfd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&memfd, len as u64)?;
        fcntl_add_seals(&memfd, SealFlags::SHRINK)?;
        Self::map(memfd, len)
    }

    /// The same memory, with room for `len` bytes: a mapping of its own, so that pieces of this one stay.
    ///
    /// # Errors
    /// Those of ftruncate(2) and mmap(2); `InvalidInput` for less than there is.
    pub fn grown(&self, len: usize) -> io::Result<Arc<Self>> {
        if len < self.len {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let memfd = self.memfd.try_clone()?;
        ftruncate(&memfd, len as u64)?;
        Self::map(memfd, len)
    }

    fn map(memfd: OwnedFd, len: usize) -> io::Result<Arc<Self>> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // By libc's function: a preloaded library notes what is mapped, and grants no other memory.
        // SAFETY: a fresh mapping where the kernel likes.
        let at = unsafe {
            libc::mmap(ptr::null_mut(), len, access, libc::MAP_SHARED, memfd.as_raw_fd(), 0)
        };
        match NonNull::new(at.cast::<u8>()) {
            Some(at) if at.as_ptr().cast() != libc::MAP_FAILED => {
                Ok(Arc::new(Self { at, len, memfd }))
            }
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// How many bytes there are.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "mmap(2) makes none that is empty")]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Its descriptor.
    #[must_use]
    pub const fn memfd(&self) -> &OwnedFd {
        &self.memfd
    }

    /// A piece of it; `None` where it does not reach.
    #[must_use]
    pub fn piece(self: &Arc<Self>, range: Range<usize>) -> Option<Piece> {
        let fits = range.start <= range.end && range.end <= self.len;
        fits.then(|| Piece { memory: Arc::clone(self), start: range.start, len: range.len() })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's; pieces hold the value, so none is left.
        let _unmapped = unsafe { libc::munmap(self.at.as_ptr().cast(), self.len) };
    }
}

/// A piece of [`Memory`], inside of its bounds by construction.
#[derive(Clone, Debug)]
pub struct Piece {
    memory: Arc<Memory>,
    start: usize,
    len: usize,
}

impl Piece {
    /// How many bytes it has.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// True without any.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Of which memory it is, and where it begins there.
    #[must_use]
    pub const fn place(&self) -> (&Arc<Memory>, usize) {
        (&self.memory, self.start)
    }

    /// A part of it, cut off at its end.
    #[must_use]
    pub fn part(&self, from: usize, len: usize) -> Self {
        let from = from.min(self.len);
        let len = len.min(self.len - from);
        Self { memory: Arc::clone(&self.memory), start: self.start + from, len }
    }

    /// Where its bytes are, for system calls. The address is good while the piece lives.
    #[must_use]
    pub fn address(&self) -> *mut u8 {
        // SAFETY: the start is inside of the mapping, or at its end (`Memory::piece`, `part`).
        unsafe { self.memory.at.as_ptr().add(self.start) }
    }

    /// Copies bytes in, as many as fit.
    pub fn copy_in(&self, bytes: &[u8]) {
        let len = bytes.len().min(self.len);
        // SAFETY: so many bytes of the piece are mapped; no reference points at them.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.address(), len) };
    }

    /// Copies bytes out, as many as there are.
    pub fn copy_out(&self, to: &mut [u8]) {
        let len = to.len().min(self.len);
        // SAFETY: so many bytes of the piece are mapped; `to` is private memory, which a mapping does not overlap.
        unsafe { ptr::copy_nonoverlapping(self.address(), to.as_mut_ptr(), len) };
    }

    /// Copies from another piece, as many bytes as both have. They may overlap.
    pub fn copy_from(&self, other: &Self) {
        // SAFETY: so many bytes of both are mapped; no reference points at them.
        unsafe { ptr::copy(other.address(), self.address(), self.len.min(other.len)) };
    }

    /// Makes it zero.
    pub fn clear(&self) {
        // SAFETY: the piece is mapped over its length; no reference points at its bytes.
        unsafe { ptr::write_bytes(self.address(), 0, self.len) };
    }

    /// Where two pieces first differ; each byte is read once, into memory of the caller's.
    #[must_use]
    pub fn differs_at(&self, other: &Self) -> Option<usize> {
        const STEP: usize = 4096;
        let len = self.len.min(other.len);
        let (mut ours, mut theirs) = ([0; STEP], [0; STEP]);
        for at in (0..len).step_by(STEP) {
            let n = STEP.min(len - at);
            self.part(at, n).copy_out(&mut ours);
            other.part(at, n).copy_out(&mut theirs);
            if ours[..n] != theirs[..n] {
                let differs = ours.iter().zip(&theirs).position(|(a, b)| a != b);
                return differs.map(|offset| at + offset);
            }
        }
        (self.len != other.len).then_some(len)
    }

    /// Fills it from a file.
    ///
    /// # Errors
    /// Those of pread(2); `UnexpectedEof` where the file ends before.
    pub fn read_from(&self, file: BorrowedFd<'_>, offset: u64) -> io::Result<()> {
        // SAFETY: `each` passes a range of this piece's own.
        self.each(offset, |at, len, offset| unsafe {
            libc::pread(file.as_raw_fd(), at.cast(), len, offset)
        })
    }

    /// Writes it to a file.
    ///
    /// # Errors
    /// Those of pwrite(2).
    pub fn write_to(&self, file: BorrowedFd<'_>, offset: u64) -> io::Result<()> {
        // SAFETY: `each` passes a range of this piece's own.
        self.each(offset, |at, len, offset| unsafe {
            libc::pwrite(file.as_raw_fd(), at.cast(), len, offset)
        })
    }

    /// Calls until all bytes have gone.
    fn each(
        &self,
        offset: u64,
        call: impl Fn(*mut u8, usize, libc::off_t) -> isize,
    ) -> io::Result<()> {
        let mut done = 0;
        while done < self.len {
            let left = self.part(done, self.len - done);
            let offset = libc::off_t::try_from(offset + done as u64)
                .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
            match usize::try_from(call(left.address(), left.len, offset)) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => done += n,
                Err(_) => {
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Err(error);
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_stay_inside() {
        let memory = Memory::new("test", 8192).unwrap();
        assert!(memory.piece(8000..8193).is_none());
        let piece = memory.piece(4096..8192).unwrap();
        assert_eq!((piece.part(4000, 1000).len(), piece.part(9000, 1).len()), (96, 0));
        piece.part(4090, 100).copy_in(&[7; 100]);
        let mut out = [1; 8];
        piece.part(4088, 8).copy_out(&mut out);
        assert_eq!(out, [0, 0, 7, 7, 7, 7, 7, 7]);
    }

    #[test]
    fn differences_are_found() {
        let memory = Memory::new("test", 32768).unwrap();
        let (one, other) = (memory.piece(0..16384).unwrap(), memory.piece(16384..32768).unwrap());
        assert_eq!(one.differs_at(&other), None);
        other.part(9001, 1).copy_in(&[1]);
        assert_eq!(one.differs_at(&other), Some(9001));
        one.copy_from(&other);
        assert_eq!(one.differs_at(&other), None);
        other.clear();
        assert_eq!(one.differs_at(&other), Some(9001));
        assert_eq!(one.differs_at(&one.part(0, 5)), Some(5));
    }

    #[test]
    fn memory_that_has_grown_has_its_bytes() {
        let memory = Memory::new("test", 4096).unwrap();
        let old = memory.piece(0..4096).unwrap();
        old.copy_in(b"here");
        let grown = memory.grown(1 << 20).unwrap();
        drop(memory);
        assert_eq!(grown.piece(0..4096).unwrap().differs_at(&old), None);
        grown.piece(0..1).unwrap().copy_in(b"t");
        let mut out = [0; 4];
        old.copy_out(&mut out);
        assert_eq!(&out, b"tere");
        assert!(grown.grown(4096).is_err());
        assert!(ftruncate(grown.memfd(), 4096).is_err(), "it is sealed");
    }
}
