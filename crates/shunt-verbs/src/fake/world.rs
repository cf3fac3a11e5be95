//! The devices of all hosts and the wire between them, as one state that moves a step at a time.

mod wire;

use core::ops::Range;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

use super::faults::{Faults, Random};
use super::host::Host;
use super::pair::{Arrived, Chunk, Outstanding, Pair, Pairing};
use crate::error::Refused;
use crate::memory::Memory;
use crate::port::{Completions, Patience};
use crate::value::{
    Access, Capacity, Completion, Done, Event, Failure, Gid, Loss, PairNumber, PairState, Piece,
    ReceiveRequest, SendRequest,
};

/// Registered memory.
#[derive(Debug)]
struct Registered {
    host: usize,
    memory: Memory,
    range: Range<usize>,
    access: Access,
}

impl Registered {
    /// Where so many bytes from an address on lie in the memory. `None`: outside of what is registered.
    fn at(&self, address: u64, len: usize) -> Option<usize> {
        let at = usize::try_from(address.checked_sub(self.memory.address(0))?).ok()?;
        let end = at.checked_add(len)?;
        (self.range.start <= at && end <= self.range.end).then_some(at)
    }
}

/// A completion queue.
#[derive(Debug)]
struct Queue {
    host: usize,
    channel: usize,
    name: u64,
    room: usize,
    is_armed: bool,
    has_overrun: bool,
    ready: VecDeque<Completion>,
}

/// A channel: names of queues that have told, and a descriptor that is readable while there are some.
#[derive(Debug)]
struct Channel {
    told: VecDeque<u64>,
    ear: Arc<OwnedFd>,
}

/// One thing that may happen next.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The next send request goes over the wire.
    Transmit(u32),
    /// The oldest send request that the peer has completes.
    Complete(u32),
    /// A piece of a write gets into memory.
    Place(u32),
    /// The oldest message completes, with the writes before it.
    Deliver(u32),
}

/// All hosts.
#[derive(Debug)]
pub(super) struct World {
    random: Random,
    faults: Faults,
    is_cut: bool,
    hosts: Vec<Host>,
    regions: BTreeMap<u32, Registered>,
    channels: Vec<Channel>,
    queues: BTreeMap<usize, Queue>,
    pairs: BTreeMap<u32, Pair>,
    next: u32,
    polls: u64,
}

/// The address of a host's port.
pub(super) const fn gid(host: usize) -> Gid {
    let mut gid = [0; 16];
    (gid[0], gid[1]) = (0xfe, 0x80);
    #[allow(clippy::cast_possible_truncation, reason = "there are a few")]
    let low = host as u8 + 1;
    gid[15] = low;
    Gid(gid)
}

impl World {
    pub(super) fn new(seed: u64, faults: Faults) -> Self {
        Self {
            random: Random::new(seed),
            faults,
            is_cut: false,
            hosts: Vec::new(),
            regions: BTreeMap::new(),
            channels: Vec::new(),
            queues: BTreeMap::new(),
            pairs: BTreeMap::new(),
            next: 1,
            polls: 0,
        }
    }

    pub(super) fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
    }

    pub(super) fn set_cut(&mut self, is_cut: bool) {
        self.is_cut = is_cut;
    }

    pub(super) fn withhold(&mut self, number: PairNumber) {
        if let Some(pair) = self.pairs.get_mut(&number.0) {
            pair.is_withheld = true;
        }
    }

    pub(super) fn add_host(&mut self, memory_limit: usize) -> (usize, Arc<OwnedFd>) {
        let host = Host::new(memory_limit);
        let ear = host.ear();
        self.hosts.push(host);
        (self.hosts.len() - 1, ear)
    }

    fn fresh(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    pub(super) fn host(&mut self, host: usize) -> &mut Host {
        &mut self.hosts[host]
    }

    /// A device is lost, and what it had fails. Of its port that is down nothing arrives any more.
    pub(super) fn lose(&mut self, host: usize, loss: Loss) {
        self.hosts[host].lose(loss);
        if loss == Loss::Failed {
            let own = self.pairs.iter().filter(|(_, pair)| pair.host == host);
            let own: Vec<_> = own.map(|(number, _)| *number).collect();
            own.into_iter().for_each(|number| self.fail(number, Failure::Flushed));
        }
    }

    /// What programs have of a device: registered memory, completion queues, queue pairs.
    pub(super) fn objects(&self, host: usize) -> usize {
        self.regions.values().filter(|region| region.host == host).count()
            + self.queues.values().filter(|queue| queue.host == host).count()
            + self.pairs.values().filter(|pair| pair.host == host).count()
    }

    pub(super) fn register(
        &mut self,
        host: usize,
        memory: &Memory,
        range: Range<usize>,
        access: Access,
    ) -> Result<u32, Refused> {
        memory.part(&range).ok_or(Refused::Invalid("part of memory"))?;
        self.hosts[host].take(range.len())?;
        let key = self.fresh();
        self.regions.insert(key, Registered { host, memory: memory.clone(), range, access });
        Ok(key)
    }

    pub(super) fn deregister(&mut self, key: u32) {
        if let Some(region) = self.regions.remove(&key) {
            self.hosts[region.host].give_back(region.range.len());
        }
    }

    pub(super) fn add_channel(&mut self) -> Result<(usize, Arc<OwnedFd>), Refused> {
        let ear = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let ear = ear.map_err(|errno| Refused::System("eventfd", io::Error::from(errno)))?;
        let ear = Arc::new(ear);
        self.channels.push(Channel { told: VecDeque::new(), ear: Arc::clone(&ear) });
        Ok((self.channels.len() - 1, ear))
    }

    pub(super) fn told(&mut self, channel: usize) -> Option<u64> {
        let Channel { told, ear } = &mut self.channels[channel];
        let name = told.pop_front();
        if told.is_empty() {
            let mut count = [0; 8];
            // Nothing in it: it is not readable, as it has to be.
            let _ = rustix::io::read(&**ear, &mut count[..]);
        }
        name
    }

    pub(super) fn add_queue(
        &mut self,
        host: usize,
        room: usize,
        channel: usize,
        name: u64,
    ) -> usize {
        let number = self.fresh() as usize;
        let (is_armed, has_overrun, ready) = (false, false, VecDeque::new());
        let queue = Queue { host, channel, name, room, is_armed, has_overrun, ready };
        self.queues.insert(number, queue);
        number
    }

    pub(super) fn remove_queue(&mut self, number: usize) {
        self.queues.remove(&number);
    }

    pub(super) const fn polls(&self) -> u64 {
        self.polls
    }

    pub(super) fn poll(&mut self, number: usize, into: &mut Completions) -> Result<usize, Refused> {
        self.polls += 1;
        let queue = self.queues.get_mut(&number).ok_or(Refused::Invalid("queue"))?;
        if queue.has_overrun {
            return Err(Refused::Invalid("queue, which has overrun"));
        }
        let count = into.room().min(queue.ready.len());
        queue.ready.drain(..count).for_each(|completion| into.push(completion));
        Ok(count)
    }

    pub(super) fn arm(&mut self, number: usize) -> Result<(), Refused> {
        let queue = self.queues.get_mut(&number).ok_or(Refused::Invalid("queue"))?;
        queue.is_armed = true;
        Ok(())
    }

    pub(super) fn add_pair(&mut self, host: usize, queue: usize, capacity: Capacity) -> u32 {
        let number = self.fresh();
        let pair = Pair {
            host,
            queue,
            capacity,
            state: PairState::Reset,
            peer: None,
            patience: Patience::DEFAULT,
            tries: (0, 0),
            sends: VecDeque::new(),
            receives: VecDeque::new(),
            arrived: VecDeque::new(),
            is_withheld: false,
        };
        self.pairs.insert(number, pair);
        number
    }

    pub(super) fn remove_pair(&mut self, number: u32) {
        self.pairs.remove(&number);
    }

    fn pair(&mut self, number: u32) -> Result<&mut Pair, Refused> {
        self.pairs.get_mut(&number).ok_or(Refused::Invalid("queue pair"))
    }

    pub(super) fn state(&self, number: u32) -> Result<PairState, Refused> {
        let pair = self.pairs.get(&number).ok_or(Refused::Invalid("queue pair"))?;
        Ok(pair.state)
    }

    /// One state to the next one of a connection that is made.
    pub(super) fn advance(
        &mut self,
        number: u32,
        (from, to): (PairState, PairState),
        set: impl FnOnce(&mut Pairing<'_>),
    ) -> Result<(), Refused> {
        let pair = self.pair(number)?;
        if pair.state != from {
            return Err(Refused::State);
        }
        set(&mut Pairing(pair));
        pair.state = to;
        Ok(())
    }

    pub(super) fn post_send(
        &mut self,
        number: u32,
        request: &SendRequest<'_>,
    ) -> Result<(), Refused> {
        let pair = self.pair(number)?;
        match pair.state {
            PairState::Error => self.put(number, request.id, Err(Failure::Flushed)),
            PairState::ReadyToSend if pair.sends.len() >= pair.capacity.send as usize => {
                return Err(Refused::Full);
            }
            PairState::ReadyToSend => pair.sends.push_back(Outstanding {
                id: request.id,
                operation: request.operation,
                pieces: request.pieces.to_vec(),
                signaled: request.signaled,
                is_sent: false,
            }),
            _ => return Err(Refused::State),
        }
        Ok(())
    }

    pub(super) fn post_receive(
        &mut self,
        number: u32,
        request: &ReceiveRequest,
    ) -> Result<(), Refused> {
        let pair = self.pair(number)?;
        match pair.state {
            PairState::Reset => return Err(Refused::State),
            PairState::Error => self.put(number, request.id, Err(Failure::Flushed)),
            _ if pair.receives.len() >= pair.capacity.receive as usize => {
                return Err(Refused::Full);
            }
            _ => pair.receives.push_back(*request),
        }
        Ok(())
    }

    /// Puts a completion into its queue, and tells whoever sleeps.
    fn put(&mut self, number: u32, id: u64, outcome: Result<Done, Failure>) {
        let Some(pair) = self.pairs.get(&number) else { return };
        let Some(queue) = self.queues.get_mut(&pair.queue) else { return };
        if queue.ready.len() >= queue.room {
            queue.has_overrun = true;
            self.hosts[queue.host].tell(Event::Queue);
            return;
        }
        queue.ready.push_back(Completion { id, pair: PairNumber(number), outcome });
        if core::mem::take(&mut queue.is_armed) {
            let Channel { told, ear } = &mut self.channels[queue.channel];
            told.push_back(queue.name);
            // Full: it is readable.
            let _ = rustix::io::write(&**ear, &1_u64.to_ne_bytes());
        }
    }

    /// What may happen next.
    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for (number, pair) in &self.pairs {
            if pair.unsent().is_some() {
                steps.push(Step::Transmit(*number));
            }
            let is_told = pair.state != PairState::Error && !pair.is_withheld;
            if is_told && pair.sends.front().is_some_and(|send| send.is_sent) {
                steps.push(Step::Complete(*number));
            }
            if pair.arrived.iter().any(|arrived| matches!(arrived, Arrived::Write(_))) {
                steps.push(Step::Place(*number));
            }
            let is_message = |arrived: &Arrived| matches!(arrived, Arrived::Message { .. });
            if is_told && pair.arrived.iter().any(is_message) {
                steps.push(Step::Deliver(*number));
            }
        }
        steps
    }

    /// One step, and what goes wrong with it. False: nothing was left to do.
    pub(super) fn step(&mut self) -> bool {
        if self.steps().is_empty() {
            return false;
        }
        self.go_wrong();
        // Fewer, where a queue pair has failed.
        let steps = self.steps();
        if steps.is_empty() {
            return true;
        }
        match steps[self.random.below(steps.len())] {
            Step::Transmit(number) => self.transmit(number),
            Step::Complete(number) => self.complete(number),
            Step::Place(number) => self.place(number),
            Step::Deliver(number) => self.deliver(number),
        }
        true
    }

    fn go_wrong(&mut self) {
        let Faults { pair, withheld, cut, .. } = self.faults;
        let moving: Vec<u32> = self
            .pairs
            .iter()
            .filter(|(_, pair)| pair.state == PairState::ReadyToSend)
            .map(|(number, _)| *number)
            .collect();
        if self.random.chance(cut) {
            self.is_cut = true;
        }
        let victim = moving.get(self.random.below(moving.len())).copied();
        if let Some(victim) = victim {
            if self.random.chance(withheld) {
                self.withhold(PairNumber(victim));
            }
            if self.random.chance(pair) {
                self.break_pair(victim);
            }
        }
    }

    /// All that are connected fail by themselves.
    pub(super) fn break_all(&mut self) {
        let moves = |pair: &Pair| pair.state == PairState::ReadyToSend;
        let moving: Vec<u32> =
            self.pairs.iter().filter(|(_, pair)| moves(pair)).map(|(number, _)| *number).collect();
        moving.into_iter().for_each(|number| self.break_pair(number));
    }

    /// A queue pair fails by itself.
    pub(super) fn break_pair(&mut self, number: u32) {
        if let Some(pair) = self.pairs.get(&number) {
            self.hosts[pair.host].tell(Event::Pair(PairNumber(number)));
            self.fail(number, Failure::Flushed);
        }
    }

    /// Reads what a request sends.
    fn gather(&self, host: usize, pieces: &[Piece]) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        for piece in pieces {
            let region = self.regions.get(&piece.key.0).filter(|region| region.host == host)?;
            let (len, end) = (piece.length as usize, bytes.len());
            bytes.resize(end + len, 0);
            let at = region.at(piece.address, len)?;
            region.memory.read(at, &mut bytes[end..])?;
        }
        Some(bytes)
    }

    fn complete(&mut self, number: u32) {
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        let Some(send) = pair.sends.pop_front() else { return };
        if send.signaled {
            self.put(number, send.id, Ok(Done::Sent));
        }
    }

    fn store(&self, host: usize, (key, address, bytes): &Chunk) {
        let region = self.regions.get(key).filter(|region| region.host == host);
        if let Some((region, at)) =
            region.and_then(|region| Some((region, region.at(*address, bytes.len())?)))
        {
            let _ = region.memory.write(at, bytes);
        }
    }

    /// Places one piece of one write, whichever.
    fn place(&mut self, number: u32) {
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        let host = pair.host;
        let is_write = |at: &usize| matches!(pair.arrived[*at], Arrived::Write(_));
        let writes: Vec<usize> = (0..pair.arrived.len()).filter(is_write).collect();
        let at = writes[self.random.below(writes.len())];
        let Arrived::Write(chunks) = &mut pair.arrived[at] else { return };
        let chunk =
            (!chunks.is_empty()).then(|| chunks.swap_remove(self.random.below(chunks.len())));
        if chunks.is_empty() {
            pair.arrived.remove(at);
        }
        if let Some(chunk) = chunk {
            self.store(host, &chunk);
        }
    }

    /// Completes the oldest message: all that was written before it is in memory then.
    fn deliver(&mut self, number: u32) {
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        let host = pair.host;
        let mut placed = Vec::new();
        while let Some(arrived) = pair.arrived.pop_front() {
            match arrived {
                Arrived::Write(chunks) => placed.extend(chunks),
                Arrived::Message { receive, done, payload } => {
                    placed.push((receive.piece.key.0, receive.piece.address, payload));
                    placed.iter().for_each(|chunk| self.store(host, chunk));
                    return self.put(number, receive.id, Ok(done));
                }
            }
        }
    }

    /// To [`PairState::Error`]: what the peer has may have completed or not, the first one that has not ends as said, and all
    /// that follow are flushed.
    pub(super) fn fail(&mut self, number: u32, failure: Failure) {
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        if matches!(pair.state, PairState::Error | PairState::Reset) {
            pair.state = PairState::Error;
            return;
        }
        pair.state = PairState::Error;
        let sends = core::mem::take(&mut pair.sends);
        let has = sends.iter().filter(|send| send.is_sent).count();
        let messages =
            pair.arrived.iter().filter(|it| matches!(it, Arrived::Message { .. })).count();
        // What failed to go over the wire, rather than what the peer never answered, is the first that it has not.
        let acknowledged = match failure {
            Failure::Retries | Failure::Flushed => self.random.below(has + 1),
            _ => has,
        };
        for (at, send) in sends.into_iter().enumerate() {
            if at < acknowledged {
                if send.signaled {
                    self.put(number, send.id, Ok(Done::Sent));
                }
            } else {
                let failure = if at == acknowledged { failure } else { Failure::Flushed };
                self.put(number, send.id, Err(failure));
            }
        }
        let delivered = self.random.below(messages + 1);
        (0..delivered).for_each(|_| self.deliver(number));
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        let mut flushed = Vec::new();
        // Writes stay: what is on its way gets into memory until the queue pair is gone.
        pair.arrived.retain(|arrived| match arrived {
            Arrived::Write(_) => true,
            Arrived::Message { receive, .. } => {
                flushed.push(receive.id);
                false
            }
        });
        flushed.extend(pair.receives.drain(..).map(|receive| receive.id));
        flushed.into_iter().for_each(|id| self.put(number, id, Err(Failure::Flushed)));
    }
}
