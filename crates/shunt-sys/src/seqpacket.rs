//! Packets with file descriptors over a UNIX `SOCK_SEQPACKET` socket.
//!
//! One packet is one message: the kernel keeps the boundaries, so there is no framing to get wrong,
//! and a packet that does not fit is an error and never a half message.

use core::mem::MaybeUninit;
use core::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::{Errno, IoSlice, IoSliceMut, Result};
use rustix::net::sockopt::{Timeout, set_socket_passcred, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags,
    SocketType, recvmsg, sendmsg, shutdown, socket_with, socketpair,
};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::time::{ClockId, clock_gettime};
use shunt_wire::agent::MAX_FDS;

use crate::fds::{Fds, close};
use crate::process::has_exited;
use crate::raw::{int, syscall};
use crate::sockopt::option_words;

/// The same number on every architecture Shunt knows.
const SO_PEERPIDFD: core::ffi::c_int = 77;

/// Who is at the other end, as the kernel saw it when the connection was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerCred {
    /// Process id, in this process's pid namespace; 0 when it has none there.
    pub pid: i32,
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
}

/// A new, unconnected, non-blocking, close-on-exec socket.
///
/// # Errors
/// Those of socket(2).
pub fn socket() -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Two connected sockets.
///
/// # Errors
/// Those of socketpair(2).
pub fn pair() -> Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Connects to the socket at `address`, without waiting: a listener whose backlog is full answers
/// `EAGAIN`.
///
/// # Errors
/// Those of socket(2) and connect(2).
pub fn connect(address: &SocketAddrUnix) -> Result<OwnedFd> {
    let fd = socket()?;
    match rustix::net::connect(&fd, address) {
        Ok(()) => Ok(fd),
        Err(e) => {
            close(fd);
            Err(e)
        }
    }
}

/// The same, but where the backlog is full it waits up to `timeout` for others to be accepted.
///
/// # Errors
/// `ETIMEDOUT` when the backlog stayed full, else as [`connect`].
pub fn connect_within(address: &SocketAddrUnix, timeout: Duration) -> Result<OwnedFd> {
    match connect(address) {
        Err(Errno::AGAIN) => {}
        done => return done,
    }
    let fd = socket()?;
    match wait_at_the_door(&fd, address, timeout) {
        Ok(()) => Ok(fd),
        Err(e) => {
            close(fd);
            Err(e)
        }
    }
}

/// The kernel's own wait for room in a backlog: there is none to be had from poll(2).
fn wait_at_the_door(fd: &OwnedFd, address: &SocketAddrUnix, timeout: Duration) -> Result<()> {
    let deadline = now() + timeout;
    fcntl_setfl(fd, OFlags::empty())?;
    loop {
        // Of microseconds; none at all would mean without end.
        let left = deadline.saturating_sub(now()).max(Duration::from_millis(1));
        set_socket_timeout(fd, Timeout::Send, Some(left))?;
        match rustix::net::connect(fd, address) {
            Err(Errno::INTR) if now() < deadline => {}
            Err(Errno::AGAIN | Errno::INTR) => return Err(Errno::TIMEDOUT),
            Err(e) => return Err(e),
            Ok(()) => break,
        }
    }
    fcntl_setfl(fd, OFlags::NONBLOCK)
}

/// Who is at the other end (`SO_PEERCRED`).
///
/// # Errors
/// Those of getsockopt(2).
pub fn peer_cred(fd: impl AsFd) -> Result<PeerCred> {
    // Not rustix's socket_peercred: its pid cannot be 0, which the kernel reports for a peer whose
    // pid namespace is not a descendant of this one.
    let [pid, uid, gid] = option_words(fd.as_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED)?;
    Ok(PeerCred { pid: pid.cast_signed(), uid, gid })
}

/// A pidfd of the process that made the connection, so that its death can be waited for.
///
/// # Errors
/// Those of pidfd_open(2), among them `ENOSYS` before Linux 5.3; `ESRCH` when the process is gone.
pub fn peer_pidfd(fd: impl AsFd) -> Result<OwnedFd> {
    // Linux 6.5 hands out the very process; before that its pid could in theory have been reused.
    if let Ok([raw]) = option_words(fd.as_fd(), libc::SOL_SOCKET, SO_PEERPIDFD)
        && raw.cast_signed() >= 0
    {
        // SAFETY: the kernel has just opened this descriptor for us.
        return Ok(unsafe { OwnedFd::from_raw_fd(raw.cast_signed()) });
    }
    let pid = Pid::from_raw(peer_cred(fd)?.pid).ok_or(Errno::SRCH)?;
    pidfd_open(pid, PidfdFlags::empty())
}

/// True while the process that made the connection has not ended.
pub fn peer_lives(fd: impl AsFd) -> bool {
    let Ok(pidfd) = peer_pidfd(fd) else { return false };
    let ended = has_exited(&pidfd);
    close(pidfd);
    !ended
}

/// Sends `bytes` with `fds` as one packet. Waits up to `timeout` for room; zero does not wait.
///
/// # Errors
/// `ETIMEDOUT` when there was no room in time (`EAGAIN` with a zero timeout), `EMSGSIZE` for more
/// than [`MAX_FDS`] descriptors, `EPIPE` when the peer is gone, and those of sendmsg(2).
pub fn send(
    socket: impl AsFd,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    timeout: Duration,
) -> Result<()> {
    if fds.len() > MAX_FDS {
        return Err(Errno::MSGSIZE);
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    retry(socket.as_fd(), PollFlags::OUT, timeout, |socket| {
        let mut control = SendAncillaryBuffer::new(&mut room);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(Errno::MSGSIZE);
        }
        let sent = sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)?;
        if sent == bytes.len() { Ok(()) } else { Err(Errno::MSGSIZE) }
    })
}

/// Sends `bytes` with up to [`MOST_FDS`] descriptors as one packet, without waiting for room.
///
/// # Errors
/// `EAGAIN`; `ETOOMANYREFS` while too many of this user's descriptors are under way; else as [`send`].
pub fn send_all(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
    if fds.len() > MOST_FDS {
        return Err(Errno::MSGSIZE);
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut room);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::MSGSIZE);
    }
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags).map(|_| ())
}

/// Receives one packet into `buf`, and its descriptors, close-on-exec, into `fds`, which is emptied
/// first. Returns its length; 0 means that the peer has closed the connection. Waits up to
/// `timeout`; zero does not wait.
///
/// # Errors
/// `ETIMEDOUT` when nothing came in time (`EAGAIN` with a zero timeout), `EMSGSIZE` when the packet
/// or its descriptors do not fit (all of them are closed), and those of recvmsg(2).
pub fn recv(socket: impl AsFd, buf: &mut [u8], fds: &mut Fds, timeout: Duration) -> Result<usize> {
    fds.clear();
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    retry(socket.as_fd(), PollFlags::IN, timeout, |socket| {
        let mut control = RecvAncillaryBuffer::new(&mut room);
        let msg = recvmsg(socket, &mut [IoSliceMut::new(buf)], &mut control, flags)?;
        let mut surplus = false;
        for part in control.drain() {
            let RecvAncillaryMessage::ScmRights(rights) = part else { continue };
            for fd in rights {
                if let Err(fd) = fds.push(fd) {
                    close(fd);
                    surplus = true;
                }
            }
        }
        if surplus || msg.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            fds.clear();
            return Err(Errno::MSGSIZE);
        }
        Ok(msg.bytes)
    })
}

/// What the next packet is, as far as can be told without receiving it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peeked {
    /// Bytes of it that fit; 0 also when the peer has closed the connection.
    pub len: usize,
    /// It is longer.
    pub is_longer: bool,
    /// Descriptors come with it.
    pub has_fds: bool,
}

/// Looks at the next packet (or, on a stream socket, the next bytes) without waiting, and leaves it where it is. No
/// descriptor of it is received, and none is closed.
///
/// # Errors
/// `EAGAIN` when there is none, and those of recvmsg(2).
pub fn peek(socket: impl AsFd, buf: &mut [u8]) -> Result<Peeked> {
    let (len, flags) = receive_bare(socket.as_fd(), buf, RecvFlags::PEEK | RecvFlags::DONTWAIT)?;
    // There is no room for descriptors, and nothing else comes to a socket that has not asked for it.
    let has_fds = flags.contains(ReturnFlags::CTRUNC);
    Ok(Peeked { len, is_longer: flags.contains(ReturnFlags::TRUNC), has_fds })
}

/// Has the kernel tell with each packet that comes to this socket who has sent it, for [`peek_sender`], or not.
///
/// # Errors
/// Those of setsockopt(2).
pub fn tell_senders(socket: impl AsFd, tell: bool) -> Result<()> {
    set_socket_passcred(socket, tell)
}

/// Room for a control message with the sender of a packet, which leaves none for descriptors.
#[repr(C, align(8))]
struct Sender {
    header: libc::cmsghdr,
    cred: libc::ucred,
}

/// [`peek`] at a socket of which [`tell_senders`] is so (else it may receive a descriptor), and the process that has sent the packet: `None` where there is no
/// packet (the peer has closed the connection), or where that process is not seen from here.
///
/// # Errors
/// As [`peek`].
pub fn peek_sender(socket: impl AsFd, buf: &mut [u8]) -> Result<(Peeked, Option<Pid>)> {
    let mut sender = Sender {
        header: libc::cmsghdr { cmsg_len: 0, cmsg_level: 0, cmsg_type: 0 },
        cred: libc::ucred { pid: 0, uid: 0, gid: 0 },
    };
    let mut iov = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    let mut message = libc::msghdr {
        msg_name: core::ptr::null_mut(),
        msg_namelen: 0,
        msg_iov: &raw mut iov,
        msg_iovlen: 1,
        msg_control: (&raw mut sender).cast(),
        msg_controllen: size_of::<Sender>(),
        msg_flags: 0,
    };
    // Not by rustix, in whose credentials a pid cannot be 0, which the kernel reports for a process that is not seen here.
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    let len = loop {
        let fd = int(socket.as_fd().as_raw_fd());
        // SAFETY: the message names `buf` and `sender`, which live through the call.
        match unsafe {
            syscall(
                libc::SYS_recvmsg,
                [fd, (&raw mut message).expose_provenance(), int(flags), 0, 0],
            )
        } {
            Err(Errno::INTR) => {}
            done => break done?,
        }
    };
    let has = |flag| message.msg_flags & flag != 0;
    let peeked = Peeked { len, is_longer: has(libc::MSG_TRUNC), has_fds: has(libc::MSG_CTRUNC) };
    let is_told = message.msg_controllen > 0
        && (sender.header.cmsg_level, sender.header.cmsg_type)
            == (libc::SOL_SOCKET, libc::SCM_CREDENTIALS);
    Ok((peeked, Pid::from_raw(sender.cred.pid).filter(|_| is_told)))
}

/// Ends both directions of a connection; true when nothing lies in its queue, and nothing ever will: closing it lets
/// go of no descriptor that somebody has passed.
pub fn end_drained(socket: impl AsFd) -> bool {
    let socket = socket.as_fd();
    // With each packet the kernel tells from whom it is, also with one of no bytes; but not with the end.
    if set_socket_passcred(socket, true).is_err() || shutdown(socket, Shutdown::Both).is_err() {
        return false;
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let end = recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, flags);
    end.is_ok_and(|msg| msg.bytes == 0 && !msg.flags.contains(ReturnFlags::CTRUNC))
        && control.drain().next().is_none()
}

/// Takes the next packet off without receiving its descriptors; the kernel lets go of them as this thread returns, which
/// may take as long as closing them. Waits if the socket does.
///
/// # Errors
/// Those of recvmsg(2).
pub fn discard(socket: impl AsFd, buf: &mut [u8]) -> Result<usize> {
    receive_bare(socket.as_fd(), buf, RecvFlags::empty()).map(|(len, _)| len)
}

/// Without room for descriptors.
fn receive_bare(
    socket: BorrowedFd<'_>,
    buf: &mut [u8],
    flags: RecvFlags,
) -> Result<(usize, ReturnFlags)> {
    loop {
        let mut none = RecvAncillaryBuffer::default();
        match recvmsg(socket, &mut [IoSliceMut::new(buf)], &mut none, flags) {
            Err(Errno::INTR) => {}
            received => return received.map(|msg| (msg.bytes, msg.flags)),
        }
    }
}

/// Most descriptors that the kernel lets travel with one packet (`SCM_MAX_FD`).
pub const MOST_FDS: usize = 253;

/// Receives one packet with whatever descriptors it has, close-on-exec, each of which goes to `take`. Waits if the
/// socket does. Its length, and whether that was all of it.
///
/// # Errors
/// Those of recvmsg(2).
pub fn recv_all(
    socket: impl AsFd,
    buf: &mut [u8],
    mut take: impl FnMut(OwnedFd),
) -> Result<(usize, bool)> {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    loop {
        let mut control = RecvAncillaryBuffer::new(&mut room);
        let iov = &mut [IoSliceMut::new(buf)];
        let msg = match recvmsg(socket.as_fd(), iov, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => continue,
            received => received?,
        };
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = part {
                rights.for_each(&mut take);
            }
        }
        let cut = msg.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
        return Ok((msg.bytes, !cut));
    }
}

/// Runs `attempt` until it does something other than ask to be called again, or time is up.
fn retry<T>(
    socket: BorrowedFd<'_>,
    until: PollFlags,
    timeout: Duration,
    mut attempt: impl FnMut(BorrowedFd<'_>) -> Result<T>,
) -> Result<T> {
    let deadline = now() + timeout;
    loop {
        match attempt(socket) {
            Err(Errno::AGAIN) if timeout.is_zero() => return Err(Errno::AGAIN),
            Err(Errno::AGAIN) => {}
            Err(Errno::INTR) => continue,
            done => return done,
        }
        let left = deadline.saturating_sub(now());
        if left.is_zero() {
            return Err(Errno::TIMEDOUT);
        }
        let left = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        match poll(&mut [PollFd::from_borrowed_fd(socket, until)], Some(&left)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
}

fn now() -> Duration {
    let t = clock_gettime(ClockId::Monotonic);
    let (secs, nanos) = (u64::try_from(t.tv_sec), u32::try_from(t.tv_nsec));
    Duration::new(secs.unwrap_or(0), nanos.unwrap_or(0))
}
