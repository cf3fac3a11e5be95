//! What a link has of its device: a queue pair, and the buffers of its messages.

use core::ops::Range;

use shunt_verbs::port::{Pair, Patience, Port, Region};
use shunt_verbs::value::{
    Access, Capacity, Operation, PacketNumber, PairNumber, PeerPair, Piece, ReceiveRequest, Remote,
    SendRequest,
};
use shunt_verbs::{Memory, Refused};

/// Names writes, which have no completion but by a failure.
const WRITE: u64 = u64::MAX;

/// Requests of a message at most: three writes, where rings of two lengths wrap around at two places, and a send.
const MOST: usize = 4;

/// How many messages there is room for, and how long they are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Messages that may be on their way out, and bytes of a buffer for one.
    pub(crate) sends: (u16, usize),
    /// The same of those that come in: a receive request each.
    pub(crate) receives: (u16, usize),
    /// Requests that a message takes at most: writes and a send.
    pub(crate) requests: u32,
}

impl Sizes {
    const fn outbox(self) -> usize {
        self.sends.0 as usize * self.sends.1
    }

    /// Requests that a queue pair has room for.
    pub(crate) const fn capacity(self) -> Capacity {
        let send = self.sends.0 as u32 * self.requests;
        Capacity { send, receive: self.receives.0 as u32, pieces: 1 }
    }

    /// Bytes that are registered for messages.
    pub(crate) const fn registered(self) -> usize {
        self.outbox() + self.receives.0 as usize * self.receives.1
    }

    /// Completions that may be in the queue at once.
    pub(crate) const fn completions(self) -> u32 {
        let Capacity { send, receive, .. } = self.capacity();
        send + receive
    }
}

/// Both rings of a connection, as the device knows them.
#[derive(Debug)]
pub(crate) struct Registered<P: Port> {
    pub(crate) outgoing: P::Region,
    pub(crate) incoming: P::Region,
}

impl<P: Port> Registered<P> {
    /// Those at these places of a memory.
    pub(crate) fn of(
        port: &P,
        memory: &Memory,
        (outgoing, incoming): (&Range<usize>, &Range<usize>),
    ) -> Result<Self, Refused> {
        let register = |range: &Range<usize>, access| port.register(memory, range.clone(), access);
        Ok(Self {
            outgoing: register(outgoing, Access::Local)?,
            incoming: register(incoming, Access::RemoteWrite)?,
        })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.outgoing.length() + self.incoming.length()
    }
}

/// See the module. Gone with this value.
#[derive(Debug)]
pub(crate) struct OfDevice<P: Port> {
    pair: P::Pair,
    patience: Patience,
    sizes: Sizes,
    /// Buffers of messages that go out, and behind them those of messages that come in.
    memory: Memory,
    from: P::Region,
    into: P::Region,
}

impl<P: Port> OfDevice<P> {
    /// A queue pair whose completions come in `queue`, with all receive requests posted.
    pub(crate) fn new(port: &P, queue: &P::Queue, sizes: Sizes) -> Result<Self, Refused> {
        let (half, all) = (sizes.outbox(), sizes.registered());
        let memory = Memory::new(all).map_err(|error| Refused::System("mmap", error))?;
        let from = port.register(&memory, 0..half, Access::Local)?;
        let into = port.register(&memory, half..all, Access::LocalWrite)?;
        let pair = port.pair(queue, sizes.capacity())?;
        pair.initialize()?;
        let it = Self { pair, patience: port.patience(), sizes, memory, from, into };
        (0..u64::from(sizes.receives.0)).try_for_each(|at| it.receive(at))?;
        Ok(it)
    }

    pub(crate) fn number(&self) -> PairNumber {
        self.pair.number()
    }

    /// Messages of the far side's queue pair arrive from now on.
    pub(crate) fn receive_from(&self, far: &PeerPair) -> Result<(), Refused> {
        self.pair.receive_from(far)
    }

    /// Messages go there from now on.
    pub(crate) fn send_with(&self, first: PacketNumber) -> Result<(), Refused> {
        self.pair.send_with(first, self.patience)
    }

    /// Ends all requests.
    pub(crate) fn fail(&self) {
        // Where the device refuses even that, dropping the queue pair ends it.
        let _ = self.pair.fail();
    }

    /// Posts a receive request for a message.
    pub(crate) fn receive(&self, at: u64) -> Result<(), Refused> {
        let length = self.sizes.receives.1;
        let buffer = usize::try_from(at).unwrap_or(usize::MAX).saturating_mul(length);
        let piece = self.into.piece(buffer..buffer.saturating_add(length));
        let piece = piece.ok_or(Refused::Invalid("buffer"))?;
        self.pair.post_receive(&ReceiveRequest { id: at, piece })
    }

    /// Reads what was received by a request. `None`: there is no such request, or it has less room.
    pub(crate) fn read(&self, at: u64, to: &mut [u8]) -> Option<()> {
        let (count, length) = self.sizes.receives;
        let at = usize::try_from(at).ok().filter(|at| *at < usize::from(count))?;
        let has_room = to.len() <= length;
        has_room.then(|| self.memory.read(self.sizes.outbox() + at * length, to))?
    }

    /// Posts writes, and behind them a message, whose completion is called `id`. The last message in its buffer has completed: no more
    /// are outstanding than there are buffers. Returns how many requests that is; `None`: the device refuses.
    pub(crate) fn post(
        &self,
        writes: impl IntoIterator<Item = (Piece, Remote)>,
        message: &[u8],
        id: u64,
    ) -> Option<u32> {
        let (count, length) = self.sizes.sends;
        let buffer = usize::try_from(id % u64::from(count)).unwrap_or(0) * length;
        if message.len() > length {
            return None;
        }
        self.memory.write(buffer, message)?;
        let piece = self.from.piece(buffer..buffer + message.len())?;
        // The device hears of all of them at once.
        let mut parts = [([piece], Operation::Send); MOST];
        let mut count = 0;
        for (piece, to) in writes {
            *parts.get_mut(count)? = ([piece], Operation::Write(to));
            count += 1;
        }
        *parts.get_mut(count)? = ([piece], Operation::Send);
        let requests = parts.each_ref().map(|(pieces, operation)| {
            let (operation, is_message) = (*operation, matches!(operation, Operation::Send));
            let id = if is_message { id } else { WRITE };
            let (signaled, solicited) = (is_message, is_message);
            SendRequest { id, operation, pieces, signaled, solicited }
        });
        self.pair.post_sends(requests.get(..=count)?).ok()?;
        u32::try_from(count + 1).ok()
    }
}
