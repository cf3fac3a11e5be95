//! A guest without a processor: a vhost-user front end that writes to an emulated disk as fast as that takes it.

mod ring;

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use vhost::vhost_user::message::VhostUserProtocolFeatures;
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{
    FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion,
    GuestRegionMmap,
};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::gate::Gate;
use super::seen::Seen;
use crate::stats::Histogram;
use ring::{Layout, Ring};

/// Bytes of the guest's memory.
const MEMORY: u64 = 16 << 20;
/// Where the buffers are in it.
const DATA: u64 = 1 << 20;
/// Sectors of the disk that are written, and bytes of one.
const SECTORS: u64 = 1 << 20;
const SECTOR: u64 = 512;
/// How long the disk may take for a request.
const PATIENCE: Duration = Duration::from_secs(10);

/// `shunt load guest`.
#[derive(Args, Clone, Debug)]
pub struct Guest {
    /// The disk's socket.
    #[arg(long)]
    socket: PathBuf,
    /// Bytes of a write, a multiple of 512.
    #[arg(long, default_value_t = 4096)]
    size: u32,
    /// Writes at once.
    #[arg(long, default_value_t = 64)]
    depth: u16,
    /// End after so long.
    #[arg(long)]
    seconds: f64,
}

impl Guest {
    /// Runs it.
    pub fn run(&self, gate: Gate) -> io::Result<Seen> {
        let size = u64::from(self.size);
        let is_whole = size > 0 && size.is_multiple_of(SECTOR) && size <= MEMORY - DATA;
        let layout = Layout::of(self.depth).filter(|_| is_whole);
        let layout = layout
            .ok_or_else(|| refused("1 to 341 whole sectors, at most 15 MiB, can be written"))?;
        let memory = memory()?;
        let all = memory.get_slice(GuestAddress(0), usize::try_from(MEMORY).map_err(refused)?);
        let (kick, call) = (EventFd::new(EFD_NONBLOCK)?, EventFd::new(EFD_NONBLOCK)?);
        let front = Device::connect(&self.socket, &memory, &layout, &kick, &call)?;
        let ring = Ring::new(all.map_err(refused)?, layout, front.event_idx, kick, call);
        gate.pass()?;
        let seen = self.load(ring?);
        // It stays connected until the process ends: what a thread of the disk has used is metered while it lives.
        std::mem::forget(front);
        seen
    }

    fn load(&self, mut ring: Ring<'_>) -> io::Result<Seen> {
        let size = u64::from(self.size);
        let (places, positions) = ((MEMORY - DATA) / size, SECTORS * SECTOR / size);
        let (mut count, mut position) = (0_u64, 0_u64);
        // Anywhere on the disk, and the same each time; from buffers in turn.
        let mut offer = |ring: &mut Ring<'_>, slot| {
            count += 1;
            position = (position * 25_214_903_917 + 11) % positions;
            let data = DATA + count % places * size;
            ring.offer(slot, position * size / SECTOR, data, self.size)
        };
        let mut histogram = Histogram::default();
        for slot in 0..self.depth {
            offer(&mut ring, slot).map_err(refused)?;
        }
        let time = Duration::from_secs_f64(self.seconds);
        let start = Instant::now();
        let (mut timed, mut now, mut done) = (start, start, 0);
        ring.tell()?;
        while now - start < time {
            let mut found = false;
            while let Some(slot) = ring.take()? {
                found = true;
                done += 1;
                if slot == 0 {
                    // The clock is read for one request of all that are under way.
                    now = Instant::now();
                    super::ping::record(&mut histogram, now - timed);
                    timed = now;
                }
                offer(&mut ring, slot).map_err(refused)?;
            }
            if found {
                ring.tell()?;
            } else if !ring.sleep(PATIENCE)? {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the disk does not answer"));
            } else {
                now = Instant::now();
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        Ok(Seen { operations: done, bytes: done * size, seconds, latency: histogram.quantiles() })
    }
}

fn refused(why: impl std::fmt::Display) -> io::Error {
    io::Error::other(why.to_string())
}

/// Memory as QEMU's is by default: a memfd that does not change its size.
fn memory() -> io::Result<GuestMemoryMmap> {
    let memfd = memfd_create("guest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&memfd, MEMORY)?;
    fcntl_add_seals(&memfd, SealFlags::SHRINK | SealFlags::GROW)?;
    let file = FileOffset::new(File::from(memfd), 0);
    let len = usize::try_from(MEMORY).map_err(refused)?;
    GuestMemoryMmap::from_ranges_with_files([(GuestAddress(0), len, Some(file))]).map_err(refused)
}

/// The device.
struct Device {
    event_idx: bool,
    /// It goes with its connection.
    _front: Frontend,
}

impl Device {
    fn connect(
        socket: &Path,
        memory: &GuestMemoryMmap,
        layout: &Layout,
        kick: &EventFd,
        call: &EventFd,
    ) -> io::Result<Self> {
        let mut front = Frontend::connect(socket, 1).map_err(refused)?;
        let mut set_up = || {
            front.set_owner()?;
            let features = front.get_features()?;
            front.set_features(features)?;
            front.get_protocol_features()?;
            let none = VhostUserProtocolFeatures::empty();
            front.set_protocol_features(none)?;
            front.set_mem_table(&regions(memory))?;
            front.set_vring_num(0, layout.size)?;
            let host = |at| memory.get_host_address(GuestAddress(at)).map(|at| at as u64);
            let config = VringConfigData {
                queue_max_size: layout.size,
                queue_size: layout.size,
                flags: 0,
                desc_table_addr: host(layout.table).unwrap_or(0),
                used_ring_addr: host(layout.used).unwrap_or(0),
                avail_ring_addr: host(layout.available).unwrap_or(0),
                log_addr: None,
            };
            front.set_vring_addr(0, &config)?;
            front.set_vring_base(0, 0)?;
            front.set_vring_call(0, call)?;
            front.set_vring_kick(0, kick)?;
            front.set_vring_enable(0, true)?;
            Ok(features)
        };
        let features: u64 = set_up().map_err(|e: vhost::Error| refused(e))?;
        Ok(Self { event_idx: ring::has_event_idx(features), _front: front })
    }
}

fn regions(memory: &GuestMemoryMmap) -> Vec<VhostUserMemoryRegionInfo> {
    let region = |region: &GuestRegionMmap| {
        let file = region.file_offset()?.file().as_raw_fd();
        Some(VhostUserMemoryRegionInfo {
            guest_phys_addr: region.start_addr().0,
            memory_size: region.len(),
            userspace_addr: region.as_ptr() as u64,
            mmap_offset: 0,
            mmap_handle: file,
        })
    };
    memory.iter().filter_map(region).collect()
}
