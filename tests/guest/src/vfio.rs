//! The driver of an NVMe controller, which it reaches by rust-vmm's client of vfio-user, the one that cloud-hypervisor has.

use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use shunt_nvme::wire::opcode::{admin, io};
use shunt_nvme::wire::registers::{ACQ, AQA, ASQ, CC, CSTS, Configuration};
use shunt_nvme::wire::{Cqe, Sqe, Status};
use vfio_user::Client;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryRegion};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};
use zerocopy::{FromBytes, IntoBytes};

use crate::Memory;

/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// Bytes of the first of the two regions of the guest's memory.
pub const REGION: u64 = 32 << 20;
/// Where the second one is, of as many bytes as [`FAR_LEN`].
pub const FAR: u64 = 1 << 32;
/// Bytes of the second one.
pub const FAR_LEN: u64 = 4 << 20;
/// Two pages for doorbells in memory, and what the device says of them.
pub const SHADOW: u64 = 4 << 20;
/// Free for lists of pages.
pub const LISTS: u64 = 8 << 20;
/// Free for data.
pub const DATA: u64 = 16 << 20;
/// Entries of a queue.
pub const ENTRIES: u32 = 64;

/// BAR0 and the configuration space, as regions.
pub const BAR0: u32 = 0;
/// See [`BAR0`].
pub const CONFIG: u32 = 7;
/// MSI-X.
const MSIX: u32 = 2;
/// `VFIO_IRQ_SET_DATA_EVENTFD` and `VFIO_IRQ_SET_ACTION_TRIGGER`.
const EVENTFDS: u32 = 1 << 2 | 1 << 5;

/// One of the driver's queues, in both directions.
#[derive(Debug)]
struct Pair {
    entries: u32,
    tail: u32,
    head: u32,
    phase: bool,
}

/// The driver.
pub struct Driver {
    /// The device.
    pub client: Client,
    /// The guest's memory.
    pub memory: Memory,
    /// How long it waits for an answer.
    pub patience: Duration,
    /// How often it has rung in BAR0 for an I/O queue.
    pub rings: u64,
    /// Doorbells are in memory.
    is_shadowed: bool,
    pairs: Vec<Pair>,
    interrupts: Vec<EventFd>,
    cid: u16,
}

/// Where a submission queue is; its completion queue is 64 KiB behind it.
#[must_use]
pub const fn submission(queue: u16) -> u64 {
    0x10_0000 + queue as u64 * 0x2_0000
}

/// Where a completion queue is.
#[must_use]
pub const fn completion(queue: u16) -> u64 {
    submission(queue) + 0x1_0000
}

/// A command with data by pages.
#[must_use]
pub fn command(opcode: u8, nsid: u32, prps: [u64; 2]) -> Sqe {
    let mut sqe = Sqe::new(opcode, nsid);
    sqe.flags = 0;
    let entries = prps.map(u64::to_le_bytes);
    sqe.sgl = FromBytes::read_from_bytes(entries.as_flattened()).unwrap();
    sqe
}

impl Driver {
    /// Attaches the device, as a monitor does: with memory and interrupts.
    #[must_use]
    pub fn connect(socket: &Path) -> Self {
        let mut client = Client::new(socket).unwrap();
        let memory = Memory::of(&[(0, REGION), (FAR, FAR_LEN)]);
        for region in memory.iter() {
            let file = region.file_offset().unwrap();
            let at = region.start_addr().0;
            client.dma_map(file.start(), at, region.len(), file.file().as_raw_fd()).unwrap();
        }
        let vectors = client.get_irq_info(MSIX).unwrap().count;
        let interrupts: Vec<_> =
            (0..vectors).map(|_| EventFd::new(EFD_NONBLOCK).unwrap()).collect();
        let fds: Vec<_> = interrupts.iter().map(AsRawFd::as_raw_fd).collect();
        client.set_irqs(MSIX, EVENTFDS, 0, vectors, &fds).unwrap();
        let patience = Duration::from_secs(20);
        let (rings, pairs) = (0, Vec::new());
        Self { client, memory, patience, rings, is_shadowed: false, pairs, interrupts, cid: 0 }
    }

    /// The same with an enabled controller and so many queues.
    #[must_use]
    pub fn start(socket: &Path, queues: u16) -> Self {
        let mut driver = Self::connect(socket);
        driver.enable();
        for queue in 1..=queues {
            assert_eq!(driver.create(queue, ENTRIES), [Status::SUCCESS; 2]);
        }
        driver
    }

    /// Reads a register of 32 bits.
    pub fn register(&mut self, at: u32) -> u32 {
        let mut bytes = [0; 4];
        self.client.region_read(BAR0, at.into(), &mut bytes).unwrap();
        u32::from_le_bytes(bytes)
    }

    /// Writes one.
    pub fn set_register(&mut self, at: u32, value: u32) {
        self.client.region_write(BAR0, at.into(), &value.to_le_bytes()).unwrap();
    }

    /// Waits for CSTS to be this.
    pub fn settles(&mut self, status: u32) {
        let until = Instant::now() + self.patience;
        loop {
            let now = self.register(CSTS);
            if now == status {
                return;
            }
            assert!(Instant::now() < until, "CSTS is {now:#x}, and not {status:#x}");
        }
    }

    /// Enables the controller.
    pub fn enable(&mut self) {
        let last = ENTRIES - 1;
        self.set_register(AQA, last << 16 | last);
        for (at, queue) in [(ASQ, submission(0)), (ACQ, completion(0))] {
            self.client.region_write(BAR0, at.into(), &queue.to_le_bytes()).unwrap();
        }
        self.write(completion(0), &[0; 16 * ENTRIES as usize]);
        (self.is_shadowed, self.rings) = (false, 0);
        self.pairs.clear();
        self.pairs.push(Pair { entries: ENTRIES, tail: 0, head: 0, phase: true });
        self.set_register(CC, Configuration::ENABLE.0);
        self.settles(1);
    }

    /// Disables it, and waits until that is done.
    pub fn disable(&mut self) {
        self.set_register(CC, 0);
        self.settles(0);
    }

    /// Creates a completion queue and a submission queue with the next number.
    pub fn create(&mut self, queue: u16, entries: u32) -> [Status; 2] {
        self.write(completion(queue), &vec![0; 16 * entries as usize]);
        let size = (entries - 1) << 16 | u32::from(queue);
        let mut answers = command(admin::CREATE_COMPLETION_QUEUE, 0, [completion(queue), 0]);
        answers.cdw10 = size.into();
        // Contiguous, with interrupts.
        answers.cdw11 = (u32::from(queue) << 16 | 0b11).into();
        let mut commands = command(admin::CREATE_SUBMISSION_QUEUE, 0, [submission(queue), 0]);
        commands.cdw10 = size.into();
        commands.cdw11 = (u32::from(queue) << 16 | 1).into();
        let created = [answers, commands].map(|sqe| self.execute(0, sqe).status());
        self.pairs.truncate(queue.into());
        self.pairs.push(Pair { entries, tail: 0, head: 0, phase: true });
        created
    }

    /// Puts a command into a queue, and does not ring; its number.
    pub fn prepare(&mut self, queue: u16, mut sqe: Sqe) -> u16 {
        self.cid = self.cid.wrapping_add(1);
        sqe.cid = self.cid.into();
        let pair = &mut self.pairs[usize::from(queue)];
        let at = submission(queue) + u64::from(pair.tail) * 64;
        pair.tail = (pair.tail + 1) % pair.entries;
        self.memory.write_slice(sqe.as_bytes(), GuestAddress(at)).unwrap();
        self.cid
    }

    /// Puts doorbells into memory, as Linux does (`nvme_dbbuf_`).
    pub fn shadow(&mut self) -> Status {
        self.write(SHADOW, &[0; 2 * PAGE as usize]);
        let sqe = command(admin::DOORBELL_BUFFER_CONFIG, 0, [SHADOW, SHADOW + PAGE]);
        let status = self.execute(0, sqe).status();
        self.is_shadowed = status.is_success();
        status
    }

    /// Writes a doorbell: into memory, and to BAR0 unless the device need not hear of it.
    fn doorbell(&mut self, number: u32, value: u32) {
        if self.is_shadowed && number > 1 {
            let at = |page: u64| GuestAddress(page + u64::from(number) * 4);
            let old: u32 = self.memory.load(at(SHADOW), Ordering::Relaxed).unwrap();
            self.memory.store(value, at(SHADOW), Ordering::Release).unwrap();
            fence(Ordering::SeqCst);
            let event: u32 = self.memory.load(at(SHADOW + PAGE), Ordering::Relaxed).unwrap();
            let [event, new, old] = [event, value, old].map(|value| value as u16);
            if new.wrapping_sub(event).wrapping_sub(1) >= new.wrapping_sub(old) {
                return;
            }
        }
        self.rings += u64::from(number > 1);
        self.set_register(0x1000 + number * 4, value);
    }

    /// Rings a queue's doorbell.
    pub fn ring(&mut self, queue: u16) {
        let tail = self.pairs[usize::from(queue)].tail;
        self.doorbell(u32::from(queue) * 2, tail);
    }

    /// Hands a command over; its number.
    pub fn submit(&mut self, queue: u16, sqe: Sqe) -> u16 {
        let cid = self.prepare(queue, sqe);
        self.ring(queue);
        cid
    }

    /// A completion, if there is one. The device is not told that it was read.
    pub fn peek(&mut self, queue: u16) -> Option<Cqe> {
        let pair = &mut self.pairs[usize::from(queue)];
        let at = GuestAddress(completion(queue) + u64::from(pair.head) * 16);
        let place = self.memory.get_slice(at, 16).unwrap();
        let last: u32 = place.load(12, Ordering::Acquire).unwrap();
        if last >> 16 & 1 != u32::from(pair.phase) {
            return None;
        }
        let mut bytes = [0; 16];
        place.read_slice(&mut bytes, 0).unwrap();
        pair.head = (pair.head + 1) % pair.entries;
        pair.phase ^= pair.head == 0;
        Some(Cqe::read_from_bytes(&bytes).unwrap())
    }

    /// Tells the device what was read.
    pub fn acknowledge(&mut self, queue: u16) {
        let head = self.pairs[usize::from(queue)].head;
        self.doorbell(u32::from(queue) * 2 + 1, head);
    }

    /// Waits for a completion, and tells the device.
    pub fn complete(&mut self, queue: u16) -> Cqe {
        let until = Instant::now() + self.patience;
        loop {
            if let Some(cqe) = self.peek(queue) {
                self.acknowledge(queue);
                return cqe;
            }
            assert!(Instant::now() < until, "no completion");
            std::thread::sleep(Duration::from_micros(20));
        }
    }

    /// Hands a command over and waits for it: the only one of its queue.
    pub fn execute(&mut self, queue: u16, sqe: Sqe) -> Cqe {
        let cid = self.submit(queue, sqe);
        let cqe = self.complete(queue);
        assert_eq!((cqe.cid.get(), cqe.sqid.get()), (cid, queue));
        cqe
    }

    /// How often an interrupt was raised since the last look.
    #[must_use]
    pub fn raised(&self, vector: u16) -> u64 {
        self.interrupts[usize::from(vector)].read().unwrap_or(0)
    }

    /// PRP1 and PRP2 of a range of memory, with a list in the place of this number where it takes one.
    #[must_use]
    pub fn pages(&self, at: u64, len: u64, list: u64) -> [u64; 2] {
        let second = at / PAGE * PAGE + PAGE;
        let pages: Vec<u64> = (second..at + len).step_by(PAGE as usize).collect();
        match pages[..] {
            [] => [at, 0],
            [second] => [at, second],
            _ => {
                let place = LISTS + list * PAGE;
                self.write(place, pages.as_bytes());
                [at, place]
            }
        }
    }

    /// A read or write of blocks of 512 bytes from or to a range of memory. Its list is that of its number.
    #[must_use]
    pub fn transfer(&self, opcode: u8, block: u64, at: u64, len: u64) -> Sqe {
        let list = u64::from(self.cid) % 1024;
        let mut sqe = command(opcode, 1, self.pages(at, len, list));
        sqe.set_cdw10_64(block);
        sqe.cdw12 = (len as u32 / 512 - 1).into();
        sqe
    }

    /// Writes bytes of the guest's memory to the disk.
    pub fn store(&mut self, block: u64, at: u64, len: u64) -> Status {
        let sqe = self.transfer(io::WRITE, block, at, len);
        self.execute(1, sqe).status()
    }

    /// Reads bytes of the disk into the guest's memory.
    pub fn load(&mut self, block: u64, at: u64, len: u64) -> Status {
        let sqe = self.transfer(io::READ, block, at, len);
        self.execute(1, sqe).status()
    }

    /// Puts bytes into the guest's memory.
    pub fn write(&self, at: u64, bytes: &[u8]) {
        self.memory.put(at, bytes);
    }

    /// Bytes of the guest's memory.
    #[must_use]
    pub fn read(&self, at: u64, len: usize) -> Vec<u8> {
        self.memory.get(at, len)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // The client keeps its socket open as long as it can.
        let _gone = self.client.shutdown();
    }
}
