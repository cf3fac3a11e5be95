//! What messages consist of.

use core::fmt;
use core::net::{IpAddr, SocketAddr};

use shunt_far::Halt;
use shunt_far::lane::{End, PIECE, Rest, Stand};
use shunt_far::link::Position;
use shunt_far::message::Words;
use shunt_verbs::value::{Gid, Mtu, PacketNumber, PairNumber, PeerPair, Remote, RemoteKey};

use super::bounds::{Malformed, NAME, SLOTS};
use super::bytes::{Reader, Writer};

/// Whether the sender can make link groups.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Device {
    /// It has no device, or one that cannot be used now.
    #[default]
    None,
    /// It has one.
    Ready,
}

/// Who the sender is. Keys say who it is for sure; this says the rest.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Hello {
    /// Any number that another agent, or the same one started anew, does not have.
    pub incarnation: u64,
    /// Bytes of a ring: a power of two.
    pub ring: u32,
    /// Places of a link group: 1 to [`SLOTS`].
    pub slots: u16,
    /// Messages of one side of a link that may be unacknowledged: 4 or more.
    pub messages: u16,
    /// Whether it has a device.
    pub device: Device,
    /// The host's name, for people: at most [`NAME`] bytes, none of them a control character.
    pub name: String,
}

/// One side of a link group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Group {
    /// Its name: the one that offers it has chosen that.
    pub group: u32,
    /// The sender's queue pair.
    pub pair: PeerPair,
}

/// A place of a link group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The link group.
    pub group: u32,
    /// Below [`SLOTS`].
    pub slot: u16,
    /// Number of the place's use.
    pub generation: u32,
}

/// Memory of the sender's that the receiver may write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// Where it begins.
    pub at: Remote,
    /// Bytes.
    pub length: u32,
}

/// A connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lane {
    /// Where it goes.
    pub place: Place,
    /// The end that has connected.
    pub client: SocketAddr,
    /// The end that has accepted.
    pub server: SocketAddr,
    /// The sender's ring.
    pub region: Region,
}

/// Where the connections of a link group stood when its link failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Halted {
    /// The link group.
    pub group: u32,
    /// One of each connection; at most [`SLOTS`], each place once.
    pub halts: Vec<Halt>,
}

/// A link group goes on with another queue pair.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Renewal {
    /// The link group.
    pub group: u32,
    /// The sender's queue pair.
    pub pair: PeerPair,
    /// Where each connection is; at most [`SLOTS`], each place once.
    pub positions: Vec<Position>,
}

/// Where a side is in an [association](crate::association).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resume {
    /// The sender's number of it: not 0.
    pub own: u64,
    /// The receiver's, as far as the sender knows it. 0: it does not.
    pub far: u64,
    /// Messages that the sender has heard in it.
    pub heard: u64,
}

/// What a side needs to measure a link group against TCP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Measurable {
    /// The link group.
    pub group: u32,
    /// Nanoseconds that a thread on the sender's host takes to be woken.
    pub wake_up: u32,
    /// Memory of the sender's that the receiver may write for that.
    pub region: Region,
}

/// By which the receiver of [`Message::Measure`](super::Message::Measure) knows the connection that is to be measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Token(pub [u8; 16]);

/// Whether a side promotes connections.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Judgement {
    /// Not yet: nothing has been measured.
    #[default]
    Unmeasured,
    /// It does: the link is not slower than TCP.
    Faster,
    /// It does not: the link is slower.
    Slower,
    /// It does, whatever is measured.
    Always,
}

/// Why there is no link group, or no connection in one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// There is no device.
    Device,
    /// No more memory may be registered.
    Memory,
    /// There are as many as there may be.
    Many,
    /// Sizes differ.
    Sizes,
    /// There is no such thing.
    Unknown,
    /// The device refused.
    Failed,
    /// The link is slower than TCP, or was not compared with it.
    Slower,
    /// Connections use the link, which is measured only at rest.
    Busy,
}

/// Why the sender ends the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bye {
    /// It ends itself.
    Ends,
    /// The receiver is no peer of its any more.
    Removed,
    /// The receiver has another, newer connection.
    Replaced,
    /// The receiver has said what cannot be.
    Violation,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Device => "it has no device that can be used",
            Self::Memory => "it may not register more memory (RLIMIT_MEMLOCK)",
            Self::Many => "it has as many link groups as it may have",
            Self::Sizes => "it has other sizes of rings or link groups",
            Self::Unknown => "it knows of no such link group or listener",
            Self::Failed => "its device refused",
            Self::Slower => "its link is slower than TCP, or was not measured",
            Self::Busy => "its connections are busy",
        })
    }
}

impl fmt::Display for Bye {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ends => "it ends",
            Self::Removed => "this agent is no peer of its any more",
            Self::Replaced => "it has a newer connection",
            Self::Violation => "this agent said what cannot be",
        })
    }
}

/// True for an address by which a host is reached from others.
#[must_use]
pub fn is_reachable(ip: IpAddr) -> bool {
    let is_broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
    !(ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || is_broadcast)
}

pub(super) fn read_address(from: &mut Reader<'_>) -> Result<IpAddr, Malformed> {
    from.ip().and_then(|ip| if is_reachable(ip) { Ok(ip) } else { Err(Malformed::Value) })
}

/// Also at all addresses of the host.
pub(super) fn read_listener(from: &mut Reader<'_>) -> Result<SocketAddr, Malformed> {
    let at = from.socket()?;
    let is_right = at.port() != 0 && (at.ip().is_unspecified() || is_reachable(at.ip()));
    if is_right { Ok(at) } else { Err(Malformed::Value) }
}

/// An end of a connection.
fn read_end(from: &mut Reader<'_>) -> Result<SocketAddr, Malformed> {
    let at = from.socket()?;
    if at.port() != 0 && is_reachable(at.ip()) { Ok(at) } else { Err(Malformed::Value) }
}

/// Values in one byte each.
macro_rules! codes {
    ($($type:ident: $($value:ident = $code:literal),+;)+) => {$(
        impl $type {
            pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
                match from.u8()? {
                    $($code => Ok(Self::$value),)+
                    _ => Err(Malformed::Value),
                }
            }

            pub(super) fn write(self, to: &mut Writer) {
                to.u8(match self { $(Self::$value => $code,)+ });
            }
        }
    )+};
}

codes! {
    Device: None = 0, Ready = 1;
    Refusal: Device = 1, Memory = 2, Many = 3, Sizes = 4, Unknown = 5, Failed = 6, Slower = 7, Busy = 8;
    Judgement: Unmeasured = 0, Faster = 1, Slower = 2, Always = 3;
    Bye: Ends = 1, Removed = 2, Replaced = 3, Violation = 4;
}

/// As the field of a request names it (IBTA 12.7: path MTU).
const MTUS: [(Mtu, u8); 5] =
    [(Mtu::B256, 1), (Mtu::B512, 2), (Mtu::B1024, 3), (Mtu::B2048, 4), (Mtu::B4096, 5)];

/// Numbers of queue pairs and packets have 24 bits.
fn read_24(from: &mut Reader<'_>) -> Result<u32, Malformed> {
    let number = from.u32()?;
    if number >> 24 == 0 { Ok(number) } else { Err(Malformed::Value) }
}

impl Hello {
    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (incarnation, ring, slots) = (from.u64()?, from.u32()?, from.u16()?);
        let (messages, device, len) = (from.u16()?, Device::read(from)?, from.u8()?);
        if usize::from(len) > NAME {
            return Err(Malformed::Many);
        }
        let name = core::str::from_utf8(from.take(usize::from(len))?);
        let name = name.map_err(|_| Malformed::Value)?.to_owned();
        let has_sizes =
            ring.is_power_of_two() && (1..=SLOTS).contains(&usize::from(slots)) && messages >= 4;
        // It is shown on terminals.
        if !has_sizes || name.chars().any(char::is_control) {
            return Err(Malformed::Value);
        }
        Ok(Self { incarnation, ring, slots, messages, device, name })
    }

    pub(super) fn write(&self, to: &mut Writer) {
        to.u64(self.incarnation).u32(self.ring).u16(self.slots).u16(self.messages);
        self.device.write(to);
        let name = &self.name[..self.name.floor_char_boundary(NAME)];
        to.u8(u8::try_from(name.len()).unwrap_or(0)).put(name.as_bytes());
    }
}

impl Group {
    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (group, gid, number) = (from.u32()?, Gid(from.bytes16()?), read_24(from)?);
        let (first, mtu) = (read_24(from)?, from.u8()?);
        let mtu = MTUS.iter().find(|(_, code)| *code == mtu).ok_or(Malformed::Value)?.0;
        if gid.is_empty() {
            return Err(Malformed::Value);
        }
        let (number, first_packet) = (PairNumber(number), PacketNumber::new(first));
        Ok(Self { group, pair: PeerPair { gid, number, first_packet, mtu } })
    }

    pub(super) fn write(&self, to: &mut Writer) {
        let PeerPair { gid, number, first_packet, mtu } = self.pair;
        to.u32(self.group).put(&gid.0).u32(number.0).u32(first_packet.get());
        let code = MTUS.iter().find(|(known, _)| *known == mtu).map_or(0, |(_, code)| *code);
        to.u8(code);
    }
}

impl Resume {
    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (own, far, heard) = (from.u64()?, from.u64()?, from.u64()?);
        if own == 0 {
            return Err(Malformed::Value);
        }
        Ok(Self { own, far, heard })
    }

    pub(super) fn write(&self, to: &mut Writer) {
        to.u64(self.own).u64(self.far).u64(self.heard);
    }
}

impl Place {
    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (group, slot, generation) = (from.u32()?, from.u16()?, from.u32()?);
        if usize::from(slot) >= SLOTS {
            return Err(Malformed::Value);
        }
        Ok(Self { group, slot, generation })
    }

    pub(super) fn write(self, to: &mut Writer) {
        to.u32(self.group).u16(self.slot).u32(self.generation);
    }
}

impl Region {
    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (address, key, length) = (from.u64()?, RemoteKey(from.u32()?), from.u32()?);
        // What is written there stays inside of addresses.
        if length == 0 || address.checked_add(u64::from(length)).is_none() {
            return Err(Malformed::Value);
        }
        Ok(Self { at: Remote { address, key }, length })
    }

    pub(super) fn write(self, to: &mut Writer) {
        to.u64(self.at.address).u32(self.at.key.0).u32(self.length);
    }
}

impl Measurable {
    pub(super) fn read(group: u32, from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self { group, wake_up: from.u32()?, region: Region::read(from)? })
    }

    pub(super) fn write(&self, to: &mut Writer) {
        self.region.write(to.u32(self.wake_up));
    }
}

impl Lane {
    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (place, client, server) = (Place::read(from)?, read_end(from)?, read_end(from)?);
        Ok(Self { place, client, server, region: Region::read(from)? })
    }

    pub(super) fn write(&self, to: &mut Writer) {
        self.place.write(to);
        to.socket(self.client);
        to.socket(self.server);
        self.region.write(to);
    }
}

/// Places of a list, each of them there once.
struct Places([bool; SLOTS]);

impl Places {
    const fn new() -> Self {
        Self([false; SLOTS])
    }

    fn read(&mut self, from: &mut Reader<'_>) -> Result<usize, Malformed> {
        let slot = usize::from(from.u16()?);
        match self.0.get_mut(slot) {
            Some(seen) if !*seen => *seen = true,
            _ => return Err(Malformed::Value),
        }
        Ok(slot)
    }
}

impl Renewal {
    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (Group { group, pair }, mut places) = (Group::read(from)?, Places::new());
        let positions = from.list(SLOTS, |from| {
            let (slot, generation) = (places.read(from)?, from.u32()?);
            let heard = Words::of(&from.array()?);
            let has_left = match from.u8()? {
                0 => false,
                1 => true,
                _ => return Err(Malformed::Value),
            };
            let ring = Remote { address: from.u64()?, key: RemoteKey(from.u32()?) };
            Ok(Position { slot, generation, heard, has_left, ring })
        })?;
        Ok(Self { group, pair, positions })
    }

    pub(super) fn write(&self, to: &mut Writer) {
        Group { group: self.group, pair: self.pair }.write(to);
        to.list(SLOTS, &self.positions, |to, at| {
            let slot = u16::try_from(at.slot).unwrap_or(u16::MAX);
            to.u16(slot).u32(at.generation).put(&at.heard.bytes());
            to.u8(at.has_left.into()).u64(at.ring.address).u32(at.ring.key.0);
        });
    }
}

impl Halted {
    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (group, mut places) = (from.u32()?, Places::new());
        let halts = from.list(SLOTS, |from| {
            let (slot, generation) = (places.read(from)?, from.u32()?);
            let stand = Stand {
                received: from.u64()?,
                marks: from.u32()?,
                ring_end: from.u64()?,
                own_marks: from.u32()?,
                own_at: from.u64()?,
                own_end: from.u64()?,
            };
            Ok(Halt { slot, generation, stand })
        })?;
        Ok(Self { group, halts })
    }

    pub(super) fn write(&self, to: &mut Writer) {
        to.u32(self.group).list(SLOTS, &self.halts, |to, halt| {
            let slot = u16::try_from(halt.slot).unwrap_or(u16::MAX);
            let Stand { received, marks, ring_end, own_marks, own_at, own_end } = halt.stand;
            to.u16(slot).u32(halt.generation).u64(received).u32(marks).u64(ring_end);
            to.u32(own_marks).u64(own_at).u64(own_end);
        });
    }
}

pub(super) fn read_rest(from: &mut Reader<'_>) -> Result<Rest, Malformed> {
    let (at, base, len) = (from.u64()?, from.u64()?, usize::from(from.u16()?));
    if len > PIECE {
        return Err(Malformed::Many);
    }
    let bytes = from.take(len)?.to_vec();
    let end = match from.u8()? {
        0 => None,
        1 => {
            let (marks, mark_at) = (from.u32()?, [from.u64()?, from.u64()?]);
            Some(End { marks, mark_at, closed: from.u8()?.into() })
        }
        _ => return Err(Malformed::Value),
    };
    Ok(Rest { at, base, bytes, end })
}

pub(super) fn write_rest(rest: &Rest, to: &mut Writer) {
    let bytes = &rest.bytes[..rest.bytes.len().min(PIECE)];
    to.u64(rest.at).u64(rest.base).u16(u16::try_from(bytes.len()).unwrap_or(u16::MAX)).put(bytes);
    match rest.end {
        None => to.u8(0),
        Some(End { marks, mark_at: [even, odd], closed }) => {
            // What a program writes there that is no way to end is none for the peer, either.
            let closed = u8::try_from(closed).unwrap_or(u8::MAX);
            to.u8(1).u32(marks).u64(even).u64(odd).u8(closed)
        }
    };
}
