//! Which bytes of a call are granted, and which are copied.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use shunt_shm::arena::Mode;
use shunt_wire::counter::Counter;

use crate::conn::End;
use crate::zerocopy::ports::{Memory, Unknown};
use crate::zerocopy::sender::Granting;

/// Bytes below which a copy is cheaper than a grant, unless the program says otherwise.
pub const LEAST: usize = 4 * 1024;

/// What is to become of a buffer of a sending call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hint {
    /// Granted if it is large enough to pay.
    Auto,
    /// Copied.
    Copy,
    /// Granted, however small.
    Grant,
}

/// True for a buffer that is worth a grant.
#[inline]
#[must_use]
pub const fn is_wanted(hint: Hint, len: usize) -> bool {
    match hint {
        Hint::Auto => len >= LEAST,
        Hint::Copy => false,
        Hint::Grant => true,
    }
}

/// Bytes of a call that can be granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Where they are.
    pub address: usize,
    /// How many.
    pub len: usize,
    /// With fewer of them a copy is cheaper.
    pub least: usize,
    /// Where they lie.
    pub lies: Lies,
}

/// Where bytes lie that can be granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lies {
    /// In registered memory of this name, from here on.
    Registered(u64, usize),
    /// In private memory.
    Private,
}

impl Piece {
    /// What counts the bytes that are granted like these.
    #[must_use]
    pub const fn counter(&self) -> Counter {
        match self.lies {
            Lies::Registered(..) => Counter::BytesGranted,
            Lies::Private => Counter::BytesPinned,
        }
    }
}

/// True where the peer can map this end's memory.
#[inline]
#[must_use]
pub fn is_attached(end: &End<'_>) -> bool {
    end.record.id.mode.load(Relaxed) == Mode::Attach as u32
}

impl Granting<'_> {
    /// What of `len` bytes at `address`, which are one buffer's, is granted.
    ///
    /// # Errors
    /// The peer has not got the memory: it is to be [offered](Granting::offer).
    #[inline(always)]
    pub fn piece(
        &self,
        memory: &impl Memory,
        hint: Hint,
        (address, len): (usize, usize),
    ) -> Result<Option<Piece>, Unknown> {
        if !is_wanted(hint, len) {
            return Ok(None);
        }
        let Some(registered) = memory.registered(address, len) else {
            if !is_attached(&self.end) {
                return Ok(None);
            }
            let least = memory.policy().rest();
            let private = |len| Piece { address, len, least, lies: Lies::Private };
            return self.private_piece(memory, len).map(|len| len.map(private));
        };
        let is_known = |region: &u64| {
            let accepted = || self.end.theirs.ctl.accepted.load(Acquire);
            is_attached(&self.end) && self.state.granted.is_known(*region, accepted())
        };
        let region = registered.name.filter(is_known).ok_or(Unknown)?;
        // The receiver copies one half while the other one is granted.
        let half = usize::try_from(self.end.ring / 2).unwrap_or(usize::MAX);
        let least = if hint == Hint::Grant { 1 } else { LEAST };
        let lies = Lies::Registered(region, registered.from);
        Ok(Some(Piece { address, len: len.min(half), least, lies }))
    }

    /// True for a sender that has registered memory to grant: it needs the longest ring.
    #[must_use]
    pub fn has_registered(&self) -> bool {
        let offered = self.state.granted.offered();
        offered != 0 && offered != self.state.pinned.name.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zerocopy::model::{Pair, Process};
    use shunt_shm::region::DECLINED;

    #[test]
    fn small_buffers_are_copied_unless_the_program_says_otherwise() {
        assert!(is_wanted(Hint::Auto, LEAST) && !is_wanted(Hint::Auto, LEAST - 1));
        assert!(is_wanted(Hint::Grant, 1) && !is_wanted(Hint::Copy, usize::MAX));
    }

    #[test]
    fn registered_memory_is_granted_once_the_peer_has_it() {
        let (pair, process) = (Pair::default(), Process::default());
        let granting = pair.granting();
        let piece = |hint, len| granting.piece(&process, hint, (Process::BASE + 0x1000, len));
        assert_eq!(piece(Hint::Auto, 8192), Err(Unknown), "never offered");
        granting.state.granted.offer(Process::REGION);
        for (accepted, expected) in
            [(0, false), (Process::REGION | DECLINED, false), (Process::REGION, true)]
        {
            pair.sections[1].ctl.accepted.store(accepted, Relaxed);
            assert_eq!(piece(Hint::Auto, 8192).is_ok(), expected, "{accepted:x}");
        }
        let lies = Lies::Registered(Process::REGION, 0x1000);
        let expected = Piece { address: Process::BASE + 0x1000, len: 8192, least: LEAST, lies };
        assert_eq!(piece(Hint::Auto, 8192), Ok(Some(expected)));
        assert_eq!(piece(Hint::Grant, 5), Ok(Some(Piece { len: 5, least: 1, ..expected })));
        assert_eq!(piece(Hint::Copy, 8192), Ok(None));
        assert_eq!(piece(Hint::Auto, LEAST - 1), Ok(None));
        let half = usize::try_from(Pair::RING / 2).unwrap();
        assert_eq!(piece(Hint::Auto, 100_000), Ok(Some(Piece { len: half, ..expected })));
        assert_eq!(expected.counter(), Counter::BytesGranted);
    }

    #[test]
    fn memory_without_a_name_is_unknown_and_to_who_can_only_copy_all_is() {
        let pair = Pair::default();
        let process = Process { name: None, ..Process::default() };
        let piece = || pair.granting().piece(&process, Hint::Auto, (Process::BASE + 0x1000, 8192));
        assert_eq!(piece(), Err(Unknown));
        let named = Process::default();
        pair.knows(Process::REGION);
        pair.records[0].id.mode.store(Mode::Copy as u32, Relaxed);
        let piece = |process: &Process, at| {
            pair.granting().piece(process, Hint::Auto, (Process::BASE + at, 8192))
        };
        assert_eq!(piece(&named, 0x1000), Err(Unknown));
        assert_eq!(piece(&named, Process::PRIVATE), Ok(None), "and nothing is offered");
    }

    #[test]
    fn pipes_alone_need_no_longest_ring() {
        let pair = Pair::default();
        let granting = pair.granting();
        assert!(!granting.has_registered());
        granting.state.granted.offer(Process::PIPES);
        assert!(granting.has_registered());
        granting.state.pinned.name.store(Process::PIPES, Relaxed);
        assert!(!granting.has_registered());
    }
}
