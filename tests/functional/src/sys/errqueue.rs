//! The error queue of a socket (recvmsg(2), `MSG_ERRQUEUE`).

use std::fmt;
use std::io;
use std::mem;
use std::os::fd::RawFd;

use libc::{c_int, cmsghdr, msghdr, sock_extended_err};

use super::check_len;

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
        // SAFETY: as above.
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
