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

/// Where the entries begin in the memory.
const ENTRIES_AT: u64 = 576;

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

/// The name of a connection is the kernel's: who has it now is the one that counts.
#[test]
fn a_stale_proposal_is_replaced() {
    let table = mapped();
    let stale = table.post(&tuple(1), place(5)).unwrap();
    let posted = table.post(&tuple(1), place(6)).unwrap();
    assert_eq!(table.find(&tuple(1)).unwrap().place(), place(6));
    assert!(!table.take(&stale), "whose client is late");
    table.scrub(5);
    assert!(table.take(&posted));
    assert!(table.find(&tuple(1)).is_none());
}

/// An entry whose writer was killed in the middle of it is free again with the writer's region.
#[test]
fn an_unfinished_entry_is_freed_with_its_region() {
    let fd = File::from(table::create().unwrap());
    let table = Table::map(&fd).unwrap();
    let posted = table.post(&tuple(1), place(5)).unwrap();
    let (index, key) = posted.to_words();
    let at = ENTRIES_AT + index * 32;
    // What a post of region 6 leaves there before it says where the proposal lies.
    fd.write_all_at(&(6_u64 << 2 | 1).to_ne_bytes(), at).unwrap();
    assert!(table.find(&tuple(1)).is_none());
    assert!(!table.take(&posted));
    let word = || {
        let mut word = [0; 8];
        fd.read_exact_at(&mut word, at).unwrap();
        u64::from_ne_bytes(word)
    };
    table.scrub(5);
    assert_ne!(word(), 0, "the region that was there before has no say");
    table.scrub(6);
    assert_eq!(word(), 0);
    assert_eq!(table.post(&tuple(1), place(7)).unwrap().to_words(), (index, key));
}

#[test]
fn a_full_neighbourhood_refuses_and_recovers() {
    let fd = File::from(table::create().unwrap());
    let table = Table::map(&fd).unwrap();
    let (home, key) = table.post(&tuple(1), place(1)).unwrap().to_words();
    // The places where this 4-tuple may be are taken by others.
    for entry in 0..ENTRIES as u64 {
        fd.write_all_at(&(key ^ 4).to_ne_bytes(), ENTRIES_AT + entry * 32).unwrap();
    }
    assert!(table.post(&tuple(1), place(9)).is_none());
    let next = ENTRIES_AT + (home + 1) % ENTRIES as u64 * 32;
    fd.write_all_at(&[0; 8], next).unwrap();
    assert!(table.post(&tuple(1), place(9)).is_some());
    assert!(table.take(&table.find(&tuple(1)).unwrap()));
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
    // More than have a place of their own, several of each, and more than can be counted in one.
    let regions = (1..=100).chain([7; 3]).chain([9; 2000]);
    let begun: Vec<_> = regions.map(|region| table.connect_begins(region)).collect();
    for connecting in begun {
        assert!(table.connecting());
        drop(connecting);
    }
    assert!(!table.connecting());
}

#[test]
fn who_is_killed_in_its_connect_does_not_connect_for_ever() {
    let table = mapped();
    let (dead, other) = (table.connect_begins(3), table.connect_begins(4));
    table.scrub(3);
    assert!(table.connecting());
    drop(other);
    assert!(!table.connecting());
    // Dead as far as the agent knew: that must not count below nothing.
    drop(dead);
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
            fd.write_all_at(&bytes, ENTRIES_AT + entry as u64 * 32).unwrap();
        }
        if let Some(found) = table.find(&tuple(port)) {
            prop_assert!(found.place().slot < SLOTS);
            prop_assert!(table.take(&found));
        }
        table.scrub(words[0]);
    }
}
