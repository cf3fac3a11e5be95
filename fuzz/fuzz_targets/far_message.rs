//! Any message of the far side of a link between hosts: it is bytes and a value alike, or none; and whatever a connection
//! believes of it, its bytes lie in the ring.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use shunt_far::Message;
use shunt_far::lane::Lane;
use shunt_far::message::{Kind, LEN, Words};
use shunt_shm::region::{Section, Side};
use shunt_shm::ring::RxCursor;
use shunt_shm::sync::Ordering;

const RING: u64 = 1 << 16;

#[derive(Arbitrary, Debug)]
enum Op {
    /// The far side says this.
    Say([u8; 32], [u8; 32], [u8; 16]),
    /// The far side says what it has said, but for a few numbers.
    Change { prod: u16, cons: u16, marks: u8, passed: u8, fin: bool },
    /// The local program takes bytes.
    Take(u16),
    /// The local program writes into its section what it likes.
    Scribble { prod: u64, base: u64, marks: u32 },
    /// The agent posts.
    Post(u32),
}

fuzz_target!(|script: Vec<Op>| {
    let (mut lane, mine, theirs) = (Lane::default(), Section::default(), Section::default());
    let (program, mut said) = (RxCursor::default(), Words::default());
    for op in script {
        let words = match op {
            Op::Say(one, two, three) => {
                let mut bytes = [0; LEN];
                bytes[..32].copy_from_slice(&one);
                bytes[32..64].copy_from_slice(&two);
                bytes[64..].copy_from_slice(&three);
                match Message::parse(&bytes) {
                    Ok(message) => {
                        assert_eq!(message.bytes(), bytes);
                        let Kind::Cursors(_, words) = message.kind else { continue };
                        words
                    }
                    Err(_) => continue,
                }
            }
            Op::Change { prod, cons, marks, passed, fin } => Words {
                prod: said.prod.wrapping_add(prod.into()),
                cons: said.cons.wrapping_add(cons.into()),
                marks: said.marks.wrapping_add(marks.into()),
                marks_passed: said.marks_passed.wrapping_add(passed.into()),
                fin: fin.into(),
                ..said
            },
            Op::Take(most) => {
                let span = program.readable(&theirs.prod, RING, most.into()).expect("checked");
                for (at, len) in [span.head, span.tail] {
                    assert!(at + len <= RING as usize);
                }
                let _ = program.consume(&mine.cons, RING, span.len() as u64);
                continue;
            }
            Op::Scribble { prod, base, marks } => {
                mine.prod.base.store(base, Ordering::Relaxed);
                mine.prod.marks.store(marks, Ordering::Relaxed);
                mine.prod.prod.store(prod, Ordering::Relaxed);
                continue;
            }
            Op::Post(most) => {
                if let Ok(Some(posting)) = lane.gather(&mine, RING, most.into()) {
                    for (at, len) in [posting.span.head, posting.span.tail] {
                        assert!(at + len <= RING as usize);
                    }
                    lane.post(&posting, RING);
                }
                continue;
            }
        };
        if lane.hear(&words, (&theirs, Side::Client), RING).is_ok() {
            said = words;
        }
        assert_eq!(lane.heard(), said.prod);
        assert!(said.prod - program.pos() <= RING);
        assert!(said.cons <= lane.told());
    }
});
