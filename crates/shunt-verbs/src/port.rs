//! The port: what a device does for a link, whichever device it is.
//!
//! libibverbs stands behind it ([`crate::Device`]), and a device in the process ([`crate::fake`]). One suite runs over both
//! (`tests/conformance`). All calls return at once, and none tells of a message: [`Queue::poll`] does.
//!
//! Values own what they need: a queue pair keeps its queues, a registration its memory, so they may be dropped in any order.

use core::fmt::Debug;
use core::ops::Range;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use crate::error::Refused;
use crate::memory::Memory;
use crate::value::{
    Access, Capacity, Completion, Event, Gid, LocalKey, Loss, Mtu, PacketNumber, PairNumber,
    PairState, PeerPair, Piece, ReceiveRequest, Remote, RemoteKey, SendRequest,
};

/// What a device can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Completion vectors: interrupts, each of which goes to a processor of its own as a rule.
    pub vectors: u32,
    /// Requests that one work queue has room for.
    pub requests: u32,
    /// Completions that one queue has room for.
    pub completions: u32,
    /// Pieces of a request.
    pub pieces: u32,
    /// Bytes of a message.
    pub message: u32,
}

/// A device with one of its ports.
pub trait Port {
    /// Registered memory.
    type Region: Region;
    /// By which completion queues tell a thread that sleeps.
    type Channel: Channel;
    /// A completion queue.
    type Queue: Queue;
    /// A queue pair.
    type Pair: Pair;

    /// What it can do.
    fn limits(&self) -> Limits;

    /// The port's address, by which peers reach it.
    fn gid(&self) -> Gid;

    /// The longest packet that the port takes now.
    fn mtu(&self) -> Mtu;

    /// How long its queue pairs are to wait for an answer.
    fn patience(&self) -> Patience {
        Patience::DEFAULT
    }

    /// Registers a part of memory, which stays in memory from then on and counts against `RLIMIT_MEMLOCK`.
    ///
    /// # Errors
    /// [`Refused::MemoryLimit`]; [`Refused::Invalid`] where the range does not lie inside; what the system says.
    fn register(
        &self,
        memory: &Memory,
        range: Range<usize>,
        access: Access,
    ) -> Result<Self::Region, Refused>;

    /// A channel, for one thread that sleeps.
    ///
    /// # Errors
    /// What the system says.
    fn channel(&self) -> Result<Self::Channel, Refused>;

    /// A completion queue of room for so many, which interrupts the processor of `vector` (below [`Limits::vectors`]) when it
    /// is armed, and tells the channel of `name`.
    ///
    /// # Errors
    /// [`Refused::Invalid`] for a vector that there is not; what the system says.
    fn queue(
        &self,
        room: u32,
        channel: &Self::Channel,
        vector: u32,
        name: u64,
    ) -> Result<Self::Queue, Refused>;

    /// A queue pair of a reliable connection, in [`PairState::Reset`], with all completions in one queue.
    ///
    /// # Errors
    /// What the system says.
    fn pair(&self, queue: &Self::Queue, capacity: Capacity) -> Result<Self::Pair, Refused>;

    /// What has happened to the device since. `None`: nothing more.
    fn event(&self) -> Option<Event>;

    /// A descriptor that is readable while [`Self::event`] has something.
    fn events(&self) -> BorrowedFd<'_>;

    /// Looks whether it can still be used, and why not: not all of that is told by events.
    fn loss(&self) -> Option<Loss>;
}

/// Registered memory. Dropped, the keys are void: a request that names them fails, and its queue pair with it.
pub trait Region: Debug {
    /// For own requests.
    fn local_key(&self) -> LocalKey;

    /// For the peer's requests.
    fn remote_key(&self) -> RemoteKey;

    /// Address of its first byte.
    fn address(&self) -> u64;

    /// Bytes.
    fn length(&self) -> usize;

    /// A piece of it. `None`: it does not lie inside.
    fn piece(&self, range: Range<usize>) -> Option<Piece> {
        if range.start > range.end || range.end > self.length() {
            return None;
        }
        let length = u32::try_from(range.len()).ok()?;
        Some(Piece { address: self.address() + range.start as u64, length, key: self.local_key() })
    }

    /// What the peer has to know of it.
    fn as_remote(&self) -> Remote {
        Remote { address: self.address(), key: self.remote_key() }
    }
}

/// By which completion queues tell a thread that sleeps. Its descriptor is readable while [`Self::next`] has a name.
pub trait Channel: Debug + AsFd {
    /// The name of a completion queue that has told since. `None`: none more.
    ///
    /// # Errors
    /// What the system says.
    fn next(&self) -> io::Result<Option<u64>>;
}

/// A completion queue.
pub trait Queue: Debug {
    /// Takes completions, the oldest first, as many as there are and `into` has room for; returns their number.
    ///
    /// # Errors
    /// The queue is broken: it has overrun, or the device has failed.
    fn poll(&self, into: &mut Completions) -> Result<usize, Refused>;

    /// Has the channel told once, of the next completion that comes after this. Completions that are there already do not count,
    /// so the caller polls again before it sleeps.
    ///
    /// # Errors
    /// What the system says.
    fn arm(&self) -> Result<(), Refused>;
}

/// Most completions that one poll takes.
pub const BATCH: usize = 32;

/// Room for completions.
#[derive(Debug, Default)]
pub struct Completions {
    taken: Vec<Completion>,
}

impl Completions {
    /// Puts one there.
    pub(crate) fn push(&mut self, completion: Completion) {
        self.taken.push(completion);
    }

    /// How many more one poll takes.
    pub(crate) fn room(&self) -> usize {
        BATCH.saturating_sub(self.taken.len())
    }

    /// Takes all out, the oldest first.
    pub fn drain(&mut self) -> impl Iterator<Item = Completion> {
        self.taken.drain(..)
    }
}

/// A queue pair of a reliable connection.
///
/// The order of calls is that of its states: [`Self::initialize`], receive requests, [`Self::receive_from`] when the peer's
/// description has arrived, [`Self::send_with`], send requests. [`Self::fail`] is possible at any time.
pub trait Pair: Debug {
    /// Its number on the port.
    fn number(&self) -> PairNumber;

    /// Its state now.
    ///
    /// # Errors
    /// What the system says.
    fn state(&self) -> Result<PairState, Refused>;

    /// To [`PairState::Initialized`].
    ///
    /// # Errors
    /// [`Refused::State`] in any other than [`PairState::Reset`].
    fn initialize(&self) -> Result<(), Refused>;

    /// To [`PairState::ReadyToReceive`], with the peer that messages come from and go to.
    ///
    /// # Errors
    /// [`Refused::State`] in any other than [`PairState::Initialized`].
    fn receive_from(&self, peer: &PeerPair) -> Result<(), Refused>;

    /// To [`PairState::ReadyToSend`], with the number of the first packet, and how patient it is with the peer.
    ///
    /// # Errors
    /// [`Refused::State`] in any other than [`PairState::ReadyToReceive`].
    fn send_with(&self, first: PacketNumber, patience: Patience) -> Result<(), Refused>;

    /// To [`PairState::Error`]: every request that is outstanding ends with a completion, those of a queue in their order.
    ///
    /// # Errors
    /// What the system says.
    fn fail(&self) -> Result<(), Refused>;

    /// Posts a send request.
    ///
    /// # Errors
    /// [`Refused::Full`]; [`Refused::State`] before [`PairState::ReadyToSend`]. In [`PairState::Error`] it is taken, and flushed.
    fn post_send(&self, request: &SendRequest<'_>) -> Result<(), Refused> {
        self.post_sends(core::slice::from_ref(request))
    }

    /// Posts send requests in their order, of which the device hears at once.
    ///
    /// # Errors
    /// As for [`Self::post_send`]; those before the one that was refused are posted.
    fn post_sends(&self, requests: &[SendRequest<'_>]) -> Result<(), Refused>;

    /// Posts a receive request.
    ///
    /// # Errors
    /// [`Refused::Full`]; [`Refused::State`] in [`PairState::Reset`].
    fn post_receive(&self, request: &ReceiveRequest) -> Result<(), Refused>;
}

/// How long a queue pair waits for a peer that does not answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Patience {
    /// Time to an answer, as a power of two of 4.096 µs: 0 (for ever) to 31 (IBTA 9.7.6.1.3).
    pub timeout: u8,
    /// How often it asks again: 0 to 7.
    pub retries: u8,
    /// How often it asks a peer again that has no receive request: 0 to 6; 7 for ever.
    pub not_ready: u8,
}

impl Patience {
    /// Some 70 ms to an answer, and 7 more tries: a peer that is gone is noticed within a second.
    pub const DEFAULT: Self = Self { timeout: 14, retries: 7, not_ready: 7 };

    /// Half a second: for a device that is a part of the kernel, which answers when it gets a processor. One that asks again before that
    /// sends all once more, and is slower still.
    pub const SOFTWARE: Self = Self { timeout: 17, ..Self::DEFAULT };
}
