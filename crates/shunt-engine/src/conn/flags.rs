//! What is noted of a connection in [`Identity::flags`](shunt_shm::arena::Identity::flags).
//!
//! Each stands once, in the list below, by what it concerns; the list gives it its bit. What moves a connection from one state to
//! another is in [`state`](super::state).

use core::fmt;
use core::ops::BitOr;

use shunt_shm::arena;

/// One or more notes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Flags(u32);

impl Flags {
    /// The bits as they stand in the record.
    #[inline]
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// The flag of this place in the list: the lowest bit that no earlier one has, and that is not one of the arena's.
    const fn nth(place: u32) -> Self {
        let bit = 1 << place;
        let free = if bit < arena::NUMBERED { bit } else { bit << 1 };
        assert!(free != 0 && free < arena::WAITED, "the word is full");
        Self(free)
    }
}

impl BitOr for Flags {
    type Output = Self;

    #[inline]
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut noted = ALL.iter().filter(|(_, flag)| self.0 & flag.0 != 0).map(|(name, _)| name);
        f.write_str(noted.next().unwrap_or(&"none"))?;
        noted.try_for_each(|name| write!(f, " | {name}"))
    }
}

/// Numbers were given to sends with `MSG_ZEROCOPY`. Its bit is the arena's, which the agent reads.
pub const NUMBERED: Flags = Flags(arena::NUMBERED);

const _: () = assert!(arena::NUMBERED.is_power_of_two());

macro_rules! flags {
    ($($(#[$doc:meta])+ $name:ident,)+) => {
        /// The place of each in the list.
        #[allow(non_camel_case_types, clippy::upper_case_acronyms, reason = "named as the flags")]
        #[repr(u32)]
        enum Place { $($name,)+ }

        $($(#[$doc])+ pub const $name: Flags = Flags::nth(Place::$name as u32);)+

        /// All of them, by name.
        const ALL: [(&str, Flags); 1 + [$(stringify!($name)),+].len()] =
            [("NUMBERED", NUMBERED), $((stringify!($name), $name)),+];
    };
}

flags! {
    // What the program has set, or the socket is.

    /// `O_NONBLOCK` is set on the open file description.
    NONBLOCK,
    /// `O_APPEND` is set on the open file description, with which sendfile(2) and splice(2) have
    /// nothing to do.
    APPENDS,
    /// An IPv6 socket, whatever its addresses: noted with the first call that is [`NUMBERED`].
    IS_V6,
    /// The program has set the size of a buffer before the connection was taken up.
    SIZED,
    /// `TCP_INQ` is set.
    INQ,
    /// Whether it is set is known.
    INQ_KNOWN,

    // How the connection came to be shunted.

    /// The agent was asked for the other end: the connection was offered, or claimed.
    ASKED,
    /// It was accepted, its other end was offered, and the agent is to be asked for it.
    TO_BE_CLAIMED,
    /// The peer may be in another network namespace, where the kernel says nothing of its socket.
    ELSEWHERE,
    /// The peer is on another host, and this host's agent writes what the peer would: it alone is believed about the link between them.
    HOSTED,
    /// The peer is a kernel's SMC-R: the connection cannot go back to TCP.
    STAYS,
    /// The connection was promoted at least once.
    WAS_SHUNTED,

    // Where bytes go.

    /// This side wants its sending direction on TCP.
    WANT_TCP,
    /// This side takes nothing from the ring any more: the peer sends what is left over TCP.
    FROZEN,
    /// What a program before exec has left unread is not passed yet: the preloaded library's business.
    LEFTOVER,

    // The end.

    /// `shutdown(SHUT_WR)` was called.
    SHUT_WR,
    /// `shutdown(SHUT_RD)` was called.
    SHUT_RD,
    /// Nobody holds the peer's socket any more.
    ORPHANED,
    /// The kernel is to send RST if the program is killed: the connection's end would be silent otherwise.
    RST_ON_DEATH,

    // Resets.

    /// The RST that the peer has announced was waited for: one that does not come is not waited for again.
    RESET_AWAITED,
    /// The peer was killed while bytes of ours lay unread in its ring, which TCP would have answered with RST.
    CUT_OFF,
    /// The kernel has told a reset to a call that had moved bytes, and returned these: the next call fails with it.
    RESET_DUE,
    /// A call has failed with `ECONNRESET`.
    RESET_TOLD,

    // What is known of the kernel socket.

    /// The kernel socket has something to say (end of file, error): ask it when the ring is empty.
    KERNEL_HINT,
    /// The kernel socket had room when it was last asked, and nothing was sent over it since: good for one
    /// answer, as somebody may send behind the library's back.
    HAD_ROOM,
    /// Bytes were sent over the kernel socket, or found no room there, since it last said that it had room for more.
    FILLS_KERNEL,
    /// The kernel's error queue may have something of its own to say.
    TELLS_ERRORS,
    /// There are bytes, and fewer than `SO_RCVLOWAT` says, of more of which nobody would tell.
    SHORT,

    // Sending without copies.

    /// `SO_ZEROCOPY` is set, as far as is known.
    ZEROCOPY,
    /// What was granted was not read in time: the next send asks the kernel whether the peer is there.
    UNREAD,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_flag_has_a_bit_of_its_own() {
        let bits = ALL.iter().fold(0_u32, |seen, (name, flag)| {
            assert_eq!(flag.bits().count_ones(), 1, "{name}");
            assert_eq!(seen & flag.bits(), 0, "{name} has the bit of another flag");
            seen | flag.bits()
        });
        assert_eq!(bits.count_ones() as usize, ALL.len());
        assert_eq!(NUMBERED.bits(), arena::NUMBERED);
    }

    #[test]
    fn flags_are_printed_by_name() {
        assert_eq!(format!("{:?}", SHUT_WR | NUMBERED), "NUMBERED | SHUT_WR");
    }
}
