//! The control messages of recvmsg(2) and sendmsg(2) that are Shunt's, as the header has them.

use libc::{c_int, cmsghdr};

/// `SHUNT_LEVEL`, the level of all of them: kernel TCP does not look at them.
pub const LEVEL: c_int = 0x5368_756e;
/// `SHUNT_BORROW`.
pub const BORROW: c_int = 1;
/// `SHUNT_RELEASE`.
pub const RELEASE: c_int = 2;
/// `SHUNT_HINTS`.
pub const HINTS: c_int = 3;

/// `SHUNT_BUFFERS`: most buffers of a call with hints.
pub const BUFFERS: usize = 63;

/// The control message of a call with a hint per buffer.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Hints {
    header: cmsghdr,
    quiet: u8,
    hints: [u8; BUFFERS],
}

impl Hints {
    /// Its length, as the header and msg_controllen say it.
    pub const LEN: usize = size_of::<Self>();

    /// With these hints ([`Hint`](crate::send::Hint)). `quiet`: nobody wants to hear that the call is complete
    /// (`SHUNT_QUIET`).
    #[must_use]
    pub const fn new(quiet: bool, hints: [u8; BUFFERS]) -> Self {
        let header = cmsghdr { cmsg_len: Self::LEN, cmsg_level: LEVEL, cmsg_type: HINTS };
        Self { header, quiet: quiet as u8, hints }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_header() {
        let header = include_str!("../../../dist/include/shunt.h");
        let defines = |name: &str, value: &str| {
            header.lines().any(|line| {
                let words: Vec<_> = line.split_whitespace().take(3).collect();
                words == ["#define", name, value]
            })
        };
        assert!(defines("SHUNT_LEVEL", &format!("{LEVEL:#x}")));
        for (name, value) in [("SHUNT_BORROW", BORROW), ("SHUNT_RELEASE", RELEASE)] {
            assert!(defines(name, &value.to_string()), "{name}");
        }
        assert!(defines("SHUNT_HINTS", &HINTS.to_string()));
        assert!(defines("SHUNT_BUFFERS", &BUFFERS.to_string()));
    }
}
