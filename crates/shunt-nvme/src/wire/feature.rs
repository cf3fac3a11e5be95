//! Features (Base 5.27.1).

/// Feature identifiers.
pub mod fid {
    /// Arbitration.
    pub const ARBITRATION: u8 = 0x01;
    /// Power Management.
    pub const POWER_MANAGEMENT: u8 = 0x02;
    /// Temperature Threshold.
    pub const TEMPERATURE_THRESHOLD: u8 = 0x04;
    /// Error Recovery (NVM 4.1.3.2).
    pub const ERROR_RECOVERY: u8 = 0x05;
    /// Volatile Write Cache.
    pub const VOLATILE_WRITE_CACHE: u8 = 0x06;
    /// Number of Queues.
    pub const NUMBER_OF_QUEUES: u8 = 0x07;
    /// Interrupt Coalescing, of controllers on PCIe as the next one.
    pub const INTERRUPT_COALESCING: u8 = 0x08;
    /// Interrupt Vector Configuration.
    pub const INTERRUPT_VECTOR: u8 = 0x09;
    /// Write Atomicity Normal (NVM 4.1.3.4).
    pub const WRITE_ATOMICITY: u8 = 0x0a;
    /// Asynchronous Event Configuration.
    pub const ASYNC_EVENT: u8 = 0x0b;
    /// Keep Alive Timer.
    pub const KEEP_ALIVE: u8 = 0x0f;
    /// Host Identifier.
    pub const HOST_IDENTIFIER: u8 = 0x81;
    /// Reservation Notification Mask.
    pub const RESERVATION_MASK: u8 = 0x82;
    /// Reservation Persistence.
    pub const RESERVATION_PERSISTENCE: u8 = 0x83;
}

/// SEL of Get Features.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Select {
    /// The current value.
    Current,
    /// The default value.
    Default,
    /// The saved value.
    Saved,
    /// What can be done with the feature.
    Capabilities,
}

impl Select {
    /// From CDW10 of Get Features.
    #[must_use]
    pub const fn of(cdw10: u32) -> Option<Self> {
        Some(match cdw10 >> 8 & 7 {
            0 => Self::Current,
            1 => Self::Default,
            2 => Self::Saved,
            3 => Self::Capabilities,
            _ => return None,
        })
    }
}

/// Result of Select::Capabilities: the feature can be changed.
pub const CHANGEABLE: u32 = 1 << 2;
/// Result of Select::Capabilities: the feature is one of a namespace.
pub const NAMESPACE_SPECIFIC: u32 = 1 << 1;
