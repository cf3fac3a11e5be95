//! `MSG_ZEROCOPY` as the kernel has it (Documentation/networking/msg_zerocopy.rst): discovery and `SO_ZEROCOPY` are
//! the kernel's, a call with the flag gets a number, and the program hears on the error queue when the
//! buffers of which calls are its own again, and whether they were copied.
//!
//! What lies in registered memory that the peer has mapped is granted ([`crate::stream::grants`]). All other bytes that go
//! into a ring are copied there by the call itself; so are those that go over loopback, by the kernel. Both
//! say so (`SO_EE_CODE_ZEROCOPY_COPIED`).
//!
//! Numbers are counted here as long as a connection is or may become shunted, and by the kernel on one that is
//! TCP for good. Of a connection that becomes TCP after its first such call the kernel's numbers, which begin
//! at 0, are raised by those that were given here.

use core::ffi::c_int;
use core::mem;

use libc::{
    CMSG_DATA, CMSG_FIRSTHDR, CMSG_LEN, CMSG_NXTHDR, CMSG_SPACE, EAGAIN, MSG_CTRUNC, MSG_ERRQUEUE,
    MSG_ZEROCOPY, cmsghdr, msghdr, sock_extended_err, sockaddr_in, sockaddr_in6,
};
use rustix::net::AddressFamily;
use rustix::net::sockopt;
use shunt_engine::call::Errno;
use shunt_engine::handshake::Phase;
use shunt_engine::zerocopy::numbers::{ErrorQueue, Outcome};
use shunt_shm::completions::Notice;
use shunt_sys::sockinfo;

use crate::conn::{Conn, IS_V6, NUMBERED, Sock, ZEROCOPY};
use crate::point;
use crate::stream::borrow::Request;
use crate::stream::bytes::Buffers;
use crate::stream::granted::{numbers, state};
use crate::stream::grants::{self, Own, Time};
use crate::stream::hints::Hints;
use crate::stream::in_doubt::{InDoubt, Progress};
use crate::stream::{notify, promote};
use crate::system::abi;
use crate::system::errno::{self, KeepErrno};
use crate::system::next;

/// Size of `struct sock_extended_err`.
const REPORT: u32 = 16;
const _: () = assert!(REPORT as usize == size_of::<sock_extended_err>());

/// From include/uapi/linux/errqueue.h.
const SO_EE_ORIGIN_ZEROCOPY: u8 = 5;
/// See above.
const SO_EE_CODE_ZEROCOPY_COPIED: u8 = 1;

/// Makes a sending call, which is given its flags, with a number.
#[inline(never)]
pub fn numbered(
    conn: Conn,
    flags: c_int,
    buffers: &Buffers<'_>,
    hints: &Hints<'_>,
    send: &mut dyn FnMut(c_int, Request<'_>) -> isize,
) -> isize {
    match admit(conn, flags, hints) {
        Admitted::Numbered(flags) => {
            let mut outcome = Outcome::default();
            let sent = send(flags, Request::Grant(&mut outcome, hints, &mut None));
            let progress = Progress::begins(conn, usize::try_from(sent).unwrap_or(0));
            settle(conn.sock(), (buffers, hints), &outcome, sent);
            progress.ends();
            sent
        }
        Admitted::Plain(flags) => send(flags, Request::Plain),
        Admitted::Refused(error) => errno::fail(error),
    }
}

/// What becomes of a call that asks for a number.
enum Admitted {
    /// It is made with these flags, and gets one.
    Numbered(c_int),
    /// It is made with these flags as the kernel's are, which may number it.
    Plain(c_int),
    /// It fails with this error.
    Refused(c_int),
}

fn admit(conn: Conn, flags: c_int, hints: &Hints<'_>) -> Admitted {
    let copied = flags & !MSG_ZEROCOPY;
    // The kernel ignores the flag, too.
    if !is_allowed(conn) {
        return Admitted::Plain(copied);
    }
    if promote::advance(conn) == Phase::Tcp {
        return Admitted::Plain(flags);
    }
    match begin(conn, hints) {
        Ok(()) => Admitted::Numbered(copied),
        Err(error) => Admitted::Refused(error.raw_os_error()),
    }
}

/// After a call that was to have a number, and has sent so much.
fn settle(
    sock: &'static Sock,
    (buffers, hints): (&Buffers<'_>, &Hints<'_>),
    outcome: &Outcome,
    sent: isize,
) {
    let _keep = KeepErrno::new();
    point!(zerocopy_settles);
    if outcome.is_unknown {
        grants::offer(sock, buffers, hints);
    }
    if sent > 0 && !hints.is_quiet {
        if !outcome.is_numbered {
            let _lock = sock.lock_tx();
            numbers(sock).number_after(outcome);
        }
        notify::own_error(sock, outcome.is_numbered);
    }
}

/// True when the program has asked for `SO_ZEROCOPY`, or its listener has.
fn is_allowed(conn: Conn) -> bool {
    if !conn.has(ZEROCOPY) {
        let _keep = KeepErrno::new();
        let ask = |fd| {
            let (mut value, mut len): (c_int, _) = (0, 4);
            // SAFETY: room for an int.
            let rc = unsafe {
                let value = (&raw mut value).cast();
                next::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ZEROCOPY, value, &raw mut len)
            };
            rc == 0 && value != 0
        };
        conn.put(ZEROCOPY, conn.ask(ask) == Some(true));
    }
    conn.has(ZEROCOPY)
}

/// The error with which a call that is to have a number ends before it begins.
fn begin(conn: Conn, hints: &Hints<'_>) -> Result<(), Errno> {
    let sock = conn.sock();
    let is_nested = sock.record().tx.lock.is_held_by(sock.me());
    numbers(sock).begin(is_nested, hints.is_quiet, || first(conn))
}

/// Begins to count.
#[cold]
fn first(conn: Conn) {
    let _lock = conn.sock().lock_tx();
    numbers(conn.sock()).begin_to_count(|| {
        let fd = abi::borrow(conn.kernel()?);
        Some(ErrorQueue {
            is_in_use: sockinfo::has_error_queue(fd),
            is_v6: sockopt::socket_domain(fd) == Ok(AddressFamily::INET6),
        })
    });
}

/// What poll(2) says of completions that wait, to one who waits for them ([`Numbers::await_notice`]).
///
/// [`Numbers::await_notice`]: shunt_engine::zerocopy::numbers::Numbers::await_notice
#[inline]
pub fn readiness(sock: &'static Sock) -> u32 {
    if sock.has(NUMBERED) { of_completions(sock) } else { 0 }
}

#[cold]
fn of_completions(sock: &'static Sock) -> u32 {
    numbers(sock).await_notice(Own::of(sock).as_ref())
}

/// Something else whenever there are more completions.
#[inline]
pub fn stamp(sock: &Sock) -> u32 {
    if sock.has(NUMBERED) { state(sock).completions.stamp() } else { 0 }
}

/// The next completion, if one waits. The program is told of it once.
fn take(sock: &'static Sock) -> Option<Notice> {
    // Programs ask until nothing is left: half of their calls find nothing.
    if !sock.has(NUMBERED) || !numbers(sock).has_news(&Time) {
        return None;
    }
    let lock = sock.lock_tx();
    // It may copy what is granted back to the ring, and what it has taken it is to tell.
    let in_doubt = InDoubt::on(sock);
    let notice = numbers(sock).take(lock.nested(), Own::of(sock).as_ref());
    if let Some(notice) = &notice {
        point!(zerocopy_taken);
        numbers(sock).notes_told(notice);
    }
    in_doubt.ends();
    if notice.is_none() && lock.nested() {
        // A handler that comes again until it is told keeps the call below it from telling the peer.
        notify::for_those_below(sock);
    }
    notice
}

/// recv(2) with `MSG_ERRQUEUE`, which has no place for what it takes; `None`: the kernel's error queue is
/// meant.
pub fn discard(sock: &'static Sock) -> Option<isize> {
    take(sock).map(|_| 0)
}

/// recvmsg(2) with `MSG_ERRQUEUE`. `kernel` is the same call on the kernel's error queue, which is asked when
/// there is nothing to say here.
pub fn receive(
    sock: &'static Sock,
    msg: &mut msghdr,
    kernel: impl FnOnce(&mut msghdr) -> isize,
) -> isize {
    let Some(notice) = take(sock) else {
        if numbers(sock).are_told_here_alone() {
            return errno::fail(EAGAIN);
        }
        let n = kernel(msg);
        if n >= 0 && sock.has(NUMBERED) {
            raise(msg, numbers(sock).next());
        }
        return n;
    };
    let _keep = KeepErrno::new();
    // SAFETY: all zero is a valid value of both.
    let (mut report, v6): (sock_extended_err, sockaddr_in6) = unsafe { mem::zeroed() };
    report.ee_origin = SO_EE_ORIGIN_ZEROCOPY;
    report.ee_code = if notice.copied { SO_EE_CODE_ZEROCOPY_COPIED } else { 0 };
    (report.ee_info, report.ee_data) = (notice.first, notice.last);
    // With the address of an offender, which there is none of (ip_recv_error, ipv6_recv_error).
    let (level, kind, offender) = if sock.has(IS_V6) {
        (libc::SOL_IPV6, libc::IPV6_RECVERR, size_of_val(&v6))
    } else {
        (libc::SOL_IP, libc::IP_RECVERR, size_of::<sockaddr_in>())
    };
    let report_len = size_of_val(&report);
    let mut data = [0_u8; size_of::<sock_extended_err>() + size_of::<sockaddr_in6>()];
    // SAFETY: the report is plain data, and there is room for it.
    unsafe {
        let from = (&raw const report).cast::<u8>();
        core::ptr::copy_nonoverlapping(from, data.as_mut_ptr(), report_len);
    }
    msg.msg_flags = MSG_ERRQUEUE;
    put(msg, level, kind, &data[..report_len + offender]);
    msg.msg_namelen = 0;
    0
}

/// What the kernel's `put_cmsg` does for the first control message.
pub fn put(msg: &mut msghdr, level: c_int, kind: c_int, data: &[u8]) {
    let space = msg.msg_controllen;
    let Ok(len) = u32::try_from(data.len()) else { return };
    if msg.msg_control.is_null() || space < size_of::<cmsghdr>() {
        msg.msg_flags |= MSG_CTRUNC;
        msg.msg_controllen = 0;
        return;
    }
    // SAFETY: these only calculate.
    let (whole, padded) = unsafe { (CMSG_LEN(len) as usize, CMSG_SPACE(len) as usize) };
    if space < whole {
        msg.msg_flags |= MSG_CTRUNC;
    }
    let whole = whole.min(space);
    // SAFETY: the program gave `space` bytes there, of which the first `whole` are written.
    unsafe {
        let header = msg.msg_control.cast::<cmsghdr>();
        let mut filled: cmsghdr = mem::zeroed();
        filled.cmsg_len = whole;
        filled.cmsg_level = level;
        filled.cmsg_type = kind;
        header.write_unaligned(filled);
        let to = CMSG_DATA(header);
        core::ptr::copy_nonoverlapping(data.as_ptr(), to, whole - size_of::<cmsghdr>());
    }
    msg.msg_controllen = padded.min(space);
}

/// Raises the numbers in what the kernel has told.
fn raise(msg: &mut msghdr, by: u32) {
    // SAFETY: the kernel has filled the message in; the macros stay inside msg_controllen.
    unsafe {
        let mut header = CMSG_FIRSTHDR(msg);
        while let Some(found) = header.as_ref() {
            let is_report = matches!(
                (found.cmsg_level, found.cmsg_type),
                (libc::SOL_IP, libc::IP_RECVERR) | (libc::SOL_IPV6, libc::IPV6_RECVERR)
            );
            let report = CMSG_DATA(header).cast::<sock_extended_err>();
            let is_whole = found.cmsg_len >= CMSG_LEN(REPORT) as usize;
            if is_report && is_whole {
                let mut told = report.read_unaligned();
                if told.ee_origin == SO_EE_ORIGIN_ZEROCOPY {
                    told.ee_info = told.ee_info.wrapping_add(by);
                    told.ee_data = told.ee_data.wrapping_add(by);
                    report.write_unaligned(told);
                }
            }
            header = CMSG_NXTHDR(msg, header);
        }
    }
}
