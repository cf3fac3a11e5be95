//! What each file descriptor of the program is to Shunt.
//!
//! One array of words, reserved once at start (pages that are never touched cost nothing) and read
//! without a lock: an entry is found with one bounds check and one load. The mapping is private, so
//! a fork's child has its own copy, as it has of the kernel's table.
//!
//! A word has the [`Kind`] in its low three bits. Above it stands which object: a place and a number
//! of uses (a [`Name`]), or a pointer. Two connections never have the same word, so a call that finds
//! the word that it began with is on the connection on which it began. A descriptor that is no
//! business of Shunt's is zero, which is also what all are before the table is reserved and beyond its
//! end.

use core::ffi::c_int;
use core::ops::RangeInclusive;
use core::ptr;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicUsize, Ordering};
use std::sync::Once;

use rustix::mm::{MapFlags, ProtFlags};
use shunt_heap::slab::Name;
use shunt_shm::memfd::{leave_out_of_dumps, leave_unlocked};

/// Descriptors that the table covers; those above are the kernel's alone.
pub const CAPACITY: usize = 1 << 20;

const KIND_BITS: usize = 0b111;
/// Bits of a place, above those of the kind.
const INDEX_BITS: u32 = 20;
const INDEX_AT: u32 = KIND_BITS.count_ones();
const USES_AT: u32 = INDEX_AT + INDEX_BITS;

/// What a file descriptor is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// Not Shunt's business.
    Kernel = 0,
    /// A TCP connection that is, or may be, carried by shared memory.
    Stream = 1,
    /// A TCP connection that stays on TCP and is only listed.
    Tracked = 2,
    /// A listening TCP socket.
    Listener = 3,
    /// An epoll instance.
    Epoll = 4,
    /// A TCP socket that this process has made, and that has no connection yet: nothing stands behind
    /// it, but what is known of it need not be asked.
    Unconnected = 5,
    /// A socket that a call is just connecting: what it becomes is decided when the call is over, if it
    /// still has this entry then. Nothing stands behind it.
    Connecting = 6,
    /// The library's own; the program does not know of it.
    Own = 7,
}

/// An entry of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct Entry(usize);

impl Entry {
    /// Nothing known: the kernel's.
    pub const KERNEL: Self = Self(0);

    /// An object of this kind that is known by place and use.
    #[must_use]
    pub const fn named(kind: Kind, name: Name) -> Self {
        let index = (name.index as usize) & ((1 << INDEX_BITS) - 1);
        #[allow(clippy::cast_possible_truncation, reason = "a register is as wide")]
        let uses = name.uses as usize;
        Self(uses << USES_AT | index << INDEX_AT | kind as usize)
    }

    /// The place and the use that stand in it.
    #[inline]
    #[must_use]
    pub const fn name(self) -> Name {
        #[allow(clippy::cast_possible_truncation, reason = "it has so few bits")]
        let index = (self.0 >> INDEX_AT) as u32 & ((1 << INDEX_BITS) - 1);
        Name { index, uses: (self.0 >> USES_AT) as u64 }
    }

    /// Everything but the kind.
    #[inline]
    #[must_use]
    pub const fn object(self) -> u64 {
        (self.0 & !KIND_BITS) as u64
    }

    /// The reverse of [`Self::object`].
    #[inline]
    #[must_use]
    pub const fn of_object(kind: Kind, object: u64) -> Self {
        #[allow(clippy::cast_possible_truncation, reason = "a register is as wide")]
        let object = object as usize;
        Self(object | kind as usize)
    }

    /// True for what is no business of the library's yet.
    #[inline]
    #[must_use]
    pub const fn is_plain(self) -> bool {
        matches!(self.kind(), Kind::Kernel | Kind::Unconnected)
    }

    /// True for entries of one connection, which may have come to be TCP for good between the two.
    #[inline]
    #[must_use]
    pub const fn is_same_object(self, other: Self) -> bool {
        (self.0 ^ other.0) & !KIND_BITS == 0 && self.is_connection() && other.is_connection()
    }

    /// True for a connection that is or may be shunted.
    #[inline]
    #[must_use]
    pub const fn is_stream(self) -> bool {
        self.0 & KIND_BITS == Kind::Stream as usize
    }

    /// True for a connection, also one that is TCP for good.
    #[inline]
    #[must_use]
    pub const fn is_connection(self) -> bool {
        const { assert!(Kind::Stream as usize == 1 && Kind::Tracked as usize == 2) };
        (self.0 & KIND_BITS).wrapping_sub(1) < 2
    }

    /// An object of this kind that is known by its address, which no other one ever has. Objects are aligned to 8 bytes or more.
    #[must_use]
    pub fn new<T>(kind: Kind, object: *const T) -> Self {
        const { assert!(align_of::<T>() >= 8, "the low three bits hold the kind") };
        Self(object.expose_provenance() & !KIND_BITS | kind as usize)
    }

    /// An own descriptor, by its number in [`crate::fds::own_fds`].
    #[must_use]
    pub(crate) const fn own(index: u16) -> Self {
        Self((index as usize) << 3 | Kind::Own as usize)
    }

    /// A socket just made, with a number that no other one has.
    #[must_use]
    pub fn unconnected() -> Self {
        Self(next_number() << INDEX_AT | Kind::Unconnected as usize)
    }

    /// A socket that is being connected, with a number that no other one has. `is_fresh`: it was until
    /// now.
    #[must_use]
    pub fn connecting(is_fresh: bool) -> Self {
        let number = next_number() << 1 | usize::from(!is_fresh);
        Self(number << INDEX_AT | Kind::Connecting as usize)
    }

    /// The same once an option was set that matters.
    #[must_use]
    pub const fn no_longer_fresh(self) -> Self {
        Self(self.0 | 1 << INDEX_AT)
    }

    /// The number of an own descriptor in [`crate::fds::own_fds`].
    pub(crate) const fn own_index(self) -> usize {
        self.0 >> 3
    }

    /// What it is.
    #[inline]
    #[must_use]
    pub const fn kind(self) -> Kind {
        match self.0 & KIND_BITS {
            1 => Kind::Stream,
            2 => Kind::Tracked,
            3 => Kind::Listener,
            4 => Kind::Epoll,
            5 => Kind::Unconnected,
            6 => Kind::Connecting,
            7 => Kind::Own,
            _ => Kind::Kernel,
        }
    }

    /// True for what has an object behind it: neither the kernel's, of which a fresh socket is one, nor
    /// the library's own.
    #[inline]
    #[must_use]
    pub const fn is_object(self) -> bool {
        matches!(self.kind(), Kind::Stream | Kind::Tracked | Kind::Listener | Kind::Epoll)
    }

    /// The object. The caller knows its type from [`Self::kind`].
    #[inline]
    #[must_use]
    pub fn ptr<T>(self) -> *const T {
        ptr::with_exposed_provenance(self.0 & !KIND_BITS)
    }
}

fn next_number() -> usize {
    static GIVEN: AtomicUsize = AtomicUsize::new(0);
    GIVEN.fetch_add(1, Ordering::Relaxed) + 1
}

static BASE: AtomicPtr<AtomicUsize> = AtomicPtr::new(ptr::null_mut());
/// [`CAPACITY`] once the table is reserved, else 0: one bounds check covers both.
static LEN: AtomicUsize = AtomicUsize::new(0);
static HIGH_WATER: AtomicI32 = AtomicI32::new(-1);
/// The same of what is not the library's own, whose numbers are high: a fork goes over the table several times.
static PROGRAMS_HIGH_WATER: AtomicI32 = AtomicI32::new(-1);

/// Reserves the table; false when the address space has no room, and all stays the kernel's.
pub fn reserve() -> bool {
    static ONCE: Once = Once::new();
    ONCE.call_once(map);
    LEN.load(Ordering::Acquire) != 0
}

fn map() {
    // SAFETY: a fresh anonymous mapping; nothing is replaced.
    let mapped = unsafe {
        rustix::mm::mmap_anonymous(
            ptr::null_mut(),
            CAPACITY * size_of::<AtomicUsize>(),
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )
    };
    if let Ok(base) = mapped {
        if let Some(at) = ptr::NonNull::new(base.cast()) {
            let len = CAPACITY * size_of::<AtomicUsize>();
            // SAFETY: the fresh mapping.
            unsafe {
                leave_out_of_dumps(at, len);
                leave_unlocked(at, len);
            }
        }
        BASE.store(base.cast(), Ordering::Relaxed);
        // Release: who sees the length sees the base.
        LEN.store(CAPACITY, Ordering::Release);
    }
}

/// Makes every descriptor the kernel's for good, and closes the table.
pub fn close() {
    LEN.store(0, Ordering::Release);
}

/// True once the table is closed.
#[inline]
#[must_use]
pub fn is_closed() -> bool {
    LEN.load(Ordering::Acquire) == 0
}

#[inline]
fn word(fd: c_int) -> Option<&'static AtomicUsize> {
    // A negative number becomes a large one, which is out of bounds.
    let index = fd.cast_unsigned() as usize;
    if index >= LEN.load(Ordering::Acquire) {
        return None;
    }
    // SAFETY: the table is mapped (its length says so), never unmapped, and index is inside.
    Some(unsafe { &*BASE.load(Ordering::Relaxed).add(index) })
}

/// What `fd` is.
#[inline]
#[must_use]
pub fn lookup(fd: c_int) -> Entry {
    // Acquire: who sees the pointer sees the object as it was when it was set.
    word(fd).map_or(Entry::KERNEL, |word| Entry(word.load(Ordering::Acquire)))
}

/// Enters `fd`; false when the table does not reach so far, and `fd` stays the kernel's.
pub fn set(fd: c_int, entry: Entry) -> bool {
    let Some(word) = word(fd) else { return false };
    word.store(entry.0, Ordering::Release);
    raise_high_water(fd, entry);
    true
}

/// Makes `fd` the kernel's, and returns what it was. Of several callers one gets the entry.
pub fn take(fd: c_int) -> Entry {
    match word(fd) {
        // A look first, so that the pages of plain descriptors are not touched for writing.
        Some(word) if word.load(Ordering::Relaxed) != 0 => Entry(word.swap(0, Ordering::AcqRel)),
        _ => Entry::KERNEL,
    }
}

/// Replaces `old` by `new`; false when `fd` is something else by now.
pub fn replace_if(fd: c_int, old: Entry, new: Entry) -> bool {
    let replaced = word(fd).is_some_and(|word| {
        word.compare_exchange(old.0, new.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    });
    // One that becomes the kernel's is in nobody's way.
    if replaced && new != Entry::KERNEL {
        raise_high_water(fd, new);
    }
    replaced
}

fn raise_high_water(fd: c_int, entry: Entry) {
    let raise = |mark: &AtomicI32| {
        if mark.load(Ordering::Relaxed) < fd {
            mark.fetch_max(fd, Ordering::AcqRel);
        }
    };
    raise(&HIGH_WATER);
    if entry.kind() != Kind::Own {
        raise(&PROGRAMS_HIGH_WATER);
    }
}

/// The largest descriptor that was ever entered, or -1.
#[must_use]
pub fn high_water() -> c_int {
    HIGH_WATER.load(Ordering::Acquire)
}

/// The descriptors of the range that are not the kernel's.
pub fn iter(range: RangeInclusive<c_int>) -> impl Iterator<Item = (c_int, Entry)> {
    let first = (*range.start()).max(0);
    let last = (*range.end()).min(high_water());
    (first..=last).map(|fd| (fd, lookup(fd))).filter(|(_, entry)| *entry != Entry::KERNEL)
}

/// The program's descriptors that are not the kernel's alone.
pub fn of_program() -> impl Iterator<Item = (c_int, Entry)> {
    iter(0..=PROGRAMS_HIGH_WATER.load(Ordering::Acquire))
        .filter(|(_, entry)| entry.kind() != Kind::Own)
}

#[cfg(test)]
mod tests {
    use super::*;

    // Descriptors far above those that the test executable uses; each test has its own. What is
    // entered has no object behind it: other tests walk over the table.

    #[test]
    fn an_entry_keeps_its_kind_and_pointer() {
        let object = 7_u64;
        for kind in [Kind::Stream, Kind::Tracked, Kind::Listener, Kind::Epoll] {
            let entry = Entry::new(kind, &raw const object);
            assert_eq!((entry.kind(), entry.ptr::<u64>()), (kind, &raw const object));
            assert!(entry.is_object());
        }
        assert_eq!(Entry::own(511).kind(), Kind::Own);
        assert_eq!(Entry::own(511).own_index(), 511);
        assert!(!Entry::KERNEL.is_object());
    }

    #[test]
    fn set_take_replace() {
        assert!(reserve());
        let (fd, one, other) = (500_000, Entry::own(1), Entry::own(2));
        assert_eq!(lookup(fd), Entry::KERNEL);
        assert!(set(fd, one));
        assert!(high_water() >= fd);
        assert!(!replace_if(fd, other, one));
        assert!(replace_if(fd, one, other));
        assert_eq!(iter(fd - 5..=fd + 5).collect::<Vec<_>>(), [(fd, other)]);
        assert_eq!(take(fd), other);
        assert_eq!(take(fd), Entry::KERNEL);
    }

    #[test]
    fn own_descriptors_are_not_the_program_s() {
        assert!(reserve());
        let (fd, entry) = (500_200, Entry::connecting(false));
        assert!(set(fd, Entry::own(1)) && set(fd + 1, Entry::own(2)));
        let are_own = |all: Vec<(c_int, Entry)>| all.iter().all(|(_, e)| e.kind() == Kind::Own);
        assert!(are_own(iter(fd..=fd + 1).collect()));
        assert!(!of_program().any(|(other, _)| [fd, fd + 1].contains(&other)));
        // What takes the number of an own one is the program's.
        assert!(replace_if(fd + 1, Entry::own(2), entry));
        assert!(of_program().any(|found| found == (fd + 1, entry)));
        assert_eq!((take(fd), take(fd + 1)), (Entry::own(1), entry));
    }

    #[test]
    fn what_lies_outside_is_the_kernels() {
        assert!(reserve());
        let entry = Entry::own(1);
        for fd in [-1, c_int::MIN, 1 << 20, c_int::MAX] {
            assert!(!set(fd, entry));
            assert_eq!(lookup(fd), Entry::KERNEL);
            assert_eq!(take(fd), Entry::KERNEL);
        }
        assert!(set((1 << 20) - 1, entry));
        assert_eq!(take((1 << 20) - 1), entry);
    }

    #[test]
    fn one_of_many_takers_gets_the_entry() {
        assert!(reserve());
        let (fd, entry) = (500_100, Entry::own(1));
        for _ in 0..100 {
            set(fd, entry);
            let winners: usize = std::thread::scope(|scope| {
                let takers = [(); 4].map(|()| scope.spawn(|| usize::from(take(fd) == entry)));
                takers.into_iter().map(|taker| taker.join().unwrap()).sum()
            });
            assert_eq!(winners, 1);
        }
    }
}
