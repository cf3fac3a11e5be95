//! A device in the process: hosts on one network, with the semantics of reliable connections and faults by a seed.
//!
//! Nothing happens but in [`Network::step`], which does one thing, chosen by the seed: a request goes over the wire, a piece of a
//! write gets into memory, a completion comes, or something goes wrong ([`Faults`]). So a simulator drives it, and a seed replays.
//!
//! It is as free as the specification lets a device be:
//!
//! * A sender's memory is read when its request goes over the wire, at any time before the completion.
//! * A write is cut in pieces that get into memory in any order, mixed with those of other writes, also after its sender's
//!   completion. Only the completion of a message on the same queue pair says that the writes before it are in memory.
//! * Requests of one queue go and complete in order; those of two queues in any.
//! * When a queue pair fails, whatever is outstanding ends with a completion each, in order. What the peer has had already may
//!   be among it, and messages that were told as sent may be flushed at the receiver. Writes that have arrived go on getting into memory.
//! * The peer of a queue pair that has failed hears of it when it next sends.

mod faults;
mod host;
mod pair;
#[cfg(test)]
mod tests;
mod world;

use core::ops::Range;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use faults::{Faults, Random};

use crate::error::Refused;
use crate::memory::Memory;
use crate::port::{Channel, Completions, Limits, Pair, Patience, Port, Queue, Region};
use crate::value::{
    Access, Capacity, Event, Failure, Gid, LocalKey, Loss, Mtu, PacketNumber, PairNumber,
    PairState, PeerPair, ReceiveRequest, RemoteKey, SendRequest,
};
use world::World;

/// Completion vectors of each device.
const VECTORS: u32 = 4;

type Shared = Arc<Mutex<World>>;

fn lock(shared: &Shared) -> MutexGuard<'_, World> {
    // A panic of a test's leaves the state as it is, which is all that the next look needs.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Hosts, each with a device, and the wire between them.
#[derive(Clone, Debug)]
pub struct Network {
    world: Shared,
}

impl Network {
    /// Without hosts yet. The same seed and the same calls give the same history.
    #[must_use]
    pub fn new(seed: u64, faults: Faults) -> Self {
        Self { world: Arc::new(Mutex::new(World::new(seed, faults))) }
    }

    /// A host's device.
    #[must_use]
    pub fn host(&self) -> FakePort {
        self.host_with_limit(usize::MAX)
    }

    /// That of a host where so many bytes may be registered.
    #[must_use]
    pub fn host_with_limit(&self, bytes: usize) -> FakePort {
        let (host, events) = lock(&self.world).add_host(bytes);
        FakePort { world: self.world.clone(), host, events }
    }

    /// Does one thing. False: nothing is left to do.
    #[must_use]
    pub fn step(&self) -> bool {
        lock(&self.world).step()
    }

    /// Goes on until nothing is left to do, or for so many steps.
    pub fn settle(&self, most: usize) {
        for _ in 0..most {
            if !self.step() {
                break;
            }
        }
    }

    /// What goes wrong from now on.
    pub fn set_faults(&self, faults: Faults) {
        lock(&self.world).set_faults(faults);
    }

    /// Cuts the wire, or mends it.
    pub fn set_cut(&self, is_cut: bool) {
        lock(&self.world).set_cut(is_cut);
    }

    /// Keeps a queue pair's completions back until it fails.
    pub fn withhold(&self, pair: PairNumber) {
        lock(&self.world).withhold(pair);
    }

    /// How often completion queues were polled: who polls without end does not sleep.
    #[must_use]
    pub fn polls(&self) -> u64 {
        lock(&self.world).polls()
    }

    /// Fails all queue pairs that are connected, as when a device is reset.
    pub fn break_all(&self) {
        lock(&self.world).break_all();
    }

    /// Fails a queue pair.
    pub fn break_pair(&self, pair: PairNumber) {
        lock(&self.world).break_pair(pair.0);
    }
}

/// A host's device.
#[derive(Clone, Debug)]
pub struct FakePort {
    world: Shared,
    host: usize,
    events: Arc<OwnedFd>,
}

impl FakePort {
    /// From now on it is lost.
    pub fn lose(&self, loss: Loss) {
        lock(&self.world).lose(self.host, loss);
    }

    /// What programs have of it: registered memory, completion queues, queue pairs. A device that is removed waits until there is nothing.
    #[must_use]
    pub fn objects(&self) -> usize {
        lock(&self.world).objects(self.host)
    }
}

/// Registered memory.
#[derive(Debug)]
pub struct FakeRegion {
    world: Shared,
    key: u32,
    address: u64,
    length: usize,
}

/// A channel.
#[derive(Debug)]
pub struct FakeChannel {
    world: Shared,
    number: usize,
    ear: Arc<OwnedFd>,
}

/// A completion queue.
#[derive(Debug)]
pub struct FakeQueue {
    inner: Arc<QueueInner>,
}

#[derive(Debug)]
struct QueueInner {
    world: Shared,
    number: usize,
}

/// A queue pair.
#[derive(Debug)]
pub struct FakePair {
    world: Shared,
    number: u32,
    _queue: Arc<QueueInner>,
}

impl Drop for FakeRegion {
    fn drop(&mut self) {
        lock(&self.world).deregister(self.key);
    }
}

impl Drop for QueueInner {
    fn drop(&mut self) {
        lock(&self.world).remove_queue(self.number);
    }
}

impl Drop for FakePair {
    fn drop(&mut self) {
        lock(&self.world).remove_pair(self.number);
    }
}

impl Port for FakePort {
    type Region = FakeRegion;
    type Channel = FakeChannel;
    type Queue = FakeQueue;
    type Pair = FakePair;

    fn limits(&self) -> Limits {
        let (requests, completions) = (4096, 1 << 16);
        Limits { vectors: VECTORS, requests, completions, pieces: 4, message: 1 << 30 }
    }

    fn gid(&self) -> Gid {
        world::gid(self.host)
    }

    fn mtu(&self) -> Mtu {
        Mtu::B4096
    }

    fn register(
        &self,
        memory: &Memory,
        range: Range<usize>,
        access: Access,
    ) -> Result<FakeRegion, Refused> {
        let (address, length) = (memory.address(range.start), range.len());
        let key = lock(&self.world).register(self.host, memory, range, access)?;
        Ok(FakeRegion { world: self.world.clone(), key, address, length })
    }

    fn channel(&self) -> Result<FakeChannel, Refused> {
        let (number, ear) = lock(&self.world).add_channel()?;
        Ok(FakeChannel { world: self.world.clone(), number, ear })
    }

    fn queue(
        &self,
        room: u32,
        channel: &FakeChannel,
        vector: u32,
        name: u64,
    ) -> Result<FakeQueue, Refused> {
        if vector >= VECTORS {
            return Err(Refused::Invalid("completion vector"));
        }
        let number = lock(&self.world).add_queue(self.host, room as usize, channel.number, name);
        Ok(FakeQueue { inner: Arc::new(QueueInner { world: self.world.clone(), number }) })
    }

    fn pair(&self, queue: &FakeQueue, capacity: Capacity) -> Result<FakePair, Refused> {
        let number = lock(&self.world).add_pair(self.host, queue.inner.number, capacity);
        Ok(FakePair { world: self.world.clone(), number, _queue: queue.inner.clone() })
    }

    fn event(&self) -> Option<Event> {
        lock(&self.world).host(self.host).event()
    }

    fn events(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    fn loss(&self) -> Option<Loss> {
        lock(&self.world).host(self.host).loss()
    }
}

impl Region for FakeRegion {
    fn local_key(&self) -> LocalKey {
        LocalKey(self.key)
    }

    fn remote_key(&self) -> RemoteKey {
        RemoteKey(self.key)
    }

    fn address(&self) -> u64 {
        self.address
    }

    fn length(&self) -> usize {
        self.length
    }
}

impl AsFd for FakeChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ear.as_fd()
    }
}

impl Channel for FakeChannel {
    fn next(&self) -> io::Result<Option<u64>> {
        Ok(lock(&self.world).told(self.number))
    }
}

impl Queue for FakeQueue {
    fn poll(&self, into: &mut Completions) -> Result<usize, Refused> {
        lock(&self.inner.world).poll(self.inner.number, into)
    }

    fn arm(&self) -> Result<(), Refused> {
        lock(&self.inner.world).arm(self.inner.number)
    }
}

impl Pair for FakePair {
    fn number(&self) -> PairNumber {
        PairNumber(self.number)
    }

    fn state(&self) -> Result<PairState, Refused> {
        lock(&self.world).state(self.number)
    }

    fn initialize(&self) -> Result<(), Refused> {
        let step = (PairState::Reset, PairState::Initialized);
        lock(&self.world).advance(self.number, step, |_| {})
    }

    fn receive_from(&self, peer: &PeerPair) -> Result<(), Refused> {
        let step = (PairState::Initialized, PairState::ReadyToReceive);
        lock(&self.world).advance(self.number, step, |pair| pair.with(*peer))
    }

    fn send_with(&self, _first: PacketNumber, patience: Patience) -> Result<(), Refused> {
        let step = (PairState::ReadyToReceive, PairState::ReadyToSend);
        lock(&self.world).advance(self.number, step, |pair| pair.patient(patience))
    }

    fn fail(&self) -> Result<(), Refused> {
        lock(&self.world).fail(self.number, Failure::Flushed);
        Ok(())
    }

    fn post_sends(&self, requests: &[SendRequest<'_>]) -> Result<(), Refused> {
        let mut world = lock(&self.world);
        requests.iter().try_for_each(|request| world.post_send(self.number, request))
    }

    fn post_receive(&self, request: &ReceiveRequest) -> Result<(), Refused> {
        lock(&self.world).post_receive(self.number, request)
    }
}
