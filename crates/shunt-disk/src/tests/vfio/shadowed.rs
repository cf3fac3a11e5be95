//! Doorbells in the guest's memory: what is found there, and when the guest rings.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use std::time::{Duration, Instant};

use shunt_guest::vfio::{DATA, Driver, FAR, FAR_LEN, PAGE, SHADOW, command};
use shunt_nvme::wire::opcode::{admin, io};
use shunt_nvme::wire::registers::{ACQ, AQA, ASQ, CC, Configuration};
use shunt_nvme::wire::{Nqn, Sqe, Status};
use vm_memory::{Bytes, GuestAddress};
use zerocopy::IntoBytes;

use crate::port::Memory;
use crate::tests::exact::{geometry, pattern};
use crate::tests::ram::Ram;
use crate::tests::served::Served;
use crate::vfio::controller::Controller;
use crate::vfio::queues::Queues;
use crate::vfio::registers::AdminQueue;

/// Where doorbells and events are, in a memory of 16 pages; the queues before them have eight entries.
const DOORBELLS: u64 = 0xe000;
const EVENTS: u64 = 0xf000;
const LEN: usize = 0x1_0000;

/// The numbers of the first queue's doorbells.
const TAIL: u64 = 2;
const HEAD: u64 = 3;

/// A controller without a device around it.
struct Bare {
    controller: Controller,
    memory: Memory,
    tail: u32,
    interrupts: Vec<u16>,
}

impl Bare {
    /// Enabled, with one queue, whose doorbells are in memory.
    fn new() -> Self {
        let memory = Memory::from_ranges(&[(GuestAddress(0), LEN)]).unwrap();
        let name = Nqn::new("nqn.2024-01.org.shunt:disk").unwrap();
        let controller = Controller::new(name, 2);
        let mut bare = Self { controller, memory, tail: 0, interrupts: Vec::new() };
        bare.enable();
        bare.create();
        assert_eq!(bare.shadow([DOORBELLS, EVENTS]), Status::SUCCESS);
        bare
    }

    fn set(&mut self, at: u32, value: u32) {
        self.controller.write(at.into(), &value.to_le_bytes());
    }

    fn enable(&mut self) {
        self.memory.write_slice(&[0; 0x2000], GuestAddress(0)).unwrap();
        self.set(AQA, 63 << 16 | 63);
        self.set(ASQ, 0);
        self.set(ACQ, 0x1000);
        self.set(CC, Configuration::ENABLE.0);
        self.tail = 0;
    }

    /// Executes an Admin command.
    fn admin(&mut self, sqe: Sqe) -> Status {
        self.put(0, u64::from(self.tail), &sqe);
        let at = 0x1000 + u64::from(self.tail) * 16;
        self.tail += 1;
        self.set(0x1000, self.tail);
        assert!(self.controller.run(&self.memory, &geometry()));
        self.post();
        self.set(0x1004, self.tail);
        let status: u16 = self.memory.read_obj(GuestAddress(at + 14)).unwrap();
        Status::from_bits(status >> 1)
    }

    fn put(&self, queue: u64, index: u64, sqe: &Sqe) {
        let at = queue * 0x2000 + index * 64;
        self.memory.write_slice(sqe.as_bytes(), GuestAddress(at)).unwrap();
    }

    fn create(&mut self) {
        for (opcode, at, cdw11) in [
            (admin::CREATE_COMPLETION_QUEUE, 0x3000, 1 << 16 | 3),
            (admin::CREATE_SUBMISSION_QUEUE, 0x2000, 1 << 16 | 1),
        ] {
            let mut sqe = command(opcode, 0, [at, 0]);
            (sqe.cdw10, sqe.cdw11) = ((7 << 16 | 1).into(), cdw11.into());
            assert_eq!(self.admin(sqe), Status::SUCCESS);
        }
    }

    fn shadow(&mut self, pages: [u64; 2]) -> Status {
        self.admin(command(admin::DOORBELL_BUFFER_CONFIG, 0, pages))
    }

    fn post(&mut self) {
        self.controller.post(&self.memory, &mut self.interrupts);
    }

    /// The guest writes a doorbell in memory.
    fn write(&self, number: u64, value: u32) {
        self.memory.write_obj(value, GuestAddress(DOORBELLS + number * 4)).unwrap();
    }

    fn doorbell(&self, number: u64) -> u32 {
        self.memory.read_obj(GuestAddress(DOORBELLS + number * 4)).unwrap()
    }

    fn event(&self, number: u64) -> u32 {
        self.memory.read_obj(GuestAddress(EVENTS + number * 4)).unwrap()
    }

    /// Commands that are found, and taken.
    fn takes(&mut self) -> usize {
        self.controller.look(&self.memory);
        let taken: Vec<Sqe> =
            std::iter::from_fn(|| self.controller.take(1, &self.memory)).collect();
        taken.iter().for_each(|sqe| self.controller.complete(1, sqe, Ok(0)));
        self.post();
        taken.len()
    }

    fn arms(&mut self) -> bool {
        self.controller.arm(&self.memory)
    }
}

#[test]
fn commands_are_found_without_a_ring() {
    let mut bare = Bare::new();
    for n in 0..8 {
        bare.put(1, n, &command(io::FLUSH, 1, [0, 0]));
    }
    // It does not want to hear of what the guest can add: all places but one.
    assert_eq!(bare.event(TAIL), 7);
    assert_eq!((bare.takes(), bare.arms(), bare.event(TAIL)), (0, false, 0));
    bare.write(TAIL, 2);
    assert!(bare.arms());
    bare.controller.disarm(&bare.memory);
    assert_eq!(bare.takes(), 2);
    bare.controller.disarm(&bare.memory);
    assert_eq!(bare.event(TAIL), 1);
    // The value in BAR0 says no more than that there is another one.
    bare.set(0x1008, 5);
    assert_eq!(bare.takes(), 0);
    bare.write(TAIL, 3);
    bare.set(0x1008, 1);
    assert_eq!((bare.takes(), bare.takes()), (1, 0));
    assert_eq!((bare.arms(), bare.event(TAIL)), (false, 3));
    // The Admin Queue's is none.
    bare.write(0, 60);
    assert_eq!((bare.takes(), bare.arms()), (0, false));
    assert!(!bare.controller.run(&bare.memory, &geometry()));
}

#[test]
fn a_value_that_cannot_be_is_told_once() {
    let mut bare = Bare::new();
    bare.put(0, bare.tail.into(), &command(admin::ASYNC_EVENT, 0, [0, 0]));
    bare.tail += 1;
    bare.set(0x1000, bare.tail);
    assert!(bare.controller.run(&bare.memory, &geometry()));
    bare.interrupts.clear();
    bare.write(TAIL, 8);
    assert_eq!(bare.takes(), 0);
    // Nor does it keep the controller awake.
    assert!(!bare.arms());
    bare.post();
    let at = GuestAddress(0x1000 + u64::from(bare.tail - 1) * 16);
    let result: u32 = bare.memory.read_obj(at).unwrap();
    assert_eq!((result, &bare.interrupts[..]), (0x01_0100, &[0][..]));
    bare.write(TAIL, 1);
    assert_eq!(bare.takes(), 1);
}

#[test]
fn heads_are_looked_for_where_there_is_no_room() {
    let mut bare = Bare::new();
    let mut tail = 0;
    for (head, adds) in [(0, 7), (0, 1)] {
        tail = (tail + adds) % 8;
        bare.write(TAIL, tail);
        assert_eq!(bare.takes(), adds as usize);
        assert_eq!(bare.event(HEAD), (head + 7) % 8);
    }
    // One completion waits, so no command is taken, and the guest is to say when it has read.
    bare.write(TAIL, 1);
    assert_eq!((bare.takes(), bare.arms(), bare.event(HEAD)), (0, false, 0));
    bare.write(HEAD, 5);
    assert!(bare.arms());
    bare.interrupts.clear();
    bare.post();
    assert_eq!((&bare.interrupts[..], bare.event(HEAD)), (&[1][..], 4));
    assert_eq!(bare.takes(), 1);
    assert!(!bare.arms());
    assert_eq!(bare.event(HEAD), 4, "there is room");
}

/// What the pages hold from before would have commands of then done once more.
#[test]
fn what_is_left_in_the_pages_does_not_count() {
    let mut bare = Bare::new();
    bare.write(TAIL, 3);
    bare.write(HEAD, 2);
    bare.set(CC, 0);
    assert!(!bare.controller.settle());
    bare.enable();
    // BAR0 again.
    bare.create();
    bare.write(TAIL, 4);
    assert_eq!((bare.takes(), bare.arms()), (0, false));
    bare.set(0x1008, 1);
    assert_eq!(bare.takes(), 1);
    bare.post();
    bare.set(0x100c, 1);
    assert_eq!(bare.shadow([DOORBELLS, EVENTS]), Status::SUCCESS);
    assert_eq!((bare.doorbell(TAIL), bare.doorbell(HEAD)), (1, 1));
    assert_eq!((bare.event(TAIL), bare.event(HEAD), bare.takes()), (0, 0, 0));
    // The same of a queue that is created later.
    bare.write(4, 6);
    let mut sqe = command(admin::CREATE_SUBMISSION_QUEUE, 0, [0x4000, 0]);
    (sqe.cdw10, sqe.cdw11) = ((7 << 16 | 2).into(), (1 << 16 | 1).into());
    assert_eq!(bare.admin(sqe), Status::SUCCESS);
    assert_eq!((bare.doorbell(4), bare.event(4)), (0, 7));
    bare.controller.look(&bare.memory);
    assert!(!bare.controller.has_next(2));
}

#[test]
fn pages_are_memory() {
    let mut bare = Bare::new();
    let (offset, field) = (Status::PRP_OFFSET_INVALID.dnr(), Status::INVALID_FIELD.dnr());
    for (pages, why) in [
        ([DOORBELLS + 4, EVENTS], offset),
        ([DOORBELLS, EVENTS + 0x800], offset),
        ([DOORBELLS, DOORBELLS], field),
        ([LEN as u64, EVENTS], field),
        ([DOORBELLS, 0u64.wrapping_sub(PAGE)], field),
    ] {
        assert_eq!(bare.shadow(pages), why, "{pages:x?}");
    }
    // Those of before count; and while they are away there is nothing new.
    let away = Memory::from_ranges(&[(GuestAddress(0), DOORBELLS as usize)]).unwrap();
    bare.write(TAIL, 1);
    bare.controller.look(&away);
    assert!(!bare.controller.has_next(1) && !bare.controller.arm(&away));
    bare.controller.disarm(&away);
    assert_eq!(bare.takes(), 1);
}

/// A guest that adds an entry as the controller goes to sleep: one of the two sees what the other has written.
#[test]
fn no_entry_is_slept_over() {
    const ROUNDS: u32 = 50_000;
    const ENTRIES: u32 = 64;
    let memory = Arc::new(Memory::from_ranges(&[(GuestAddress(0), LEN)]).unwrap());
    let mut queues = Queues::new(1);
    queues.begin(AdminQueue { submission: 0, submissions: 2, completion: 0x1000, completions: 2 });
    let mut sqe = command(0, 0, [0x3000, 0]);
    (sqe.cdw10, sqe.cdw11) = (((ENTRIES - 1) << 16 | 1).into(), 1.into());
    queues.create_completion(&sqe, &memory, 1).unwrap();
    let mut sqe = command(0, 0, [0x2000, 0]);
    (sqe.cdw10, sqe.cdw11) = (((ENTRIES - 1) << 16 | 1).into(), (1 << 16 | 1).into());
    queues.create_submission(&sqe, &memory).unwrap();
    queues.shadow(&command(0, 0, [DOORBELLS, EVENTS]), &memory).unwrap();
    let (bell, seen) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let gives_up = Instant::now() + Duration::from_secs(120);
    let wait = |is_over: &dyn Fn() -> bool| {
        let mut looks = 0u32;
        while !is_over() {
            looks += 1;
            // Processors may be fewer than threads.
            if looks.is_multiple_of(256) {
                std::thread::yield_now();
                assert!(Instant::now() < gives_up, "an entry was slept over");
            }
            std::hint::spin_loop();
        }
    };
    std::thread::scope(|scope| {
        let (guests, rings, sees) = (Arc::clone(&memory), Arc::clone(&bell), Arc::clone(&seen));
        scope.spawn(move || {
            let at = |page| GuestAddress(page + TAIL * 4);
            let mut old = 0u16;
            for round in 1..=ROUNDS {
                let tail = round % ENTRIES;
                guests.store(tail, at(DOORBELLS), Ordering::Release).unwrap();
                fence(Ordering::SeqCst);
                let event: u32 = guests.load(at(EVENTS), Ordering::Relaxed).unwrap();
                let (event, new) = (event as u16, tail as u16);
                if new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old) {
                    rings.store(true, Ordering::SeqCst);
                }
                old = new;
                wait(&|| sees.load(Ordering::Acquire) == tail);
            }
        });
        let mut round = 0;
        while round < ROUNDS {
            let tail = |queues: &mut Queues| queues.submission(1).unwrap().tail();
            let before = tail(&mut queues);
            queues.look(&memory).unwrap();
            if tail(&mut queues) != before {
                round += 1;
                seen.store(tail(&mut queues), Ordering::Release);
            } else if !queues.arm(&memory) {
                wait(&|| bell.swap(false, Ordering::SeqCst));
                queues.disarm(&memory);
            }
        }
    });
}

/// By messages and memory at once, with a device that sleeps now and then.
#[test]
fn thousands_of_commands_at_depth() {
    let disk = Ram::new(geometry());
    let served = Served::nvme(&disk, 2);
    let mut driver = Driver::start(&served.path, 2);
    assert_eq!(driver.shadow(), Status::SUCCESS);
    for round in 0..40u64 {
        for n in 0..60u64 {
            let (queue, at) = ((n % 2 + 1) as u16, DATA + n * 8192 + round * 4);
            driver.write(at, &pattern(4096, (round * 60 + n) as u8));
            let sqe = driver.transfer(io::WRITE, n * 8, at, 4096);
            driver.submit(queue, sqe);
        }
        for n in 0..60 {
            assert_eq!(driver.complete(n % 2 + 1).status(), Status::SUCCESS);
        }
        let state = disk.state.lock().unwrap();
        for n in 0..60 {
            let expected = pattern(4096, (round * 60 + n as u64) as u8);
            assert!(state.bytes[n * 4096..(n + 1) * 4096] == expected, "{round} {n}");
        }
        drop(state);
        std::thread::sleep(Duration::from_millis(round % 3));
    }
    // Heads are never rung for: there was room.
    assert!(driver.rings <= 2400, "{} rings", driver.rings);
    // After a reset doorbells are in BAR0, and memory that goes does no harm.
    driver.disable();
    driver.enable();
    assert_eq!(driver.create(1, 64), [Status::SUCCESS; 2]);
    assert_eq!(driver.load(0, DATA, 4096), Status::SUCCESS);
    assert_eq!((driver.shadow(), driver.rings), (Status::SUCCESS, 2));
    driver.client.dma_unmap(FAR, FAR_LEN).unwrap();
    assert_eq!(driver.load(0, DATA, 4096), Status::SUCCESS);
    assert_eq!(driver.load(0, FAR, 4096), Status::DATA_TRANSFER_ERROR.dnr());
    assert!(driver.read(SHADOW + 8, 4) == [3, 0, 0, 0]);
}
