//! The end of a direction (shutdown(2)) and of the connection (close(2)), as the peer hears of it in shared memory.
//!
//! The kernel's FIN or RST is the truth. What stands here is announced before it, so that an end which comes unannounced is
//! that of a process which was killed; and it says what the kernel cannot know: that bytes in the ring were thrown away.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use shunt_shm::arena::Record;
use shunt_shm::handover;
use shunt_shm::region::{CLOSED, DEAF, RESET, Side};
use shunt_shm::sync::store_load_fence;
use shunt_wire::clc::Answer;

use crate::conn::flags::{FROZEN, Flags, HOSTED, KERNEL_HINT, SHUT_RD, SHUT_WR};
use crate::conn::{End, put};
use crate::kernel::{KernelSocket, has_ended_unannounced};

/// What shutdown(2) ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shut {
    /// The direction in which the program sends.
    Sending,
    /// The other one.
    Receiving,
    /// Both.
    Both,
}

impl Shut {
    /// The program sends nothing more.
    #[must_use]
    pub const fn ends_sending(self) -> bool {
        matches!(self, Self::Sending | Self::Both)
    }

    /// It reads nothing more, but what comes all the same.
    #[must_use]
    pub const fn ends_receiving(self) -> bool {
        matches!(self, Self::Receiving | Self::Both)
    }

    fn flags(self) -> Flags {
        match self {
            Self::Sending => SHUT_WR,
            Self::Receiving => SHUT_RD,
            Self::Both => SHUT_WR | SHUT_RD,
        }
    }
}

/// Ends directions. `kernel` does so in the kernel, and returns whether it has; `end`: what the connection has of shared memory.
/// With the lock of the sending direction held.
///
/// Both are noted before, and taken back where the kernel refuses. The peer would take an end that comes unannounced for that of a
/// process that died. So would a call of this program, in another thread or in a handler of a signal, that finds in the kernel
/// socket the end of its own reading.
pub fn shut<'e>(
    record: &Record,
    what: Shut,
    end: impl Fn() -> Option<End<'e>>,
    kernel: impl FnOnce() -> bool,
) -> bool {
    let flags = what.flags().bits();
    let before = record.id.flags.fetch_or(flags, Relaxed);
    if what.ends_sending() {
        // The flag before the look: promotion does it in the other order.
        store_load_fence();
        if let Some(end) = end() {
            end.announce_end();
        }
    }
    let is_shut = kernel();
    if !is_shut {
        let new = flags & !before;
        record.id.flags.fetch_and(!new, Relaxed);
        if new & SHUT_WR.bits() != 0
            && let Some(end) = end()
        {
            end.take_end_back();
        }
    } else if what.ends_receiving() {
        put(record, KERNEL_HINT, true);
    }
    is_shut
}

/// The kernel socket of an end that is about to be closed.
pub trait Closing: KernelSocket {
    /// True when the program wants the close to send RST (`SO_LINGER` of no time).
    fn is_to_reset(&self) -> bool;

    /// Makes the close that follows send RST instead of FIN.
    fn reset_on_close(&self);
}

/// Who is to be told of a close, beside those whom the kernel tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tell {
    /// All who wait: the kernel has told the end before; or some may wait for buffers alone, to whom it tells no FIN.
    All,
    /// Who waits for room: after a half-close the end is no news to a reader, as it is none in the kernel.
    Sender,
    /// Those on futexes.
    OnFutexes,
}

impl End<'_> {
    /// True when this side's end has gone to another program, too, as far as is known.
    #[must_use]
    pub fn is_handed_over(&self) -> bool {
        self.has(FROZEN) || handover::stays(&self.mine.ctl.handed_over)
    }

    /// The program is about to look for the last time whether the peer has left, before it ends its direction. Where the peer is on another
    /// host, and the link to it has failed, one of both sees the other: this side follows, or its agent waits for the end.
    pub fn begins_to_end(&self) {
        if self.has(HOSTED) {
            self.mine.prod.ending.store(1, Release);
            // SYNC POINT ending: the agent's is in `handover::has_left_for_good`.
            store_load_fence();
        }
    }

    /// The program is about to shut its direction.
    pub fn announce_end(&self) {
        self.mine.prod.fin.store(1, Release);
    }

    /// Says what the program has shut: that its direction ends; and if both do, that the kernel answers more bytes with RST. Another
    /// thread or program may have said more meanwhile: that it is reset.
    pub fn announce_shut(&self) {
        if self.has(SHUT_WR) {
            self.announce_end();
            if self.has(SHUT_RD) {
                let _ = self.mine.ctl.closed.compare_exchange(0, DEAF, Release, Relaxed);
            }
        }
    }

    /// The kernel has refused to end the direction.
    pub fn take_end_back(&self) {
        self.mine.prod.fin.store(0, Release);
        self.mine.prod.ending.store(0, Release);
    }

    /// Resets the connection, of which bytes are in doubt at this end. `abort` has the kernel send RST. It comes first: a program
    /// that is killed before it has announced no end, for which the peer would take the kernel's FIN.
    pub fn reset(&self, abort: impl FnOnce()) {
        abort();
        self.announce_end();
        self.mine.ctl.closed.store(RESET, Release);
    }

    /// True when a close would throw bytes away that nobody has read, what TCP answers with RST. With the receiving direction's lock
    /// held, but for those who do not come out of a call.
    pub fn leaves_unread(&self) -> bool {
        // Another program may have the connection, to which the peer sends all that was not read here.
        !self.is_handed_over()
            && self.record.rx.cursor.refresh(&self.theirs.prod, self.ring).is_ok_and(|n| n > 0)
    }

    /// Closes: says how, and who is to be told. `socket`: where a descriptor of it is left. With the locks of both directions
    /// held, but for those who do not come out of a call.
    pub fn close(&self, socket: Option<&impl Closing>) -> Tell {
        let is_handed_over = self.is_handed_over();
        let is_unread = self.leaves_unread();
        if let Some(socket) = socket.filter(|_| is_unread) {
            socket.reset_on_close();
        }
        let was_announced = self.mine.prod.fin.swap(1, Relaxed) != 0;
        // After a panic it was reset before.
        if !is_handed_over && self.mine.ctl.closed.load(Relaxed) != RESET {
            let resets = is_unread || socket.is_some_and(Closing::is_to_reset);
            self.mine.ctl.closed.store(if resets { RESET } else { CLOSED }, Release);
        }
        // SYNC POINT word-arm: the end before the look at what is granted. Whoever waits for its buffers grants first, and looks for the end then.
        store_load_fence();
        match socket {
            None => Tell::All,
            Some(_) if self.has_grants() => Tell::All,
            Some(_) if was_announced && !is_unread => Tell::Sender,
            Some(_) => Tell::OnFutexes,
        }
    }

    /// This side is done with the slot: no thread of its own is in a call any more. Where the peer was killed nobody is left
    /// there who could say so.
    pub fn is_done(&self, socket: Option<&impl KernelSocket>) {
        if socket.is_some_and(|socket| self.was_killed(socket)) {
            self.theirs.setup.done.store(1, Release);
        }
        self.mine.setup.done.store(1, Release);
    }

    /// True when every process at the acceptor's end was killed. A peer that lives and whose connection was
    /// reset by somebody else (a firewall, `ss -K`) still uses the slot, which must not be another
    /// connection's. Of a killed client the whole link group goes.
    fn was_killed(&self, socket: &impl KernelSocket) -> bool {
        let fin = &self.theirs.prod.fin;
        // An acceptor that has half-closed before it found the proposal says so when it answers.
        self.theirs.setup.state.load(Acquire) == Answer::Accepted as u32
            // After it the kernel reports an end of our own making.
            && !self.has(SHUT_RD)
            && self.theirs.ctl.handed_over.load(Relaxed) == 0
            // Most ends are announced: that spares the question to the kernel.
            && fin.load(Acquire) == 0
            && !self.is_behind()
            && self.side() == Side::Client
            // Nothing is known of the acceptor's process; but that its end came by FIN.
            && has_ended_unannounced(socket, fin)
    }
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use super::*;
    use crate::call::Step;
    use crate::conn::recv::receive;
    use crate::kernel::TcpInfo;
    use crate::model::{Arrival, Memory, Receives, Socket};

    #[derive(Debug, Default)]
    struct Closed {
        socket: Socket,
        is_to_reset: bool,
        resets: Cell<bool>,
    }

    impl KernelSocket for Closed {
        fn waiting(&self) -> u64 {
            self.socket.waiting()
        }

        fn info(&self) -> Option<TcpInfo> {
            self.socket.info()
        }

        fn readiness(&self, events: u32) -> u32 {
            self.socket.readiness(events)
        }

        fn has_fin_behind(&self, waiting: u64) -> bool {
            self.socket.has_fin_behind(waiting)
        }

        fn discard(&self, most: u64, note: &mut dyn FnMut(u64)) -> bool {
            self.socket.discard(most, note)
        }

        fn is_at_urgent_mark(&self) -> bool {
            self.socket.is_at_urgent_mark()
        }

        fn shut(&self) {
            self.socket.shut();
        }
    }

    impl Closing for Closed {
        fn is_to_reset(&self) -> bool {
            self.is_to_reset
        }

        fn reset_on_close(&self) {
            self.resets.set(true);
        }
    }

    fn in_the_ring(unread: u64) -> Memory {
        let memory = Memory::default();
        memory.enter_ring();
        memory.receive(unread);
        memory
    }

    fn said(memory: &Memory) -> (u32, u32) {
        let end = memory.end();
        (end.mine.prod.fin.load(Relaxed), end.mine.ctl.closed.load(Relaxed))
    }

    #[test]
    fn a_close_in_good_order_is_announced() {
        let (memory, socket) = (in_the_ring(0), Closed::default());
        assert_eq!(memory.end().close(Some(&socket)), Tell::OnFutexes);
        assert_eq!((said(&memory), socket.resets.get()), ((1, CLOSED), false));
    }

    #[test]
    fn all_are_told_of_a_close_that_meets_a_grant() {
        let (memory, socket) = (in_the_ring(0), Closed::default());
        memory.end().theirs.prod.grants.store(1, Relaxed);
        assert_eq!(memory.end().close(Some(&socket)), Tell::All);
        assert_eq!((said(&memory), socket.resets.get()), ((1, CLOSED), false));
    }

    #[test]
    fn bytes_that_nobody_read_make_it_a_reset() {
        let (memory, socket) = (in_the_ring(1), Closed::default());
        assert!(memory.end().leaves_unread() && !in_the_ring(0).end().leaves_unread());
        assert_eq!(memory.end().close(Some(&socket)), Tell::OnFutexes);
        assert_eq!((said(&memory), socket.resets.get()), ((1, RESET), true));
        // Also after a half-close, which is the news then.
        let (memory, socket) = (in_the_ring(1), Closed::default());
        memory.end().mine.prod.fin.store(1, Relaxed);
        assert_eq!(memory.end().close(Some(&socket)), Tell::OnFutexes);
        assert_eq!(said(&memory), (1, RESET));
    }

    #[test]
    fn so_does_a_program_that_wants_one() {
        let (memory, socket) = (in_the_ring(0), Closed { is_to_reset: true, ..Closed::default() });
        memory.end().close(Some(&socket));
        assert_eq!((said(&memory), socket.resets.get()), ((1, RESET), false), "it has said so");
    }

    #[test]
    fn a_reset_after_a_panic_is_the_kernels_first() {
        let memory = in_the_ring(1);
        memory.end().reset(|| assert_eq!(said(&memory), (0, 0), "killed here it is no end"));
        assert_eq!(said(&memory), (1, RESET));
        memory.take(1);
        memory.end().close(Some(&Closed::default()));
        assert_eq!(said(&memory), (1, RESET), "the close that follows changes nothing");
    }

    #[test]
    fn after_a_half_close_it_is_no_news_to_a_reader() {
        let (memory, socket) = (in_the_ring(0), Closed::default());
        memory.end().mine.prod.fin.store(1, Relaxed);
        assert_eq!(memory.end().close(Some(&socket)), Tell::Sender);
    }

    #[test]
    fn where_no_descriptor_is_left_all_are_told() {
        for unread in [0, 1] {
            let memory = in_the_ring(unread);
            assert_eq!(memory.end().close(None::<&Closed>), Tell::All);
        }
    }

    #[test]
    fn one_that_was_handed_over_says_nothing_for_the_other_program() {
        for stays in [false, true] {
            let (memory, socket) = (in_the_ring(1), Closed::default());
            let end = memory.end();
            end.freeze(crate::conn::leave::Below::Nothing, || ());
            assert!(!stays || end.stay());
            assert!(end.is_handed_over() && !end.leaves_unread());
            end.close(Some(&socket));
            assert_eq!((said(&memory), socket.resets.get()), ((1, 0), false), "{stays}");
        }
    }

    #[test]
    fn what_was_shut_is_announced_and_taken_back() {
        let memory = in_the_ring(0);
        let end = memory.end();
        end.put(SHUT_RD, true);
        end.announce_shut();
        assert_eq!(said(&memory), (0, 0), "the peer may send on");
        end.put(SHUT_WR, true);
        end.announce_shut();
        assert_eq!(said(&memory), (1, DEAF));
        end.reset(|| ());
        end.announce_shut();
        assert_eq!(said(&memory), (1, RESET), "that comes after it");
        end.take_end_back();
        assert_eq!(said(&memory).0, 0);
        end.announce_end();
        assert_eq!(said(&memory).0, 1);
        end.take_end_back();
        assert_eq!(said(&memory).0, 0);
    }

    #[test]
    fn an_end_of_the_programs_own_reading_is_no_reset_to_a_call_beside_it() {
        for what in [Shut::Receiving, Shut::Both] {
            let (memory, socket) = (in_the_ring(0), Socket::default());
            memory.send(1);
            let end = memory.end();
            end.put(KERNEL_HINT, true);
            let is_shut = shut(
                end.record,
                what,
                || Some(end),
                || {
                    socket.end_reading();
                    let mut call = Receives::new(&memory, &socket, 1);
                    let step = receive(end.record, Some(&end), &mut call, true);
                    assert_eq!((step, call.got), (Ok(Step::Done), 0), "{what:?}");
                    true
                },
            );
            assert!(is_shut && end.has(SHUT_RD) && end.has(KERNEL_HINT));
            assert_eq!(end.has(SHUT_WR), what == Shut::Both);
        }
    }

    #[test]
    fn what_the_kernel_refuses_to_end_goes_on() {
        let memory = in_the_ring(0);
        let end = memory.end();
        let shuts = |what, result| shut(end.record, what, || Some(end), || result);
        assert!(!shuts(Shut::Both, false));
        assert!(!end.has(SHUT_WR | SHUT_RD | KERNEL_HINT));
        assert_eq!(said(&memory), (0, 0));
        assert!(shuts(Shut::Sending, true));
        assert!(!shuts(Shut::Both, false));
        assert!(end.has(SHUT_WR) && !end.has(SHUT_RD), "what ended before has ended");
        assert_eq!(said(&memory), (1, 0));
    }

    #[test]
    fn an_agent_hears_before_the_last_look_that_an_end_is_to_come() {
        let memory = in_the_ring(0);
        let (end, ending) = (memory.end(), &memory.end().mine.prod.ending);
        end.begins_to_end();
        assert_eq!(ending.load(Relaxed), 0, "the peer is on this host");
        end.put(HOSTED, true);
        end.begins_to_end();
        assert_eq!((ending.load(Relaxed), said(&memory).0), (1, 0));
        end.announce_end();
        end.take_end_back();
        assert_eq!(ending.load(Relaxed), 0);
    }

    #[test]
    fn the_slot_of_a_killed_acceptor_is_free() {
        type Change = fn(&Memory, &Closed);
        let free: Change = |_, closed| closed.socket.arrive(Arrival::Fin);
        let kept: [Change; 6] = [
            |_, _| {},
            |_, closed| closed.socket.arrive(Arrival::Reset),
            |memory, closed| {
                closed.socket.arrive(Arrival::Fin);
                memory.end().theirs.prod.fin.store(1, Relaxed);
            },
            |memory, closed| {
                closed.socket.arrive(Arrival::Fin);
                memory.end().put(SHUT_RD, true);
            },
            |memory, closed| {
                closed.socket.arrive(Arrival::Fin);
                memory.end().theirs.setup.state.store(0, Relaxed);
            },
            |memory, closed| {
                closed.socket.arrive(Arrival::Fin);
                memory.end().record.id.side.store(Side::Server as u32, Relaxed);
            },
        ];
        for (is_free, change) in kept.map(|change| (0, change)).into_iter().chain([(1, free)]) {
            let (memory, closed) = (in_the_ring(0), Closed::default());
            let end = memory.end();
            end.record.id.side.store(Side::Client as u32, Relaxed);
            end.theirs.setup.state.store(Answer::Accepted as u32, Relaxed);
            change(&memory, &closed);
            end.is_done(Some(&closed));
            assert_eq!(end.theirs.setup.done.load(Relaxed), is_free);
            assert_eq!(end.mine.setup.done.load(Relaxed), 1);
        }
        // One that has left for another program lives there.
        let (memory, closed) = (in_the_ring(0), Closed::default());
        let end = memory.end();
        end.record.id.side.store(Side::Client as u32, Relaxed);
        end.theirs.setup.state.store(Answer::Accepted as u32, Relaxed);
        handover::leave(&end.theirs.ctl.handed_over, || 1);
        closed.socket.arrive(Arrival::Fin);
        end.is_done(Some(&closed));
        assert_eq!(end.theirs.setup.done.load(Relaxed), 0);
    }
}
