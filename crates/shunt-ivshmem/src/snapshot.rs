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
            let (sent, queue) = (outbox.sent, outbox.queue.clone());
            Some(PeerSnapshot { id, pid: 0, uid: 0, gid: 0, since: 0, sent, queue })
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
            let mut outbox = Outbox::new(peer.queue.clone(), self.vectors, &limits, now);
            outbox.sent = peer.sent;
            outboxes.insert(peer.id, outbox);
        }
        State::with(self.vectors, limits, outboxes)
    }

    fn check(&self) -> Result<(), &'static str> {
        if self.vectors == 0 || self.vectors > MAX_VECTORS {
            return Err("an impossible number of vectors");
        }
        let ids: HashSet<_> = self.peers.iter().map(|peer| peer.id).collect();
        if ids.len() != self.peers.len() {
            return Err("two clients of one ID");
        }
        self.peers.iter().try_for_each(|peer| self.check_queue(&peer.queue, &ids))
    }

    /// At most one notice of each kind and peer, of peers that are there or are not as it says, and a
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
                Notice::Left(peer) => (peer, !ids.contains(peer)),
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
        PeerSnapshot { id, pid: 1, uid: 0, gid: 0, since: 0, sent: 0, queue }
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
            peers,
        }
    }

    fn parse(snapshot: &Snapshot) -> Result<Snapshot, String> {
        Snapshot::parse(&snapshot.text().unwrap())
    }

    #[test]
    fn ids_are_free_and_taken_as_before() {
        let queue = [Notice::Left(3), Notice::Joined(0, 0)];
        let taken = snapshot(vec![peer(0, []), peer(5, queue)]);
        assert_eq!(parse(&taken).as_ref(), Ok(&taken));
        let mut state = taken.state(Limits::default(), Instant::now());
        let joined: Vec<_> = (0..5).filter_map(|_| state.join(Instant::now())).collect();
        assert_eq!(joined, [1, 2, 4, 6, 7], "5 does not know yet that 3 is gone");
        state.sent(5, Instant::now());
        assert_eq!(state.join(Instant::now()), Some(3));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        use Notice::{Id, Joined, Left, Memory, Version};
        let queues: [&[Notice]; 9] = [
            &[Left(0)],
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
        assert!(parse(&Snapshot { vectors: 0, ..snapshot(Vec::new()) }).is_err());
        let other = Snapshot { format: FORMAT + 1, ..snapshot(Vec::new()) };
        assert!(parse(&other).is_err_and(|why| why.contains("form 2")));
        for queue in [&[Memory, Joined(0, 0)][..], &[Joined(0, 1), Left(9)], &[Id, Memory]] {
            assert!(parse(&snapshot(vec![peer(0, queue.to_vec())])).is_ok(), "{queue:?}");
        }
    }
}
