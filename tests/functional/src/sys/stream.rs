//! The families of calls that move bytes.

use std::io;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::ptr;

use libc::{c_int, c_void, iovec, mmsghdr, msghdr};

use super::{RawAddr, check_len};

/// What `recvmsg` and `recvmmsg` say beside the number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes in all.
    pub len: usize,
    /// Messages (`recvmmsg`; else 1).
    pub messages: usize,
    /// `msg_flags` of the first message.
    pub flags: c_int,
    /// `msg_namelen` of the first message: what the kernel left there.
    pub name_len: u32,
}

/// `read(2)`.
pub fn read(fd: RawFd, buf: &mut [u8]) -> io::Result<usize> {
    // SAFETY: buf has room for its length.
    check_len(unsafe { libc::read(fd, buf.as_mut_ptr().cast(), buf.len()) })
}

/// `write(2)`.
pub fn write(fd: RawFd, buf: &[u8]) -> io::Result<usize> {
    // SAFETY: buf is readable over its length.
    check_len(unsafe { libc::write(fd, buf.as_ptr().cast(), buf.len()) })
}

/// `recv(2)`. With `discard`, the buffer is NULL and only its length counts (MSG_TRUNC on TCP).
pub fn recv(fd: RawFd, buf: &mut [u8], flags: c_int, discard: bool) -> io::Result<usize> {
    let ptr: *mut c_void = if discard { ptr::null_mut() } else { buf.as_mut_ptr().cast() };
    // SAFETY: buf has room for its length; NULL goes with MSG_TRUNC, for which nothing is written.
    check_len(unsafe { libc::recv(fd, ptr, buf.len(), flags) })
}

/// `send(2)`.
pub fn send(fd: RawFd, buf: &[u8], flags: c_int) -> io::Result<usize> {
    // SAFETY: buf is readable over its length.
    check_len(unsafe { libc::send(fd, buf.as_ptr().cast(), buf.len(), flags) })
}

/// `recvfrom(2)` with room for an address, which TCP leaves alone: returns the address length too.
pub fn recvfrom(fd: RawFd, buf: &mut [u8], flags: c_int) -> io::Result<(usize, u32)> {
    let mut addr = RawAddr::empty();
    let mut len = addr.len;
    // SAFETY: buf has room for its length and addr for len.
    let n = check_len(unsafe {
        let data = buf.as_mut_ptr().cast();
        libc::recvfrom(fd, data, buf.len(), flags, addr.as_mut_ptr(), &raw mut len)
    })?;
    Ok((n, len))
}

/// `sendto(2)` without an address.
pub fn sendto(fd: RawFd, buf: &[u8], flags: c_int) -> io::Result<usize> {
    // SAFETY: buf is readable over its length; NULL is no address.
    check_len(unsafe { libc::sendto(fd, buf.as_ptr().cast(), buf.len(), flags, ptr::null(), 0) })
}

/// `sendto(2)` with an address.
pub fn sendto_address(fd: RawFd, buf: &[u8], flags: c_int, to: SocketAddr) -> io::Result<usize> {
    let to = RawAddr::from(to);
    let data = buf.as_ptr().cast();
    // SAFETY: buf is readable over its length; `to` holds an address of its length.
    check_len(unsafe { libc::sendto(fd, data, buf.len(), flags, to.as_ptr(), to.len) })
}

/// `sendmsg(2)` with an address.
pub fn sendmsg_address(fd: RawFd, buf: &[u8], flags: c_int, to: SocketAddr) -> io::Result<usize> {
    let mut to = RawAddr::from(to);
    let mut vectors = cut(buf, 1);
    let mut msg = header(&mut vectors);
    msg.msg_name = to.as_mut_ptr().cast();
    msg.msg_namelen = to.len;
    // SAFETY: the vectors lie in buf; `to` holds an address of its length.
    check_len(unsafe { libc::sendmsg(fd, &raw const msg, flags) })
}

/// Cuts `buf` into at most `pieces` consecutive vectors.
fn cut_mut(buf: &mut [u8], pieces: usize) -> Vec<iovec> {
    let step = buf.len().div_ceil(pieces.max(1)).max(1);
    buf.chunks_mut(step)
        .map(|c| iovec { iov_base: c.as_mut_ptr().cast(), iov_len: c.len() })
        .collect()
}

/// As [`cut_mut`] for bytes that are only read.
fn cut(buf: &[u8], pieces: usize) -> Vec<iovec> {
    let step = buf.len().div_ceil(pieces.max(1)).max(1);
    buf.chunks(step)
        .map(|c| iovec { iov_base: c.as_ptr().cast_mut().cast(), iov_len: c.len() })
        .collect()
}

/// A message header over `vectors`, which must outlive it.
fn header(vectors: &mut [iovec]) -> msghdr {
    // SAFETY: msghdr is plain data; all zeroes means no name, no vectors, no control data.
    let mut msg: msghdr = unsafe { mem::zeroed() };
    msg.msg_iov = vectors.as_mut_ptr();
    msg.msg_iovlen = vectors.len();
    msg
}

/// The vector count as readv and writev want it; [`cut`] is never asked for more than a few.
fn count(vectors: &[iovec]) -> c_int {
    c_int::try_from(vectors.len()).unwrap_or(c_int::MAX)
}

/// `readv(2)` into `pieces` parts of `buf`.
pub fn readv(fd: RawFd, buf: &mut [u8], pieces: usize) -> io::Result<usize> {
    let vectors = cut_mut(buf, pieces);
    // SAFETY: the vectors lie in buf.
    check_len(unsafe { libc::readv(fd, vectors.as_ptr(), count(&vectors)) })
}

/// `writev(2)` of `pieces` parts of `buf`.
pub fn writev(fd: RawFd, buf: &[u8], pieces: usize) -> io::Result<usize> {
    let vectors = cut(buf, pieces);
    // SAFETY: the vectors lie in buf.
    check_len(unsafe { libc::writev(fd, vectors.as_ptr(), count(&vectors)) })
}

/// `recvmsg(2)` with so much room for control messages: the bytes, and what `TCP_INQ` says is left; whether there
/// was too little room, and how much of it was taken.
pub fn recv_inq(fd: RawFd, len: usize, flags: c_int, room: usize) -> io::Result<String> {
    /// `include/uapi/linux/tcp.h`.
    const TCP_INQ: c_int = 36;
    let mut bytes = vec![0_u8; len];
    let mut control = [0_u64; 16];
    let mut vector = iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: len };
    // SAFETY: all zero is a valid msghdr.
    let mut msg: msghdr = unsafe { mem::zeroed() };
    (msg.msg_iov, msg.msg_iovlen) = (&raw mut vector, 1);
    msg.msg_control = control.as_mut_ptr().cast();
    msg.msg_controllen = room.min(size_of_val(&control));
    // SAFETY: the message names buffers that are there.
    let n = check_len(unsafe { libc::recvmsg(fd, &raw mut msg, flags) })?;
    let mut told = None;
    // SAFETY: the control messages were filled in, and the macros stay inside of them.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(&raw const msg);
        while let Some(header) = at.as_ref() {
            if (header.cmsg_level, header.cmsg_type) == (libc::IPPROTO_TCP, TCP_INQ)
                && header.cmsg_len == libc::CMSG_LEN(4) as usize
            {
                told = Some(libc::CMSG_DATA(at).cast::<c_int>().read_unaligned());
            }
            at = libc::CMSG_NXTHDR(&raw const msg, at);
        }
    }
    let flags = msg.msg_flags & libc::MSG_CTRUNC;
    Ok(format!("{n}, left {told:?}, flags {flags:#x}, {}", msg.msg_controllen))
}

/// `recvmsg(2)` into `pieces` parts of `buf`, with room for a name and no control data.
pub fn recvmsg(fd: RawFd, buf: &mut [u8], pieces: usize, flags: c_int) -> io::Result<Received> {
    let mut vectors = cut_mut(buf, pieces);
    let mut addr = RawAddr::empty();
    let mut msg = header(&mut vectors);
    msg.msg_name = addr.as_mut_ptr().cast();
    msg.msg_namelen = addr.len;
    // SAFETY: msg points to vectors that lie in buf, and to addr.
    let len = check_len(unsafe { libc::recvmsg(fd, &raw mut msg, flags) })?;
    Ok(Received { len, messages: 1, flags: msg.msg_flags, name_len: msg.msg_namelen })
}

/// `sendmsg(2)` of `pieces` parts of `buf`.
pub fn sendmsg(fd: RawFd, buf: &[u8], pieces: usize, flags: c_int) -> io::Result<usize> {
    let mut vectors = cut(buf, pieces);
    let msg = header(&mut vectors);
    // SAFETY: msg points to vectors that lie in buf.
    check_len(unsafe { libc::sendmsg(fd, &raw const msg, flags) })
}

/// One message header per vector.
fn headers(vectors: &mut [iovec]) -> Vec<mmsghdr> {
    vectors.chunks_mut(1).map(|one| mmsghdr { msg_hdr: header(one), msg_len: 0 }).collect()
}

/// Bytes in the first `done` messages.
fn total(messages: &[mmsghdr], done: usize) -> usize {
    messages.iter().take(done).map(|m| m.msg_len as usize).sum()
}

/// `recvmmsg(2)` into `pieces` messages that together are `buf`. Messages that come back shorter
/// than their part leave holes, so the bytes are moved together: afterwards `buf[..len]` holds
/// them in order.
pub fn recvmmsg(fd: RawFd, buf: &mut [u8], pieces: usize, flags: c_int) -> io::Result<Received> {
    let mut vectors = cut_mut(buf, pieces);
    let step = vectors.first().map_or(0, |v| v.iov_len);
    let mut messages = headers(&mut vectors);
    // The flags are an int in every libc but musl's old ones; the count is unsigned.
    let vlen = libc::c_uint::try_from(messages.len()).unwrap_or(libc::c_uint::MAX);
    // SAFETY: the messages point to vectors that lie in buf; no timeout.
    let done =
        check_len(
            unsafe { libc::recvmmsg(fd, messages.as_mut_ptr(), vlen, flags, ptr::null_mut()) }
                as isize,
        )?;
    let len = total(&messages, done);
    let mut at = 0;
    for (i, message) in messages.iter().take(done).enumerate() {
        let n = message.msg_len as usize;
        buf.copy_within(i * step..i * step + n, at);
        at += n;
    }
    let flags = messages.first().map_or(0, |m| m.msg_hdr.msg_flags);
    Ok(Received { len, messages: done, flags, name_len: 0 })
}

/// `sendmmsg(2)` of `buf` as `pieces` messages; the bytes sent.
pub fn sendmmsg(fd: RawFd, buf: &[u8], pieces: usize, flags: c_int) -> io::Result<usize> {
    let mut vectors = cut(buf, pieces);
    let mut messages = headers(&mut vectors);
    let vlen = libc::c_uint::try_from(messages.len()).unwrap_or(libc::c_uint::MAX);
    // SAFETY: the messages point to vectors that lie in buf.
    let done =
        check_len(unsafe { libc::sendmmsg(fd, messages.as_mut_ptr(), vlen, flags) } as isize)?;
    Ok(total(&messages, done))
}

/// `sendfile(2)` of `len` bytes at the start of `file`.
pub fn sendfile(fd: RawFd, file: RawFd, len: usize) -> io::Result<usize> {
    let mut offset: libc::off_t = 0;
    // SAFETY: offset is a valid off_t.
    let n = check_len(unsafe { libc::sendfile(fd, file, &raw mut offset, len) })?;
    if usize::try_from(offset) == Ok(n) {
        Ok(n)
    } else {
        Err(io::Error::other(format!("sendfile sent {n} bytes and moved the offset to {offset}")))
    }
}

/// Writes all of `buf` at the start of `file`.
pub fn pwrite_all(file: RawFd, mut buf: &[u8]) -> io::Result<()> {
    let mut at = 0;
    while !buf.is_empty() {
        // SAFETY: buf is readable over its length.
        let n = check_len(unsafe { libc::pwrite(file, buf.as_ptr().cast(), buf.len(), at) })?;
        buf = &buf[n..];
        at += libc::off_t::try_from(n).unwrap_or(libc::off_t::MAX);
    }
    Ok(())
}

/// splice(2) without offsets.
pub fn splice(from: RawFd, to: RawFd, len: usize, flags: u32) -> io::Result<usize> {
    let null = std::ptr::null_mut();
    // SAFETY: there are no offsets.
    check_len(unsafe { libc::splice(from, null, to, null, len, flags) })
}
