//! The families of calls that move bytes, without any memory of the heap.

use std::mem;
use std::os::fd::RawFd;
use std::ptr;

use libc::{c_int, c_uint, iovec, mmsghdr, msghdr, off_t, ssize_t};
use shunt_functional::differential::plan::ops::{RecvBy, SendBy};
use shunt_functional::sys;

/// Parts of a vectored call.
const PARTS: usize = 3;
const PARTS_COUNT: c_int = 3;
/// Messages of a call with several.
const MESSAGES: usize = 2;
const MESSAGES_COUNT: c_uint = 2;
/// The control message of `TCP_INQ`.
const TCP_CM_INQ: c_int = 36;

/// The error that a call of this thread has left.
pub fn errno() -> c_int {
    // SAFETY: the place of the thread's own errno.
    unsafe { *libc::__errno_location() }
}

/// What a receive says beside the number of bytes.
#[derive(Default)]
pub struct Said {
    /// `msg_flags`
    pub flags: c_int,
    /// What `TCP_INQ` says.
    pub left: Option<c_int>,
}

/// Consecutive parts of some memory.
fn cut<const N: usize>(base: *mut u8, len: usize) -> [iovec; N] {
    let step = len.div_ceil(N).max(1);
    std::array::from_fn(|n| {
        let from = (n * step).min(len);
        iovec { iov_base: base.wrapping_add(from).cast(), iov_len: step.min(len - from) }
    })
}

fn header(vectors: &mut [iovec]) -> msghdr {
    // SAFETY: msghdr is plain data; all zeroes means no name, no vectors, no control data.
    let mut message: msghdr = unsafe { mem::zeroed() };
    message.msg_iov = vectors.as_mut_ptr();
    message.msg_iovlen = vectors.len();
    message
}

fn headers(vectors: &mut [iovec; MESSAGES]) -> [mmsghdr; MESSAGES] {
    vectors.each_mut().map(|one| mmsghdr { msg_hdr: header(std::slice::from_mut(one)), msg_len: 0 })
}

/// Sends by one call; what it returned.
pub fn send(fd: RawFd, bytes: &[u8], flags: c_int, by: SendBy) -> ssize_t {
    let (base, len) = (bytes.as_ptr(), bytes.len());
    let mut vectors = cut::<PARTS>(base.cast_mut(), len);
    let count = PARTS_COUNT;
    // SAFETY: all that the calls are given lies in `bytes`, which they read alone, or on this stack.
    unsafe {
        match by {
            SendBy::Send => libc::send(fd, base.cast(), len, flags),
            SendBy::Write => libc::write(fd, base.cast(), len),
            SendBy::Writev => libc::writev(fd, vectors.as_ptr(), count),
            SendBy::Sendto => libc::sendto(fd, base.cast(), len, flags, ptr::null(), 0),
            SendBy::Sendmsg => {
                let message = header(&mut vectors);
                libc::sendmsg(fd, &raw const message, flags)
            }
            SendBy::Sendmmsg => {
                let mut vectors = cut::<MESSAGES>(base.cast_mut(), len);
                let mut messages = headers(&mut vectors);
                let count = MESSAGES_COUNT;
                let done = libc::sendmmsg(fd, messages.as_mut_ptr(), count, flags);
                total(&messages, done)
            }
            SendBy::Pwritev2 => libc::pwritev2(fd, vectors.as_ptr(), count, -1 as off_t, 0),
        }
    }
}

/// Bytes in the first `done` messages.
fn total(messages: &[mmsghdr; MESSAGES], done: c_int) -> ssize_t {
    let Ok(done) = usize::try_from(done) else { return -1 };
    messages.iter().take(done).map(|message| message.msg_len as ssize_t).sum()
}

/// Receives by one call; what it returned, and said.
pub fn recv(fd: RawFd, bytes: &mut [u8], flags: c_int, by: RecvBy) -> (ssize_t, Said) {
    let (base, len) = (bytes.as_mut_ptr(), bytes.len());
    let mut vectors = cut::<PARTS>(base, len);
    let count = PARTS_COUNT;
    let mut said = Said::default();
    // SAFETY: all that the calls are given lies in `bytes`, or on this stack.
    let n = unsafe {
        match by {
            RecvBy::Recv => {
                // To throw bytes away takes no memory.
                let to = if flags & libc::MSG_TRUNC != 0 { ptr::null_mut() } else { base };
                libc::recv(fd, to.cast(), len, flags)
            }
            RecvBy::Read => libc::read(fd, base.cast(), len),
            RecvBy::Readv => libc::readv(fd, vectors.as_ptr(), count),
            RecvBy::Recvfrom => {
                let mut address: libc::sockaddr_storage = mem::zeroed();
                let mut room = sys::socklen_of::<libc::sockaddr_storage>();
                let address = (&raw mut address).cast();
                libc::recvfrom(fd, base.cast(), len, flags, address, &raw mut room)
            }
            RecvBy::Recvmsg => {
                let mut control = [0_u64; 16];
                let mut message = header(&mut vectors);
                message.msg_control = control.as_mut_ptr().cast();
                message.msg_controllen = size_of_val(&control);
                let n = libc::recvmsg(fd, &raw mut message, flags);
                if n >= 0 {
                    said = Said { flags: message.msg_flags, left: left(&message) };
                }
                n
            }
            RecvBy::Recvmmsg => {
                let mut vectors = cut::<MESSAGES>(base, len);
                let step = vectors[0].iov_len;
                let mut messages = headers(&mut vectors);
                let count = MESSAGES_COUNT;
                let messages_at = messages.as_mut_ptr();
                let done = libc::recvmmsg(fd, messages_at, count, flags, ptr::null_mut());
                // Messages that are shorter than their part leave holes.
                let mut at = 0;
                for (n, message) in
                    messages.iter().enumerate().take(usize::try_from(done).unwrap_or(0))
                {
                    let got = message.msg_len as usize;
                    bytes.copy_within(n * step..n * step + got, at);
                    at += got;
                }
                total(&messages, done)
            }
            RecvBy::Preadv2 => libc::preadv2(fd, vectors.as_mut_ptr(), count, -1 as off_t, 0),
        }
    };
    (n, said)
}

/// What `TCP_INQ` says in a message's control data.
fn left(message: &msghdr) -> Option<c_int> {
    // SAFETY: the kernel, or whoever stands for it, has written the control data and its length.
    unsafe {
        let mut control = libc::CMSG_FIRSTHDR(message);
        while let Some(found) = control.as_ref() {
            if found.cmsg_level == libc::SOL_TCP && found.cmsg_type == TCP_CM_INQ {
                return Some(libc::CMSG_DATA(control).cast::<c_int>().read_unaligned());
            }
            control = libc::CMSG_NXTHDR(message, control);
        }
    }
    None
}
