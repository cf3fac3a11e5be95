//! Both ends of a ring go on with their work while the peer writes what it likes into all that is
//! shared. Every span stays inside the ring and inside what was asked for; violations are named.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use shunt_fuzz::Shared;
use shunt_shm::region::Side;
use shunt_shm::ring::{Content, MARKS, RxCursor, Shape, Span, TxCursor, UNLIMITED};
use shunt_shm::sync::Ordering::Relaxed;

#[derive(Arbitrary, Debug)]
enum Op {
    Send(u32),
    Refresh,
    Receive(u32),
    Peek(u32),
    Mark(u64),
    Look(u32),
    /// Where in the section, and what.
    Scribble(u8, u64),
    /// A cursor near the own one: the edge of what is allowed.
    Cons(i8),
    Prod(i16),
    Shape(u8, bool),
    Limit(u32),
    Reset,
}

fn check(span: Span, cap: u64, want: u64) -> u64 {
    for (at, len) in [span.head, span.tail] {
        assert!(at.checked_add(len).is_some_and(|end| end as u64 <= cap), "{span:?}");
    }
    let n = (span.head.1 + span.tail.1) as u64;
    assert!(n <= want.min(cap), "{span:?}");
    n
}

fuzz_target!(|input: (u8, Vec<Op>)| {
    let (log, script) = input;
    let cap = 4_u64 << (log % 18);
    let mut shape = Shape { cap, late: false };
    let mut limit = UNLIMITED;
    let shared = Shared::get();
    // One section is both ends' peer.
    let section = shared.view().section(0, Side::Client);
    section.reset();
    let (prod, cons) = (&section.prod, &section.cons);
    let (tx, rx) = (TxCursor::default(), RxCursor::default());
    for op in script {
        match op {
            Op::Send(want) => {
                let want = u64::from(want);
                if let Ok(span) = tx.reserve(cons, cap, shape, limit, (want, Content::Put)) {
                    let n = check(span, cap, want);
                    tx.publish(prod, n);
                }
            }
            Op::Refresh => {
                for amount in [tx.refresh(cons), rx.refresh(prod, cap)] {
                    assert!(amount.is_err() || amount.is_ok_and(|n| n <= cap));
                }
            }
            Op::Receive(want) => {
                let want = u64::from(want);
                if let Ok(span) = rx.readable(prod, cap, want) {
                    let _ = rx.consume(cons, cap, check(span, cap, want));
                }
            }
            Op::Peek(want) => {
                let want = u64::from(want);
                if let Ok(span) = rx.readable(prod, cap, want) {
                    check(span, cap, want);
                }
            }
            Op::Mark(at) => TxCursor::set_mark(prod, at),
            Op::Look(passed) => {
                let open = prod.marks.load(Relaxed).wrapping_sub(passed) as usize;
                let found = RxCursor::next_mark(prod, passed);
                assert_eq!(found.is_err(), open > MARKS);
                assert_eq!(found == Ok(None), open == 0);
                let _ = TxCursor::marks_settled(prod, cons);
            }
            Op::Scribble(at, word) => {
                let words = size_of_val(section) / 8;
                let at = shared.offset_of(section) + (usize::from(at) % words * 8) as u64;
                shared.peer.write(at, &word.to_ne_bytes());
            }
            Op::Cons(off) => cons.cons.store(tx.pos().wrapping_add_signed(off.into()), Relaxed),
            Op::Prod(off) => prod.prod.store(rx.pos().wrapping_add_signed(off.into()), Relaxed),
            Op::Shape(log, late) => shape = Shape { cap: (1 << (log % 20)).clamp(4, cap), late },
            Op::Limit(to) => limit = u64::from(to),
            Op::Reset => {
                tx.reset();
                rx.reset();
            }
        }
        assert!(tx.in_flight() <= cap && rx.known() <= cap);
    }
});
