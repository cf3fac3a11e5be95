//! A split ring (VIRTIO 1.2, 2.7) as its driver has it. Each request has a place of its own, with three descriptors that name
//! its header, its data and its status: only what differs from the last one is written.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use virtio_bindings::bindings::virtio_blk::VIRTIO_BLK_T_OUT;
use virtio_bindings::bindings::virtio_ring::{
    VIRTIO_RING_F_EVENT_IDX, VRING_DESC_F_NEXT, VRING_DESC_F_WRITE, VRING_USED_F_NO_NOTIFY,
};
use vm_memory::{Bytes, VolatileMemory, VolatileMemoryError, VolatileSlice};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::EventFd;

/// Descriptors of a request.
const CHAIN: u16 = 3;
/// Bytes between two requests' headers, each with its status behind it.
const HEADER: u64 = 32;
/// Where a status is.
const STATUS: u64 = 16;
/// What a status is before the device has written it.
const OPEN: u8 = 0xff;
/// The longest ring that disks have.
const LONGEST: u16 = 1024;

/// True if driver and device may say what they want to be told of.
pub const fn has_event_idx(features: u64) -> bool {
    features & 1 << VIRTIO_RING_F_EVENT_IDX != 0
}

/// Where things are in the guest's memory.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    pub size: u16,
    pub table: u64,
    pub available: u64,
    pub used: u64,
    headers: u64,
    requests: u16,
}

impl Layout {
    /// That for so many requests; none where a ring cannot have so many.
    pub fn of(requests: u16) -> Option<Self> {
        let size = requests.checked_mul(CHAIN)?.checked_next_power_of_two()?;
        let all = Self {
            size,
            table: 0,
            available: 0x1_0000,
            used: 0x2_0000,
            headers: 0x3_0000,
            requests,
        };
        (requests > 0 && size <= LONGEST).then_some(all)
    }
}

/// See the module's description.
pub struct Ring<'m> {
    memory: VolatileSlice<'m>,
    layout: Layout,
    event_idx: bool,
    kick: EventFd,
    call: EventFd,
    /// Sleeps until the device calls.
    sleeper: Epoll,
    /// Entries that were put on the ring, and those of them that the device was shown.
    available: u16,
    shown: u16,
    /// Entries that were taken back.
    used: u16,
}

type Result<T> = std::result::Result<T, VolatileMemoryError>;

impl<'m> Ring<'m> {
    /// An empty ring in all of the guest's memory.
    pub fn new(
        memory: VolatileSlice<'m>,
        layout: Layout,
        event_idx: bool,
        kick: EventFd,
        call: EventFd,
    ) -> io::Result<Self> {
        let sleeper = Epoll::new()?;
        let event = EpollEvent::new(EventSet::IN, 0);
        sleeper.ctl(ControlOperation::Add, call.as_raw_fd(), event)?;
        let (available, shown, used) = (0, 0, 0);
        let ring = Self { memory, layout, event_idx, kick, call, sleeper, available, shown, used };
        ring.describe().map_err(io::Error::other)?;
        Ok(ring)
    }

    /// Writes what stays.
    fn describe(&self) -> Result<()> {
        let layout = &self.layout;
        let flag = |flag: u32| u64::from(flag) << 32;
        for slot in 0..layout.requests {
            let (head, header) = (slot * CHAIN, self.header(slot));
            let (second, third) = (u64::from(head + 1) << 48, u64::from(head + 2) << 48);
            self.set(self.descriptor(head), header)?;
            self.set(self.descriptor(head) + 8, 16 | flag(VRING_DESC_F_NEXT) | second)?;
            self.set(self.descriptor(head + 1) + 8, flag(VRING_DESC_F_NEXT) | third)?;
            self.set(self.descriptor(head + 2), header + STATUS)?;
            self.set(self.descriptor(head + 2) + 8, 1 | flag(VRING_DESC_F_WRITE))?;
            self.set(header, VIRTIO_BLK_T_OUT.to_le())?;
        }
        Ok(())
    }

    /// Of all in this layout numbers are far below.
    fn place(at: u64) -> usize {
        usize::try_from(at).unwrap_or(usize::MAX)
    }

    fn set<T: vm_memory::ByteValued>(&self, at: u64, value: T) -> Result<()> {
        self.memory.get_ref(Self::place(at))?.store(value);
        Ok(())
    }

    const fn header(&self, slot: u16) -> u64 {
        self.layout.headers + slot as u64 * HEADER
    }

    const fn descriptor(&self, n: u16) -> u64 {
        self.layout.table + n as u64 * 16
    }

    /// Puts a write on the ring. The device is shown it by [`Self::tell`].
    pub fn offer(&mut self, slot: u16, sector: u64, data: u64, len: u32) -> Result<()> {
        let header = self.header(slot);
        let second = self.descriptor(slot * CHAIN + 1);
        self.set(header + 8, sector)?;
        self.set(header + STATUS, OPEN)?;
        self.set(second, data)?;
        self.set(second + 8, len)?;
        let entry = self.layout.available + 4 + u64::from(self.available % self.layout.size) * 2;
        self.set(entry, slot * CHAIN)?;
        self.available = self.available.wrapping_add(1);
        Ok(())
    }

    /// Shows the device what was offered, and wakes it if it wants that.
    pub fn tell(&mut self) -> io::Result<()> {
        let before = std::mem::replace(&mut self.shown, self.available);
        let at = Self::place(self.layout.available + 2);
        let shown = self.memory.store(self.available, at, Ordering::Release);
        shown.map_err(io::Error::other)?;
        fence(Ordering::SeqCst);
        let wants = if self.event_idx {
            let event = self.layout.used + 4 + u64::from(self.layout.size) * 8;
            let event: u16 = self.load(event, Ordering::Relaxed).map_err(io::Error::other)?;
            let behind = self.available.wrapping_sub(event).wrapping_sub(1);
            behind < self.available.wrapping_sub(before)
        } else {
            let flags: u16 =
                self.load(self.layout.used, Ordering::Relaxed).map_err(io::Error::other)?;
            u32::from(flags) & VRING_USED_F_NO_NOTIFY == 0
        };
        if wants { self.kick.write(1) } else { Ok(()) }
    }

    fn load<T: vm_memory::AtomicAccess>(&self, at: u64, order: Ordering) -> Result<T> {
        self.memory.load(Self::place(at), order)
    }

    fn is_empty(&self) -> Result<bool> {
        Ok(self.load::<u16>(self.layout.used + 2, Ordering::Acquire)? == self.used)
    }

    /// Takes a request back that was done; an error if it was not.
    pub fn take(&mut self) -> io::Result<Option<u16>> {
        if self.is_empty().map_err(io::Error::other)? {
            return Ok(None);
        }
        let entry = self.layout.used + 4 + u64::from(self.used % self.layout.size) * 8;
        let head = self.memory.get_ref::<u32>(Self::place(entry)).map_err(io::Error::other)?.load();
        self.used = self.used.wrapping_add(1);
        let slot = u16::try_from(head / u32::from(CHAIN)).unwrap_or(u16::MAX);
        let status = Self::place(self.header(slot) + STATUS);
        match self.memory.get_ref::<u8>(status).map(|status| status.load()) {
            Ok(0) if slot < self.layout.requests => Ok(Some(slot)),
            _ => Err(io::Error::other("the disk has failed a write")),
        }
    }

    /// Sleeps until a request comes back; false if none does for so long.
    pub fn sleep(&self, longest: Duration) -> io::Result<bool> {
        if self.event_idx {
            let event = self.layout.available + 4 + u64::from(self.layout.size) * 2;
            self.memory
                .store(self.used, Self::place(event), Ordering::Relaxed)
                .map_err(io::Error::other)?;
            // The device looks for that after it has given a request back.
            fence(Ordering::SeqCst);
        }
        if !self.is_empty().map_err(io::Error::other)? {
            return Ok(true);
        }
        let longest = i32::try_from(longest.as_millis()).unwrap_or(i32::MAX);
        let woken = self.sleeper.wait(longest, &mut [EpollEvent::default()])?;
        let _none = self.call.read();
        Ok(woken > 0)
    }
}
