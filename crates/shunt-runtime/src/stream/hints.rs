//! The control messages of `shunt.h`, and their meaning for the buffers of a sending call.

use core::ptr::NonNull;

use libc::{CMSG_LEN, c_int, cmsghdr, msghdr};
use shunt_engine::zerocopy::choice::Hint;

/// `SHUNT_LEVEL` of the header: the level of its control messages.
const LEVEL: c_int = 0x5368_756e;
/// `SHUNT_HINTS`: [`QUIET`] or nothing, and a [`Hint`] per buffer.
const HINTS: c_int = 3;

/// `SHUNT_QUIET`: nobody wants to hear that the call is complete. Without `MSG_ZEROCOPY`, so that the kernel copies
/// and has nothing to tell.
const QUIET: u8 = 1;

/// The control message of the header's in `msg`: its type, its data and their length.
///
/// # Safety
/// `msg` is a valid message; its control message is initialized as far as a header goes.
pub unsafe fn control(msg: &msghdr) -> Option<(c_int, NonNull<u8>, usize)> {
    // SAFETY: only computes.
    let head = unsafe { CMSG_LEN(0) as usize };
    if msg.msg_controllen <= head {
        return None;
    }
    let at = NonNull::new(msg.msg_control.cast::<u8>())?;
    // SAFETY: there are so many bytes.
    let header = unsafe { at.cast::<cmsghdr>().read_unaligned() };
    let is_whole = header.cmsg_len > head && header.cmsg_len <= msg.msg_controllen;
    (header.cmsg_level == LEVEL && is_whole).then(|| {
        // SAFETY: inside the control message, as just checked.
        (header.cmsg_type, unsafe { at.add(head) }, header.cmsg_len - head)
    })
}

/// The hints of a sending call.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hints<'a> {
    /// Nobody wants to hear that the call is complete.
    pub is_quiet: bool,
    per_buffer: &'a [u8],
}

impl<'a> Hints<'a> {
    /// Those of a call of sendmsg(2).
    ///
    /// # Safety
    /// As for `control`; the control message stays as it is for as long.
    #[inline]
    pub unsafe fn of(msg: &'a msghdr) -> Self {
        // SAFETY: the caller promises what `control` asks for: a message whose control buffer can be read.
        let Some((HINTS, data, len)) = (unsafe { control(msg) }) else { return Self::default() };
        // SAFETY: `control` has found so many bytes inside of the control buffer, and the caller promises that they stay.
        let bytes = unsafe { core::slice::from_raw_parts(data.as_ptr(), len) };
        match bytes {
            [first, per_buffer @ ..] => Self { is_quiet: *first == QUIET, per_buffer },
            [] => Self::default(),
        }
    }

    /// That of a buffer.
    pub fn of_buffer(&self, index: usize) -> Hint {
        match self.per_buffer.get(index) {
            Some(1) => Hint::Copy,
            Some(2) => Hint::Grant,
            _ => Hint::Auto,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub fn message(kind: c_int, data: &[u8], room: &mut [u64; 16]) -> msghdr {
        // SAFETY: all zero is a valid message; the room is larger than header and data.
        unsafe {
            let mut msg: msghdr = core::mem::zeroed();
            let len = CMSG_LEN(u32::try_from(data.len()).unwrap()) as usize;
            let header = cmsghdr { cmsg_len: len, cmsg_level: LEVEL, cmsg_type: kind };
            let at = room.as_mut_ptr();
            at.cast::<cmsghdr>().write(header);
            let to = at.cast::<u8>().add(CMSG_LEN(0) as usize);
            core::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len());
            msg.msg_control = at.cast();
            msg.msg_controllen = len;
            msg
        }
    }

    #[test]
    fn hints_are_per_buffer() {
        let mut room = [0; 16];
        let msg = message(HINTS, &[QUIET, 1, 2, 0, 77], &mut room);
        // SAFETY: valid messages, here and below.
        let hints = unsafe { Hints::of(&msg) };
        assert!(hints.is_quiet);
        let each: Vec<_> = (0..6).map(|i| hints.of_buffer(i)).collect();
        use Hint::{Auto, Copy, Grant};
        assert_eq!(each, [Copy, Grant, Auto, Auto, Auto, Auto]);
        let msg = message(HINTS + 1, &[QUIET, 1], &mut room);
        // SAFETY: a valid message.
        assert!(!unsafe { Hints::of(&msg) }.is_quiet);
    }
}
