//! Making, naming and ending sockets and other descriptors.

use std::ffi::CStr;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use libc::c_int;

use super::{RawAddr, check, socklen_of};

/// Takes ownership of a descriptor that a call has just returned.
fn own(ret: c_int) -> io::Result<OwnedFd> {
    let fd = check(ret)?;
    // SAFETY: the call returned a new descriptor, which nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `socket(2)`.
pub fn socket(domain: c_int, kind: c_int) -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    own(unsafe { libc::socket(domain, kind, 0) })
}

/// `socketpair(2)` of UNIX sockets.
pub fn pair(kind: c_int) -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [-1; 2];
    // SAFETY: fds has room for the two descriptors.
    check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) })?;
    Ok((own(fds[0])?, own(fds[1])?))
}

/// `pipe(2)`: (read end, write end).
pub fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [-1; 2];
    // SAFETY: fds has room for the two descriptors.
    check(unsafe { libc::pipe(fds.as_mut_ptr()) })?;
    Ok((own(fds[0])?, own(fds[1])?))
}

/// How much a pipe holds.
pub fn set_pipe_size(fd: RawFd, size: usize) -> io::Result<()> {
    // SAFETY: no memory is involved.
    check(unsafe { libc::fcntl(fd, libc::F_SETPIPE_SZ, size) }).map(drop)
}

/// `eventfd(2)`, non-blocking.
pub fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    own(unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) })
}

/// `memfd_create(2)`.
pub fn memfd(name: &CStr) -> io::Result<OwnedFd> {
    // SAFETY: name is a C string.
    own(unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) })
}

/// What [`listen`] does beside `socket`, `bind` and `listen`.
#[derive(Clone, Copy)]
pub struct ListenOptions {
    /// SO_REUSEPORT.
    pub reuse_port: bool,
    /// IPV6_V6ONLY; only looked at for an IPv6 address.
    pub v6_only: bool,
    /// Second argument of `listen`; `None` leaves the socket bound only.
    pub backlog: Option<c_int>,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self { reuse_port: false, v6_only: false, backlog: Some(4096) }
    }
}

/// A listening socket at `addr`.
pub fn listen(addr: SocketAddr, options: ListenOptions) -> io::Result<OwnedFd> {
    let raw = RawAddr::from(addr);
    let fd = socket(raw.family(), libc::SOCK_STREAM)?;
    set_option(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
    if options.reuse_port {
        set_option(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
    }
    if addr.is_ipv6() {
        let only = c_int::from(options.v6_only);
        set_option(fd.as_raw_fd(), libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, only)?;
    }
    // SAFETY: raw holds an address of raw.len bytes.
    check(unsafe { libc::bind(fd.as_raw_fd(), raw.as_ptr(), raw.len) })?;
    if let Some(backlog) = options.backlog {
        // SAFETY: no pointers.
        check(unsafe { libc::listen(fd.as_raw_fd(), backlog) })?;
    }
    Ok(fd)
}

/// `accept4(2)`, with the peer's address.
pub fn accept(fd: RawFd, flags: c_int) -> io::Result<(OwnedFd, RawAddr)> {
    let mut addr = RawAddr::empty();
    let mut len = addr.len;
    // SAFETY: addr has room for len bytes.
    let conn = own(unsafe { libc::accept4(fd, addr.as_mut_ptr(), &raw mut len, flags) })?;
    addr.len = len;
    Ok((conn, addr))
}

/// `connect(2)`.
pub fn connect(fd: RawFd, addr: SocketAddr) -> io::Result<()> {
    let raw = RawAddr::from(addr);
    // SAFETY: raw holds an address of raw.len bytes.
    check(unsafe { libc::connect(fd, raw.as_ptr(), raw.len) }).map(drop)
}

/// An address at which there is nothing.
const NOWHERE: usize = 4096;

/// `accept(2)` with room for an address, whose length is nowhere.
pub fn accept_without_length(fd: RawFd) -> io::Result<OwnedFd> {
    let mut addr = RawAddr::empty();
    let nowhere = std::ptr::without_provenance_mut(NOWHERE);
    // SAFETY: addr has room for any; the kernel refuses the other address.
    own(unsafe { libc::accept(fd, addr.as_mut_ptr(), nowhere) })
}

/// `connect(2)` to an address that is nowhere.
pub fn connect_without_address(fd: RawFd) -> io::Result<()> {
    // SAFETY: the kernel refuses the address.
    check(unsafe { libc::connect(fd, std::ptr::without_provenance(NOWHERE), 16) }).map(drop)
}

/// `getsockname(2)`.
pub fn local_addr(fd: RawFd) -> io::Result<RawAddr> {
    let mut addr = RawAddr::empty();
    let mut len = addr.len;
    // SAFETY: addr has room for len bytes.
    check(unsafe { libc::getsockname(fd, addr.as_mut_ptr(), &raw mut len) })?;
    addr.len = len;
    Ok(addr)
}

/// `getpeername(2)`.
pub fn peer_addr(fd: RawFd) -> io::Result<RawAddr> {
    let mut addr = RawAddr::empty();
    let mut len = addr.len;
    // SAFETY: addr has room for len bytes.
    check(unsafe { libc::getpeername(fd, addr.as_mut_ptr(), &raw mut len) })?;
    addr.len = len;
    Ok(addr)
}

/// `shutdown(2)`.
pub fn shutdown(fd: RawFd, how: c_int) -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::shutdown(fd, how) }).map(drop)
}

/// `dup(2)`.
pub fn dup(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    own(unsafe { libc::dup(fd) })
}

/// `dup2(2)` onto a descriptor that the caller owns; `to` stays its owner.
pub fn dup2(fd: RawFd, to: &OwnedFd) -> io::Result<RawFd> {
    // SAFETY: no pointers; `to` goes on owning its number.
    check(unsafe { libc::dup2(fd, to.as_raw_fd()) })
}

/// `dup3(2)`, as [`dup2`] with flags.
pub fn dup3(fd: RawFd, to: &OwnedFd, flags: c_int) -> io::Result<RawFd> {
    // SAFETY: no pointers; `to` goes on owning its number.
    check(unsafe { libc::dup3(fd, to.as_raw_fd(), flags) })
}

/// `fcntl(F_GETFL)`.
pub fn status_flags(fd: RawFd) -> io::Result<c_int> {
    // SAFETY: no pointers.
    check(unsafe { libc::fcntl(fd, libc::F_GETFL) })
}

/// `fcntl(F_GETFD)`.
pub fn fd_flags(fd: RawFd) -> io::Result<c_int> {
    // SAFETY: no pointers.
    check(unsafe { libc::fcntl(fd, libc::F_GETFD) })
}

/// Sets or clears O_NONBLOCK.
pub fn set_nonblocking(fd: RawFd, on: bool) -> io::Result<()> {
    let flags = status_flags(fd)?;
    let flags = if on { flags | libc::O_NONBLOCK } else { flags & !libc::O_NONBLOCK };
    // SAFETY: no pointers.
    check(unsafe { libc::fcntl(fd, libc::F_SETFL, flags) }).map(drop)
}

/// Sets or clears O_NONBLOCK by `ioctl(FIONBIO)`.
pub fn set_nonblocking_ioctl(fd: RawFd, on: bool) -> io::Result<()> {
    let mut value = c_int::from(on);
    // SAFETY: FIONBIO reads one int.
    check(unsafe { libc::ioctl(fd, libc::FIONBIO, &raw mut value) }).map(drop)
}

/// `ioctl(FIONREAD)`.
pub fn fionread(fd: RawFd) -> io::Result<c_int> {
    let mut n: c_int = 0;
    // SAFETY: FIONREAD writes one int.
    check(unsafe { libc::ioctl(fd, libc::FIONREAD, &raw mut n) })?;
    Ok(n)
}

/// `ioctl(SIOCOUTQNSD)`.
pub fn unsent(fd: RawFd) -> io::Result<c_int> {
    /// `include/uapi/linux/sockios.h`.
    const SIOCOUTQNSD: libc::c_ulong = 0x894b;
    let mut n: c_int = 0;
    // SAFETY: the request writes one int.
    check(unsafe { libc::ioctl(fd, SIOCOUTQNSD, &raw mut n) })?;
    Ok(n)
}

/// `ioctl(TIOCOUTQ)`.
pub fn outq(fd: RawFd) -> io::Result<c_int> {
    let mut n: c_int = 0;
    // SAFETY: TIOCOUTQ writes one int.
    check(unsafe { libc::ioctl(fd, libc::TIOCOUTQ, &raw mut n) })?;
    Ok(n)
}

/// `getsockopt(2)` of an int.
pub fn get_option(fd: RawFd, level: c_int, name: c_int) -> io::Result<c_int> {
    let mut value: c_int = 0;
    let mut len = socklen_of::<c_int>();
    // SAFETY: value has room for len bytes.
    check(unsafe { libc::getsockopt(fd, level, name, (&raw mut value).cast(), &raw mut len) })?;
    Ok(value)
}

/// `TCP_ZEROCOPY_RECEIVE` for an address, with so many bytes of its structure: its length, hint and count of bytes there,
/// as far as they are told.
pub fn zerocopy_receive(fd: RawFd, address: u64, room: u32) -> io::Result<[u32; 3]> {
    const TCP_ZEROCOPY_RECEIVE: c_int = 35;
    let mut value = [0_u64; 8];
    (value[0], value[1]) = (address, 1 << 20);
    let mut len = room;
    let at = value.as_mut_ptr().cast();
    // SAFETY: value has room for more bytes than the kernel knows fields.
    check(unsafe {
        libc::getsockopt(fd, libc::IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE, at, &raw mut len)
    })?;
    // Little end first (x86-64).
    let half = |word: u64, shift| u32::try_from(word >> shift & u64::from(u32::MAX)).unwrap_or(0);
    Ok([half(value[1], 0), half(value[1], 32), half(value[2], 0)])
}

/// `setsockopt(2)` of any plain value.
fn set_raw<T>(fd: RawFd, level: c_int, name: c_int, value: &T) -> io::Result<()> {
    let ptr = std::ptr::from_ref(value).cast();
    // SAFETY: ptr points to a T.
    check(unsafe { libc::setsockopt(fd, level, name, ptr, socklen_of::<T>()) }).map(drop)
}

/// `setsockopt(2)` of an int.
pub fn set_option(fd: RawFd, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    set_raw(fd, level, name, &value)
}

/// SO_SNDBUF and SO_RCVBUF.
pub fn set_buffers(fd: RawFd, size: c_int) -> io::Result<()> {
    set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, size)?;
    set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, size)
}

/// SO_LINGER on, with this many seconds.
pub fn linger(fd: RawFd, seconds: c_int) -> io::Result<()> {
    let value = libc::linger { l_onoff: 1, l_linger: seconds };
    set_raw(fd, libc::SOL_SOCKET, libc::SO_LINGER, &value)
}

/// SO_RCVTIMEO or SO_SNDTIMEO.
pub fn set_timeout(fd: RawFd, name: c_int, timeout: Duration) -> io::Result<()> {
    let value = libc::timeval {
        tv_sec: timeout.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_usec: timeout.subsec_micros().into(),
    };
    set_raw(fd, libc::SOL_SOCKET, name, &value)
}
