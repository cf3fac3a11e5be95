//! How both ends come to agree that a connection is shunted (CLC): what each says in its section, and reads in the peer's.
//!
//! The client *proposes* before the acceptor knows of it, and says that it *uses* the connection with its first call; the
//! acceptor *answers*; the client *meets* it, once it has the acceptor's doorbells. Only the states are told here: the phase of
//! each end ([`Phase`](crate::handshake::Phase)) follows from them.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use shunt_shm::ring::TxCursor;
use shunt_wire::agent::EndpointId;
use shunt_wire::clc::{Answer, Proposal};
use shunt_wire::reason::Reason;

use crate::conn::End;

/// The acceptor.
impl End<'_> {
    /// Gets ready to answer the proposal of this generation of the slot, as this endpoint. `is_first`: the program cannot have
    /// sent anything yet; then all that this side will send goes through the ring, if the client reads there. True when that is so.
    #[must_use]
    pub fn prepare_answer(&self, generation: u32, me: EndpointId, is_first: bool) -> bool {
        let setup = &self.mine.setup;
        setup.generation.store(generation, Relaxed);
        setup.endpoint.store(me, Relaxed);
        let is_promoted = is_first && self.is_read_there();
        if is_promoted {
            // Of a client that is gone by now its own last words tell, or the kernel does at the first send.
            TxCursor::set_mark(&self.mine.prod, 0);
            self.record.tx.marks.store(1, Relaxed);
        }
        is_promoted
    }

    /// Says to the client that its connection is taken up.
    pub fn answer(&self) {
        // SYNC POINT answer: pairs with the Acquire in `answerer`.
        self.mine.setup.state.store(Answer::Accepted as u32, Release);
    }
}

/// The client.
impl End<'_> {
    /// The program has made a call on the connection through the library: bytes in the ring will be read.
    pub fn uses_proposal(&self) {
        let state = &self.mine.setup.state;
        if state.load(Relaxed) == Proposal::Proposed as u32 {
            // Not over a withdrawal by another thread.
            let (from, to) = (Proposal::Proposed as u32, Proposal::Used as u32);
            let _ = state.compare_exchange(from, to, Release, Relaxed);
        }
    }

    /// The endpoint that has taken the connection up, if one has.
    #[must_use]
    pub fn answerer(&self) -> Option<EndpointId> {
        let setup = &self.theirs.setup;
        // SYNC POINT answer.
        let answer = Answer::from_code(setup.state.load(Acquire));
        (answer == Some(Answer::Accepted)).then(|| setup.endpoint.load(Relaxed))
    }

    /// Why nobody takes the connection up, once the agent has answered that.
    #[must_use]
    pub fn declined(&self) -> Option<Reason> {
        let setup = &self.theirs.setup;
        let answer = Answer::from_code(setup.state.load(Acquire));
        let is_declined = answer == Some(Answer::Declined);
        is_declined.then(|| setup.reason().unwrap_or(Reason::PeerNotShunted))
    }

    /// It has the acceptor's doorbells, and says so.
    pub fn has_met(&self) {
        self.mine.setup.state.store(Proposal::Active as u32, Release);
    }

    /// It has taken its proposal back: nobody can take it up any more.
    pub fn withdraws(&self) {
        self.mine.setup.state.store(Proposal::Withdrawn as u32, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Memory;
    use crate::stretch::{Path, path};

    fn proposal(memory: &Memory) -> u32 {
        memory.end().mine.setup.state.load(Relaxed)
    }

    #[test]
    fn a_proposal_is_used_unless_it_was_taken_back() {
        for (before, after) in [
            (Proposal::Proposed, Proposal::Used),
            (Proposal::Withdrawn, Proposal::Withdrawn),
            (Proposal::Active, Proposal::Active),
        ] {
            let memory = Memory::default();
            memory.end().mine.setup.state.store(before as u32, Relaxed);
            memory.end().uses_proposal();
            assert_eq!(proposal(&memory), after as u32, "{before:?}");
        }
        let memory = Memory::default();
        memory.end().withdraws();
        assert_eq!(proposal(&memory), Proposal::Withdrawn as u32);
        memory.end().has_met();
        assert_eq!(proposal(&memory), Proposal::Active as u32);
    }

    #[test]
    fn only_an_acceptor_that_says_so_has_answered() {
        let memory = Memory::default();
        let setup = &memory.end().theirs.setup;
        setup.endpoint.store(7, Relaxed);
        for state in [0, 77, u32::MAX] {
            setup.state.store(state, Relaxed);
            assert_eq!(memory.end().answerer(), None, "{state}");
        }
        setup.state.store(Answer::Accepted as u32, Relaxed);
        assert_eq!(memory.end().answerer(), Some(7));
    }

    #[test]
    fn an_answer_says_who_and_of_what_before_it_is_one() {
        let memory = Memory::default();
        let (end, setup) = (memory.end(), &memory.end().mine.setup);
        assert!(!end.prepare_answer(3, 9, false));
        assert_eq!(setup.state.load(Relaxed), 0);
        assert_eq!((setup.generation.load(Relaxed), setup.endpoint.load(Relaxed)), (3, 9));
        end.answer();
        assert_eq!(setup.state.load(Relaxed), Answer::Accepted as u32);
    }

    #[test]
    fn first_bytes_go_into_the_ring_of_a_client_that_reads_there() {
        for (is_first, state, is_promoted) in [
            (true, Proposal::Used, true),
            (true, Proposal::Proposed, false),
            (false, Proposal::Used, false),
        ] {
            let memory = Memory::default();
            let end = memory.end();
            end.record.id.side.store(shunt_shm::region::Side::Server as u32, Relaxed);
            end.theirs.setup.state.store(state as u32, Relaxed);
            assert_eq!(end.prepare_answer(1, 1, is_first), is_promoted, "{is_first} {state:?}");
            let expected = if is_promoted { Path::Ring } else { Path::Tcp };
            assert_eq!(path(end.record.tx.marks.load(Relaxed)), expected);
            assert_eq!(end.mine.prod.marks.load(Relaxed), u32::from(is_promoted));
        }
    }
}
