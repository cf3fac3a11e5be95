//! Doorbells: nobody who waits for bytes or for room is forgotten.

use loom::sync::{Arc, Notify};
use loom::thread;
use shunt_shm::cq::{ArmLine, CqLine, Push};
use shunt_shm::doorbell::{ON_FUTEX, ON_QUEUE, arm, bells, on_bell, take};
use shunt_shm::ring::{ConsLine, LOOKS, ProdLine, RxCursor, TxCursor, UNLIMITED};
use shunt_shm::sync::{AtomicU32, Ordering, store_load_fence};

use crate::world::{Futex, explore};

const VECTOR: usize = 5;
const CONN: usize = 9;

/// One direction's shared lines, the arm word of one who waits, and all the ways to wake them.
#[derive(Default)]
struct Line {
    prod: ProdLine,
    cons: ConsLine,
    word: AtomicU32,
    futex: Futex,
    bell: Notify,
    queue: CqLine,
    queue_arm: ArmLine,
}

impl Line {
    /// Tells those who wait. The caller has stored its cursor.
    fn notify(&self) {
        store_load_fence();
        let asked = take(&self.word);
        if asked & ON_QUEUE != 0 && self.queue.push(&self.queue_arm, CONN) == Push::Ring {
            self.bell.notify();
        }
        if asked & ON_FUTEX != 0 {
            self.futex.wake();
        }
        bells(asked).for_each(|vector| {
            assert_eq!(vector, VECTOR);
            self.bell.notify();
        });
    }

    /// Waits until `ready`, as a blocking call does.
    fn wait(&self, how: u32, ready: impl Fn() -> bool) {
        while !ready() {
            let armed = arm(&self.word, how);
            if ready() {
                return;
            }
            if how == ON_FUTEX {
                self.futex.wait(&self.word, armed);
            } else {
                self.bell.wait();
            }
        }
    }

    /// Waits until `ready`, as epoll_wait does for one who waits for room.
    fn wait_in_epoll(&self, ready: impl Fn() -> bool) {
        loop {
            self.queue.pop_all(|_| 0, |conn| assert_eq!(conn, CONN));
            if ready() {
                return;
            }
            arm(&self.word, ON_QUEUE);
            store_load_fence();
            if ready() {
                return;
            }
            self.queue_arm.arm();
            if self.queue.is_empty() {
                self.bell.wait();
            }
            self.queue_arm.disarm();
        }
    }
}

fn produced(line: &Line) -> u64 {
    line.prod.prod.load(Ordering::Acquire)
}

/// Two publications and one receiver that waits for each.
fn receiver(how: u32) {
    let line = Arc::new(Line::default());
    let sender = {
        let line = Arc::clone(&line);
        thread::spawn(move || {
            let tx = TxCursor::default();
            for _ in 0..2 {
                tx.publish(&line.prod, 1);
                line.notify();
            }
        })
    };
    let rx = RxCursor::default();
    while rx.pos() < 2 {
        line.wait(how, || produced(&line) != rx.pos());
        let n = rx.refresh(&line.prod, 4).unwrap();
        let _ = rx.consume(&line.cons, 4, n);
    }
    sender.join().unwrap();
}

#[test]
fn a_receiver_on_the_futex_is_woken() {
    explore(Some(4), || receiver(ON_FUTEX));
}

#[test]
fn a_receiver_on_the_doorbell_is_woken() {
    explore(Some(4), || receiver(on_bell(VECTOR)));
}

/// Two threads wait on one word, each in its way and one for the second byte only: the request of
/// one must neither hide nor take away the other's.
#[test]
fn two_receivers_of_one_connection_are_both_woken() {
    explore(Some(3), || {
        let line = Arc::new(Line::default());
        let waiters = [(ON_FUTEX, 1), (on_bell(VECTOR), 2)].map(|(how, position)| {
            let line = Arc::clone(&line);
            thread::spawn(move || line.wait(how, || produced(&line) >= position))
        });
        let tx = TxCursor::default();
        for _ in 0..2 {
            tx.publish(&line.prod, 1);
            line.notify();
        }
        waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
    });
}

const CAP: u64 = 1 << 16;
const LOOK_AFTER: u64 = CAP / LOOKS;
/// Without a limit.
const FULL: (u64, u64) = (CAP, UNLIMITED);

/// A sender that has sent `sent` bytes, with nothing more to send under its limit, waits for `room`;
/// the receiver takes all there is in pieces of `piece`, and looks whether somebody waits only where
/// [`RxCursor::consume`] says so.
fn sender(
    (sent, limit): (u64, u64),
    room: u64,
    piece: u64,
    wait: impl Fn(&Line, &dyn Fn() -> bool),
) {
    let line = Arc::new(Line::default());
    let tx = TxCursor::default();
    tx.publish(&line.prod, sent);
    assert_eq!(tx.room(0, CAP, limit).0, 0);
    let receiver = {
        let line = Arc::clone(&line);
        thread::spawn(move || {
            let rx = RxCursor::default();
            while rx.refresh(&line.prod, CAP).unwrap() > 0 {
                if rx.consume(&line.cons, CAP, piece.min(rx.known())) {
                    line.notify();
                }
            }
        })
    };
    wait(&line, &|| tx.room(line.cons.cons.load(Ordering::Acquire), CAP, limit).0 >= room);
    receiver.join().unwrap();
}

/// Not a divisor of [`LOOK_AFTER`]: some pieces end without a look.
const PIECE: u64 = LOOK_AFTER / 2 + LOOK_AFTER / 4;

#[test]
fn a_sender_on_the_futex_is_woken() {
    explore(Some(4), || sender(FULL, 1, PIECE, |line, ready| line.wait(ON_FUTEX, ready)));
}

#[test]
fn a_sender_on_the_doorbell_is_woken() {
    explore(Some(4), || sender(FULL, 1, PIECE, |line, ready| line.wait(on_bell(VECTOR), ready)));
}

/// epoll reports room when a third of the ring is free: far from the last look.
#[test]
fn a_sender_in_epoll_is_woken() {
    explore(Some(3), || {
        sender(FULL, CAP.div_ceil(3), PIECE, |line, ready| line.wait_in_epoll(ready))
    });
}

/// The limit came when bytes lay unread: the receiver, who knows nothing of it, looks once only.
#[test]
fn a_sender_with_a_late_limit_is_woken() {
    const LATE: (u64, u64) = (LOOK_AFTER + 1, LOOK_AFTER / 8);
    explore(Some(4), || sender(LATE, 1, PIECE, |line, ready| line.wait(ON_FUTEX, ready)));
}
