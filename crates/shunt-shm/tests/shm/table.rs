//! The table of open proposals.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Barrier;
use std::thread;

use proptest::prelude::*;
use shunt_shm::memfd::create_sealed;
use shunt_shm::region::SLOTS;
use shunt_shm::table::{self, ENTRIES, Place, Table, Ticket};

use crate::tuple;

fn mapped() -> Table {
    Table::map(table::create().unwrap()).unwrap()
}

fn place(region: u64) -> Place {
    Place { region, slot: 17, generation: 3 }
}

#[test]
fn other_memory_is_refused() {
    assert!(Table::map(create_sealed("test", 1 << 20).unwrap()).is_err());
}

#[test]
fn a_posted_proposal_is_found_and_taken_once() {
    let table = mapped();
    assert!(table.find(&tuple(1)).is_none());
    let posted = table.post(&tuple(1), place(5)).unwrap();
    let found = table.find(&tuple(1)).unwrap();
    assert_eq!(found.place(), place(5));
    assert_eq!(posted.to_words(), found.to_words());
    assert!(table.find(&tuple(2)).is_none());
    assert!(table.find(&tuple(1).reversed()).is_none());
    assert!(table.take(&found));
    assert!(!table.take(&found));
    assert!(!table.take(&posted));
    assert!(table.find(&tuple(1)).is_none());
}

#[test]
fn a_ticket_survives_plain_words() {
    let table = mapped();
    let words = table.post(&tuple(1), place(5)).unwrap().to_words();
    assert!(!table.take(&Ticket::from_words(words, place(6))), "another region's proposal");
    assert!(table.find(&tuple(1)).is_some(), "and is put back");
    assert!(!table.take(&Ticket::from_words((u64::MAX, words.1), place(5))));
    assert!(table.take(&Ticket::from_words(words, place(5))));
}

/// A late ticket of an earlier use of the 4-tuple must not take the proposal of the present one.
#[test]
fn a_ticket_is_for_one_use_of_its_slot() {
    let table = mapped();
    let first = table.post(&tuple(1), place(5)).unwrap();
    assert!(table.take(&first));
    let second = table.post(&tuple(1), Place { generation: 4, ..place(5) }).unwrap();
    assert!(!table.take(&first));
    assert!(table.take(&second));
}

#[test]
fn accepting_and_withdrawing_have_one_winner() {
    const ROUNDS: usize = 2_000;
    let table = mapped();
    let barrier = Barrier::new(2);
    let (accepted, withdrawn) = thread::scope(|scope| {
        let client = scope.spawn(|| {
            let round = |_| {
                let ticket = table.post(&tuple(9), place(1)).unwrap();
                barrier.wait();
                let withdrawn = table.take(&ticket);
                barrier.wait();
                withdrawn
            };
            (0..ROUNDS).map(round).collect::<Vec<_>>()
        });
        let round = |_| {
            barrier.wait();
            let accepted = table.find(&tuple(9)).is_some_and(|ticket| table.take(&ticket));
            barrier.wait();
            accepted
        };
        let accepted: Vec<_> = (0..ROUNDS).map(round).collect();
        (accepted, client.join().unwrap())
    });
    assert!(accepted.iter().zip(&withdrawn).all(|(a, w)| a != w), "exactly one of the two");
    assert!(table.find(&tuple(9)).is_none());
}

#[test]
fn a_full_neighbourhood_refuses_and_recovers() {
    let table = mapped();
    // One 4-tuple has a few places; all of them can be taken by itself.
    let posted: Vec<_> = (0..).map_while(|region| table.post(&tuple(1), place(region))).collect();
    assert!((2..ENTRIES).contains(&posted.len()));
    assert!(table.post(&tuple(1), place(99)).is_none());
    assert!(table.take(&posted[1]));
    assert!(table.post(&tuple(1), place(99)).is_some());
}

#[test]
fn holds_the_backlog_of_a_busy_listener() {
    let table = mapped();
    let posted = (1..=2_000).filter(|port| table.post(&tuple(*port), place(1)).is_some()).count();
    assert!(posted > 1_900, "{posted}");
}

#[test]
fn scrubbing_removes_what_the_dead_left_and_nothing_else() {
    let table = mapped();
    for port in 1..=100 {
        table.post(&tuple(port), place(u64::from(port % 2))).unwrap();
    }
    table.scrub(1);
    for port in 1..=100 {
        assert_eq!(table.find(&tuple(port)).is_some(), port % 2 == 0, "{port}");
    }
}

#[test]
fn connecting_is_counted() {
    let table = mapped();
    assert!(!table.connecting());
    table.connect_begins();
    table.connect_begins();
    table.connect_ends();
    assert!(table.connecting());
    table.connect_ends();
    assert!(!table.connecting());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever another client wrote: a proposal that is found has a slot inside the region.
    #[test]
    fn hostile_entries_lead_to_valid_places(
        words in prop::collection::vec(any::<u64>(), 1..64),
        port in any::<u16>(),
    ) {
        let fd = File::from(table::create().unwrap());
        let table = Table::map(&fd).unwrap();
        let key = table.post(&tuple(port), place(1)).unwrap().to_words().1;
        // Every entry is for this 4-tuple and points anywhere.
        for entry in 0..ENTRIES {
            let word = |i: usize| words[(entry + i) % words.len()];
            let bytes: Vec<u8> =
                [key, word(0), word(1), word(2)].iter().flat_map(|w| w.to_ne_bytes()).collect();
            fd.write_all_at(&bytes, 64 + entry as u64 * 32).unwrap();
        }
        if let Some(found) = table.find(&tuple(port)) {
            prop_assert!(found.place().slot < SLOTS);
            prop_assert!(table.take(&found));
        }
        table.scrub(words[0]);
    }
}
