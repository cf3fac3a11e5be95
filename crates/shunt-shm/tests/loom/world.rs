//! What the models stand on: an RMB of loom cells, and the kernel's ways to sleep.

use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::{Condvar, Mutex};
use shunt_shm::ring::{
    ConsLine, Content, ProdLine, REWIND_AFTER, RxCursor, Shape, Span, TxCursor, UNLIMITED,
};
use shunt_shm::sync::{AtomicU32, Ordering};

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
