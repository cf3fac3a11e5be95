//! What the fuzz targets share.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::LazyLock;

use arbitrary::Arbitrary;
use shunt_shm::memfd::Map;
use shunt_shm::region::{self, Geometry, Region, RegionView};
use shunt_wire::addr::{Addr, FourTuple};

/// An address of a peer's choice.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub struct AnyAddr {
    ip: [u8; 16],
    port: u16,
}

impl From<AnyAddr> for Addr {
    fn from(any: AnyAddr) -> Self {
        Self { ip: any.ip, port: any.port }
    }
}

/// A connection of a peer's choice.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub struct AnyTuple(AnyAddr, AnyAddr);

impl From<AnyTuple> for FourTuple {
    fn from(any: AnyTuple) -> Self {
        Self { local: any.0.into(), peer: any.1.into() }
    }
}

/// Shared memory as a hostile holder of its descriptor has it: any byte, any time.
pub struct Hostile(File);

impl Hostile {
    /// Writes through the descriptor; what lies behind the end is cut off.
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        let len = self.0.metadata().map_or(0, |m| m.len());
        let room = usize::try_from(len.saturating_sub(offset)).unwrap_or(0);
        let inside = &bytes[..bytes.len().min(room)];
        self.0.write_all_at(inside, offset).expect("memory takes what lies inside");
    }
}

impl From<OwnedFd> for Hostile {
    fn from(fd: OwnedFd) -> Self {
        Self(fd.into())
    }
}

/// A link group's region, kept over all runs, and the peer's way to it.
pub struct Shared {
    region: Region,
    /// Where the region is mapped, in one piece.
    base: usize,
    /// The peer's.
    pub peer: Hostile,
}

impl Shared {
    /// The region.
    pub fn get() -> &'static Self {
        static SHARED: LazyLock<Shared> = LazyLock::new(|| {
            let fd = region::create(1).expect("memory for a region");
            let geometry = Geometry::Host;
            let map = Map::new(&fd, geometry.size(), true).expect("a mapping");
            let base = map.base().addr().get();
            let region = Region::of(map, geometry).expect("a region");
            Shared { region, base, peer: fd.into() }
        });
        &SHARED
    }

    /// This side's view.
    pub fn view(&self) -> RegionView {
        self.region.view()
    }

    /// Where a part of the region lies in its memory.
    pub fn offset_of<T>(&self, part: &T) -> u64 {
        (std::ptr::from_ref(part).addr() - self.base) as u64
    }
}
