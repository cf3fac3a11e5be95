//! What the models stand on: an RMB of loom cells, and the kernel's ways to sleep.

use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::{Condvar, Mutex, Notify};
use shunt_engine::spin::{Mode, Nanos};
use shunt_engine::wait::{
    Handlers, Hearing, Host, Limits, Placing, Set, Slept, Spinner, Stopwatch, Wait, Way, Woken,
};
use shunt_shm::ring::{
    ConsLine, Content, ProdLine, REWIND_AFTER, RxCursor, Shape, Span, TxCursor, UNLIMITED,
};
use shunt_shm::sync::{AtomicU32, AtomicU64, Ordering};

/// Explores `model` with at most `preemptions` involuntary thread switches in one execution;
/// `None`: all of them.
pub fn explore(preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = preemptions;
    builder.max_branches = 10_000;
    builder.check(model);
}

/// Cells kept for each stretch of [`REWIND_AFTER`] offsets: loom pays for every cell.
const CELLS: usize = 4;

/// One direction of a connection: the shared lines and the receiver's buffer.
pub struct Rmb {
    /// The sender's line.
    pub prod: ProdLine,
    /// The receiver's line.
    pub cons: ConsLine,
    cap: u64,
    cells: Vec<UnsafeCell<u8>>,
}

impl Rmb {
    /// A ring of `cap` bytes, of which the models use the first few of each [`REWIND_AFTER`].
    pub fn new(cap: u64) -> Self {
        let cells = usize::try_from(cap.div_ceil(REWIND_AFTER)).unwrap() * CELLS;
        Self {
            prod: ProdLine::default(),
            cons: ConsLine::default(),
            cap,
            cells: (0..cells).map(|_| UnsafeCell::new(0)).collect(),
        }
    }

    const fn shape(&self) -> Shape {
        Shape { cap: self.cap, late: false }
    }

    fn cell(&self, offset: usize) -> &UnsafeCell<u8> {
        let page = usize::try_from(REWIND_AFTER).unwrap();
        assert!(offset % page < CELLS, "the model has no cell for offset {offset}");
        &self.cells[offset / page * CELLS + offset % page]
    }

    /// Sends as many of `bytes` as there is room for; returns how many.
    pub fn send(&self, tx: &TxCursor, bytes: &[u8]) -> usize {
        let span = tx
            .reserve(
                &self.cons,
                self.cap,
                self.shape(),
                UNLIMITED,
                (bytes.len() as u64, Content::Put),
            )
            .unwrap();
        let mut n = 0;
        for (offset, byte) in offsets(span).zip(bytes) {
            // SAFETY: loom checks that nobody else is at this cell.
            self.cell(offset).with_mut(|cell| unsafe { *cell = *byte });
            n += 1;
        }
        if n > 0 {
            tx.publish(&self.prod, n as u64);
        }
        n
    }

    /// Receives up to `want` bytes.
    pub fn receive(&self, rx: &RxCursor, want: u64) -> Vec<u8> {
        let span = rx.readable(&self.prod, self.cap, want).unwrap();
        let bytes: Vec<u8> = offsets(span)
            // SAFETY: loom checks that nobody writes this cell.
            .map(|offset| self.cell(offset).with(|cell| unsafe { *cell }))
            .collect();
        if !bytes.is_empty() {
            let _ = rx.consume(&self.cons, self.cap, bytes.len() as u64);
        }
        bytes
    }

    /// Gives the memory of an empty ring back, which is zero then. Whether it was empty.
    pub fn discard(&self, tx: &TxCursor) -> bool {
        let is_empty = tx.is_drained(&self.cons).unwrap();
        if is_empty {
            // SAFETY: loom checks that nobody else is at these cells.
            self.cells.iter().for_each(|cell| cell.with_mut(|cell| unsafe { *cell = 0 }));
        }
        is_empty
    }

    /// Moves both ends on by `n` bytes that nobody looks at.
    pub fn skip(&self, tx: &TxCursor, rx: &RxCursor, n: u64) {
        let _ =
            tx.reserve(&self.cons, self.cap, self.shape(), UNLIMITED, (n, Content::Put)).unwrap();
        tx.publish(&self.prod, n);
        let _ = rx.readable(&self.prod, self.cap, n).unwrap();
        let _ = rx.consume(&self.cons, self.cap, n);
    }
}

fn offsets(span: Span) -> impl Iterator<Item = usize> {
    let piece = |(at, len): (usize, usize)| at..at + len;
    piece(span.head).chain(piece(span.tail))
}

/// futex(2): the kernel compares the word and queues the sleeper under one lock.
#[derive(Default)]
pub struct Futex {
    queue: Mutex<()>,
    sleepers: Condvar,
}

impl Futex {
    /// Sleeps unless the word has changed.
    pub fn wait(&self, word: &AtomicU32, expected: u32) {
        let queue = self.queue.lock().unwrap();
        if word.load(Ordering::Relaxed) == expected {
            drop(self.sleepers.wait(queue).unwrap());
        }
    }

    /// Wakes all sleepers.
    pub fn wake(&self) {
        let _queue = self.queue.lock().unwrap();
        self.sleepers.notify_all();
    }
}

/// A process that never spins, and whose clock stands still.
#[derive(Default)]
pub struct Process {
    learnt: AtomicU32,
    offers: AtomicU64,
}

impl Spinner for Process {
    fn now(&self) -> Nanos {
        0
    }

    fn mode(&self) -> Mode {
        Mode::Never
    }

    fn far_answer(&self) -> &AtomicU32 {
        &self.learnt
    }

    fn wake_up(&self, _: Way) -> &AtomicU32 {
        &self.learnt
    }

    fn spinners(&self) -> &[AtomicU64] {
        &[]
    }

    fn rested(&self) -> Nanos {
        0
    }

    fn rests(&self, _: Nanos) {}

    fn offers(&self) -> &AtomicU64 {
        &self.offers
    }

    fn has_one_processor(&self) -> bool {
        false
    }

    fn yields(&self) -> &AtomicU32 {
        &self.learnt
    }

    fn give_way(&self) {
        loom::thread::yield_now();
    }
}

impl Host for Process {
    fn look_after(&self, _: Nanos) {}

    fn alarm(&self) -> Option<Nanos> {
        None
    }

    fn awake(&self) {}

    fn doubt(&self) -> Option<Nanos> {
        None
    }

    fn sleeps(&self, _: Way) {}

    fn placing(&self) -> Placing {
        Placing::NEW
    }

    fn learns_place(&self, _: Placing) {}

    fn processor(&self) -> u32 {
        0
    }

    fn goes_to(&self, _: u32) {}
}

/// A doorbell that is never drained: each of those who listen hears each ring since its last sleep.
#[derive(Default)]
pub struct Bell {
    ears: [Notify; 2],
}

impl Bell {
    /// Rings.
    pub fn ring(&self) {
        self.ears.iter().for_each(Notify::notify);
    }

    /// Sleeps until it was rung.
    pub fn wait(&self, ear: usize) {
        self.ears[ear].wait();
    }
}

/// What a model has to say of one who waits; all else is the waiter's own.
pub trait Sleeper {
    /// How it sleeps.
    const WAY: Way;

    /// Says how it is to be woken.
    fn arm(&mut self);
    /// Takes that back, where it is not left to be taken.
    fn disarm(&mut self) {}
    /// Whether there is something to look at.
    fn is_ready(&self) -> bool;
    /// Sleeps.
    fn sleep(&self);
    /// A look, before each wait. True: it has what it waits for.
    fn look(&mut self) -> bool {
        self.is_ready()
    }
}

/// One who waits for this, by the waiter itself.
pub struct Waiting<S>(S, Stopwatch);

impl<S: Sleeper> Wait for Waiting<S> {
    fn spin(&mut self) -> bool {
        false
    }

    fn turn_in(&mut self) -> Result<Way, Woken> {
        Ok(S::WAY)
    }

    fn arm<T>(&mut self, _: Way, rest: impl FnOnce(&mut Self, Hearing) -> T) -> T {
        self.0.arm();
        let came = rest(self, Hearing::Woken);
        self.0.disarm();
        came
    }

    fn is_ready(&mut self) -> bool {
        self.0.is_ready()
    }

    fn limits(&mut self, _: Way) -> Limits {
        Limits::default()
    }

    fn sleep(
        &mut self,
        _: Way,
        longest: Option<Nanos>,
        awake: impl FnOnce(&mut Self, Slept),
    ) -> Slept {
        assert_eq!(longest, None, "nothing but a wake-up ends a sleep");
        self.0.sleep();
        awake(self, Slept::Woken);
        Slept::Woken
    }

    fn visit(&mut self, _: Slept) {}

    fn teaches(&self) -> bool {
        false
    }

    fn follows(&self) -> bool {
        false
    }

    fn stopwatch(&mut self) -> &mut Stopwatch {
        &mut self.1
    }

    fn handlers(&mut self, slept: Slept) -> Handlers {
        Handlers::of_a_set(slept, false)
    }
}

impl<S: Sleeper> Set for Waiting<S> {
    type Answer = ();

    fn look(&mut self) -> Option<()> {
        self.0.look().then_some(())
    }

    fn ended(&mut self, woken: Woken) {
        panic!("{woken:?}");
    }
}

/// Waits until it has what it waits for.
pub fn wait_for(sleeper: impl Sleeper) {
    shunt_engine::wait::wait_for(&mut Waiting(sleeper, Stopwatch::default()), &Process::default());
}
