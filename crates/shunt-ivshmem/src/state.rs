//! The rules, without I/O: which IDs are free, and who is told what in which order.
//!
//! Calls come in three kinds. [`State::join`] and [`State::leave`] say what has happened. [`State::front`]
//! says what a client is to be sent next, and [`State::sent`] that this has been done. [`State::overdue`]
//! says who must go by now. Time comes in as an argument.
//!
//! What waits for a client is kept as notices, one per peer, whatever the number of vectors. A peer that
//! leaves before a client has been told of it is never mentioned to that client. So what waits is bounded
//! by the number of IDs, however often others come and go.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::config::Limits;
use crate::ids::Ids;
use crate::message::{Attached, MEMORY, Message, PROTOCOL_VERSION, PeerId, Vector};
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
    /// When the client came, in joins and leaves.
    pub(crate) joined: u64,
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
        joined: u64,
        now: Instant,
    ) -> Self {
        let owed = queue.iter().map(|notice| messages(*notice, vectors)).sum();
        let waiting = (owed > 0).then_some(now);
        let bound = limits.queue.saturating_add(owed);
        Self { queue, owed, bound, waiting, sent: 0, joined }
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
    pub(crate) ids: Ids,
}

/// Why nobody can come in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Full {
    /// There are as many clients as there may be.
    Peers,
    /// No ID is free.
    Ids,
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
            ids: Ids::new(limits.reuse_ids),
        }
    }

    /// With these clients, whose queues have been checked, and with the IDs whose owners are gone and
    /// since when, among them all of which somebody is still to be told.
    pub(crate) fn restore(
        vectors: Vector,
        limits: Limits,
        outboxes: BTreeMap<PeerId, Outbox>,
        clock: u64,
        gone: &BTreeMap<PeerId, u64>,
    ) -> Self {
        let mut backlog = BTreeSet::new();
        let mut gone: BTreeMap<_, _> = gone.iter().map(|(id, at)| (*id, (*at, 0))).collect();
        for (id, outbox) in &outboxes {
            for notice in &outbox.queue {
                if let Notice::Left(peer) = notice
                    && let Some((_, untold)) = gone.get_mut(peer)
                {
                    *untold += 1;
                }
            }
            if !outbox.queue.is_empty() {
                backlog.insert(*id);
            }
        }
        let live = outboxes.iter().map(|(id, outbox)| (*id, outbox.joined)).collect();
        let ids = Ids::restore(limits.reuse_ids, clock, &live, gone);
        Self { vectors, limits, outboxes, backlog, ids }
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

    /// A client has come: all others are to be told, and it is to be told of all.
    ///
    /// # Errors
    /// Why there is no place for it.
    pub fn join(&mut self, now: Instant) -> Result<PeerId, Full> {
        if self.outboxes.len() >= self.limits.peers {
            return Err(Full::Peers);
        }
        let (id, joined) = self.ids.take().ok_or(Full::Ids)?;
        let mut queue = VecDeque::from([Notice::Version, Notice::Id, Notice::Memory]);
        for (other, outbox) in &mut self.outboxes {
            outbox.push(Notice::Joined(id, 0), self.vectors, now);
            self.backlog.insert(*other);
            queue.push_back(Notice::Joined(*other, 0));
        }
        queue.push_back(Notice::Joined(id, 0));
        self.outboxes.insert(id, Outbox::new(queue, self.vectors, &self.limits, joined, now));
        self.backlog.insert(id);
        Ok(id)
    }

    /// A client is gone, however it went: those who know of it are to be told.
    pub fn leave(&mut self, id: PeerId, now: Instant) {
        let Some(gone) = self.outboxes.remove(&id) else { return };
        self.backlog.remove(&id);
        for notice in gone.queue {
            if let Notice::Left(peer) = notice {
                self.ids.told(peer);
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
        self.ids.give_back(id, gone.joined, to_tell);
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
        outbox.sent = outbox.sent.saturating_add(1);
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
            self.ids.told(peer);
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

    /// IDs that are free.
    #[must_use]
    pub fn ids_left(&self) -> usize {
        self.ids.left()
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::MAX_PEERS;

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
        assert_eq!(s.join(now), Ok(0));
        assert_eq!(s.join(now), Ok(1));
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
    fn an_id_comes_again_once_all_are_gone_who_have_heard_of_its_owner() {
        let (mut s, now) = (state(1), Instant::now());
        for id in 0..4 {
            assert_eq!(s.join(now), Ok(id));
            (0..=id).for_each(|id| drop(all(&mut s, id)));
        }
        s.leave(1, now);
        assert_eq!((s.join(now), s.ids_left()), (Ok(4), MAX_PEERS - 5));
        (0..5).for_each(|id| drop(all(&mut s, id)));
        s.leave(0, now);
        s.leave(2, now);
        assert_eq!(s.join(now), Ok(5), "3 has heard of all of them");
        (0..6).for_each(|id| drop(all(&mut s, id)));
        s.leave(3, now);
        assert_eq!(s.join(now), Ok(1), "4 came when 1 was gone, and has heard of 0 and 2");
        s.leave(4, now);
        assert_eq!([s.join(now), s.join(now)], [Ok(0), Ok(2)]);
        s.peers().collect::<Vec<_>>().into_iter().for_each(|id| s.leave(id, now));
        assert_eq!((s.ids_left(), s.join(now)), (MAX_PEERS, Ok(0)));
    }

    #[test]
    fn where_clients_bear_it_an_id_comes_again_once_all_have_been_told() {
        let limits = Limits { reuse_ids: true, ..Limits::default() };
        let (mut s, now) = (State::new(1, limits), Instant::now());
        for id in 0..4 {
            assert_eq!(s.join(now), Ok(id));
        }
        for id in 0..4 {
            all(&mut s, id);
        }
        s.leave(1, now);
        s.leave(2, now);
        all(&mut s, 0);
        assert_eq!(s.join(now), Ok(4), "3 does not know of 1 and 2");
        drain(&mut s, 3, 1);
        assert_eq!(s.join(now), Ok(1));
        s.leave(3, now);
        assert_eq!(s.join(now), Ok(2), "who is gone need not be told");
    }

    #[test]
    fn who_was_never_mentioned_is_not_said_to_have_gone() {
        let (mut s, now) = (state(2), Instant::now());
        s.join(now).unwrap();
        all(&mut s, 0);
        s.join(now).unwrap();
        s.leave(1, now);
        assert_eq!((s.front(0), s.backlog().count()), (None, 0));
        assert_eq!(s.join(now), Ok(1), "nobody knew of 1");
        assert_eq!(drain(&mut s, 0, 1), [bell(1, 0)]);
        s.leave(1, now);
        assert_eq!(all(&mut s, 0), [Message::plain(1)], "half of it was told");
    }

    #[test]
    fn there_is_an_end_to_ids_and_clients() {
        let (mut s, now) = (state(1), Instant::now());
        s.join(now).unwrap();
        for id in 1..=PeerId::MAX {
            assert_eq!(s.join(now), Ok(id));
            all(&mut s, 0);
            s.leave(id, now);
            all(&mut s, 0);
        }
        assert_eq!((s.join(now), s.ids_left()), (Err(Full::Ids), 0));
        s.leave(0, now);
        assert_eq!(s.join(now), Ok(0));
        let mut s = State::new(1, Limits { peers: 2, ..Limits::default() });
        assert_eq!([s.join(now), s.join(now), s.join(now)], [Ok(0), Ok(1), Err(Full::Peers)]);
    }

    #[test]
    fn who_does_not_keep_up_is_named() {
        let limits = Limits { queue: 3, stall: Duration::from_secs(5), ..Limits::default() };
        let (mut s, now) = (State::new(2, limits), Instant::now());
        s.join(now).unwrap();
        s.join(now).unwrap();
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
        s.join(now).unwrap();
        assert_eq!(s.overdue(now), []);
        s.join(now).unwrap();
        let named: Vec<_> = s.overdue(now);
        assert_eq!(named, [(0, Fault::Overflow), (1, Fault::Overflow)]);
    }
}
