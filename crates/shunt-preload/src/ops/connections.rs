//! Making connections.

use core::cell::Cell;

use libc::{SOCK_NONBLOCK, sockaddr_storage};
use shunt_sys::memory;

use crate::next;
use shunt_runtime::establish;
use shunt_runtime::fds::fd_table;
use shunt_runtime::system::abi::{address, c_int, is_unspecific, sockaddr, socklen_t};

/// # Safety
/// As the C function.
pub unsafe fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: the caller keeps the C function's contract.
    let fd = unsafe { next::socket(domain, kind, protocol) };
    establish::socket::was_made(fd, domain, kind, protocol);
    fd
}

/// # Safety
/// As the C function.
pub unsafe fn bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: the caller keeps the C function's contract.
    unsafe { next::bind(fd, addr, len) }
}

/// # Safety
/// As the C function.
pub unsafe fn listen(fd: c_int, backlog: c_int) -> c_int {
    // SAFETY: the caller keeps the C function's contract.
    establish::listen::listen(fd, || unsafe { next::listen(fd, backlog) })
}

/// # Safety
/// As the C function.
pub unsafe fn accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: the caller keeps the C function's contract.
    unsafe { accepted(fd, 0, PeerOut { addr, len }, || next::accept(fd, addr, len)) }
}

/// # Safety
/// As the C function.
pub unsafe fn accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
    // SAFETY: the caller keeps the C function's contract.
    unsafe { accepted(fd, flags, PeerOut { addr, len }, || next::accept4(fd, addr, len, flags)) }
}

/// # Safety
/// `peer` is what accept(2) asks for.
unsafe fn accepted(
    fd: c_int,
    flags: c_int,
    peer: PeerOut,
    kernel: impl FnOnce() -> c_int,
) -> c_int {
    let room = peer.room();
    // SAFETY: asked for when the kernel has just written as many bytes as there is room for, or less.
    let from = || unsafe { address(peer.addr, room.min(peer.room())) };
    establish::accept::accept(fd, flags & SOCK_NONBLOCK != 0, kernel, from)
}

/// Where accept(2) puts the peer's address: null, or `len` bytes.
#[derive(Clone, Copy)]
struct PeerOut {
    addr: *mut sockaddr,
    len: *mut socklen_t,
}

impl PeerOut {
    /// The room there, in bytes; none where the program's length can't be read, of which the kernel will tell
    /// when it has accepted.
    fn room(&self) -> socklen_t {
        if self.addr.is_null() || !self.has_length() {
            return 0;
        }
        // SAFETY: the length can be read.
        unsafe { self.len.read_unaligned() }
    }

    /// True when there is a length. The kernel is asked about one that the thread did not use just before.
    fn has_length(&self) -> bool {
        thread_local! {
            static KNOWN: Cell<*mut socklen_t> = const { Cell::new(core::ptr::null_mut()) };
        }
        let has = !self.len.is_null()
            && (KNOWN.get() == self.len
                || memory::is_readable(self.len.addr(), size_of::<socklen_t>()));
        if has {
            KNOWN.set(self.len);
        }
        has
    }
}

/// # Safety
/// As the C function.
pub unsafe fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: the caller keeps the C function's contract.
    let kernel = || unsafe { next::connect(fd, addr, len) };
    let entry = fd_table::lookup(fd);
    if !establish::connect::concerns(entry) {
        let result = kernel();
        // SAFETY: as above; the kernel has just read the address.
        establish::connect::was_called(fd, entry, result, || unsafe { is_unspecific(addr, len) });
        return result;
    }
    // What is longer than any address the kernel refuses without a look.
    if len as usize > size_of::<sockaddr_storage>()
        || !memory::is_readable(addr.addr(), len as usize)
    {
        return kernel();
    }
    // SAFETY: it can be read.
    match unsafe { address(addr, len) } {
        Some(to) => establish::connect::connect(fd, entry, &to, kernel),
        None => kernel(),
    }
}
