//! Cuts the received bytes into headers, data and digests.

use super::{Command, DataRange, Next};
use crate::wire::{
    CommonHeader, Layout, Rules, Violation, digest,
    pdu::{COMMON_LEN, MAX_HEAD},
};
use zerocopy::FromBytes;

/// Where the data of the PDU goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    Command { command: Command, offset: u32 },
    Discard,
}

/// What a step has brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// More bytes are needed.
    More,
    /// A header is whole: its machine looks at it, and sets the target of its data.
    Head(Layout),
    /// All data is there, and its digest. `intact` is false if the digest doesn't match.
    Data { target: Target, intact: bool },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Head,
    Data { target: Target, left: u32 },
    Digest { target: Target },
    Closed,
}

#[derive(Debug)]
pub(crate) struct Framing {
    pub(crate) rules: Rules,
    state: State,
    head: [u8; MAX_HEAD],
    have: usize,
    layout: Option<Layout>,
    digest: [u8; digest::LEN],
    crc: u32,
    /// Data came without its digest's share: it counts as damaged.
    unknown: bool,
}

impl Framing {
    pub(crate) const fn new(rules: Rules) -> Self {
        Self {
            rules,
            state: State::Head,
            head: [0; MAX_HEAD],
            have: 0,
            layout: None,
            digest: [0; digest::LEN],
            crc: 0,
            unknown: false,
        }
    }

    pub(crate) const fn close(&mut self) {
        self.state = State::Closed;
    }

    pub(crate) const fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed)
    }

    /// Bytes of the header that were received, at most `max`.
    pub(crate) fn received(&self, max: usize) -> &[u8] {
        &self.head[..self.have.min(max)]
    }

    /// The header of the last [`Step::Head`].
    pub(crate) fn view<T: FromBytes + zerocopy::KnownLayout + zerocopy::Immutable + Copy>(
        &self,
    ) -> T {
        // A checked header is at least as long as the structure of its type, and the buffer longer.
        T::read_from_prefix(&self.head).map_or_else(|_| T::new_zeroed(), |(header, _)| header)
    }

    /// Where the next bytes go. No further PDU begins while the outbox is full.
    pub(crate) fn next(&self, full: bool) -> Next {
        match self.state {
            State::Head if full && self.have == 0 => Next::Blocked,
            State::Head => Next::Header { len: self.wanted() - self.have },
            State::Digest { .. } => Next::Header { len: digest::LEN - self.have },
            State::Data { target: Target::Command { command, offset }, left } => {
                Next::Data(DataRange { command, offset, len: left })
            }
            State::Data { target: Target::Discard, left } => Next::Discard { len: left },
            State::Closed => Next::Closed,
        }
    }

    /// Bytes of the head that have to be there for the next decision.
    const fn wanted(&self) -> usize {
        match self.layout {
            None => COMMON_LEN,
            Some(layout) => layout.head_len,
        }
    }

    /// Takes bytes of a header or of a digest, up to the end of it; says how many.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<(usize, Step), Violation> {
        match self.state {
            State::Head => self.push_head(bytes),
            State::Digest { target } => {
                let taken = bytes.len().min(digest::LEN - self.have);
                self.digest[self.have..self.have + taken].copy_from_slice(&bytes[..taken]);
                self.have += taken;
                if self.have < digest::LEN {
                    return Ok((taken, Step::More));
                }
                let intact = !self.unknown && u32::from_le_bytes(self.digest) == self.crc;
                self.begin();
                Ok((taken, Step::Data { target, intact }))
            }
            State::Data { .. } | State::Closed => Ok((0, Step::More)),
        }
    }

    fn push_head(&mut self, bytes: &[u8]) -> Result<(usize, Step), Violation> {
        let mut taken = 0;
        loop {
            let part = (bytes.len() - taken).min(self.wanted() - self.have);
            self.head[self.have..self.have + part].copy_from_slice(&bytes[taken..taken + part]);
            taken += part;
            self.have += part;
            if self.have < self.wanted() {
                return Ok((taken, Step::More));
            }
            let Some(layout) = self.layout else {
                let header: CommonHeader = self.view();
                self.layout = Some(header.check(&self.rules)?);
                continue;
            };
            if layout.header_digest {
                let (header, rest) = self.head.split_at(layout.header_len);
                let received =
                    rest.first_chunk().map_or(0, |bytes: &[u8; 4]| u32::from_le_bytes(*bytes));
                if received != digest::crc32c(header) {
                    return Err(Violation::HeaderDigest(received));
                }
            }
            return Ok((taken, Step::Head(layout)));
        }
    }

    /// What follows the header: data for this target, or the next header.
    pub(crate) fn proceed(&mut self, layout: &Layout, target: Target) {
        self.begin();
        if layout.data_len > 0 {
            self.layout = Some(*layout);
            self.state = State::Data { target, left: layout.data_len };
        }
    }

    fn begin(&mut self) {
        self.state = State::Head;
        self.have = 0;
        self.layout = None;
        self.crc = 0;
        self.unknown = false;
    }

    /// Data was placed: `len` bytes whose CRC32C is `crc`.
    pub(crate) fn data(&mut self, len: u32, crc: Option<u32>) -> Step {
        let State::Data { target, left } = &mut self.state else { return Step::More };
        let len = len.min(*left);
        *left -= len;
        if let Target::Command { offset, .. } = target {
            *offset += len;
        }
        let (target, left) = (*target, *left);
        let digested = self.layout.is_some_and(|layout| layout.data_digest);
        if digested && target != Target::Discard {
            match crc {
                Some(crc) => {
                    let bytes = usize::try_from(len).unwrap_or(usize::MAX);
                    self.crc = digest::combine(self.crc, crc, bytes);
                }
                None => self.unknown = true,
            }
        }
        if left > 0 {
            return Step::More;
        }
        if digested {
            self.state = State::Digest { target };
            self.have = 0;
            return Step::More;
        }
        self.begin();
        Step::Data { target, intact: true }
    }

    /// The rest of the data of this command goes nowhere.
    pub(crate) fn discard(&mut self, command: Command) {
        if let State::Data { target, .. } | State::Digest { target } = &mut self.state
            && matches!(target, Target::Command { command: its, .. } if *its == command)
        {
            *target = Target::Discard;
        }
    }
}
