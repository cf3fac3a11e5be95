//! A receiver leaves for a program that knows of no ring, while its sender goes on over TCP: together the two
//! receivers get each byte once.

use loom::sync::{Arc, Mutex};
use loom::thread;
use shunt_core::stretch::had;
use shunt_shm::handover::{self, Repeats};
use shunt_shm::ring::{RxCursor, TxCursor};
use shunt_shm::sync::{AtomicU32, Ordering};

use crate::world::{Rmb, explore};

const BYTES: [u8; 2] = [1, 2];
const BEHIND: u8 = 3;

struct Direction {
    rmb: Rmb,
    handed_over: AtomicU32,
    /// What the kernel has.
    tcp: Mutex<Vec<u8>>,
}

/// The receiver takes so many of the bytes in the ring, then leaves.
fn handed_over_after(taken: u64) {
    let direction = Arc::new(Direction {
        rmb: Rmb::new(4),
        handed_over: AtomicU32::new(0),
        tcp: Mutex::new(Vec::new()),
    });
    let (tx, rx) = (TxCursor::default(), RxCursor::default());
    // In the ring, which the receiver has entered.
    TxCursor::set_mark(&direction.rmb.prod, 0);
    direction.rmb.cons.marks_passed.store(1, Ordering::Relaxed);
    assert_eq!(direction.rmb.send(&tx, &BYTES), BYTES.len());
    let sender = {
        let d = Arc::clone(&direction);
        thread::spawn(move || {
            let untaken = tx.refresh(&d.rmb.cons).unwrap();
            TxCursor::set_mark(&d.rmb.prod, tx.pos() - untaken);
            let repeated = loop {
                match handover::repeats(&d.handed_over, &d.rmb.cons, 2) {
                    Repeats::FromMark => break untaken,
                    Repeats::FromRest => break tx.refresh(&d.rmb.cons).unwrap(),
                    Repeats::Unknown => thread::yield_now(),
                }
            };
            let mut tcp = d.tcp.lock().unwrap();
            tcp.extend(&BYTES[BYTES.len() - usize::try_from(repeated).unwrap()..]);
            tcp.push(BEHIND);
        })
    };
    let mut got = direction.rmb.receive(&rx, taken);
    let mut drops = 0;
    handover::leave(&direction.handed_over, || {
        if let Some(at) = RxCursor::next_mark(&direction.rmb.prod, 1).unwrap() {
            drops = had(at, rx.pos(), 4).unwrap();
            direction.rmb.cons.marks_passed.store(2, Ordering::Release);
        }
    });
    sender.join().unwrap();
    let tcp = direction.tcp.lock().unwrap();
    got.extend(&tcp[usize::try_from(drops).unwrap()..]);
    assert_eq!(got, [BYTES[0], BYTES[1], BEHIND]);
}

#[test]
fn no_byte_is_lost_or_doubled_by_a_hand_over() {
    for taken in 0..=2 {
        explore(None, move || handed_over_after(taken));
    }
}
