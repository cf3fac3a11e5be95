//! What the kernel socket below a shunted connection says.

use core::sync::atomic::AtomicBool;
use std::os::fd::BorrowedFd;

use shunt_shm::sync::{AtomicU32, Ordering};

use rustix::event::PollFlags;
use shunt_engine::stretch::{bytes_read, bytes_written};
use shunt_sys::sockinfo;

use crate::clock;
use crate::errno::KeepErrno;
use crate::kernel_poll;
use crate::next;
use crate::stream::spin;

/// The fields of `struct tcp_info` (`include/uapi/linux/tcp.h`) that count the stream's bytes.
#[derive(Clone, Copy, Debug)]
pub struct Counts {
    /// Bytes that the program has written, on the wire or waiting.
    pub written: u64,
    /// Bytes that came in, without the FIN; with it if it came just now.
    received: u64,
    /// The same with the FIN, if one came.
    arrived: u64,
    /// Neither end has closed a direction, or reset the connection.
    pub established: bool,
    /// The connection is over: by a FIN, or by RST alone.
    over: bool,
}

/// How far the program has read.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Bytes that were read; maybe less, if that is more than the program is to stop at.
    pub read: u64,
    /// `Counts::arrived`.
    pub arrived: u64,
}

/// How far a program has read that is to stop at byte `at`. For the one who alone may read.
pub fn progress(fd: i32, at: u64) -> Option<Progress> {
    let mut counts = self::counts(fd)?;
    loop {
        // The count before the look at what waits: the other way round, bytes that come in between would
        // be passed over.
        let waiting = waiting(fd);
        let read = counts.received.saturating_sub(waiting);
        let before = counts;
        if waiting > 0 && read <= at {
            // Bytes that came in between, maybe of a later stretch, wait without having been counted: then
            // more is taken for unread than is. And the kernel looks at the state before it counts
            // (`tcp_get_info`): a FIN that came between the two was taken for a byte. Either changes the count.
            counts = self::counts(fd)?;
        }
        if counts.received == before.received {
            // Of a later stretch, too, there may be bytes: then one must not be taken for one of this.
            let is_short = counts.over && waiting > 0 && read < at && !fin_has_come(fd, waiting);
            return Some(Progress { read: read + u64::from(is_short), arrived: before.arrived });
        }
    }
}

/// Whether a FIN has come for a socket in which so many bytes wait, and which is closed: after RST alone none has.
/// Unlike FIONREAD, what `TCP_INQ` has recvmsg(2) tell counts the FIN (`tcp_inq_hint` in net/ipv4/tcp.c).
#[cold]
fn fin_has_come(fd: i32, waiting: u64) -> bool {
    const INT: libc::socklen_t = 4;
    let _keep = KeepErrno::new();
    let (level, name) = (libc::IPPROTO_TCP, TCP_INQ);
    let (mut before, mut len, on): (libc::c_int, _, libc::c_int) = (0, INT, 1);
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
                let there = libc::CMSG_DATA(header).cast::<libc::c_int>().read_unaligned();
                return u64::from(there.unsigned_abs()) > waiting;
            }
            header = libc::CMSG_NXTHDR(&raw const msg, header);
        }
    }
    true
}

/// include/uapi/linux/tcp.h; also the type of the control message.
const TCP_INQ: libc::c_int = 36;

/// Borrows a descriptor of the program for one call.
pub fn borrow<'a>(fd: i32) -> BorrowedFd<'a> {
    // SAFETY: the program has it open while it is inside our hook; if it closes it in another thread
    // the kernel's answer is EBADF, as without Shunt.
    unsafe { BorrowedFd::borrow_raw(fd.max(0)) }
}

/// The kernel's own counts: right whoever wrote or read, also behind the library's back.
pub fn counts(fd: i32) -> Option<Counts> {
    let mut wide = [0_u64; 32];
    // Fields up to tcpi_bytes_retrans (Linux 4.19) must be there.
    sockinfo::tcp_info(borrow(fd), &mut wide).ok().filter(|len| *len >= BYTES_RETRANS + 8)?;
    let u64_at = |at: usize| wide.get(at / 8).copied().unwrap_or(0);
    #[allow(clippy::cast_possible_truncation, reason = "one half of a word")]
    let u32_at = |at: usize| (u64_at(at) >> (at % 8 * 8)) as u32;
    let [state, ..] = wide[0].to_ne_bytes();
    Some(Counts {
        written: bytes_written(u64_at(BYTES_SENT), u64_at(BYTES_RETRANS), u32_at(NOTSENT)),
        received: bytes_read(u64_at(BYTES_RECEIVED), fin_received(state), 0),
        arrived: u64_at(BYTES_RECEIVED),
        established: state == ESTABLISHED,
        over: state == CLOSE,
    })
}

const BYTES_RECEIVED: usize = 128;
const NOTSENT: usize = 144;
const BYTES_SENT: usize = 200;
const BYTES_RETRANS: usize = 208;

const ESTABLISHED: u8 = 1;
const CLOSE: u8 = 7;

/// True in the states that come after the peer's FIN (`include/net/tcp_states.h`).
const fn fin_received(state: u8) -> bool {
    const TIME_WAIT: u8 = 6;
    const CLOSE_WAIT: u8 = 8;
    const LAST_ACK: u8 = 9;
    const CLOSING: u8 = 11;
    matches!(state, TIME_WAIT | CLOSE | CLOSE_WAIT | LAST_ACK | CLOSING)
}

impl Counts {
    /// Bytes that the program has read, when nothing is left in the socket.
    #[must_use]
    pub const fn received(&self) -> u64 {
        self.received
    }
}

/// What a look at a kernel socket that should be silent found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Look {
    /// Nothing.
    Silent,
    /// So many bytes, at least.
    Bytes(u64),
    /// End of file.
    Eof,
    /// An error, which stays in the socket.
    Error,
}

/// Bytes that wait in the kernel socket.
pub fn waiting(fd: i32) -> u64 {
    rustix::io::ioctl_fionread(borrow(fd)).unwrap_or(0)
}

/// True when urgent data is next in the kernel socket (`SIOCATMARK`, sockatmark(3)).
pub fn at_urgent_mark(fd: i32) -> bool {
    let _keep = KeepErrno::new();
    let mut at: libc::c_int = 0;
    // SAFETY: the request writes one int.
    unsafe { libc::ioctl(fd, SIOCATMARK, &raw mut at) == 0 && at != 0 }
}

/// `include/uapi/asm-generic/sockios.h`.
const SIOCATMARK: libc::c_ulong = 0x8905;

/// Looks, and leaves everything as it is: also a pending error, which a peek would take out. Not by
/// poll(2) alone, which says nothing of fewer bytes than `SO_RCVLOWAT`.
pub fn look(fd: i32) -> Look {
    let there = waiting(fd);
    if there > 0 {
        return Look::Bytes(there);
    }
    let found = readiness(fd, u32::from((PollFlags::IN | PollFlags::RDHUP).bits()));
    let found = PollFlags::from_bits_retain(u16::try_from(found).unwrap_or(0));
    if found.is_empty() {
        return Look::Silent;
    }
    let there = waiting(fd);
    if there > 0 {
        // They came in between, maybe with the end right behind them.
        Look::Bytes(there)
    } else if found.contains(PollFlags::ERR) {
        Look::Error
    } else if found.intersects(PollFlags::RDHUP | PollFlags::HUP) {
        Look::Eof
    } else {
        Look::Silent
    }
}

/// The same when the peer has announced its end, which then is a few steps away from close(2): a short
/// wait saves a sleep.
pub fn await_end(fd: i32) -> Look {
    static LEARNT: AtomicU32 = AtomicU32::new(0);
    let mut found = look(fd);
    if found == Look::Silent {
        let until = clock::now().saturating_add(END_PATIENCE);
        spin::spin(&LEARNT, Some(until), || {
            found = look(fd);
            found != Look::Silent
        });
    }
    found
}

/// Longest wait of [`await_end`], in nanoseconds.
const END_PATIENCE: u64 = 20_000;

/// True when the peer's process has ended without a word. `fin`: where it announces the end of its
/// direction, before the FIN that then is no news; so it is looked at after the kernel.
pub fn peer_is_gone(fd: i32, fin: &AtomicU32) -> bool {
    let hup = u32::from(PollFlags::RDHUP.bits());
    let found = readiness(fd, hup);
    let over = u32::from((PollFlags::ERR | PollFlags::HUP).bits());
    found & (over | hup) != 0 && (found & over != 0 || fin.load(Ordering::Acquire) == 0)
}

/// The same of a peer whose kernel has ended the connection in good order, without RST.
pub fn ended_unannounced(fd: i32, fin: &AtomicU32) -> bool {
    let end = PollFlags::RDHUP | PollFlags::ERR | PollFlags::HUP;
    readiness(fd, u32::from(end.bits())) == u32::from(PollFlags::RDHUP.bits())
        && fin.load(Ordering::Acquire) == 0
}

/// True when the kernel has ended the connection with an error that no call was told of yet, and leaves it there. An error
/// queue (completions, timestamps) alone is none.
pub fn has_failed(fd: i32) -> bool {
    let over = u32::from((PollFlags::ERR | PollFlags::HUP).bits());
    readiness(fd, over) & over == over
}

/// Waits for the RST that the peer's kernel is just about to send, so that no byte is taken for sent
/// that will be thrown away.
pub fn await_reset(fd: i32) {
    kernel_poll::await_one(fd, 0, 100_000_000);
}

/// Ends both directions of the kernel socket.
pub fn shut(fd: i32) {
    let _ = rustix::net::shutdown(borrow(fd), rustix::net::Shutdown::Both);
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
    let zero = Some(core::time::Duration::ZERO);
    let _ = rustix::net::sockopt::set_socket_linger(borrow(fd), zero);
}

/// poll(2)'s answer about the socket, at once.
pub fn readiness(fd: i32, events: u32) -> u32 {
    let Ok(events) = u16::try_from(events & 0xffff) else { return 0 };
    kernel_poll::readiness(fd, events.cast_signed()).cast_unsigned().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (a, listener.accept().unwrap().0)
    }

    /// Eight bytes have come, and seven were read.
    fn pair_with_an_unread_byte() -> (TcpStream, TcpStream) {
        let (mut a, mut b) = pair();
        a.write_all(&[7; 8]).unwrap();
        b.read_exact(&mut [0; 7]).unwrap();
        (a, b)
    }

    /// One who asks all the time meets the moment.
    #[test]
    fn a_fin_is_never_taken_for_a_byte() {
        for _ in 0..50 {
            let (a, b) = pair_with_an_unread_byte();
            let sender = std::thread::spawn(move || {
                a.shutdown(Shutdown::Write).unwrap();
                a
            });
            let mut arrived = 8;
            while arrived == 8 {
                let progress = progress(b.as_raw_fd(), 8).unwrap();
                assert_eq!(progress.read, 7);
                arrived = progress.arrived;
            }
            drop(sender.join().unwrap());
        }
    }

    #[test]
    fn a_reset_is_never_taken_for_a_fin() {
        for with_fin in [false, true] {
            let (a, b) = pair_with_an_unread_byte();
            if with_fin {
                a.shutdown(Shutdown::Write).unwrap();
                while counts(b.as_raw_fd()).unwrap().established {}
            }
            reset_on_close(a.as_raw_fd());
            drop(a);
            while !counts(b.as_raw_fd()).unwrap().over {}
            assert_eq!(progress(b.as_raw_fd(), 8).unwrap().read, 7, "{with_fin}");
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

    /// As above.
    #[test]
    fn bytes_that_come_meanwhile_do_not_make_more_unread() {
        for _ in 0..50 {
            let (mut a, b) = pair_with_an_unread_byte();
            let sender = std::thread::spawn(move || {
                for _ in 0..2000 {
                    a.write_all(b"x").unwrap();
                }
                a
            });
            while !sender.is_finished() {
                assert_eq!(progress(b.as_raw_fd(), 8).unwrap().read, 7);
            }
            drop(sender.join().unwrap());
        }
    }

    #[test]
    fn the_kernel_counts_the_streams_bytes() {
        let (mut a, mut b) = pair();
        assert_eq!(counts(a.as_raw_fd()).unwrap().written, 0);
        assert_eq!(counts(b.as_raw_fd()).unwrap().received(), 0);
        assert!(counts(a.as_raw_fd()).unwrap().established);
        a.write_all(&[7; 100_000]).unwrap();
        assert_eq!(counts(a.as_raw_fd()).unwrap().written, 100_000);
        let mut buf = vec![0; 100_000];
        b.read_exact(&mut buf).unwrap();
        assert_eq!(counts(b.as_raw_fd()).unwrap().received(), 100_000);
        b.write_all(b"x").unwrap();
        assert_eq!(counts(b.as_raw_fd()).unwrap().written, 1);
        a.shutdown(Shutdown::Write).unwrap();
        assert_eq!(counts(b.as_raw_fd()).unwrap().received(), 100_000);
        assert_eq!(counts(a.as_raw_fd()).unwrap().written, 100_000);
        b.write_all(b"yz").unwrap();
        assert_eq!(counts(b.as_raw_fd()).unwrap().written, 3);
        assert_eq!(look(b.as_raw_fd()), Look::Eof);
        assert!(!counts(a.as_raw_fd()).unwrap().established);
        assert!(!counts(b.as_raw_fd()).unwrap().established);
        assert_eq!(look(a.as_raw_fd()), Look::Bytes(3));
    }
}
