//! A receiver leaves for a program that knows of no ring, while its sender goes on over TCP: together the two
//! receivers get each byte once.

use loom::sync::{Arc, Mutex};
use loom::thread;
use shunt_engine::stretch::had;
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

/// The receiver takes so many of the bytes in the ring, then leaves; but it may come back for one more byte before it
/// leaves for good.
fn handed_over_after(taken: u64, comes_back: bool) {
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
                match handover::repeats(&d.handed_over, 2) {
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
    let next_mark = || RxCursor::next_mark(&direction.rmb.prod, 1).unwrap();
    // Bytes that come twice, once the mark is passed.
    let mut drops = None;
    let pass = |drops: &mut Option<u64>, had: Option<u64>| {
        *drops = had;
        direction.rmb.cons.marks_passed.store(2, Ordering::Release);
    };
    let leave = |drops: &mut Option<u64>| {
        handover::leave(&direction.handed_over, || {
            if let Some(at) = next_mark().filter(|_| drops.is_none()) {
                pass(drops, had(at, rx.pos(), 4));
            }
            1 + u32::from(drops.is_some())
        });
    };
    leave(&mut drops);
    if comes_back && drops.is_none() {
        if handover::stay(&direction.handed_over, || next_mark().is_some()) {
            got.extend(direction.rmb.receive(&rx, 1));
            leave(&mut drops);
        } else {
            // Everything is sent from where it has stopped.
            pass(&mut drops, Some(0));
        }
    }
    let drops = drops.unwrap_or(0);
    sender.join().unwrap();
    let tcp = direction.tcp.lock().unwrap();
    got.extend(&tcp[usize::try_from(drops).unwrap()..]);
    assert_eq!(got, [BYTES[0], BYTES[1], BEHIND]);
}

#[test]
fn no_byte_is_lost_or_doubled_by_a_hand_over() {
    for taken in 0..=2 {
        explore(None, move || handed_over_after(taken, false));
    }
}

#[test]
fn no_byte_is_lost_or_doubled_by_a_receiver_that_reads_on() {
    for taken in 0..=1 {
        explore(Some(3), move || handed_over_after(taken, true));
    }
}
