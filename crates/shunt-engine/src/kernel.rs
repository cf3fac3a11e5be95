//! The kernel socket of a connection: a port, and what follows from its answers.
//!
//! The socket is the truth about end, reset and the bytes of a TCP stretch. Its answers are of the past as soon as they are
//! given: bytes and a FIN may come between any two of them. What stands here is right whenever they come.

use core::sync::atomic::Ordering;

use shunt_shm::sync::AtomicU32;

use crate::events;
use crate::stretch::{bytes_read, bytes_written};

/// A connected TCP socket of the kernel. The questions take neither bytes nor a pending error out of it.
pub trait KernelSocket {
    /// Bytes that wait to be read (`FIONREAD`). Those behind urgent data do not count.
    fn waiting(&self) -> u64;

    /// `TCP_INFO`; `None`: the kernel does not say all of it.
    fn info(&self) -> Option<TcpInfo>;

    /// poll(2)'s answer, at once.
    fn readiness(&self, events: u32) -> u32;

    /// Of a closed socket in which so many bytes wait: whether a FIN has come behind them, which `FIONREAD` does not count.
    fn has_fin_behind(&self, waiting: u64) -> bool;

    /// Throws up to so many bytes away that wait there, and has `note` told how many. No handler of a signal runs on this
    /// thread between the two. False when the kernel gives none.
    fn discard(&self, most: u64, note: &mut dyn FnMut(u64)) -> bool;

    /// Urgent data is what is next there (`SIOCATMARK`): `FIONREAD` does not count what is behind it.
    fn is_at_urgent_mark(&self) -> bool;

    /// Ends both directions (`SHUT_RDWR`).
    fn shut(&self);
}

impl<S: KernelSocket> KernelSocket for &S {
    fn waiting(&self) -> u64 {
        (**self).waiting()
    }

    fn info(&self) -> Option<TcpInfo> {
        (**self).info()
    }

    fn readiness(&self, events: u32) -> u32 {
        (**self).readiness(events)
    }

    fn has_fin_behind(&self, waiting: u64) -> bool {
        (**self).has_fin_behind(waiting)
    }

    fn discard(&self, most: u64, note: &mut dyn FnMut(u64)) -> bool {
        (**self).discard(most, note)
    }

    fn is_at_urgent_mark(&self) -> bool {
        (**self).is_at_urgent_mark()
    }

    fn shut(&self) {
        (**self).shut();
    }
}

/// Fields of `struct tcp_info` (`include/uapi/linux/tcp.h`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TcpInfo {
    /// `tcpi_state`.
    pub state: u8,
    /// `tcpi_bytes_received`: sequence numbers that came in order, of which a FIN takes one.
    pub bytes_received: u64,
    /// `tcpi_bytes_sent`, with what was sent again.
    pub bytes_sent: u64,
    /// `tcpi_bytes_retrans`.
    pub bytes_retrans: u64,
    /// `tcpi_notsent_bytes`.
    pub notsent: u32,
}

/// States of a socket (`include/net/tcp_states.h`).
pub mod state {
    /// Neither end has closed a direction.
    pub const ESTABLISHED: u8 = 1;
    /// Both have, and this end has waited long enough.
    pub const TIME_WAIT: u8 = 6;
    /// The connection is over.
    pub const CLOSE: u8 = 7;
    /// The peer has closed its direction.
    pub const CLOSE_WAIT: u8 = 8;
    /// Both have, the peer first.
    pub const LAST_ACK: u8 = 9;
    /// Both have, at once.
    pub const CLOSING: u8 = 11;

    /// True in the states that come after the peer's FIN, and after RST.
    #[must_use]
    pub const fn is_after_fin(state: u8) -> bool {
        matches!(state, TIME_WAIT | CLOSE | CLOSE_WAIT | LAST_ACK | CLOSING)
    }
}

impl TcpInfo {
    /// Bytes that the program has written, on the wire or waiting.
    #[must_use]
    pub const fn written(&self) -> u64 {
        bytes_written(self.bytes_sent, self.bytes_retrans, self.notsent)
    }

    /// Bytes that came in, without the FIN; with it if it came just now.
    #[must_use]
    pub const fn received(&self) -> u64 {
        bytes_read(self.bytes_received, state::is_after_fin(self.state), 0)
    }

    /// Neither end has closed a direction, or reset the connection.
    #[must_use]
    pub const fn is_established(&self) -> bool {
        self.state == state::ESTABLISHED
    }

    /// The connection is over: by a FIN, or by RST alone.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.state == state::CLOSE
    }
}

/// How far the program has read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Bytes that were read; maybe less, if that is more than the program is to stop at.
    pub read: u64,
    /// Sequence numbers that came in order, of which a FIN takes one.
    pub arrived: u64,
}

/// What a look at a kernel socket that should be silent found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Look {
    /// Nothing.
    Silent,
    /// So many bytes, at least.
    Bytes(u64),
    /// End of file.
    Eof,
    /// The program has ended its own reading: a read finds an end here, and what the peer sends later is read all the same.
    OwnEnd,
    /// An error, which stays in the socket.
    Error,
}

/// Looks, and leaves everything as it is: also a pending error, which a peek would take out. Not by
/// poll(2) alone, which says nothing of fewer bytes than `SO_RCVLOWAT`.
pub fn look(socket: &impl KernelSocket) -> Look {
    let there = socket.waiting();
    if there > 0 {
        return Look::Bytes(there);
    }
    let found = socket.readiness(events::IN | events::RDHUP);
    if found == 0 {
        return Look::Silent;
    }
    // Before the last look for bytes: what comes in front of a FIN is there then.
    let is_own = found & events::END == events::RDHUP && !is_after_fin(socket);
    let there = socket.waiting();
    if there > 0 {
        // They came in between, maybe with the end right behind them.
        Look::Bytes(there)
    } else if is_failure(found) {
        Look::Error
    } else if is_own {
        Look::OwnEnd
    } else if found & events::END != 0 {
        Look::Eof
    } else {
        Look::Silent
    }
}

/// [`look`] for one who has been told of an end, and for whom all ends are the same: it is asked for first, and whose it is not at
/// all. Never [`Look::OwnEnd`].
pub fn look_for_end(socket: &impl KernelSocket) -> Look {
    let found = socket.readiness(events::IN | events::RDHUP);
    // What came in front of the end is there by now.
    let there = socket.waiting();
    if there > 0 {
        Look::Bytes(there)
    } else if is_failure(found) {
        Look::Error
    } else if found & events::END != 0 {
        Look::Eof
    } else {
        Look::Silent
    }
}

/// True when poll(2) says that the kernel has ended the connection with an error that no call was told of yet. `POLLERR` alone
/// is an error queue that is not empty (completions, timestamps): what ends a connection in error ends both of its directions,
/// too (`tcp_done`, `tcp_poll`).
#[must_use]
pub const fn is_failure(found: u32) -> bool {
    const FAILURE: u32 = events::ERR | events::HUP;
    found & FAILURE == FAILURE
}

/// How far a program has read that is to stop at byte `at`. For the one who alone may read.
pub fn progress(socket: &impl KernelSocket, at: u64) -> Option<Progress> {
    let mut info = socket.info()?;
    loop {
        // The count before the look at what waits: the other way round, bytes that come in between would
        // be passed over.
        let waiting = socket.waiting();
        let read = info.received().saturating_sub(waiting);
        let before = info;
        if waiting > 0 && read <= at {
            // Bytes that came in between, maybe of a later stretch, wait without having been counted: then
            // more is taken for unread than is. And the kernel looks at the state before it counts
            // (`tcp_get_info`): a FIN that came between the two was taken for a byte. Either changes the count.
            info = socket.info()?;
        }
        if info.received() == before.received() {
            // Of a later stretch, too, there may be bytes: then one must not be taken for one of this.
            let is_short =
                info.is_over() && waiting > 0 && read < at && !socket.has_fin_behind(waiting);
            let arrived = before.bytes_received;
            // No FIN was counted. Not `read + 1`: where nothing was read yet that is a byte too many.
            let read = if is_short { arrived.saturating_sub(waiting) } else { read };
            return Some(Progress { read, arrived });
        }
    }
}

/// True when the peer's direction has ended, as far as the kernel says. Of a program that has ended its own reading poll(2) says
/// the same, which the state of the connection tells apart.
fn is_after_fin(socket: &impl KernelSocket) -> bool {
    socket.info().is_none_or(|info| state::is_after_fin(info.state))
}

/// True when the peer's direction has ended, in whatever way, as far as the kernel has heard.
pub fn has_ended(socket: &impl KernelSocket) -> bool {
    match socket.readiness(events::RDHUP) & events::END {
        0 => false,
        events::RDHUP => is_after_fin(socket),
        _ => true,
    }
}

/// True when the peer's process has ended without a word. `fin`: where it announces the end of its
/// direction, before the FIN that then is no news; so it is looked at after the kernel.
pub fn peer_is_gone(socket: &impl KernelSocket, fin: &AtomicU32) -> bool {
    match socket.readiness(events::RDHUP) & events::END {
        0 => false,
        events::RDHUP => is_after_fin(socket) && fin.load(Ordering::Acquire) == 0,
        _ => true,
    }
}

/// The same of a peer whose kernel has ended the connection in good order, without RST.
pub fn has_ended_unannounced(socket: &impl KernelSocket, fin: &AtomicU32) -> bool {
    let end = socket.readiness(events::RDHUP) & events::END;
    end == events::RDHUP && fin.load(Ordering::Acquire) == 0
}

/// True when the kernel has ended the connection with an error that no call was told of yet, and leaves it there.
pub fn has_failed(socket: &impl KernelSocket) -> bool {
    is_failure(socket.readiness(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Arrival, Socket};

    /// Eight bytes have come, and seven were read.
    fn socket_with_an_unread_byte() -> Socket {
        let socket = Socket::default();
        socket.arrive(Arrival::Bytes(8));
        socket.read(7);
        socket
    }

    /// All moments at which something can come: before the first question, before the second…
    fn at_each_moment(arrivals: &[Arrival], check: impl Fn(&Socket)) {
        for first in 0..12 {
            for gap in 0..6 {
                let socket = socket_with_an_unread_byte();
                for (n, arrival) in arrivals.iter().enumerate() {
                    socket.arrive_at(first + n * gap, *arrival);
                }
                check(&socket);
            }
        }
    }

    #[test]
    fn a_fin_is_never_taken_for_a_byte() {
        at_each_moment(&[Arrival::Fin], |socket| {
            assert_eq!(progress(socket, 8).unwrap().read, 7);
            socket.settle();
            assert_eq!(progress(socket, 8).unwrap(), Progress { read: 7, arrived: 9 });
        });
    }

    #[test]
    fn bytes_that_come_meanwhile_do_not_make_more_unread() {
        use Arrival::Bytes;
        at_each_moment(&[Bytes(1), Bytes(5), Bytes(1), Bytes(9)], |socket| {
            assert_eq!(progress(socket, 8).unwrap().read, 7);
        });
    }

    #[test]
    fn a_reset_is_never_taken_for_a_fin() {
        for with_fin in [false, true] {
            let both = [Arrival::Fin, Arrival::Reset];
            at_each_moment(&both[usize::from(!with_fin)..], |socket| {
                assert_eq!(progress(socket, 8).unwrap().read, 7, "{with_fin}");
                socket.settle();
                assert_eq!(progress(socket, 8).unwrap().read, 7, "{with_fin}");
            });
        }
    }

    #[test]
    fn a_reset_before_anything_was_read_leaves_all_of_it_unread() {
        for bytes in 1..4 {
            let socket = Socket::default();
            socket.arrive(Arrival::Bytes(bytes));
            socket.arrive(Arrival::Reset);
            assert_eq!(progress(&socket, bytes), Some(Progress { read: 0, arrived: bytes }));
        }
    }

    #[test]
    fn a_look_finds_bytes_before_the_end() {
        let socket = socket_with_an_unread_byte();
        socket.arrive(Arrival::Fin);
        assert_eq!(look(&socket), Look::Bytes(1));
        socket.read(1);
        assert_eq!(look(&socket), Look::Eof);
        socket.arrive(Arrival::Reset);
        assert_eq!(look(&socket), Look::Error);
        assert_eq!(look(&Socket::default()), Look::Silent);
    }

    #[test]
    fn a_look_for_an_end_takes_two_questions_and_finds_bytes_before_it() {
        let socket = socket_with_an_unread_byte();
        assert_eq!(look_for_end(&socket), Look::Bytes(1));
        socket.read(1);
        assert_eq!(look_for_end(&socket), Look::Silent);
        socket.end_reading();
        let asked = socket.asked();
        assert_eq!(look_for_end(&socket), Look::Eof, "whosever it is");
        assert_eq!(socket.asked() - asked, 2);
        socket.arrive(Arrival::Reset);
        assert_eq!(look_for_end(&socket), Look::Error);
        at_each_moment(&[Arrival::Bytes(1), Arrival::Fin], |socket| {
            socket.read(1);
            let found = look_for_end(socket);
            socket.settle();
            assert!(
                found != Look::Eof || socket.waiting() == 0,
                "bytes in front of the end come first"
            );
        });
    }

    #[test]
    fn an_end_that_was_announced_is_no_death() {
        let (said, unsaid) = (AtomicU32::new(1), AtomicU32::new(0));
        for has_completions in [false, true] {
            let socket = Socket::default();
            if has_completions {
                socket.queue_error();
            }
            assert_eq!(look(&socket), Look::Silent, "{has_completions}");
            assert!(!peer_is_gone(&socket, &unsaid) && !has_ended_unannounced(&socket, &unsaid));
            assert!(!has_ended(&socket));
            socket.arrive(Arrival::Fin);
            assert_eq!(look(&socket), Look::Eof, "{has_completions}");
            assert!(peer_is_gone(&socket, &unsaid) && !peer_is_gone(&socket, &said));
            assert!(has_ended_unannounced(&socket, &unsaid));
            assert!(!has_ended_unannounced(&socket, &said));
            assert!(has_ended(&socket) && !has_failed(&socket), "completions are no failure");
            socket.arrive(Arrival::Reset);
            assert_eq!(look(&socket), Look::Error, "{has_completions}");
            assert!(peer_is_gone(&socket, &said) && !has_ended_unannounced(&socket, &unsaid));
            assert!(has_failed(&socket));
        }
    }

    #[test]
    fn an_end_of_the_programs_own_reading_is_no_death_and_hides_none() {
        let (said, unsaid) = (AtomicU32::new(1), AtomicU32::new(0));
        let socket = Socket::default();
        socket.end_reading();
        assert_eq!(look(&socket), Look::OwnEnd);
        assert!(!peer_is_gone(&socket, &unsaid) && !has_ended(&socket));
        socket.arrive(Arrival::Fin);
        assert_eq!(look(&socket), Look::Eof);
        assert!(has_ended(&socket));
        assert!(peer_is_gone(&socket, &unsaid) && !peer_is_gone(&socket, &said));
        socket.arrive(Arrival::Reset);
        assert!(peer_is_gone(&socket, &unsaid) && peer_is_gone(&socket, &said));
        at_each_moment(&[Arrival::Fin], |socket| {
            socket.end_reading();
            assert!(!peer_is_gone(socket, &said), "it was announced before it came");
        });
        at_each_moment(&[Arrival::Bytes(1), Arrival::Fin], |socket| {
            socket.end_reading();
            socket.read(1);
            let is_end = look(socket) == Look::Eof;
            socket.settle();
            assert!(!is_end || socket.waiting() == 0, "bytes in front of the end come first");
        });
    }
}
