//! Sending without copies as a program does it: through libc, so that a preloaded library hears of it. For the bench and
//! for tests.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::{self, NonNull};

use libc::{c_int, c_void, msghdr, sock_extended_err};

/// Size of `struct sock_extended_err`.
const REPORT: u32 = 16;
const _: () = assert!(REPORT as usize == size_of::<sock_extended_err>());

/// `SO_EE_ORIGIN_ZEROCOPY`, `SO_EE_CODE_ZEROCOPY_COPIED` (include/uapi/linux/errqueue.h).
const ORIGIN: u8 = 5;
const COPIED: u8 = 1;

/// Memory of `shunt_alloc(3)`, or of mmap(2) in a program without Shunt.
#[derive(Debug)]
pub struct Registered {
    at: NonNull<u8>,
    len: usize,
    free: Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
}

// SAFETY: plain memory that belongs to whoever has the value.
unsafe impl Send for Registered {}

fn symbol(name: &core::ffi::CStr) -> Option<NonNull<c_void>> {
    // SAFETY: looks a name up.
    NonNull::new(unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) })
}

impl Registered {
    /// So many bytes, zero.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(len: usize) -> io::Result<Self> {
        type Alloc = unsafe extern "C" fn(libc::size_t) -> *mut c_void;
        type Free = unsafe extern "C" fn(*mut c_void) -> c_int;
        if let (Some(alloc), Some(free)) = (symbol(c"shunt_alloc"), symbol(c"shunt_free")) {
            // SAFETY: the functions of these names have these types (shunt.h).
            let (alloc, free) = unsafe {
                (
                    core::mem::transmute::<NonNull<c_void>, Alloc>(alloc),
                    core::mem::transmute::<NonNull<c_void>, Free>(free),
                )
            };
            // SAFETY: takes any length.
            let at = NonNull::new(unsafe { alloc(len) }).ok_or_else(io::Error::last_os_error)?;
            return Ok(Self { at: at.cast(), len, free: Some(free) });
        }
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh mapping where the kernel likes.
        let at = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, -1, 0) };
        match NonNull::new(at.cast::<u8>()) {
            Some(at) if at.as_ptr().cast() != libc::MAP_FAILED => Ok(Self { at, len, free: None }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The bytes.
    pub const fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: so many are there, and are this value's alone to write.
        unsafe { core::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: it is this value's, and goes with it.
        unsafe {
            match self.free {
                Some(free) => free(self.at.as_ptr().cast()),
                None => libc::munmap(self.at.as_ptr().cast(), self.len),
            };
        }
    }
}

/// Sets `SO_ZEROCOPY`.
///
/// # Errors
/// Those of setsockopt(2).
pub fn allow(socket: impl AsFd) -> io::Result<()> {
    let one: c_int = 1;
    // SAFETY: the value is an int.
    let rc = unsafe {
        let fd = socket.as_fd().as_raw_fd();
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_ZEROCOPY, (&raw const one).cast(), 4)
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// send(2) with `MSG_ZEROCOPY`. The bytes are not the caller's to change until the call is completed.
///
/// # Errors
/// Those of send(2).
pub fn send(socket: impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    let flags = libc::MSG_ZEROCOPY | libc::MSG_NOSIGNAL;
    // SAFETY: the bytes are there.
    let n = unsafe {
        libc::send(socket.as_fd().as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags)
    };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// Calls that are completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completed {
    /// The first one's number.
    pub first: u32,
    /// The last one's.
    pub last: u32,
    /// Their bytes were copied.
    pub copied: bool,
}

/// The next of them on the error queue, if there is one.
///
/// # Errors
/// Those of recvmsg(2), and a report of anything else.
pub fn completed(socket: impl AsFd) -> io::Result<Option<Completed>> {
    let mut control = [0_u64; 16];
    // SAFETY: all zero is a valid msghdr.
    let mut msg: msghdr = unsafe { core::mem::zeroed() };
    msg.msg_control = control.as_mut_ptr().cast();
    msg.msg_controllen = size_of_val(&control);
    // SAFETY: the message names the control buffer and no other.
    let n = unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut msg, libc::MSG_ERRQUEUE) };
    if n < 0 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
    }
    // SAFETY: the macros stay inside of what was filled in; a report is plain data.
    let report = unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const msg);
        let least = libc::CMSG_LEN(REPORT) as usize;
        match header.as_ref() {
            Some(found) if found.cmsg_len >= least => {
                libc::CMSG_DATA(header).cast::<sock_extended_err>().read_unaligned()
            }
            _ => return Err(io::Error::other("an error queue without a report")),
        }
    };
    if report.ee_origin != ORIGIN {
        return Err(io::Error::other("a report of something else"));
    }
    let copied = report.ee_code == COPIED;
    Ok(Some(Completed { first: report.ee_info, last: report.ee_data, copied }))
}

/// Waits until there is something on the error queue, or the connection is over.
///
/// # Errors
/// Those of poll(2).
pub fn wait(socket: impl AsFd) -> io::Result<()> {
    let mut fds = [libc::pollfd { fd: socket.as_fd().as_raw_fd(), events: 0, revents: 0 }];
    // SAFETY: one entry.
    let rc = unsafe { libc::poll(fds.as_mut_ptr(), 1, -1) };
    if rc >= 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
