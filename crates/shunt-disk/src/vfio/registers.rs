//! The controller's registers (Base 3.1.3, PCIe 3.1.1): what they hold, and what becomes of writes to them. Doorbells are
//! [`super::controller`]'s.

use shunt_nvme::wire::registers::{
    ACQ, AQA, ASQ, CAP, CC, CSTS, Configuration, ControllerStatus, INTMC, INTMS, Shutdown, VS,
    capabilities,
};

/// The version that the controller reports: 1.4.0, as it has not what 2.0 asks of all.
pub const VERSION: u32 = 0x0001_0400;
/// Entries of the longest queue.
pub const MAX_ENTRIES: u32 = 1024;
/// CAP.TO: how long enabling and disabling may take, in 500 ms. Disabling waits for commands, and they for the target.
const READY_TIMEOUT: u8 = 255;
/// Bytes that are registers.
const SIZE: usize = 0x40;

/// What a write asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// No more than was done.
    None,
    /// The controller is to begin.
    Enable,
    /// It is to end, and to forget its queues.
    Disable,
    /// It is to end, and to say so when all is on stable storage.
    Shutdown,
}

/// An Admin Queue, as registers tell of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AdminQueue {
    /// ASQ.
    pub submission: u64,
    /// Entries of it.
    pub submissions: u32,
    /// ACQ.
    pub completion: u64,
    /// Entries of it.
    pub completions: u32,
}

/// The registers.
#[derive(Clone, Debug, Default)]
pub struct Registers {
    cc: Configuration,
    csts: u32,
    aqa: u32,
    asq: u64,
    acq: u64,
    /// Masked interrupts; by pins and MSI alone, which there are not.
    masked: u32,
}

/// Another half of a value of 64 bits.
const fn with_half(value: u64, upper: bool, half: u32) -> u64 {
    let (old, new) = (value, half as u64);
    if upper { old & 0xffff_ffff | new << 32 } else { old & !0xffff_ffff | new }
}

impl Registers {
    /// Reads from an offset on; zeros where there is no register.
    pub fn read(&self, offset: u64, data: &mut [u8]) {
        let mut all = [0; SIZE];
        let mut put = |at: u32, bytes: &[u8]| {
            // All are in the first 64 bytes.
            let at = at as usize;
            all[at..at + bytes.len()].copy_from_slice(bytes);
        };
        let most = u16::try_from(MAX_ENTRIES - 1).unwrap_or(u16::MAX);
        put(CAP, &capabilities(most, READY_TIMEOUT).to_le_bytes());
        put(VS, &VERSION.to_le_bytes());
        put(INTMS, &self.masked.to_le_bytes());
        put(INTMC, &self.masked.to_le_bytes());
        put(CC, &self.cc.0.to_le_bytes());
        put(CSTS, &self.csts.to_le_bytes());
        put(AQA, &self.aqa.to_le_bytes());
        put(ASQ, &self.asq.to_le_bytes());
        put(ACQ, &self.acq.to_le_bytes());
        data.fill(0);
        let there = usize::try_from(offset).ok().and_then(|from| all.get(from..));
        let there = there.unwrap_or_default();
        data.iter_mut().zip(there).for_each(|(to, from)| *to = *from);
    }

    /// Writes 32 bits. Others than registers that can be written are left alone.
    pub fn write(&mut self, offset: u32, value: u32) -> Change {
        // The Admin Queue's cannot be changed while it is used.
        let is_set_up = !self.cc.enabled() && !ControllerStatus(self.csts).ready();
        match offset {
            INTMS => self.masked |= value,
            INTMC => self.masked &= !value,
            CC => return self.configure(Configuration(value)),
            AQA if is_set_up => self.aqa = value & 0x0fff_0fff,
            at if is_set_up && at & !4 == ASQ => {
                self.asq = with_half(self.asq, at != ASQ, value) & !0xfff;
            }
            at if is_set_up && at & !4 == ACQ => {
                self.acq = with_half(self.acq, at != ACQ, value) & !0xfff;
            }
            _ => {}
        }
        Change::None
    }

    fn configure(&mut self, new: Configuration) -> Change {
        let old = std::mem::replace(&mut self.cc, new);
        let asks = |cc: Configuration| cc.shutdown() != Shutdown::No;
        match (old.enabled(), new.enabled()) {
            (false, true) => Change::Enable,
            (true, false) => Change::Disable,
            _ if asks(new) && !asks(old) => Change::Shutdown,
            _ => Change::None,
        }
    }

    /// The Admin Queue, where the controller can begin with what the guest has set.
    #[must_use]
    pub fn admin_queue(&self) -> Option<AdminQueue> {
        let (submissions, completions) = ((self.aqa & 0xfff) + 1, (self.aqa >> 16) + 1);
        let fits = |entries| (2..=4096).contains(&entries);
        let queue =
            AdminQueue { submission: self.asq, submissions, completion: self.acq, completions };
        (self.cc.is_supported() && fits(submissions) && fits(completions)).then_some(queue)
    }

    /// EN is set.
    #[must_use]
    pub const fn is_enabled(&self) -> bool {
        self.cc.enabled()
    }

    /// The controller has begun.
    pub const fn ready(&mut self) {
        self.csts |= ControllerStatus::READY;
    }

    /// It cannot go on before it is disabled.
    pub const fn fatal(&mut self) {
        self.csts |= ControllerStatus::FATAL;
    }

    /// It has ended, and forgotten all but the Admin Queue's place.
    pub const fn disabled(&mut self) {
        self.csts = 0;
    }

    /// It shuts down.
    pub const fn shutting_down(&mut self) {
        self.csts = self.csts & !(3 << 2) | ControllerStatus::SHUTTING_DOWN;
    }

    /// It has shut down.
    pub const fn shut_down(&mut self) {
        self.csts = self.csts & !(3 << 2) | ControllerStatus::SHUTDOWN_COMPLETE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(registers: &Registers, offset: u32) -> u32 {
        let mut bytes = [0; 4];
        registers.read(offset.into(), &mut bytes);
        u32::from_le_bytes(bytes)
    }

    fn set_up() -> Registers {
        let mut registers = Registers::default();
        for (at, value) in [(AQA, 31 << 16 | 15), (ASQ, 0x1fff), (ASQ + 4, 7), (ACQ, 0x3000)] {
            assert_eq!(registers.write(at, value), Change::None);
        }
        registers
    }

    #[test]
    fn capabilities_are_what_is_done() {
        let registers = Registers::default();
        // MQES, CQR, TO; NVM Command Set, no subsystem reset, doorbells without gaps, pages of 4 KiB alone.
        assert_eq!((read(&registers, CAP), read(&registers, CAP + 4)), (0xff01_03ff, 0x20));
        assert_eq!(read(&registers, VS), 0x0001_0400);
        let mut all = [1; 0x1000];
        registers.read(0x20, &mut all);
        assert_eq!(all, [0; 0x1000]);
        registers.read(u64::MAX, &mut all);
    }

    #[test]
    fn it_begins_and_ends() {
        let mut registers = set_up();
        let enable = Configuration::ENABLE.0;
        assert_eq!(registers.write(CC, enable), Change::Enable);
        let queue = registers.admin_queue().unwrap();
        assert_eq!((queue.submission, queue.submissions), (0x7_0000_1000, 16));
        assert_eq!((queue.completion, queue.completions), (0x3000, 32));
        registers.ready();
        assert_eq!(read(&registers, CSTS), 1);
        // What is used is not changed.
        for at in [AQA, ASQ, ASQ + 4, ACQ, ACQ + 4, CSTS, CAP, VS] {
            assert_eq!(registers.write(at, 0xffff_ffff), Change::None);
        }
        assert_eq!(registers.admin_queue(), Some(queue));
        assert_eq!(registers.write(CC, enable), Change::None);
        assert_eq!(registers.write(CC, enable | 1 << 14), Change::Shutdown);
        registers.shutting_down();
        assert_eq!(read(&registers, CSTS), 1 | 1 << 2);
        assert_eq!(registers.write(CC, enable | 1 << 14), Change::None);
        registers.shut_down();
        assert_eq!(read(&registers, CSTS), 1 | 2 << 2);
        assert_eq!(registers.write(CC, enable & !1), Change::Disable);
        // Until it has ended, the queue is used.
        registers.write(AQA, 0);
        registers.disabled();
        assert_eq!((read(&registers, CSTS), registers.admin_queue()), (0, Some(queue)));
        registers.write(AQA, 0);
        assert_eq!(registers.admin_queue(), None);
    }

    #[test]
    fn it_does_not_begin_as_it_cannot_go_on() {
        let mut registers = set_up();
        // Another command set, pages of 8 KiB, entries of other sizes.
        for bad in [1 << 4, 1 << 7, 1 << 11, 1 << 16, 1 << 20] {
            assert_eq!(registers.write(CC, Configuration::ENABLE.0 ^ bad), Change::Enable);
            assert_eq!(registers.admin_queue(), None, "{bad:#x}");
            assert_eq!(registers.write(CC, 0), Change::Disable);
        }
    }

    #[test]
    fn interrupts_are_masked_bit_by_bit() {
        let mut registers = Registers::default();
        registers.write(INTMS, 0b1101);
        registers.write(INTMC, 0b0100);
        assert_eq!((read(&registers, INTMS), read(&registers, INTMC)), (0b1001, 0b1001));
    }
}
