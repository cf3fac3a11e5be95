//! What the two sides of a link say.
//!
//! One length, numbers in network byte order. The dialect stands in front, so that another one is refused and not misread.
//!
//! | Offset | Length | What |
//! |---:|---:|---|
//! | 0 | 1 | Dialect: 1 |
//! | 1 | 1 | Kind |
//! | 2 | 2 | Slot |
//! | 4 | 4 | Number of the slot's use |
//! | 8 | 4 | Number of the message, from 0 on |
//! | 12 | 4 | Messages that its sender has taken |
//! | 16 | 72 | Of a [`Kind::Cursors`]: [`Words`]; else zero |
//!
//! SMC-R's CDC message (RFC 7609, appendix A.4) has the same purpose: a connection, its cursors and its ends. Its link messages
//! (appendix A.3: test link, delete rkey) are kinds here.

use core::fmt;

/// Bytes of a message.
pub const LEN: usize = 88;
/// What a message begins with.
pub const DIALECT: u8 = 1;

/// Where the fields are.
mod field {
    use core::ops::Range;

    pub(super) const DIALECT: usize = 0;
    pub(super) const KIND: usize = 1;
    pub(super) const SLOT: Range<usize> = 2..4;
    pub(super) const GENERATION: Range<usize> = 4..8;
    pub(super) const NUMBER: Range<usize> = 8..12;
    pub(super) const TAKEN: Range<usize> = 12..16;
    pub(super) const PROD: Range<usize> = 16..24;
    pub(super) const BASE: Range<usize> = 24..32;
    pub(super) const CONS: Range<usize> = 32..40;
    pub(super) const MARK_AT: [Range<usize>; 2] = [40..48, 48..56];
    pub(super) const MARKS: Range<usize> = 56..60;
    pub(super) const MARKS_PASSED: Range<usize> = 60..64;
    pub(super) const FIN: Range<usize> = 64..68;
    pub(super) const CLOSED: Range<usize> = 68..72;
    pub(super) const HANDED_OVER: Range<usize> = 72..76;
    pub(super) const WINDOW: Range<usize> = 76..80;
    pub(super) const HEARD: Range<usize> = 80..84;
    pub(super) const STATE: Range<usize> = 84..88;
}

/// What one side says of a connection: the words of its section of the same names (`docs/shm-abi.md`).
///
/// Arm words, queues and doorbells are not among them: they are between a program and its own agent.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Words {
    /// Bytes ever put into the ring; all of them were written before this message.
    pub prod: u64,
    /// Shape of the ring.
    pub base: u64,
    /// Bytes ever taken from the own ring.
    pub cons: u64,
    /// Where the marks of switch points are.
    pub mark_at: [u64; 2],
    /// Marks ever set.
    pub marks: u32,
    /// Of the other side's marks.
    pub marks_passed: u32,
    /// Not 0: no more bytes follow `prod`.
    pub fin: u32,
    /// Not 0: takes no more bytes.
    pub closed: u32,
    /// Leaves for a program without the library.
    pub handed_over: u32,
    /// Bytes that its receive buffer should hold.
    pub window: u32,
    /// Of the other side's marks, those that its program can see.
    pub heard: u32,
    /// Of a client, how far its proposal is; of an acceptor it says nothing.
    pub state: u32,
}

impl Words {
    /// Bytes of them in a message.
    pub const LEN: usize = LEN - field::PROD.start;

    /// Their bytes, as they are in a message.
    #[must_use]
    pub fn bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; LEN];
        put(&mut bytes, self);
        let mut words = [0; Self::LEN];
        words.copy_from_slice(&bytes[field::PROD.start..]);
        words
    }

    /// Those that have these bytes.
    #[must_use]
    pub fn of(bytes: &[u8; Self::LEN]) -> Self {
        let mut message = [0; LEN];
        message[field::PROD.start..].copy_from_slice(bytes);
        words(&message)
    }
}

/// What a message is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Says only which messages were taken.
    Acknowledge,
    /// Asks for an [`Self::Acknowledge`] at once.
    Test,
    /// What has changed of a connection.
    Cursors(Lane, Words),
    /// The last one about a connection: nothing more is written into its ring.
    Leave(Lane),
}

/// Names a connection of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lane {
    /// Its place.
    pub slot: u16,
    /// Number of the place's use.
    pub generation: u32,
}

/// A message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message {
    /// Its number on the link, modulo 2^32.
    pub number: u32,
    /// Messages that its sender has taken, modulo 2^32.
    pub taken: u32,
    /// What it is about.
    pub kind: Kind,
}

/// Why bytes are no message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Malformed {
    /// Not [`LEN`] bytes.
    Length,
    /// Another dialect.
    Dialect,
    /// An unknown kind.
    Kind,
    /// A field is set that its kind does not have.
    Unused,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Length => "a message of another length",
            Self::Dialect => "a message of another dialect",
            Self::Kind => "a message of an unknown kind",
            Self::Unused => "a message with a field that its kind does not have",
        })
    }
}

impl core::error::Error for Malformed {}

const ACKNOWLEDGE: u8 = 1;
const TEST: u8 = 2;
const CURSORS: u8 = 3;
const LEAVE: u8 = 4;

/// Reads a number of the range's length.
macro_rules! get {
    ($bytes:expr, $range:expr, $type:ty) => {{
        let mut number = [0; size_of::<$type>()];
        number.copy_from_slice(&$bytes[$range]);
        <$type>::from_be_bytes(number)
    }};
}

impl Message {
    /// Reads a message.
    ///
    /// # Errors
    /// Why the bytes are none.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let bytes: &[u8; LEN] = bytes.try_into().map_err(|_| Malformed::Length)?;
        if bytes[field::DIALECT] != DIALECT {
            return Err(Malformed::Dialect);
        }
        let lane = Lane {
            slot: get!(bytes, field::SLOT, u16),
            generation: get!(bytes, field::GENERATION, u32),
        };
        let kind = match bytes[field::KIND] {
            ACKNOWLEDGE => Kind::Acknowledge,
            TEST => Kind::Test,
            CURSORS => Kind::Cursors(lane, words(bytes)),
            LEAVE => Kind::Leave(lane),
            _ => return Err(Malformed::Kind),
        };
        let (number, taken) = (get!(bytes, field::NUMBER, u32), get!(bytes, field::TAKEN, u32));
        let message = Self { number, taken, kind };
        // All that a kind has is in the value, so what it has not was zero.
        if message.bytes() == *bytes { Ok(message) } else { Err(Malformed::Unused) }
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        let (kind, lane, words) = match self.kind {
            Kind::Acknowledge => (ACKNOWLEDGE, None, None),
            Kind::Test => (TEST, None, None),
            Kind::Cursors(lane, words) => (CURSORS, Some(lane), Some(words)),
            Kind::Leave(lane) => (LEAVE, Some(lane), None),
        };
        bytes[field::DIALECT] = DIALECT;
        bytes[field::KIND] = kind;
        bytes[field::NUMBER].copy_from_slice(&self.number.to_be_bytes());
        bytes[field::TAKEN].copy_from_slice(&self.taken.to_be_bytes());
        if let Some(lane) = lane {
            bytes[field::SLOT].copy_from_slice(&lane.slot.to_be_bytes());
            bytes[field::GENERATION].copy_from_slice(&lane.generation.to_be_bytes());
        }
        if let Some(words) = words {
            put(&mut bytes, &words);
        }
        bytes
    }
}

fn words(bytes: &[u8; LEN]) -> Words {
    Words {
        prod: get!(bytes, field::PROD, u64),
        base: get!(bytes, field::BASE, u64),
        cons: get!(bytes, field::CONS, u64),
        mark_at: field::MARK_AT.map(|at| get!(bytes, at, u64)),
        marks: get!(bytes, field::MARKS, u32),
        marks_passed: get!(bytes, field::MARKS_PASSED, u32),
        fin: get!(bytes, field::FIN, u32),
        closed: get!(bytes, field::CLOSED, u32),
        handed_over: get!(bytes, field::HANDED_OVER, u32),
        window: get!(bytes, field::WINDOW, u32),
        heard: get!(bytes, field::HEARD, u32),
        state: get!(bytes, field::STATE, u32),
    }
}

fn put(bytes: &mut [u8; LEN], words: &Words) {
    let [first, second] = field::MARK_AT;
    for (at, number) in [
        (field::PROD, words.prod),
        (field::BASE, words.base),
        (field::CONS, words.cons),
        (first, words.mark_at[0]),
        (second, words.mark_at[1]),
    ] {
        bytes[at].copy_from_slice(&number.to_be_bytes());
    }
    for (at, number) in [
        (field::MARKS, words.marks),
        (field::MARKS_PASSED, words.marks_passed),
        (field::FIN, words.fin),
        (field::CLOSED, words.closed),
        (field::HANDED_OVER, words.handed_over),
        (field::WINDOW, words.window),
        (field::HEARD, words.heard),
        (field::STATE, words.state),
    ] {
        bytes[at].copy_from_slice(&number.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn golden() -> (Message, [u8; LEN]) {
        let words = Words {
            prod: 0x0102_0304_0506_0708,
            base: 0x1112_1314_1516_1718,
            cons: 0x2122_2324_2526_2728,
            mark_at: [0x3132_3334_3536_3738, 0x4142_4344_4546_4748],
            marks: 0x5152_5354,
            marks_passed: 0x6162_6364,
            fin: 1,
            closed: 2,
            handed_over: 3,
            window: 0x7172_7374,
            heard: 0x8182_8384,
            state: 0x9192_9394,
        };
        let lane = Lane { slot: 0xabcd, generation: 0xa1a2_a3a4 };
        let kind = Kind::Cursors(lane, words);
        #[rustfmt::skip]
        let bytes = [
            1, 3, 0xab, 0xcd, 0xa1, 0xa2, 0xa3, 0xa4,
            0xb1, 0xb2, 0xb3, 0xb4, 0xc1, 0xc2, 0xc3, 0xc4,
            0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08,
            0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18,
            0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28,
            0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x37, 0x38,
            0x41, 0x42, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48,
            0x51, 0x52, 0x53, 0x54, 0x61, 0x62, 0x63, 0x64,
            0, 0, 0, 1, 0, 0, 0, 2,
            0, 0, 0, 3, 0x71, 0x72, 0x73, 0x74,
            0x81, 0x82, 0x83, 0x84, 0x91, 0x92, 0x93, 0x94,
        ];
        (Message { number: 0xb1b2_b3b4, taken: 0xc1c2_c3c4, kind }, bytes)
    }

    #[test]
    fn golden_bytes() {
        let (message, bytes) = golden();
        assert_eq!(message.bytes(), bytes);
        assert_eq!(Message::parse(&bytes), Ok(message));
        let Kind::Cursors(_, words) = message.kind else { unreachable!() };
        assert_eq!(words.bytes(), bytes[16..]);
        assert_eq!(Words::of(&words.bytes()), words);
    }

    #[test]
    fn what_is_no_message_is_refused() {
        let (_, bytes) = golden();
        assert_eq!(Message::parse(&bytes[..LEN - 1]), Err(Malformed::Length));
        let with = |at: usize, byte: u8| {
            let mut changed = bytes;
            changed[at] = byte;
            Message::parse(&changed)
        };
        assert_eq!(with(0, 2), Err(Malformed::Dialect));
        assert_eq!(with(1, 0), Err(Malformed::Kind));
        assert_eq!(with(1, 5), Err(Malformed::Kind));
        for kind in [ACKNOWLEDGE, TEST, LEAVE] {
            assert_eq!(with(1, kind), Err(Malformed::Unused));
        }
    }

    proptest! {
        #[test]
        fn bytes_and_values_are_the_same(mut bytes in proptest::array::uniform32(any::<u8>()), kind in 0_u8..6) {
            let mut long = [0; LEN];
            (bytes[0], bytes[1]) = (DIALECT, kind);
            long[..32].copy_from_slice(&bytes);
            if let Ok(message) = Message::parse(&long) {
                prop_assert_eq!(message.bytes(), long);
            }
        }
    }
}
