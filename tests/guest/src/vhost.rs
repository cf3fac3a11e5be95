//! A vhost-user front end with the driver of a virtio disk.

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use rustix::event::EventfdFlags;
use vhost::VhostBackend;
use vhost::vhost_user::message::{VhostUserConfigFlags, VhostUserProtocolFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostUserMemoryRegionInfo, VringConfigData};
use virtio_bindings::bindings::virtio_ring::{
    VIRTIO_RING_F_EVENT_IDX, VRING_DESC_F_NEXT, VRING_DESC_F_WRITE,
};
use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryRegion};
use vmm_sys_util::eventfd::EventFd;

use crate::Memory;

/// A descriptor's flag: another one follows.
pub const NEXT: u16 = VRING_DESC_F_NEXT as u16;
/// The device writes it.
pub const WRITE: u16 = VRING_DESC_F_WRITE as u16;
/// It names a table.
pub const INDIRECT: u16 = 4;

/// Bytes of each of the two regions of the guest's memory.
pub const REGION: u64 = 4 << 20;
/// Where the second one is.
pub const FAR: u64 = 1 << 32;

const TABLE: u64 = 0;
const AVAIL: u64 = 0x8000;
const USED: u64 = 0xc000;
/// Where requests keep their headers and statuses.
pub const HEADERS: u64 = 0x1_0000;
/// Free for data.
pub const DATA: u64 = 0x10_0000;
/// Places of the ring.
pub const SIZE: u16 = 256;

/// A request's data: where, how much, and whether the device writes it.
pub type Part = (u64, u32, bool);

/// The driver.
pub struct Driver {
    /// The device.
    pub front: Frontend,
    /// The guest's memory.
    pub memory: Memory,
    /// Those that both know.
    pub features: u64,
    /// How long the device may take.
    pub patience: Duration,
    kick: EventFd,
    call: EventFd,
    free: u16,
    avail: u16,
    used: u16,
}

impl Driver {
    /// One that knows all features.
    #[must_use]
    pub fn connect(path: &Path) -> Self {
        Self::with(path, 1, u64::MAX)
    }

    /// One that knows these features, if the device has them, and starts its first ring.
    #[must_use]
    pub fn with(path: &Path, queues: u64, known: u64) -> Self {
        let mut front = Frontend::connect(path, queues).unwrap();
        front.set_owner().unwrap();
        let features = front.get_features().unwrap() & known;
        front.set_features(features).unwrap();
        let protocol = front.get_protocol_features().unwrap();
        assert!(protocol.contains(VhostUserProtocolFeatures::CONFIG));
        let wanted = VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::BACKEND_REQ
            | VhostUserProtocolFeatures::MQ;
        front.set_protocol_features(protocol & wanted).unwrap();
        let memory = Memory::of(&[(0, REGION), (FAR, REGION)]);
        let call = EventFd::new(nonblock()).unwrap();
        let mut driver = Self {
            front,
            memory,
            features,
            patience: Duration::from_secs(10),
            kick: EventFd::new(nonblock()).unwrap(),
            call,
            free: 0,
            avail: 0,
            used: 0,
        };
        driver.share();
        driver.start(0);
        driver
    }

    /// Shows the device the memory.
    fn share(&self) {
        let regions: Vec<_> = self
            .memory
            .iter()
            .map(|region| VhostUserMemoryRegionInfo {
                guest_phys_addr: region.start_addr().0,
                memory_size: region.len(),
                userspace_addr: region.as_ptr() as u64,
                mmap_offset: 0,
                mmap_handle: region.file_offset().unwrap().file().as_raw_fd(),
            })
            .collect();
        self.front.set_mem_table(&regions).unwrap();
    }

    /// The address of a byte of the guest's in this process.
    #[must_use]
    pub fn host(&self, at: u64) -> u64 {
        self.memory.get_host_address(GuestAddress(at)).unwrap() as u64
    }

    /// Starts the ring, from this chain on.
    pub fn start(&mut self, base: u16) {
        self.start_at(base, TABLE, AVAIL, USED);
    }

    /// The same with its parts elsewhere.
    pub fn start_at(&mut self, base: u16, table: u64, avail: u64, used: u64) {
        self.front.set_vring_num(0, SIZE).unwrap();
        let config = VringConfigData {
            queue_max_size: SIZE,
            queue_size: SIZE,
            flags: 0,
            desc_table_addr: self.host(table),
            used_ring_addr: self.host(used),
            avail_ring_addr: self.host(avail),
            log_addr: None,
        };
        self.front.set_vring_addr(0, &config).unwrap();
        self.front.set_vring_base(0, base).unwrap();
        self.front.set_vring_call(0, &self.call).unwrap();
        self.front.set_vring_kick(0, &self.kick).unwrap();
        self.enable();
    }

    /// Has the ring begin.
    pub fn enable(&mut self) {
        self.front.set_vring_enable(0, true).unwrap();
    }

    /// What the device says unasked.
    pub fn channel(&mut self) -> UnixStream {
        let (near, far) = UnixStream::pair().unwrap();
        near.set_read_timeout(Some(self.patience)).unwrap();
        self.front.set_backend_request_fd(&far).unwrap();
        near
    }

    /// The device's configuration.
    pub fn config(&mut self, len: u32) -> Vec<u8> {
        let flags = VhostUserConfigFlags::WRITABLE;
        self.front.get_config(0, len, flags, &vec![0; len as usize]).unwrap().1
    }

    /// Writes the guest's memory.
    pub fn write(&self, at: u64, bytes: &[u8]) {
        self.memory.put(at, bytes);
    }

    /// Reads the guest's memory.
    #[must_use]
    pub fn read(&self, at: u64, len: usize) -> Vec<u8> {
        self.memory.get(at, len)
    }

    fn get(&self, at: u64) -> u16 {
        fence(Ordering::SeqCst);
        u16::from_le_bytes(self.read(at, 2).try_into().unwrap())
    }

    /// Writes a descriptor of a table.
    pub fn describe(&self, table: u64, n: u16, at: u64, len: u32, flags: u16, next: u16) {
        let mut bytes = at.to_le_bytes().to_vec();
        bytes.extend(len.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        self.write(table + u64::from(n) * 16, &bytes);
    }

    /// Writes a descriptor of the ring.
    pub fn ring(&self, n: u16, at: u64, len: u32, flags: u16, next: u16) {
        self.describe(TABLE, n, at, len, flags, next);
    }

    /// Writes a request's header.
    pub fn header(&self, at: u64, kind: u32, sector: u64) {
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend([0; 4]);
        bytes.extend(sector.to_le_bytes());
        self.write(at, &bytes);
    }

    /// Puts a chain on the ring.
    pub fn offer(&mut self, head: u16) {
        self.write(AVAIL + 4 + u64::from(self.avail % SIZE) * 2, &head.to_le_bytes());
        self.jump(self.avail.wrapping_add(1));
    }

    /// Says that so many chains have been put there.
    pub fn jump(&mut self, to: u16) {
        fence(Ordering::SeqCst);
        self.write(AVAIL + 2, &to.to_le_bytes());
        self.avail = to;
        self.kick.write(1).unwrap();
    }

    /// How many chains came back that were not looked at.
    #[must_use]
    pub fn back(&self) -> u16 {
        self.get(USED + 2).wrapping_sub(self.used)
    }

    /// The next chain that comes back, and how much was written.
    pub fn used(&mut self) -> (u32, u32) {
        let started = Instant::now();
        while self.back() == 0 {
            assert!(started.elapsed() < self.patience, "the device does not answer");
            std::thread::sleep(Duration::from_micros(200));
        }
        let entry = self.read(USED + 4 + u64::from(self.used % SIZE) * 8, 8);
        self.used = self.used.wrapping_add(1);
        let word = |n: usize| u32::from_le_bytes(entry[n..n + 4].try_into().unwrap());
        (word(0), word(4))
    }

    /// Puts a request on the ring, without waiting; its head.
    pub fn submit(&mut self, kind: u32, sector: u64, data: &[Part]) -> u16 {
        let head = self.prepare(kind, sector, data);
        self.offer(head);
        head
    }

    fn prepare(&mut self, kind: u32, sector: u64, data: &[Part]) -> u16 {
        let head = self.free;
        let count = data.len() as u16 + 2;
        if self.free + count > SIZE {
            self.free = 0;
            return self.prepare(kind, sector, data);
        }
        self.free += count;
        let header = HEADERS + u64::from(head) * 32;
        self.header(header, kind, sector);
        self.write(header + 16, &[0xff]);
        self.ring(head, header, 16, NEXT, head + 1);
        for (n, (at, len, write)) in (1..).zip(data) {
            let flags = NEXT | if *write { WRITE } else { 0 };
            self.ring(head + n, *at, *len, flags, head + n + 1);
        }
        self.ring(head + count - 1, header + 16, 1, WRITE, 0);
        head
    }

    /// The status of a request.
    #[must_use]
    pub fn status(&self, head: u16) -> u8 {
        self.read(HEADERS + u64::from(head) * 32 + 16, 1)[0]
    }

    /// Does a request; its status, and how much was written.
    pub fn request(&mut self, kind: u32, sector: u64, data: &[Part]) -> (u8, u32) {
        let head = self.submit(kind, sector, data);
        let (id, written) = self.used();
        assert_eq!(id, u32::from(head));
        (self.status(head), written)
    }

    /// Interrupts that have come.
    #[must_use]
    pub fn interrupts(&self) -> u64 {
        self.call.read().unwrap_or(0)
    }

    /// Says without an event index whether the guest wants to be interrupted.
    pub fn want_interrupts(&self, wants: bool) {
        assert!(self.features & 1 << VIRTIO_RING_F_EVENT_IDX == 0);
        self.write(AVAIL, &u16::from(!wants).to_le_bytes());
    }

    /// Where the guest says from which chain on it wants to be interrupted.
    pub fn interrupt_from(&self, used: u16) {
        assert!(self.features & 1 << VIRTIO_RING_F_EVENT_IDX != 0);
        self.write(AVAIL + 4 + u64::from(SIZE) * 2, &used.to_le_bytes());
    }
}

fn nonblock() -> i32 {
    i32::try_from(EventfdFlags::NONBLOCK.bits()).unwrap()
}
