//! Grants under a peer that writes what it likes: a receiver is never led outside of what it was sent, of the region
//! that it has mapped, or of the pipes that it has, and a sender's program is told once of each call, never before its bytes are its own again, and
//! never after it was told otherwise.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use shunt_fuzz::Shared;
use shunt_shm::grants::{GRANTS, Grants, Part, PipeReads, Source, place_in};
use shunt_shm::region::{RING, Side};
use shunt_shm::ring::{Content, RxCursor, Shape, TxCursor, UNLIMITED};
use shunt_shm::sync::AtomicU32;
use shunt_shm::sync::Ordering::Relaxed;
use shunt_shm::zerocopy::ZeroCopy;
use shunt_wire::agent::LANES;

#[derive(Arbitrary, Debug)]
enum Op {
    /// A call of the sender's program: bytes, and whether they are granted.
    Send(u32, bool),
    TakeBack,
    Notice,
    /// The receiver takes some bytes.
    Receive(u32),
    /// What the peer writes: an entry near the receiver, of some length, anywhere in some region.
    Entry(i8, u32, u64),
    /// Entries that are there or not.
    Count(u8),
    Prod(u32),
    Cons(i32),
    ScribbleGrants(u16, u64),
    Scribble(u8, u64),
}

/// Bytes of the one region that is mapped, and its name.
const MAPPED: usize = 3 * 4096;
const REGION: u64 = 7;

/// A sender, which sees what the peer says of how far it has come.
struct Sender {
    cursor: TxCursor,
    state: Box<ZeroCopy>,
    /// The highest position that the peer has named.
    taken: u64,
    /// Per call: where its last granted byte ends, 0 when it was copied.
    calls: Vec<u64>,
    told: u32,
}

impl Sender {
    fn new() -> Self {
        let (cursor, state) = Default::default();
        Self { cursor, state, taken: 0, calls: Vec::new(), told: 0 }
    }

    fn look(&mut self, cons: &shunt_shm::ring::ConsLine) {
        let _ = self.cursor.refresh(cons);
        let taken = self.cursor.taken();
        assert!(taken >= self.taken && taken <= self.cursor.pos());
        self.taken = taken;
    }
}

fuzz_target!(|script: Vec<Op>| {
    let shared = Shared::get();
    let view = shared.view();
    let section = view.section(2, Side::Client);
    section.reset();
    let (prod, cons) = (&section.prod, &section.cons);
    let grants: &Grants = view.grants(2, Side::Client);
    let ring = RING as u64;
    let mut tx = Sender::new();
    let (rx, passed) = (RxCursor::default(), AtomicU32::new(0));
    let pipe_reads = PipeReads::default();
    for op in script {
        match op {
            Op::Send(want, is_granted) => {
                if tx.state.completions.is_full() {
                    continue;
                }
                tx.look(cons);
                let shape = Shape { cap: ring, late: false };
                let number = is_granted.then(|| tx.state.granted.place(tx.taken)).flatten();
                let Ok(span) =
                    tx.cursor.reserve(cons, ring, shape, UNLIMITED, (want.into(), Content::Put))
                else {
                    continue;
                };
                let n = span.len() as u64;
                if n == 0 {
                    continue;
                }
                let mut until = 0;
                if let Some(number) = number {
                    let part = Part { at: tx.cursor.pos(), len: n, region: REGION, from: 0 };
                    tx.state.granted.note(number, &part, 4096, 0);
                    grants.put(prod, number, &part);
                    until = part.end();
                }
                tx.cursor.publish(prod, n);
                tx.look(cons);
                tx.state.completions.add(until, tx.taken, until == 0);
                tx.calls.push(until);
            }
            Op::TakeBack => {
                tx.look(cons);
                for open in tx.state.granted.open(tx.taken) {
                    assert!(open.at >= tx.taken && open.len > 0);
                    assert!(open.at + open.len <= tx.cursor.pos());
                    grants.take_back(open.number);
                    tx.state.granted.take_back(open.number);
                }
                tx.state.completions.settle(tx.taken);
                assert!(tx.state.granted.open(tx.taken).next().is_none());
                tx.calls.iter_mut().filter(|until| **until > tx.taken).for_each(|until| *until = 0);
            }
            Op::Notice => {
                tx.look(cons);
                if let Some(notice) = tx.state.completions.take(tx.taken) {
                    assert_eq!(notice.first, tx.told);
                    assert!(notice.first <= notice.last);
                    let calls = &tx.calls[notice.first as usize..=notice.last as usize];
                    assert!(calls.iter().all(|until| *until <= tx.taken));
                    tx.told = notice.last + 1;
                }
            }
            Op::Receive(want) => {
                let Ok(span) = rx.readable(prod, ring, want.into()) else { continue };
                let (mut pos, mut left) = (rx.pos(), span.len() as u64);
                loop {
                    let Ok(source) = grants.source(prod, &passed, (pos, left), |_| {}) else {
                        break;
                    };
                    if left == 0 {
                        let _ = rx.consume(cons, ring, span.len() as u64);
                        break;
                    }
                    let n = match source {
                        Source::Ring(n) => n,
                        Source::Granted { part, skip, len, .. } => {
                            let from = part.from.checked_add(skip);
                            if let Some(at) = from.and_then(|from| place_in(MAPPED, from, len)) {
                                assert!(at as u64 + len <= MAPPED as u64);
                            }
                            // The same taken for an entry of what is pinned: so many bytes are in the ring, and the
                            // others are read from a pipe.
                            if let Ok((lane, pulled)) = pipe_reads.of(&part, skip) {
                                assert!(lane < LANES && pulled >= skip && pulled <= part.len);
                                pipe_reads.add(lane, (skip + len).saturating_sub(pulled));
                            }
                            len
                        }
                    };
                    assert!(n > 0 && n <= left);
                    (pos, left) = (pos + n, left - n);
                }
            }
            Op::Entry(off, len, from) => {
                let number = prod.grants.load(Relaxed);
                let at = rx.pos().wrapping_add_signed(off.into());
                grants.put(prod, number, &Part { at, len: len.into(), region: REGION, from });
            }
            Op::Count(more) => {
                let to = passed.load(Relaxed).wrapping_add(more.into());
                prod.grants.store(to, Relaxed);
                let possible = Grants::are_possible(prod, passed.load(Relaxed));
                assert_eq!(possible, usize::from(more) <= GRANTS);
            }
            Op::Prod(more) => prod.prod.store(rx.pos() + u64::from(more) % (ring + 2), Relaxed),
            Op::Cons(off) => {
                cons.cons.store(tx.cursor.pos().wrapping_add_signed(off.into()), Relaxed)
            }
            Op::ScribbleGrants(at, word) => {
                let words = size_of_val(grants) / 8;
                let at = shared.offset_of(grants) + (usize::from(at) % words * 8) as u64;
                shared.peer.write(at, &word.to_ne_bytes());
            }
            Op::Scribble(at, word) => {
                let words = size_of_val(section) / 8;
                let at = shared.offset_of(section) + (usize::from(at) % words * 8) as u64;
                shared.peer.write(at, &word.to_ne_bytes());
            }
        }
    }
});
