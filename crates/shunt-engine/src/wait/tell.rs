//! Telling those who wait: whom to wake, and how.
//!
//! The news are stored before. Then comes a fence, and then the look at who has said that it waits: that order, and its
//! counterpart in [`super::wait()`], lets no waiter sleep through them.

use shunt_shm::cq::{ArmLine, CqLine, Push};
use shunt_shm::doorbell::{ON_FUTEX, ON_QUEUE, take, take_bells, take_futex, vectors};
use shunt_shm::sync::{AtomicU32, AtomicU64, Ordering, store_load_fence};

/// What wakes those who wait for a connection.
pub trait Wake {
    /// Wakes those who sleep on the word itself.
    fn futex(&self, word: &AtomicU32);
    /// Rings the doorbells of these vectors.
    fn ring(&self, vectors: impl Iterator<Item = usize>);
    /// True when the connection's bytes are told of by a completion queue.
    fn is_queued(&self) -> bool;
    /// Puts the connection into its completion queue ([`queue`]); the vector whose owner is to be rung.
    fn push(&self) -> Option<usize>;
}

/// What it cost to tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cost {
    /// A system call.
    Rung,
    /// None.
    Saved,
}

/// An arm word, and the doorbells that stand beside it.
#[derive(Clone, Copy, Debug)]
pub struct Armed<'a> {
    /// The word.
    pub word: &'a AtomicU32,
    /// The doorbells.
    pub bells: &'a AtomicU64,
}

/// There are bytes (or an end, or a mark) for who waits by this word. The cursor is stored already.
#[inline]
pub fn data(armed: Armed<'_>, wake: &impl Wake) -> Cost {
    // SYNC POINT word-arm, and the same for the queue's registration: our cursor before this look.
    store_load_fence();
    let pushed = if wake.is_queued() { push(wake) } else { Cost::Saved };
    match take(armed.word) {
        0 => pushed,
        asked => woken(armed, asked, wake),
    }
}

/// There is room for who waits by this word. The cursor is stored already.
#[inline]
pub fn space(armed: Armed<'_>, wake: &impl Wake) {
    // SYNC POINT word-arm.
    store_load_fence();
    let asked = take(armed.word);
    if asked & ON_QUEUE != 0 {
        push(wake);
    }
    if asked & !ON_QUEUE != 0 {
        woken(armed, asked, wake);
    }
}

/// The same for all threads of one side that wait by its own words, right after a full barrier behind what they are to look
/// at.
pub fn own(words: [Armed<'_>; 2], wake: &impl Wake) {
    for Armed { word, bells } in words {
        let asked = take(word);
        if asked == 0 {
            continue;
        }
        if asked & ON_FUTEX != 0 {
            wake.futex(word);
        }
        let queued = if asked & ON_QUEUE != 0 { wake.push() } else { None };
        wake.ring(vectors(take_bells(asked, bells)).chain(queued));
    }
}

/// For those on futexes alone: all others are told by the kernel. What they are told is stored already.
pub fn those_on_futexes(words: [&AtomicU32; 2], wake: impl Fn(&AtomicU32)) {
    // SYNC POINT word-arm: the announcement before the look.
    store_load_fence();
    for word in words {
        if take_futex(word) {
            wake(word);
        }
    }
}

/// Puts a connection into a queue; whether its owner is to be rung. `place`: where its place among the others is left, with
/// which it is handed over.
#[inline]
pub fn queue(line: &CqLine, arm: &ArmLine, conn: usize, place: Option<&AtomicU32>) -> Push {
    if let Some(at) = place
        && let Some(place) = line.next_place(conn)
    {
        at.store(place, Ordering::Relaxed);
    }
    line.push(arm, conn)
}

fn push(wake: &impl Wake) -> Cost {
    let Some(vector) = wake.push() else { return Cost::Saved };
    wake.ring(core::iter::once(vector));
    Cost::Rung
}

fn woken(armed: Armed<'_>, asked: u32, wake: &impl Wake) -> Cost {
    if asked & ON_FUTEX != 0 {
        wake.futex(armed.word);
    }
    wake.ring(vectors(take_bells(asked, armed.bells)));
    Cost::Rung
}
