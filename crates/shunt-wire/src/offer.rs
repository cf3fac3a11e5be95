//! Where an offered connection stands: one word in its record, of which client and agent change each their part.
//!
//! A client that may be connecting to a program of another user, or in another network namespace, offers the socket
//! to the agent before connect(2), and enters a number of its own as [`Offer::Open`]. Whoever changes the word first has
//! won: the agent, which has found the acceptor or will not have the two together, or the client, which has
//! enough of waiting.

use crate::agent::RegionId;
use crate::reason::Reason;

/// What the word says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Offer {
    /// Nothing was offered, or it is over.
    None,
    /// The acceptor is not known yet. The number tells this use of the record from others.
    Open(u64),
    /// It stays on TCP.
    Declined(Reason),
    /// The acceptor has it: here.
    Claimed {
        /// The region, which the client fetches from the agent unless it has it.
        region: RegionId,
        /// The slot in it.
        slot: u8,
    },
}

const KIND: u64 = 3;
const KIND_BITS: u32 = 2;
const SLOT_BITS: u32 = 8;
const OPEN: u64 = 1;
const DECLINED: u64 = 2;
const CLAIMED: u64 = 3;

impl Offer {
    /// The word. Regions' names are below 2^53.
    #[must_use]
    pub const fn to_word(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Open(number) => number << KIND_BITS | OPEN,
            Self::Declined(reason) => (reason as u64) << KIND_BITS | DECLINED,
            Self::Claimed { region, slot } => {
                (region << SLOT_BITS | slot as u64) << KIND_BITS | CLAIMED
            }
        }
    }

    /// What a word says; one that nobody writes says nothing.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, reason = "the slot and the code are low parts")]
    pub const fn from_word(word: u64) -> Self {
        let rest = word >> KIND_BITS;
        match word & KIND {
            OPEN => Self::Open(rest),
            CLAIMED => Self::Claimed { region: rest >> SLOT_BITS, slot: rest as u8 },
            DECLINED => match Reason::from_code(rest as u8) {
                Some(reason) => Self::Declined(reason),
                None => Self::None,
            },
            _ => Self::None,
        }
    }
}
