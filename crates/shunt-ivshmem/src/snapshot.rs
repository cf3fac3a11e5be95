//! A server's state as text, for the next server.
//!
//! It comes from a process that is trusted, and is checked all the same: it may be of another version.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use shunt_sys::seqpacket::PeerCred;

use crate::config::Limits;
use crate::message::{MAX_VECTORS, PeerId, Vector};
use crate::reason::Totals;
use crate::state::{Notice, Outbox, State};

/// The form of the text. A server takes over from those of its own form only.
pub const FORMAT: u32 = 1;

/// A server's state.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Snapshot {
    /// [`FORMAT`].
    pub format: u32,
    /// Bytes of shared memory.
    pub size: u64,
    /// Interrupt vectors of each client.
    pub vectors: Vector,
    /// The memory is a file of huge pages.
    pub huge_pages: bool,
    /// Its maker removes the file of the listening socket at the end.
    pub owns_listener: bool,
    /// The same of the control socket.
    pub owns_control: bool,
    /// When the region was made, in seconds since 1970.
    pub since: u64,
    /// What has happened so far.
    pub totals: Totals,
    /// Joins and leaves so far.
    pub clock: u64,
    /// IDs that are not free yet though their owners are gone: since when.
    pub gone: BTreeMap<PeerId, u64>,
    /// Who is connected.
    pub peers: Vec<PeerSnapshot>,
}

/// A client.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PeerSnapshot {
    /// Its ID.
    pub id: PeerId,
    /// Its process, as the kernel saw it when it connected.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// When it connected, in seconds since 1970.
    pub since: u64,
    /// The same in joins and leaves.
    pub joined: u64,
    /// Messages that it has been sent.
    pub sent: u64,
    /// What it is still to be told.
    pub queue: VecDeque<Notice>,
}

impl PeerSnapshot {
    /// Who it is.
    #[must_use]
    pub const fn cred(&self) -> PeerCred {
        PeerCred { pid: self.pid, uid: self.uid, gid: self.gid }
    }
}

impl Snapshot {
    /// What the rules know. The rest is to be filled in.
    #[must_use]
    pub fn of(state: &State) -> Self {
        let peers = state.peers().filter_map(|id| {
            let outbox = state.outbox(id)?;
            let (joined, sent) = (outbox.joined, outbox.sent);
            let queue = outbox.queue.clone();
            Some(PeerSnapshot { id, pid: 0, uid: 0, gid: 0, since: 0, joined, sent, queue })
        });
        Self {
            format: FORMAT,
            size: 0,
            vectors: state.vectors(),
            huge_pages: false,
            owns_listener: false,
            owns_control: false,
            since: 0,
            totals: Totals::default(),
            clock: state.ids.clock(),
            gone: state.ids.gone().collect(),
            peers: peers.collect(),
        }
    }

    /// Reads and checks one.
    ///
    /// # Errors
    /// What is wrong with it, in a few words.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Form {
            format: u32,
        }
        let malformed = |e: serde_json::Error| format!("its state is malformed ({e})");
        let Form { format } = serde_json::from_slice(text).map_err(malformed)?;
        if format != FORMAT {
            return Err(format!(
                "its state has form {format}, and only form {FORMAT} is known here"
            ));
        }
        let snapshot: Self = serde_json::from_slice(text).map_err(malformed)?;
        snapshot.check().map_err(|what| format!("its state contradicts itself: {what}"))?;
        Ok(snapshot)
    }

    /// The text.
    ///
    /// # Errors
    /// None that could occur.
    pub fn text(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(self)
    }

    /// The rules, as they were when it was taken. Nobody is late yet.
    #[must_use]
    pub fn state(&self, limits: Limits, now: Instant) -> State {
        let mut outboxes = BTreeMap::new();
        for peer in &self.peers {
            let queue = peer.queue.clone();
            let mut outbox = Outbox::new(queue, self.vectors, &limits, peer.joined, now);
            outbox.sent = peer.sent;
            outboxes.insert(peer.id, outbox);
        }
        State::restore(self.vectors, limits, outboxes, self.clock, &self.gone)
    }

    fn check(&self) -> Result<(), &'static str> {
        if self.vectors == 0 || self.vectors > MAX_VECTORS {
            return Err("an impossible number of vectors");
        }
        if self.clock > u64::MAX / 2 {
            return Err("more joins and leaves than there can have been");
        }
        let ids: HashSet<_> = self.peers.iter().map(|peer| peer.id).collect();
        if ids.len() != self.peers.len() {
            return Err("two clients of one ID");
        }
        if self.gone.keys().any(|id| ids.contains(id)) {
            return Err("an ID of somebody who is there and gone");
        }
        let joins = self.peers.iter().map(|peer| peer.joined);
        let mut times = HashSet::new();
        let mut once = |at| at <= self.clock && times.insert(at);
        if !joins.chain(self.gone.values().copied()).all(&mut once) {
            return Err("a time that has not come, or two events at once");
        }
        self.peers.iter().try_for_each(|peer| self.check_queue(&peer.queue, &ids))
    }

    /// At most one notice of each peer, of peers that are there or are gone as it says, and a
    /// beginning only at the beginning.
    fn check_queue(
        &self,
        queue: &VecDeque<Notice>,
        ids: &HashSet<PeerId>,
    ) -> Result<(), &'static str> {
        const BEGINNING: [Notice; 3] = [Notice::Version, Notice::Id, Notice::Memory];
        let first = queue.front().and_then(|n| BEGINNING.iter().position(|b| b == n));
        let beginning = first.map_or(&[][..], |at| &BEGINNING[at..]);
        if !queue.iter().take(beginning.len()).eq(beginning) {
            return Err("an introduction without beginning");
        }
        let mut mentioned = HashSet::new();
        for (at, notice) in queue.iter().enumerate().skip(beginning.len()) {
            let (peer, fits) = match notice {
                Notice::Joined(peer, vector) => {
                    let begun = *vector > 0;
                    let possible = *vector < self.vectors && (!begun || at == 0);
                    (peer, possible && ids.contains(peer))
                }
                Notice::Left(peer) => (peer, self.gone.contains_key(peer)),
                Notice::Version | Notice::Id | Notice::Memory => {
                    return Err("an introduction in the middle");
                }
            };
            if !fits || !mentioned.insert(peer) {
                return Err("an impossible notice");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(id: PeerId, queue: impl Into<VecDeque<Notice>>) -> PeerSnapshot {
        let queue = queue.into();
        let joined = 1 + u64::from(id);
        PeerSnapshot { id, pid: 1, uid: 0, gid: 0, since: 0, joined, sent: 0, queue }
    }

    fn snapshot(peers: Vec<PeerSnapshot>) -> Snapshot {
        Snapshot {
            format: FORMAT,
            size: 4096,
            vectors: 2,
            huge_pages: false,
            owns_listener: true,
            owns_control: true,
            since: 0,
            totals: Totals::default(),
            clock: 9,
            gone: [(3, 7), (9, 8)].into(),
            peers,
        }
    }

    fn parse(snapshot: &Snapshot) -> Result<Snapshot, String> {
        Snapshot::parse(&snapshot.text().unwrap())
    }

    #[test]
    fn ids_are_free_and_taken_as_before() {
        let late = PeerSnapshot { joined: 9, ..peer(5, [Notice::Left(3), Notice::Joined(0, 0)]) };
        let early = peer(0, []);
        let joins = |peers: Vec<PeerSnapshot>, reuse_ids| {
            let taken = snapshot(peers);
            assert_eq!(parse(&taken).as_ref(), Ok(&taken));
            let limits = Limits { reuse_ids, ..Limits::default() };
            let mut state = taken.state(limits, Instant::now());
            let mut join = |n: usize| -> Vec<_> {
                (0..n).filter_map(|_| state.join(Instant::now()).ok()).collect()
            };
            let before = join(6);
            state.sent(5, Instant::now());
            (before, state.join(Instant::now()))
        };
        let both = vec![early.clone(), late.clone()];
        assert_eq!(joins(both.clone(), false), (vec![1, 2, 4, 6, 7, 8], Ok(10)));
        assert_eq!(joins(both, true), (vec![1, 2, 4, 6, 7, 8], Ok(3)));
        // Whom nobody has heard of who is there, but that 3 is still to be called gone.
        let alone = PeerSnapshot { queue: [Notice::Left(3)].into(), ..late };
        assert_eq!(joins(vec![alone], false), (vec![0, 1, 2, 4, 6, 7], Ok(3)));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        use Notice::{Id, Joined, Left, Memory, Version};
        let queues: [&[Notice]; 10] = [
            &[Left(0)],
            &[Left(7)],
            &[Left(9), Left(9)],
            &[Joined(9, 0)],
            &[Joined(0, 2)],
            &[Left(9), Joined(0, 1)],
            &[Joined(0, 0), Joined(0, 0)],
            &[Version, Memory],
            &[Id],
            &[Left(9), Memory],
        ];
        for queue in queues {
            let bad = snapshot(vec![peer(0, queue.to_vec())]);
            assert!(parse(&bad).is_err(), "{queue:?}");
        }
        assert!(parse(&snapshot(vec![peer(0, []), peer(0, [])])).is_err());
        assert!(parse(&snapshot(vec![peer(3, [])])).is_err(), "it is gone");
        assert!(parse(&Snapshot { clock: 7, ..snapshot(Vec::new()) }).is_err());
        assert!(parse(&Snapshot { vectors: 0, ..snapshot(Vec::new()) }).is_err());
        let other = Snapshot { format: FORMAT + 1, ..snapshot(Vec::new()) };
        assert!(parse(&other).is_err_and(|why| why.contains("form 2")));
        for queue in [&[Memory, Joined(0, 0)][..], &[Joined(0, 1), Left(9)], &[Id, Memory]] {
            assert!(parse(&snapshot(vec![peer(0, queue.to_vec())])).is_ok(), "{queue:?}");
        }
    }
}
