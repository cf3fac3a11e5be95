//! Telling and waiting: nobody who waits for bytes or for room is forgotten.
//!
//! The code is the engine's own: the waiter ([`shunt_engine::wait`]) and the tellers ([`shunt_engine::wait::tell`]). What stands
//! here is the kernel's part of it, and who tells what.

use loom::sync::Arc;
use loom::thread;
use shunt_engine::wait::Way;
use shunt_engine::wait::tell::{self, Armed, Wake};
use shunt_shm::cq::{ArmLine, CqLine, Push};
use shunt_shm::doorbell::{ON_FUTEX, ON_QUEUE, arm, arm_bell};
use shunt_shm::ring::{ConsLine, LOOKS, ProdLine, RxCursor, TxCursor, UNLIMITED};
use shunt_shm::sync::{
    AtomicU32, AtomicU64, Ordering, store_load_fence, store_load_fence_after_rmw,
};

use crate::world::{Bell, Futex, Sleeper, explore, wait_for};

const VECTOR: usize = 5;
const CONN: usize = 9;

/// One direction's shared lines, the arm word of one who waits, and all the ways to wake them.
#[derive(Default)]
struct Line {
    prod: ProdLine,
    cons: ConsLine,
    word: AtomicU32,
    /// The doorbells beside it.
    bells: AtomicU64,
    other_word: AtomicU32,
    other_bells: AtomicU64,
    futex: Futex,
    bell: Bell,
    /// Bytes are told of by the queue.
    is_queued: bool,
    queue: CqLine,
    queue_arm: ArmLine,
    place: AtomicU32,
}

impl Line {
    fn armed(&self) -> Armed<'_> {
        Armed { word: &self.word, bells: &self.bells }
    }

    fn other(&self) -> Armed<'_> {
        Armed { word: &self.other_word, bells: &self.other_bells }
    }
}

impl Wake for Line {
    fn futex(&self, _: &AtomicU32) {
        self.futex.wake();
    }

    fn ring(&self, vectors: impl Iterator<Item = usize>) {
        for vector in vectors {
            assert_eq!(vector, VECTOR);
            self.bell.ring();
        }
    }

    fn is_queued(&self) -> bool {
        self.is_queued
    }

    fn push(&self) -> Option<usize> {
        let pushed = tell::queue(&self.queue, &self.queue_arm, CONN, Some(&self.place));
        (pushed == Push::Ring).then_some(VECTOR)
    }

    fn push_again(&self) -> Option<usize> {
        let pushed = tell::queue_again(&self.queue, &self.queue_arm, CONN, Some(&self.place));
        (pushed == Push::Ring).then_some(VECTOR)
    }

    fn ring_all(&self) {
        self.bell.ring();
    }

    fn in_halves<T>(&self, halves: impl FnOnce() -> T) -> T {
        halves()
    }
}

/// A blocking call in its first milliseconds.
struct OnFutex<'a, R> {
    line: &'a Line,
    ready: R,
    armed: u32,
}

impl<R: Fn() -> bool> Sleeper for OnFutex<'_, R> {
    const WAY: Way = Way::Futex;

    fn arm(&mut self) {
        self.armed = arm(&self.line.word, ON_FUTEX);
    }

    fn is_ready(&self) -> bool {
        (self.ready)()
    }

    fn sleep(&self) {
        self.line.futex.wait(&self.line.word, self.armed);
    }
}

/// One that waits longer, and poll.
struct OnBell<'a, R> {
    line: &'a Line,
    ready: R,
    ear: usize,
}

impl<R: Fn() -> bool> Sleeper for OnBell<'_, R> {
    const WAY: Way = Way::Kernel;

    fn arm(&mut self) {
        arm_bell(&self.line.word, &self.line.bells, VECTOR);
    }

    fn is_ready(&self) -> bool {
        (self.ready)()
    }

    fn sleep(&self) {
        self.line.bell.wait(self.ear);
    }
}

/// epoll_wait. `room`: it waits for room.
struct InEpoll<'a, R> {
    line: &'a Line,
    ready: R,
    room: bool,
}

impl<R: Fn() -> bool> Sleeper for InEpoll<'_, R> {
    const WAY: Way = Way::Kernel;

    fn arm(&mut self) {
        self.line.queue_arm.arm();
    }

    fn disarm(&mut self) {
        self.line.queue_arm.disarm();
    }

    fn is_ready(&self) -> bool {
        !self.line.queue.is_empty()
    }

    fn sleep(&self) {
        self.line.bell.wait(0);
    }

    fn look(&mut self) -> bool {
        let place_of = |_| self.line.place.load(Ordering::Relaxed);
        self.line.queue.pop_all(place_of, |conn| assert_eq!(conn, CONN));
        if (self.ready)() || !self.room {
            return (self.ready)();
        }
        // Whoever waits for room is told through the queue.
        arm(&self.line.word, ON_QUEUE);
        store_load_fence_after_rmw();
        (self.ready)()
    }
}

fn on_futex(line: &Line, ready: impl Fn() -> bool) {
    wait_for(OnFutex { line, ready, armed: 0 });
}

fn on_doorbell(line: &Line, ready: impl Fn() -> bool) {
    wait_for(OnBell { line, ready, ear: 0 });
}

fn in_epoll(line: &Line, ready: impl Fn() -> bool) {
    wait_for(InEpoll { line, ready, room: false });
}

fn in_epoll_for_room(line: &Line, ready: impl Fn() -> bool) {
    wait_for(InEpoll { line, ready, room: true });
}

fn produced(line: &Line) -> u64 {
    line.prod.prod.load(Ordering::Acquire)
}

/// Two publications and one receiver that waits for each.
fn receiver(is_queued: bool, wait: impl Fn(&Line, &dyn Fn() -> bool)) {
    let line = Arc::new(Line { is_queued, ..Line::default() });
    let sender = {
        let line = Arc::clone(&line);
        thread::spawn(move || {
            let tx = TxCursor::default();
            for _ in 0..2 {
                tx.publish(&line.prod, 1);
                tell::data(line.armed(), &*line);
            }
        })
    };
    let rx = RxCursor::default();
    while rx.pos() < 2 {
        wait(&line, &|| produced(&line) != rx.pos());
        let n = rx.refresh(&line.prod, 4).unwrap();
        let _ = rx.consume(&line.cons, 4, n);
    }
    sender.join().unwrap();
}

#[test]
fn a_receiver_on_the_futex_is_woken() {
    explore(Some(4), || receiver(false, |line, ready| on_futex(line, ready)));
}

#[test]
fn a_receiver_on_the_doorbell_is_woken() {
    explore(Some(4), || receiver(false, |line, ready| on_doorbell(line, ready)));
}

#[test]
fn a_receiver_in_epoll_is_woken() {
    explore(Some(4), || receiver(true, |line, ready| in_epoll(line, ready)));
}

/// Two threads wait on one word for the first byte and for the second.
fn two_receivers(
    is_queued: bool,
    first: impl FnOnce(&Line) + Send + 'static,
    second: impl FnOnce(&Line) + Send + 'static,
) {
    let line = Arc::new(Line { is_queued, ..Line::default() });
    let (one, two) = (Arc::clone(&line), Arc::clone(&line));
    let waiters = [thread::spawn(move || first(&one)), thread::spawn(move || second(&two))];
    let tx = TxCursor::default();
    for _ in 0..2 {
        tx.publish(&line.prod, 1);
        tell::data(line.armed(), &*line);
    }
    waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
}

/// Each in its way: the request of one must neither hide nor take away the other's.
#[test]
fn two_receivers_of_one_connection_are_both_woken() {
    explore(Some(3), || {
        two_receivers(
            false,
            |line| on_futex(line, || produced(line) >= 1),
            |line| on_doorbell(line, || produced(line) >= 2),
        );
    });
}

/// Both have the same bit of the word, and the same doorbell.
#[test]
fn two_waiters_on_one_doorbell_are_both_woken() {
    let wait = |line: &Line, ear: usize, bytes: u64| {
        wait_for(OnBell { line, ready: || produced(line) >= bytes, ear });
    };
    explore(Some(3), move || {
        two_receivers(false, move |line| wait(line, 0, 1), move |line| wait(line, 1, 2));
    });
}

/// One waits in epoll, one in recv.
#[test]
fn a_receiver_is_woken_beside_one_in_epoll() {
    explore(Some(3), || {
        two_receivers(
            true,
            |line| in_epoll(line, || produced(line) >= 1),
            |line| wait_for(OnBell { line, ready: || produced(line) >= 2, ear: 1 }),
        );
    });
}

/// Of a change that this side makes itself (shutdown, close, a time-out that is set) those who wait in other threads are told.
#[test]
fn threads_of_ones_own_are_told_of_a_change() {
    explore(Some(3), || {
        let line = Arc::new(Line::default());
        let changed = Arc::new(AtomicU32::new(0));
        let waiters = [false, true].map(|by_bell| {
            let (line, changed) = (Arc::clone(&line), Arc::clone(&changed));
            thread::spawn(move || {
                let ready = || changed.load(Ordering::Relaxed) != 0;
                if by_bell { on_doorbell(&line, ready) } else { on_futex(&line, ready) }
            })
        });
        changed.store(1, Ordering::Relaxed);
        store_load_fence();
        tell::own([line.armed(), line.other()], &*line);
        waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
    });
}

/// Of an end those on futexes are told; the kernel tells the others.
#[test]
fn those_on_futexes_are_told_of_an_end() {
    explore(None, || {
        let line = Arc::new(Line::default());
        let ended = Arc::new(AtomicU32::new(0));
        let waiter = {
            let (line, ended) = (Arc::clone(&line), Arc::clone(&ended));
            thread::spawn(move || on_futex(&line, || ended.load(Ordering::Relaxed) != 0))
        };
        ended.store(1, Ordering::Relaxed);
        tell::those_on_futexes([line.armed(), line.other()], &*line);
        waiter.join().unwrap();
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
                    tell::space(line.armed(), &*line);
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
    explore(Some(4), || sender(FULL, 1, PIECE, |line, ready| on_futex(line, ready)));
}

#[test]
fn a_sender_on_the_doorbell_is_woken() {
    explore(Some(4), || sender(FULL, 1, PIECE, |line, ready| on_doorbell(line, ready)));
}

/// epoll reports room when a third of the ring is free: far from the last look.
#[test]
fn a_sender_in_epoll_is_woken() {
    explore(Some(3), || {
        sender(FULL, CAP.div_ceil(3), PIECE, |line, ready| in_epoll_for_room(line, ready))
    });
}

/// The limit came when bytes lay unread: the receiver, who knows nothing of it, looks once only.
#[test]
fn a_sender_with_a_late_limit_is_woken() {
    const LATE: (u64, u64) = (LOOK_AFTER + 1, LOOK_AFTER / 8);
    explore(Some(4), || sender(LATE, 1, PIECE, |line, ready| on_futex(line, ready)));
}
