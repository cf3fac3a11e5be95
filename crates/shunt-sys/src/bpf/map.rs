//! Maps: what programs and their user share.

use std::io;
use std::marker::PhantomData;
use std::os::fd::OwnedFd;

use super::{address, bpf, bpf_fd, cmd, number};

const TYPE_HASH: u32 = 1;
const TYPE_ARRAY: u32 = 2;
/// Memory is taken when it is needed.
const NO_PREALLOC: u32 = 1;

/// What may be a key or a value: plain numbers, without padding.
///
/// # Safety
/// Every pattern of bits is a value of the type, and it has no padding.
pub(super) unsafe trait Plain: Copy + Default {}
// SAFETY: a number.
unsafe impl Plain for u32 {}
// SAFETY: a number.
unsafe impl Plain for u64 {}
// SAFETY: numbers, one behind the other.
unsafe impl<const N: usize> Plain for [u64; N] where [u64; N]: Default {}

#[repr(C)]
struct Element {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// Makes a map.
///
/// # Errors
/// Those of bpf(2).
pub(super) fn create(
    kind: u32,
    key: u32,
    value: u32,
    entries: u32,
    flags: u32,
) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attr {
        kind: u32,
        key: u32,
        value: u32,
        entries: u32,
        flags: u32,
    }
    let mut attr = Attr { kind, key, value, entries, flags };
    // SAFETY: the command's attributes, without addresses.
    unsafe { bpf_fd(cmd::MAP_CREATE, &mut attr) }
}

/// The value under `key` of a map whose keys and values are `K` and `V`.
///
/// # Errors
/// Those of bpf(2); that there is none is none.
pub(super) fn get<K: Plain, V: Plain>(map: &OwnedFd, key: &K) -> io::Result<Option<V>> {
    let mut value = V::default();
    let to = (&raw mut value).expose_provenance() as u64;
    let mut attr = Element { map: number(map), padding: 0, key: address(key), value: to, flags: 0 };
    // SAFETY: the command's attributes; key and value are live, of the map's sizes, and plain.
    match unsafe { bpf(cmd::MAP_LOOKUP_ELEM, &mut attr) } {
        Ok(_) => Ok(Some(value)),
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(e) => Err(e),
    }
}

/// A hash map by numbers of 64 bits.
#[derive(Debug)]
pub(super) struct Hash<V> {
    map: OwnedFd,
    values: PhantomData<V>,
}

impl<V: Plain> Hash<V> {
    /// With room for so many.
    ///
    /// # Errors
    /// Those of bpf(2).
    pub(super) fn new(entries: u32) -> io::Result<Self> {
        let size = u32::try_from(size_of::<V>()).map_err(io::Error::other)?;
        let map = create(TYPE_HASH, 8, size, entries, NO_PREALLOC)?;
        Ok(Self { map, values: PhantomData })
    }

    /// Its descriptor.
    pub(super) fn number(&self) -> u32 {
        number(&self.map)
    }

    /// The value under `key`; `None` also where it cannot be had.
    pub(super) fn get(&self, key: u64) -> Option<V> {
        get(&self.map, &key).ok().flatten()
    }

    /// Enters a value, in the place of another one.
    ///
    /// # Errors
    /// Those of bpf(2): `E2BIG` when it is full.
    pub(super) fn put(&self, key: u64, value: &V) -> io::Result<()> {
        let mut attr = Element {
            map: number(&self.map),
            padding: 0,
            key: address(&key),
            value: address(value),
            flags: 0,
        };
        // SAFETY: the command's attributes; key and value are live and of the map's sizes.
        unsafe { bpf(cmd::MAP_UPDATE_ELEM, &mut attr).map(drop) }
    }

    /// Takes a value out; `None` when there is none.
    pub(super) fn take(&self, key: u64) -> Option<V> {
        self.get(key).filter(|_| self.remove(key))
    }

    /// The same where it is known; false when there is none.
    pub(super) fn remove(&self, key: u64) -> bool {
        let mut attr =
            Element { map: number(&self.map), padding: 0, key: address(&key), value: 0, flags: 0 };
        // SAFETY: the command's attributes; the key is live and of the map's size.
        unsafe { bpf(cmd::MAP_DELETE_ELEM, &mut attr) }.is_ok()
    }
}

/// A number that programs add to.
#[derive(Debug)]
pub(super) struct Counter {
    pub(super) map: OwnedFd,
}

impl Counter {
    pub(super) fn new() -> io::Result<Self> {
        create(TYPE_ARRAY, 4, 8, 1, 0).map(|map| Self { map })
    }

    pub(super) fn get(&self) -> io::Result<u64> {
        Ok(get(&self.map, &0_u32)?.unwrap_or(0))
    }
}
