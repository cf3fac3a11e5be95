//! How many bytes may lie unread between a write and a read, when the program has set the size of a
//! buffer.
//!
//! Over kernel TCP the sender's `SO_SNDBUF` and the receiver's `SO_RCVBUF` limit it together. The kernel
//! doubles what a program asks for, as room for its own bookkeeping, and reports the double
//! (`sock_setsockopt` in `net/core/sock.c`, socket(7)); so half of what it reports is for bytes, which is
//! also what `tcp_adv_win_scale` says of the receiver's. It holds neither to the byte.

/// The smallest share of a side: half of the kernel's smallest receive buffer (`SOCK_MIN_RCVBUF`).
const LEAST: u32 = 1152;

/// The share of a receiver that has not said its own: half of the kernel's initial receive buffer
/// (`tcp_rmem`).
const USUAL: u32 = 64 * 1024;

/// Bytes of payload in a buffer whose size the kernel reports as `reported`; never 0.
#[must_use]
pub const fn share(reported: u32) -> u32 {
    let half = reported / 2;
    if half < LEAST { LEAST } else { half }
}

/// Most bytes that may lie unread; `None`: as many as the ring has room for.
///
/// `sending`: the sender's share, 0 when its program has not set it. Then the kernel's own choice is a
/// matter of megabytes, whatever the receiver's is. `receiving`: what the receiver says of its share, 0
/// when it has said nothing; it can say what it likes.
#[must_use]
#[inline]
pub const fn unread(sending: u32, receiving: u32) -> Option<u64> {
    if sending == 0 {
        return None;
    }
    let receiving = if receiving == 0 { USUAL } else { receiving };
    Some(share_at_least(sending) + share_at_least(receiving))
}

/// Of so many unread bytes, those that would still be in the sender's buffer; the shares as for [`unread`]. Where nobody
/// has set any, the receiver's buffer takes them all.
#[must_use]
pub const fn not_arrived(unread: u64, (sending, receiving): (u32, u32)) -> u64 {
    match (sending, receiving) {
        (0, 0) => 0,
        (_, 0) => unread.saturating_sub(USUAL as u64),
        (_, receiving) => unread.saturating_sub(share_at_least(receiving)),
    }
}

/// The part of its memory that a program's rings may take, one after the other opened: the sum of 1 to n connections'
/// equal shares is this times (1 + ln n), less than a half for a thousand of them.
const RINGS: u64 = 16;

/// The shortest ring.
const SHORTEST: usize = 4096;

/// Most bytes of each ring of a process that may have `memory` bytes and has so many connections: a power of two.
///
/// What a ring has touched stays with it, so each gets a share of what is there for all of them. Kernel TCP takes
/// memory away from its buffers when a control group is full; here nobody can.
#[must_use]
pub fn ring(memory: u64, connections: u32) -> usize {
    let share = memory / RINGS / u64::from(connections.max(1));
    let share = usize::try_from(share).unwrap_or(usize::MAX).max(SHORTEST);
    1 << share.ilog2()
}

const fn share_at_least(share: u32) -> u64 {
    (if share < LEAST { LEAST } else { share }) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_receivers_buffer_holds_has_arrived() {
        assert_eq!(not_arrived(500_000, (0, 0)), 0);
        assert_eq!(not_arrived(5000, (0, 4096)), 904);
        assert_eq!(not_arrived(4000, (8192, 4096)), 0);
        assert_eq!(not_arrived(70_000, (8192, 0)), 70_000 - u64::from(USUAL));
        assert_eq!(not_arrived(2000, (1, 1)), 2000 - u64::from(LEAST));
    }

    #[test]
    fn half_of_what_the_kernel_reports_is_payload() {
        assert_eq!(share(8192), 4096);
        // SOCK_MIN_SNDBUF and SOCK_MIN_RCVBUF of a 64-bit kernel.
        assert_eq!((share(4608), share(2304)), (2304, 1152));
        assert_eq!((share(0), share(u32::MAX)), (1152, u32::MAX / 2));
    }

    #[test]
    fn rings_share_the_memory_that_there_is() {
        assert_eq!(ring(u64::MAX, 1), 1 << 59);
        assert_eq!((ring(512 << 20, 64), ring(512 << 20, 65)), (512 << 10, 256 << 10));
        assert_eq!((ring(0, 0), ring(24 << 20, 600), ring(24 << 20, u32::MAX)), (4096, 4096, 4096));
        let all: usize = (1..=1000).map(|n| ring(256 << 20, n).min(512 << 10)).sum();
        assert!(all < 128 << 20, "{all}");
    }

    #[test]
    fn both_sides_have_their_share_once_the_sender_has_set_its_own() {
        assert_eq!(unread(4096, 4096), Some(8192));
        assert_eq!(unread(4096, 0), Some(4096 + 65536));
        assert_eq!(unread(0, 0), None);
        assert_eq!(unread(0, 4096), None);
    }

    #[test]
    fn whatever_a_peer_says_some_bytes_may_go() {
        for said in [1, 2, u32::MAX - 1, u32::MAX] {
            assert!(unread(1, said).is_some_and(|n| n >= 2 * u64::from(LEAST)));
        }
        assert_eq!(unread(u32::MAX, u32::MAX), Some(2 * u64::from(u32::MAX)));
    }
}
