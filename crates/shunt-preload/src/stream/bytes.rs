//! Copies between the program's buffers and a ring.

use core::ptr::NonNull;

use libc::iovec;
use shunt_shm::ring::Span;

/// Nothing is mapped below (`vm.mmap_min_addr`), nor in the upper half, which is the kernel's.
const LOWEST: usize = 64 * 1024;
const HIGHEST: usize = isize::MAX.cast_unsigned();

/// A program's buffers: those of one call.
#[derive(Clone, Copy, Debug)]
pub struct Buffers<'a> {
    iov: &'a [iovec],
    /// Bytes in all.
    pub total: usize,
}

impl<'a> Buffers<'a> {
    /// The buffers of a vectored call. `None` when their lengths overflow `ssize_t`: the kernel's
    /// own function then gives the error.
    ///
    /// # Safety
    /// `iov` points to `count` entries.
    pub unsafe fn new(iov: *const iovec, count: usize) -> Option<Self> {
        if count > 1024 || (iov.is_null() && count > 0) {
            return None;
        }
        // SAFETY: the caller vouches for the entries.
        let iov = if count == 0 { &[] } else { unsafe { core::slice::from_raw_parts(iov, count) } };
        let total = iov.iter().try_fold(0_usize, |n, v| n.checked_add(v.iov_len))?;
        isize::try_from(total).ok()?;
        Some(Self { iov, total })
    }

    /// The one buffer of a plain call.
    pub fn one(iov: &'a iovec) -> Self {
        Self { iov: core::slice::from_ref(iov), total: iov.iov_len }
    }

    /// True when an entry names no memory that a program can have: null and the like. The kernel would
    /// say `EFAULT`; other bad addresses cannot be told without a system call.
    #[inline]
    pub fn are_bad(&self) -> bool {
        let bad = |v: &iovec| !(LOWEST..=HIGHEST).contains(&v.iov_base.addr()) && v.iov_len > 0;
        self.iov.iter().any(bad)
    }

    /// The entries that are left after `skip` bytes, for the kernel: at most `limit` bytes, and at most
    /// as many entries as fit.
    pub fn rest(&self, mut skip: usize, mut limit: usize, out: &mut [iovec; 16]) -> usize {
        let mut n = 0;
        for v in self.iov {
            if skip >= v.iov_len {
                skip -= v.iov_len;
                continue;
            }
            let Some(place) = out.get_mut(n) else { break };
            let iov_len = (v.iov_len - skip).min(limit);
            if iov_len == 0 {
                break;
            }
            *place = iovec { iov_base: v.iov_base.wrapping_byte_add(skip), iov_len };
            limit -= iov_len;
            skip = 0;
            n += 1;
        }
        n
    }

    /// The bytes after the first `skip`, up to the end of the entry in which they are.
    pub fn piece(&self, mut skip: usize) -> Option<(*mut u8, usize)> {
        for v in self.iov {
            if skip < v.iov_len {
                return Some((v.iov_base.cast::<u8>().wrapping_add(skip), v.iov_len - skip));
            }
            skip -= v.iov_len;
        }
        None
    }

    /// The entries of at least so many bytes.
    pub fn large(&self, least: usize) -> impl Iterator<Item = (*mut u8, usize)> {
        let large = self.iov.iter().filter(move |v| v.iov_len >= least);
        large.map(|v| (v.iov_base.cast::<u8>(), v.iov_len))
    }

    /// Calls `piece(address, length)` for the `len` bytes after the first `skip`.
    #[inline]
    fn pieces(&self, mut skip: usize, mut len: usize, mut piece: impl FnMut(*mut u8, usize)) {
        for v in self.iov {
            if len == 0 {
                break;
            }
            if skip >= v.iov_len {
                skip -= v.iov_len;
                continue;
            }
            let n = len.min(v.iov_len - skip);
            piece(v.iov_base.cast::<u8>().wrapping_add(skip), n);
            skip = 0;
            len -= n;
        }
    }

    /// Copies the bytes after the first `skip` into a ring's span.
    ///
    /// # Safety
    /// The entries name readable memory, `ring` is a ring's buffer, and the span was reserved in it.
    #[inline]
    pub unsafe fn copy_in(&self, skip: usize, ring: NonNull<u8>, span: Span) {
        let mut skip = skip;
        for (at, len) in [span.head, span.tail] {
            if len == 0 {
                continue;
            }
            let mut to = ring.as_ptr().wrapping_add(at);
            self.pieces(skip, len, |from, n| {
                // SAFETY: the caller vouches for both; private memory and a ring do not overlap.
                unsafe { core::ptr::copy_nonoverlapping(from, to, n) };
                to = to.wrapping_add(n);
            });
            skip += len;
        }
    }

    /// Copies a ring's span to the places after the first `skip` bytes.
    ///
    /// # Safety
    /// The entries name writable memory, `ring` is a ring's buffer, and the span is readable in it.
    #[inline]
    pub unsafe fn copy_out(&self, skip: usize, ring: NonNull<u8>, span: Span) {
        let mut skip = skip;
        for (at, len) in [span.head, span.tail] {
            if len == 0 {
                continue;
            }
            let mut from = ring.as_ptr().wrapping_add(at).cast_const();
            self.pieces(skip, len, |to, n| {
                // SAFETY: as in copy_in.
                unsafe { core::ptr::copy_nonoverlapping(from, to, n) };
                from = from.wrapping_add(n);
            });
            skip += len;
        }
    }
}
