//! A listener's table after other clients wrote what they like into it.
#![no_main]

use std::cell::OnceCell;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use shunt_fuzz::{AnyTuple, Hostile};
use shunt_shm::region::SLOTS;
use shunt_shm::table::{self, Place, Table, Ticket};
use shunt_wire::addr::FourTuple;

#[derive(Arbitrary, Debug)]
enum Op {
    Post {
        tuple: AnyTuple,
        region: u64,
        slot: u8,
        generation: u32,
    },
    Find(AnyTuple),
    Take {
        words: (u64, u64),
        region: u64,
        slot: usize,
    },
    Scrub(u64),
    /// Of a region that the agent has named.
    Connecting(u32),
    Scribble {
        at: u32,
        bytes: Vec<u8>,
    },
    /// An entry of this connection, where it is looked for, that points anywhere.
    Forge {
        tuple: AnyTuple,
        region: u64,
        slot: u32,
        generation: u32,
    },
}

thread_local! {
    static TABLE: OnceCell<(Table, Hostile)> = const { OnceCell::new() };
}

fn make() -> (Table, Hostile) {
    let fd = table::create().expect("memory for a table");
    (Table::map(&fd).expect("a table"), fd.into())
}

fn run(table: &Table, peer: &Hostile, op: &Op) {
    match op {
        Op::Post { tuple, region, slot, generation } => {
            let place = Place {
                region: *region,
                slot: usize::from(*slot) % SLOTS,
                generation: *generation,
            };
            let _ = table.post(&(*tuple).into(), place);
        }
        Op::Find(tuple) => {
            if let Some(ticket) = table.find(&(*tuple).into()) {
                assert!(ticket.place().slot < SLOTS);
                assert!(table.take(&ticket), "nobody else is here");
                assert!(!table.take(&ticket));
            }
        }
        Op::Take { words, region, slot } => {
            let place = Place { region: *region, slot: *slot, generation: 0 };
            let _ = table.take(&Ticket::from_words(*words, place));
        }
        Op::Scrub(region) => table.scrub(*region),
        Op::Connecting(region) => {
            let connecting = table.connect_begins((*region).into());
            let _ = table.connecting();
            drop(connecting);
        }
        Op::Scribble { at, bytes } => peer.write(u64::from(*at), bytes),
        Op::Forge { tuple, region, slot, generation } => {
            let tuple = FourTuple::from(*tuple);
            let place = Place { region: 0, slot: 0, generation: 0 };
            if let Some(ticket) = table.post(&tuple, place) {
                let (index, key) = ticket.to_words();
                let mut entry = [0; 24];
                entry[..8].copy_from_slice(&key.to_ne_bytes());
                entry[8..16].copy_from_slice(&region.to_ne_bytes());
                entry[16..20].copy_from_slice(&slot.to_ne_bytes());
                entry[20..].copy_from_slice(&generation.to_ne_bytes());
                peer.write(HEADER + index * ENTRY, &entry);
                let found = table.find(&tuple).filter(|found| found.to_words().0 == index);
                let slot = *slot as usize;
                assert!(found.is_some() || slot >= SLOTS);
                let forged = Place { region: *region, slot, generation: *generation };
                assert!(found.is_none_or(|found| slot < SLOTS && found.place() == forged));
            }
        }
    }
}

/// Lengths of the header and of an entry (see `docs/shm-abi.md`).
const HEADER: u64 = 576;
const ENTRY: u64 = 32;

fuzz_target!(|script: Vec<Op>| {
    TABLE.with(|table| {
        let (table, peer) = table.get_or_init(make);
        script.iter().for_each(|op| run(table, peer, op));
    });
});
