//! What the suite needs to know of a device, and how it gets at memory.

use core::ptr::copy_nonoverlapping;
use std::io;
use std::time::Duration;

use shunt_shm::region::{Region, RegionView, Side};
use shunt_wire::agent::RegionId;

/// Memory of link groups and doorbells, as agent and library get at them.
pub trait Rig: Sized {
    /// A region as its maker has it.
    type Made;
    /// One that can be signalled, and that hears it.
    type Ear: Send;
    /// What signals one [`Self::Ear`].
    type Bell: Send + Sync;

    /// A fabric of its own.
    fn new() -> Self;

    /// `register_dmb`: makes a region, as the agent does.
    fn register(&self, name: RegionId) -> io::Result<Self::Made>;

    /// `unregister_dmb`: its maker gives it up.
    fn unregister(&self, made: Self::Made);

    /// `attach_dmb`: maps it, as the library does. Dropping what this returns is `detach_dmb`.
    fn attach(&self, made: &Self::Made) -> io::Result<Region>;

    /// Maps memory of this fabric in which there is no region.
    fn attach_no_region(&self) -> io::Result<Region>;

    /// Tries to give the memory of a region another length, as anyone who holds it could.
    fn resize(&self, made: &Self::Made, len: u64) -> io::Result<()>;

    /// One more that can be signalled.
    fn ear(&self) -> (Self::Ear, Self::Bell);

    /// `signal`.
    fn signal(bell: &Self::Bell);

    /// Waits until this ear is signalled, and takes the news. `false`: nothing came in time.
    fn told(ear: &mut Self::Ear, patience: Duration) -> bool;
}

/// How bytes get into a peer's RMB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// The sender writes into the memory that it has attached.
    Attach,
    /// The device moves them (`move_data`).
    Copy,
}

/// Both.
pub const WAYS: [Way; 2] = [Way::Attach, Way::Copy];

impl Way {
    /// Puts `data` to `at` of the ring of `receiver` in a slot. The suite stays inside.
    pub fn put(self, view: RegionView, (slot, receiver): (usize, Side), at: usize, data: &[u8]) {
        assert!(at + data.len() <= view.geometry().ring() && slot < view.geometry().slots());
        match self {
            // SAFETY: inside of the ring, as was just asserted, and the suite opens each slot that it uses.
            Self::Attach => unsafe {
                let to = view.buffer(slot, receiver).as_ptr().add(at);
                copy_nonoverlapping(data.as_ptr(), to, data.len());
            },
            Self::Copy => {
                let moved = view.move_data(view.buffer_offset(slot, receiver) + at, data);
                assert_eq!(moved, Some(()), "{} bytes at {at}", data.len());
            }
        }
    }
}

/// Long enough for whatever comes at all.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// How long the suite waits for what must not come.
pub const A_MOMENT: Duration = Duration::from_millis(20);

/// A new region that must be had, with the name of all that need no other.
pub fn register<R: Rig>(rig: &R) -> R::Made {
    match rig.register(7) {
        Ok(made) => made,
        Err(e) => panic!("a region: {e}"),
    }
}

/// A region that must be attachable, with these slots open.
pub fn attach<R: Rig>(rig: &R, made: &R::Made, slots: &[usize]) -> Region {
    let attached = rig.attach(made).and_then(|region| {
        slots.iter().try_for_each(|slot| region.open(*slot))?;
        Ok(region)
    });
    match attached {
        Ok(region) => region,
        Err(e) => panic!("attaching: {e}"),
    }
}

/// `len` bytes of a ring.
pub fn bytes(view: RegionView, (slot, receiver): (usize, Side), at: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; len];
    assert_eq!(view.copy_to(slot, receiver, at, &mut bytes).len(), len);
    bytes
}

/// Bytes that tell where they belong.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        // xorshift64 (Marsaglia 2003).
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..len).map(|_| next()).collect()
}
