//! The time for a look after idle rings ([`crate::stream::trim`]), and the thread that wakes up for
//! it.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::calls;
use crate::knobs;
use crate::system::clock;

/// Shortest time to the next look, in nanoseconds: that between two of the same pass.
pub const PAUSE: u64 = 1_000_000;
/// How much later than the thread that is to look the others wake up, should that one be busy elsewhere, or have ended.
const SPARE: u64 = 30_000_000_000;

/// When the next look is due, in nanoseconds; 0: none is.
static DUE: AtomicU64 = AtomicU64::new(0);
/// Time between two passes.
static BETWEEN: AtomicU64 = AtomicU64::new(0);
/// How often there was something new to give back.
static NEWS: AtomicU64 = AtomicU64::new(0);
/// For which look a thread has set its alarm, above, and which thread, in the low bits; 0: none has.
static ALARM: AtomicU64 = AtomicU64::new(0);
/// Bits of [`calls::serial`].
const THREAD_BITS: u32 = 30;

/// There is something to give back: the next look is not far off. True when there was nothing before.
pub fn arm() -> bool {
    let Some(idle) = knobs::get().idle() else { return false };
    NEWS.fetch_add(1, SeqCst);
    let due = clock::now().saturating_add(idle).max(1);
    BETWEEN.store(idle, Relaxed);
    let sooner = |now: u64| (now == 0 || now > due).then_some(due);
    DUE.fetch_update(SeqCst, Relaxed, sooner) == Ok(0)
}

/// For a thread that is about to sleep: when to wake up for a look, in nanoseconds from now. `None`: not at all. A
/// single thread wakes up in time, however many sleep. It says when it is [`awake`].
#[inline]
pub fn next_look() -> Option<u64> {
    match DUE.load(Relaxed) {
        0 => None,
        due => Some(time_to(due)),
    }
}

#[cold]
#[inline(never)]
fn time_to(due: u64) -> u64 {
    // One that has been due for long may be under way.
    let left = due.saturating_sub(clock::now()).max(PAUSE);
    let (which, me) = (due >> 16 << THREAD_BITS, u64::from(calls::serial()));
    let before = ALARM.load(Relaxed);
    let is_free = before >> THREAD_BITS << THREAD_BITS != which;
    let is_mine = match is_free {
        true => ALARM.compare_exchange(before, which | me, Relaxed, Relaxed).is_ok(),
        false => before == which | me,
    };
    if is_mine { left } else { left.saturating_add(SPARE) }
}

/// After a sleep that began with [`next_look`]: another thread may set its alarm.
#[inline]
pub fn awake() {
    let alarm = ALARM.load(Relaxed);
    if alarm != 0 && alarm & ((1 << THREAD_BITS) - 1) == u64::from(calls::serial()) {
        let _ = ALARM.compare_exchange(alarm, 0, Relaxed, Relaxed);
    }
}

/// In a forked child, which has none of its parent's other threads.
pub fn fork_child() {
    ALARM.store(0, Relaxed);
}

/// When the next look is due, in nanoseconds; 0: none is.
#[inline]
pub fn due() -> u64 {
    DUE.load(Relaxed)
}

/// The look that is due then is due at another time; 0: never. False when that was changed meanwhile.
pub fn put_off(due: u64, until: u64) -> bool {
    DUE.compare_exchange(due, until, SeqCst, Relaxed).is_ok()
}

/// No look is due.
pub fn stop() {
    DUE.store(0, Relaxed);
}

/// How often there was something new to give back.
pub fn news() -> u64 {
    NEWS.load(SeqCst)
}

/// Time between two passes.
pub fn between() -> u64 {
    BETWEEN.load(Relaxed)
}

/// Sets it.
pub fn set_between(nanos: u64) {
    BETWEEN.store(nanos, Relaxed);
}
