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
        // SAFETY: the caller promises `count` entries at `iov`, which is not null.
        let iov = if count == 0 { &[] } else { unsafe { core::slice::from_raw_parts(iov, count) } };
        let total = iov.iter().try_fold(0_usize, |n, v| n.checked_add(v.iov_len))?;
        isize::try_from(total).ok()?;
        Some(Self { iov, total })
    }

    /// The one buffer of a plain call.
    pub fn one(iov: &'a iovec) -> Self {
        Self { iov: core::slice::from_ref(iov), total: iov.iov_len }
    }

    /// None, for a call that moves so many bytes in another way.
    pub const fn none(total: usize) -> Self {
        Self { iov: &[], total }
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

    /// The bytes after the first `skip`, up to the end of the entry in which they are, and which that is.
    pub fn piece(&self, mut skip: usize) -> Option<(*mut u8, usize, usize)> {
        for (i, v) in self.iov.iter().enumerate() {
            if skip < v.iov_len {
                return Some((v.iov_base.cast::<u8>().wrapping_add(skip), v.iov_len - skip, i));
            }
            skip -= v.iov_len;
        }
        None
    }

    /// The same, and the entries behind it.
    pub fn pieces_from(&self, skip: usize) -> impl Iterator<Item = (*mut u8, usize, usize)> {
        let mut skip = skip;
        self.iov.iter().enumerate().filter_map(move |(i, v)| {
            let gone = skip.min(v.iov_len);
            skip -= gone;
            let at = v.iov_base.cast::<u8>().wrapping_add(gone);
            (gone < v.iov_len).then_some((at, v.iov_len - gone, i))
        })
    }

    /// Bytes after the first `skip` in the entry in which they are, and in those behind it up to one that is chosen by
    /// its number and length.
    pub fn run(&self, mut skip: usize, mut which: impl FnMut(usize, usize) -> bool) -> usize {
        let mut run = 0;
        for (i, v) in self.iov.iter().enumerate() {
            if skip >= v.iov_len {
                skip -= v.iov_len;
                continue;
            }
            if run > 0 && which(i, v.iov_len) {
                break;
            }
            run += v.iov_len - skip;
            skip = 0;
        }
        run
    }

    /// The entries that are chosen by their number and length.
    pub fn chosen(
        &self,
        mut which: impl FnMut(usize, usize) -> bool,
    ) -> impl Iterator<Item = (*mut u8, usize)> {
        let all = self.iov.iter().enumerate();
        let chosen = all.filter(move |(i, v)| v.iov_len > 0 && which(*i, v.iov_len));
        chosen.map(|(_, v)| (v.iov_base.cast::<u8>(), v.iov_len))
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
                // SAFETY: the entries name readable memory, and the reserved span is the caller's to write, so both are so long;
                // a program's buffer and a ring do not overlap.
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
                // SAFETY: the entries name writable memory, and the span can be read, so both are so long; a program's buffer and a
                // ring do not overlap.
                unsafe { core::ptr::copy_nonoverlapping(from, to, n) };
                from = from.wrapping_add(n);
            });
            skip += len;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_ends_before_the_next_chosen_entry() {
        let entry = |iov_len| iovec { iov_base: core::ptr::null_mut(), iov_len };
        let iov = [8, 0, 100, 5, 6, 200].map(entry);
        let buffers = Buffers { iov: &iov, total: 319 };
        let run = |skip| buffers.run(skip, |_, len| len >= 100);
        assert_eq!(
            [0, 3, 8, 9, 107, 108, 110, 118, 119, 318].map(run),
            [8, 5, 111, 110, 12, 11, 9, 1, 200, 1]
        );
        assert_eq!(run(319), 0);
        let pieces =
            |skip| buffers.pieces_from(skip).map(|(_, len, i)| (len, i)).collect::<Vec<_>>();
        assert_eq!(pieces(0), [(8, 0), (100, 2), (5, 3), (6, 4), (200, 5)]);
        assert_eq!(pieces(110), [(3, 3), (6, 4), (200, 5)]);
        assert_eq!((pieces(113), pieces(319)), (vec![(6, 4), (200, 5)], vec![]));
        assert_eq!(pieces(110).first(), buffers.piece(110).map(|(_, len, i)| (len, i)).as_ref());
    }
}
