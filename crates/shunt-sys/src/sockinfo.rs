//! What the kernel knows about a socket.

use core::net::IpAddr;

use rustix::fd::AsFd;
use rustix::io::{Errno, Result};
use rustix::net::{
    AddressFamily, SocketAddr, SocketAddrAny, SocketFlags, SocketType, bind, ipproto, socket_with,
    sockopt,
};
use rustix::net::{getpeername, getsockname};
use shunt_wire::addr::{Addr, FourTuple};

use crate::sockopt::{option_words, read_option, set_option_word};

/// `SO_NETNS_COOKIE`, the same number on every architecture Shunt knows (Linux 5.14).
const SO_NETNS_COOKIE: core::ffi::c_int = 71;

fn to_addr(any: SocketAddrAny) -> Result<Addr> {
    match SocketAddr::try_from(any) {
        Ok(address) => Ok(address.into()),
        Err(_) => Err(Errno::AFNOSUPPORT),
    }
}

/// The socket's own address (`getsockname`).
///
/// # Errors
/// `EAFNOSUPPORT` when it is not an IP address, else those of getsockname(2).
pub fn local_addr(fd: impl AsFd) -> Result<Addr> {
    to_addr(getsockname(fd)?)
}

/// True for an address of this machine's, in the caller's network namespace: a socket can be bound to it.
#[must_use]
pub fn is_own_address(addr: &Addr) -> bool {
    let at = SocketAddr::from(Addr { port: 0, ..*addr });
    let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
    socket.is_ok_and(|socket| bind(&socket, &at).is_ok())
}

/// The peer's address (`getpeername`).
///
/// # Errors
/// `ENOTCONN`; `EAFNOSUPPORT` when it is not an IP address; those of getpeername(2).
pub fn peer_addr(fd: impl AsFd) -> Result<Addr> {
    to_addr(getpeername(fd)?.ok_or(Errno::NOTCONN)?)
}

/// The connection as this end sees it, also one that is over: both directions have ended, or it was reset.
///
/// # Errors
/// Those of [`local_addr`] and [`peer_addr`].
pub fn four_tuple(fd: impl AsFd) -> Result<FourTuple> {
    let local = local_addr(&fd)?;
    let peer = match peer_addr(&fd) {
        Err(Errno::NOTCONN) => last_peer_addr(&fd, getsockname(&fd)?.address_family()),
        other => other,
    };
    Ok(FourTuple { local, peer: peer? })
}

/// The address of the peer that a socket has or had (`SO_PEERNAME`): getpeername(2) tells nothing once the connection is over.
fn last_peer_addr(fd: impl AsFd, family: AddressFamily) -> Result<Addr> {
    // A sockaddr_in or a sockaddr_in6: the family, the port, which is big-endian, and the address behind it.
    let (fd, level) = (fd.as_fd(), libc::SOL_SOCKET);
    let (first, ip) = if family == AddressFamily::INET6 {
        let [first, _flow, a, b, c, d, _scope] = option_words(fd, level, libc::SO_PEERNAME)?;
        let octets = [a, b, c, d].map(u32::to_ne_bytes);
        (first, IpAddr::from(core::array::from_fn::<u8, 16, _>(|i| octets[i / 4][i % 4])))
    } else {
        let [first, ip, _, _] = option_words(fd, level, libc::SO_PEERNAME)?;
        (first, IpAddr::from(ip.to_ne_bytes()))
    };
    let [_, _, high, low] = first.to_ne_bytes();
    match u16::from_be_bytes([high, low]) {
        0 => Err(Errno::NOTCONN),
        port => Ok(core::net::SocketAddr::new(ip, port).into()),
    }
}

/// The number by which the kernel knows the socket, whoever holds it (`SO_COOKIE`). Never reused
/// while the machine runs.
///
/// # Errors
/// Those of getsockopt(2).
pub fn cookie(fd: impl AsFd) -> Result<u64> {
    sockopt::socket_cookie(fd)
}

/// The number of the socket's network namespace; 0 on a kernel that has no such number.
pub fn netns_cookie(fd: impl AsFd) -> u64 {
    // The option is one 64-bit word.
    match option_words(fd.as_fd(), libc::SOL_SOCKET, SO_NETNS_COOKIE) {
        Ok([first, second]) => {
            let ([a, b, c, d], [e, f, g, h]) = (first.to_ne_bytes(), second.to_ne_bytes());
            u64::from_ne_bytes([a, b, c, d, e, f, g, h])
        }
        Err(_) => 0,
    }
}

/// True for a TCP socket over IPv4 or IPv6. MPTCP has a protocol number of its own and is not TCP
/// here: its peer may reach it over several paths.
pub fn is_tcp(fd: impl AsFd) -> bool {
    // A raw socket can have the protocol, too.
    sockopt::socket_protocol(&fd) == Ok(Some(ipproto::TCP))
        && sockopt::socket_type(&fd) == Ok(SocketType::STREAM)
}

/// True when the program has set `SO_SNDBUF`, on this socket or on the listener that accepted it, and not
/// the kernel by itself; `None` on a kernel that does not say (before Linux 5.15).
pub fn send_buffer_is_set(fd: impl AsFd) -> Option<bool> {
    /// Of include/uapi/linux/socket.h.
    const SOCK_SNDBUF_LOCK: u32 = 1;
    Some(buffer_locks(fd)? & SOCK_SNDBUF_LOCK != 0)
}

/// The same for either buffer.
pub fn buffer_is_set(fd: impl AsFd) -> Option<bool> {
    Some(buffer_locks(fd)? != 0)
}

fn buffer_locks(fd: impl AsFd) -> Option<u32> {
    let [locks] = option_words(fd.as_fd(), libc::SOL_SOCKET, libc::SO_BUF_LOCK).ok()?;
    Some(locks)
}

/// `SO_RCVLOWAT`, as the kernel heeds it: it takes less than it is asked for where that is more than its buffers
/// hold.
pub fn low_water(fd: impl AsFd) -> Option<u32> {
    let [bytes] = option_words(fd.as_fd(), libc::SOL_SOCKET, libc::SO_RCVLOWAT).ok()?;
    Some(bytes)
}

/// What `TCP_SYNCNT` of an accepted socket is by which [`crate::bpf::Marks`] says that the other end was offered. The
/// option means nothing to a socket that sends no SYN.
pub const OFFERED: u32 = 127;

/// `TCP_SYNCNT`.
pub fn syn_count(fd: impl AsFd) -> Option<u32> {
    let [count] = option_words(fd.as_fd(), libc::IPPROTO_TCP, libc::TCP_SYNCNT).ok()?;
    Some(count)
}

/// Sets it.
pub fn set_syn_count(fd: impl AsFd, count: u32) {
    // A socket that is closed meanwhile has none.
    let _ = set_option_word(fd.as_fd(), libc::IPPROTO_TCP, libc::TCP_SYNCNT, count);
}

/// True for the options that have the kernel put something into the error queue of a TCP socket: times of sending
/// (Documentation/networking/timestamping.rst), and what ICMP says (ip(7), ipv6(7)).
#[must_use]
pub fn is_for_error_queue(level: i32, name: i32) -> bool {
    ERROR_QUEUE.contains(&(level, name)) || is_timestamping(level, name)
}

/// Times of 64 bits on every architecture (include/uapi/asm-generic/socket.h).
const SO_TIMESTAMPING_NEW: i32 = 65;

const ERROR_QUEUE: [(i32, i32); 3] = [
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPING),
    (libc::IPPROTO_IP, libc::IP_RECVERR),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
];

/// True when one of them is set. An IPv4 socket has none of IPv6's.
pub fn has_error_queue(fd: impl AsFd) -> bool {
    let is_set = |(level, name)| option_words(fd.as_fd(), level, name).is_ok_and(|[on]| on != 0);
    ERROR_QUEUE.into_iter().any(is_set)
}

/// True for the options by which a program asks for times of sending and receiving.
#[must_use]
pub fn is_timestamping(level: i32, name: i32) -> bool {
    level == libc::SOL_SOCKET && matches!(name, libc::SO_TIMESTAMPING | SO_TIMESTAMPING_NEW)
}

/// Whether these flags (`SOF_TIMESTAMPING_*`, include/uapi/linux/net_tstamp.h) ask for times of sending: when the kernel,
/// the network's queue or the device has taken bytes, or the peer has acknowledged them; or have the bytes counted for messages
/// that will ask for them.
#[must_use]
pub const fn are_of_sending(flags: u32) -> bool {
    /// `TX_HARDWARE`, `TX_SOFTWARE`, `OPT_ID`, `TX_SCHED`, `TX_ACK`, `TX_COMPLETION`.
    const SENDING: u32 = 1 | 1 << 1 | 1 << 7 | 1 << 8 | 1 << 9 | 1 << 18;
    flags & SENDING != 0
}

/// True when the socket is asked for times of sending.
fn tells_times_of_sending(fd: impl AsFd) -> bool {
    // It says of either of the two options what is set.
    option_words(fd.as_fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPING)
        .is_ok_and(|[flags]| are_of_sending(flags))
}

/// `TCP_INQ`, also the type of its control message (include/uapi/linux/tcp.h).
pub const TCP_INQ: i32 = 36;

/// True when recvmsg(2) tells how much is left to be read.
pub fn tells_inq(fd: impl AsFd) -> bool {
    option_words(fd.as_fd(), libc::IPPROTO_TCP, TCP_INQ).is_ok_and(|[on]| on != 0)
}

/// True when looks begin where the last one ended (`SO_PEEK_OFF`, on TCP since Linux 6.9).
pub fn peeks_at_an_offset(fd: impl AsFd) -> bool {
    let offset = option_words(fd.as_fd(), libc::SOL_SOCKET, libc::SO_PEEK_OFF);
    offset.is_ok_and(|[offset]| offset.cast_signed() >= 0)
}

/// Has looks begin so many bytes behind what was read (`SO_PEEK_OFF`), or at it. False on a kernel that cannot.
pub fn begin_looks_at(fd: impl AsFd, offset: Option<i32>) -> bool {
    let offset = offset.unwrap_or(-1).cast_unsigned();
    set_option_word(fd.as_fd(), libc::SOL_SOCKET, libc::SO_PEEK_OFF, offset).is_ok()
}

/// True when the kernel holds bytes back so that no more are sent in a second than the program has said.
fn is_paced(fd: impl AsFd) -> bool {
    /// As 32 bits tell it, on every kernel.
    const UNLIMITED: u32 = u32::MAX;
    let rate = option_words(fd.as_fd(), libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE);
    rate.is_ok_and(|[rate]| rate != UNLIMITED)
}

/// True where the option may be about what [`asks_for_kernel`].
#[must_use]
pub fn may_ask_for_kernel(level: i32, name: i32) -> bool {
    is_timestamping(level, name)
        || level == libc::SOL_SOCKET && matches!(name, libc::SO_PEEK_OFF | libc::SO_MAX_PACING_RATE)
}

/// True when the socket was asked for what the kernel alone does with its own bytes: it tells of times of sending,
/// remembers where looks begin, or sends no faster than at some rate.
pub fn asks_for_kernel(fd: impl AsFd) -> bool {
    tells_times_of_sending(&fd) || peeks_at_an_offset(&fd) || is_paced(fd)
}

/// True when connect(2) returns before there is a SYN, and the first bytes go with that (`TCP_FASTOPEN_CONNECT`).
#[must_use]
pub fn connects_with_bytes(fd: impl AsFd) -> bool {
    let word = option_words(fd.as_fd(), libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT);
    word.is_ok_and(|[is_set]| is_set != 0)
}

/// True when the kernel raises signals for what happens to the file (`O_ASYNC`).
pub fn raises_signals(fd: impl AsFd) -> bool {
    /// Rustix knows it as another system's alone.
    const O_ASYNC: u32 = libc::O_ASYNC.cast_unsigned();
    rustix::fs::fcntl_getfl(fd).is_ok_and(|flags| flags.bits() & O_ASYNC != 0)
}

/// A `TCP_LINGER2` with which the kernel sends RST when nobody has the socket any more, where it would wait for the
/// peer's FIN without a word (`tcp_close` in net/ipv4/tcp.c).
pub const AT_ONCE: u32 = u32::MAX;

/// `TCP_LINGER2`: seconds, or what the kernel takes for [`AT_ONCE`].
pub fn fin_timeout(fd: impl AsFd) -> Option<u32> {
    let [seconds] = option_words(fd.as_fd(), libc::IPPROTO_TCP, libc::TCP_LINGER2).ok()?;
    Some(seconds)
}

/// Sets it.
pub fn set_fin_timeout(fd: impl AsFd, seconds: u32) {
    // A socket that is closed meanwhile has none.
    let _ = set_option_word(fd.as_fd(), libc::IPPROTO_TCP, libc::TCP_LINGER2, seconds);
}

/// `TCP_INFO`, as much of it as this kernel has and there is room for: its length in bytes.
///
/// # Errors
/// Those of getsockopt(2).
pub fn tcp_info(fd: impl AsFd, info: &mut [u64]) -> Result<usize> {
    read_option(fd.as_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, info)
}

/// Bytes of memory that a socket may still use for what it sends (`SO_MEMINFO`, Linux 4.12). What the kernel
/// keeps beside the bytes themselves counts, too.
///
/// # Errors
/// Those of getsockopt(2).
pub fn memory_to_send(fd: impl AsFd) -> Result<u32> {
    const SO_MEMINFO: libc::c_int = 55;
    // include/uapi/linux/sock_diag.h
    const SNDBUF: usize = 3;
    const WMEM_QUEUED: usize = 5;
    let mut of = [0_u32; 9];
    read_option(fd.as_fd(), libc::SOL_SOCKET, SO_MEMINFO, &mut of)?;
    Ok(of[SNDBUF].saturating_sub(of[WMEM_QUEUED]))
}

/// True when the socket listens (`SO_ACCEPTCONN`).
pub fn is_listening(fd: impl AsFd) -> bool {
    sockopt::socket_acceptconn(fd).unwrap_or(false)
}

/// True for an IPv6 socket that does not take IPv4 connections (`IPV6_V6ONLY`).
pub fn is_v6only(fd: impl AsFd) -> bool {
    sockopt::ipv6_v6only(fd).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::{AsFd, AsRawFd};

    use super::{
        ERROR_QUEUE, SO_TIMESTAMPING_NEW, asks_for_kernel, has_error_queue, is_for_error_queue,
        is_timestamping, raises_signals, set_option_word, tells_times_of_sending,
    };

    #[test]
    fn times_of_sending_are_told_from_times_of_receiving() {
        let (level, name) = (libc::SOL_SOCKET, libc::SO_TIMESTAMPING);
        assert!(is_timestamping(level, name) && is_timestamping(level, SO_TIMESTAMPING_NEW));
        assert!(!is_timestamping(level, libc::SO_TIMESTAMP));
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let set = |name, flags| {
            set_option_word(socket.as_fd(), level, name, flags).unwrap();
            tells_times_of_sending(&socket)
        };
        assert!(!tells_times_of_sending(&socket));
        let reported = libc::SOF_TIMESTAMPING_SOFTWARE;
        for name in [name, SO_TIMESTAMPING_NEW] {
            assert!(!set(name, libc::SOF_TIMESTAMPING_RX_SOFTWARE | reported));
            for sending in [
                libc::SOF_TIMESTAMPING_TX_HARDWARE,
                libc::SOF_TIMESTAMPING_TX_SOFTWARE,
                libc::SOF_TIMESTAMPING_TX_SCHED,
                libc::SOF_TIMESTAMPING_TX_ACK,
            ] {
                assert!(set(name, sending | reported), "{sending:#x}");
            }
            assert!(!set(name, reported));
        }
    }

    #[test]
    fn what_only_the_kernel_does_is_seen() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(!asks_for_kernel(&socket) && !raises_signals(&socket));
        let (level, name) = (libc::SOL_SOCKET, libc::SO_PEEK_OFF);
        // Kernels before 6.9 have it for other sockets only.
        if set_option_word(socket.as_fd(), level, name, 0).is_ok() {
            assert!(asks_for_kernel(&socket));
            set_option_word(socket.as_fd(), level, name, u32::MAX).unwrap();
            assert!(!asks_for_kernel(&socket));
        }
        for (rate, is_paced) in [(1_000_000, true), (u32::MAX, false)] {
            set_option_word(socket.as_fd(), level, libc::SO_MAX_PACING_RATE, rate).unwrap();
            assert_eq!(asks_for_kernel(&socket), is_paced);
        }
        let sending = libc::SOF_TIMESTAMPING_TX_ACK;
        set_option_word(socket.as_fd(), level, libc::SO_TIMESTAMPING, sending).unwrap();
        assert!(asks_for_kernel(&socket) && !raises_signals(&socket));
        // SAFETY: takes numbers.
        let result = unsafe { libc::fcntl(socket.as_raw_fd(), libc::F_SETFL, libc::O_ASYNC) };
        assert!(result == 0 && raises_signals(&socket));
    }

    #[test]
    fn what_asks_for_the_error_queue_is_seen() {
        for (level, name) in ERROR_QUEUE {
            assert!(is_for_error_queue(level, name));
            let socket = TcpListener::bind("[::1]:0").unwrap();
            assert!(!has_error_queue(&socket));
            set_option_word(socket.as_fd(), level, name, 1).unwrap();
            assert!(has_error_queue(&socket), "{level} {name}");
        }
        assert!(!is_for_error_queue(libc::SOL_SOCKET, libc::SO_ZEROCOPY));
        let v4 = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(!has_error_queue(&v4), "which has none of IPv6's options");
    }
}
