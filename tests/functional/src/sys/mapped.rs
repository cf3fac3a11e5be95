//! Memory that a program maps by itself: a memfd, or what is its own alone.

use std::ffi::{c_int, c_uint};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use libc::c_void;

use super::{check, check_len};

const READ_WRITE: c_int = libc::PROT_READ | libc::PROT_WRITE;

/// A shared mapping, and its memfd.
pub struct Mapped {
    fd: OwnedFd,
    at: *mut c_void,
    len: usize,
}

fn mapped(at: *mut c_void) -> io::Result<*mut c_void> {
    if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(at) }
}

/// A private mapping; unmapped on drop.
pub struct Private {
    at: *mut c_void,
    len: usize,
}

impl Private {
    /// So many bytes.
    pub fn new(len: usize) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh mapping where the kernel likes.
        let at = mapped(unsafe { libc::mmap(ptr::null_mut(), len, READ_WRITE, flags, -1, 0) })?;
        Ok(Self { at, len })
    }

    /// All of them.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: so many are there, and nobody else's.
        unsafe { std::slice::from_raw_parts_mut(self.at.cast(), self.len) }
    }

    /// Where they are, and how many.
    pub fn place(&self) -> (usize, usize) {
        (self.at.addr(), self.len)
    }

    /// From now on a look at them is a fault.
    pub fn forbid(&mut self) -> io::Result<()> {
        // SAFETY: the mapping of `new`, to which nothing refers.
        check(unsafe { libc::mprotect(self.at, self.len, libc::PROT_NONE) }).map(drop)
    }

    /// `epoll_wait(2)` for up to `max` events, which are told there: how many.
    pub fn epoll_wait(&mut self, set: RawFd, max: c_int, millis: c_int) -> io::Result<usize> {
        let room = self.len / size_of::<libc::epoll_event>();
        let max = max.min(c_int::try_from(room).unwrap_or(c_int::MAX));
        // SAFETY: there is room for so many.
        let n = check(unsafe { libc::epoll_wait(set, self.at.cast(), max, millis) })?;
        Ok(usize::try_from(n).unwrap_or(0))
    }

    /// The data of the first `count` events there.
    pub fn epoll_data(&self, count: usize) -> Vec<u64> {
        let at = self.at.cast::<libc::epoll_event>();
        // SAFETY: [`Self::epoll_wait`] has told of so many.
        (0..count).map(|i| unsafe { at.add(i).read_unaligned() }.u64).collect()
    }
}

// SAFETY: a mapping belongs to the process, not to a thread.
unsafe impl Send for Private {}

impl Drop for Private {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, of which nothing is left.
        unsafe { libc::munmap(self.at, self.len) };
    }
}

impl Mapped {
    /// So many bytes, which get these seals after they were mapped.
    pub fn new(len: usize, seals: c_int) -> io::Result<Self> {
        Self::with_flags(0, len, seals)
    }

    /// The same of huge pages, which the machine must have reserved.
    pub fn huge(len: usize, seals: c_int) -> io::Result<Self> {
        Self::with_flags(libc::MFD_HUGETLB, len, seals)
    }

    fn with_flags(flags: c_uint, len: usize, seals: c_int) -> io::Result<Self> {
        let flags = flags | libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name is a C string; the descriptor is ours.
        let fd =
            unsafe { OwnedFd::from_raw_fd(check(libc::memfd_create(c"mapped".as_ptr(), flags))?) };
        let mut this = Self { fd, at: ptr::null_mut(), len };
        this.truncate(len)?;
        let fd = this.fd.as_raw_fd();
        // SAFETY: a fresh mapping where the kernel likes.
        this.at = mapped(unsafe {
            libc::mmap(ptr::null_mut(), len, READ_WRITE, libc::MAP_SHARED, fd, 0)
        })?;
        if seals != 0 {
            // SAFETY: takes a number.
            check(unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, seals) })?;
        }
        Ok(this)
    }

    /// The memory behind it gets another length.
    pub fn truncate(&self, len: usize) -> io::Result<()> {
        let len = i64::try_from(len).map_err(io::Error::other)?;
        // SAFETY: takes numbers.
        check(unsafe { libc::ftruncate(self.fd.as_raw_fd(), len) }).map(drop)
    }

    /// Writes to all of the memory, past the mapping.
    pub fn fill_file(&self, byte: u8, len: usize) -> io::Result<()> {
        super::pwrite_all(self.fd.as_raw_fd(), &vec![byte; len])
    }

    /// The bytes that are mapped.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: so many are there, as whoever cuts the memory or the mapping keeps in mind.
        unsafe { std::slice::from_raw_parts_mut(self.at.cast(), self.len) }
    }

    /// Forbids the second half of the bytes, or allows it again. Where that begins, and how long it is.
    pub fn forbid_half(&self) -> io::Result<(usize, usize)> {
        let half = self.len / 2;
        let at = self.at.wrapping_byte_add(half);
        // SAFETY: a part of the mapping, in which nobody holds references.
        check(unsafe { libc::mprotect(at, half, libc::PROT_NONE) })?;
        Ok((at.expose_provenance(), half))
    }

    /// send(2) of a part, without a look at the bytes.
    pub fn send(&self, to: RawFd, from: usize, len: usize, flags: c_int) -> io::Result<usize> {
        let at = self.at.wrapping_byte_add(from);
        // SAFETY: it is for the kernel, or its like, to say what is wrong with the address.
        check_len(unsafe { libc::send(to, at, len, flags | libc::MSG_NOSIGNAL) })
    }

    /// Unmaps what comes after the first `len` bytes.
    pub fn unmap_after(&mut self, len: usize) -> io::Result<()> {
        // SAFETY: a part of the mapping, to which nothing refers.
        check(unsafe { libc::munmap(self.at.wrapping_byte_add(len), self.len - len) })?;
        self.len = len;
        Ok(())
    }

    /// Maps private memory in the place of a part.
    pub fn replace(&self, from: usize, len: usize) -> io::Result<()> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let at = self.at.wrapping_byte_add(from);
        // SAFETY: a part of the mapping, to which nothing refers.
        mapped(unsafe { libc::mmap(at, len, READ_WRITE, flags, -1, 0) }).map(drop)
    }

    /// Moves the mapping elsewhere, with another length.
    pub fn move_to(&mut self, len: usize) -> io::Result<()> {
        // SAFETY: room where the kernel likes, which the mapping then takes the place of.
        self.at = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let room = mapped(libc::mmap(ptr::null_mut(), len, libc::PROT_NONE, flags, -1, 0))?;
            let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            mapped(libc::mremap(self.at, self.len, len, flags, room))?
        };
        self.len = len;
        Ok(())
    }

    /// Cuts the mapping short where it is.
    pub fn shorten(&mut self, len: usize) -> io::Result<()> {
        // SAFETY: nothing refers to what goes.
        self.at = mapped(unsafe { libc::mremap(self.at, self.len, len, 0) })?;
        self.len = len;
        Ok(())
    }
}

// SAFETY: plain memory that belongs to whoever has the value.
unsafe impl Send for Mapped {}

impl Drop for Mapped {
    fn drop(&mut self) {
        if !self.at.is_null() && self.len > 0 {
            // SAFETY: what is left of the mapping, and what was mapped in its place.
            unsafe { libc::munmap(self.at, self.len) };
        }
    }
}
