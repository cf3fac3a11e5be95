//! The rules, without I/O: which IDs are free, and who is told what in which order.
//!
//! Calls come in three kinds. [`State::join`] and [`State::leave`] say what has happened. [`State::front`]
//! says what a client is to be sent next, and [`State::sent`] that this has been done. [`State::overdue`]
//! says who must go by now. Time comes in as an argument.
//!
//! What waits for a client is kept as notices, one per peer, whatever the number of vectors. A peer that
//! leaves before a client has been told of it is never mentioned to that client. So what waits is bounded
//! by the number of IDs, however often others come and go.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::config::Limits;
use crate::message::{Attached, MAX_PEERS, MEMORY, Message, PROTOCOL_VERSION, PeerId, Vector};
use crate::reason::Fault;

/// Something that a client is to be told.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Notice {
    /// The protocol's version.
    Version,
    /// Its own ID.
    Id,
    /// The shared memory.
    Memory,
    /// That a peer is there, or (its own ID) how it is woken itself: a message per vector, from this on.
    Joined(PeerId, Vector),
    /// That a peer is gone.
    Left(PeerId),
}

/// What waits for one client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Outbox {
    pub(crate) queue: VecDeque<Notice>,
    /// Messages that the queue stands for.
    owed: usize,
    /// How many they may be.
    bound: usize,
    /// Since when nothing has gone out though something waits.
    waiting: Option<Instant>,
    /// Messages that have gone out.
    pub(crate) sent: u64,
}

/// What a client knows of a peer that leaves.
enum Knows {
    Nothing,
    Something,
}

impl Outbox {
    /// With what waits; none of it counts against `limits`.
    pub(crate) fn new(
        queue: VecDeque<Notice>,
        vectors: Vector,
        limits: &Limits,
        now: Instant,
    ) -> Self {
        let owed = queue.iter().map(|notice| messages(*notice, vectors)).sum();
        let waiting = (owed > 0).then_some(now);
        Self { queue, owed, bound: limits.queue.saturating_add(owed), waiting, sent: 0 }
    }

    fn push(&mut self, notice: Notice, vectors: Vector, now: Instant) {
        self.queue.push_back(notice);
        self.owed += messages(notice, vectors);
        self.waiting.get_or_insert(now);
    }

    /// Takes back what has not been said of `peer`.
    fn withdraw(&mut self, peer: PeerId, vectors: Vector) -> Knows {
        let found = self.queue.iter().position(|n| matches!(n, Notice::Joined(p, _) if *p == peer));
        let Some(notice) = found.and_then(|at| self.queue.remove(at)) else {
            return Knows::Something;
        };
        self.owed -= messages(notice, vectors);
        self.rest_if_empty();
        if notice == Notice::Joined(peer, 0) { Knows::Nothing } else { Knows::Something }
    }

    fn rest_if_empty(&mut self) {
        if self.queue.is_empty() {
            self.waiting = None;
        }
    }
}

/// Messages that a notice stands for.
fn messages(notice: Notice, vectors: Vector) -> usize {
    match notice {
        Notice::Joined(_, from) => usize::from(vectors.saturating_sub(from)),
        _ => 1,
    }
}

/// Who is connected, and what they are still to be told.
#[derive(Clone, Debug)]
pub struct State {
    vectors: Vector,
    limits: Limits,
    outboxes: BTreeMap<PeerId, Outbox>,
    /// Those for whom something waits.
    backlog: BTreeSet<PeerId>,
    /// IDs of peers that are gone, with how many clients don't know yet: not free before all do.
    leaving: BTreeMap<PeerId, usize>,
    /// Free IDs below `next`.
    free: BTreeSet<PeerId>,
    /// All IDs from here on are free.
    next: usize,
}

impl State {
    /// Nobody is connected.
    #[must_use]
    pub const fn new(vectors: Vector, limits: Limits) -> Self {
        Self {
            vectors,
            limits,
            outboxes: BTreeMap::new(),
            backlog: BTreeSet::new(),
            leaving: BTreeMap::new(),
            free: BTreeSet::new(),
            next: 0,
        }
    }

    /// With these clients, whose queues have been checked: of peers that are not among them, all that
    /// waits is that they are gone.
    pub(crate) fn with(
        vectors: Vector,
        limits: Limits,
        outboxes: BTreeMap<PeerId, Outbox>,
    ) -> Self {
        let mut state = Self::new(vectors, limits);
        for (id, outbox) in &outboxes {
            for notice in &outbox.queue {
                if let Notice::Left(peer) = notice {
                    *state.leaving.entry(*peer).or_default() += 1;
                }
            }
            if !outbox.queue.is_empty() {
                state.backlog.insert(*id);
            }
        }
        let taken = |id: &PeerId| outboxes.contains_key(id) || state.leaving.contains_key(id);
        let highest = outboxes.keys().chain(state.leaving.keys()).max();
        state.next = highest.map_or(0, |id| usize::from(*id) + 1);
        let below = highest.map_or(0..0, |id| 0..*id);
        state.free = below.filter(|id| !taken(id)).collect();
        state.outboxes = outboxes;
        state
    }

    /// Interrupt vectors of each client.
    #[must_use]
    pub const fn vectors(&self) -> Vector {
        self.vectors
    }

    /// Clients that are connected.
    #[must_use]
    pub fn len(&self) -> usize {
        self.outboxes.len()
    }

    /// True when nobody is connected.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.outboxes.is_empty()
    }

    /// The IDs of those who are connected, in order.
    pub fn peers(&self) -> impl Iterator<Item = PeerId> + '_ {
        self.outboxes.keys().copied()
    }

    /// A client has come: all others are to be told, and it is to be told of all. `None`: there are as
    /// many as there may be, or no ID is free.
    pub fn join(&mut self, now: Instant) -> Option<PeerId> {
        if self.outboxes.len() >= self.limits.peers {
            return None;
        }
        let id = self.take_id()?;
        let mut queue = VecDeque::from([Notice::Version, Notice::Id, Notice::Memory]);
        for (other, outbox) in &mut self.outboxes {
            outbox.push(Notice::Joined(id, 0), self.vectors, now);
            self.backlog.insert(*other);
            queue.push_back(Notice::Joined(*other, 0));
        }
        queue.push_back(Notice::Joined(id, 0));
        self.outboxes.insert(id, Outbox::new(queue, self.vectors, &self.limits, now));
        self.backlog.insert(id);
        Some(id)
    }

    /// A client is gone, however it went: those who know of it are to be told.
    pub fn leave(&mut self, id: PeerId, now: Instant) {
        let Some(gone) = self.outboxes.remove(&id) else { return };
        self.backlog.remove(&id);
        for notice in gone.queue {
            if let Notice::Left(peer) = notice {
                self.one_knows(peer);
            }
        }
        let mut to_tell = 0;
        for (other, outbox) in &mut self.outboxes {
            match outbox.withdraw(id, self.vectors) {
                Knows::Nothing if outbox.queue.is_empty() => {
                    self.backlog.remove(other);
                }
                Knows::Nothing => {}
                Knows::Something => {
                    outbox.push(Notice::Left(id), self.vectors, now);
                    self.backlog.insert(*other);
                    to_tell += 1;
                }
            }
        }
        if to_tell == 0 {
            self.free.insert(id);
        } else {
            self.leaving.insert(id, to_tell);
        }
    }

    /// What a client is to be sent next.
    #[must_use]
    pub fn front(&self, id: PeerId) -> Option<Message> {
        let notice = self.outboxes.get(&id)?.queue.front()?;
        Some(match *notice {
            Notice::Version => Message::plain(PROTOCOL_VERSION),
            Notice::Id => Message::plain(id.into()),
            Notice::Memory => Message { number: MEMORY, attached: Attached::Memory },
            Notice::Joined(peer, vector) => {
                Message { number: peer.into(), attached: Attached::Bell(peer, vector) }
            }
            Notice::Left(peer) => Message::plain(peer.into()),
        })
    }

    /// [`Self::front`] of a client has gone out.
    pub fn sent(&mut self, id: PeerId, now: Instant) {
        let Some(outbox) = self.outboxes.get_mut(&id) else { return };
        let Some(notice) = outbox.queue.front_mut() else { return };
        outbox.owed -= 1;
        outbox.sent += 1;
        outbox.waiting = Some(now);
        let told = match notice {
            Notice::Joined(_, vector) if *vector + 1 < self.vectors => {
                *vector += 1;
                return;
            }
            Notice::Left(peer) => Some(*peer),
            _ => None,
        };
        outbox.queue.pop_front();
        outbox.rest_if_empty();
        if outbox.queue.is_empty() {
            outbox.bound = self.limits.queue;
            self.backlog.remove(&id);
        }
        if let Some(peer) = told {
            self.one_knows(peer);
        }
    }

    /// That a client has taken nothing is not its fault.
    pub fn excuse(&mut self, id: PeerId, now: Instant) {
        if let Some(waiting) = self.outboxes.get_mut(&id).and_then(|o| o.waiting.as_mut()) {
            *waiting = now;
        }
    }

    /// Those for whom something waits.
    pub fn backlog(&self) -> impl Iterator<Item = PeerId> + '_ {
        self.backlog.iter().copied()
    }

    /// Messages that wait for a client, and that it has been sent.
    #[must_use]
    pub fn counts(&self, id: PeerId) -> (usize, u64) {
        self.outboxes.get(&id).map_or((0, 0), |outbox| (outbox.owed, outbox.sent))
    }

    /// Clients that do not keep up, and must leave.
    #[must_use]
    pub fn overdue(&self, now: Instant) -> Vec<(PeerId, Fault)> {
        let late = |outbox: &Outbox| {
            let stalled = outbox.waiting.is_some_and(|since| now >= since + self.limits.stall);
            if outbox.owed > outbox.bound {
                Some(Fault::Overflow)
            } else {
                stalled.then_some(Fault::Stalled)
            }
        };
        let waiting = self.backlog.iter().filter_map(|id| Some((*id, self.outboxes.get(id)?)));
        waiting.filter_map(|(id, outbox)| Some((id, late(outbox)?))).collect()
    }

    /// How long until somebody can be overdue for having taken nothing.
    #[must_use]
    pub fn patience(&self, now: Instant) -> Option<Duration> {
        let waiting = self.backlog.iter().filter_map(|id| self.outboxes.get(id)?.waiting);
        let first = waiting.min()?;
        Some((first + self.limits.stall).saturating_duration_since(now))
    }

    pub(crate) fn outbox(&self, id: PeerId) -> Option<&Outbox> {
        self.outboxes.get(&id)
    }

    /// The lowest free ID.
    fn take_id(&mut self) -> Option<PeerId> {
        if let Some(id) = self.free.pop_first() {
            return Some(id);
        }
        let id = PeerId::try_from(self.next).ok().filter(|_| self.next < MAX_PEERS)?;
        self.next += 1;
        Some(id)
    }

    /// One more client knows that `peer` is gone, or has gone itself.
    fn one_knows(&mut self, peer: PeerId) {
        if let Entry::Occupied(mut count) = self.leaving.entry(peer) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
                self.free.insert(peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(vectors: Vector) -> State {
        State::new(vectors, Limits::default())
    }

    /// Takes up to `most` messages of a client's.
    fn drain(state: &mut State, id: PeerId, most: usize) -> Vec<Message> {
        let mut taken = Vec::new();
        while let Some(message) = state.front(id).filter(|_| taken.len() < most) {
            state.sent(id, Instant::now());
            taken.push(message);
        }
        taken
    }

    fn all(state: &mut State, id: PeerId) -> Vec<Message> {
        drain(state, id, usize::MAX)
    }

    fn bell(peer: PeerId, vector: Vector) -> Message {
        Message { number: peer.into(), attached: Attached::Bell(peer, vector) }
    }

    #[test]
    fn an_introduction_is_in_order() {
        let (mut s, now) = (state(2), Instant::now());
        assert_eq!(s.join(now), Some(0));
        assert_eq!(s.join(now), Some(1));
        let memory = Message { number: -1, attached: Attached::Memory };
        let plain = Message::plain;
        let second = [plain(0), plain(1), memory, bell(0, 0), bell(0, 1), bell(1, 0), bell(1, 1)];
        assert_eq!(all(&mut s, 1), second);
        let first = [plain(0), plain(0), memory, bell(0, 0), bell(0, 1), bell(1, 0), bell(1, 1)];
        assert_eq!(all(&mut s, 0), first);
        s.leave(1, now);
        assert_eq!(all(&mut s, 0), [plain(1)]);
        assert_eq!((s.counts(0), s.backlog().count(), s.len()), ((0, 8), 0, 1));
    }

    #[test]
    fn the_lowest_id_is_used_again_once_all_know_that_it_is_free() {
        let (mut s, now) = (state(1), Instant::now());
        for id in 0..4 {
            assert_eq!(s.join(now), Some(id));
        }
        for id in 0..4 {
            all(&mut s, id);
        }
        s.leave(1, now);
        s.leave(2, now);
        all(&mut s, 0);
        assert_eq!(s.join(now), Some(4), "3 does not know of 1 and 2");
        drain(&mut s, 3, 1);
        assert_eq!(s.join(now), Some(1));
        s.leave(3, now);
        assert_eq!(s.join(now), Some(2), "who is gone need not be told");
    }

    #[test]
    fn who_was_never_mentioned_is_not_said_to_have_gone() {
        let (mut s, now) = (state(2), Instant::now());
        s.join(now);
        all(&mut s, 0);
        s.join(now);
        s.leave(1, now);
        assert_eq!((s.front(0), s.backlog().count()), (None, 0));
        assert_eq!(s.join(now), Some(1), "nobody knew of 1");
        assert_eq!(drain(&mut s, 0, 1), [bell(1, 0)]);
        s.leave(1, now);
        assert_eq!(all(&mut s, 0), [Message::plain(1)], "half of it was told");
    }

    #[test]
    fn there_is_an_end_to_ids_and_clients() {
        let (mut s, now) = (state(1), Instant::now());
        s.next = MAX_PEERS - 1;
        assert_eq!(s.join(now), Some(PeerId::MAX));
        assert_eq!(s.join(now), None);
        s.leave(PeerId::MAX, now);
        assert_eq!(s.join(now), Some(PeerId::MAX));
        let mut s = State::new(1, Limits { peers: 2, ..Limits::default() });
        assert_eq!([s.join(now), s.join(now), s.join(now)], [Some(0), Some(1), None]);
    }

    #[test]
    fn who_does_not_keep_up_is_named() {
        let limits = Limits { queue: 3, stall: Duration::from_secs(5), ..Limits::default() };
        let (mut s, now) = (State::new(2, limits), Instant::now());
        s.join(now);
        s.join(now);
        assert_eq!(s.overdue(now), [], "an introduction is not too much");
        all(&mut s, 1);
        assert_eq!(s.patience(now), Some(Duration::from_secs(5)));
        let later = now + Duration::from_secs(5);
        assert_eq!(s.overdue(later), [(0, Fault::Stalled)]);
        s.excuse(0, later);
        assert_eq!(s.overdue(later), []);
        s.sent(0, later);
        assert_eq!(s.overdue(later + Duration::from_secs(4)), []);
        all(&mut s, 0);
        assert_eq!(s.patience(now), None);
        s.join(now);
        assert_eq!(s.overdue(now), []);
        s.join(now);
        let named: Vec<_> = s.overdue(now);
        assert_eq!(named, [(0, Fault::Overflow), (1, Fault::Overflow)]);
    }
}
