//! The host's end of one connection, which is one queue (TCP 3.1).
//!
//! The machine owns no data. Classes of methods:
//!
//! * **Submitting.** [`Queue::submit`] sends a command, after [`Event::Ready`]; Connect comes
//!   first. The command's memory is the caller's, and has to stay until [`Event::Completed`], which
//!   comes only when the machine needs it no more.
//! * **Receiving.** [`Queue::next`] says where the next bytes go. Headers are passed to
//!   [`Queue::header`]; data is placed by the caller, straight from the socket, and [`Queue::data`]
//!   is told. After each of these [`Queue::poll`] is called until it is empty.
//! * **Sending.** [`Queue::pieces`] lists what is to be sent, [`Queue::sent`] tells how much was: at
//!   once after the socket took it, as responses are held against what was sent.
//! * **The end.** [`Queue::lose`] says for each command whether it was sent, when the connection is
//!   lost or given up.
//!
//! Command identifiers hold a place and a generation, so a late response finds no other command.
//! A controller that breaks a rule of the transport gets a terminate request (TCP 3.5); `next` is
//! [`Next::Closed`] from then on, and the commands are the caller's to take back by `lose`.
//!
//! Data digests are checked after the data was placed: see [`crate::controller`].

mod receive;
mod submit;

use crate::{
    transport::{Command, Framing, Mark, Next, Outbox, PeerTermination, Piece, Slots},
    wire::{
        Cqe, IcReq, Receiver, Rules, TermReq, Violation,
        init::{DATA_DIGEST, HEADER_DIGEST},
        term,
    },
};
use std::collections::VecDeque;
pub use submit::SubmitError;
use zerocopy::IntoBytes;

/// The deepest queue: the rest of a command identifier tells old ones from new ones.
pub const MAX_DEPTH: u16 = 4096;

/// Which way a command's data goes, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transfer {
    /// No data.
    None,
    /// To the controller, in the capsule. Limits: 8 KiB for an Admin Queue, 1 KiB before Connect
    /// has succeeded, (IOCCSZ - 4) × 16 bytes for an I/O queue.
    InCapsule(u32),
    /// To the controller, when it asks for it.
    ToController(u32),
    /// To the host: so much at most.
    ToHost(u32),
}

/// What the host asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Header digests.
    pub header_digest: bool,
    /// Data digests.
    pub data_digest: bool,
    /// HPDA: alignment of data to the host, in dwords, zero's based.
    pub alignment: u8,
    /// MAXR2T: R2Ts that may be open for one command, zero's based.
    pub max_r2t: u32,
    /// Commands at once: SQSIZE of Connect, one's based, less one where flow control is on.
    pub depth: u16,
}

impl Default for Config {
    fn default() -> Self {
        Self { header_digest: false, data_digest: false, alignment: 0, max_r2t: 0, depth: 128 }
    }
}

/// What was agreed on with the controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Negotiated {
    /// Header digests are on.
    pub header_digest: bool,
    /// Data digests are on.
    pub data_digest: bool,
    /// CPDA.
    pub alignment: u8,
    /// MAXH2CDATA.
    pub max_h2c_data: u32,
}

/// The end of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The response; made by the host where the controller left it out.
    pub cqe: Cqe,
    /// Bytes of data that were received.
    pub received: u32,
    /// Data was damaged on the way: the memory holds what nobody sent (TCP 3.5).
    pub damaged: bool,
}

/// What the caller has to know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The connection is initialized: commands may be submitted.
    Ready(Negotiated),
    /// A command is over.
    Completed {
        /// The handle.
        command: Command,
        /// How it ended.
        completion: Completion,
    },
    /// The controller has ended the connection.
    Terminated(PeerTermination),
}

/// What became of a command on a connection that is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// Its capsule was not sent whole, so the controller can't have executed it.
    NeverSent,
    /// The controller may have executed it.
    MaybeExecuted,
    /// The controller has responded.
    Completed(Completion),
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    transfer: Transfer,
    /// Data that has come, or that R2Ts have asked for.
    moved: u32,
    /// LAST_PDU has come.
    last: bool,
    /// SUCCESS has come.
    success: bool,
    damaged: bool,
    /// The capsule is sent.
    sent: bool,
    /// R2Ts whose data isn't sent.
    open_r2ts: u32,
    /// Entries of the outbox that read the command's memory.
    unsent: u32,
    /// Entries that its capsule made.
    capsule_entries: u8,
    /// The response, while the memory is still needed.
    done: Option<Completion>,
}

/// A queue at the host.
#[derive(Debug)]
pub struct Queue {
    config: Config,
    negotiated: Option<Negotiated>,
    framing: Framing,
    to_controller: Rules,
    out: Outbox,
    slots: Slots<Slot>,
    events: VecDeque<Event>,
    violation: Option<Violation>,
}

impl Queue {
    /// A queue for a connection that was just made. ICReq is in the outbox.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let digests = if config.header_digest { HEADER_DIGEST } else { 0 }
            | if config.data_digest { DATA_DIGEST } else { 0 };
        let alignment = config.alignment.min(crate::wire::init::MAX_ALIGNMENT);
        let config = Config { alignment, depth: config.depth.clamp(1, MAX_DEPTH), ..config };
        let to_controller = Rules::initial(Receiver::Controller);
        let mut out = Outbox::default();
        let request = IcReq::new(alignment, digests, config.max_r2t);
        out.head(request.as_bytes(), 0, &to_controller, None, Mark::None);
        Self {
            config,
            negotiated: None,
            framing: Framing::new(Rules::initial(Receiver::Host)),
            to_controller,
            out,
            slots: Slots::new(config.depth),
            events: VecDeque::new(),
            violation: None,
        }
    }

    /// Where the next received bytes go.
    #[must_use]
    pub fn next(&self) -> Next {
        // What a controller can make the host send is bounded by the commands' data.
        self.framing.next(false)
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

    /// The rule that the controller broke, if it did.
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

    /// `bytes` of the pieces were handed to the socket.
    pub fn sent(&mut self, bytes: usize) {
        let mut left = bytes;
        while let Some(sent) = self.out.advance(&mut left) {
            let marked = match sent.mark {
                Mark::None => None,
                Mark::Capsule(command) | Mark::Transfer(command) => Some(command),
            };
            let Some(command) = sent.data_of.or(marked) else { continue };
            let Some(slot) = self.slots.get_mut(command) else { continue };
            slot.unsent -= u32::from(sent.data_of.is_some());
            match sent.mark {
                Mark::None => {}
                Mark::Capsule(_) => slot.sent = true,
                Mark::Transfer(_) => slot.open_r2ts -= 1,
            }
            if let Some(completion) = slot.done.filter(|_| slot.unsent == 0) {
                self.complete(command, completion);
            }
        }
    }

    /// Commands that are not over.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.slots.len()
    }

    /// Ends the connection for this end: what became of each command. Memory is the caller's again
    /// when the socket, too, has let go of it.
    pub fn lose(&mut self) -> Vec<(Command, Fate)> {
        self.framing.close();
        let commands: Vec<_> = self
            .slots
            .iter()
            .map(|(command, slot)| {
                let fate = match slot.done {
                    Some(completion) => Fate::Completed(completion),
                    None if slot.sent => Fate::MaybeExecuted,
                    None => Fate::NeverSent,
                };
                (command, fate)
            })
            .collect();
        for (command, _) in &commands {
            self.slots.remove(*command);
        }
        self.out = Outbox::default();
        commands
    }

    /// Ends the connection because of a rule that the controller broke.
    pub fn terminate(&mut self, violation: Violation) {
        if self.framing.is_closed() {
            return;
        }
        self.violation = Some(violation);
        let faulty = self.framing.received(term::MAX_DATA);
        let mut request =
            TermReq::new(Receiver::Controller, violation, faulty.len()).as_bytes().to_vec();
        request.extend_from_slice(faulty);
        let rules = Rules::initial(Receiver::Controller);
        self.out.head(&request, 0, &rules, None, Mark::None);
        self.framing.close();
    }

    fn complete(&mut self, command: Command, completion: Completion) {
        self.slots.remove(command);
        self.events.push_back(Event::Completed { command, completion });
    }
}
