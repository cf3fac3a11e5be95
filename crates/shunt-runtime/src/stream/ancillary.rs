//! Control messages of sendmsg(2) that are the kernel's alone to heed.

use libc::{
    CMSG_DATA, CMSG_FIRSTHDR, CMSG_LEN, CMSG_NXTHDR, SCM_RIGHTS, SOL_SOCKET, c_int, cmsghdr, msghdr,
};
use shunt_sys::sockinfo;
use shunt_wire::reason::Reason;

use crate::conn::Conn;
use crate::fds::fd_table::{self, Kind};
use crate::fds::unconnected;
use crate::stream::hand_over;

/// The control messages of `msg`, each with the address of its data, until `ends` says that it was enough; whether it did.
///
/// # Safety
/// `msg` is a valid message.
unsafe fn any(msg: &msghdr, mut ends: impl FnMut(&cmsghdr, *const u8) -> bool) -> bool {
    if msg.msg_control.is_null() {
        return false;
    }
    // SAFETY: the caller's promise; the macros stay inside msg_controllen.
    unsafe {
        let mut header = CMSG_FIRSTHDR(msg);
        while let Some(found) = header.as_ref() {
            if ends(found, CMSG_DATA(header)) {
                return true;
            }
            header = CMSG_NXTHDR(msg, header);
        }
    }
    false
}

/// The connection goes back to TCP for a message of which the kernel alone can tell the times.
///
/// # Safety
/// `msg` is a valid message.
#[inline]
pub unsafe fn heed_times(conn: Conn, msg: &msghdr) {
    // SAFETY: the caller's promise.
    if !msg.msg_control.is_null() && unsafe { asks_for_times(msg) } {
        hand_over::give_back(conn, Reason::Unsupported);
    }
}

/// True for a message of which the program wants to know when it is sent, acknowledged and so on: a control message that
/// is for this one what `SO_TIMESTAMPING` is for all.
///
/// # Safety
/// `msg` is a valid message.
unsafe fn asks_for_times(msg: &msghdr) -> bool {
    let is_it = |header: &cmsghdr, data: *const u8| {
        // SAFETY: only computes; then, the message is long enough for the number.
        unsafe {
            sockinfo::is_timestamping(header.cmsg_level, header.cmsg_type)
                && header.cmsg_len == CMSG_LEN(4) as usize
                && sockinfo::are_of_sending(data.cast::<u32>().read_unaligned())
        }
    };
    // SAFETY: the caller's promise.
    unsafe { any(msg, is_it) }
}

/// Connections whose descriptors are passed to another process (`SCM_RIGHTS`) go back to TCP: the
/// receiver may not run under Shunt.
///
/// # Safety
/// `msg` is a valid message.
pub unsafe fn hand_over_rights(msg: &msghdr) {
    // SAFETY: the caller's promise.
    unsafe {
        passed(msg, |fd| {
            let entry = fd_table::lookup(fd);
            if entry.kind() == Kind::Stream {
                hand_over::hand_over(fd, entry);
            }
            unconnected::forget(fd, entry);
        });
    }
}

/// The descriptors that a message passes.
///
/// # Safety
/// `msg` is a valid message.
unsafe fn passed(msg: &msghdr, mut each: impl FnMut(c_int)) {
    let look = |header: &cmsghdr, data: *const u8| {
        if (header.cmsg_level, header.cmsg_type) == (SOL_SOCKET, SCM_RIGHTS) {
            // SAFETY: only computes.
            let bytes = header.cmsg_len.saturating_sub(unsafe { CMSG_LEN(0) } as usize);
            for i in 0..bytes / size_of::<c_int>() {
                // SAFETY: inside the control message, as its length says.
                each(unsafe { data.cast::<c_int>().add(i).read_unaligned() });
            }
        }
        false
    };
    // SAFETY: the caller's promise.
    unsafe { any(msg, look) };
}

#[cfg(test)]
mod tests {
    use libc::CMSG_SPACE;

    use super::*;

    /// A message with these control messages of numbers.
    fn with(messages: &[(c_int, c_int, &[u32])], check: impl FnOnce(&msghdr)) {
        let mut room = [0_u64; 32];
        // SAFETY: all zero is a valid message; the room is larger than all control messages together.
        unsafe {
            let mut msg: msghdr = core::mem::zeroed();
            msg.msg_control = room.as_mut_ptr().cast();
            let space = |numbers: &[u32]| CMSG_SPACE(u32::try_from(numbers.len() * 4).unwrap());
            msg.msg_controllen = messages.iter().map(|(_, _, data)| space(data) as usize).sum();
            let mut header = CMSG_FIRSTHDR(&raw const msg);
            for (level, kind, data) in messages {
                (*header).cmsg_len = CMSG_LEN(u32::try_from(data.len() * 4).unwrap()) as usize;
                ((*header).cmsg_level, (*header).cmsg_type) = (*level, *kind);
                let to = CMSG_DATA(header).cast::<u32>();
                data.iter().enumerate().for_each(|(i, n)| to.add(i).write_unaligned(*n));
                header = CMSG_NXTHDR(&raw const msg, header);
            }
            check(&msg);
        }
    }

    #[test]
    fn all_descriptors_that_are_passed_are_found() {
        let found = |messages: &[(c_int, c_int, &[u32])]| {
            let mut found = Vec::new();
            // SAFETY: a valid message.
            with(messages, |msg| unsafe { passed(msg, |fd| found.push(fd)) });
            found
        };
        let rights = (SOL_SOCKET, SCM_RIGHTS, &[7, 9][..]);
        let other = (SOL_SOCKET, libc::SCM_CREDENTIALS, &[1, 2, 3][..]);
        assert_eq!(found(&[]), []);
        assert_eq!(found(&[other]), []);
        assert_eq!(found(&[other, rights, (SOL_SOCKET, SCM_RIGHTS, &[4])]), [7, 9, 4]);
    }

    #[test]
    fn only_times_of_sending_are_asked_for() {
        let asks = |kind, flags: &[u32]| {
            let mut asks = false;
            // SAFETY: a valid message.
            with(&[(SOL_SOCKET, kind, flags)], |msg| asks = unsafe { asks_for_times(msg) });
            asks
        };
        assert!(asks(libc::SO_TIMESTAMPING, &[libc::SOF_TIMESTAMPING_TX_SOFTWARE]));
        assert!(!asks(libc::SO_TIMESTAMPING, &[libc::SOF_TIMESTAMPING_RX_SOFTWARE]));
        assert!(!asks(libc::SO_TIMESTAMPING, &[libc::SOF_TIMESTAMPING_TX_SOFTWARE, 0]));
        assert!(!asks(SCM_RIGHTS, &[libc::SOF_TIMESTAMPING_TX_SOFTWARE]));
    }
}
