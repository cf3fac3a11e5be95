//! Connection data control: cursors of a connection, and its ends (RFC 7609 section 4 and appendix
//! A.4).

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{LINK_MESSAGE, Malformed, U16, U32};

/// The type of such a message, which tells it from those about the link.
pub const KIND: u8 = 0xfe;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct CursorBytes {
    reserved: [u8; 2],
    wraps: U16,
    count: U32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Bytes {
    kind: u8,
    length: u8,
    number: U16,
    token: U32,
    produced: CursorBytes,
    consumed: CursorBytes,
    producer: u8,
    state: u8,
    reserved: [u8; 18],
}

/// A place in a ring: an offset below the ring's length, and how often the end was passed, modulo
/// 2^16.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Cursor {
    /// How often.
    pub wraps: u16,
    /// Offset in bytes.
    pub count: u32,
}

impl From<Cursor> for CursorBytes {
    fn from(cursor: Cursor) -> Self {
        Self { reserved: [0; 2], wraps: cursor.wraps.into(), count: cursor.count.into() }
    }
}

impl From<CursorBytes> for Cursor {
    fn from(bytes: CursorBytes) -> Self {
        Self { wraps: bytes.wraps.get(), count: bytes.count.get() }
    }
}

/// State of the sender's producing (`smc.h`: `smc_cdc_producer_flags`).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Producer {
    /// It has more than fits.
    pub is_blocked: bool,
    /// An urgent byte will come.
    pub is_urgent_pending: bool,
    /// The byte in front of the produced cursor is urgent.
    pub is_urgent: bool,
    /// Asks for the consumed cursor at once.
    pub wants_update: bool,
    /// The first message by another link, without cursors.
    pub is_failover: bool,
}

/// State of the sender's end (`smc.h`: `smc_cdc_conn_state_flags`). A flag that was set stays set.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct State {
    /// Produces no more.
    pub is_finished: bool,
    /// Consumes no more, either.
    pub is_closed: bool,
    /// The same with bytes in its ring that were not read.
    pub is_aborted: bool,
}

/// A message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cdc {
    /// Its number on this connection, from 1 on, modulo 2^16.
    pub number: u16,
    /// The connection, as the receiver calls it.
    pub token: u32,
    /// How far the sender has written into the receiver's ring.
    pub produced: Cursor,
    /// How far it has read its own ring.
    pub consumed: Cursor,
    /// Of its producing.
    pub producer: Producer,
    /// Of the connection.
    pub state: State,
}

/// The flags, from the highest bit on.
fn to_bits(flags: &[bool]) -> u8 {
    flags
        .iter()
        .zip([0x80, 0x40, 0x20, 0x10, 0x08])
        .fold(0, |bits, (is_set, bit)| if *is_set { bits | bit } else { bits })
}

fn of_bits(bits: u8) -> [bool; 5] {
    [0x80, 0x40, 0x20, 0x10, 0x08].map(|bit| bits & bit != 0)
}

impl Cdc {
    /// As it is sent.
    #[must_use]
    pub fn bytes(&self) -> [u8; LINK_MESSAGE] {
        let Producer { is_blocked, is_urgent_pending, is_urgent, wants_update, is_failover } =
            self.producer;
        let State { is_finished, is_closed, is_aborted } = self.state;
        let bytes = Bytes {
            kind: KIND,
            length: 44,
            number: self.number.into(),
            token: self.token.into(),
            produced: self.produced.into(),
            consumed: self.consumed.into(),
            producer: to_bits(&[
                is_blocked,
                is_urgent_pending,
                is_urgent,
                wants_update,
                is_failover,
            ]),
            state: to_bits(&[is_finished, is_closed, is_aborted]),
            ..Bytes::new_zeroed()
        };
        zerocopy::transmute!(bytes)
    }

    /// Reads one.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let (bytes, _) = Bytes::read_from_prefix(bytes).map_err(|_| Malformed::Length)?;
        if bytes.kind != KIND {
            return Err(Malformed::Kind(bytes.kind));
        }
        if usize::from(bytes.length) != LINK_MESSAGE {
            return Err(Malformed::Length);
        }
        let [is_blocked, is_urgent_pending, is_urgent, wants_update, is_failover] =
            of_bits(bytes.producer);
        let [is_finished, is_closed, is_aborted, ..] = of_bits(bytes.state);
        Ok(Self {
            number: bytes.number.get(),
            token: bytes.token.get(),
            produced: bytes.produced.into(),
            consumed: bytes.consumed.into(),
            producer: Producer {
                is_blocked,
                is_urgent_pending,
                is_urgent,
                wants_update,
                is_failover,
            },
            state: State { is_finished, is_closed, is_aborted },
        })
    }
}
