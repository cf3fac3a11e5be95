//! A proposal's way through the table: the acceptor takes it out, or the client does, and never both.

use core::sync::atomic::Ordering::{Relaxed, Release};

use shunt_shm::arena::Record;
use shunt_shm::region::Section;
use shunt_shm::table::{Place, Table, Ticket};
use shunt_wire::addr::FourTuple;
use shunt_wire::agent::{EndpointId, RegionId};
use shunt_wire::clc::Proposal;

use crate::conn::End;

/// Takes a proposal that says to be this connection's out of the table. `theirs`: what the client has written in its place;
/// `find`: the endpoint that it names there, if it is one that may. `None`: another one has it, or the client has taken it back. A
/// client that takes its proposal back may use the slot for the next one at once; but it takes the entry first. One whose entry is
/// still there tells two stories: then there is no endpoint.
pub fn take<P>(
    (table, ticket): (&Table, &Ticket),
    theirs: &Section,
    tuple: &FourTuple,
    find: impl FnOnce(EndpointId) -> Option<P>,
    release: impl FnOnce(P),
) -> Option<Option<P>> {
    let speaks_of_it = theirs.setup.proposes(ticket.place().generation, tuple);
    let owner = theirs.setup.endpoint.load(Relaxed);
    let peer = if speaks_of_it { find(owner) } else { None };
    if table.take(ticket) {
        return Some(peer);
    }
    if let Some(peer) = peer {
        release(peer);
    }
    None
}

/// The client's: posts its proposal for the connection `tuple`, as its own end sees it. `mine`: what it writes in the place that
/// it has taken. `None`: the table is full.
#[must_use]
pub fn post(
    table: &Table,
    (region, slot): (RegionId, usize),
    mine: &Section,
    (me, tuple): (EndpointId, &FourTuple),
) -> Option<Ticket> {
    let setup = &mine.setup;
    setup.set_tuple(tuple);
    setup.endpoint.store(me, Relaxed);
    let generation = setup.generation.fetch_add(1, Relaxed).wrapping_add(1);
    setup.state.store(Proposal::Proposed as u32, Release);
    table.post(&tuple.reversed(), Place { region, slot, generation })
}

/// Notes where the client's end finds its proposal in the table.
pub fn note(record: &Record, ticket: Ticket) {
    let (index, key) = ticket.to_words();
    let id = &record.id;
    id.ticket[0].store(index, Relaxed);
    id.ticket[1].store(key, Relaxed);
}

/// The client's: takes its open proposal back. False: an acceptor has it. `taken` runs between the two steps.
pub fn withdraw(table: &Table, region: RegionId, end: End<'_>, taken: impl FnOnce()) -> bool {
    if !table.take(&ticket(end.record, region)) {
        return false;
    }
    taken();
    // The slot stays taken until the connection ends: another thread may still be looking at it.
    end.withdraws();
    true
}

/// The table's entry for the client's end.
fn ticket(record: &Record, region: RegionId) -> Ticket {
    let id = &record.id;
    let place = Place { region, slot: record.slot(), generation: id.slot_generation.load(Relaxed) };
    let words = (id.ticket[0].load(Relaxed), id.ticket[1].load(Relaxed));
    Ticket::from_words(words, place)
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use shunt_wire::addr::Addr;

    use super::*;
    use crate::model::Memory;

    const REGION: RegionId = 3;
    const OWNER: EndpointId = 8;

    fn tuple() -> FourTuple {
        let of = |port| Addr { ip: [1; 16], port };
        FourTuple { local: of(80), peer: of(40_000) }
    }

    /// A table, and a proposal in it; as an acceptor sees it, and as the client does.
    struct Proposed {
        table: Table,
        ticket: Ticket,
        memory: Memory,
    }

    impl Proposed {
        fn new() -> Self {
            let table = Table::map(shunt_shm::table::create().unwrap()).unwrap();
            let memory = Memory::default();
            let (end, id) = (memory.end(), &memory.record().id);
            end.theirs.setup.generation.store(4, Relaxed);
            let named = (OWNER, &tuple().reversed());
            let ticket = post(&table, (REGION, 2), end.theirs, named).unwrap();
            assert_eq!(ticket.place(), Place { region: REGION, slot: 2, generation: 5 });
            note(memory.record(), ticket);
            id.slot.store(2, Relaxed);
            id.slot_generation.store(5, Relaxed);
            Self { table, ticket, memory }
        }

        /// What the acceptor takes, and whether it gave the endpoint back.
        fn taken(&self) -> (Option<Option<EndpointId>>, bool) {
            let released = Cell::new(false);
            let theirs = self.memory.end().theirs;
            let taken =
                take((&self.table, &self.ticket), theirs, &tuple(), Some, |_| released.set(true));
            (taken, released.get())
        }

        fn withdrawn(&self) -> bool {
            withdraw(&self.table, REGION, self.memory.end(), || {})
        }

        fn state(&self) -> u32 {
            self.memory.end().mine.setup.state.load(Relaxed)
        }
    }

    #[test]
    fn an_acceptor_takes_a_proposal_once_and_the_client_hears_of_it() {
        let proposed = Proposed::new();
        assert_eq!(proposed.taken(), (Some(Some(OWNER)), false));
        assert_eq!(proposed.taken(), (None, true));
        assert!(!proposed.withdrawn());
        assert_ne!(proposed.state(), Proposal::Withdrawn as u32);
    }

    #[test]
    fn what_the_client_takes_back_no_acceptor_gets() {
        let proposed = Proposed::new();
        assert!(proposed.withdrawn());
        assert_eq!(proposed.state(), Proposal::Withdrawn as u32);
        assert_eq!(proposed.taken(), (None, true));
        assert!(!proposed.withdrawn());
    }

    #[test]
    fn a_proposal_that_speaks_of_something_else_has_no_endpoint() {
        type Change = fn(&Memory);
        let lies: [Change; 3] = [
            |memory| memory.end().theirs.setup.set_tuple(&tuple()),
            |memory| memory.end().theirs.setup.generation.store(6, Relaxed),
            |memory| memory.end().theirs.setup.state.store(Proposal::Withdrawn as u32, Relaxed),
        ];
        for (n, lie) in lies.into_iter().enumerate() {
            let proposed = Proposed::new();
            lie(&proposed.memory);
            assert_eq!(proposed.taken(), (Some(None), false), "{n}");
        }
    }

    #[test]
    fn the_entry_goes_before_the_word() {
        let proposed = Proposed::new();
        let found = Cell::new(true);
        assert!(withdraw(&proposed.table, REGION, proposed.memory.end(), || {
            found.set(proposed.table.find(&tuple()).is_some());
            assert_ne!(proposed.state(), Proposal::Withdrawn as u32);
        }));
        assert!(!found.get());
    }
}
