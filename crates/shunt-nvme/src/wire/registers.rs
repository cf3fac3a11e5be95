//! Controller properties (Base 3.1.3).

/// Offset of CAP, Controller Capabilities.
pub const CAP: u32 = 0x00;
/// Offset of VS, Version.
pub const VS: u32 = 0x08;
/// Offset of INTMS, Interrupt Mask Set: of controllers on PCIe, as INTMC, AQA, ASQ and ACQ.
pub const INTMS: u32 = 0x0c;
/// Offset of INTMC, Interrupt Mask Clear.
pub const INTMC: u32 = 0x10;
/// Offset of CC, Controller Configuration.
pub const CC: u32 = 0x14;
/// Offset of CSTS, Controller Status.
pub const CSTS: u32 = 0x1c;
/// Offset of NSSR, NVM Subsystem Reset.
pub const NSSR: u32 = 0x20;
/// Offset of AQA, Admin Queue Attributes.
pub const AQA: u32 = 0x24;
/// Offset of ASQ, Admin Submission Queue Base Address.
pub const ASQ: u32 = 0x28;
/// Offset of ACQ, Admin Completion Queue Base Address.
pub const ACQ: u32 = 0x30;
/// Offset of CRTO, Controller Ready Timeouts.
pub const CRTO: u32 = 0x68;

/// The version that controllers of this crate report: 2.0.0 (Base 3.1.3.2).
pub const VERSION: u32 = 0x0002_0000;

/// CAP, as a controller of this crate has it (Base 3.1.3.1).
///
/// `mqes` is the number of entries of the largest queue, zero's based; `ready_timeout` is in units
/// of 500 ms. Set are CQR, as queues are contiguous, and the NVM Command Set.
#[must_use]
pub const fn capabilities(mqes: u16, ready_timeout: u8) -> u64 {
    mqes as u64 | 1 << 16 | (ready_timeout as u64) << 24 | 1 << 37
}

/// MQES of a CAP value: entries of the largest queue, zero's based.
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "a field of the register")]
pub const fn max_queue_entries(cap: u64) -> u16 {
    cap as u16
}

/// CC: Controller Configuration (Base 3.1.3.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Configuration(pub u32);

/// SHN: what kind of shutdown the host asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shutdown {
    /// None.
    No,
    /// A normal shutdown.
    Normal,
    /// An abrupt shutdown.
    Abrupt,
}

impl Configuration {
    /// EN with the entry sizes of the NVM Command Set: IOSQES 6, IOCQES 4.
    pub const ENABLE: Self = Self(1 | 6 << 16 | 4 << 20);

    /// EN.
    #[must_use]
    pub const fn enabled(self) -> bool {
        self.0 & 1 != 0
    }

    /// SHN.
    #[must_use]
    pub const fn shutdown(self) -> Shutdown {
        match self.0 >> 14 & 3 {
            1 => Shutdown::Normal,
            2 => Shutdown::Abrupt,
            _ => Shutdown::No,
        }
    }

    /// The same with a normal shutdown asked for.
    #[must_use]
    pub const fn with_shutdown(self) -> Self {
        Self(self.0 & !(3 << 14) | 1 << 14)
    }

    /// True if a controller of this crate can be enabled so: the NVM Command Set, pages of 4 KiB,
    /// round robin, entries of 64 and 16 bytes.
    #[must_use]
    pub const fn is_supported(self) -> bool {
        let (css, mps, ams) = (self.0 >> 4 & 7, self.0 >> 7 & 15, self.0 >> 11 & 7);
        let (iosqes, iocqes) = (self.0 >> 16 & 15, self.0 >> 20 & 15);
        css == 0 && mps == 0 && ams == 0 && iosqes == 6 && iocqes == 4
    }
}

/// CSTS: Controller Status (Base 3.1.3.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ControllerStatus(pub u32);

impl ControllerStatus {
    /// RDY.
    pub const READY: u32 = 1;
    /// CFS: fatal.
    pub const FATAL: u32 = 1 << 1;
    /// SHST: shutdown goes on.
    pub const SHUTTING_DOWN: u32 = 1 << 2;
    /// SHST: shutdown is complete.
    pub const SHUTDOWN_COMPLETE: u32 = 2 << 2;

    /// RDY.
    #[must_use]
    pub const fn ready(self) -> bool {
        self.0 & Self::READY != 0
    }

    /// CFS.
    #[must_use]
    pub const fn fatal(self) -> bool {
        self.0 & Self::FATAL != 0
    }

    /// True if SHST says that shutdown is complete.
    #[must_use]
    pub const fn shutdown_complete(self) -> bool {
        self.0 & 3 << 2 == Self::SHUTDOWN_COMPLETE
    }
}
