//! What this process shares with its peers: found in its own address space, where the library has it.

use std::fs;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use shunt_shm::region::{self, Geometry, RegionView, SLOTS, Side};

/// The memory of a link group.
pub const LINK_GROUP: &str = "shunt-link-group";

/// Memory of the library's, mapped a second time: it stays when the library lets go of it.
pub struct Shared {
    inode: u64,
    base: NonNull<u8>,
    len: usize,
}

impl Shared {
    /// A word at `offset`, which is rounded down and taken modulo the length.
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        let at = (offset % self.len) & !7;
        // SAFETY: inside the mapping, which lives as long as self, and aligned.
        unsafe { self.base.byte_add(at).cast().as_ref() }
    }

    /// Bytes of it.
    pub const fn size(&self) -> usize {
        self.len
    }

    /// It as a region; `None` when it has not the length of one.
    pub fn region(&self) -> Option<RegionView> {
        // SAFETY: a link group's memory by its name and length; callers keep self meanwhile.
        (self.len >= region::LEN)
            .then(|| unsafe { RegionView::from_base(self.base, Geometry::Host) })
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: our own mapping, to which nothing refers any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
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
        let now: Vec<_> = lines.collect();
        self.0.retain(|shared| now.iter().any(|(inode, ..)| *inode == shared.inode));
        for (inode, start, len) in now {
            if !self.0.iter().any(|shared| shared.inode == inode) {
                // It may be gone by now.
                self.0.extend(double(inode, start, len));
            }
        }
        Ok(&self.0)
    }
}

/// Inode, start and length in a line of /proc/self/maps.
fn parse(line: &str) -> Option<(u64, usize, usize)> {
    let mut fields = line.split_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let writable = fields.next()?.starts_with("rw-s");
    let inode = fields.nth(2)?.parse().ok()?;
    let [start, end] = [start, end].map(|at| usize::from_str_radix(at, 16).ok());
    writable.then_some((inode, start?, end?.checked_sub(start?)?))
}

/// Maps a shared mapping once more.
fn double(inode: u64, start: usize, len: usize) -> Option<Shared> {
    let old = std::ptr::with_exposed_provenance_mut(start);
    // SAFETY: a length of 0 leaves what is there as it is, and makes a new mapping of the same memory
    // (mremap(2)); where nothing is any more it fails.
    let base = unsafe { libc::mremap(old, 0, len, libc::MREMAP_MAYMOVE) };
    if base == libc::MAP_FAILED {
        return None;
    }
    Some(Shared { inode, base: NonNull::new(base.cast())?, len })
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
