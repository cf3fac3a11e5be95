//! The ring against a queue of bytes, and against a peer that writes what it likes.

use std::collections::{HashSet, VecDeque};

use proptest::prelude::*;
use shunt_shm::Violation;
use shunt_shm::region::{self, RING, SHORT_RING, Side};
use shunt_shm::ring::{
    ConsLine, Content, KEPT, MARKS, ProdLine, RxCursor, Shape, Span, TxCursor, UNLIMITED,
};
use shunt_shm::sync::Ordering::Relaxed;

/// Both ends of one direction, and its buffer.
struct Pair {
    prod: ProdLine,
    cons: ConsLine,
    tx: TxCursor,
    rx: RxCursor,
    buffer: Vec<u8>,
    /// What the ring becomes when it is empty.
    wish: Shape,
    /// Bytes that may lie unread.
    limit: u64,
}

fn offsets(span: Span) -> impl Iterator<Item = usize> {
    let piece = |(at, len): (usize, usize)| at..at + len;
    piece(span.head).chain(piece(span.tail))
}

impl Pair {
    fn new(cap: usize) -> Self {
        Self {
            prod: ProdLine::default(),
            cons: ConsLine::default(),
            tx: TxCursor::default(),
            rx: RxCursor::default(),
            buffer: vec![0; cap],
            wish: Shape { cap: cap as u64, late: false },
            limit: UNLIMITED,
        }
    }

    fn shaped(self, wish: Shape) -> Self {
        Self { wish, ..self }
    }

    fn len(&self) -> u64 {
        self.buffer.len() as u64
    }

    /// Sends up to `want` bytes that count up from `next`; returns how many.
    fn send(&mut self, next: u64, want: u64) -> u64 {
        let span = self
            .tx
            .reserve(&self.cons, self.len(), self.wish, self.limit, (want, Content::Put))
            .unwrap();
        let mut n = 0;
        for at in offsets(span) {
            self.buffer[at] = byte(next + n);
            n += 1;
        }
        if n > 0 {
            self.tx.publish(&self.prod, n);
        }
        n
    }

    /// The last `len` bytes that were sent, as a sender that leaves the ring copies them.
    fn unread(&self, len: u64) -> Vec<u8> {
        offsets(self.tx.last(len, self.len())).map(|at| self.buffer[at]).collect()
    }

    /// Bytes that the ring can hold as it is now.
    fn cap(&self) -> u64 {
        self.tx.room(self.tx.pos(), self.len(), UNLIMITED).0
    }

    /// Bytes that may be sent now, and of how many.
    fn room(&self) -> (u64, u64) {
        self.tx.room(self.cons.cons.load(Relaxed), self.len(), self.limit)
    }

    fn receive(&mut self, want: u64) -> (Vec<u8>, bool) {
        let span = self.rx.readable(&self.prod, self.len(), want).unwrap();
        let bytes: Vec<u8> = offsets(span).map(|at| self.buffer[at]).collect();
        let look = !bytes.is_empty() && self.rx.consume(&self.cons, self.len(), bytes.len() as u64);
        (bytes, look)
    }
}

fn byte(n: u64) -> u8 {
    (n ^ n >> 8).to_le_bytes()[0]
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Send(u64),
    Receive(u64),
    Peek(u64),
    Limit(u64),
}

fn ops(max: u64) -> impl Strategy<Value = Vec<Op>> {
    // Mostly small, sometimes more than fits.
    let size = prop_oneof![4 => 1..=max.div_ceil(8), 1 => 1..=max * 2];
    let op = prop_oneof![
        4 => size.clone().prop_map(Op::Send),
        4 => size.clone().prop_map(Op::Receive),
        1 => size.clone().prop_map(Op::Peek),
        1 => prop_oneof![size, Just(UNLIMITED)].prop_map(Op::Limit),
    ];
    prop::collection::vec(op, 1..300)
}

proptest! {
    #[test]
    fn behaves_as_a_queue_of_bytes(
        len in 2_u32..15,
        shapes in prop::collection::vec((2_u32..15, any::<bool>()), 1..5),
        script in (2_u32..15).prop_flat_map(|l| ops(1 << l)),
    ) {
        let len = 1_u64 << len;
        let mut shapes =
            shapes.iter().map(|(log, late)| Shape { cap: (1 << log).min(len), late: *late }).cycle();
        let mut pair = Pair::new(usize::try_from(len).unwrap());
        let mut model = VecDeque::new();
        let mut next = 0;
        // The receiver has yet to look whether somebody waits.
        let mut waiting = false;
        for op in script {
            match op {
                Op::Send(want) => {
                    pair.wish = shapes.next().unwrap();
                    let n = pair.send(next, want);
                    let (free, of) = pair.room();
                    let most = pair.limit.min(pair.cap());
                    prop_assert!(n == want || free == 0, "{n} of {want}, {free} free");
                    prop_assert!(free + n + model.len() as u64 <= pair.cap());
                    waiting |= free * 3 < of;
                    prop_assert!(of == most || free * 3 >= of, "{free} of {of}");
                    model.extend((next..next + n).map(byte));
                    next += n;
                }
                Op::Receive(want) => {
                    let (got, look) = pair.receive(want);
                    let expected: Vec<u8> =
                        model.drain(..model.len().min(usize::try_from(want).unwrap())).collect();
                    prop_assert_eq!(got, expected);
                    waiting &= !look;
                    prop_assert!(!waiting || !model.is_empty(), "a sender is forgotten");
                }
                // Whoever waits looks again then.
                Op::Limit(limit) => {
                    pair.limit = limit;
                    let (free, of) = pair.room();
                    waiting = free * 3 < of;
                }
                Op::Peek(want) => {
                    let span = pair.rx.readable(&pair.prod, len, want).unwrap();
                    let got: Vec<u8> = offsets(span).map(|at| pair.buffer[at]).collect();
                    let expected: Vec<u8> =
                        model.iter().copied().take(usize::try_from(want).unwrap()).collect();
                    prop_assert_eq!(got, expected);
                }
            }
            prop_assert_eq!(pair.tx.pos() - pair.rx.pos(), model.len() as u64);
            prop_assert!(pair.tx.in_flight() >= model.len() as u64);
            prop_assert!(pair.rx.known() <= model.len() as u64);
            let unread = pair.unread(model.len() as u64);
            prop_assert!(unread.iter().eq(&model));
        }
    }

    /// Whatever stands in the lines that the peer can write: a violation, or spans inside.
    #[test]
    fn a_hostile_line_leads_nowhere(
        sent in 0_u64..200,
        taken in 0_u64..200,
        words in prop::collection::vec(hostile_word(), 4),
        want in 0_u64..300,
    ) {
        const CAP: u64 = 128;
        let mut pair = Pair::new(128);
        let sent = pair.send(0, sent);
        let taken = pair.receive(taken).0.len() as u64;
        pair.cons.cons.store(words[0], Relaxed);
        match pair.tx.reserve(&pair.cons, CAP, pair.wish, UNLIMITED, (want, Content::Put)) {
            Ok(span) => prop_assert!(inside(span, want, CAP)),
            Err(e) => {
                prop_assert_eq!(e, Violation::Consumer);
                prop_assert!(words[0] > sent);
            }
        }
        pair.prod.prod.store(words[1], Relaxed);
        pair.prod.base.store(words[2], Relaxed);
        let known = pair.rx.known();
        match pair.rx.readable(&pair.prod, CAP, want) {
            Ok(span) => prop_assert!(inside(span, want, CAP)),
            Err(e) => {
                prop_assert_eq!(e, Violation::Producer);
                prop_assert!(words[1] < taken + known || words[1] - taken > CAP);
            }
        }
    }
}

/// Cursors as a peer that means harm would choose them.
fn hostile_word() -> impl Strategy<Value = u64> {
    prop_oneof![
        0_u64..400,
        (u64::MAX - 400)..=u64::MAX,
        (1_u64 << 63) - 200..(1 << 63) + 200,
        any::<u64>()
    ]
}

fn inside(span: Span, want: u64, cap: u64) -> bool {
    let fits = |(at, len): (usize, usize)| (at + len) as u64 <= cap;
    fits(span.head) && fits(span.tail) && (span.head.1 + span.tail.1) as u64 <= want.min(cap)
}

#[test]
fn small_messages_stay_in_the_first_page() {
    let mut pair = Pair::new(1 << 16);
    for n in 0..10_000 {
        assert_eq!(pair.send(n * 100, 100), 100);
        let span = pair.rx.readable(&pair.prod, 1 << 16, 100).unwrap();
        assert!(span.head.0 + span.head.1 <= 4096, "{span:?}");
        let _ = pair.rx.consume(&pair.cons, 1 << 16, 100);
    }
}

#[test]
fn the_two_rings_of_a_connection_share_a_page_while_messages_are_small() {
    let region = region::Region::map(region::create(1).unwrap()).unwrap();
    let page = |receiver: Side, at: usize| (region.view().buffer_offset(0, receiver) + at) / 4096;
    let both = [Side::Client, Side::Server].into_iter();
    let pages: HashSet<usize> = both
        .flat_map(|side| [(side, RING as u64), (side, SHORT_RING as u64)])
        .flat_map(|(receiver, cap)| {
            let mut pair = Pair::new(RING).shaped(region::shape(receiver, cap));
            let mut pages = HashSet::new();
            for n in 0..1000 {
                assert_eq!(pair.send(n * 128, 128), 128);
                let span = pair.rx.readable(&pair.prod, RING as u64, 128).unwrap();
                pages.extend(offsets(span).map(|at| page(receiver, at)));
                let _ = pair.rx.consume(&pair.cons, RING as u64, 128);
            }
            pages
        })
        .collect();
    assert_eq!(pages.len(), 1);
}

#[test]
fn what_was_taken_is_never_given_back() {
    let (tx, mine, peer) = (TxCursor::default(), ProdLine::default(), ConsLine::default());
    let wish = region::shape(Side::Server, SHORT_RING as u64);
    tx.reserve(&peer, RING as u64, wish, UNLIMITED, (100, Content::Put)).unwrap();
    tx.publish(&mine, 100);
    peer.cons.store(60, Relaxed);
    assert_eq!((tx.refresh(&peer), tx.taken()), (Ok(40), 60));
    for impossible in [0, 59, 101, u64::MAX] {
        peer.cons.store(impossible, Relaxed);
        assert_eq!((tx.refresh(&peer), tx.taken()), (Err(Violation::Consumer), 60));
    }
}

#[test]
fn a_ring_grows_for_grants_as_soon_as_it_is_empty() {
    let (tx, peer, mine) = (TxCursor::default(), ConsLine::default(), ProdLine::default());
    let [short, long] = [SHORT_RING, RING].map(|cap| region::shape(Side::Server, cap as u64));
    let reserve = |wish, content| {
        tx.reserve(&peer, RING as u64, wish, UNLIMITED, (100, content)).unwrap();
        tx.room(peer.cons.load(Relaxed), RING as u64, UNLIMITED).1
    };
    let all = reserve(short, Content::Put);
    tx.publish(&mine, 100);
    peer.cons.store(100, Relaxed);
    assert_eq!(reserve(long, Content::Put), all, "there is room, so nobody looks");
    assert!(reserve(long, Content::Granted) > all);
}

#[test]
fn bytes_beside_granted_ones_rewind_an_empty_ring_and_have_it_grow() {
    let [short, long] = [SHORT_RING, RING].map(|cap| region::shape(Side::Client, cap as u64));
    for content in [Content::Granted, Content::Mixed] {
        let (tx, peer, mine) = (TxCursor::default(), ConsLine::default(), ProdLine::default());
        let reserve = |wish, content| {
            let what = (100, content);
            let span = tx.reserve(&peer, RING as u64, wish, UNLIMITED, what).unwrap();
            (span.head.0, tx.room(peer.cons.load(Relaxed), RING as u64, UNLIMITED).1)
        };
        let (start, room) = reserve(short, Content::Put);
        tx.publish(&mine, 3000);
        peer.cons.store(3000, Relaxed);
        let (at, longer) = reserve(long, content);
        assert!(longer > room, "{content:?}");
        tx.publish(&mine, 3000);
        peer.cons.store(6000, Relaxed);
        let (next, _) = reserve(long, content);
        assert_eq!((at, next == start), (start, content == Content::Mixed), "{content:?}");
    }
}

#[test]
fn a_full_ring_has_no_place_until_some_is_taken() {
    let mut pair = Pair::new(64);
    assert_eq!(pair.send(0, 100), 64);
    assert_eq!(pair.send(64, 1), 0);
    assert_eq!(pair.tx.in_flight(), 64);
    assert_eq!(pair.receive(10).0.len(), 10);
    assert_eq!(pair.send(64, 100), 10);
}

#[test]
fn a_limit_holds_from_an_empty_ring_on() {
    let mut pair = Pair::new(1 << 19);
    pair.send(0, 100);
    pair.receive(100);
    pair.limit = 3000;
    // In small pieces, so that there is never a reason to look at the receiver's cursor before.
    let mut sent = 100;
    while pair.room().0 > 0 {
        sent += pair.send(sent, 7);
    }
    assert_eq!(pair.tx.pos() - 100, 3000);
    assert_eq!(pair.send(sent, 1), 0);
    // It is told of room before it starves, and not at each byte.
    let looks = (0..30).filter(|_| pair.receive(100).1).count();
    assert!((1..=6).contains(&looks), "{looks}");
    assert_eq!(pair.send(sent, 9999), 3000);
    // More at once when the limit is raised, though nothing was read.
    pair.limit = 5000;
    assert_eq!(pair.send(sent + 3000, 9999), 2000);
}

/// The receiver does not know of the limit yet: the sender stops where it will look.
#[test]
fn a_limit_that_comes_too_late_holds_up_to_the_next_look() {
    let mut pair = Pair::new(1 << 16);
    pair.send(0, 1000);
    pair.limit = 500;
    assert_eq!(pair.room(), (16384 - 1000, 16384 - 1000));
    assert_eq!(pair.send(1000, 99_999), 16384 - 1000);
    assert_eq!(pair.send(16384, 1), 0);
    assert_eq!(pair.room(), (0, 500));
    assert!(!pair.receive(16383).1);
    assert!(pair.receive(1).1, "who waits is woken");
    assert_eq!(pair.send(16384, 99_999), 500);
}

#[test]
fn a_limit_of_nothing_stops_nobody_for_good() {
    let mut pair = Pair::new(64);
    pair.limit = 0;
    for n in 0..100 {
        assert!(pair.send(n, 1) == 1 || pair.receive(64).1);
    }
}

#[test]
fn cursors_that_run_backwards_are_violations() {
    let mut pair = Pair::new(64);
    pair.send(0, 40);
    pair.receive(20);
    pair.tx.refresh(&pair.cons).unwrap();
    assert!(pair.tx.is_possible(&pair.cons));
    for impossible in [19, 41] {
        pair.cons.cons.store(impossible, Relaxed);
        assert!(!pair.tx.is_possible(&pair.cons));
        assert_eq!(pair.tx.refresh(&pair.cons), Err(Violation::Consumer));
    }
    pair.prod.prod.store(39, Relaxed);
    assert_eq!(pair.rx.refresh(&pair.prod, 64), Err(Violation::Producer));
    pair.prod.prod.store(20 + 65, Relaxed);
    assert_eq!(pair.rx.refresh(&pair.prod, 64), Err(Violation::Producer));
    pair.prod.prod.store(20 + 64, Relaxed);
    assert_eq!(pair.rx.refresh(&pair.prod, 64), Ok(64));
}

#[test]
fn a_violation_leaves_the_own_cursors_as_they_were() {
    let mut pair = Pair::new(64);
    pair.send(0, 40);
    pair.receive(20);
    pair.prod.prod.store(u64::MAX, Relaxed);
    pair.cons.cons.store(u64::MAX, Relaxed);
    assert!(pair.rx.refresh(&pair.prod, 64).is_err());
    assert!(pair.tx.refresh(&pair.cons).is_err());
    assert_eq!((pair.rx.pos(), pair.rx.known()), (20, 20));
    assert_eq!((pair.tx.pos(), pair.tx.in_flight()), (40, 40));
}

#[test]
fn marks_are_passed_in_order() {
    let (prod, cons) = (ProdLine::default(), ConsLine::default());
    assert!(TxCursor::marks_settled(&prod, &cons));
    assert_eq!(RxCursor::next_mark(&prod, 0), Ok(None));
    TxCursor::set_mark(&prod, 1234);
    assert!(!TxCursor::marks_settled(&prod, &cons));
    assert_eq!(RxCursor::next_mark(&prod, 0), Ok(Some(1234)));
    cons.marks_passed.store(1, Relaxed);
    assert!(TxCursor::marks_settled(&prod, &cons));
    TxCursor::set_mark(&prod, 99);
    assert_eq!(RxCursor::next_mark(&prod, 1), Ok(Some(99)));
    assert_eq!(RxCursor::next_mark(&prod, 2), Ok(None));
}

/// As many as there are entries may be open; one more would have overwritten the first.
#[test]
fn more_marks_than_entries_are_a_violation() {
    let prod = ProdLine::default();
    for n in 1..=MARKS as u64 {
        TxCursor::set_mark(&prod, n * 10);
        assert_eq!(RxCursor::next_mark(&prod, 0), Ok(Some(10)));
    }
    assert_eq!(RxCursor::next_mark(&prod, 1), Ok(Some(20)));
    TxCursor::set_mark(&prod, 30);
    assert_eq!(RxCursor::next_mark(&prod, 0), Err(Violation::Marks));
    assert_eq!(RxCursor::next_mark(&prod, 4), Err(Violation::Marks), "backwards");
}

#[test]
fn mark_numbers_wrap() {
    let prod = ProdLine::default();
    prod.marks.store(u32::MAX, Relaxed);
    TxCursor::set_mark(&prod, 7);
    assert_eq!(RxCursor::next_mark(&prod, u32::MAX), Ok(Some(7)));
}

#[test]
fn a_reset_forgets_the_connection() {
    let mut pair = Pair::new(64);
    pair.send(0, 40);
    pair.receive(20);
    pair.tx.reset();
    pair.rx.reset();
    assert_eq!((pair.tx.pos(), pair.tx.in_flight()), (0, 0));
    assert_eq!((pair.rx.pos(), pair.rx.known()), (0, 0));
}

/// Whether a message of `want` bytes goes far.
fn goes_far(pair: &Pair, want: u64) -> bool {
    let (len, wish) = (pair.len(), pair.wish);
    let span = pair.tx.reserve(&pair.cons, len, wish, UNLIMITED, (want, Content::Put)).unwrap();
    pair.tx.goes_far(span.len())
}

#[test]
fn messages_of_a_page_never_go_far() {
    for late in [false, true] {
        let cap = 64 << 10;
        let mut pair = Pair::new(1 << 20).shaped(Shape { cap, late });
        for n in 0..1000 {
            let want = 1 + n * 37 % 4096;
            assert!(!goes_far(&pair, want), "{n} {want}");
            assert_eq!(pair.send(0, want), want);
            assert_eq!(pair.receive(want).0.len() as u64, want);
        }
    }
}

#[test]
fn what_goes_far_is_noted() {
    for late in [false, true] {
        let mut pair = Pair::new(1 << 20).shaped(Shape { cap: 64 << 10, late });
        // Before the ring has a shape, and after.
        for _ in 0..2 {
            assert!(!goes_far(&pair, 4096));
            assert!(goes_far(&pair, 4097));
        }
        // Message by message, as nobody takes them.
        let sizes = (0..10).map(|_| {
            let is_far = goes_far(&pair, 1000);
            assert_eq!(pair.send(0, 1000), 1000);
            is_far
        });
        let far: Vec<bool> = sizes.collect();
        // From the one on that ends behind 4096 bytes, of 6144 that are kept.
        assert_eq!(far.iter().position(|far| *far), Some(4), "{far:?}");
        assert!(far[4..].iter().all(|far| *far));
    }
}

/// However sizes follow each other: what is not called far lies within what is kept.
#[test]
fn what_is_kept_holds_all_that_is_not_far() {
    for late in [false, true] {
        let cap = 64 << 10;
        let mut pair = Pair::new(1 << 20).shaped(Shape { cap, late });
        let mut unread = 0;
        for n in 0..20_000_u64 {
            let want = 1 + n * 7919 % [100, 3000, 6000][(n / 50 % 3) as usize];
            let (len, wish) = (pair.len(), pair.wish);
            let what = (want, Content::Put);
            let span = pair.tx.reserve(&pair.cons, len, wish, UNLIMITED, what).unwrap();
            if !pair.tx.goes_far(span.len()) {
                let all = [span.head, span.tail].into_iter().filter(|(_, n)| *n > 0);
                // Behind where an empty ring begins, in the order of the bytes.
                let (at, start) = if late { (len - cap, cap - 2048) } else { (0, 0) };
                for (from, n) in all {
                    let behind = (from as u64 - at + cap - start) % cap;
                    assert!(behind + n as u64 <= KEPT, "{behind} {n}");
                }
            }
            unread += pair.send(0, want);
            if n % 5 != 0 || unread > 40_000 {
                pair.receive(unread);
                unread = 0;
            }
        }
    }
}

#[test]
fn a_ring_is_drained_once_all_is_taken() {
    let mut pair = Pair::new(64);
    assert_eq!(pair.tx.is_drained(&pair.cons), Ok(true));
    pair.send(0, 10);
    assert_eq!(pair.tx.is_drained(&pair.cons), Ok(false));
    pair.receive(9);
    assert_eq!(pair.tx.is_drained(&pair.cons), Ok(false));
    pair.receive(1);
    assert_eq!(pair.tx.is_drained(&pair.cons), Ok(true));
    // A receiver that has taken more than there was.
    pair.cons.cons.store(11, Relaxed);
    assert_eq!(pair.tx.is_drained(&pair.cons), Err(Violation::Consumer));
}
