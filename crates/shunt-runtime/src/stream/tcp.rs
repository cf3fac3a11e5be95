//! The state of the kernel socket below a shunted connection.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering};

use shunt_engine::conn::close::Closing;
use shunt_engine::kernel::{KernelSocket, Look, TcpInfo, look_for_end};
use shunt_shm::sync::AtomicU32;
use shunt_sys::sockinfo;

use crate::stream::spin;
use crate::system::abi::borrow;
use crate::system::clock;
use crate::system::errno::KeepErrno;
use crate::system::kernel_poll;
use crate::system::next;
use crate::threads::signals::{Uncancelled, Uninterrupted};
use shunt_engine::wait::Way;

/// The kernel socket that a descriptor of the program's stands for, for one call.
#[derive(Clone, Copy, Debug)]
pub struct Socket(pub c_int);

impl KernelSocket for Socket {
    fn waiting(&self) -> u64 {
        rustix::io::ioctl_fionread(borrow(self.0)).unwrap_or(0)
    }

    fn info(&self) -> Option<TcpInfo> {
        info(self.0)
    }

    fn readiness(&self, events: u32) -> u32 {
        readiness(self.0, events)
    }

    fn has_fin_behind(&self, waiting: u64) -> bool {
        fin_has_come(self.0, waiting)
    }

    fn discard(&self, most: u64, note: &mut dyn FnMut(u64)) -> bool {
        let (_uninterrupted, _uncancelled) = (Uninterrupted::begin(), Uncancelled::begin());
        let _keep = KeepErrno::new();
        let most = usize::try_from(most).unwrap_or(0);
        let flags = libc::MSG_TRUNC | libc::MSG_DONTWAIT;
        // SAFETY: TCP drops the bytes, and writes nothing (tcp(7), MSG_TRUNC).
        let n = unsafe { next::recv(self.0, core::ptr::null_mut(), most, flags) };
        let Ok(n) = u64::try_from(n) else { return false };
        note(n);
        true
    }

    fn is_at_urgent_mark(&self) -> bool {
        let _keep = KeepErrno::new();
        let mut at: c_int = 0;
        // SAFETY: the request writes one int.
        unsafe { libc::ioctl(self.0, SIOCATMARK, &raw mut at) == 0 && at != 0 }
    }

    fn shut(&self) {
        let _ = rustix::net::shutdown(borrow(self.0), rustix::net::Shutdown::Both);
    }
}

impl Closing for Socket {
    fn is_to_reset(&self) -> bool {
        resets_on_close(self.0)
    }

    fn reset_on_close(&self) {
        reset_on_close(self.0);
    }
}

/// Whether a FIN has come for a socket in which so many bytes wait, and which is closed: after RST alone none has.
/// Unlike FIONREAD, what `TCP_INQ` has recvmsg(2) tell counts the FIN (`tcp_inq_hint` in net/ipv4/tcp.c).
#[cold]
fn fin_has_come(fd: i32, waiting: u64) -> bool {
    const INT: libc::socklen_t = 4;
    let _keep = KeepErrno::new();
    let (level, name) = (libc::IPPROTO_TCP, TCP_INQ);
    let (mut before, mut len, on): (c_int, _, c_int) = (0, INT, 1);
    let mut byte = 0_u8;
    let mut iov = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let mut control = [0_u64; 8];
    // SAFETY: all zero is a valid msghdr.
    let mut msg: libc::msghdr = unsafe { core::mem::zeroed() };
    (msg.msg_iov, msg.msg_iovlen) = (&raw mut iov, 1);
    msg.msg_control = control.as_mut_ptr().cast();
    msg.msg_controllen = size_of_val(&control);
    // SAFETY: the values are ints, and the message names room that is there.
    let peeked = unsafe {
        next::getsockopt(fd, level, name, (&raw mut before).cast(), &raw mut len) == 0
            && next::setsockopt(fd, level, name, (&raw const on).cast(), INT) == 0
            && {
                let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
                let n = next::recvmsg(fd, &raw mut msg, flags);
                next::setsockopt(fd, level, name, (&raw const before).cast(), INT);
                n >= 0
            }
    };
    if !peeked {
        return true;
    }
    // SAFETY: the macros stay inside of what was filled in.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(&raw const msg);
        while let Some(found) = header.as_ref() {
            if (found.cmsg_level, found.cmsg_type) == (level, TCP_INQ) {
                let there = libc::CMSG_DATA(header).cast::<c_int>().read_unaligned();
                return u64::from(there.unsigned_abs()) > waiting;
            }
            header = libc::CMSG_NXTHDR(&raw const msg, header);
        }
    }
    true
}

/// include/uapi/linux/tcp.h; also the type of the control message.
const TCP_INQ: c_int = 36;

/// The kernel's own counts: right whoever wrote or read, also behind the library's back.
fn info(fd: c_int) -> Option<TcpInfo> {
    let mut wide = [0_u64; 32];
    // Fields up to tcpi_bytes_retrans (Linux 4.19) must be there.
    sockinfo::tcp_info(borrow(fd), &mut wide).ok().filter(|len| *len >= BYTES_RETRANS + 8)?;
    let u64_at = |at: usize| wide.get(at / 8).copied().unwrap_or(0);
    #[allow(clippy::cast_possible_truncation, reason = "one half of a word")]
    let u32_at = |at: usize| (u64_at(at) >> (at % 8 * 8)) as u32;
    let [state, ..] = wide[0].to_ne_bytes();
    Some(TcpInfo {
        state,
        bytes_received: u64_at(BYTES_RECEIVED),
        bytes_sent: u64_at(BYTES_SENT),
        bytes_retrans: u64_at(BYTES_RETRANS),
        notsent: u32_at(NOTSENT),
    })
}

const BYTES_RECEIVED: usize = 128;
const NOTSENT: usize = 144;
const BYTES_SENT: usize = 200;
const BYTES_RETRANS: usize = 208;

/// `include/uapi/asm-generic/sockios.h`.
const SIOCATMARK: libc::c_ulong = 0x8905;

/// [`look_for_end`] when the peer has announced its end, which then is a few steps away from close(2): a short
/// wait saves a sleep.
pub fn await_end(fd: i32) -> Look {
    static LEARNT: AtomicU32 = AtomicU32::new(0);
    let mut found = look_for_end(&Socket(fd));
    if found == Look::Silent {
        let until = clock::now().saturating_add(END_PATIENCE);
        spin::spin(Way::Kernel, &LEARNT, Some(until), || {
            found = look_for_end(&Socket(fd));
            found != Look::Silent
        });
    }
    found
}

/// Longest wait of [`await_end`], in nanoseconds.
const END_PATIENCE: u64 = 20_000;

/// Waits for the RST that the peer's kernel is just about to send, so that no byte is taken for sent
/// that will be thrown away.
pub fn await_reset(fd: i32) {
    kernel_poll::await_one(fd, 0, 100_000_000);
}

/// Ends the connection by RST at once; the descriptor stays open.
pub fn abort(fd: i32) {
    let _ = rustix::net::connect_unspec(borrow(fd));
}

/// The program has set `SO_LINGER`, on whatever socket.
pub static LINGERS: AtomicBool = AtomicBool::new(false);

/// True when the program wants a close to send RST (`SO_LINGER` of no time).
pub fn resets_on_close(fd: i32) -> bool {
    LINGERS.load(Ordering::Relaxed)
        && rustix::net::sockopt::socket_linger(borrow(fd)) == Ok(Some(core::time::Duration::ZERO))
}

/// Makes the close that follows send RST instead of FIN.
pub fn reset_on_close(fd: i32) {
    if fd < 0 {
        return;
    }
    set_linger(fd, Some(core::time::Duration::ZERO));
}

/// `SO_LINGER` of a socket.
pub fn linger(fd: i32) -> Option<core::time::Duration> {
    rustix::net::sockopt::socket_linger(borrow(fd)).ok().flatten()
}

/// Sets it.
pub fn set_linger(fd: i32, linger: Option<core::time::Duration>) {
    let _ = rustix::net::sockopt::set_socket_linger(borrow(fd), linger);
}

/// poll(2)'s answer about the socket, at once.
pub fn readiness(fd: i32, events: u32) -> u32 {
    let Ok(events) = u16::try_from(events & 0xffff) else { return 0 };
    kernel_poll::readiness(fd, events.cast_signed()).cast_unsigned().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use shunt_engine::kernel::{look, progress};
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (a, listener.accept().unwrap().0)
    }

    fn info(socket: &TcpStream) -> TcpInfo {
        Socket(socket.as_raw_fd()).info().unwrap()
    }

    /// The model of the kernel in the engine's tests says the same.
    #[test]
    fn a_reset_is_no_fin() {
        for with_fin in [false, true] {
            let (mut a, mut b) = pair();
            a.write_all(&[7; 8]).unwrap();
            b.read_exact(&mut [0; 7]).unwrap();
            if with_fin {
                a.shutdown(Shutdown::Write).unwrap();
                while info(&b).is_established() {}
            }
            reset_on_close(a.as_raw_fd());
            drop(a);
            while !info(&b).is_over() {}
            assert_eq!(progress(&Socket(b.as_raw_fd()), 8).unwrap().read, 7, "{with_fin}");
            let mut option = 7;
            let mut len = 4;
            // SAFETY: the value is an int.
            let rc = unsafe {
                let at = (&raw mut option).cast();
                libc::getsockopt(b.as_raw_fd(), libc::IPPROTO_TCP, TCP_INQ, at, &raw mut len)
            };
            assert_eq!((rc, option), (0, 0));
        }
    }

    #[test]
    fn the_kernel_counts_the_streams_bytes() {
        let (mut a, mut b) = pair();
        assert_eq!(info(&a).written(), 0);
        assert_eq!(info(&b).received(), 0);
        assert!(info(&a).is_established());
        a.write_all(&[7; 100_000]).unwrap();
        assert_eq!(info(&a).written(), 100_000);
        let mut buf = vec![0; 100_000];
        b.read_exact(&mut buf).unwrap();
        assert_eq!(info(&b).received(), 100_000);
        b.write_all(b"x").unwrap();
        assert_eq!(info(&b).written(), 1);
        a.shutdown(Shutdown::Write).unwrap();
        assert_eq!(info(&b).received(), 100_000);
        assert_eq!(info(&a).written(), 100_000);
        b.write_all(b"yz").unwrap();
        assert_eq!(info(&b).written(), 3);
        assert_eq!(look(&Socket(b.as_raw_fd())), Look::Eof);
        assert!(!info(&a).is_established());
        assert!(!info(&b).is_established());
        assert_eq!(look(&Socket(a.as_raw_fd())), Look::Bytes(3));
    }
}
