//! The controller's end of one connection, which is one queue (TCP 3.1).
//!
//! The machine owns no data. It says where received data goes and what is to be sent; the caller
//! moves bytes between socket and store. Classes of methods:
//!
//! * **Receiving.** [`Queue::next`] says where the next bytes go. Headers are passed to
//!   [`Queue::header`]; data is placed by the caller, straight from the socket where it can be,
//!   and [`Queue::data`] is told. After each of these [`Queue::poll`] is called until it is empty,
//!   before `next` is called again: an event tells of a command before its data comes.
//! * **Commands.** [`Event::Command`] brings a command. For data of the host that is not in the
//!   capsule, the caller calls [`Queue::receive`] when it has memory for it; [`Event::Received`]
//!   follows. [`Queue::respond`] ends a command, with data for the host or without.
//! * **Phases.** Until [`Queue::connected`] all but one Connect is refused. After
//!   [`Queue::require_authentication`] all but Authentication Send and Receive is refused, until
//!   [`Queue::authenticated`]. Of what is refused nothing but its header is looked at.
//! * **Sending.** [`Queue::pieces`] lists what is to be sent, [`Queue::sent`] tells how much was.
//!   [`Event::Sent`] follows when the machine needs the memory of a command no more.
//!
//! A peer that breaks a rule of the transport gets a terminate request (TCP 3.5); `next` is
//! [`Next::Closed`] from then on. Commands that the caller has not answered are forgotten then.
//!
//! Data digests: where [`Queue::data_digest`] is true, `data` wants the CRC32C of the bytes, made
//! from where they were placed. So what is checked is what the store gets, unless others write to
//! that memory too.

mod receive;
mod respond;

use crate::{
    transport::{CidMap, Command, Framing, Next, Outbox, PeerTermination, Piece, Slots},
    wire::{Receiver, Rules, Sqe, Status, TermReq, Violation, fabrics::CONNECT_DATA_LEN, term},
};
use std::collections::VecDeque;
use zerocopy::IntoBytes;

/// In-capsule data that every Admin Queue takes (TCP 3.3.2: 8 KiB).
pub const ADMIN_IN_CAPSULE: u32 = 8192;

/// The deepest queue: the rest of a transfer tag tells old tags from new ones.
pub const MAX_DEPTH: u16 = 1024;

/// No further PDU is received while more bytes of headers than these are to be sent: a host that
/// doesn't read its responses gets no more of them.
const MAX_BACKLOG: usize = 256 * 1024;

/// What the controller grants to a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Header digests may be turned on.
    pub header_digest: bool,
    /// Data digests may be turned on.
    pub data_digest: bool,
    /// CPDA: alignment of data to the controller, in dwords, zero's based.
    pub alignment: u8,
    /// In-capsule data on I/O queues: what IOCCSZ says, without the queue entry.
    pub in_capsule: u32,
    /// MAXH2CDATA: a multiple of four, from 4,096.
    pub max_h2c_data: u32,
    /// The most data in one C2HData.
    pub max_c2h_data: u32,
    /// The most data of one command: what MDTS says.
    pub max_transfer: u32,
    /// The most data that R2Ts have asked for at any time.
    pub max_in_flight: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            header_digest: true,
            data_digest: true,
            alignment: 0,
            in_capsule: 8192,
            max_h2c_data: 128 * 1024,
            max_c2h_data: 128 * 1024,
            max_transfer: 1024 * 1024,
            max_in_flight: 4 * 1024 * 1024,
        }
    }
}

/// Where the data of a command is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transfer {
    /// The command has none.
    None,
    /// It follows in the capsule: `next` will say so.
    InCapsule(u32),
    /// The host sends it when [`Queue::receive`] asks for it.
    FromHost(u32),
    /// The host expects up to these many bytes.
    ToHost(u32),
}

impl Transfer {
    /// Bytes.
    #[must_use]
    pub const fn len(self) -> u32 {
        match self {
            Self::None => 0,
            Self::InCapsule(len) | Self::FromHost(len) | Self::ToHost(len) => len,
        }
    }

    /// True if there are none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }
}

/// What the caller has to know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A command has come. It is over when the caller has responded.
    Command {
        /// The handle.
        command: Command,
        /// The submission queue entry.
        sqe: Sqe,
        /// Its data.
        transfer: Transfer,
    },
    /// All data of a command is in its memory.
    Received(Command),
    /// Its data was damaged on the way. The machine has responded; the command is over.
    Damaged(Command),
    /// The data that [`Queue::respond`] promised is sent; its memory is needed no more.
    Sent(Command),
    /// The host has ended the connection.
    Terminated(PeerTermination),
}

/// What was agreed on with a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Nothing: ICReq has to come.
    Initial,
    /// ICReq has come, Connect has to.
    Connect,
    /// Authentication is required and not done.
    Authentication,
    /// All commands are taken.
    Ready,
}

/// Data that an R2T has asked for.
#[derive(Clone, Copy, Debug)]
struct OpenR2t {
    /// Where the next byte belongs.
    next: u32,
    /// Where the data ends.
    end: u32,
    /// Bytes that were asked for.
    len: u32,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    cid: u16,
    transfer: Transfer,
    /// Data that has been asked for, from the start on.
    requested: u32,
    r2t: Option<OpenR2t>,
    /// [`Queue::receive`] was called.
    wanted: bool,
    damaged: bool,
    /// The answer, if it has to wait for an R2T to be served.
    answer: Option<(Status, u64)>,
    /// Entries of the outbox that read the command's memory.
    unsent: u32,
}

/// A queue at the controller.
#[derive(Debug)]
pub struct Queue {
    limits: Limits,
    phase: Phase,
    framing: Framing,
    /// What was negotiated for PDUs to the host.
    to_host: Rules,
    out: Outbox,
    slots: Slots<Slot>,
    cids: CidMap,
    /// Commands that want data and have none asked for.
    waiting: VecDeque<Command>,
    in_flight: u32,
    events: VecDeque<Event>,
    /// SQHD, and the queue's size; `None` if flow control is off.
    flow: Option<(u16, u16)>,
    /// SQHD of the next response where flow control is off: it says so in Connect's (Base 6.3).
    sqhd: u16,
    violation: Option<Violation>,
}

impl Queue {
    /// A queue for a connection that was just accepted.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            phase: Phase::Initial,
            framing: Framing::new(Rules::initial(Receiver::Controller)),
            to_host: Rules::initial(Receiver::Host),
            out: Outbox::default(),
            // Connect alone is allowed at first.
            slots: Slots::new(1),
            cids: CidMap::default(),
            waiting: VecDeque::new(),
            in_flight: 0,
            events: VecDeque::new(),
            flow: None,
            sqhd: 0,
            violation: None,
        }
    }

    /// Where the next received bytes go.
    #[must_use]
    pub fn next(&self) -> Next {
        self.framing.next(self.out.backlog() > MAX_BACKLOG)
    }

    /// The next event.
    pub fn poll(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// True if [`Queue::data`] wants the CRC32C of the bytes.
    #[must_use]
    pub const fn data_digest(&self) -> bool {
        self.framing.rules.data_digest
    }

    /// The rule that the host broke, if it did.
    #[must_use]
    pub const fn violation(&self) -> Option<Violation> {
        self.violation
    }

    /// What is to be sent, in order.
    pub fn pieces(&self) -> impl Iterator<Item = Piece<'_>> {
        self.out.pieces()
    }

    /// True if nothing is to be sent.
    #[must_use]
    pub fn is_sent(&self) -> bool {
        self.out.is_empty()
    }

    /// Connect has succeeded: `depth` entries (at most [`MAX_DEPTH`]), on an Admin or an I/O queue.
    /// To be called before the response to Connect is given.
    pub fn connected(&mut self, depth: u16, io_queue: bool, flow_control: bool) {
        let depth = depth.clamp(1, MAX_DEPTH);
        self.slots.grow(depth);
        let in_capsule = if io_queue { self.limits.in_capsule } else { ADMIN_IN_CAPSULE };
        self.framing.rules.max_data =
            in_capsule.max(ADMIN_IN_CAPSULE).max(self.limits.max_h2c_data);
        self.flow = flow_control.then_some((1 % depth, depth));
        self.sqhd = if flow_control { 0 } else { u16::MAX };
        self.limits.in_capsule = in_capsule;
        self.phase = Phase::Ready;
    }

    /// Commands other than authentication are refused from now on.
    pub const fn require_authentication(&mut self) {
        self.phase = Phase::Authentication;
    }

    /// Authentication has succeeded.
    pub fn authenticated(&mut self) {
        if self.phase == Phase::Authentication {
            self.phase = Phase::Ready;
        }
    }

    /// The command with this identifier, for Abort.
    #[must_use]
    pub fn find(&self, cid: u16) -> Option<Command> {
        self.slots.at(self.cids.get(cid)?)
    }

    /// Commands that are not over.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.slots.len()
    }

    /// True if a response waits for data that the host was asked for.
    #[must_use]
    pub fn owes_response(&self) -> bool {
        self.slots.iter().any(|(_, slot)| slot.answer.is_some())
    }

    /// Ends the connection because of a rule that the host broke.
    pub fn terminate(&mut self, violation: Violation) {
        if self.framing.is_closed() {
            return;
        }
        self.violation = Some(violation);
        let faulty = self.framing.received(term::MAX_DATA);
        let mut request = TermReq::new(Receiver::Host, violation, faulty.len()).as_bytes().to_vec();
        request.extend_from_slice(faulty);
        // A terminate request has no digest.
        let rules = Rules::initial(Receiver::Host);
        self.out.head(&request, 0, &rules, None, crate::transport::Mark::None);
        self.framing.close();
    }

    /// Limit of the data in this command's capsule. Fabrics commands have that of the Admin Queue on
    /// every queue, so that hosts can authenticate where IOCCSZ allows no data.
    fn in_capsule_limit(&self, sqe: &Sqe) -> u32 {
        match self.phase {
            Phase::Initial | Phase::Connect => CONNECT_DATA_LEN,
            _ if sqe.fctype().is_some() => self.limits.in_capsule.max(ADMIN_IN_CAPSULE),
            Phase::Authentication | Phase::Ready => self.limits.in_capsule,
        }
    }
}
