//! The arena of an endpoint, and the agent's view of it.

use std::collections::{HashSet, VecDeque};
use std::os::fd::OwnedFd;

use shunt_shm::arena::{self, Arena, ArenaView, Mode, NUMBERED, RECORDS, Record};
use shunt_shm::holders::{Member, Who};
use shunt_shm::memfd::create_sealed;
use shunt_shm::region::{SLOTS, Side};
use shunt_shm::ring::{ConsLine, Content, ProdLine, Shape, UNLIMITED};
use shunt_shm::sync::Ordering::{Relaxed, Release};
use shunt_wire::counter::Counter;
use shunt_wire::offer::Offer;
use shunt_wire::reason::Reason;

use crate::lock::{dead, is_dead, me};
use crate::tuple;

fn mapped() -> (Arena, OwnedFd) {
    let fd = arena::create().unwrap();
    (Arena::map(&fd).unwrap(), fd)
}

fn free(record: &Record) {
    record.id.live.store(0, Release);
}

#[test]
fn other_memory_is_refused() {
    assert!(Arena::map(create_sealed("test", 1 << 26).unwrap()).is_err());
    assert!(ArenaView::map(create_sealed("test", 4096).unwrap()).is_err());
}

#[test]
fn a_record_begins_clean_and_differs_from_its_last_use() {
    let (arena, _fd) = mapped();
    let first = arena.allocate(Member::UNNAMED, &mut 0).unwrap();
    let generation = first.id.generation.load(Relaxed);
    assert_eq!(first.id.holders.count(), 1);
    first.id.mode.store(Mode::Copy as u32, Relaxed);
    first.id.vector.store(4, Relaxed);
    first.rx.bytes.store(9, Relaxed);
    first.tx.cursor.publish(&ProdLine::default(), 100);
    std::mem::forget(first.tx.lock.lock(dead(), is_dead));
    free(first);
    let again = arena.allocate(Member::UNNAMED, &mut 0).unwrap();
    assert!(std::ptr::eq(first, again));
    assert_ne!(again.id.generation.load(Relaxed), generation);
    assert_eq!(again.id.mode.load(Relaxed), Mode::Tcp as u32);
    assert_eq!(again.id.vector.load(Relaxed), 0);
    assert_eq!(again.rx.bytes.load(Relaxed), 0);
    assert_eq!(again.tx.cursor.pos(), 0);
    again.free_locks(is_dead);
    assert!(!again.tx.lock.is_held_by(dead()));
    assert!(!again.tx.lock.lock(me(), is_dead).nested());
}

#[test]
fn a_full_arena_refuses_and_recovers() {
    let (arena, _fd) = mapped();
    let mut hint = 0;
    let mut seen = HashSet::new();
    while let Some(record) = arena.allocate(Member::UNNAMED, &mut hint) {
        assert!(seen.insert(std::ptr::from_ref(record)));
    }
    assert_eq!(seen.len(), RECORDS);
    // SAFETY: a record of the arena, which is still mapped.
    let some = unsafe { &**seen.iter().next().unwrap() };
    free(some);
    assert!(
        arena.allocate(Member::UNNAMED, &mut hint).is_some_and(|record| std::ptr::eq(record, some))
    );
    assert!(arena.allocate(Member::UNNAMED, &mut hint).is_none());
}

#[test]
fn the_agent_sees_what_lives() {
    let (arena, fd) = mapped();
    let view = ArenaView::map(&fd).unwrap();
    assert_eq!(view.connections().count(), 0);
    let mut hint = 0;
    let [gone, record] = [(); 2].map(|()| arena.allocate(Member::UNNAMED, &mut hint).unwrap());
    free(gone);
    let id = &record.id;
    id.pid.store(42, Relaxed);
    id.fd.store(-1, Relaxed);
    id.set_tuple(&tuple(5000));
    id.mode.store(Mode::Attach as u32, Relaxed);
    id.reason.store(Reason::Pending as u32, Relaxed);
    id.region.store(11, Relaxed);
    id.slot.store(12, Relaxed);
    id.side.store(Side::Server as u32, Relaxed);
    id.vector.store(3, Relaxed);
    record.tx.bytes.store(1000, Relaxed);
    record.rx.messages.store(7, Relaxed);
    record.tx.full.store(2, Relaxed);
    record.rx.spins[1].store(6, Relaxed);
    let _ = record
        .tx
        .cursor
        .reserve(
            &ConsLine::default(),
            64,
            Shape { cap: 64, late: false },
            UNLIMITED,
            (8, Content::Put),
        )
        .unwrap();
    record.tx.cursor.publish(&ProdLine::default(), 8);

    let all: Vec<_> = view.connections().collect();
    assert_eq!(all.len(), 1);
    let seen = &all[0];
    assert_eq!((seen.pid, seen.fd, seen.tuple), (42, -1, tuple(5000)));
    assert_eq!((seen.mode, seen.reason), (Mode::Attach, Some(Reason::Pending)));
    assert_eq!((seen.region, seen.slot, seen.side), (11, 12, Side::Server));
    assert_eq!(seen.vector, Some(2));
    assert_eq!((seen.bytes_sent, seen.messages_received), (1000, 7));
    assert_eq!((seen.ring_fill_tx, seen.ring_fill_rx), (8, 0));
    assert_eq!((seen.doorbells, seen.spins), ([0, 0, 2], [0, 6]));
    assert_eq!(seen.zero_copy, None);

    let tally = &arena.zero_copy(record).tally;
    tally.add(Counter::ZerocopySent, 5);
    tally.add(Counter::BytesGranted, 7);
    tally.add(Counter::BytesSent, 9);
    id.flags.fetch_or(NUMBERED, Relaxed);
    let seen = view.connections().next().unwrap().zero_copy;
    assert_eq!(seen, Some([5, 0, 0, 0, 0, 0, 7, 0]));
}

#[test]
fn totals_are_counted() {
    let (arena, fd) = mapped();
    let view = ArenaView::map(&fd).unwrap();
    arena.counters().of(7).add(Counter::Connections, 3);
    arena.counters().of(7).add(Counter::Violations, 1);
    arena.counters().of(1).decline(Reason::Remote);
    let totals = view.counters();
    assert_eq!(totals[Counter::Connections as usize], 3);
    assert_eq!(totals[Counter::Violations as usize], 1);
    assert_eq!(totals.iter().sum::<u64>(), 4);
    assert_eq!(view.declined()[Reason::Remote as usize], 1);
}

#[test]
fn a_record_names_a_slot_that_there_is() {
    let (arena, _fd) = mapped();
    let record = arena.allocate(Member::UNNAMED, &mut 0).unwrap();
    record.id.side.store(Side::Client as u32, Relaxed);
    record.id.slot.store(u32::MAX, Relaxed);
    assert_eq!((record.slot(), record.side()), (SLOTS - 1, Side::Client));
}

#[test]
fn modes_survive_the_arena() {
    for mode in [Mode::Tcp, Mode::Attach, Mode::Copy] {
        assert_eq!(Mode::from_code(mode as u32), mode);
    }
    assert_eq!(Mode::from_code(77), Mode::Tcp);
}

fn who(pid: u32) -> Who {
    Who { pid, start: u64::from(pid) + 1, namespace: 9 }
}

#[test]
fn relatives_are_known_by_name() {
    let (arena, _fd) = mapped();
    let processes = arena.processes();
    assert_eq!(processes.next(), None);
    let [a, b] = [(); 2].map(|()| processes.claim());
    assert!(a != b && a != Member::UNNAMED && b != Member::UNNAMED);
    assert_eq!(processes.who(a), None, "not born yet");
    assert_eq!(processes.next(), None, "and not to be looked after");
    processes.introduce(a, who(5));
    processes.born(a, 500, 1);
    assert_eq!(processes.who(a), Some(who(5)), "what the process itself has said stays");
    processes.born(b, 700, 1);
    assert_eq!(processes.who(b), Some(Who { pid: 700, start: 0, namespace: 1 }));
    processes.introduce(b, who(7));
    assert_eq!(processes.who(b), Some(who(7)), "it knows itself better than its parent");
    let turns: HashSet<_> = (0..4).filter_map(|_| processes.next()).map(Member::code).collect();
    assert_eq!(turns, HashSet::from([a.code(), b.code()]));
    processes.free(a);
    assert_eq!(processes.who(a), None);
    let again = processes.claim();
    processes.introduce(again, who(8));
    assert_ne!(again, a, "a place is used again, its name is not");
    assert_eq!(processes.who(a), None);
    processes.free(a);
    assert_eq!(processes.who(again), Some(who(8)), "an old name frees nothing");
    assert_eq!(Member::from_code(b.code()), b);
}

#[test]
fn start_times_are_the_clock_s_until_one_is_not() {
    let (arena, _fd) = mapped();
    let processes = arena.processes();
    assert_eq!(processes.starts_by_clock(), None);
    processes.note_starts(true);
    assert_eq!(processes.starts_by_clock(), Some(true));
    processes.note_starts(false);
    processes.note_starts(true);
    assert_eq!(processes.starts_by_clock(), Some(false));
    assert_eq!(processes.next(), None, "nobody has come of that");
}

#[test]
fn what_is_learnt_of_a_port_is_kept_by_its_kind() {
    let (arena, _fd) = mapped();
    let families = arena.families();
    families.brevity(80).store(1, Relaxed);
    families.spins(80).store(2, Relaxed);
    let at = |port| {
        let words = [families.brevity(port), families.spins(port)];
        words.map(|word| word.load(Relaxed))
    };
    assert_eq!((at(80), at(81)), ([1, 2], [0, 0]));
}

#[test]
fn a_full_table_of_processes_refuses_and_recovers() {
    let (arena, _fd) = mapped();
    let processes = arena.processes();
    let all: Vec<_> = std::iter::repeat_with(|| processes.claim())
        .take_while(|m| *m != Member::UNNAMED)
        .collect();
    assert_eq!(all.len(), shunt_shm::holders::PROCESSES);
    processes.free(all[17]);
    assert_ne!(processes.claim(), Member::UNNAMED);
    assert_eq!(processes.claim(), Member::UNNAMED);
}

#[test]
fn the_last_holder_is_told() {
    let (arena, _fd) = mapped();
    let [a, b, c] = [(); 3].map(|()| arena.processes().claim());
    let record = arena.allocate(a, &mut 0).unwrap();
    let holders = &record.id.holders;
    holders.add(b);
    holders.add(c);
    assert_eq!((holders.count(), holders.names().count()), (3, 3));
    assert_eq!(arena.held_by(b).count(), 1);
    assert!(!holders.remove(a));
    assert!(!holders.bereave(a), "it let go by itself");
    assert!(holders.remove_if_shared(b));
    assert!(!holders.remove_if_shared(c), "the last stays");
    assert!(holders.has(c) && !holders.has(b));
    holders.add(b);
    assert!(!holders.bereave(b));
    assert!(!holders.bereave(b), "once");
    assert!(holders.bereave(c));
    assert_eq!(holders.count(), 0);
    assert_eq!(arena.held_by(c).count(), 0);
}

#[test]
fn more_holders_than_have_names_are_counted() {
    let (arena, _fd) = mapped();
    let record = arena.allocate(Member::UNNAMED, &mut 0).unwrap();
    let holders = &record.id.holders;
    let many: Vec<_> = (0..20).map(|_| arena.processes().claim()).collect();
    many.iter().for_each(|member| holders.add(*member));
    assert_eq!(holders.count(), 21);
    assert_eq!(holders.names().count(), shunt_shm::holders::NAMED);
    assert!(many.iter().all(|member| !holders.remove(*member)));
    assert!(holders.remove(Member::UNNAMED));
}

/// Connections that come and go use the same few records: what was never touched costs no memory.
#[test]
fn records_are_used_again() {
    for at_once in [1, 16, 100, 1000] {
        let (arena, _fd) = mapped();
        let mut hint = 0;
        let mut take = || arena.allocate(Member::UNNAMED, &mut hint).unwrap();
        let mut live: VecDeque<_> = (0..at_once).map(|_| take()).collect();
        let mut touched = HashSet::new();
        for n in 0..40_000 {
            // Two go, then two come; some stay for long.
            if n % 2 == 0 {
                for _ in 0..2.min(at_once) {
                    live.pop_front().into_iter().for_each(free);
                }
            }
            if live.len() < at_once {
                live.push_back(take());
            }
            touched.insert(std::ptr::from_ref(live[live.len() - 1]));
        }
        assert!(touched.len() <= 2 * at_once + 128, "{} for {at_once}", touched.len());
    }
}

#[test]
fn an_offer_is_answered_once_and_only_while_it_is_open() {
    let fd = arena::create().unwrap();
    let (arena, view) = (Arena::map(&fd).unwrap(), ArenaView::map(&fd).unwrap());
    let record = arena.allocate(Member::UNNAMED, &mut 0).unwrap();
    let index = u32::try_from(arena.index_of(record)).unwrap();
    let set = |offer: Offer| record.id.offer.store(offer.to_word(), Release);
    let claimed = Offer::Claimed { region: 9, slot: 254 };
    assert_eq!(view.offer(index), Offer::None);
    assert!(!view.answer(index, 0, claimed), "nothing was offered");
    set(Offer::Open(5));
    assert!(!view.answer(index, 4, claimed), "that of an earlier use of the record");
    assert!(view.answer(index, 5, claimed));
    assert_eq!(view.offer(index), claimed);
    assert!(!view.answer(index, 5, Offer::Declined(Reason::Denied)), "once");
    set(Offer::None);
    assert!(!view.answer(index, 5, claimed), "the client was first");
}
