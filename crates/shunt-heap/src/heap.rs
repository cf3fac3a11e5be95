//! The heap: blocks of some forty sizes, each size with a free list of its own.
//!
//! Blocks are cut out of *runs* of pages, runs out of *chunks*. What was cut stays of its size;
//! what is freed is used again. Blocks above `LARGEST` are mappings of their own.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{self, NonNull};
use core::sync::atomic::AtomicPtr;

use shunt_shm::sync::{AtomicU32, AtomicU64, Ordering};

use crate::pages::{self, PAGE};
use crate::stack::{Links, Stack};

/// The largest block that is cut out of a run.
const LARGEST: usize = 32 * 1024;
/// Sizes up to this one are multiples of [`GRAIN`]; above there are four between two powers of two.
const FINE: usize = 128;
/// The smallest block, to a multiple of which blocks are aligned.
const GRAIN: usize = 16;

/// Bytes of a chunk, to a multiple of which it is aligned.
const CHUNK: usize = 256 * 1024;
/// Grains of a chunk: so a block has a number.
const GRAINS: u32 = 16 * 1024;
const _: () = assert!(GRAINS as usize * GRAIN == CHUNK);
/// Chunks that there can be: 1 GiB.
const CHUNKS: usize = 4096;
const PAGES: u64 = (CHUNK / PAGE) as u64;

const CLASSES: usize = class_of(LARGEST) + 1;

/// The size class for `size` bytes, from 1 to [`LARGEST`].
const fn class_of(size: usize) -> usize {
    let size = if size == 0 { 1 } else { size };
    if size <= FINE {
        return (size - 1) / GRAIN;
    }
    // Of 129 to 256, whose highest bit less one is bit 7, the quarters are 160, 192, 224 and 256.
    let bit = (size - 1).ilog2() as usize;
    let quarter = ((size - 1) >> (bit - 2)) & 3;
    FINE / GRAIN + (bit - FINE.ilog2() as usize) * 4 + quarter
}

/// Bytes of a block of a class.
const fn size_of_class(class: usize) -> usize {
    let fine = FINE / GRAIN;
    if class < fine {
        return (class + 1) * GRAIN;
    }
    let (doubling, quarter) = ((class - fine) / 4, (class - fine) % 4);
    (FINE << doubling) / 4 * (5 + quarter)
}

/// The class for a layout; `None` for what is a mapping of its own.
fn class(layout: Layout) -> Option<usize> {
    let size = if layout.align() <= GRAIN {
        layout.size()
    } else {
        // A block whose size is a power of two is aligned to it.
        layout.size().max(layout.align()).checked_next_power_of_two()?
    };
    (size <= LARGEST).then(|| class_of(size))
}

/// Pages of a run of a class: for large blocks one of them, for small ones a page.
const fn pages_of_run(class: usize) -> usize {
    size_of_class(class).div_ceil(PAGE)
}

/// The heap. All state lies in statics: there is one.
#[derive(Debug)]
pub struct Heap;

static FREE: [Stack; CLASSES] = [const { Stack::new() }; CLASSES];
/// The chunks so far, in the order in which they were made.
static CHUNK_TABLE: [AtomicPtr<u8>; CHUNKS] = [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS];
/// Chunk and page in it from which the next run is cut. The first page of a chunk holds its number.
static NEXT_RUN: AtomicU64 = AtomicU64::new(0);

struct Blocks;

impl Links for Blocks {
    fn link(&self, number: u32) -> &AtomicU32 {
        let at = address(number);
        // SAFETY: numbers come from blocks of chunks, which are never unmapped; a block is aligned
        // to a grain and longer than a word. It may be in use by now: then the word is read for
        // nothing, as the exchange that follows fails.
        unsafe { at.cast().as_ref() }
    }
}

fn address(number: u32) -> NonNull<u8> {
    let (chunk, grain) = (number / GRAINS, number % GRAINS);
    let base = CHUNK_TABLE[chunk as usize % CHUNKS].load(Ordering::Acquire);
    // SAFETY: a block's chunk is in the table, and its grain inside the chunk.
    unsafe { NonNull::new_unchecked(base.add(grain as usize * GRAIN)) }
}

/// # Safety
/// `at` is a block of a chunk.
unsafe fn number(at: *mut u8) -> u32 {
    let base = at.map_addr(|at| at & !(CHUNK - 1));
    #[allow(clippy::cast_possible_truncation, reason = "a chunk has few grains")]
    let grain = ((at.addr() - base.addr()) / GRAIN) as u32;
    // SAFETY: chunks are aligned, and their first word, written once, is their number.
    unsafe { *base.cast::<u32>() * GRAINS + grain }
}

/// Pages that nobody has, of one chunk.
fn cut_run(class: usize) -> Option<NonNull<u8>> {
    let wanted = pages_of_run(class) as u64;
    let mut next = NEXT_RUN.load(Ordering::Acquire);
    loop {
        let (chunk, page) = (next / PAGES, next % PAGES);
        // The first page of a chunk is not cut; blocks of several pages are aligned to their length
        // where that is a power of two.
        let first = page.max(1).next_multiple_of(wanted.next_power_of_two());
        let end = first + wanted;
        let after = if end > PAGES { (chunk + 1) * PAGES } else { chunk * PAGES + end };
        if end <= PAGES {
            make_chunk(usize::try_from(chunk).ok()?)?;
        }
        match NEXT_RUN.compare_exchange(next, after, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) if end <= PAGES => {
                let base = CHUNK_TABLE[usize::try_from(chunk).ok()?].load(Ordering::Acquire);
                // SAFETY: the run lies inside the chunk.
                return NonNull::new(unsafe { base.add(usize::try_from(first).ok()? * PAGE) });
            }
            Ok(_) => next = after,
            Err(now) => next = now,
        }
    }
}

/// Sees to it that a chunk is there.
fn make_chunk(index: usize) -> Option<()> {
    let place = CHUNK_TABLE.get(index)?;
    if !place.load(Ordering::Acquire).is_null() {
        return Some(());
    }
    let new = pages::get_aligned(CHUNK, CHUNK)?;
    // SAFETY: the first page of a fresh chunk, which nobody else has yet.
    unsafe { new.cast::<u32>().write(u32::try_from(index).ok()?) };
    let (ok, no) = (Ordering::AcqRel, Ordering::Relaxed);
    if place.compare_exchange(ptr::null_mut(), new.as_ptr(), ok, no).is_err() {
        // SAFETY: another thread, or a handler, was quicker; nobody has seen this one.
        unsafe { pages::release(new.as_ptr(), CHUNK) };
    }
    Some(())
}

/// A block of a class: one that was freed, or one of a new run.
fn take(class: usize) -> *mut u8 {
    if let Some(number) = FREE[class].pop(&Blocks) {
        return address(number).as_ptr();
    }
    let Some(run) = cut_run(class) else { return ptr::null_mut() };
    let size = size_of_class(class);
    let count = pages_of_run(class) * PAGE / size;
    // SAFETY: the run is a part of a chunk.
    let first = unsafe { number(run.as_ptr()) };
    #[allow(clippy::cast_possible_truncation, reason = "a block has few grains")]
    let step = (size / GRAIN) as u32;
    let last = first + u32::try_from(count - 1).unwrap_or(0) * step;
    for at in (first + step..last).step_by(step as usize) {
        Blocks.link(at).store(at + step + 1, Ordering::Relaxed);
    }
    if first < last {
        FREE[class].push_chain(first + step, last, &Blocks);
    }
    run.as_ptr()
}

/// Length and alignment of a mapping of its own.
fn mapping(layout: Layout) -> Option<(usize, usize)> {
    Some((layout.size().checked_next_multiple_of(PAGE)?, layout.align()))
}

// SAFETY: blocks are long enough and aligned as the layout asks, they do not overlap, and a block is
// nobody else's until it is freed: it leaves its free list, or is cut, by one compare-exchange.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if let Some(class) = class(layout) {
            return take(class);
        }
        let got = mapping(layout).and_then(|(len, align)| match align {
            ..=PAGE => pages::get(len),
            _ => pages::get_aligned(len, align),
        });
        got.map_or(ptr::null_mut(), NonNull::as_ptr)
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        match class(layout) {
            // SAFETY: the caller promises that it came from `alloc` with this layout, which took it from this class's blocks.
            Some(class) => FREE[class].push(unsafe { number(at) }, &Blocks),
            None => {
                if let Some((len, _)) = mapping(layout) {
                    // SAFETY: it came from `alloc` with this layout, which has mapped so many bytes for it.
                    unsafe { pages::release(at, len) };
                }
            }
        }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller promises that `size`, rounded up to the alignment, does not overflow.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        if let (Some(old), Some(same)) = (class(layout), class(new))
            && old == same
        {
            return at;
        }
        // SAFETY: the caller promises that `size` is not 0, so the layout has a size.
        let to = unsafe { self.alloc(new) };
        if !to.is_null() {
            // SAFETY: both blocks are as long, and do not overlap; `at` is the caller's to give back.
            unsafe {
                ptr::copy_nonoverlapping(at, to, layout.size().min(size));
                self.dealloc(at, layout);
            }
        }
        to
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_size_has_the_smallest_class_that_holds_it() {
        for size in 1..=LARGEST {
            let class = class_of(size);
            assert!(size_of_class(class) >= size, "{size}");
            assert!(class == 0 || size_of_class(class - 1) < size, "{size}");
        }
        assert_eq!(size_of_class(CLASSES - 1), LARGEST);
        assert!((0..CLASSES).all(|class| size_of_class(class).is_multiple_of(GRAIN)));
    }

    #[test]
    fn powers_of_two_have_a_class_of_their_own() {
        for bit in GRAIN.ilog2()..=LARGEST.ilog2() {
            assert_eq!(size_of_class(class_of(1 << bit)), 1 << bit);
        }
    }
}
