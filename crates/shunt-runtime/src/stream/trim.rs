//! What a large transfer has touched goes back to the kernel once the ring is idle.
//!
//! The sender gives the memory back: it chooses where the next byte lies, and knows by the receiver's cursor that the
//! ring is empty. With the lock of its direction held nothing is put there meanwhile, and a receiver looks at nothing
//! but what is put there. What small messages take of an empty ring stays.
//!
//! A sender that goes beyond that is noted ([`touch`]). Whoever waits in a hook looks after such connections from time to
//! time, for the whole process: one of the threads that sleep wakes up for it ([`alarm::next_look`]), and one that never sleeps
//! looks where it asks the kernel or the clock anyhow ([`look`]). A ring that was not used since the last pass over all
//! is idle. As long as nothing is touched nobody wakes up, and where a receiver leaves bytes unread the passes become
//! ever more seldom.
//!
//! It is the program's thread that looks, so it does that in pieces, between which it comes back to the program: a pass
//! over thousands of rings takes many looks.
//!
//! Rings of connections that have ended are the client's to give back, as are their slots: [`link::trim`].

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use core::sync::atomic::{AtomicU64, AtomicUsize};
use core::time::Duration;

use shunt_engine::stretch::{Path, path};
use shunt_shm::ring::TxCursor;

use crate::activity;
use crate::calls::Which;
use crate::conn::{Conn, Hold, Sock};
use crate::control::link::{self, Left};
use crate::epoll;
use crate::knobs;
use crate::stream::alarm;
use crate::system::clock;
use crate::system::errno::KeepErrno;
use crate::threads::signals::{Uncancelled, Uninterrupted};

/// Longest time between two passes, in nanoseconds: for what cannot be given back for long.
const SELDOM: u64 = 60_000_000_000;
/// Longest time that a look takes, but for the ring at which it passes, in nanoseconds.
const PIECE: u64 = 250_000;
/// A value of [`Sock::touched`]: the sender has gone far since the last look.
const USED: u32 = 2;
/// The same: not since the last look.
const SEEN: u32 = 1;

/// Connections that are noted, by their places: a bit each.
static NOTED: [AtomicU64; Sock::MOST.div_ceil(64)] =
    [const { AtomicU64::new(0) }; Sock::MOST.div_ceil(64)];

/// When the last pass began, and the place at which it goes on; [`Sock::MOST`]: it is over.
static BEGAN: AtomicU64 = AtomicU64::new(0);
static AT: AtomicUsize = AtomicUsize::new(Sock::MOST);
/// Whether it has met a ring that was used.
static MET_USED: AtomicU64 = AtomicU64::new(0);
/// The sender goes beyond what is kept of an idle ring (or grants so many bytes). With the lock of the direction held.
#[cold]
#[inline(never)]
pub fn touch(sock: &Sock) {
    if sock.touched.load(Relaxed) == USED {
        return;
    }
    let before = sock.touched.swap(USED, Relaxed);
    if sock.is_far() {
        return;
    }
    if before != SEEN {
        let place = sock.place();
        NOTED[place / 64].fetch_or(1 << (place % 64), SeqCst);
    }
    // Also where looks have become seldom, as it was not empty for long.
    if alarm::arm() {
        tell_a_sleeper(sock);
    }
}

/// This thread may not come to wait in a hook, as those of a pool that are given work by another one do not. So one that
/// sleeps in an epoll instance, if there is any, is told that there is something to look after.
fn tell_a_sleeper(sock: &Sock) {
    let mut sleeping = epoll::all().filter(|set| set.sharers.are_asleep());
    let vector = sleeping.find_map(|set| set.sharers.vectors().checked_ilog2());
    if let Some(vector) = vector {
        sock.endpoint().bells.ring(vector as usize);
    }
}

/// Looks, if that is due. With no lock held.
#[inline]
pub fn look(now: u64) {
    let due = alarm::due();
    if due != 0 && now >= due {
        look_at_all(now, due);
    }
}

/// What has become of a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Found {
    /// There is nothing more to give back.
    Done,
    /// It was used since the last look.
    Used,
    /// It is idle, but not empty.
    Unread,
}

#[cold]
#[inline(never)]
fn look_at_all(now: u64, due: u64) {
    // The library has stepped back, or the process ends: whatever is left is the kernel's business.
    if activity::is_over() {
        alarm::stop();
        return;
    }
    let idle = knobs::get().idle().unwrap_or(SELDOM);
    let claimed = now.saturating_add(idle).max(1);
    if !alarm::put_off(due, claimed) {
        return;
    }
    let _keep = KeepErrno::new();
    // In this order: what a hold leaves is closed with the thread uncancelled.
    let (_uncancelled, _uninterrupted) = (Uncancelled::begin(), Uninterrupted::begin());
    let news = alarm::news();
    if AT.load(Relaxed) >= Sock::MOST && now >= BEGAN.load(Relaxed).saturating_add(alarm::between())
    {
        BEGAN.store(now, Relaxed);
        MET_USED.store(0, Relaxed);
        AT.store(0, Relaxed);
    }
    // Both get on, however much the other has to do.
    let left = link::trim(clock::now() + PIECE / 2);
    let is_over = go_on(clock::now() + PIECE / 2);
    if !is_over || left == Left::More {
        let next = clock::now().saturating_add(alarm::PAUSE);
        alarm::put_off(claimed, next);
        return;
    }
    if left == Left::Nothing && NOTED.iter().all(|noted| noted.load(SeqCst) == 0) {
        alarm::put_off(claimed, 0);
        // Whoever had something new meanwhile found the look due.
        if alarm::news() != news {
            let _ = alarm::arm();
        }
        return;
    }
    let between = match MET_USED.load(Relaxed) {
        0 => alarm::between().saturating_mul(2).clamp(1, SELDOM.max(idle)),
        _ => idle,
    };
    alarm::set_between(between);
    let next = BEGAN.load(Relaxed).saturating_add(between).max(1);
    alarm::put_off(claimed, next);
}

/// Goes on with the pass over the connections that are noted. True when it is over, false when it is not by this time.
fn go_on(until: u64) -> bool {
    let mut at = AT.load(Relaxed);
    while at < Sock::MOST {
        let noted = &NOTED[at / 64];
        let left = noted.load(Acquire) & (u64::MAX << (at % 64));
        if left == 0 {
            at = (at / 64 + 1) * 64;
            continue;
        }
        if clock::now() >= until {
            AT.store(at, Relaxed);
            return false;
        }
        let bit = left & left.wrapping_neg();
        at = at / 64 * 64 + bit.trailing_zeros() as usize;
        // Before the look: who notes it again afterwards is not forgotten.
        noted.fetch_and(!bit, SeqCst);
        let found = Sock::at(at).map_or(Found::Done, give_back);
        if found != Found::Done {
            noted.fetch_or(bit, SeqCst);
        }
        if found == Found::Used {
            MET_USED.store(1, Relaxed);
        }
        at += 1;
    }
    AT.store(at, Relaxed);
    true
}

/// Gives the memory of an idle ring back, if it is empty.
fn give_back(sock: &'static Sock) -> Found {
    // Held, so that neither the connection nor its slot is another one's meanwhile.
    let Some(_hold) = Hold::of_many(Conn::gone(sock)) else { return Found::Done };
    let Some(_lock) = sock.lock_within(Which::Tx, Duration::ZERO) else { return Found::Used };
    let is_used = sock.touched.swap(SEEN, AcqRel) == USED;
    if is_used && knobs::get().idle() != Some(0) {
        return Found::Used;
    }
    match discard(sock) {
        Some(false) => Found::Unread,
        Some(true) | None => {
            sock.touched.store(0, Relaxed);
            Found::Done
        }
    }
}

/// The same with the lock of the direction held. `None`: there is none to be had, nor will be as it is. False: it is not
/// empty.
fn discard(sock: &'static Sock) -> Option<bool> {
    // One without a ring has the place of another that was noted.
    let (link, (mine, theirs)) = (sock.link()?, sock.sections()?);
    let record = sock.record();
    let tx = &record.tx;
    // A receiver that breaks the protocol is the next call's business.
    let is_empty = tx.cursor.is_drained(&theirs.cons).ok()?;
    // A receiver that has followed to TCP comes back to nothing of what it has left in the ring.
    let marks = tx.marks.load(Relaxed);
    let is_left = path(marks) == Path::Tcp
        && mine.prod.marks.load(Relaxed) == marks
        && TxCursor::marks_settled(&mine.prod, &theirs.cons);
    // What is to be sent once more, over TCP, is still in the ring.
    if !(is_empty || is_left) || tx.replay.load(Relaxed) != 0 {
        return Some(false);
    }
    // SAFETY: the receiver looks at nothing in the ring before this side puts something there: which nobody does without
    // the lock.
    unsafe { link.view().discard(record.slot(), record.side().other()) };
    Some(true)
}
