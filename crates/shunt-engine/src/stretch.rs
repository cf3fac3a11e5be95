//! Stretches: each direction of a connection is a sequence of kernel TCP and ring, and both sides
//! know at which byte one ends and the next begins.
//!
//! Marks are counted from 1. After an odd number of marks the bytes go through the ring, after an
//! even number (0 included) over TCP. A sender sets an odd mark only when the receiver has passed all
//! earlier ones, so two marks at most are open, and everything that the kernel socket holds in front of
//! an open odd mark belongs to the stretch before it.
//!
//! It waits with an even mark, too, where it can: but not when it has to leave a ring in which the
//! receiver was not seen yet (it is full, another program gets the descriptor, or a signal handler sends on top of
//! a call that is putting bytes in). So a receiver reads from the kernel socket only what was there before it
//! looked for a mark and found none: the rest may be of the stretch behind the ring.

/// Where the bytes of a direction go at present.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Path {
    /// Kernel TCP.
    Tcp,
    /// The ring.
    Ring,
}

/// The path after so many marks.
#[inline]
#[must_use]
pub const fn path(marks: u32) -> Path {
    if marks & 1 == 1 { Path::Ring } else { Path::Tcp }
}

/// What a sender does before it sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Send {
    /// Send over the kernel socket.
    Tcp,
    /// Put it into the ring.
    Ring,
    /// Set the next mark (at the number of bytes sent over TCP), then put it into the ring.
    Promote,
    /// Set the next mark (at the ring position), then send over the kernel socket.
    Demote,
}

/// What the sender knows.
#[derive(Clone, Copy, Debug)]
pub struct Sender {
    /// Marks it has set.
    pub marks: u32,
    /// The receiver has passed them all.
    pub settled: bool,
    /// The handshake is done and the peer's doorbells are at hand.
    pub active: bool,
    /// One of the two sides wants this direction on TCP.
    pub want_tcp: bool,
}

impl Sender {
    /// Decides.
    #[inline]
    #[must_use]
    pub const fn decide(self) -> Send {
        match (path(self.marks), self.want_tcp) {
            (Path::Ring, false) => Send::Ring,
            (Path::Ring, true) if self.settled => Send::Demote,
            // The receiver has not reached the ring yet: it must be let in before it can leave.
            (Path::Ring, true) => Send::Ring,
            (Path::Tcp, false) if self.active && self.settled => Send::Promote,
            (Path::Tcp, _) => Send::Tcp,
        }
    }
}

/// What a receiver in a TCP stretch does about the open mark.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BeforeMark {
    /// Read up to so many bytes from the kernel socket.
    Read(u64),
    /// All bytes of the stretch are read: pass the mark.
    Pass,
    /// The kernel socket has ended, and bytes of the stretch were lost with it (a killed sender's that
    /// had not gone out yet): the stream ends here. What is behind the mark is not to be read.
    Lost,
}

/// Decides by the kernel's counts: bytes `read` so far, sequence numbers `arrived`, of which a FIN takes
/// one, but only behind all bytes. `is_over`: nothing waits in the kernel socket and nothing will come.
/// After a RST `read` may leave out a byte, as if a FIN had come.
#[must_use]
pub const fn before_mark(at: u64, read: u64, arrived: u64, is_over: bool) -> BeforeMark {
    if read >= at || (is_over && arrived >= at) {
        BeforeMark::Pass
    } else if is_over {
        BeforeMark::Lost
    } else {
        BeforeMark::Read(at - read)
    }
}

/// Whether a receiver in a TCP stretch has reached the open mark, when the kernel socket is empty.
/// `received` is the kernel's count of bytes that came in and were all read.
#[must_use]
pub const fn reached_tcp_end(received: u64, at: u64) -> bool {
    received >= at
}

/// How many of the bytes that come first over TCP a receiver has had, which has taken `pos` bytes from the ring
/// and passes an even mark: from the mark on, the sender repeats what it had put into the ring.
///
/// `None` when the mark lies further on than the receiver has read, or further back than a ring of
/// `len` bytes reaches: this it cannot pass.
#[inline]
#[must_use]
pub const fn had(at: u64, pos: u64, len: u64) -> Option<u64> {
    match pos.checked_sub(at) {
        Some(had) if had <= len => Some(had),
        _ => None,
    }
}

/// The number of bytes that a socket has sent, of `TCP_INFO`'s fields: what was put on the wire for
/// the first time, and what waits.
#[must_use]
pub const fn bytes_written(bytes_sent: u64, bytes_retrans: u64, notsent: u32) -> u64 {
    bytes_sent.saturating_sub(bytes_retrans).saturating_add(notsent as u64)
}

/// The number of bytes that a program has read from a socket: what came in, less the FIN (which the
/// kernel counts), less what waits to be read.
#[must_use]
pub const fn bytes_read(bytes_received: u64, fin_received: bool, waiting: u32) -> u64 {
    bytes_received.saturating_sub(fin_received as u64).saturating_sub(waiting as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sender(marks: u32, settled: bool, active: bool, want_tcp: bool) -> Send {
        Sender { marks, settled, active, want_tcp }.decide()
    }

    #[test]
    fn a_connection_starts_on_tcp_and_is_promoted_once_active() {
        assert_eq!(sender(0, true, false, false), Send::Tcp);
        assert_eq!(sender(0, true, true, false), Send::Promote);
        assert_eq!(sender(1, false, true, false), Send::Ring);
        assert_eq!(sender(1, true, true, false), Send::Ring);
    }

    #[test]
    fn demotion_waits_until_the_receiver_is_in_the_ring() {
        assert_eq!(sender(1, false, true, true), Send::Ring);
        assert_eq!(sender(1, true, true, true), Send::Demote);
        assert_eq!(sender(2, false, true, true), Send::Tcp);
        // Wanted back: not before the receiver has left the ring.
        assert_eq!(sender(2, false, true, false), Send::Tcp);
        assert_eq!(sender(2, true, true, false), Send::Promote);
    }

    #[test]
    fn a_mark_is_passed_only_when_all_bytes_in_front_of_it_were_read() {
        assert_eq!(before_mark(100, 60, 60, false), BeforeMark::Read(40));
        assert_eq!(before_mark(100, 100, 100, false), BeforeMark::Pass);
        // Orderly end: the FIN came last.
        assert_eq!(before_mark(100, 60, 101, false), BeforeMark::Read(40));
        assert_eq!(before_mark(100, 100, 101, true), BeforeMark::Pass);
        // RST without FIN: the count of what was read is one short.
        assert_eq!(before_mark(100, 99, 100, true), BeforeMark::Pass);
        // The sender's kernel threw the rest away.
        assert_eq!(before_mark(100, 59, 60, true), BeforeMark::Lost);
        assert_eq!(before_mark(100, 0, 0, true), BeforeMark::Lost);
    }

    #[test]
    fn a_mark_in_front_of_what_was_read_has_it_come_again() {
        assert_eq!(had(10, 10, 4), Some(0));
        assert_eq!(had(6, 10, 4), Some(4));
        assert_eq!(had(5, 10, 4), None);
        assert_eq!(had(11, 10, 4), None);
    }

    #[test]
    fn counts_leave_out_retransmissions_and_fin() {
        assert_eq!(bytes_written(1500, 500, 24), 1024);
        assert_eq!(bytes_read(101, true, 30), 70);
        assert_eq!(bytes_read(0, false, 0), 0);
    }
}
