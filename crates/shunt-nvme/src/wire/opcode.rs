//! Opcodes of Admin and I/O commands (Base 5, Base 7, NVM 3.2).

/// Admin commands.
pub mod admin {
    /// Delete I/O Submission Queue (Base 5.7), of controllers on PCIe as all four of queues.
    pub const DELETE_SUBMISSION_QUEUE: u8 = 0x00;
    /// Create I/O Submission Queue (Base 5.5).
    pub const CREATE_SUBMISSION_QUEUE: u8 = 0x01;
    /// Get Log Page (Base 5.16).
    pub const GET_LOG_PAGE: u8 = 0x02;
    /// Delete I/O Completion Queue (Base 5.6).
    pub const DELETE_COMPLETION_QUEUE: u8 = 0x04;
    /// Create I/O Completion Queue (Base 5.4).
    pub const CREATE_COMPLETION_QUEUE: u8 = 0x05;
    /// Identify (Base 5.17).
    pub const IDENTIFY: u8 = 0x06;
    /// Abort (Base 5.1).
    pub const ABORT: u8 = 0x08;
    /// Set Features (Base 5.27).
    pub const SET_FEATURES: u8 = 0x09;
    /// Get Features (Base 5.15).
    pub const GET_FEATURES: u8 = 0x0a;
    /// Asynchronous Event Request (Base 5.2).
    pub const ASYNC_EVENT: u8 = 0x0c;
    /// Keep Alive (Base 5.18).
    pub const KEEP_ALIVE: u8 = 0x18;
    /// Doorbell Buffer Config (Base 5.8), of emulated controllers on PCIe.
    pub const DOORBELL_BUFFER_CONFIG: u8 = 0x7c;
}

/// I/O commands of the NVM Command Set.
pub mod io {
    /// Flush (Base 7.1).
    pub const FLUSH: u8 = 0x00;
    /// Write (NVM 3.2.6).
    pub const WRITE: u8 = 0x01;
    /// Read (NVM 3.2.4).
    pub const READ: u8 = 0x02;
    /// Compare (NVM 3.2.1).
    pub const COMPARE: u8 = 0x05;
    /// Write Zeroes (NVM 3.2.8).
    pub const WRITE_ZEROES: u8 = 0x08;
    /// Dataset Management (NVM 3.2.3).
    pub const DATASET_MANAGEMENT: u8 = 0x09;
    /// Verify (NVM 3.2.5).
    pub const VERIFY: u8 = 0x0c;
    /// Reservation Register (Base 7.3).
    pub const RESERVATION_REGISTER: u8 = 0x0d;
    /// Reservation Report (Base 7.5).
    pub const RESERVATION_REPORT: u8 = 0x0e;
    /// Reservation Acquire (Base 7.2).
    pub const RESERVATION_ACQUIRE: u8 = 0x11;
    /// Reservation Release (Base 7.4).
    pub const RESERVATION_RELEASE: u8 = 0x15;
}
