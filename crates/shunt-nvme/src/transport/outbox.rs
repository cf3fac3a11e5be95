//! What is to be sent, as pieces: small bytes of headers, and ranges of the commands' data.

use super::Command;
use crate::wire::{Rules, digest};
use std::collections::VecDeque;

/// A range of a command's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DataRange {
    /// The command.
    pub command: Command,
    /// Offset in the command's data.
    pub offset: u32,
    /// Bytes.
    pub len: u32,
}

/// A piece of what is to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Piece<'a> {
    /// These bytes.
    Bytes(&'a [u8]),
    /// Bytes of the caller.
    Data(DataRange),
    /// The digest of bytes of the caller: CRC32C of the whole range, little-endian, without the
    /// first `skip` of its four bytes.
    ///
    /// Memory that the peer maps may change between two looks. So a caller that sends data with a
    /// digest sends a private copy, and makes the digest of that.
    Digest {
        /// The data.
        range: DataRange,
        /// Bytes of the digest that were sent already.
        skip: usize,
    },
}

impl Piece<'_> {
    /// Bytes of the piece.
    #[must_use]
    pub const fn len(&self) -> usize {
        match self {
            Piece::Bytes(bytes) => bytes.len(),
            Piece::Data(range) => range.len as usize,
            Piece::Digest { skip, .. } => digest::LEN - *skip,
        }
    }

    /// True if it has no bytes, which no piece of an outbox has.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What follows from an entry having been sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mark {
    /// Nothing.
    None,
    /// The capsule of the command is sent.
    Capsule(Command),
    /// The data of one R2T is sent.
    Transfer(Command),
}

#[derive(Clone, Copy, Debug)]
enum What {
    /// Bytes of the arena, from this position of the whole stream of such bytes on.
    Bytes {
        at: u64,
        len: usize,
    },
    Data(DataRange),
    Digest(DataRange),
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    what: What,
    /// The command that it belongs to.
    command: Option<Command>,
    mark: Mark,
}

impl Entry {
    const fn len(&self) -> usize {
        match self.what {
            What::Bytes { len, .. } => len,
            What::Data(range) => range.len as usize,
            What::Digest(_) => digest::LEN,
        }
    }
}

/// An entry that has been sent whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sent {
    /// The command whose data it has read.
    pub(crate) data_of: Option<Command>,
    pub(crate) mark: Mark,
}

/// The queue of what is to be sent.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    arena: Vec<u8>,
    /// Position of the arena's first byte.
    base: u64,
    entries: VecDeque<Entry>,
    /// Bytes of the first entry that were sent.
    sent: usize,
}

/// The arena is moved down when these many of its bytes were sent.
const COMPACT: usize = 64 * 1024;

impl Outbox {
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes of headers that are kept.
    pub(crate) fn backlog(&self) -> usize {
        self.arena.len()
    }

    /// Appends the head of a PDU: header, its digest if `rules` say so, and padding up to `pdo`.
    pub(crate) fn head(
        &mut self,
        header: &[u8],
        pdo: u8,
        rules: &Rules,
        command: Option<Command>,
        mark: Mark,
    ) {
        let at = self.base + self.arena.len() as u64;
        let start = self.arena.len();
        self.arena.extend_from_slice(header);
        if rules.header_digest {
            self.arena.extend_from_slice(&digest::crc32c(header).to_le_bytes());
        }
        let len = (self.arena.len() - start).max(usize::from(pdo));
        self.arena.resize(start + len, 0);
        self.entries.push_back(Entry { what: What::Bytes { at, len }, command, mark });
    }

    /// Appends data, and its digest if `rules` say so.
    pub(crate) fn data(&mut self, range: DataRange, rules: &Rules, mark: Mark) {
        let command = Some(range.command);
        let data_mark = if rules.data_digest { Mark::None } else { mark };
        self.entries.push_back(Entry { what: What::Data(range), command, mark: data_mark });
        if rules.data_digest {
            self.entries.push_back(Entry { what: What::Digest(range), command, mark });
        }
    }

    /// Entries that [`Outbox::data`] makes.
    pub(crate) const fn data_entries(rules: &Rules) -> u32 {
        if rules.data_digest { 2 } else { 1 }
    }

    /// What is to be sent, in this order. Bytes in a row are one piece.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = Piece<'_>> {
        let mut index = 0;
        let mut sent = self.sent;
        core::iter::from_fn(move || {
            let entry = self.entries.get(index)?;
            let skip = core::mem::take(&mut sent);
            index += 1;
            Some(match entry.what {
                What::Data(range) => {
                    // Less than the range's length, which is a u32.
                    let skip = u32::try_from(skip).unwrap_or(range.len);
                    Piece::Data(DataRange {
                        offset: range.offset + skip,
                        len: range.len - skip,
                        ..range
                    })
                }
                What::Digest(range) => Piece::Digest { range, skip },
                What::Bytes { at, len } => {
                    let start = self.position(at) + skip;
                    let mut end = self.position(at) + len;
                    while let Some(Entry { what: What::Bytes { at, len }, .. }) =
                        self.entries.get(index)
                        && self.position(*at) == end
                    {
                        end += len;
                        index += 1;
                    }
                    Piece::Bytes(&self.arena[start..end])
                }
            })
        })
    }

    /// Index of a position in the arena.
    fn position(&self, at: u64) -> usize {
        usize::try_from(at - self.base).unwrap_or(usize::MAX)
    }

    /// The next entry that is sent whole when `bytes` more were; takes them off `bytes`.
    pub(crate) fn advance(&mut self, bytes: &mut usize) -> Option<Sent> {
        let entry = *self.entries.front()?;
        let left = entry.len() - self.sent;
        if *bytes < left {
            self.sent += core::mem::take(bytes);
            return None;
        }
        *bytes -= left;
        self.sent = 0;
        self.entries.pop_front();
        if self.entries.is_empty() {
            self.base += self.arena.len() as u64;
            self.arena.clear();
        } else if let What::Bytes { at, len } = entry.what {
            let end = self.position(at) + len;
            if end >= COMPACT {
                self.arena.drain(..end);
                self.base += end as u64;
            }
        }
        let data_of = entry.command.filter(|_| !matches!(entry.what, What::Bytes { .. }));
        Some(Sent { data_of, mark: entry.mark })
    }

    /// Takes all entries of a command away, if not a byte of it was sent: it made `all` entries.
    pub(crate) fn withdraw(&mut self, command: Command, all: usize) -> bool {
        let is_its = |entry: &Entry| entry.command == Some(command);
        let started = self.sent > 0 && self.entries.front().is_some_and(is_its);
        if started || self.entries.iter().filter(|entry| is_its(entry)).count() != all {
            return false;
        }
        self.entries.retain(|entry| !is_its(entry));
        true
    }
}
