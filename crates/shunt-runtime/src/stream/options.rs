//! The meaning of a socket's options for its connection. Nearly all are the kernel's alone: the
//! socket below the connection is real.

use core::sync::atomic::Ordering;

use shunt_engine::handshake::Phase;
use shunt_engine::kernel::{KernelSocket, has_ended};
use shunt_sys::sockinfo;
use shunt_wire::reason::Reason;

use crate::conn::{Conn, IS_V6, Sock, TELLS_ERRORS, ZEROCOPY};
use crate::control::listener::Listener;
use crate::fds::fd_table;
use crate::fds::unconnected;
use crate::memory::discovered_memory;
use crate::stream::tcp::Socket;
use crate::stream::{buffers, hand_over, inq, liveness, peer_death, promote, tcp, unread};
use crate::system::abi;
use crate::system::abi::c_int;
use crate::system::errno;

/// include/uapi/linux/tcp.h.
const TCP_ZEROCOPY_RECEIVE: c_int = 35;

/// The connection of which the program wants received bytes mapped, which they cannot be.
pub fn is_to_be_mapped(fd: c_int, option: (c_int, c_int)) -> Option<Conn> {
    if option != (libc::IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE) {
        return None;
    }
    Conn::named(fd).filter(|conn| promote::advance(*conn) != Phase::Tcp)
}

/// Asks for an option by `kernel`.
pub fn ask(fd: c_int, option: (c_int, c_int), kernel: impl FnOnce() -> c_int) -> c_int {
    let loud = (option == (libc::IPPROTO_TCP, libc::TCP_LINGER2))
        .then(|| Conn::named(fd))
        .flatten()
        .filter(|conn| liveness::end_quietly(*conn));
    let result = kernel();
    if let Some(conn) = loud {
        let _keep = errno::KeepErrno::new();
        liveness::end_loudly(conn);
    }
    result
}

/// The error of the socket that is pending, which the kernel does not know of.
pub fn pending_error(fd: c_int, option: (c_int, c_int)) -> Option<c_int> {
    let is_asked = option == (libc::SOL_SOCKET, libc::SO_ERROR);
    let conn = is_asked.then(|| Conn::named(fd)).flatten()?;
    peer_death::is_pending(conn).then_some(libc::ECONNRESET)
}

/// Bytes that could be mapped of the kernel's: how many are there, and the same with the end, which the kernel counts.
/// `None` at the end. `ends`: whether a look at the next byte finds the end.
#[cold]
pub fn left_to_read(conn: Conn, ends: impl FnOnce() -> bool) -> Option<(u32, u32)> {
    let bytes = unread::fionread(conn).map_or_else(
        || conn.ask(|fd| Socket(fd).waiting()).unwrap_or(0),
        |n| n.unsigned_abs().into(),
    );
    if bytes == 0 && ends() {
        return None;
    }
    let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
    let end = conn.ask(|fd| has_ended(&Socket(fd))).unwrap_or(false);
    Some((bytes, bytes.saturating_add(end.into())))
}

/// setsockopt(2) has set an option, or (not `done`) has failed. `value`: the number that the kernel has just read.
pub fn was_set(fd: c_int, option: (c_int, c_int), done: bool, value: impl FnOnce() -> c_int) {
    let (level, name) = option;
    if option == (libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT) {
        // Its connect returns before there is a connection.
        unconnected::forget(fd, fd_table::lookup(fd));
    }
    if !done {
        return;
    }
    if needs_kernel(level, name) {
        give_back(fd);
    }
    if sockinfo::may_ask_for_kernel(level, name) {
        heed_kernel(fd);
    }
    if sockinfo::is_for_error_queue(level, name)
        && let Some(sock) = Sock::of(fd_table::lookup(fd))
    {
        sock.put(TELLS_ERRORS, true);
    }
    match option {
        (libc::IPPROTO_TCP, sockinfo::TCP_INQ) => {
            if let Some(conn) = Conn::named(fd) {
                inq::learn(conn);
            }
        }
        (libc::IPPROTO_TCP, libc::TCP_LINGER2) => {
            if let Some(conn) = Conn::named(fd) {
                liveness::fin_timeout_is_set(conn);
            }
        }
        (libc::IPPROTO_IPV6, libc::IPV6_ADDRFORM) => {
            if let Some(sock) = Sock::of(fd_table::lookup(fd)) {
                sock.put(IS_V6, false);
            }
        }
        (libc::SOL_SOCKET, libc::SO_LINGER) => tcp::LINGERS.store(true, Ordering::Relaxed),
        _ => {}
    }
    if level == libc::SOL_SOCKET {
        note(fd, name, value);
    }
}

/// The connection, if it is one, goes back to the kernel for what that alone can do.
fn give_back(fd: c_int) {
    if let Some(conn) = Conn::named(fd) {
        hand_over::give_back(conn, Reason::Unsupported);
    }
}

/// Times of sending are the kernel's to tell, of bytes that it sends, and so is where a look ended, at bytes that it
/// has received; and it alone sends at a rate. Where the program asks for one of these the connection that the socket is, or that it
/// will make or accept, is TCP.
pub fn heed_kernel(fd: c_int) {
    if sockinfo::asks_for_kernel(abi::borrow(fd)) {
        if let Some(listener) = Listener::of(fd_table::lookup(fd)) {
            listener.set_for_kernel();
        }
        go_to_kernel(fd);
    }
}

/// The connection that the descriptor is, or that it will be, is TCP: the program wants something of it that only the
/// kernel can do.
pub fn go_to_kernel(fd: c_int) {
    let _keep = errno::KeepErrno::new();
    unconnected::forget(fd, fd_table::lookup(fd));
    give_back(fd);
}

/// What an option of `SOL_SOCKET` is about, of those that the library heeds itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Heeded {
    /// How much fits into the kernel's buffers.
    Size,
    /// From how many bytes on there is something to be read.
    LowWater,
    /// How long a receiving call waits.
    ReceiveTime,
    /// How long a sending call waits.
    SendTime,
    /// Whether `MSG_ZEROCOPY` means something.
    Zerocopy,
}

impl Heeded {
    const fn of(name: c_int) -> Option<Self> {
        Some(match name {
            libc::SO_SNDBUF
            | libc::SO_SNDBUFFORCE
            | libc::SO_RCVBUF
            | libc::SO_RCVBUFFORCE
            | libc::SO_BUF_LOCK => Self::Size,
            libc::SO_RCVLOWAT => Self::LowWater,
            libc::SO_RCVTIMEO | SO_RCVTIMEO_NEW => Self::ReceiveTime,
            libc::SO_SNDTIMEO | SO_SNDTIMEO_NEW => Self::SendTime,
            libc::SO_ZEROCOPY => Self::Zerocopy,
            _ => return None,
        })
    }

    /// A socket on which it was set is not as it was made: its connection asks the kernel for it.
    const fn is_asked_for_at_connect(self) -> bool {
        !matches!(self, Self::Zerocopy)
    }
}

/// Remembers what the library has to heed itself. What a listener accepts inherits it.
fn note(fd: c_int, name: c_int, value: impl FnOnce() -> c_int) {
    let Some(heeded) = Heeded::of(name) else { return };
    let entry = fd_table::lookup(fd);
    if heeded.is_asked_for_at_connect() {
        unconnected::forget(fd, entry);
    }
    if let Some(listener) = Listener::of(entry) {
        match heeded {
            Heeded::Size | Heeded::LowWater => listener.set_sized(),
            Heeded::ReceiveTime | Heeded::SendTime => listener.set_timed(),
            Heeded::Zerocopy => {}
        }
    }
    if heeded == Heeded::Zerocopy && value() != 0 {
        discovered_memory::want();
    }
    let Some(conn) = Conn::of(fd, entry) else { return };
    let (rx, tx) = (&conn.record().rx, &conn.record().tx);
    match heeded {
        Heeded::LowWater => buffers::mark_changed(conn),
        Heeded::ReceiveTime => rx.timeout.forget(),
        Heeded::SendTime => tx.timeout.forget(),
        // Asked for anew when a call wants it.
        Heeded::Zerocopy => conn.put(ZEROCOPY, false),
        Heeded::Size => {
            if conn.phase() == Phase::Active {
                // In a forked child the link group may still be to come.
                promote::poll_handshake(conn);
            }
            buffers::changed(conn);
        }
    }
}

/// `SO_RCVTIMEO` with a 64-bit time on every architecture (include/uapi/asm-generic/socket.h).
const SO_RCVTIMEO_NEW: c_int = 66;
/// See above.
const SO_SNDTIMEO_NEW: c_int = 67;

/// Options that concern the bytes themselves, which then have to go through the kernel.
const fn needs_kernel(level: c_int, name: c_int) -> bool {
    match level {
        libc::IPPROTO_TCP => matches!(name, libc::TCP_REPAIR | libc::TCP_ULP),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_an_option_are_about_the_same() {
        let about =
            |names: &[c_int]| names.iter().map(|name| Heeded::of(*name)).collect::<Vec<_>>();
        let sizes = [libc::SO_SNDBUF, libc::SO_RCVBUFFORCE, libc::SO_BUF_LOCK];
        assert_eq!(about(&sizes), [Some(Heeded::Size); 3]);
        assert_eq!(about(&[libc::SO_RCVTIMEO, SO_RCVTIMEO_NEW]), [Some(Heeded::ReceiveTime); 2]);
        assert_eq!(about(&[libc::SO_SNDTIMEO, SO_SNDTIMEO_NEW]), [Some(Heeded::SendTime); 2]);
        assert_eq!(about(&[libc::SO_REUSEADDR, libc::SO_KEEPALIVE]), [None; 2]);
    }

    #[test]
    fn what_is_asked_for_later_leaves_a_fresh_socket_alone() {
        use Heeded::{LowWater, ReceiveTime, SendTime, Size, Zerocopy};
        let all = [Size, LowWater, ReceiveTime, SendTime, Zerocopy];
        let asked = all.map(Heeded::is_asked_for_at_connect);
        assert_eq!(asked, [true, true, true, true, false]);
    }

    #[test]
    fn what_concerns_the_bytes_themselves_is_the_kernels() {
        assert!(needs_kernel(libc::IPPROTO_TCP, libc::TCP_ULP));
        assert!(needs_kernel(libc::IPPROTO_TCP, libc::TCP_REPAIR));
        assert!(!needs_kernel(libc::IPPROTO_TCP, libc::TCP_NODELAY));
        assert!(!needs_kernel(libc::SOL_SOCKET, libc::TCP_ULP));
    }
}
