//! eBPF for the agent and for `shunt bench`: programs of a few instructions, assembled by hand and loaded
//! through bpf(2), so that nothing but the kernel is needed. Everything ends with the descriptors that
//! these values hold; nothing is pinned.
//!
//! * [`Marks`]: tells the agent which two sockets of this host are the ends of one connection;
//! * [`SmcMarks`]: asks a server by TCP option whether it speaks SMC, and hears the answer;
//! * [`Sockmap`]: what Shunt is compared with;
//! * [`CallCounter`]: counts the system calls of a control group.

mod count;
mod insn;
mod map;
mod marks;
mod smc;
mod sock_ops;
mod sockmap;

pub use count::CallCounter;
pub use marks::{Made, Marks};
pub use smc::{Answer, SmcMarks};
pub use sockmap::Sockmap;

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::c_int;

use crate::raw::{int, syscall};

/// Commands of bpf(2).
mod cmd {
    pub const MAP_CREATE: super::c_int = 0;
    pub const MAP_LOOKUP_ELEM: super::c_int = 1;
    pub const MAP_UPDATE_ELEM: super::c_int = 2;
    pub const MAP_DELETE_ELEM: super::c_int = 3;
    pub const PROG_LOAD: super::c_int = 5;
    pub const PROG_ATTACH: super::c_int = 8;
    pub const RAW_TRACEPOINT_OPEN: super::c_int = 17;
    pub const LINK_CREATE: super::c_int = 28;
}

const PROG_TYPE_SOCK_OPS: u32 = 13;
const CGROUP_SOCK_OPS: u32 = 3;

/// `struct bpf_sock_ops`: what a program is called for, and offsets of fields.
mod ops {
    pub const CONNECT: i32 = 3;
    pub const ACTIVE_ESTABLISHED: i32 = 4;
    pub const PASSIVE_ESTABLISHED: i32 = 5;
    pub const LISTEN: i32 = 11;
    pub const OPTION_LENGTH: i32 = 14;
    pub const WRITE_OPTION: i32 = 15;

    pub const OP: i16 = 0;
    pub const FAMILY: i16 = 20;
    pub const REMOTE_IP4: i16 = 24;
    pub const LOCAL_IP4: i16 = 28;
    pub const REMOTE_PORT: i16 = 64;
    pub const LOCAL_PORT: i16 = 68;
    pub const CALL_FLAGS: i16 = 84;
    pub const TCP_FLAGS: i16 = 212;
}

/// For helpers that the kernel gives only to programs with such a licence.
const LICENSE: &std::ffi::CStr = c"Dual MIT/GPL";

/// Calls bpf(2).
///
/// # Safety
/// `attr` is laid out as the command wants it, and the addresses in it are valid for it.
unsafe fn bpf<T>(cmd: c_int, attr: &mut T) -> io::Result<c_int> {
    let at = std::ptr::from_mut(attr).expose_provenance();
    // SAFETY: the caller promises attributes as the command wants them, with valid addresses; the size is theirs.
    let rc = unsafe { syscall(libc::SYS_bpf, [int(cmd), at, size_of::<T>(), 0, 0]) }?;
    c_int::try_from(rc).map_err(io::Error::other)
}

/// As [`bpf`], for commands that return a descriptor.
///
/// # Safety
/// As for [`bpf`], and the command returns a descriptor.
unsafe fn bpf_fd<T>(cmd: c_int, attr: &mut T) -> io::Result<OwnedFd> {
    // SAFETY: the caller promises what `bpf` asks for; a descriptor that such a command returns is new and ours.
    unsafe { bpf(cmd, attr).map(|fd| OwnedFd::from_raw_fd(fd)) }
}

fn address<T: ?Sized>(of: &T) -> u64 {
    std::ptr::from_ref(of).cast::<u8>().expose_provenance() as u64
}

fn number(fd: &impl AsRawFd) -> u32 {
    fd.as_raw_fd().cast_unsigned()
}

fn load(kind: u32, program: &[u64]) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attr {
        kind: u32,
        count: u32,
        program: u64,
        license: u64,
        log_level: u32,
        log_size: u32,
        log: u64,
        kernel: u32,
        flags: u32,
    }
    let mut attr = Attr {
        kind,
        count: u32::try_from(program.len()).map_err(io::Error::other)?,
        program: address(program),
        license: LICENSE.as_ptr().expose_provenance() as u64,
        log_level: 0,
        log_size: 0,
        log: 0,
        kernel: 0,
        flags: 0,
    };
    // SAFETY: the command's attributes; program and licence live as long as the call.
    unsafe { bpf_fd(cmd::PROG_LOAD, &mut attr) }
}

/// Attaches a program to a map of sockets, until the map goes.
fn attach_to_map(program: &OwnedFd, map: &OwnedFd, how: u32) -> io::Result<()> {
    #[repr(C)]
    struct Attr {
        target: u32,
        program: u32,
        how: u32,
        flags: u32,
    }
    let mut attr = Attr { target: number(map), program: number(program), how, flags: 0 };
    // SAFETY: the command's attributes, without addresses.
    unsafe { bpf(cmd::PROG_ATTACH, &mut attr).map(drop) }
}

/// Attaches a program to a control group, until the link that is returned goes.
fn link_to_group(program: &OwnedFd, group: BorrowedFd<'_>, how: u32) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attr {
        program: u32,
        target: u32,
        how: u32,
        flags: u32,
    }
    let mut attr = Attr { program: number(program), target: number(&group), how, flags: 0 };
    // SAFETY: the command's attributes, without addresses.
    unsafe { bpf_fd(cmd::LINK_CREATE, &mut attr) }
}

/// Attaches a program to a tracepoint, until the descriptor that is returned goes.
fn open_tracepoint(program: &OwnedFd, name: &std::ffi::CStr) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attr {
        name: u64,
        program: u32,
        padding: u32,
    }
    let name = name.as_ptr().expose_provenance() as u64;
    let mut attr = Attr { name, program: number(program), padding: 0 };
    // SAFETY: the command's attributes; the name lives as long as the call.
    unsafe { bpf_fd(cmd::RAW_TRACEPOINT_OPEN, &mut attr) }
}
