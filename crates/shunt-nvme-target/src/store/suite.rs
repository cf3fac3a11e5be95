//! What every store must do.

use std::num::NonZeroUsize;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, poll};
use tempfile::TempDir;

use super::*;
use crate::memory::Memory;

const BLOCKS: u64 = 256;

/// A store under test, and what it needs to live.
struct Subject {
    name: &'static str,
    store: Arc<dyn Store>,
    mailbox: Arc<Mailbox>,
    memory: Arc<Memory>,
    keeps: bool,
    _dir: Option<TempDir>,
}

fn opening(dir: &TempDir, block: BlockSize) -> Opening {
    Opening {
        path: dir.path().join("store"),
        block,
        size: Some(BLOCKS << block.shift()),
        create: true,
        direct: false,
        read_only: false,
        threads: NonZeroUsize::new(3).unwrap(),
    }
}

fn subjects(block: BlockSize) -> Vec<Subject> {
    let geometry = Geometry { block, blocks: BLOCKS };
    let subject = |name, store, keeps, dir| Subject {
        name,
        store,
        mailbox: Arc::new(Mailbox::new().unwrap()),
        memory: Memory::new("suite", 4 << 20).unwrap(),
        keeps,
        _dir: dir,
    };
    let dir = tempfile::tempdir().unwrap();
    let file = Arc::new(FileStore::open(&opening(&dir, block)).unwrap());
    vec![
        subject("null", Arc::new(NullStore::new(geometry).unwrap()), false, None),
        subject("memory", Arc::new(MemoryStore::new(geometry).unwrap()), true, None),
        subject("file", file, true, Some(dir)),
    ]
}

impl Subject {
    /// A piece with a pattern of its own.
    fn piece(&self, place: usize, blocks: u64, pattern: u8) -> Piece {
        let len = usize::try_from(blocks << self.store.geometry().block.shift()).unwrap();
        let piece = self.memory.piece(place..place + len).unwrap();
        let bytes: Vec<u8> = (0..len).map(|i| (i / 7).to_le_bytes()[0] ^ pattern).collect();
        piece.copy_in(&bytes);
        piece
    }

    fn submit(&self, request: Request, tag: u64) -> Option<Outcome> {
        match self.store.submit(request, tag, &self.mailbox) {
            Submitted::Done(outcome) => Some(outcome),
            Submitted::Pending => None,
        }
    }

    fn wait(&self, mut count: usize) -> Vec<Done> {
        let mut done = Vec::new();
        while count > 0 {
            poll(&mut [PollFd::new(&self.mailbox.bell(), PollFlags::IN)], None).unwrap();
            let before = done.len();
            self.mailbox.take(&mut done);
            count -= done.len() - before;
        }
        done
    }

    fn run(&self, request: Request) -> Outcome {
        self.submit(request, 77).unwrap_or_else(|| {
            let done = self.wait(1);
            assert_eq!((done.len(), done[0].tag), (1, 77), "{}", self.name);
            done[0].outcome
        })
    }

    fn write(&self, first: u64, data: &Piece, fua: bool) -> Outcome {
        let blocks = self.blocks(first, data);
        self.run(Request::Write { blocks, data: data.clone(), fua })
    }

    fn blocks(&self, first: u64, data: &Piece) -> Blocks {
        Blocks { first, count: data.len() as u64 >> self.store.geometry().block.shift() }
    }

    fn reads(&self, first: u64, expected: &Piece) -> bool {
        let place = 2 << 20;
        let got = self.memory.piece(place..place + expected.len()).unwrap();
        got.copy_in(&vec![0xee; got.len()]);
        self.run(Request::Read(self.blocks(first, &got), got.clone())).unwrap();
        got.differs_at(expected).is_none()
    }
}

fn each(check: impl Fn(&Subject)) {
    for block in [BlockSize::B512, BlockSize::B4096] {
        subjects(block).iter().for_each(&check);
    }
}

#[test]
fn what_was_written_is_read() {
    each(|s| {
        let zero = s.memory.piece(3 << 20..(3 << 20) + s.piece(0, 8, 0).len()).unwrap();
        assert!(s.reads(3, &zero), "{}", s.name);
        let data = s.piece(0, 8, 0x5a);
        for (first, fua) in [(0, false), (BLOCKS - 8, true), (3, false)] {
            s.write(first, &data, fua).unwrap();
            assert_eq!(s.reads(first, &data), s.keeps, "{}", s.name);
        }
        assert_eq!(s.run(Request::Flush), Ok(()));
        assert_eq!(s.run(Request::Compare(s.blocks(3, &data), data.clone())).is_ok(), s.keeps);
        let other = s.piece(1 << 20, 8, 0x5b);
        let differs = s.run(Request::Compare(s.blocks(3, &other), other.clone()));
        assert_eq!(differs, Err(Error::Differs), "{}", s.name);
    });
}

#[test]
fn the_last_block_is_the_last() {
    each(|s| {
        let data = s.piece(0, 8, 1);
        for first in [BLOCKS - 7, BLOCKS, u64::MAX, u64::MAX - 7] {
            let blocks = s.blocks(first, &data);
            let zero = Request::Zero { blocks, deallocate: true, fua: false };
            let (expected, data) = (data.clone(), data.clone());
            for request in [
                Request::Read(blocks, data.clone()),
                Request::Write { blocks, data: data.clone(), fua: false },
                Request::Compare(blocks, data.clone()),
                zero,
                Request::Verify(blocks),
                Request::Discard(vec![Blocks { first: 0, count: 1 }, blocks]),
                Request::CompareAndWrite { blocks, expected, data, fua: false },
            ] {
                let what = format!("{}: {request:?}", s.name);
                assert_eq!(s.run(request), Err(Error::OutOfRange), "{what}");
            }
            assert!(s.store.lend(blocks).is_none());
        }
        let short = Request::Read(Blocks { first: 0, count: 9 }, data);
        assert_eq!(s.run(short), Err(Error::Length), "{}", s.name);
    });
}

#[test]
fn zeroes() {
    each(|s| {
        let len = s.piece(0, 128, 0).len();
        let zero = s.memory.piece(3 << 20..(3 << 20) + len).unwrap();
        for (deallocate, count) in [(true, 128), (false, 128), (true, 1), (false, 1), (true, 0)] {
            let data = s.piece(0, 130, 0x31);
            s.write(10, &data, false).unwrap();
            let blocks = Blocks { first: 11, count };
            s.run(Request::Zero { blocks, deallocate, fua: deallocate }).unwrap();
            let bytes = len / 128;
            let zeroes = usize::try_from(count).unwrap() * bytes;
            assert!(s.reads(11, &zero.part(0, zeroes)), "{}", s.name);
            assert_eq!(s.reads(10, &data.part(0, bytes)), s.keeps);
            let rest = data.part(bytes + zeroes, data.len());
            assert_eq!(s.reads(11 + count, &rest), s.keeps, "{}: {deallocate} {count}", s.name);
        }
    });
}

#[test]
fn what_is_discarded_leaves_its_neighbours_alone() {
    each(|s| {
        let data = s.piece(0, 64, 0x77);
        s.write(0, &data, false).unwrap();
        let ranges = [(1, 16), (40, 0), (48, 15)];
        let ranges = ranges.map(|(first, count)| Blocks { first, count });
        assert_eq!(s.run(Request::Discard(ranges.to_vec())), Ok(()));
        assert_eq!(s.run(Request::Verify(Blocks { first: 0, count: BLOCKS })), Ok(()));
        let block = data.len() / 64;
        let zero = s.memory.piece(3 << 20..(3 << 20) + 16 * block).unwrap();
        assert!(s.reads(1, &zero) && s.reads(48, &zero.part(0, 15 * block)), "{}", s.name);
        for (first, count) in [(0, 1), (17, 31), (63, 1)] {
            let kept = data.part(first * block, count * block);
            assert_eq!(s.reads(first as u64, &kept), s.keeps, "{}: {first}", s.name);
        }
    });
}

#[test]
fn compare_and_write_is_one_step() {
    each(|s| {
        let (zero, data) = (s.piece(0, 1, 0), s.piece(1 << 20, 1, 9));
        zero.clear();
        let blocks = s.blocks(5, &data);
        let exchange = |expected: &Piece, data: &Piece| {
            let (expected, data) = (expected.clone(), data.clone());
            s.run(Request::CompareAndWrite { blocks, expected, data, fua: true })
        };
        assert_eq!(exchange(&data, &data), Err(Error::Differs), "{}", s.name);
        assert_eq!(exchange(&zero, &data), Ok(()), "{}", s.name);
        if s.keeps {
            assert!(s.reads(5, &data));
            assert_eq!(exchange(&zero, &data), Err(Error::Differs), "{}", s.name);
            assert_eq!(exchange(&data, &zero), Ok(()), "{}", s.name);
            assert!(s.reads(5, &zero));
        }
    });
}

#[test]
fn each_request_completes_once_under_its_tag() {
    each(|s| {
        let mut pending = Vec::new();
        for tag in 0..64_u64 {
            let data = s.piece(usize::try_from(tag).unwrap() * 16384, 4, tag.to_le_bytes()[0]);
            let blocks = Blocks { first: tag * 4, count: 4 };
            match s.submit(Request::Write { blocks, data, fua: false }, tag) {
                Some(outcome) => assert_eq!(outcome, Ok(())),
                None => pending.push(tag),
            }
        }
        let mut done: Vec<_> = s.wait(pending.len()).iter().map(|done| done.tag).collect();
        done.sort_unstable();
        assert_eq!(done, pending, "{}", s.name);
        for tag in 0..64_u64 {
            let data = s.piece(0, 4, tag.to_le_bytes()[0]);
            assert_eq!(s.reads(tag * 4, &data), s.keeps, "{}: {tag}", s.name);
        }
    });
}

#[test]
fn lent_memory_is_the_store() {
    each(|s| {
        let data = s.piece(0, 2, 0x42);
        s.write(8, &data, false).unwrap();
        let lent = s.store.lend(s.blocks(8, &data));
        if let Some(lent) = lent.as_ref().filter(|_| s.store.drops_writes()) {
            data.clear();
            assert_eq!(lent.differs_at(&data), None, "{}", s.name);
        } else if let Some(lent) = lent {
            assert_eq!(lent.differs_at(&data), None, "{}", s.name);
            lent.part(0, 1).copy_in(&[0x99]);
            data.part(0, 1).copy_in(&[0x99]);
            assert!(s.reads(8, &data));
        } else {
            assert_ne!(s.name, "memory");
        }
    });
}

#[test]
fn sizes_change() {
    each(|s| {
        let data = s.piece(0, 8, 0x12);
        s.write(0, &data, false).unwrap();
        let last = BLOCKS - 8;
        s.write(last, &data, false).unwrap();
        s.store.resize(Some(BLOCKS * 2)).unwrap();
        assert_eq!(s.store.geometry().blocks, BLOCKS * 2);
        s.write(BLOCKS * 2 - 8, &data, false).unwrap();
        assert_eq!(s.reads(BLOCKS * 2 - 8, &data), s.keeps, "{}", s.name);
        assert_eq!(s.reads(last, &data), s.keeps, "{}", s.name);
        s.store.resize(Some(BLOCKS / 2)).unwrap();
        assert_eq!(s.write(last, &data, false), Err(Error::OutOfRange), "{}", s.name);
        assert_eq!(s.reads(0, &data), s.keeps, "{}", s.name);
        s.store.resize(None).unwrap();
        let all = if s.name == "file" { BLOCKS * 2 } else { BLOCKS / 2 };
        assert_eq!(s.store.geometry().blocks, all, "{}", s.name);
    });
}

#[test]
fn what_is_cut_off_memory_does_not_come_back() {
    for s in subjects(BlockSize::B4096).iter().filter(|s| s.name == "memory") {
        let data = s.piece(0, 8, 0x12);
        s.write(100, &data, false).unwrap();
        let lent = s.store.lend(s.blocks(100, &data)).unwrap();
        s.store.resize(Some(50)).unwrap();
        // A receive that was under way.
        lent.copy_from(&data);
        s.store.resize(Some(BLOCKS)).unwrap();
        data.clear();
        assert!(s.reads(100, &data));
    }
}

/// Why a file cannot be had.
fn refused(opening: &Opening) -> String {
    FileStore::open(opening).map(drop).unwrap_err()
}

#[test]
fn files_that_do_not_fit_say_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let block = BlockSize::B4096;
    let usual = opening(&dir, block);
    let there = Opening { create: false, ..usual.clone() };
    assert!(refused(&there).contains("there is no "), "{}", refused(&there));
    drop(FileStore::open(&usual).unwrap());
    let larger = Opening { size: Some(1 << 30), create: false, ..usual.clone() };
    assert!(refused(&larger).contains("truncate -s 1073741824"), "{}", refused(&larger));
    let odd = Opening { size: Some(1000), ..usual.clone() };
    assert!(refused(&odd).contains("multiple of the block size 4096"), "{}", refused(&odd));
    let directory = Opening { path: dir.path().to_path_buf(), create: false, ..usual.clone() };
    assert!(refused(&directory).contains("cannot be opened"), "{}", refused(&directory));
    let held = FileStore::open(&usual).unwrap();
    assert!(refused(&usual).contains("end that first"), "{}", refused(&usual));
    drop(held);
    drop(FileStore::open(&usual).unwrap());
}

#[test]
fn a_read_only_file_stays_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let usual = opening(&dir, BlockSize::B512);
    drop(FileStore::open(&usual).unwrap());
    let store = FileStore::open(&Opening { read_only: true, ..usual }).unwrap();
    let subject = Subject {
        name: "read-only",
        store: Arc::new(store),
        mailbox: Arc::new(Mailbox::new().unwrap()),
        memory: Memory::new("suite", 4 << 20).unwrap(),
        keeps: true,
        _dir: Some(dir),
    };
    let data = subject.piece(0, 1, 3);
    assert!(subject.store.is_read_only());
    assert_eq!(subject.write(0, &data, false), Err(Error::ReadOnly));
    let zero = Request::Zero { blocks: subject.blocks(0, &data), deallocate: true, fua: false };
    assert_eq!(subject.run(zero), Err(Error::ReadOnly));
    assert_eq!(subject.run(Request::Flush), Ok(()));
    data.clear();
    assert!(subject.reads(0, &data));
}

#[test]
fn errors_of_the_kernel() {
    let of = |code, reading| error(&io::Error::from_raw_os_error(code), reading);
    assert_eq!(of(libc::ENOSPC, false), Error::NoSpace);
    assert_eq!(of(libc::EIO, true), Error::Unreadable);
    assert_eq!(of(libc::EIO, false), Error::Unwritable);
    assert_eq!(of(libc::EROFS, false), Error::ReadOnly);
    assert_eq!(of(libc::ENOMEM, true), Error::Busy);
}

/// What a file system without space says.
#[test]
fn a_full_device_is_an_error_of_its_own() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let memory = Memory::new("suite", 4096).unwrap();
    let piece = memory.piece(0..4096).unwrap();
    let e = piece.write_to(std::os::fd::AsFd::as_fd(&full), 0).unwrap_err();
    assert_eq!(error(&e, false), Error::NoSpace);
}
