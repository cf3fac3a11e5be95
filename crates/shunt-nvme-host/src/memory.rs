//! Memory for data of commands: the host's own, and that of others.
//!
//! A queue owns the data of a command from its submission to its completion. So no safe code can
//! change what a controller may be reading, or give memory back that is being filled.

use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use shunt_api::Memory;

/// Buffers begin at multiples of it.
const ALIGNMENT: usize = 4096;

/// One piece of memory, cut into buffers of equal size.
struct Region {
    at: NonNull<u8>,
    /// Distance between two buffers.
    stride: usize,
    free: Mutex<Vec<usize>>,
    /// What `at` names; never looked at by a reference.
    _memory: Memory,
}

// SAFETY: each buffer is accessed by the one `Buffer` that has its number, which is taken from
// `free` under its lock.
unsafe impl Send for Region {}
// SAFETY: by a shared reference numbers are taken and given back alone, under the lock of `free`.
unsafe impl Sync for Region {}

/// Buffers for data: of `shunt_alloc(3)`, so that a peer reads in place what is sent from them if
/// both ends run under Shunt; of mmap(2) in a program without Shunt.
///
/// Who is the peer of a connection on which one was sent without a copy can read all of them.
#[derive(Clone)]
pub struct Buffers {
    region: Arc<Region>,
    len: usize,
}

impl fmt::Debug for Buffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffers").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Buffers {
    /// So many buffers of so many bytes. A program can have 64 of these values at a time.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(count: usize, len: usize) -> io::Result<Self> {
        let too_much = || io::Error::from_raw_os_error(libc::ENOMEM);
        let stride = len.max(1).checked_next_multiple_of(ALIGNMENT).ok_or_else(too_much)?;
        let total = stride.checked_mul(count.max(1)).ok_or_else(too_much)?;
        let mut memory = Memory::new(total)?;
        let at = NonNull::from(memory.bytes()).cast();
        let free = Mutex::new((0..count).rev().collect());
        Ok(Self { region: Arc::new(Region { at, stride, free, _memory: memory }), len })
    }

    /// A buffer, with what was in it when it was used last; `None` where all are in use.
    #[must_use]
    pub fn take(&self) -> Option<Buffer> {
        let number = self.region.free.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
        Some(Buffer { region: Arc::clone(&self.region), number, len: self.len })
    }
}

/// One of [`Buffers`]; it goes back to them when it is dropped.
pub struct Buffer {
    region: Arc<Region>,
    number: usize,
    len: usize,
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Buffer {
    fn address(&self) -> NonNull<u8> {
        // SAFETY: the number is below the count, so this is inside of the region.
        unsafe { self.region.at.add(self.number * self.region.stride) }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: so many bytes are there, and this value alone writes to them.
        unsafe { std::slice::from_raw_parts(self.address().as_ptr(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: so many bytes are there, and this value alone, which is borrowed mutably, leads to them.
        unsafe { std::slice::from_raw_parts_mut(self.address().as_ptr(), self.len) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.region.free.lock().unwrap_or_else(PoisonError::into_inner).push(self.number);
    }
}

/// A piece of memory that is not this process's alone, such as a guest's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// Where it begins.
    pub at: NonNull<u8>,
    /// Bytes.
    pub len: usize,
}

/// Pieces of memory, in order: see [`Segments::new`].
#[derive(Debug)]
pub struct Segments(Vec<Segment>);

// SAFETY: whoever makes one answers for the memory wherever it is used (`Segments::new`).
unsafe impl Send for Segments {}

impl Segments {
    /// Memory that others may read and write at any time: its bytes are moved by system calls and
    /// copied by address, and no reference ever points at them.
    ///
    /// # Safety
    /// The pieces stay mapped, writable if a command reads into them, until the value has come back
    /// with the completion of its command (or the queue was dropped) or was dropped.
    #[must_use]
    pub const unsafe fn new(pieces: Vec<Segment>) -> Self {
        Self(pieces)
    }

    /// The list, to be used again.
    #[must_use]
    pub fn into_inner(self) -> Vec<Segment> {
        self.0
    }
}

/// Data of a command.
#[derive(Debug, Default)]
pub enum Data {
    /// None.
    #[default]
    None,
    /// Ordinary memory: it is copied when it is sent.
    Bytes(Vec<u8>),
    /// Memory that the controller may be granted.
    Buffer(Buffer),
    /// The same, of others.
    Segments(Segments),
}

impl From<Vec<u8>> for Data {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes)
    }
}

impl From<Buffer> for Data {
    fn from(buffer: Buffer) -> Self {
        Self::Buffer(buffer)
    }
}

impl From<Segments> for Data {
    fn from(segments: Segments) -> Self {
        Self::Segments(segments)
    }
}

impl Data {
    /// Bytes that there are.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Bytes(bytes) => bytes.len(),
            Self::Buffer(buffer) => buffer.len(),
            Self::Segments(segments) => segments.0.iter().map(|piece| piece.len).sum(),
        }
    }

    /// True without any.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of the host's own memory; none of [`Data::Segments`], which others may change.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Buffer(buffer) => buffer,
            Self::None | Self::Segments(_) => &[],
        }
    }

    /// The same, to be changed.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Buffer(buffer) => buffer,
            Self::None | Self::Segments(_) => &mut [],
        }
    }

    /// The pieces of a part, cut off at the end of the data.
    pub(crate) fn pieces(
        &mut self,
        from: usize,
        len: usize,
    ) -> impl Iterator<Item = (*mut u8, usize)> {
        let (one, many): (_, &[Segment]) = match self {
            Self::None => (None, &[]),
            Self::Bytes(bytes) => (Some((bytes.as_mut_ptr(), bytes.len())), &[]),
            Self::Buffer(buffer) => (Some((buffer.as_mut_ptr(), buffer.len())), &[]),
            Self::Segments(segments) => (None, &segments.0),
        };
        let all = one.into_iter().chain(many.iter().map(|piece| (piece.at.as_ptr(), piece.len)));
        let (mut skip, mut left) = (from, len);
        all.filter_map(move |(at, len)| {
            let passed = skip.min(len);
            skip -= passed;
            let part = (len - passed).min(left);
            left -= part;
            (part > 0).then(|| (at.wrapping_add(passed), part))
        })
    }

    /// Copies bytes to a part.
    pub(crate) fn copy_in(&mut self, from: usize, mut bytes: &[u8]) {
        for (at, len) in self.pieces(from, bytes.len()) {
            let (part, rest) = bytes.split_at(len);
            // SAFETY: `pieces` names memory of the data, which is there to be written as the command
            // is under way: the host's own, or what `Segments::new` was promised.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), at, len) };
            bytes = rest;
        }
    }

    /// A copy of a part: of bytes that others may be changing.
    pub(crate) fn copy_out(&mut self, from: usize, len: usize) -> Vec<u8> {
        let mut copy: Vec<u8> = Vec::with_capacity(len);
        for (at, len) in self.pieces(from, len) {
            let before = copy.len();
            // SAFETY: `pieces` names memory of the data, which is there as the command is under way; so many bytes of the copy
            // are reserved.
            unsafe {
                std::ptr::copy_nonoverlapping(at, copy.as_mut_ptr().add(before), len);
                copy.set_len(before + len);
            }
        }
        copy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back() {
        let buffers = Buffers::new(2, 5000).unwrap();
        let (mut one, two) = (buffers.take().unwrap(), buffers.take().unwrap());
        assert!(buffers.take().is_none());
        assert_eq!((one.len(), two.as_ptr().addr() % ALIGNMENT), (5000, 0));
        one.fill(7);
        assert!(two.iter().all(|byte| *byte == 0));
        drop(one);
        assert!(buffers.take().unwrap().iter().all(|byte| *byte == 7));
        assert!(Buffers::new(usize::MAX / 4096, 8192).is_err());
    }

    #[test]
    fn data_of_several_pieces() {
        let mut bytes = *b"abcdefghij";
        let at = NonNull::from(&mut bytes).cast::<u8>();
        // SAFETY: both are inside of `bytes`, which outlives the value.
        let segments = unsafe {
            Segments::new(vec![Segment { at: at.add(6), len: 4 }, Segment { at, len: 3 }])
        };
        let mut data = Data::from(segments);
        assert_eq!((data.len(), data.bytes().len()), (7, 0));
        assert_eq!(data.copy_out(0, 99), b"ghijabc");
        assert_eq!(data.copy_out(3, 2), b"ja");
        data.copy_in(2, b"XYZ");
        assert_eq!(data.copy_out(0, 7), b"ghXYZbc");
        assert_eq!(data.pieces(7, 1).count(), 0);
        drop(data);
        assert_eq!(&bytes, b"ZbcdefghXY");
    }
}
