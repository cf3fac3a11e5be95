//! The structures and constants of `shunt_nvme.h`; a test compares them with it.

use libc::{c_char, c_int, iovec, size_t};

/// `struct shunt_nvme_options`. All that is zero is the default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Options {
    pub size: size_t,
    pub subsystem: *const c_char,
    pub addresses: *const *const c_char,
    pub address_count: size_t,
    pub host: *const c_char,
    pub key: *const c_char,
    pub controller_key: *const c_char,
    pub flags: u32,
    pub depth: u32,
    pub keep_alive_ms: u32,
    pub connect_timeout_ms: u32,
    pub command_timeout_ms: u32,
    pub reconnect_delay_ms: u32,
    pub give_up_ms: u32,
    pub reserved: u32,
}

/// `SHUNT_NVME_NEVER`, for times.
pub const NEVER: u32 = u32::MAX;

/// `flags` of the options.
pub const HEADER_DIGEST: u32 = 1;
pub const DATA_DIGEST: u32 = 2;
pub const NO_GRANT: u32 = 4;

/// Room for a text.
pub const TEXT: usize = 254;

/// `struct shunt_nvme_why`.
#[repr(C)]
pub struct Why {
    pub status: u16,
    pub text: [c_char; TEXT],
}

/// `struct shunt_nvme_namespace`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Namespace {
    pub nsid: u32,
    pub block_size: u32,
    pub blocks: u64,
    pub max_transfer: u32,
    pub flags: u32,
    pub nguid: [u8; 16],
    pub uuid: [u8; 16],
}

/// `flags` of a namespace.
pub const READ_ONLY: u32 = 1;
pub const WRITE_CACHE: u32 = 2;
pub const CAN_COMPARE: u32 = 4;
pub const CAN_DISCARD: u32 = 8;
pub const CAN_WRITE_ZEROES: u32 = 16;

/// `kind` of a record.
pub const REFERRAL: u32 = 1;
pub const SUBSYSTEM: u32 = 2;
pub const DISCOVERY: u32 = 3;

/// Room for an address, and for a name.
pub const ADDRESS: usize = 64;
pub const NAME: usize = 228;

/// `struct shunt_nvme_record`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Record {
    pub kind: u32,
    pub address: [c_char; ADDRESS],
    pub subsystem: [c_char; NAME],
}

/// `struct shunt_nvme_command`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Command {
    pub op: u32,
    pub flags: u32,
    pub nsid: u32,
    pub blocks: u32,
    pub start: u64,
    pub data: *const iovec,
    pub data_count: size_t,
    pub token: u64,
}

/// `op` of a command.
pub const READ: u32 = 1;
pub const WRITE: u32 = 2;
pub const FLUSH: u32 = 3;
pub const COMPARE: u32 = 4;
pub const WRITE_ZEROES: u32 = 5;
pub const DISCARD: u32 = 6;
pub const VERIFY: u32 = 7;

/// `flags` of a command.
pub const FUA: u32 = 1;
pub const DEALLOCATE: u32 = 2;

/// Pieces of data of a command, at most (`UIO_MAXIOV`).
pub const PIECES: size_t = 1024;

/// `struct shunt_nvme_completion`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    pub token: u64,
    pub result: u64,
    pub error: c_int,
    pub status: u16,
    pub reserved: u16,
}
