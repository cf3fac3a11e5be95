//! The error queue of a socket (recvmsg(2), `MSG_ERRQUEUE`).

use std::fmt;
use std::io;
use std::mem;
use std::os::fd::RawFd;

use libc::{c_int, cmsghdr, msghdr, sock_extended_err};

use super::check_len;

/// A time of sending that the queue tells.
pub struct Stamp {
    /// Bytes of the message that come along.
    pub bytes: usize,
    /// What it is the time of: `SCM_TSTAMP_SND` and so on.
    pub what: u32,
    /// The number of the last byte.
    pub number: u32,
    /// There is a time.
    pub is_timed: bool,
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, what, number, is_timed } = self;
        write!(f, "{what} of {number}, timed {is_timed}, {bytes} bytes")
    }
}

/// recvmsg(2) with `MSG_ERRQUEUE`, for [`Stamp`]s.
pub fn recv_stamp(fd: RawFd) -> io::Result<Stamp> {
    const ORIGIN: u8 = 4; // SO_EE_ORIGIN_TIMESTAMPING
    let mut control = [0_u64; 64];
    // SAFETY: all zero is a valid msghdr.
    let mut msg: msghdr = unsafe { mem::zeroed() };
    msg.msg_control = control.as_mut_ptr().cast();
    msg.msg_controllen = size_of_val(&control);
    // SAFETY: the message names the control buffer and no other.
    let bytes = check_len(unsafe { libc::recvmsg(fd, &raw mut msg, libc::MSG_ERRQUEUE) })?;
    let mut stamp = Stamp { bytes, what: u32::MAX, number: 0, is_timed: false };
    // SAFETY: the kernel has filled in control messages of the right lengths, and the macros stay inside of them.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(&raw const msg);
        while let Some(header) = at.as_ref() {
            let data = libc::CMSG_DATA(at);
            if (header.cmsg_level, header.cmsg_type) == (libc::SOL_SOCKET, libc::SO_TIMESTAMPING) {
                stamp.is_timed = data.cast::<libc::timespec>().read_unaligned().tv_sec != 0;
            } else {
                let error = data.cast::<sock_extended_err>().read_unaligned();
                if error.ee_origin == ORIGIN {
                    (stamp.what, stamp.number) = (error.ee_info, error.ee_data);
                }
            }
            at = libc::CMSG_NXTHDR(&raw const msg, at);
        }
    }
    Ok(stamp)
}

/// sendmsg(2) with a control message that asks for these times of the message.
pub fn send_timed(fd: RawFd, bytes: &[u8], times: u32) -> io::Result<usize> {
    let mut control = [0_u64; 4];
    let mut vector =
        libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: all zero is a valid msghdr.
    let mut msg: msghdr = unsafe { mem::zeroed() };
    (msg.msg_iov, msg.msg_iovlen) = (&raw mut vector, 1);
    msg.msg_control = control.as_mut_ptr().cast();
    // SAFETY: only computes, and writes to the control buffer, in which there is room for one word.
    unsafe {
        msg.msg_controllen = libc::CMSG_SPACE(4) as usize;
        let header = libc::CMSG_FIRSTHDR(&raw const msg);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SO_TIMESTAMPING;
        (*header).cmsg_len = libc::CMSG_LEN(4) as usize;
        libc::CMSG_DATA(header).cast::<u32>().write_unaligned(times);
    }
    // SAFETY: the message names the bytes and the control buffer.
    check_len(unsafe { libc::sendmsg(fd, &raw const msg, 0) })
}

/// What was taken from the queue.
pub struct Report {
    /// `msg_flags`, `msg_controllen`, `msg_namelen` afterwards.
    pub message: (c_int, usize, u32),
    /// Level, type and length of the first control message.
    pub control: Option<(c_int, c_int, usize)>,
    /// What it says, if it is all there: `ee_errno`, `ee_origin`, `ee_type`, `ee_code`.
    pub error: Option<(u32, u8, u8, u8)>,
    /// `ee_info` and `ee_data`: the first and the last number.
    pub numbers: Option<(u32, u32)>,
    /// The bytes behind that: the address of an offender.
    pub offender: Vec<u8>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { message, control, error, numbers, offender } = self;
        write!(f, "{message:?} {control:?} {error:?} {numbers:?} {offender:?}")
    }
}

/// recvmsg(2) with `MSG_ERRQUEUE`, with so many bytes for control messages, or none and no place for them.
pub fn recv_error(fd: RawFd, room: usize) -> io::Result<Report> {
    const HEADER: usize = size_of::<cmsghdr>();
    let mut control = [0_u64; 64];
    // SAFETY: all zero is a valid msghdr.
    let mut msg: msghdr = unsafe { mem::zeroed() };
    if room > 0 {
        msg.msg_control = control.as_mut_ptr().cast();
        msg.msg_controllen = room.min(size_of_val(&control));
    }
    // SAFETY: the message names the control buffer and no other.
    check_len(unsafe { libc::recvmsg(fd, &raw mut msg, libc::MSG_ERRQUEUE) })?;
    let bytes: Vec<u8> = control.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let bytes = &bytes[..msg.msg_controllen];
    let header = (bytes.len() >= HEADER).then(|| {
        // SAFETY: so many bytes are there, of plain data.
        let header: cmsghdr = unsafe { bytes.as_ptr().cast::<cmsghdr>().read_unaligned() };
        (header.cmsg_level, header.cmsg_type, header.cmsg_len)
    });
    let data = header.map_or(&[][..], |(.., len)| &bytes[HEADER..len.clamp(HEADER, bytes.len())]);
    let error = (data.len() >= size_of::<sock_extended_err>()).then(|| {
        // SAFETY: the data are as long, and plain.
        unsafe { data.as_ptr().cast::<sock_extended_err>().read_unaligned() }
    });
    Ok(Report {
        message: (msg.msg_flags, msg.msg_controllen, msg.msg_namelen),
        control: header,
        error: error.map(|e| (e.ee_errno, e.ee_origin, e.ee_type, e.ee_code)),
        numbers: error.map(|e| (e.ee_info, e.ee_data)),
        offender: data.get(size_of::<sock_extended_err>()..).unwrap_or_default().to_vec(),
    })
}
