//! Mappings: only of memory that nobody can shrink, and only inside it.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals,
    memfd_create,
};
use rustix::mm::{MprotectFlags, mprotect};
use shunt_shm::arena::{self, Arena, ArenaView};
use shunt_shm::counters::RunPage;
use shunt_shm::memfd::{Map, create_published, create_sealed, size};
use shunt_shm::region::{self, Region};
use shunt_shm::registry::Registry;
use shunt_shm::sync::{AtomicU32, AtomicU64, Ordering::Relaxed};
use shunt_shm::table::{self, Table};

fn memfd_with(len: u64, seals: SealFlags) -> File {
    let fd = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
    let file = File::from(fd);
    file.set_len(len).unwrap();
    fcntl_add_seals(&file, seals).unwrap();
    file
}

#[test]
fn sealed_memory_keeps_its_length() {
    let fd = create_sealed("test", 10_000).unwrap();
    assert_eq!(size(&fd).unwrap(), 10_000);
    let file = File::from(fd);
    for len in [0, 9_999, 10_001] {
        assert!(file.set_len(len).is_err(), "{len}");
    }
    assert!(fcntl_add_seals(&file, SealFlags::WRITE).is_err(), "the seals are sealed");
}

#[test]
fn only_sealed_memory_is_mapped() {
    let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    assert!(Map::new(memfd_with(4096, all), 4096, true).is_ok());
    for missing in [SealFlags::SHRINK, SealFlags::SEAL] {
        assert!(Map::new(memfd_with(4096, all - missing), 4096, true).is_err(), "{missing:?}");
    }
    assert!(Map::new(memfd_with(4096, SealFlags::empty()), 4096, true).is_err());
    assert!(Map::new(File::open("/dev/zero").unwrap(), 4096, false).is_err());
}

#[test]
fn a_short_file_is_refused() {
    let fd = create_sealed("test", 4096).unwrap();
    assert!(Map::new(&fd, 4097, true).is_err());
    assert!(Map::new(&fd, usize::MAX, true).is_err());
    assert!(Map::new(&fd, 0, true).is_err());
    let map = Map::new(&fd, 100, true).unwrap();
    assert_eq!((map.len(), map.is_empty()), (100, false));
}

#[test]
fn published_memory_is_written_through_its_first_mapping_alone() {
    let (map, fd) = create_published("test", 4096).unwrap();
    let reader = Map::new(&fd, 4096, false).unwrap();
    // SAFETY: atomics, valid for every bit pattern.
    let [written, read] = [&map, &reader].map(|m| unsafe { m.at::<AtomicU32>(8) }.unwrap());
    written.store(7, Relaxed);
    assert_eq!(read.load(Relaxed), 7);

    // Whoever has the descriptor may open what it stands for anew, for writing.
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let anew = File::options().read(true).write(true).open(path).unwrap();
    assert!(anew.write_all_at(&[1], 8).is_err());
    assert!(anew.set_len(0).is_err());
    for fd in [anew.as_fd(), fd.as_fd()] {
        assert!(Map::new(fd, 4096, true).is_err());
        // Nor can a mapping be made writable afterwards.
        let map = Map::new(fd, 4096, false).unwrap();
        let all = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: the pages of a mapping that nothing in this process refers to.
        let changed = unsafe { mprotect(map.base().as_ptr().cast(), 4096, all) };
        assert!(changed.is_err());
    }
    assert_eq!(read.load(Relaxed), 7);
}

/// Memory of each kind that travels between processes.
fn kinds() -> [(&'static str, OwnedFd); 5] {
    [
        ("region", region::create(7).unwrap()),
        ("table", table::create().unwrap()),
        ("registry", Registry::create().unwrap().1),
        ("arena", arena::create().unwrap()),
        ("run page", RunPage::create().unwrap().1),
    ]
}

#[test]
fn no_kind_of_memory_can_be_resized_or_unsealed() {
    for (kind, fd) in kinds() {
        let len = size(&fd).unwrap() as u64;
        let seals = fcntl_get_seals(&fd).unwrap();
        let needed = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        assert!(seals.contains(needed), "{kind}: {seals:?}");
        // Through the descriptor itself, and through one that a holder opens for writing.
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let anew = File::options().read(true).write(true).open(path).unwrap();
        for file in [File::from(fd), anew] {
            for other in [0, len / 2, len - 1, len + 1, len * 2] {
                assert!(file.set_len(other).is_err(), "{kind}: {other}");
            }
            assert!(file.write_all_at(&[0], len).is_err(), "{kind}: grown by a write");
            let grown = fallocate(&file, FallocateFlags::empty(), len, 4096);
            assert!(grown.is_err(), "{kind}: grown by fallocate");
            let collapsed = fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096);
            assert!(collapsed.is_err(), "{kind}: shortened by fallocate");
            for seal in [SealFlags::empty(), SealFlags::WRITE, SealFlags::FUTURE_WRITE] {
                assert!(fcntl_add_seals(&file, seal).is_err(), "{kind}: {seal:?}");
            }
            assert_eq!(fcntl_get_seals(&file), Ok(seals), "{kind}");
            assert_eq!(size(&file).unwrap() as u64, len, "{kind}");
        }
    }
}

/// The bytes are right in each case: what is wrong is only that they could go, or are too few.
#[test]
fn no_kind_of_memory_is_taken_cut_short_or_unsealed() {
    fn mapped(kind: &str, fd: &File) -> bool {
        match kind {
            "region" => Region::map(fd).is_ok(),
            "table" => Table::map(fd).is_ok(),
            "registry" => Registry::map(fd).is_ok(),
            "arena" => Arena::map(fd).is_ok() && ArenaView::map(fd).is_ok(),
            "run page" => RunPage::map(fd).is_ok(),
            other => panic!("{other}"),
        }
    }
    let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    for (kind, fd) in kinds() {
        let original = File::from(fd);
        let len = size(&original).unwrap() as u64;
        let copy = |len: u64, seals| {
            let copy = memfd_with(len, SealFlags::empty());
            let mut head = [0; 4096];
            original.read_exact_at(&mut head, 0).unwrap();
            copy.write_all_at(&head, 0).unwrap();
            copy.set_len(len).unwrap();
            fcntl_add_seals(&copy, seals).unwrap();
            copy
        };
        assert!(mapped(kind, &copy(len, all)), "{kind}: a faithful copy");
        for seals in [all - SealFlags::SHRINK, all - SealFlags::SEAL, SealFlags::empty()] {
            assert!(!mapped(kind, &copy(len, seals)), "{kind}: {seals:?}");
        }
        // A DMB says by its length how many bytes it has.
        let short = match kind {
            "DMB" => 4095,
            // One of an older agent has no decisions.
            "arena" => arena::LEAST_LEN as u64 - 1,
            _ => len - 1,
        };
        for short in [0, 1, 63, short] {
            assert!(!mapped(kind, &copy(short, all)), "{kind}: {short} bytes");
        }
    }
}

#[test]
fn references_lie_inside_and_aligned() {
    let fd = create_sealed("test", 4096).unwrap();
    let map = Map::new(&fd, 100, true).unwrap();
    // SAFETY: atomics, valid for every bit pattern.
    let at = |offset| unsafe { map.at::<AtomicU64>(offset) }.is_some();
    assert!(at(0) && at(8) && at(88));
    for outside in [92, 96, 100, 4096, usize::MAX, usize::MAX - 7] {
        assert!(!at(outside), "{outside}");
    }
    for crooked in [1, 4, 87] {
        assert!(!at(crooked), "{crooked}");
    }
    // SAFETY: atomics, valid for every bit pattern.
    assert!(unsafe { map.at::<[AtomicU64; 13]>(0) }.is_none());
}
