//! The controller as the guest sees it in BAR0: registers, doorbells, and what becomes of commands in its queues.

use shunt_nvme::wire::{Nqn, Sqe, Status};

use super::admin::{Admin, Answer};
use super::events::Event;
use super::logs::Usage;
use super::pci::{TABLE, TABLE_ENTRY};
use super::queue::{BadValue, Broken};
use super::queues::Queues;
use super::registers::{Change, Registers};
use crate::port::{Geometry, Memory};

/// Where doorbells begin (PCIe 3.1.2); they have no gaps.
const DOORBELLS: u64 = 0x1000;
/// Most queues for I/O, so that their doorbells end below the MSI-X table.
pub const MAX_QUEUES: u16 = 64;

/// How far the controller is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Disabled.
    Off,
    /// It takes commands.
    On,
    /// It ends when nothing is in flight, and then begins again if it is enabled.
    Stopping,
    /// It has been told to shut down: what is in flight completes, and then a flush.
    Shutting { flushes: bool },
    /// It has.
    Shut,
    /// It cannot go on before it is disabled.
    Failed,
}

/// The controller.
#[derive(Debug)]
pub struct Controller {
    registers: Registers,
    queues: Queues,
    admin: Admin,
    phase: Phase,
    /// The MSI-X table, which nobody but the monitor looks at.
    table: Vec<u8>,
    count: u16,
}

impl Controller {
    /// One with so many queues for I/O, of a subsystem with this name.
    #[must_use]
    pub fn new(name: Nqn, count: u16) -> Self {
        let count = count.clamp(1, MAX_QUEUES);
        Self {
            registers: Registers::default(),
            queues: Queues::new(count),
            admin: Admin::new(name, count),
            phase: Phase::Off,
            table: vec![0; TABLE_ENTRY * (usize::from(count) + 1)],
            count,
        }
    }

    /// Interrupts: one for each queue.
    #[must_use]
    pub const fn vectors(&self) -> u16 {
        self.count + 1
    }

    /// As it was at first. Nothing is in flight.
    pub fn reset(&mut self) {
        self.registers = Registers::default();
        self.table.fill(0);
        self.forget();
    }

    /// Forgets all but the registers.
    fn forget(&mut self) {
        self.queues.clear();
        self.admin.reset();
        self.phase = Phase::Off;
    }

    /// The part of the MSI-X table from an offset on.
    fn table(&mut self, offset: u64) -> &mut [u8] {
        let from = offset.checked_sub(TABLE).and_then(|from| usize::try_from(from).ok());
        from.and_then(|from| self.table.get_mut(from..)).unwrap_or_default()
    }

    /// Reads from BAR0. Doorbells, pending bits and what is nothing read as zero.
    pub fn read(&mut self, offset: u64, data: &mut [u8]) {
        if offset < TABLE {
            return self.registers.read(offset, data);
        }
        data.fill(0);
        let there = self.table(offset);
        data.iter_mut().zip(there).for_each(|(to, from)| *to = *from);
    }

    /// Writes to BAR0: 32 bits, or 64 as two of them. Others are left alone, but for the MSI-X table.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        if offset >= TABLE {
            self.table(offset).iter_mut().zip(data).for_each(|(to, from)| *to = *from);
            return;
        }
        let (words, []) = data.as_chunks::<4>() else { return };
        if words.len() > 2 || !offset.is_multiple_of(4) {
            return;
        }
        for (at, word) in (offset..).step_by(4).zip(words) {
            let value = u32::from_le_bytes(*word);
            match at.checked_sub(DOORBELLS) {
                Some(at) => self.doorbell(at / 4, value),
                None => self.register(at, value),
            }
        }
    }

    fn register(&mut self, at: u64, value: u32) {
        match u32::try_from(at).map_or(Change::None, |at| self.registers.write(at, value)) {
            Change::Enable if self.phase == Phase::Off => self.begin(),
            // It begins when it has ended.
            Change::Enable | Change::None => {}
            Change::Disable => self.phase = Phase::Stopping,
            Change::Shutdown => match self.phase {
                Phase::On => {
                    self.phase = Phase::Shutting { flushes: false };
                    self.registers.shutting_down();
                }
                // There is nothing to end.
                Phase::Off | Phase::Failed => self.registers.shut_down(),
                Phase::Stopping | Phase::Shutting { .. } | Phase::Shut => {}
            },
        }
    }

    fn begin(&mut self) {
        if let Some(admin) = self.registers.admin_queue() {
            self.queues.begin(admin);
            self.registers.ready();
            self.phase = Phase::On;
        } else {
            self.fail();
        }
    }

    fn fail(&mut self) {
        self.registers.fatal();
        self.phase = Phase::Failed;
    }

    /// True while queues are used.
    const fn is_running(&self) -> bool {
        matches!(self.phase, Phase::On | Phase::Shutting { .. })
    }

    /// A doorbell: tails of submission queues have even numbers, heads of completion queues odd ones.
    fn doorbell(&mut self, number: u64, value: u32) {
        if !self.is_running() {
            return;
        }
        match self.queues.ring(number, value) {
            Some(Ok(())) => {}
            Some(Err(BadValue)) => self.admin.events.raise(Event::BadDoorbell),
            None => self.admin.events.raise(Event::NoSuchDoorbell),
        }
    }

    /// True where a command of a queue can be taken.
    #[must_use]
    pub fn has_next(&self, queue: u16) -> bool {
        self.phase == Phase::On && self.queues.has_next(queue)
    }

    /// Takes a command of a queue. It completes by [`Self::complete`].
    pub fn take(&mut self, queue: u16, memory: &Memory) -> Option<Sqe> {
        if !self.has_next(queue) {
            return None;
        }
        let taken = self.queues.submission(queue)?.take(memory);
        taken.unwrap_or_else(|Broken| {
            self.fail();
            None
        })
    }

    /// Executes Admin commands; true if there was one.
    pub fn run(&mut self, memory: &Memory, disk: &Geometry) -> bool {
        let mut found = false;
        while let Some(sqe) = self.take(0, memory) {
            found = true;
            match self.admin.execute(&sqe, &mut self.queues, memory, disk) {
                Ok(Answer::Done(result)) => self.complete(0, &sqe, Ok(result)),
                Err(status) => self.complete(0, &sqe, Err(status)),
                Ok(Answer::Later) => self.over(0),
            }
        }
        found
    }

    /// A command is not in flight any more.
    fn over(&mut self, queue: u16) {
        if let Some(queue) = self.queues.submission(queue) {
            queue.in_flight = queue.in_flight.saturating_sub(1);
        }
    }

    /// A command that was taken has completed.
    pub fn complete(&mut self, queue: u16, sqe: &Sqe, result: Result<u64, Status>) {
        self.over(queue);
        let (status, result) = match result {
            Ok(result) => (Status::SUCCESS, result),
            Err(status) => {
                self.admin.logs.failed(queue, sqe, status);
                (status, 0)
            }
        };
        self.queues.push(queue, sqe.cid.get(), status, result);
    }

    /// What was read and written.
    pub const fn usage(&mut self) -> &mut Usage {
        &mut self.admin.logs.usage
    }

    /// The disk has changed.
    pub fn changed(&mut self) {
        self.admin.logs.has_changed = true;
        self.admin.events.raise(Event::Namespace);
    }

    /// Looks for commands of which doorbells in memory tell.
    pub fn look(&mut self, memory: &Memory) {
        if self.is_running() && self.queues.look(memory).is_err() {
            self.admin.events.raise(Event::BadDoorbell);
        }
    }

    /// The guest is to ring in BAR0 from now on, as nobody looks at doorbells in memory. True if one has changed already.
    #[must_use]
    pub fn arm(&mut self, memory: &Memory) -> bool {
        self.is_running() && self.queues.arm(memory)
    }

    /// The guest need not ring, as [`Self::look`] will be called.
    pub fn disarm(&mut self, memory: &Memory) {
        if self.is_running() {
            self.queues.disarm(memory);
        }
    }

    /// Shows the guest what has completed, and adds the interrupts that tell it.
    pub fn post(&mut self, memory: &Memory, interrupts: &mut Vec<u16>) {
        if !self.is_running() {
            return;
        }
        self.queues.finish_deletions();
        while let Some((cid, result)) = self.admin.events.tell() {
            self.queues.push(0, cid, Status::SUCCESS, result);
        }
        match self.queues.post(memory, interrupts) {
            Ok(false) => {}
            Ok(true) => self.admin.events.raise(Event::BadDoorbell),
            Err(Broken) => self.fail(),
        }
    }

    /// Goes on with an end or a shutdown, as nothing is in flight. True if a flush is needed now, after which
    /// [`Self::flushed`] is called.
    #[must_use]
    pub fn settle(&mut self) -> bool {
        match self.phase {
            Phase::Stopping => {
                self.registers.disabled();
                self.forget();
                if self.registers.is_enabled() {
                    self.begin();
                }
                false
            }
            Phase::Shutting { flushes: false } => {
                self.phase = Phase::Shutting { flushes: true };
                true
            }
            _ => false,
        }
    }

    /// All that was written is on stable storage, or cannot be brought there.
    pub fn flushed(&mut self) {
        if matches!(self.phase, Phase::Shutting { .. }) {
            self.registers.shut_down();
            self.phase = Phase::Shut;
        }
    }
}
