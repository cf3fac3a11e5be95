//! Pieces of a call that go together: those that are granted, and those between them that are copied. They are published at once,
//! so the receiver finds all of them by one look, and is told once.
//!
//! Nothing is granted before all that is copied has been: a handler of a signal that sends meanwhile leaves nothing to withdraw.

use shunt_shm::ring::Content;

use crate::zerocopy::choice::{Hint, Lies, Piece};
use crate::zerocopy::ports::Memory;
use crate::zerocopy::sender::Granting;

/// Most parts that go together.
pub const PARTS: usize = 32;

/// A part of them: a buffer, or what is left of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// Copied: its address, and its length.
    Copied(usize, usize),
    /// Granted.
    Granted(Piece),
}

impl Part {
    const fn len(&self) -> usize {
        match self {
            Self::Copied(_, len) => *len,
            Self::Granted(piece) => piece.len,
        }
    }
}

/// See the module's description.
#[derive(Debug)]
pub struct Batch {
    parts: [Part; PARTS],
    count: usize,
    len: usize,
    grants: usize,
    /// Some of the bytes lie in registered memory that the peer has not mapped.
    pub is_unknown: bool,
}

impl Batch {
    /// None.
    #[must_use]
    pub const fn new() -> Self {
        let parts = [Part::Copied(0, 0); PARTS];
        Self { parts, count: 0, len: 0, grants: 0, is_unknown: false }
    }

    /// Bytes in all.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// True for none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What becomes of their place in the ring.
    #[must_use]
    pub const fn content(&self) -> Content {
        match self.grants {
            0 => Content::Put,
            grants if grants == self.count => Content::Granted,
            _ => Content::Mixed,
        }
    }

    /// True where one of them is granted, and it is not the only one.
    #[must_use]
    pub const fn is_worth_it(&self) -> bool {
        self.grants > 0 && self.count > 1
    }

    fn add(&mut self, part: Part) {
        if let Some(place) = self.parts.get_mut(self.count) {
            *place = part;
            self.count += 1;
            self.len += part.len();
            self.grants += usize::from(matches!(part, Part::Granted(_)));
        }
    }

    /// Those parts, or beginnings of them, of which there are bytes among the first `room`, and how many bytes come before them.
    pub(super) fn within(&self, room: usize) -> impl Iterator<Item = (usize, Part)> {
        let mut before = 0;
        self.parts.iter().take(self.count).map_while(move |part| {
            let left = room.checked_sub(before).filter(|left| *left > 0)?;
            let at = before;
            before += part.len();
            let part = match *part {
                Part::Copied(address, len) => Part::Copied(address, len.min(left)),
                Part::Granted(piece) => Part::Granted(Piece { len: piece.len.min(left), ..piece }),
            };
            Some((at, part))
        })
    }

    /// What of the first `room` bytes is copied: how many bytes come before each part, its address and its length.
    pub fn copied(&self, room: usize) -> impl Iterator<Item = (usize, usize, usize)> {
        self.within(room).filter_map(|(at, part)| match part {
            Part::Copied(address, len) => Some((at, address, len)),
            Part::Granted(_) => None,
        })
    }
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

impl Granting<'_> {
    /// Adds the next pieces of a call that go together, of buffers each of which has a hint, an address and a length: up to some `most`
    /// bytes, as the receiver is to begin while the sender goes on. Without private memory, which comes out of pipes once.
    pub fn gather(
        &self,
        memory: &impl Memory,
        buffers: impl Iterator<Item = (Hint, (usize, usize))>,
        most: usize,
        batch: &mut Batch,
    ) {
        for (hint, (address, len)) in buffers {
            if batch.count == PARTS || batch.len >= most {
                break;
            }
            if len == 0 {
                continue;
            }
            match self.piece(memory, hint, (address, len)) {
                Ok(Some(Piece { lies: Lies::Private, .. })) => break,
                Ok(Some(piece)) => {
                    batch.add(Part::Granted(piece));
                    // What is left of the buffer comes next.
                    if piece.len < len {
                        break;
                    }
                }
                other => {
                    batch.is_unknown |= other.is_err();
                    let n = len.min(most - batch.len);
                    batch.add(Part::Copied(address, n));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zerocopy::model::{Pair, Process};
    use core::sync::atomic::Ordering::Relaxed;

    const BASE: usize = Process::BASE;
    const PRIVATE: usize = BASE + Process::PRIVATE;

    fn acquainted() -> Pair {
        let pair = Pair::default();
        pair.knows(Process::REGION);
        pair
    }

    fn gather(pair: &Pair, buffers: &[(Hint, (usize, usize))], most: usize) -> Batch {
        let mut batch = Batch::new();
        pair.granting().gather(&Process::of(pair), buffers.iter().copied(), most, &mut batch);
        batch
    }

    #[test]
    fn headers_and_buffers_go_together_in_their_order() {
        let pair = acquainted();
        let buffers = [
            (Hint::Copy, (PRIVATE, 72)),
            (Hint::Auto, (BASE, 8192)),
            (Hint::Auto, (BASE + 8192, 0)),
            (Hint::Auto, (PRIVATE, 9)),
            (Hint::Auto, (BASE + 8192, 4096)),
        ];
        let batch = gather(&pair, &buffers, 1 << 16);
        assert_eq!((batch.len(), batch.content()), (72 + 8192 + 9 + 4096, Content::Mixed));
        assert!(batch.is_worth_it() && !batch.is_unknown);
        let copied = |room| batch.copied(room).collect::<Vec<_>>();
        assert_eq!(copied(usize::MAX), [(0, PRIVATE, 72), (72 + 8192, PRIVATE, 9)]);
        assert_eq!(copied(72 + 8192 + 4), [(0, PRIVATE, 72), (72 + 8192, PRIVATE, 4)]);
        assert_eq!((copied(72 + 8192), copied(5)), (vec![(0, PRIVATE, 72)], vec![(0, PRIVATE, 5)]));
        assert!(copied(0).is_empty());
        let (at, part) = batch.within(72 + 100).last().unwrap();
        let Part::Granted(piece) = part else { panic!("{part:?}") };
        assert_eq!((at, piece.address, piece.len), (72, BASE, 100));
    }

    #[test]
    fn one_piece_alone_and_copies_alone_are_no_batch() {
        let pair = acquainted();
        let copies = [(Hint::Copy, (BASE, 8192)), (Hint::Auto, (BASE, 9))];
        let batch = gather(&pair, &copies, 1 << 16);
        assert_eq!((batch.is_worth_it(), batch.content()), (false, Content::Put));
        let batch = gather(&pair, &[(Hint::Auto, (BASE, 8192))], 1 << 16);
        assert_eq!((batch.is_worth_it(), batch.content()), (false, Content::Granted));
        assert!(Batch::default().is_empty());
    }

    #[test]
    fn a_batch_ends_where_enough_is_together_or_something_else_begins() {
        let pair = acquainted();
        let large = [(Hint::Auto, (BASE, 8192)); 3];
        assert_eq!(
            gather(&pair, &large, 8193).len(),
            2 * 8192,
            "no buffer is granted in two pieces for it"
        );
        let copied = [(Hint::Auto, (BASE, 8192)), (Hint::Copy, (PRIVATE, 5000))];
        assert_eq!(gather(&pair, &copied, 10_000).len(), 10_000);
        let small = [(Hint::Grant, (BASE, 1)); PARTS + 1];
        assert_eq!(gather(&pair, &small, 1 << 16).len(), PARTS);
        // Half a ring is the most that is granted at once.
        let cut = [(Hint::Auto, (BASE, 100_000)), (Hint::Copy, (PRIVATE, 1))];
        assert_eq!(gather(&pair, &cut, 1 << 20).len() as u64, Pair::RING / 2);
        let process = Process::with_pipes(&pair);
        assert!(pair.state.granted.is_known(Process::PIPES, Process::PIPES));
        pair.state.granted.offer(Process::REGION);
        pair.sections[1].ctl.accepted.store(Process::REGION, Relaxed);
        let pinned = [(Hint::Auto, (BASE, 8192)), (Hint::Auto, (PRIVATE, 8192))];
        let mut batch = Batch::new();
        pair.granting().gather(&process, pinned.into_iter(), 1 << 16, &mut batch);
        assert_eq!(batch.len(), 8192, "a pipe comes by itself");
    }

    #[test]
    fn what_the_peer_has_not_got_is_copied_and_to_be_offered() {
        let pair = Pair::default();
        let batch = gather(&pair, &[(Hint::Copy, (BASE, 72)), (Hint::Auto, (BASE, 8192))], 1 << 16);
        assert!(batch.is_unknown && !batch.is_worth_it());
        assert_eq!((batch.len(), batch.content()), (72 + 8192, Content::Put));
    }
}
