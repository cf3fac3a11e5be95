//! Notices that nothing moves any more.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::board::Board;

static BYTES: AtomicU64 = AtomicU64::new(0);
static OPENED: AtomicUsize = AtomicUsize::new(0);
static FINISHED: AtomicUsize = AtomicUsize::new(0);
static BOARD: OnceLock<Board> = OnceLock::new();

/// Bytes have moved.
pub fn progress(bytes: usize) {
    BYTES.fetch_add(bytes as u64, Ordering::Relaxed);
}

/// A connection has been opened or accepted.
pub fn opened() {
    OPENED.fetch_add(1, Ordering::Relaxed);
}

/// A connection has ended in good order.
pub fn finished() {
    FINISHED.fetch_add(1, Ordering::Relaxed);
    if let Some(board) = BOARD.get() {
        board.finish();
    }
}

/// Tells the parent of each connection that ends from now on.
pub fn on_finished(board: Board) {
    // A worker calls this once, before its first connection.
    let _first = BOARD.set(board);
}

/// Ends the process with status 3 when connections are open and neither a byte nor a connection
/// moves for `limit`.
pub fn start(limit: Duration) {
    thread::spawn(move || {
        let mut last = (0, 0, 0);
        let mut since = Instant::now();
        loop {
            thread::sleep(Duration::from_millis(250));
            let now = (
                BYTES.load(Ordering::Relaxed),
                OPENED.load(Ordering::Relaxed),
                FINISHED.load(Ordering::Relaxed),
            );
            let (bytes, opened, finished) = now;
            if now != last || opened == finished {
                (last, since) = (now, Instant::now());
            } else if since.elapsed() > limit {
                eprintln!(
                    "shunt-gen {}: stalled for {limit:?}: {bytes} bytes moved, {opened} \
                     connections opened, {finished} finished",
                    std::process::id()
                );
                std::process::exit(3);
            }
        }
    });
}
