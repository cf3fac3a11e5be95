//! The links of all link groups: workers, queue pairs, registered memory.

mod failover;
mod kernels;
mod measure;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use shunt_far::kernel;
use shunt_far::lane::Rest;
use shunt_far::link::{Ended, Load, NotOpened, Rings, Settlement};
use shunt_far::placement::{PerGroup, Place as Queue, Placement};
use shunt_far::worker::Name as LinkName;
use shunt_far::{Cause, Halt, Link, Mirror as _, News, Settings};
use shunt_peer::PublicKey;
use shunt_peer::message::{self, Refusal, Renewal};
use shunt_shm::region::{Geometry, Side};
use shunt_smc::wire::clc::{Diagnosis, End};
use shunt_verbs::port::Port;
use shunt_verbs::value::{Loss, PacketNumber, PairNumber, PeerPair, Remote};
use shunt_verbs::{Memory, Refused};
use shunt_wire::reason::Reason;
use tracing::warn;

use crate::kernels::groups::At;
use crate::mirror::{Bells, Lanes, Place};
use crate::pool::{Pooled, Told};
use crate::sampling::Samples;
use crate::shared::Shared;

/// Most workers: a thread each.
const WORKERS: u32 = 4;
/// Links that a worker has room for.
const LINKS: u32 = 64;

/// What all links are made with.
pub(crate) const SETTINGS: Settings = Settings::DEFAULT;

/// A link group: with which peer, and its name there.
pub(crate) type Name = (PublicKey, u32);

/// What has come of something that a worker was to do.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// A queue pair is made, or cannot be.
    Made(Name, LinkName, Result<PeerPair, Refused>),
    /// One is connected.
    Connected(Name),
    /// A connection's rings are registered: where the far side writes, and how its program tells of news. Or they cannot be.
    Opened(Name, usize, Result<(Remote, u32), Refusal>),
    /// Both sides have opened a connection, or its link has failed before.
    Attached(Name, usize, bool),
    /// Another queue pair is made for a link that has failed, and connected where the peer had made one before. `None`: it cannot be.
    Renewed(Name, Option<Renewal>),
    /// A link does not go on with the queue pair that was made for it.
    GivenUp(Name),
    /// Where the connections of a link stand that has failed for good.
    Stood(Name, Vec<Halt>),
    /// Connections of a link that has failed are settled: what the peer is to be sent, and the places of those that are not yet.
    Settled(Name, Vec<(message::Place, Rest)>, Vec<usize>),
    /// A connection that a server with SMC-R has accepted is ready at this end: what is to be confirmed. Or it cannot be.
    KernelOpened(u64, At, Result<End, Diagnosis>),
    /// What a worker tells of itself.
    Told(Told),
    /// All links are at rest, or not, as this one is to be measured.
    Looked(Name, bool),
    /// There is memory that the peer may write to measure, or cannot be.
    Scratched(Name, Result<Remote, Refusal>),
    /// A load of a link has taken so long.
    Loaded(Name, Duration),
    /// A link is in use, or was not asked for what can be measured.
    NotLoaded(Name),
    /// Of a measurement: how long a thread takes to be woken here; a load of the link is wanted; what was measured.
    WokenUp(u64, Result<Duration, String>),
    /// See there.
    Loads(u64, Load),
    /// See there.
    Sampled(u64, Result<Samples, String>),
}

/// Connections of a link group.
pub(crate) const SLOTS: usize = 32;
/// Bytes that are registered for one.
const RINGS: u64 = 2 * Geometry::Device.ring() as u64;

#[derive(Debug)]
struct Placed {
    place: Queue,
    /// What its worker calls it.
    link: LinkName,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Links<P: Port> {
    /// The device; `None`: it was lost, and nothing is left of it but links that are being settled.
    port: Option<P>,
    workers: Vec<Pooled<P, Lanes>>,
    bells: Arc<Bells>,
    /// Connections that have memory registered.
    lanes: usize,
    /// Links to servers that speak the kernel's SMC-R.
    kernels: usize,
    placement: Placement<Name>,
    placed: BTreeMap<Name, Placed>,
    /// Those with memory to measure with.
    scratches: BTreeSet<Name>,
    /// Name of the next link.
    next: LinkName,
    tell: Sender<Outcome>,
    shared: Arc<Shared>,
    /// Bytes that may be registered; `None`: any number.
    limit: Option<u64>,
}

impl<P: Port + Clone + Send + 'static> Links<P> {
    pub(crate) fn new(
        port: P,
        limit: Option<u64>,
        tell: Sender<Outcome>,
        shared: Arc<Shared>,
    ) -> Result<Self, Refused> {
        let vectors = 0..port.limits().vectors.clamp(1, WORKERS);
        let workers = vectors.clone().map(|vector| {
            let (tell, shared) = (tell.clone(), Arc::clone(&shared));
            Pooled::start(&port, vector, LINKS, SETTINGS, move |told| {
                let _ = tell.send(Outcome::Told(told));
                shared.wake();
            })
        });
        let workers = workers.collect::<Result<Vec<_>, _>>()?;
        let placement = Placement::new(workers.len(), PerGroup::default());
        let bells = Arc::new(Bells::new(Arc::clone(&shared.memory)));
        shared.memory.set_workers(workers.iter().map(|it| Arc::clone(it.ear())).collect());
        let (port, placed, scratches) = (Some(port), BTreeMap::new(), BTreeSet::new());
        let (lanes, kernels, next) = (0, 0, 0);
        Ok(Self {
            port,
            workers,
            bells,
            lanes,
            kernels,
            placement,
            placed,
            scratches,
            next,
            tell,
            shared,
            limit,
        })
    }

    /// The device.
    pub(crate) const fn port(&self) -> Option<&P> {
        self.port.as_ref()
    }

    /// Gives all links up, and lets go of all that there is of the device: it cannot be used any more, or is not to be.
    pub(crate) fn let_go(&mut self, cause: Cause) {
        self.port = None;
        self.scratches.clear();
        for worker in &self.workers {
            worker.hand(move |worker, _| worker.let_go(cause));
        }
    }

    /// Goes on with another device, or with the same one that has come again.
    pub(crate) fn find(&mut self, port: P) -> Result<(), Refused> {
        let vectors = port.limits().vectors.max(1);
        let (tell, told) = channel();
        for (worker, vector) in self.workers.iter().zip((0..vectors).cycle()) {
            let (port, tell) = (port.clone(), tell.clone());
            worker.hand(move |worker, _| {
                let _ = tell.send(worker.take_up(&port, vector));
            });
        }
        drop(tell);
        let taken = told.iter().collect::<Result<(), _>>();
        match taken {
            Ok(()) => self.port = Some(port),
            Err(_) => self.let_go(Cause::Lost(Loss::Failed)),
        }
        taken
    }

    /// The device says that a queue pair has failed, whosever it is.
    pub(crate) fn fail_pair(&self, pair: PairNumber) {
        for worker in &self.workers {
            worker.hand(move |worker, now| worker.fail(pair, now));
        }
    }

    /// Bytes that are registered for them.
    pub(crate) fn registered(&self) -> u64 {
        if self.port.is_none() {
            return 0;
        }
        self.placed.len() as u64 * SETTINGS.registered() as u64
            + self.kernels as u64 * kernel::Settings::default().registered() as u64
            + self.lanes as u64 * RINGS
            + self.scratched()
    }

    /// Makes a queue pair, with the worker that has the fewest.
    pub(crate) fn make(&mut self, name: Name) {
        let Some(port) = self.port.clone() else { return };
        let (link, wanted) = (self.next, self.registered() + SETTINGS.registered() as u64);
        self.next += 1;
        let place = self.placement.place(name);
        // Until it is removed, also where it is refused.
        self.placed.insert(name, Placed { place, link });
        let (tell, shared) = (self.tell.clone(), Arc::clone(&self.shared));
        if self.limit.is_some_and(|limit| wanted > limit) {
            let refused = Refused::MemoryLimit(SETTINGS.registered());
            let _ = tell.send(Outcome::Made(name, link, Err(refused)));
            return shared.wake();
        }
        let bells = Arc::clone(&self.bells);
        let first = first_packet();
        self.workers[place.queue].hand(move |worker, _| {
            let made = worker.add(link, &port, Lanes::new(bells, SLOTS), SETTINGS, first);
            let _ = tell.send(Outcome::Made(name, link, made));
            shared.wake();
        });
    }

    /// Connects one. The side that has offered the link group asks on the link, and is told of the answer; the other one is told at once.
    pub(crate) fn connect(&self, name: Name, far: PeerPair, asks: bool) {
        let (tell, shared) = (self.tell.clone(), Arc::clone(&self.shared));
        self.with_link(name, move |link, now| {
            if link.connect(&far).is_err() {
                return link.fail(Cause::Refused);
            }
            if asks {
                link.ask(now);
            } else {
                let _ = tell.send(Outcome::Connected(name));
                shared.wake();
            }
        });
    }

    /// Gives a link up.
    pub(crate) fn fail(&self, name: Name) {
        self.with_link(name, |link, _| link.fail(Cause::Told));
    }

    /// Gives all links with a peer up.
    pub(crate) fn part_with(&self, peer: PublicKey) {
        let of_peer = self.placed.keys().filter(|name| name.0 == peer);
        of_peer.for_each(|name| self.with_link(*name, |link, _| link.fail(Cause::Parts)));
    }

    /// How many workers there are.
    pub(crate) const fn workers(&self) -> usize {
        self.workers.len()
    }

    /// Which worker serves a link group.
    pub(crate) fn worker_of(&self, name: Name) -> Option<usize> {
        self.placed.get(&name).map(|placed| placed.place.queue)
    }

    /// Has a worker do something with a link.
    fn with_link(
        &self,
        name: Name,
        with: impl FnOnce(&mut Link<P, Lanes>, Duration) + Send + 'static,
    ) {
        let Some(Placed { place, link }) = self.placed.get(&name) else { return };
        let link = *link;
        self.workers[place.queue].hand(move |worker, now| {
            if let Some(link) = worker.link(link) {
                with(link, now);
            }
        });
    }

    /// Registers the rings of a connection.
    pub(crate) fn open(&mut self, name: Name, slot: usize, generation: u32, at: Place) {
        // Until it is closed, also where it is refused.
        self.lanes += 1;
        if self.limit.is_some_and(|limit| self.registered() > limit) {
            let _ = self.tell.send(Outcome::Opened(name, slot, Err(Refusal::Memory)));
            return self.shared.wake();
        }
        let (tell, shared) = (self.tell.clone(), Arc::clone(&self.shared));
        let Some(port) = self.port.clone() else {
            let _ = tell.send(Outcome::Opened(name, slot, Err(Refusal::Device)));
            return shared.wake();
        };
        self.with_link(name, move |link, _| {
            let opened = open_on(link, &port, (slot, generation), at);
            let _ = tell.send(Outcome::Opened(name, slot, opened));
            shared.wake();
        });
    }

    /// A connection's memory is not registered any more.
    pub(crate) const fn closed(&mut self) {
        self.lanes = self.lanes.saturating_sub(1);
    }

    /// Both sides have opened a connection: `begin` says so to the program, in its section. Where the link has failed meanwhile the
    /// program stays on TCP; a client, whose proposal was taken, is told.
    pub(crate) fn attach(
        &self,
        name: Name,
        (slot, generation): (usize, u32),
        far: Remote,
        begin: impl FnOnce() + Send + 'static,
    ) {
        let (tell, shared) = (self.tell.clone(), Arc::clone(&self.shared));
        let bells = Arc::clone(&self.bells);
        self.with_link(name, move |link, _| {
            let is_attached = link.attach(slot, generation, far);
            if is_attached {
                begin();
                link.has_begun(slot);
                link.mirror_mut().wake(slot, News { bytes: true, room: true });
            } else {
                let place = link.mirror().place(slot).cloned();
                abandon_on(link, slot);
                // The last word about its place, which is its own then.
                if let Some(place) = place.filter(|place| place.side == Side::Client) {
                    bells.decline(&place, Reason::NotAccepted);
                }
            }
            let _ = tell.send(Outcome::Attached(name, slot, is_attached));
            shared.wake();
        });
    }

    /// A connection that the far side has not opened is over.
    pub(crate) fn abandon(&self, name: Name, slot: usize) {
        self.with_link(name, move |link, _| abandon_on(link, slot));
    }

    /// A program has taken its proposal back, and its place in the region may be another connection's by now: nothing is looked at there,
    /// or written, any more.
    pub(crate) fn lets_go_of_place(&self, name: Name, slot: usize) {
        self.with_link(name, move |link, _| link.mirror_mut().clear(slot));
    }

    /// All programs of a connection are gone.
    pub(crate) fn end(&self, name: Name, slot: usize) {
        self.with_link(name, move |link, _| link.end(slot));
    }

    /// The far side has opened a connection that there is not any more: it hears that nothing comes.
    pub(crate) fn leave_at_once(&self, name: Name, (slot, generation): (usize, u32), far: Remote) {
        let (tell, shared) = (self.tell.clone(), Arc::clone(&self.shared));
        self.with_link(name, move |link, _| {
            // What lies in its place is another connection's.
            link.mirror_mut().clear(slot);
            if link.attach(slot, generation, far) {
                return link.leave(slot);
            }
            link.abandon(slot);
            let _ = tell.send(Outcome::Attached(name, slot, false));
            shared.wake();
        });
    }

    /// The far side has said where its connections stood.
    pub(crate) fn settle(&self, name: Name, far: Vec<Halt>) {
        self.settle_by(name, move |link| link.settle(&far));
    }

    /// Looks again at connections whose programs were about to end.
    pub(crate) fn settle_endings(&self, name: Name, endings: Vec<usize>, is_over: bool) {
        self.settle_by(name, move |link| link.settle_endings(&endings, is_over));
    }

    fn settle_by(
        &self,
        name: Name,
        settle: impl FnOnce(&mut Link<P, Lanes>) -> Settlement + Send + 'static,
    ) {
        let (tell, shared) = (self.tell.clone(), Arc::clone(&self.shared));
        self.with_link(name, move |link, _| {
            let Settlement { ended, rests, endings } = settle(link);
            are_reset(&ended);
            let rests = rests.into_iter().flat_map(|(slot, generation, pieces)| {
                let slot = u16::try_from(slot).unwrap_or(u16::MAX);
                let place = message::Place { group: name.1, slot, generation };
                pieces.into_iter().map(move |rest| (place, rest))
            });
            let _ = tell.send(Outcome::Settled(name, rests.collect(), endings));
            shared.wake();
        });
    }

    /// The far side has sent what a link has not delivered.
    pub(crate) fn deliver(&self, name: Name, place: message::Place, rest: Rest) {
        self.with_link(name, move |link, _| {
            let slot = usize::from(place.slot);
            if let Err(impossible) = link.rest(slot, place.generation, &rest) {
                are_reset(&[(slot, Ended::Impossible(impossible))]);
            }
        });
    }

    /// Lets go of one. `has_said_all`: the peer has said that nothing more comes of it.
    pub(crate) fn remove(&mut self, name: Name, has_said_all: bool) {
        let Some(Placed { place, link }) = self.placed.remove(&name) else { return };
        self.scratches.remove(&name);
        self.placement.release(place.group, place.slot);
        self.workers[place.queue].hand(move |worker, _| {
            if let Some(mut link) = worker.remove(link, SETTINGS) {
                link.fail(Cause::Told);
                are_reset(&link.part(has_said_all));
            }
        });
    }

    /// Whose link it is that a worker tells of.
    pub(crate) fn named(&self, link: LinkName) -> Option<Name> {
        self.placed.iter().find(|(_, placed)| placed.link == link).map(|(name, _)| *name)
    }
}

fn are_reset(connections: &[(usize, Ended)]) {
    for (slot, ended) in connections {
        warn!("connection {slot} of a link that has failed is reset: {ended}");
    }
}

fn abandon_on<P: Port>(link: &mut Link<P, Lanes>, slot: usize) {
    if !link.is_attached(slot) {
        link.abandon(slot);
        link.mirror_mut().clear(slot);
    }
}

/// Both rings of a connection. `None`: they cannot be mapped.
fn rings(at: &Place) -> Option<Rings> {
    let memory = Memory::rings(&at.region, at.slot)?;
    let ring = |receiver: Side| {
        let len = Geometry::Device.ring();
        receiver as usize * len..(receiver as usize + 1) * len
    };
    Some(Rings { memory, outgoing: ring(at.side.other()), incoming: ring(at.side) })
}

/// The number of a queue pair's first packet.
fn first_packet() -> PacketNumber {
    let random = std::hash::RandomState::new().build_hasher().finish();
    #[allow(clippy::cast_possible_truncation, reason = "any part of it")]
    let first = PacketNumber::new(random as u32);
    first
}

fn open_on<P: Port>(
    link: &mut Link<P, Lanes>,
    port: &P,
    (slot, generation): (usize, u32),
    at: Place,
) -> Result<(Remote, u32), Refusal> {
    let rings = rings(&at).ok_or(Refusal::Failed)?;
    if link.mirror().place(slot).is_some() {
        return Err(Refusal::Failed);
    }
    let code = link.mirror_mut().put(slot, at).ok_or(Refusal::Failed)?;
    let opened = link.open(port, slot, generation, &rings).map_err(|why| match why {
        NotOpened::Memory(refused) => refusal(&refused),
        NotOpened::Place | NotOpened::Link(_) => Refusal::Failed,
    });
    if opened.is_err() {
        link.mirror_mut().clear(slot);
    }
    Ok((opened?, code))
}

/// How a peer is told that something was refused.
pub(crate) fn refusal(refused: &Refused) -> Refusal {
    match refused {
        Refused::MemoryLimit(_) => Refusal::Memory,
        Refused::Full => Refusal::Many,
        _ => Refusal::Failed,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::Receiver;

    use shunt_peer::SecretKey;
    use shunt_verbs::fake::{FakePort, Faults, Network};

    use super::*;

    const OF_ONE: u64 = SETTINGS.registered() as u64;

    fn links(limit: u64) -> (Links<FakePort>, Receiver<Outcome>, PublicKey) {
        let network = Network::new(1, Faults::NONE);
        let (tell, told) = channel();
        let shared = Arc::new(Shared::new().unwrap());
        let links = Links::new(network.host(), Some(limit), tell, shared).unwrap();
        (links, told, SecretKey::generate().unwrap().public().unwrap())
    }

    /// What has come of the next one.
    fn next(told: &Receiver<Outcome>) -> (u32, Result<PairNumber, Refused>) {
        match told.recv_timeout(Duration::from_secs(60)).unwrap() {
            Outcome::Made(name, _, made) => (name.1, made.map(|pair| pair.number)),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn no_more_is_registered_than_may_be() {
        let (mut links, told, key) = links(2 * OF_ONE);
        (0..3).for_each(|name| links.make((key, name)));
        let mut outcomes: Vec<_> = (0..3).map(|_| next(&told)).collect();
        outcomes.sort_by_key(|(name, _)| *name);
        assert!(outcomes[0].1.is_ok() && outcomes[1].1.is_ok());
        let refused = outcomes[2].1.as_ref().unwrap_err();
        assert!(matches!(refused, Refused::MemoryLimit(bytes) if *bytes as u64 == OF_ONE));
        assert_eq!(refusal(refused), Refusal::Memory);
        links.remove((key, 2), true);
        assert_eq!(links.registered(), 2 * OF_ONE);
        // Where one goes there is room for another.
        links.remove((key, 0), true);
        links.make((key, 4));
        assert!(next(&told).1.is_ok());
        assert_eq!(links.registered(), 2 * OF_ONE);
    }

    #[test]
    fn link_groups_spread_over_the_workers() {
        let (mut links, told, key) = links(u64::MAX);
        (0..8).for_each(|name| links.make((key, name)));
        assert_eq!(links.placement.load(), [2; WORKERS as usize]);
        for _ in 0..8 {
            next(&told).1.unwrap();
        }
        let link = links.placed[&(key, 5)].link;
        assert_eq!(links.named(link), Some((key, 5)));
        (0..8).for_each(|name| links.remove((key, name), true));
        assert_eq!(links.placement.load(), [0; WORKERS as usize]);
        assert_eq!(links.named(link), None);
    }
}
