//! Mappings: only of memory that nobody can shrink, and only inside it.

use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use shunt_shm::memfd::{Map, create_sealed, read_only, size};
use shunt_shm::sync::{AtomicU32, AtomicU64, Ordering::Relaxed};

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
fn a_read_only_descriptor_maps_read_only() {
    let fd = create_sealed("test", 4096).unwrap();
    let read_only = read_only(&fd).unwrap();
    assert!(Map::new(&read_only, 4096, true).is_err());
    let map = Map::new(&read_only, 4096, false).unwrap();
    File::from(fd).write_all_at(&7_u32.to_ne_bytes(), 8).unwrap();
    // SAFETY: an atomic, valid for every bit pattern.
    let word = unsafe { map.at::<AtomicU32>(8) }.unwrap();
    assert_eq!(word.load(Relaxed), 7);
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
    // SAFETY: as above.
    assert!(unsafe { map.at::<[AtomicU64; 13]>(0) }.is_none());
}
