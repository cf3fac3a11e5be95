//! What a link has of its device: a queue pair, and the buffers of its messages.

use shunt_verbs::port::{Pair, Patience, Port, Region};
use shunt_verbs::value::{
    Access, Operation, PacketNumber, PairNumber, PeerPair, Piece, ReceiveRequest, Remote,
    SendRequest,
};
use shunt_verbs::{Memory, Refused};

use super::settings::{BUFFER, Settings};
use crate::lane::Posting;
use crate::message::{self, Message};

/// Names writes, which have no completion but by a failure.
const WRITE: u64 = u64::MAX;

/// Both rings of a connection, as the device knows them.
#[derive(Debug)]
pub(super) struct Registered<P: Port> {
    pub(super) outgoing: P::Region,
    pub(super) incoming: P::Region,
}

impl<P: Port> Registered<P> {
    pub(super) fn bytes(&self) -> usize {
        self.outgoing.length() + self.incoming.length()
    }
}

/// See the module. Gone with this value.
#[derive(Debug)]
pub(super) struct OfDevice<P: Port> {
    pair: P::Pair,
    patience: Patience,
    /// Of messages.
    buffers: usize,
    memory: Memory,
    from: P::Region,
    into: P::Region,
}

impl<P: Port> OfDevice<P> {
    /// A queue pair whose completions come in `queue`, with all receive requests posted.
    pub(super) fn new(port: &P, queue: &P::Queue, settings: Settings) -> Result<Self, Refused> {
        let buffers = usize::from(settings.messages);
        let half = buffers * BUFFER;
        let memory = Memory::new(2 * half).map_err(|error| Refused::System("mmap", error))?;
        let from = port.register(&memory, 0..half, Access::Local)?;
        let into = port.register(&memory, half..2 * half, Access::LocalWrite)?;
        let pair = port.pair(queue, settings.capacity())?;
        pair.initialize()?;
        let it = Self { pair, patience: port.patience(), buffers, memory, from, into };
        (0..u64::from(settings.messages)).try_for_each(|at| it.receive(at))?;
        Ok(it)
    }

    pub(super) fn number(&self) -> PairNumber {
        self.pair.number()
    }

    /// Makes the connection to the far side's queue pair.
    pub(super) fn connect(&self, first: PacketNumber, far: &PeerPair) -> Result<(), Refused> {
        self.pair.receive_from(far)?;
        self.pair.send_with(first, self.patience)
    }

    /// Ends all requests.
    pub(super) fn fail(&self) {
        // Where the device refuses even that, dropping the queue pair ends it.
        let _ = self.pair.fail();
    }

    /// Posts a receive request for a message.
    pub(super) fn receive(&self, at: u64) -> Result<(), Refused> {
        let buffer = usize::try_from(at).unwrap_or(usize::MAX).saturating_mul(BUFFER);
        let piece = self.into.piece(buffer..buffer.saturating_add(BUFFER));
        let piece = piece.ok_or(Refused::Invalid("buffer"))?;
        self.pair.post_receive(&ReceiveRequest { id: at, piece })
    }

    /// What was received by a request. `None`: there is no such request.
    pub(super) fn read(&self, at: u64) -> Option<[u8; BUFFER]> {
        let mut bytes = [0; BUFFER];
        let at = usize::try_from(at).ok().filter(|at| *at < self.buffers)?;
        self.memory.read((self.buffers + at) * BUFFER, &mut bytes)?;
        Some(bytes)
    }

    /// Posts writes, and behind them a message, whose completion is called `id`. The last message in its buffer has completed: no more
    /// are outstanding than there are buffers. Returns how many requests that is; `None`: the device refuses.
    pub(super) fn post(&self, writes: Writes, message: &Message, id: u64) -> Option<u32> {
        let buffer = usize::try_from(id % self.buffers as u64).unwrap_or(0) * BUFFER;
        self.memory.write(buffer, &message.bytes())?;
        let piece = self.from.piece(buffer..buffer + message::LEN)?;
        let mut requests = 1;
        for (piece, to) in writes.into_iter().flatten() {
            requests += 1;
            let (operation, pieces) = (Operation::Write(to), [piece]);
            let (signaled, solicited) = (false, false);
            let request =
                SendRequest { id: WRITE, operation, pieces: &pieces, signaled, solicited };
            self.pair.post_send(&request).ok()?;
        }
        let (operation, pieces) = (Operation::Send, [piece]);
        let request =
            SendRequest { id, operation, pieces: &pieces, signaled: true, solicited: true };
        self.pair.post_send(&request).ok()?;
        Some(requests)
    }
}

/// Up to two pieces of a ring, and where they go.
pub(super) type Writes = [Option<(Piece, Remote)>; 2];

/// The writes of a posting: the same places here and there. `None`: they do not lie in the ring.
pub(super) fn writes(from: &impl Region, far: Remote, posting: &Posting) -> Option<Writes> {
    let mut writes = [None; 2];
    for (write, (at, len)) in writes.iter_mut().zip([posting.span.head, posting.span.tail]) {
        if len > 0 {
            let to = Remote { address: far.address.checked_add(at as u64)?, key: far.key };
            *write = Some((from.piece(at..at + len)?, to));
        }
    }
    Some(writes)
}
