//! Link layer control: messages about a link, on the link (RFC 7609 appendix A.3; `smc_llc.c`).
//!
//! A message is a request, or the answer to one, which repeats most of it. All but three have
//! [`LINK_MESSAGE`] bytes.
//!
//! Version 2 has no continuations: ADD LINK, REQUEST ADD LINK and DELETE RKEY can be longer
//! instead. Linux sends ADD LINK CONTINUE in version 1 alone, and CONFIRM RKEY CONTINUE never,
//! since a link group has three links at most (`smc_llc.c`: `smc_llc_srv_add_link`,
//! `smc_llc_event_handler`).
//!
//! The length is in the byte order of the sender's processor (`smc_llc.c`: `length_v2`, which is
//! not converted). It is sent as a little-endian one does, and taken in either order, if that is
//! not more than has arrived.

mod add_link;
mod flags;
mod keys;
mod links;

pub use add_link::{AddLink, RequestAddLink};
pub use keys::{ConfirmRkey, DeleteRkey, MOST_DELETED, Token};
pub use links::{ConfirmLink, DeleteLink, Reason, TestLink};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{LINK_MESSAGE, Malformed};

/// Types of messages (`smc_llc.h`: `enum smc_llc_msg_type`).
mod kind {
    pub(super) const CONFIRM_LINK: u8 = 0x21;
    pub(super) const ADD_LINK: u8 = 0x22;
    pub(super) const DELETE_LINK: u8 = 0x24;
    pub(super) const REQUEST_ADD_LINK: u8 = 0x25;
    pub(super) const CONFIRM_RKEY: u8 = 0x26;
    pub(super) const TEST_LINK: u8 = 0x27;
    pub(super) const DELETE_RKEY: u8 = 0x29;
}

/// The beginning of each message.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    kind: u8,
    length: [u8; 2],
    flags: u8,
}

/// A message about a link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Llc {
    /// The link carries messages.
    ConfirmLink(ConfirmLink),
    /// There could be another link.
    AddLink(AddLink),
    /// The client would have another link.
    RequestAddLink(RequestAddLink),
    /// A link, or all of them, ends.
    DeleteLink(DeleteLink),
    /// A ring that was registered.
    ConfirmRkey(ConfirmRkey),
    /// Rings that are written into no more.
    DeleteRkey(DeleteRkey),
    /// Whether the link lives.
    TestLink(TestLink),
}

impl Llc {
    /// As it is sent.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let (kind, flags, body) = match self {
            Self::ConfirmLink(message) => (kind::CONFIRM_LINK, message.flags(), message.body()),
            Self::AddLink(message) => (kind::ADD_LINK, message.flags(), message.body()),
            Self::RequestAddLink(message) => {
                (kind::REQUEST_ADD_LINK, message.flags(), message.body())
            }
            Self::DeleteLink(message) => (kind::DELETE_LINK, message.flags(), message.body()),
            Self::ConfirmRkey(message) => (kind::CONFIRM_RKEY, message.flags(), message.body()),
            Self::DeleteRkey(message) => (kind::DELETE_RKEY, message.flags(), message.body()),
            Self::TestLink(message) => (kind::TEST_LINK, message.flags(), message.body()),
        };
        let length = (size_of::<Header>() + body.len()).max(LINK_MESSAGE);
        // No message has more than 8 KiB.
        let said = u16::try_from(length).unwrap_or(u16::MAX).to_le_bytes();
        let header = Header { kind, length: said, flags };
        let mut bytes = [header.as_bytes(), &body].concat();
        bytes.resize(length, 0);
        bytes
    }

    /// Reads one.
    ///
    /// # Errors
    /// It is none. Of an unknown type that is [`Malformed::Kind`], which Linux leaves alone.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let (header, body) = Header::read_from_prefix(bytes).map_err(|_| Malformed::Length)?;
        let orders = [u16::from_le_bytes(header.length), u16::from_be_bytes(header.length)];
        let fits = |length: u16| (LINK_MESSAGE..=bytes.len()).contains(&usize::from(length));
        if !orders.into_iter().any(fits) {
            return Err(Malformed::Length);
        }
        let flags = header.flags;
        Ok(match header.kind {
            kind::CONFIRM_LINK => Self::ConfirmLink(ConfirmLink::of(flags, body)?),
            kind::ADD_LINK => Self::AddLink(AddLink::of(flags, body)?),
            kind::REQUEST_ADD_LINK => Self::RequestAddLink(RequestAddLink::of(flags, body)?),
            kind::DELETE_LINK => Self::DeleteLink(DeleteLink::of(flags, body)?),
            kind::CONFIRM_RKEY => Self::ConfirmRkey(ConfirmRkey::of(flags, body)?),
            kind::DELETE_RKEY => Self::DeleteRkey(DeleteRkey::of(flags, body)?),
            kind::TEST_LINK => Self::TestLink(TestLink::of(flags, body)?),
            kind => return Err(Malformed::Kind(kind)),
        })
    }
}
