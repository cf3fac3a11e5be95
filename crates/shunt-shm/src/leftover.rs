//! Bytes that lie unread in a ring when a program becomes another one (execve(2)), in memory of their own that goes
//! along with it.
//!
//! A memfd per connection: a page of facts, then the bytes. Nobody writes to either once it is made, but for one
//! word: how many of the bytes were taken. It is common to all programs that have the memory, as the kernel's receive
//! queue is to all that have the socket.
//!
//! Whoever finds such a memfd among its descriptors takes nothing in it for granted: a program may be started with any
//! descriptor. The facts are copied and checked once. What stays shared, the word, can tell of bytes taken that
//! were not, which concerns this connection alone, and whoever wrote it holds that.

use core::ptr::NonNull;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, ftruncate, memfd_create,
};
use rustix::io::{pread, pwrite};
use rustix::process::{Resource, getrlimit};

use crate::geometry::RING;
use crate::memfd::{self, Map};
use crate::sync::{AtomicU64, Ordering};

const MAGIC: u64 = 0x5348_554e_545f_4c4f; // "SHUNT_LO"

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Where the bytes begin.
const BYTES_AT: usize = 4096;
/// Where the word of [`Leftover::taken`] is: on a line of its own.
const TAKEN_AT: usize = 64;
/// In its place: see [`Leftover::leave_to_kernel`].
const LEFT_TO_KERNEL: u64 = u64::MAX;

/// What is known of the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Facts {
    /// The socket: its cookie (`SO_COOKIE`), and its inode, as cookies are those of a network namespace.
    pub cookie: u64,
    /// See `cookie`.
    pub inode: u64,
    /// How many bytes of the kernel socket come before them.
    pub start: u64,
    /// How many they are.
    pub len: u64,
    /// How many of the last of them the peer sends once more, over the kernel socket: from `start` on.
    pub again: u64,
    /// All that comes before them was read.
    pub in_ring: bool,
}

impl Facts {
    const WORDS: usize = 7;

    fn to_words(self) -> [u64; Self::WORDS] {
        let Self { cookie, inode, start, len, again, in_ring } = self;
        [MAGIC, cookie, inode, start, len, again, in_ring.into()]
    }

    /// `None`: they make no sense for memory of so many bytes.
    fn from_words(words: [u64; Self::WORDS], memory: usize) -> Option<Self> {
        let [magic, cookie, inode, start, len, again, in_ring] = words;
        let fits = |len: usize| (1..=RING).contains(&len) && memory == BYTES_AT + len;
        let makes_sense = magic == MAGIC
            && usize::try_from(len).is_ok_and(fits)
            && again <= len
            && start <= u64::MAX / 2
            && in_ring <= 1;
        makes_sense.then_some(Self { cookie, inode, start, len, again, in_ring: in_ring == 1 })
    }

    /// How far the kernel socket was read when nothing of what comes twice is left in it.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.start + self.again
    }

    /// How many of the bytes were taken by whoever has read the kernel socket so far: there the last of them come again.
    #[must_use]
    pub const fn taken_by(&self, read: u64) -> u64 {
        match read.saturating_sub(self.start) {
            0 => 0,
            more if more < self.again => self.len - self.again + more,
            _ => self.len,
        }
    }
}

/// Memory for such bytes, while it is being filled.
#[derive(Debug)]
pub struct Draft {
    fd: OwnedFd,
    facts: Facts,
    filled: u64,
}

impl Draft {
    /// Begins one. Nothing is mapped: it may be another process's memory in which this one runs (vfork(2)).
    ///
    /// # Errors
    /// `EFBIG` where `RLIMIT_FSIZE` forbids it, of which the kernel would tell by a signal; those of memfd_create(2)
    /// and ftruncate(2).
    pub fn new(facts: Facts) -> io::Result<Self> {
        let len = BYTES_AT as u64 + facts.len;
        if getrlimit(Resource::Fsize).current.is_some_and(|limit| limit < len) {
            return Err(rustix::io::Errno::FBIG.into());
        }
        let fd = memfd_create("shunt-leftover", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, len)?;
        Ok(Self { fd, facts, filled: 0 })
    }

    /// Puts the next bytes there.
    ///
    /// # Errors
    /// Those of pwrite(2): memory may be full.
    pub fn put(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let n = pwrite(&self.fd, bytes, BYTES_AT as u64 + self.filled)?;
            if n == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            self.filled += n as u64;
            bytes = &bytes[n..];
        }
        Ok(())
    }

    /// It is complete.
    ///
    /// # Errors
    /// `EINVAL` where more or fewer bytes were put there than were announced; those of pwrite(2) and fcntl(2).
    pub fn finish(self) -> io::Result<OwnedFd> {
        if self.filled != self.facts.len {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut bytes = [0; Facts::WORDS * 8];
        for (to, word) in bytes.chunks_exact_mut(8).zip(self.facts.to_words()) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        let n = pwrite(&self.fd, &bytes, 0)?;
        if n != bytes.len() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        fcntl_add_seals(&self.fd, SEALS)?;
        Ok(self.fd)
    }
}

/// Such bytes, as somebody who was started with them has them.
#[derive(Debug)]
pub struct Leftover {
    facts: Facts,
    map: Map,
}

impl Leftover {
    /// The facts, if the descriptor is such memory. Costs one system call if it is closed, or no memfd.
    #[must_use]
    pub fn facts(fd: impl AsFd) -> Option<Facts> {
        if fcntl_get_seals(&fd).ok()? != SEALS {
            return None;
        }
        let memory = memfd::size(&fd).ok()?;
        let mut bytes = [0; Facts::WORDS * 8];
        let n = pread(&fd, &mut bytes, 0).ok()?;
        let mut words = [0; Facts::WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_ne_bytes(bytes.try_into().ok()?);
        }
        Facts::from_words(words, memory).filter(|_| n == bytes.len())
    }

    /// Takes it up, with a copy of all of the bytes: they do not change any more, whatever others write there.
    ///
    /// # Errors
    /// `EINVAL` when it is none, else those of mmap(2) and pread(2).
    pub fn open(fd: impl AsFd) -> io::Result<(Self, Vec<u8>)> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
        let facts = Self::facts(&fd).ok_or_else(invalid)?;
        let len = usize::try_from(facts.len).map_err(|_| invalid())?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len).map_err(|_| io::ErrorKind::OutOfMemory)?;
        bytes.resize(len, 0);
        let mut got = 0;
        while got < len {
            match pread(&fd, &mut bytes[got..], (BYTES_AT + got) as u64)? {
                0 => return Err(invalid()),
                n => got += n,
            }
        }
        Ok((Self { facts, map: Map::new(fd, BYTES_AT, true)? }, bytes))
    }

    /// The facts.
    #[must_use]
    pub const fn known(&self) -> &Facts {
        &self.facts
    }

    fn word(&self) -> &AtomicU64 {
        let at: NonNull<AtomicU64> = self.map.base().cast();
        // SAFETY: the map is a page long, and the place aligned; it is an atomic word wherever it is used.
        unsafe { at.byte_add(TAKEN_AT).as_ref() }
    }

    /// How many of the bytes were taken, by whatever program.
    #[must_use]
    pub fn taken(&self) -> u64 {
        // SYNC POINT taken: pairs with the exchange in `take`. Nothing else is shared.
        self.word().load(Ordering::Acquire).min(self.facts.len)
    }

    /// Takes `n` bytes from `at` on, which were copied. False: another program has taken some of them meanwhile.
    #[must_use]
    pub fn take(&self, at: u64, n: u64) -> bool {
        let word = self.word();
        let mut taken = word.load(Ordering::Acquire);
        // What was taken by reading the kernel socket does not stand in the word.
        while taken <= at {
            // SYNC POINT taken: see above.
            match word.compare_exchange(taken, at + n, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(other) => taken = other,
            }
        }
        false
    }

    /// What the peer sends once more has come, before anybody took any of that here: all programs read it from the kernel
    /// socket, as those do that know of nothing else. `most`: how many of the bytes may be taken for that. False where more are.
    #[must_use]
    pub fn leave_to_kernel(&self, most: u64) -> bool {
        let word = self.word();
        let mut taken = word.load(Ordering::Acquire);
        while taken <= most {
            let (ok, no) = (Ordering::AcqRel, Ordering::Acquire);
            match word.compare_exchange(taken, LEFT_TO_KERNEL, ok, no) {
                Ok(_) => return true,
                Err(other) => taken = other,
            }
        }
        taken == LEFT_TO_KERNEL
    }

    /// True once that is so: all is taken, and nothing is to be dropped.
    #[must_use]
    pub fn is_left_to_kernel(&self) -> bool {
        self.word().load(Ordering::Acquire) == LEFT_TO_KERNEL
    }

    /// Gives the last of them back that were taken up to `end`. False: another program went on behind them.
    pub fn give_back(&self, end: u64, n: u64) -> bool {
        let (ok, no) = (Ordering::AcqRel, Ordering::Relaxed);
        self.word().compare_exchange(end, end.saturating_sub(n), ok, no).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FACTS: Facts = Facts { cookie: 7, inode: 8, start: 100, len: 5, again: 3, in_ring: true };

    fn made(facts: Facts, bytes: &[u8]) -> OwnedFd {
        let mut draft = Draft::new(facts).unwrap();
        let (first, second) = bytes.split_at(bytes.len() / 2);
        draft.put(first).unwrap();
        draft.put(second).unwrap();
        draft.finish().unwrap()
    }

    #[test]
    fn what_was_put_there_is_found() {
        let fd = made(FACTS, b"bytes");
        let (leftover, bytes) = Leftover::open(&fd).unwrap();
        assert_eq!((leftover.known(), bytes.as_slice()), (&FACTS, &b"bytes"[..]));
        assert_eq!(leftover.taken(), 0);
    }

    #[test]
    fn each_byte_is_taken_once() {
        let fd = made(FACTS, b"bytes");
        let [(one, _), (other, _)] = [&fd; 2].map(|fd| Leftover::open(fd).unwrap());
        assert!(one.take(0, 2));
        assert_eq!(other.taken(), 2);
        assert!(!other.take(0, 1));
        assert!(other.take(2, 3));
        assert!(other.give_back(5, 1));
        assert!(!one.give_back(5, 1));
        assert_eq!(one.taken(), 4);
        // As much was taken by reading the kernel socket.
        assert!(one.take(4, 1));
        assert!(!one.take(4, 1));
    }

    #[test]
    fn who_reads_the_kernel_socket_takes_what_comes_again() {
        let taken = [99, 100, 101, 102, 103, 500].map(|read| FACTS.taken_by(read));
        assert_eq!(taken, [0, 0, 3, 4, 5, 5]);
        assert_eq!(FACTS.end(), 103);
        let nothing = Facts { again: 0, ..FACTS };
        assert_eq!([100, 101].map(|read| nothing.taken_by(read)), [0, 5]);
    }

    #[test]
    fn what_comes_again_is_left_to_the_kernel_while_nobody_has_it() {
        let fd = made(FACTS, b"bytes");
        let [(one, _), (other, _)] = [&fd; 2].map(|fd| Leftover::open(fd).unwrap());
        assert!(one.take(0, 2));
        assert!(!other.leave_to_kernel(1) && !one.is_left_to_kernel());
        assert!(other.leave_to_kernel(2) && one.is_left_to_kernel());
        assert!(one.leave_to_kernel(2));
        assert!(!one.take(2, 1));
        assert_eq!(one.taken(), FACTS.len);
    }

    /// Memory of a stranger's: with the facts of its choice.
    fn forged(words: [u64; Facts::WORDS], memory: u64, seals: SealFlags) -> OwnedFd {
        let fd = memfd_create("forged", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, memory).unwrap();
        let bytes: Vec<_> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        pwrite(&fd, &bytes, 0).unwrap();
        fcntl_add_seals(&fd, seals).unwrap();
        fd
    }

    #[test]
    fn nothing_is_taken_for_granted() {
        let words = FACTS.to_words();
        let memory = BYTES_AT as u64 + FACTS.len;
        let with = |at: usize, word: u64| {
            let mut words = words;
            words[at] = word;
            words
        };
        assert_eq!(Leftover::facts(forged(words, memory, SEALS)), Some(FACTS));
        let wrong = [
            (words, memory, SealFlags::SHRINK | SealFlags::GROW),
            (words, memory, SealFlags::empty()),
            (words, memory, SEALS | SealFlags::WRITE),
            (words, memory + 1, SEALS),
            (words, memory - 1, SEALS),
            (words, BYTES_AT as u64, SEALS),
            (words, Facts::WORDS as u64 * 8, SEALS),
            (with(0, MAGIC + 1), memory, SEALS),
            (with(3, u64::MAX / 2 + 1), memory, SEALS),
            (with(4, 0), BYTES_AT as u64, SEALS),
            (with(4, u64::MAX), memory, SEALS),
            (with(4, RING as u64 + 1), (BYTES_AT + RING) as u64 + 1, SEALS),
            (with(5, 6), memory, SEALS),
            (with(5, u64::MAX), memory, SEALS),
            (with(6, 2), memory, SEALS),
        ];
        for (words, memory, seals) in wrong {
            let fd = forged(words, memory, seals);
            assert_eq!(Leftover::facts(&fd), None, "{words:?} {memory} {seals:?}");
            assert!(Leftover::open(&fd).is_err());
        }
        assert_eq!(Leftover::facts(std::fs::File::open("/dev/null").unwrap()), None);
    }

    #[test]
    fn a_word_that_lies_stays_within_the_bytes() {
        let fd = made(FACTS, b"bytes");
        let (leftover, _) = Leftover::open(&fd).unwrap();
        pwrite(&fd, &u64::MAX.to_ne_bytes(), TAKEN_AT as u64).unwrap();
        assert_eq!(leftover.taken(), FACTS.len);
        assert!(!leftover.take(0, 1));
        assert!(!leftover.take(5, 1));
    }

    #[test]
    fn what_is_not_complete_is_not_passed_on() {
        let mut draft = Draft::new(FACTS).unwrap();
        draft.put(b"byte").unwrap();
        assert!(draft.finish().is_err());
    }
}
