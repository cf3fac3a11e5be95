//! What this process shares with its peers: found in its own address space, where the library has it.

use std::fs;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use shunt_shm::memfd::Map;
use shunt_shm::region::{self, Geometry, Region, RegionView, SLOTS, Side};

/// The memory of a link group.
pub const LINK_GROUP: &str = "shunt-link-group";

/// Memory of the library's, mapped a second time: it stays when the library lets go of it.
pub struct Shared {
    inode: u64,
    map: Map,
    region: Option<Region>,
}

impl Shared {
    /// A word at `offset`, which is rounded down and taken modulo the length.
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        let at = (offset % self.size()) & !7;
        // SAFETY: inside the mapping, which lives as long as self, and aligned.
        unsafe { self.map.base().byte_add(at).cast().as_ref() }
    }

    /// Bytes of it.
    pub const fn size(&self) -> usize {
        self.map.len()
    }

    /// It as a region; `None` when it is none.
    pub fn region(&self) -> Option<RegionView> {
        self.region.as_ref().map(Region::view)
    }
}

/// All memory of one name that this process shares.
#[derive(Default)]
pub struct Found(Vec<Shared>);

impl Found {
    /// What is there now; what the library has let go of is let go of here, too.
    pub fn look(&mut self, name: &str) -> io::Result<&[Shared]> {
        let maps = fs::read_to_string("/proc/self/maps")?;
        let lines = maps.lines().filter(|line| line.contains(name)).filter_map(parse);
        // The library has only mapped what it uses.
        let whole = |(inode, start, len)| match name {
            LINK_GROUP => (inode, start, region::LEN),
            _ => (inode, start, len),
        };
        let lines = lines.map(whole);
        let now: Vec<_> = lines.collect();
        self.0.retain(|shared| now.iter().any(|(inode, ..)| *inode == shared.inode));
        for (inode, start, len) in now {
            if !self.0.iter().any(|shared| shared.inode == inode) {
                // It may be gone by now.
                let again = || double(start, len);
                let region = again().and_then(|map| Region::of(map, Geometry::Host).ok());
                self.0.extend(again().map(|map| Shared { inode, map, region }));
            }
        }
        Ok(&self.0)
    }
}

/// Inode, start and length in a line of /proc/self/maps, of the mapping of the file's first bytes.
fn parse(line: &str) -> Option<(u64, usize, usize)> {
    let mut fields = line.split_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let writable = fields.next()?.starts_with("rw-s");
    let offset = usize::from_str_radix(fields.next()?, 16).ok()?;
    let inode = fields.nth(1)?.parse().ok()?;
    let [start, end] = [start, end].map(|at| usize::from_str_radix(at, 16).ok());
    (writable && offset == 0).then_some((inode, start?, end?.checked_sub(start?)?))
}

/// Maps a shared mapping once more, and more of the same memory.
fn double(start: usize, len: usize) -> Option<Map> {
    let old = std::ptr::with_exposed_provenance_mut(start);
    // SAFETY: a length of 0 leaves what is there as it is, and makes a new mapping of the same memory
    // (mremap(2)); where nothing is any more it fails.
    let base = unsafe { libc::mremap(old, 0, len, libc::MREMAP_MAYMOVE) };
    if base == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the fresh mapping.
    NonNull::new(base.cast()).map(|base| unsafe { Map::adopt(base, len) })
}

/// The slots of a region in which something is under way.
pub fn slots_in_use(view: RegionView) -> Vec<usize> {
    use std::sync::atomic::Ordering::Relaxed;
    let in_use = |slot: &usize| {
        let [client, server] = [Side::Client, Side::Server].map(|side| view.section(*slot, side));
        client.setup.state.load(Relaxed) != 0
            && (client.setup.done.load(Relaxed) == 0 || server.setup.done.load(Relaxed) == 0)
    };
    (0..SLOTS).filter(in_use).collect()
}
