//! Whatever happens in whatever order, no client is told anything that is not so.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use shunt_ivshmem::Limits;
use shunt_ivshmem::message::{Attached, MEMORY, Message, PeerId, Vector};
use shunt_ivshmem::snapshot::Snapshot;
use shunt_ivshmem::state::{Full, State};

const VECTORS: Vector = 3;
const STALL: Duration = Duration::from_secs(10);
const PEERS: usize = 12;

fn limits(reuse_ids: bool) -> Limits {
    Limits { peers: PEERS, reuse_ids, queue: 40, stall: STALL, ..Limits::default() }
}

/// What can happen. Clients are named by their place among those who are there.
#[derive(Clone, Debug)]
enum Event {
    Join,
    Leave(usize),
    /// A client reads so many messages.
    Read(usize, usize),
    /// Time passes, and those who are late are dropped.
    Pass(u64),
    /// The next server takes over.
    Restart,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => Just(Event::Join),
        3 => any::<usize>().prop_map(Event::Leave),
        8 => (any::<usize>(), 0..20_usize).prop_map(|(who, n)| Event::Read(who, n)),
        1 => (0..6_u64).prop_map(Event::Pass),
        1 => Just(Event::Restart),
    ]
}

/// A client as it sees things.
#[derive(Debug, Default)]
struct View {
    read: usize,
    own: Vec<Vector>,
    /// Whose bells it has, of which incarnation of that ID.
    peers: BTreeMap<PeerId, (u64, Vec<Vector>)>,
    /// Of whom it has ever heard.
    heard: BTreeSet<PeerId>,
    /// When it came.
    joined: u64,
}

impl View {
    fn take(&mut self, me: PeerId, message: Message, incarnations: &BTreeMap<PeerId, u64>) {
        let at = self.read;
        self.read += 1;
        match (at, message.attached) {
            (0, Attached::Nothing) => assert_eq!(message.number, 0),
            (1, Attached::Nothing) => assert_eq!(message.number, i64::from(me)),
            (2, Attached::Memory) => assert_eq!(message.number, MEMORY),
            (3.., Attached::Bell(peer, vector)) => {
                assert_eq!(message.number, i64::from(peer));
                let incarnation = incarnations[&peer];
                let bells = if peer == me {
                    &mut self.own
                } else {
                    self.heard.insert(peer);
                    let known = self.peers.entry(peer).or_insert((incarnation, Vec::new()));
                    assert_eq!(known.0, incarnation, "bells of two who had one ID");
                    &mut known.1
                };
                assert_eq!(usize::from(vector), bells.len(), "vectors come in order");
                bells.push(vector);
            }
            (3.., Attached::Nothing) => {
                let peer = PeerId::try_from(message.number).unwrap();
                assert_ne!(peer, me);
                assert!(self.peers.remove(&peer).is_some(), "who goes was there");
            }
            other => panic!("{other:?}"),
        }
    }
}

/// The server's state with all its clients.
struct World {
    state: State,
    now: Instant,
    views: BTreeMap<PeerId, View>,
    incarnations: BTreeMap<PeerId, u64>,
    /// Counts joins and leaves.
    clock: u64,
    /// When each ID was last given up.
    left: BTreeMap<PeerId, u64>,
    reuse: bool,
}

impl World {
    fn new(reuse: bool) -> Self {
        let (state, now) = (State::new(VECTORS, limits(reuse)), Instant::now());
        let (views, incarnations, left) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { state, now, views, incarnations, clock: 0, left, reuse }
    }

    fn pick(&self, n: usize) -> Option<PeerId> {
        self.views.keys().nth(n % self.views.len().max(1)).copied()
    }

    fn join(&mut self) {
        let id = match self.state.join(self.now) {
            Ok(id) => id,
            Err(full) => {
                assert_eq!((full, self.views.len()), (Full::Peers, PEERS));
                return;
            }
        };
        for (other, view) in &self.views {
            assert!(*other != id && !view.peers.contains_key(&id), "{other} still knows {id}");
            assert!(self.reuse || !view.heard.contains(&id), "{other} has heard of {id}");
        }
        // A lower one is taken, or was given up under the eyes of somebody who is to be spared.
        for lower in 0..id {
            let spared = |view: &View| match self.reuse {
                true => view.peers.contains_key(&lower),
                false => view.joined < self.left[&lower],
            };
            assert!(self.views.contains_key(&lower) || self.views.values().any(spared), "{lower}");
        }
        self.clock += 1;
        self.incarnations.insert(id, self.clock);
        self.views.insert(id, View { joined: self.clock, ..View::default() });
    }

    fn leave(&mut self, id: PeerId) {
        self.state.leave(id, self.now);
        self.clock += 1;
        self.views.remove(&id);
        self.incarnations.remove(&id);
        self.left.insert(id, self.clock);
    }

    fn read(&mut self, id: PeerId, most: usize) {
        for _ in 0..most {
            let Some(message) = self.state.front(id) else { break };
            self.views.get_mut(&id).unwrap().take(id, message, &self.incarnations);
            self.state.sent(id, self.now);
        }
    }

    fn pass(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        for (id, _) in self.state.overdue(self.now) {
            self.leave(id);
        }
        // Those who went are news to others, for whom it may be too much.
        while let Some((id, _)) = self.state.overdue(self.now).pop() {
            self.leave(id);
        }
        assert!(self.state.patience(self.now).is_none_or(|left| left > Duration::ZERO));
    }

    fn restart(&mut self) {
        let before = Snapshot::of(&self.state);
        let text = before.text().unwrap();
        let again = Snapshot::parse(&text).unwrap();
        assert_eq!(again, before);
        self.state = again.state(limits(self.reuse), self.now);
    }

    /// Once all have read all, each knows exactly those who are there.
    fn check(&mut self) {
        let ids: Vec<_> = self.views.keys().copied().collect();
        assert_eq!(self.state.peers().collect::<Vec<_>>(), ids);
        for id in &ids {
            let (queued, sent) = self.state.counts(*id);
            self.read(*id, usize::MAX);
            assert_eq!(self.state.counts(*id), (0, sent + queued as u64));
        }
        assert_eq!(self.state.backlog().count(), 0);
        let all: Vec<_> = (0..VECTORS).collect();
        for (id, view) in &self.views {
            assert_eq!(view.own, all);
            let expected = self.incarnations.iter().filter(|(other, _)| *other != id);
            let expected = expected.map(|(other, n)| (*other, (*n, all.clone()))).collect();
            assert_eq!(view.peers, expected, "what {id} knows");
        }
    }
}

proptest! {
    #[test]
    fn every_view_is_true(reuse: bool, events in prop::collection::vec(event(), 0..120)) {
        let mut world = World::new(reuse);
        for event in events {
            match event {
                Event::Join => world.join(),
                Event::Leave(n) => if let Some(id) = world.pick(n) { world.leave(id) },
                Event::Read(n, most) => if let Some(id) = world.pick(n) { world.read(id, most) },
                Event::Pass(seconds) => world.pass(seconds),
                Event::Restart => world.restart(),
            }
        }
        world.check();
        // All IDs are free again once all are gone.
        let ids: Vec<_> = world.views.keys().copied().collect();
        for id in ids {
            world.leave(id);
        }
        world.join();
        prop_assert!(world.views.contains_key(&0));
    }
}
