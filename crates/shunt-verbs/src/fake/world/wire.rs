//! What goes over the wire: a request of one device, and what the other one makes of it.

use std::collections::VecDeque;

use super::super::pair::{Arrived, Chunk, Pair};
use super::{World, gid};
use crate::value::{Access, Done, Failure, Operation, Remote};

/// The longest piece in which a write is placed.
const PIECE: usize = 48;

impl World {
    /// The next request of a queue pair goes over the wire, or fails to.
    pub(super) fn transmit(&mut self, number: u32) {
        let Some(pair) = self.pairs.get(&number) else { return };
        let Some(at) = pair.unsent() else { return };
        let send = &pair.sends[at];
        let (host, operation, patience, peer) =
            (pair.host, send.operation, pair.patience, pair.peer);
        let Some(bytes) = self.gather(host, &send.pieces) else {
            return self.fail(number, Failure::LocalAccess);
        };
        let to = peer.filter(|to| {
            let other = self.pairs.get(&to.number.0);
            let is_ours = |other: &Pair| {
                let back = other.peer.is_some_and(|back| back.number.0 == number);
                back && other.takes_messages() && gid(other.host) == to.gid
            };
            let moves = |host: usize| self.hosts[host].moves_packets();
            let is_there = other.is_some_and(|other| is_ours(other) && moves(other.host));
            !self.is_cut && moves(host) && is_there
        });
        let Some(to) = to.map(|to| to.number.0) else {
            return self.try_again(number, Failure::Retries, patience.retries);
        };
        let is_refused = operation.is_told() && self.random.chance(self.faults.not_ready);
        let has_receive = self.pairs.get(&to).is_some_and(|to| !to.receives.is_empty());
        if operation.is_told() && (is_refused || !has_receive) {
            // 7: for ever.
            let retries = if patience.not_ready == 7 { u8::MAX } else { patience.not_ready };
            return self.try_again(number, Failure::ReceiverNotReady, retries);
        }
        match self.arrive(to, operation, bytes) {
            Ok(()) => {
                if let Some(pair) = self.pairs.get_mut(&number) {
                    pair.tries = (0, 0);
                    pair.sends[at].is_sent = true;
                }
            }
            Err(failure) => self.fail(number, failure),
        }
    }

    /// A try without success; the last one of them fails the queue pair.
    fn try_again(&mut self, number: u32, failure: Failure, retries: u8) {
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        let tries = match failure {
            Failure::Retries => &mut pair.tries.0,
            _ => &mut pair.tries.1,
        };
        if retries == u8::MAX {
            return;
        }
        *tries += 1;
        if *tries > retries {
            self.fail(number, failure);
        }
    }

    /// What a device does with a request that comes in; what the sender is told when it is refused.
    fn arrive(&mut self, to: u32, operation: Operation, bytes: Vec<u8>) -> Result<(), Failure> {
        #[allow(clippy::cast_possible_truncation, reason = "pieces are that long at most")]
        let length = bytes.len() as u32;
        let Some(pair) = self.pairs.get(&to) else { return Err(Failure::Retries) };
        let host = pair.host;
        let write = match operation {
            Operation::Write(at) | Operation::WriteWithImmediate(at, _) => Some(at),
            Operation::Send => None,
        };
        if let Some(at) = write {
            let may = self.regions.get(&at.key.0).is_some_and(|region| {
                let is_open = region.host == host && region.access == Access::RemoteWrite;
                is_open && region.at(at.address, bytes.len()).is_some()
            });
            if !may {
                self.break_pair(to);
                return Err(Failure::RemoteAccess);
            }
        }
        let receives = self.pairs.get_mut(&to).map(|pair| &mut pair.receives);
        let receive = receives.filter(|_| operation.is_told()).and_then(VecDeque::pop_front);
        let room = receive.map(|receive| receive.piece);
        if operation == Operation::Send && room.is_some_and(|room| room.length < length) {
            // IBTA 9.9.3.1: the responder's request fails, and the requester hears of an invalid request.
            self.put(to, receive.map_or(0, |receive| receive.id), Err(Failure::Length));
            self.break_pair(to);
            return Err(Failure::RemoteRequest);
        }
        let chunks = write.map(|at| self.cut_up(at, &bytes));
        let Some(pair) = self.pairs.get_mut(&to) else { return Err(Failure::Retries) };
        pair.arrived.extend(chunks.map(Arrived::Write));
        if let Some(receive) = receive {
            let (done, payload) = match operation {
                Operation::WriteWithImmediate(_, immediate) => {
                    (Done::Written { length, immediate }, Vec::new())
                }
                _ => (Done::Received(length), bytes),
            };
            pair.arrived.push_back(Arrived::Message { receive, done, payload });
        }
        Ok(())
    }

    /// A write in pieces.
    fn cut_up(&mut self, at: Remote, bytes: &[u8]) -> Vec<Chunk> {
        let mut chunks = Vec::new();
        let mut done = 0;
        while done < bytes.len() {
            let len = (1 + self.random.below(PIECE)).min(bytes.len() - done);
            // Long writes in fewer pieces, or a history would consist of them.
            let len = len.max(bytes.len() / 16).min(bytes.len() - done);
            let part = bytes[done..done + len].to_vec();
            chunks.push((at.key.0, at.address + done as u64, part));
            done += len;
        }
        chunks
    }
}
