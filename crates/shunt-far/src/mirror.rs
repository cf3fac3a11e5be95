//! The port to a region that mirrors the far host's.

use shunt_shm::handover;
use shunt_shm::region::{CLOSED, Section, Side};
use shunt_shm::sync::Ordering;

/// What a lane's program is to be woken for.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct News {
    /// There are bytes, a switch point or an end.
    pub bytes: bool,
    /// There is room, or a switch point was passed.
    pub room: bool,
}

/// A region, as its agent has it.
pub trait Mirror {
    /// The side of the program on this host in a slot.
    fn side(&self, slot: usize) -> Side;

    /// Connections that there is room for.
    fn slots(&self) -> usize;

    /// Bytes of a ring, a power of two; those of the far mirror are as long.
    fn ring(&self) -> u64;

    /// What `side` writes of the connection in `slot`, which is below [`Self::slots`].
    fn section(&self, slot: usize, side: Side) -> &Section;

    /// Slots whose programs have published something since this was last asked, where they say so themselves.
    fn news(&mut self, _each: &mut Vec<usize>) {}

    /// Both sides have left the connection in `slot`.
    fn is_free(&mut self, _slot: usize) {}

    /// Wakes the program in `slot`, as its arm words ask.
    fn wake(&mut self, slot: usize, news: News);
}

/// Writes that nothing comes, or is taken, through the ring, where neither ever was: the program goes on over TCP, and what the kernel
/// says of the far one's end counts.
pub fn leave_to_tcp(theirs: &Section) {
    theirs.cons.heard.store(0, Ordering::Release);
    handover::has_left_for_good(&theirs.ctl.handed_over, 0);
    theirs.prod.behind.store(0, Ordering::Release);
}

/// Writes what no peer could, by which the program's own checks end the connection.
pub fn break_off(theirs: &Section) {
    theirs.prod.grants.store(u32::MAX / 2, Ordering::Release);
    theirs.cons.cons.store(u64::MAX, Ordering::Release);
}

/// Writes what a program would that ends its connection, in the place of one that is gone.
pub(crate) fn end_for_program(mine: &Section) {
    mine.prod.fin.store(1, Ordering::Release);
    // Not over a reset.
    let closed = &mine.ctl.closed;
    let _ = closed.compare_exchange(0, CLOSED, Ordering::AcqRel, Ordering::Relaxed);
    mine.setup.done.store(1, Ordering::Release);
}
