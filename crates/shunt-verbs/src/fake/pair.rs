//! A queue pair: what was posted, and what has arrived.

use std::collections::VecDeque;

use crate::port::Patience;
use crate::value::{Capacity, Done, Operation, PairState, PeerPair, Piece, ReceiveRequest};

/// A send request that has not come to its end.
#[derive(Debug)]
pub(super) struct Outstanding {
    pub(super) id: u64,
    pub(super) operation: Operation,
    pub(super) pieces: Vec<Piece>,
    pub(super) signaled: bool,
    /// The peer's device has it.
    pub(super) is_sent: bool,
}

/// Bytes that are on their way into memory: key, address, bytes.
pub(super) type Chunk = (u32, u64, Vec<u8>);

/// What has arrived at a device, in the order in which it came.
#[derive(Debug)]
pub(super) enum Arrived {
    Write(Vec<Chunk>),
    Message { receive: ReceiveRequest, done: Done, payload: Vec<u8> },
}

#[derive(Debug)]
pub(super) struct Pair {
    pub(super) host: usize,
    pub(super) queue: usize,
    pub(super) capacity: Capacity,
    pub(super) state: PairState,
    pub(super) peer: Option<PeerPair>,
    pub(super) patience: Patience,
    /// Tries since the last answer: those without one, and those that found no receive request.
    pub(super) tries: (u8, u8),
    pub(super) sends: VecDeque<Outstanding>,
    pub(super) receives: VecDeque<ReceiveRequest>,
    pub(super) arrived: VecDeque<Arrived>,
    /// Completions stay away.
    pub(super) is_withheld: bool,
}

impl Pair {
    /// The first request that the peer's device does not have.
    pub(super) fn unsent(&self) -> Option<usize> {
        let unsent = self.sends.iter().position(|send| !send.is_sent);
        unsent.filter(|_| self.state == PairState::ReadyToSend)
    }

    pub(super) fn takes_messages(&self) -> bool {
        matches!(self.state, PairState::ReadyToReceive | PairState::ReadyToSend)
    }
}

/// What a step of a queue pair sets.
#[derive(Debug)]
pub(super) struct Pairing<'a>(pub(super) &'a mut Pair);

impl Pairing<'_> {
    pub(super) fn with(&mut self, peer: PeerPair) {
        self.0.peer = Some(peer);
    }

    pub(super) fn patient(&mut self, patience: Patience) {
        self.0.patience = patience;
    }
}
