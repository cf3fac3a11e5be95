//! What two agents say to each other.
//!
//! A kind in one byte, then its fields, numbers in network byte order. Addresses are 16 bytes, IPv4 ones in their mapped form
//! (RFC 4291, section 2.5.5.2). A list has its length in front, bounded by [`ADDRESSES`], [`LISTENERS`], [`SLOTS`] and
//! [`PIECE`](shunt_far::lane::PIECE). Each value has
//! exactly one form, and what is not the form of a value is refused whole.
//!
//! | Kind | Message | Fields after the kind |
//! |---:|---|---|
//! | 1 | [`Hello`] | incarnation 8, ring 4, slots 2, messages 2, device 1, length of the name 1, name |
//! | 2 | [`Message::Addresses`] | number 2, then 16 each |
//! | 3 | [`Message::Listeners`] | number 2, then address 16 and port 2 each |
//! | 4, 5 | [`Message::Offer`], [`Message::Accept`] | group 4, GID 16, queue pair 4, first packet 4, MTU 1 |
//! | 6 | [`Message::Refuse`] | group 4, why 1 |
//! | 7 | [`Message::Open`] | group 4, slot 2, use 4, client 18, server 18, address 8, key 4, length 4 |
//! | 8 | [`Message::Opened`] | group 4, slot 2, use 4, address 8, key 4, length 4 |
//! | 9 | [`Message::NotOpened`] | group 4, slot 2, use 4, why 1 |
//! | 10 | [`Message::Halted`] | group 4, number 2, then slot 2, use 4, and what [`Stand`](shunt_far::lane::Stand) has: 8, 4, 8, 4, 8, 8 each |
//! | 11 | [`Message::Gone`] | group 4 |
//! | 12 | [`Message::Ping`] | heard 8 |
//! | 13 | [`Message::Bye`] | why 1 |
//! | 14 | [`Message::Rest`] | group 4, slot 2, use 4, at 8, shape 8, length 2, bytes, number of ends 1, then marks 4, places 8 and 8, how 1 |
//! | 15 | [`Message::Device`] | device 1 |
//! | 16 | [`Message::Measure`] | group 4, token 16, wake-up 4, address 8, key 4, length 4 |
//! | 17 | [`Message::Measurable`] | group 4, wake-up 4, address 8, key 4, length 4 |
//! | 18 | [`Message::NotMeasurable`] | group 4, why 1 |
//! | 19 | [`Message::Judged`] | judgement 1 |
//! | 20 | [`Message::Failed`] | group 4 |
//! | 21, 22 | [`Message::Renew`], [`Message::Renewed`] | group 4, GID 16, queue pair 4, first packet 4, MTU 1, number 2, then slot 2, use 4, [`Words`](shunt_far::message::Words) 72, left 1, address 8, key 4 each |
//! | 23 | [`Message::Resume`] | own 8, far 8, heard 8 |

mod bounds;
mod bytes;
mod value;

use core::net::{IpAddr, SocketAddr};

use shunt_far::lane::Rest;

pub use bounds::{ADDRESSES, LISTENERS, LONGEST, Malformed, NAME, SLOTS};
use bytes::{Reader, Writer};
pub use value::{
    Bye, Device, Group, Halted, Hello, Judgement, Lane, Measurable, Place, Refusal, Region,
    Renewal, Resume, Token, is_reachable,
};

/// A message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// The first one of each side, and its only one of this kind.
    Hello(Hello),
    /// All addresses of the host by which others can reach it, instead of those that were said before.
    Addresses(Vec<IpAddr>),
    /// All listeners of the host's programs, instead of those that were said before.
    Listeners(Vec<SocketAddr>),
    /// A new link group, with the sender's queue pair.
    Offer(Group),
    /// The answer: the sender's queue pair, which is connected.
    Accept(Group),
    /// The other answer: no link group.
    Refuse(u32, Refusal),
    /// A connection in a link group that the sender has offered, with the ring that the receiver may write.
    Open(Lane),
    /// The answer, with the ring that the receiver may write.
    Opened(Place, Region),
    /// The other answer: it stays on TCP. Or its opener takes it back.
    NotOpened(Place, Refusal),
    /// The link has failed; where each connection stood.
    Halted(Halted),
    /// Behind that: bytes of a program that has ended, which the link has not delivered.
    Rest(Place, Rest),
    /// The sender has no more to say of that link group.
    Gone(u32),
    /// The sender's device is lost, or there is one again.
    Device(Device),
    /// The sender is about to measure a link group against TCP: what the receiver needs to do the same. It will connect once more,
    /// without a proof, and say this token.
    Measure(Measurable, Token),
    /// The answer: it awaits that connection.
    Measurable(Measurable),
    /// The other answer: not now.
    NotMeasurable(u32, Refusal),
    /// Whether the sender promotes connections with the receiver's host.
    Judged(Judgement),
    /// The link of a link group that the receiver has offered has failed: it may go on with another queue pair, and says so first.
    Failed(u32),
    /// The link of a link group that the sender has offered has failed, and is to go on: the sender's new queue pair.
    Renew(Renewal),
    /// The answer: the sender's, which is connected. The other answer is [`Self::Halted`].
    Renewed(Renewal),
    /// The sender is there, and has heard so many messages, of those that [associations](crate::association) count: all but this one,
    /// [`Self::Hello`], [`Self::Resume`] and [`Self::Bye`].
    Ping(u64),
    /// The first one behind Hello: whether both go on where they were when another connection ended.
    Resume(Resume),
    /// The sender ends the connection.
    Bye(Bye),
}

const HELLO: u8 = 1;
const ADDRESSES_KIND: u8 = 2;
const LISTENERS_KIND: u8 = 3;
const OFFER: u8 = 4;
const ACCEPT: u8 = 5;
const REFUSE: u8 = 6;
const OPEN: u8 = 7;
const OPENED: u8 = 8;
const NOT_OPENED: u8 = 9;
const HALTED: u8 = 10;
const GONE: u8 = 11;
const PING: u8 = 12;
const BYE: u8 = 13;
const REST: u8 = 14;
const DEVICE: u8 = 15;
const MEASURE: u8 = 16;
const MEASURABLE: u8 = 17;
const NOT_MEASURABLE: u8 = 18;
const JUDGED: u8 = 19;
const FAILED: u8 = 20;
const RENEW: u8 = 21;
const RENEWED: u8 = 22;
const RESUME: u8 = 23;

impl Message {
    /// Reads a message.
    ///
    /// # Errors
    /// Why the bytes are none.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let from = &mut reader;
        let message = match from.u8()? {
            HELLO => Self::Hello(Hello::read(from)?),
            ADDRESSES_KIND => Self::Addresses(from.list(ADDRESSES, value::read_address)?),
            LISTENERS_KIND => Self::Listeners(from.list(LISTENERS, value::read_listener)?),
            OFFER => Self::Offer(Group::read(from)?),
            ACCEPT => Self::Accept(Group::read(from)?),
            REFUSE => Self::Refuse(from.u32()?, Refusal::read(from)?),
            OPEN => Self::Open(Lane::read(from)?),
            OPENED => Self::Opened(Place::read(from)?, Region::read(from)?),
            NOT_OPENED => Self::NotOpened(Place::read(from)?, Refusal::read(from)?),
            HALTED => Self::Halted(Halted::read(from)?),
            REST => Self::Rest(Place::read(from)?, value::read_rest(from)?),
            GONE => Self::Gone(from.u32()?),
            DEVICE => Self::Device(Device::read(from)?),
            MEASURE => {
                let (group, token) = (from.u32()?, Token(from.bytes16()?));
                Self::Measure(Measurable::read(group, from)?, token)
            }
            MEASURABLE => Self::Measurable(Measurable::read(from.u32()?, from)?),
            NOT_MEASURABLE => Self::NotMeasurable(from.u32()?, Refusal::read(from)?),
            JUDGED => Self::Judged(Judgement::read(from)?),
            FAILED => Self::Failed(from.u32()?),
            RENEW => Self::Renew(Renewal::read(from)?),
            RENEWED => Self::Renewed(Renewal::read(from)?),
            PING => Self::Ping(from.u64()?),
            RESUME => Self::Resume(Resume::read(from)?),
            BYE => Self::Bye(Bye::read(from)?),
            _ => return Err(Malformed::Kind),
        };
        reader.end()?;
        Ok(message)
    }

    /// Its bytes. Of a list that is too long, only as many as it may have; of a name, too.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        let to = &mut writer;
        match self {
            Self::Hello(hello) => hello.write(to.u8(HELLO)),
            Self::Addresses(addresses) => {
                to.u8(ADDRESSES_KIND).list(ADDRESSES, addresses, |to, it| to.ip(*it));
            }
            Self::Listeners(listeners) => {
                to.u8(LISTENERS_KIND).list(LISTENERS, listeners, |to, it| to.socket(*it));
            }
            Self::Offer(group) => group.write(to.u8(OFFER)),
            Self::Accept(group) => group.write(to.u8(ACCEPT)),
            Self::Refuse(group, why) => why.write(to.u8(REFUSE).u32(*group)),
            Self::Open(lane) => lane.write(to.u8(OPEN)),
            Self::Opened(place, region) => {
                place.write(to.u8(OPENED));
                region.write(to);
            }
            Self::NotOpened(place, why) => {
                place.write(to.u8(NOT_OPENED));
                why.write(to);
            }
            Self::Halted(halted) => halted.write(to.u8(HALTED)),
            Self::Rest(place, rest) => {
                place.write(to.u8(REST));
                value::write_rest(rest, to);
            }
            Self::Gone(group) => {
                to.u8(GONE).u32(*group);
            }
            Self::Device(device) => device.write(to.u8(DEVICE)),
            Self::Measure(it, token) => it.write(to.u8(MEASURE).u32(it.group).put(&token.0)),
            Self::Measurable(it) => it.write(to.u8(MEASURABLE).u32(it.group)),
            Self::NotMeasurable(group, why) => why.write(to.u8(NOT_MEASURABLE).u32(*group)),
            Self::Judged(judgement) => judgement.write(to.u8(JUDGED)),
            Self::Failed(group) => {
                to.u8(FAILED).u32(*group);
            }
            Self::Renew(renewal) => renewal.write(to.u8(RENEW)),
            Self::Renewed(renewal) => renewal.write(to.u8(RENEWED)),
            Self::Ping(heard) => {
                to.u8(PING).u64(*heard);
            }
            Self::Resume(resume) => resume.write(to.u8(RESUME)),
            Self::Bye(why) => why.write(to.u8(BYE)),
        }
        writer.into_bytes()
    }
}

#[cfg(test)]
mod tests;
