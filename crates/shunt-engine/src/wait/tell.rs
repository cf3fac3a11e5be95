//! Telling those who wait: whom to wake, and how.
//!
//! The news are stored before. Then comes a fence, and then the look at who has said that it waits: that order, and its
//! counterpart in [`super::wait()`], lets no waiter sleep through them.
//!
//! Telling has two halves: who waits is taken out of the word, or noted in the queue, and is woken then. A handler of a signal that
//! runs between the two, and waits for the answer, finds nobody to tell; so it wakes all who may be meant ([`untold`]). So does a
//! call that ends there by a panic.

use shunt_shm::cq::{ArmLine, CqLine, Push};
use shunt_shm::doorbell::{AWAKE, ON_FUTEX, ON_QUEUE, take, take_bells, take_futex, vectors};
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
    /// The same where it may be there already, and its owner not be rung yet ([`queue_again`]).
    fn push_again(&self) -> Option<usize>;
    /// Rings for all threads of the process.
    fn ring_all(&self);
    /// Does both halves of telling, of which handlers of signals above this call are to know meanwhile.
    fn in_halves<T>(&self, halves: impl FnOnce() -> T) -> T;
}

/// Takes a word, and wakes whom it names.
#[inline]
fn in_halves<W: Wake, T>(armed: Armed<'_>, wake: &W, halves: impl FnOnce() -> T) -> T {
    /// What is left to do where a panic comes between.
    struct Rest<'a, W: Wake>(Armed<'a>, &'a W);

    impl<W: Wake> Drop for Rest<'_, W> {
        fn drop(&mut self) {
            again(self.0, self.1);
        }
    }

    wake.in_halves(|| {
        let rest = Rest(armed, wake);
        let result = halves();
        core::mem::forget(rest);
        result
    })
}

/// Wakes all who may have waited by this word, which was taken.
#[cold]
fn again(armed: Armed<'_>, wake: &impl Wake) {
    if wake.is_queued() {
        wake.push_again();
    }
    wake.futex(armed.word);
    wake.ring_all();
}

/// What the peer waits for, as far as it can be seen here, and may not have been told of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Untold {
    /// Bytes, a mark, or an end.
    pub data: bool,
    /// Room.
    pub room: bool,
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
    if is_awake(armed) {
        return pushed;
    }
    in_halves(armed, wake, || match take(armed.word) {
        AWAKE => pushed,
        asked => woken(armed, asked, wake),
    })
}

/// Nobody waits by it.
#[inline]
fn is_awake(armed: Armed<'_>) -> bool {
    armed.word.load(Ordering::Relaxed) == AWAKE
}

/// There is room for who waits by this word. The cursor is stored already.
#[inline]
pub fn space(armed: Armed<'_>, wake: &impl Wake) {
    // SYNC POINT word-arm.
    store_load_fence();
    if is_awake(armed) {
        return;
    }
    in_halves(armed, wake, || {
        let asked = take(armed.word);
        if asked & ON_QUEUE != 0 {
            push(wake);
        }
        if asked & !ON_QUEUE != 0 {
            woken(armed, asked, wake);
        }
    });
}

/// Before a call in a handler of a signal sleeps: what calls below it may have done and not told of. `is_halfway`: one of them is
/// between the two halves of telling, and nobody knows whom it has taken out of the words.
#[cold]
pub fn untold(
    what: Untold,
    is_halfway: bool,
    [receiver, sender]: [Armed<'_>; 2],
    wake: &impl Wake,
) {
    if is_halfway {
        [receiver, sender].into_iter().for_each(|armed| again(armed, wake));
    }
    if what.data {
        // It may have come as far as the queue.
        if wake.is_queued() {
            wake.ring(wake.push_again().into_iter());
        }
        data(receiver, wake);
    }
    if what.room {
        space(sender, wake);
    }
}

/// The same for all threads of one side that wait by its own words, right after a full barrier behind what they are to look
/// at.
pub fn own(words: [Armed<'_>; 2], wake: &impl Wake) {
    for armed in words.into_iter().filter(|armed| !is_awake(*armed)) {
        in_halves(armed, wake, || {
            let Armed { word, bells } = armed;
            let asked = take(word);
            if asked & ON_FUTEX != 0 {
                wake.futex(word);
            }
            let queued = if asked & ON_QUEUE != 0 { wake.push() } else { None };
            wake.ring(vectors(take_bells(asked, bells)).chain(queued));
        });
    }
}

/// For those on futexes alone: all others are told by the kernel. What they are told is stored already.
pub fn those_on_futexes(words: [Armed<'_>; 2], wake: &impl Wake) {
    // SYNC POINT word-arm: the announcement before the look.
    store_load_fence();
    for armed in words.into_iter().filter(|armed| !is_awake(*armed)) {
        in_halves(armed, wake, || {
            if take_futex(armed.word) {
                wake.futex(armed.word);
            }
        });
    }
}

/// Puts a connection into a queue; whether its owner is to be rung. `place`: where its place among the others is left, with
/// which it is handed over.
#[inline]
pub fn queue(line: &CqLine, arm: &ArmLine, conn: usize, place: Option<&AtomicU32>) -> Push {
    leave_place(line, conn, place);
    line.push(arm, conn)
}

/// The same where it may be there already, put there by one that was to ring and has not done so yet.
#[cold]
pub fn queue_again(line: &CqLine, arm: &ArmLine, conn: usize, place: Option<&AtomicU32>) -> Push {
    leave_place(line, conn, place);
    line.push_again(arm, conn)
}

#[inline]
fn leave_place(line: &CqLine, conn: usize, place: Option<&AtomicU32>) {
    if let Some(at) = place
        && let Some(place) = line.next_place(conn)
    {
        at.store(place, Ordering::Relaxed);
    }
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
