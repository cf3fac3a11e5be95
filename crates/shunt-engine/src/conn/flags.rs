//! What is noted of a connection in [`Identity::flags`](shunt_shm::arena::Identity::flags).

use core::ops::BitOr;

use shunt_shm::arena;

/// One or more notes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flags(u32);

impl Flags {
    /// The bits as they stand in the record.
    #[inline]
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }
}

impl BitOr for Flags {
    type Output = Self;

    #[inline]
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Numbers were given to sends with `MSG_ZEROCOPY` ([`arena::NUMBERED`]).
pub const NUMBERED: Flags = Flags(arena::NUMBERED);
/// `O_NONBLOCK` is set on the open file description.
pub const NONBLOCK: Flags = Flags(1 << 0);
/// `shutdown(SHUT_WR)` was called.
pub const SHUT_WR: Flags = Flags(1 << 1);
/// `shutdown(SHUT_RD)` was called.
pub const SHUT_RD: Flags = Flags(1 << 2);
/// The kernel socket has something to say (end of file, error): ask it when the ring is empty.
pub const KERNEL_HINT: Flags = Flags(1 << 3);
/// This side wants its sending direction on TCP.
pub const WANT_TCP: Flags = Flags(1 << 4);
/// This side takes nothing from the ring any more: the peer sends what is left over TCP.
pub const FROZEN: Flags = Flags(1 << 6);
/// The program has set the size of a buffer before the connection was taken up.
pub const SIZED: Flags = Flags(1 << 7);
/// The kernel socket had room when it was last asked, and nothing was sent over it since: good for one
/// answer, as somebody may send behind the library's back.
pub const HAD_ROOM: Flags = Flags(1 << 8);
/// Bytes were sent over the kernel socket, or found no room there, since it last said that it had room for more.
pub const FILLS_KERNEL: Flags = Flags(1 << 27);
/// The RST that the peer has announced was waited for: one that does not come is not waited for again.
pub const RESET_AWAITED: Flags = Flags(1 << 9);
/// Nobody holds the peer's socket any more.
pub const ORPHANED: Flags = Flags(1 << 10);
/// `SO_ZEROCOPY` is set, as far as is known.
pub const ZEROCOPY: Flags = Flags(1 << 12);
/// The agent was asked for the other end: the connection was offered, or claimed.
pub const ASKED: Flags = Flags(1 << 13);
/// It was accepted, its other end was offered, and the agent is to be asked for it.
pub const TO_BE_CLAIMED: Flags = Flags(1 << 15);
/// The peer may be in another network namespace, where the kernel says nothing of its socket.
pub const ELSEWHERE: Flags = Flags(1 << 14);
/// What was granted was not read in time: the next send asks the kernel whether the peer is there.
pub const UNREAD: Flags = Flags(1 << 16);
/// The kernel is to send RST if the program is killed: the connection's end would be silent otherwise.
pub const LOUD: Flags = Flags(1 << 17);
/// The kernel's error queue may have something of its own to say.
pub const TELLS_ERRORS: Flags = Flags(1 << 18);
/// An IPv6 socket, whatever its addresses: noted with the first call that is [`NUMBERED`].
pub const IS_V6: Flags = Flags(1 << 19);
/// The peer was killed while bytes of ours lay unread in its ring, which TCP would have answered with RST.
pub const CUT_OFF: Flags = Flags(1 << 20);
/// A call has failed with that.
pub const RESET_TOLD: Flags = Flags(1 << 21);
/// The kernel has told a reset to a call that had moved bytes, and returned these: the next call fails with it.
pub const RESET_DUE: Flags = Flags(1 << 26);
/// `O_APPEND` is set on the open file description, with which sendfile(2) and splice(2) have
/// nothing to do.
pub const APPENDS: Flags = Flags(1 << 25);
/// The connection was promoted at least once.
pub const WAS_SHUNTED: Flags = Flags(1 << 5);
/// There are bytes, and fewer than `SO_RCVLOWAT` says, of more of which nobody would tell.
pub const SHORT: Flags = Flags(1 << 22);
/// `TCP_INQ` is set.
pub const INQ: Flags = Flags(1 << 23);
/// Whether it is set is known.
pub const INQ_KNOWN: Flags = Flags(1 << 24);
/// What a program before exec has left unread is not passed yet: the preloaded library's business.
pub const LEFTOVER: Flags = Flags(1 << 28);

const ALL: [Flags; 29] = [
    NONBLOCK,
    SHUT_WR,
    SHUT_RD,
    KERNEL_HINT,
    WANT_TCP,
    FROZEN,
    SIZED,
    HAD_ROOM,
    FILLS_KERNEL,
    RESET_AWAITED,
    ORPHANED,
    ZEROCOPY,
    ASKED,
    TO_BE_CLAIMED,
    ELSEWHERE,
    UNREAD,
    LOUD,
    TELLS_ERRORS,
    IS_V6,
    CUT_OFF,
    RESET_TOLD,
    RESET_DUE,
    APPENDS,
    WAS_SHUNTED,
    SHORT,
    INQ,
    INQ_KNOWN,
    LEFTOVER,
    NUMBERED,
];

const _: () = {
    let (mut seen, mut at) = (0, 0);
    while at < ALL.len() {
        assert!(seen & ALL[at].0 == 0, "two flags have one bit");
        seen |= ALL[at].0;
        at += 1;
    }
};
