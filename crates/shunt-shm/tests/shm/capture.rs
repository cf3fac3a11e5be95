//! The rings of captures.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use shunt_shm::arena::{self, Arena, ArenaView};
use shunt_shm::capture::{
    self, BITS, Event, LIFE, PATIENCE, PIECE, PLACES, RING, Reader, Rings, Wish,
};
use shunt_shm::holders::Member;
use shunt_shm::memfd::Map;
use shunt_wire::addr::{Addr, FourTuple};

const ALL: Wish = Wish { snap: u32::MAX, port: 0 };
/// Where the words of the first place are: open, head, tail; and its ring.
const HEAD_AT: usize = 64;
const TAIL_AT: usize = 128;
const RING_AT: usize = 4096;

struct Rig {
    fd: OwnedFd,
    rings: Rings,
    reader: Reader,
    map: Map,
}

fn rig(wish: Wish) -> Rig {
    let fd = capture::create().unwrap();
    let rings = Rings::map(&fd).unwrap();
    rings.open(0, wish, 0);
    let map = Map::new(&fd, capture::LEN, true).unwrap();
    let reader = Reader::new(&fd, 0).unwrap();
    Rig { fd, rings, reader, map }
}

fn event(offset: u64, len: usize) -> Event {
    let tuple = FourTuple { local: Addr::any_v4(80), peer: Addr::any_v6(5000) };
    let len = u32::try_from(len).unwrap();
    Event { at: 1, offset, tuple, flags: 5, len, peer: 2, link: 3, pid: 4, generation: 6 }
}

impl Rig {
    fn put_at(&self, now: u64, bits: u32, event: &Event, parts: &[&[u8]]) -> u32 {
        let parts: Vec<_> = parts.iter().map(|part| (part.as_ptr(), part.len())).collect();
        // SAFETY: the parts are there, and as long as the event says.
        unsafe { self.rings.put(bits, event, &parts, || now) }
    }

    fn put(&self, event: &Event, parts: &[&[u8]]) {
        assert_eq!(self.put_at(0, 1, event, parts), 0);
    }

    fn word(&self, at: usize, value: u64) {
        self.map.write(at, &value.to_ne_bytes()).unwrap();
    }
}

#[test]
fn an_event_is_found_as_it_was_put() {
    let mut rig = rig(ALL);
    assert_eq!(rig.reader.next(0), None);
    rig.put(&event(7, 11), &[b"hello ", b"world"]);
    rig.put(&event(18, 0), &[]);
    assert_eq!(rig.reader.next(0), Some((event(7, 11), b"hello world".to_vec())));
    assert_eq!(rig.reader.next(0), Some((event(18, 0), Vec::new())));
    assert_eq!(rig.reader.next(0), None);
}

#[test]
fn what_is_long_comes_by_pieces_and_is_cut() {
    let bytes: Vec<_> = (0..2 * PIECE + 5).map(|i| u8::try_from(i % 251).unwrap()).collect();
    for snap in [0, 10, u32::MAX] {
        let mut rig = rig(Wish { snap, port: 0 });
        let (front, back) = bytes.split_at(PIECE - 3);
        rig.put(&event(100, bytes.len()), &[front, back]);
        for (at, len) in [(0, PIECE), (PIECE, PIECE), (2 * PIECE, 5)] {
            let kept = len.min(usize::try_from(snap).unwrap());
            let expected = (event(100 + at as u64, len), bytes[at..at + kept].to_vec());
            assert_eq!(rig.reader.next(0), Some(expected), "{snap} {at}");
        }
        assert_eq!(rig.reader.next(0), None);
    }
}

#[test]
fn a_port_is_looked_at_by_the_sender() {
    for (port, found) in [(80, true), (5000, true), (81, false)] {
        let mut rig = rig(Wish { snap: 10, port });
        rig.put(&event(0, 1), &[b"x"]);
        assert_eq!(rig.reader.next(0).is_some(), found, "{port}");
    }
}

#[test]
fn what_does_not_fit_is_lost_and_counted_and_later_events_come() {
    let mut rig = rig(ALL);
    let bytes = vec![1; PIECE];
    let mut put = 0;
    while rig.reader.losses().events == 0 {
        rig.put(&event(put, PIECE), &[&bytes]);
        put += 1;
    }
    rig.put(&event(put, PIECE), &[&bytes]);
    let losses = rig.reader.losses();
    assert_eq!((losses.events, losses.bytes, losses.damaged), (2, 2 * PIECE as u64, 0));
    for n in 0..put - 1 {
        assert_eq!(rig.reader.next(0).unwrap().0.offset, n);
    }
    assert_eq!(rig.reader.next(0), None);
    // Round the end, more than once.
    for n in 0..3 * (RING / PIECE) as u64 {
        rig.put(&event(n, PIECE), &[&bytes]);
        assert_eq!(rig.reader.next(0), Some((event(n, PIECE), bytes.clone())));
    }
}

#[test]
fn a_capture_that_is_closed_or_whose_reader_is_dead_is_over() {
    let rig = rig(ALL);
    let bytes = vec![1; PIECE];
    assert_eq!(rig.put_at(0, 0b11, &event(0, 1), &[b"x"]), 0b10, "another was never opened");
    for n in 0..RING / PIECE {
        assert_eq!(rig.put_at(LIFE, 1, &event(n as u64, PIECE), &[&bytes]), 0, "it lives still");
    }
    assert!(rig.reader.losses().events > 0);
    rig.reader.lives(5);
    assert_eq!(rig.put_at(LIFE + 5, 1, &event(0, PIECE), &[&bytes]), 0);
    assert_eq!(rig.put_at(LIFE + 6, 1, &event(0, PIECE), &[&bytes]), 1);
    rig.reader.close();
    assert_eq!(rig.put_at(0, 1, &event(0, 1), &[b"x"]), 1);
}

#[test]
fn a_place_begins_anew_with_nothing_of_the_capture_before() {
    let mut rig = rig(ALL);
    rig.put(&event(0, 1), &[b"x"]);
    rig.rings.close(0);
    rig.rings.open(0, ALL, 0);
    // The reader of the one before is not that of this one.
    rig.reader = Reader::new(&rig.fd, 0).unwrap();
    assert_eq!(rig.reader.next(0), None);
    rig.put(&event(3, 1), &[b"y"]);
    assert_eq!(rig.reader.next(0), Some((event(3, 1), b"y".to_vec())));
}

#[test]
fn room_that_is_never_filled_is_passed_over() {
    // Reserved, and its length known: that much is passed over.
    let mut rig = rig(ALL);
    rig.word(HEAD_AT, 112);
    rig.word(RING_AT, 1 << 32 | 112);
    rig.put(&event(9, 1), &[b"x"]);
    assert_eq!(rig.reader.next(5), None);
    assert_eq!(rig.reader.next(4 + PATIENCE), None);
    assert_eq!(rig.reader.next(5 + PATIENCE), Some((event(9, 1), b"x".to_vec())));
    assert_eq!(rig.reader.losses().damaged, 1);
    // Not even that: all is passed over that is there.
    let mut rig = self::rig(ALL);
    rig.word(HEAD_AT, 112);
    rig.put(&event(9, 1), &[b"x"]);
    assert_eq!((rig.reader.next(5), rig.reader.next(5 + PATIENCE)), (None, None));
    rig.put(&event(10, 1), &[b"y"]);
    assert_eq!(rig.reader.next(6 + PATIENCE), Some((event(10, 1), b"y".to_vec())));
}

#[test]
fn a_reader_believes_nothing_and_goes_on() {
    let committed = 3_u64 << 32;
    for head in [1, 8, 104, 4096, RING as u64, RING as u64 + 8, u64::MAX, 1 << 63] {
        for word in [
            0,
            committed,
            committed | 8,
            committed | 104,
            committed | 4000,
            committed | 4001,
            committed | 0xffff_fff8,
            2 << 32 | 104,
            7 << 40,
            u64::MAX,
        ] {
            let mut rig = rig(ALL);
            rig.word(HEAD_AT, head);
            rig.word(RING_AT, word);
            // A length that is greater than what was sent, in a head that can be.
            for at in [RING_AT + 8 + 68, RING_AT + 8 + 72] {
                rig.map.write(at, &u32::MAX.to_ne_bytes()).unwrap();
            }
            for turn in 0..4 {
                assert_eq!(rig.reader.next(turn * PATIENCE), None, "{head} {word:x}");
            }
            assert!(rig.reader.losses().damaged > 0, "{head} {word:x}");
            rig.put(&event(1, 2), &[b"ab"]);
            assert_eq!(
                rig.reader.next(9 * PATIENCE),
                Some((event(1, 2), b"ab".to_vec())),
                "{head} {word:x}"
            );
        }
    }
}

#[test]
fn a_sender_believes_nothing_either() {
    let bytes = vec![1; PIECE];
    for head in [0, 1, 4, RING as u64 - 8, u64::MAX, u64::MAX - 7] {
        for tail in [0, 3, RING as u64, u64::MAX, 1 << 40] {
            let rig = rig(ALL);
            for _ in 0..RING / PIECE + 2 {
                rig.word(HEAD_AT, head);
                rig.word(TAIL_AT, tail);
                rig.put(&event(0, PIECE), &[&bytes]);
            }
        }
    }
}

#[test]
fn senders_in_many_threads_lose_nothing_that_they_do_not_count() {
    const SENDERS: u64 = 4;
    const EACH: u64 = if cfg!(miri) { 20 } else { 20_000 };
    let mut rig = rig(ALL);
    let done = AtomicBool::new(false);
    let rings = &rig.rings;
    let reader = &mut rig.reader;
    let (mut seen, mut next) = (0_u64, vec![0; usize::try_from(SENDERS).unwrap()]);
    std::thread::scope(|scope| {
        let senders: Vec<_> = (0..SENDERS)
            .map(|sender| {
                scope.spawn(move || {
                    for n in 0..EACH {
                        let text =
                            format!("{sender} {n} ").repeat(usize::try_from(n % 40).unwrap() + 1);
                        let event = Event { link: sender, ..event(n, text.len()) };
                        // SAFETY: the part is there.
                        unsafe { rings.put(1, &event, &[(text.as_ptr(), text.len())], || 0) };
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            senders.into_iter().for_each(|sender| sender.join().unwrap());
            done.store(true, Ordering::SeqCst);
        });
        loop {
            let last = done.load(Ordering::SeqCst);
            while let Some((event, bytes)) = reader.next(0) {
                let (sender, n) = (event.link, event.offset);
                let text = format!("{sender} {n} ").repeat(usize::try_from(n % 40).unwrap() + 1);
                assert_eq!(bytes, text.as_bytes());
                // Each sender's come in order.
                let expected = &mut next[usize::try_from(sender).unwrap()];
                assert!(n >= *expected, "{sender}: {n} after {expected}");
                *expected = n + 1;
                seen += 1;
            }
            if last {
                break;
            }
        }
    });
    let losses = rig.reader.losses();
    assert_eq!((seen + losses.events, losses.damaged), (SENDERS * EACH, 0));
}

#[test]
fn records_learn_of_captures_and_new_ones_inherit_them() {
    let fd = arena::create().unwrap();
    let (arena, view) = (Arena::map(&fd).unwrap(), ArenaView::map(&fd).unwrap());
    let mut hint = 0;
    let word = |record: &arena::Record| record.tx.captures.load(Ordering::Relaxed);
    let old = arena.allocate(Member::UNNAMED, &mut hint).unwrap();
    assert_eq!(word(old), 0, "nobody captures: nothing is looked at");
    view.set_captures(0x15);
    let new = arena.allocate(Member::UNNAMED, &mut hint).unwrap();
    assert_eq!((word(old), word(new)), (0x15, 0x15));
    // A sender finds that the capture is over, and all that come after are spared.
    arena.end_captures(old, 0x15, 0b1);
    assert_eq!((word(old) & BITS, view.captures() & BITS), (0b100, 0b100));
    arena.end_captures(new, 0x15, 0b101);
    assert_eq!(word(new), 0);
    // Not where the agent has said something else since.
    view.set_captures(0x21);
    arena.end_captures(old, 0x15, 0b101);
    assert_eq!((word(old), view.captures()), (0x21, 0x21));
    view.set_captures(0);
    assert_eq!(
        (word(old), word(new), word(arena.allocate(Member::UNNAMED, &mut hint).unwrap())),
        (0, 0, 0)
    );
    assert_eq!(BITS, (1 << PLACES) - 1);
}
