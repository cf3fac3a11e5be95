//! Completions of calls with `MSG_ZEROCOPY` (Documentation/networking/msg_zerocopy.rst): each call that sent
//! something has a number, and the program is told in ranges of numbers which of its buffers are its own again.
//!
//! One list per connection, in memory that the process shares with its own forks, as they share the
//! kernel's error queue. Whoever uses it holds the lock of the sending direction.

use crate::reset::resets;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Ranges that can wait. The kernel's limit is memory (`net.core.optmem_max`), for about a hundred.
pub const RUNS: usize = 128;

/// Calls in a row that are complete at the same time and in the same way.
#[repr(C)]
#[derive(Debug, Default)]
struct Run {
    /// Position in the ring up to which the receiver must have come.
    until: AtomicU64,
    /// The number after the last one.
    end: AtomicU32,
    /// Not 0: the bytes were copied.
    copied: AtomicU32,
}

/// The list of a connection.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Completions {
    /// Calls ever numbered: the next one's number.
    next: AtomicU32,
    /// The first number of which the program was not told.
    untold: AtomicU32,
    /// Runs ever begun.
    begun: AtomicU32,
    /// Runs of which the program was told.
    told: AtomicU32,
    runs: [Run; RUNS],
}

// Places stay apart when the counts wrap.
const _: () = assert!(RUNS.is_power_of_two());

/// What the program is told at once: `ee_info` and `ee_data` of `struct sock_extended_err`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Notice {
    /// The first number.
    pub first: u32,
    /// The last one.
    pub last: u32,
    /// `SO_EE_CODE_ZEROCOPY_COPIED`.
    pub copied: bool,
}

const R: Ordering = Ordering::Relaxed;

impl Default for Completions {
    fn default() -> Self {
        Self {
            next: AtomicU32::new(0),
            untold: AtomicU32::new(0),
            begun: AtomicU32::new(0),
            told: AtomicU32::new(0),
            runs: core::array::from_fn(|_| Run::default()),
        }
    }
}

// A run is written before it is read.
resets! { Completions { next, untold, begun, told } keeps { runs } }

impl Completions {
    fn run(&self, n: u32) -> &Run {
        &self.runs[n as usize % RUNS]
    }

    /// The number of the next call.
    #[must_use]
    pub fn next(&self) -> u32 {
        self.next.load(R)
    }

    /// Something else after each call that was numbered.
    #[must_use]
    pub fn stamp(&self) -> u32 {
        self.next.load(R)
    }

    /// True when so many ranges wait that no call can be sure of a place: `ENOBUFS`.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.begun.load(R).wrapping_sub(self.told.load(R)) as usize >= RUNS
    }

    /// Numbers a call, which is complete when the receiver has come `until` there; it is at `taken` now. With the list
    /// [`full`](Self::is_full), as other threads have sent meanwhile, it is complete together with the one before it.
    pub fn add(&self, until: u64, taken: u64, copied: bool) {
        let end = self.next.load(R).wrapping_add(1);
        self.next.store(end, R);
        let begun = self.begun.load(R);
        let last = self.run(begun.wrapping_sub(1));
        if self.is_full() {
            last.until.store(last.until.load(R).max(until), R);
            last.end.store(end, R);
            last.copied.store(last.copied.load(R) | u32::from(copied), R);
            return;
        }
        let joins = begun != self.told.load(R)
            && (last.copied.load(R) != 0) == copied
            && last.until.load(R).max(until) <= taken;
        if joins {
            last.end.store(end, R);
            return;
        }
        let run = self.run(begun);
        run.until.store(until, R);
        run.end.store(end, R);
        run.copied.store(u32::from(copied), R);
        self.begun.store(begun.wrapping_add(1), R);
    }

    /// True when the program can be told of something, with the receiver at `taken`.
    #[must_use]
    pub fn has_notice(&self, taken: u64) -> bool {
        let told = self.told.load(R);
        told != self.begun.load(R) && self.run(told).until.load(R) <= taken
    }

    /// The bytes of all calls were copied by now, but for those that the receiver, which is at `taken`, has passed.
    pub fn settle(&self, taken: u64) {
        let (mut at, begun) = (self.told.load(R), self.begun.load(R));
        while at != begun {
            let run = self.run(at);
            if run.until.load(R) > taken {
                run.until.store(0, R);
                run.copied.store(1, R);
            }
            at = at.wrapping_add(1);
        }
    }

    /// True when what the program is told next waits for the receiver, which is at `taken`: also where all calls behind it are
    /// complete.
    #[must_use]
    pub fn is_waiting(&self, taken: u64) -> bool {
        let told = self.told.load(R);
        told != self.begun.load(R) && self.run(told).until.load(R) > taken
    }

    /// What the program is told next: as many calls as are complete one after the other in the same way.
    pub fn take(&self, taken: u64) -> Option<Notice> {
        let begun = self.begun.load(R);
        let mut told = self.told.load(R);
        let mut notice: Option<(bool, u32)> = None;
        while told != begun {
            let run = self.run(told);
            let copied = run.copied.load(R) != 0;
            if run.until.load(R) > taken || notice.is_some_and(|(before, _)| before != copied) {
                break;
            }
            notice = Some((copied, run.end.load(R)));
            told = told.wrapping_add(1);
        }
        let (copied, end) = notice?;
        let first = self.untold.load(R);
        self.untold.store(end, R);
        self.told.store(told, R);
        Some(Notice { first, last: end.wrapping_sub(1), copied })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn notice(first: u32, last: u32, copied: bool) -> Option<Notice> {
        Some(Notice { first, last, copied })
    }

    #[test]
    fn what_is_complete_is_told_once_and_together() {
        let list = Completions::default();
        assert!(!list.has_notice(u64::MAX) && list.take(u64::MAX).is_none());
        list.add(0, 0, true);
        list.add(0, 0, true);
        assert!(list.has_notice(0));
        assert_eq!(list.take(0), notice(0, 1, true));
        assert!(!list.has_notice(0) && list.take(0).is_none());
        assert_eq!(list.next(), 2);
    }

    #[test]
    fn calls_are_told_in_their_order_and_never_early() {
        let list = Completions::default();
        list.add(100, 0, false);
        list.add(200, 0, false);
        list.add(0, 0, true);
        assert!(!list.has_notice(99) && list.take(99).is_none());
        assert_eq!(list.take(100), notice(0, 0, false));
        // Copied long ago, but behind one that is not complete.
        assert!(list.take(199).is_none());
        assert_eq!(list.take(200), notice(1, 1, false));
        assert_eq!(list.take(200), notice(2, 2, true));
    }

    #[test]
    fn a_copied_call_waits_with_the_one_before_it() {
        let list = Completions::default();
        assert!(!list.is_waiting(0));
        list.add(100, 0, false);
        assert!(list.is_waiting(99) && !list.is_waiting(100));
        list.add(0, 0, true);
        assert!(list.is_waiting(99) && !list.has_notice(99), "calls are told in their order");
        assert!(!list.is_waiting(100) && list.has_notice(100));
    }

    #[test]
    fn there_is_room_for_so_many_ranges_and_any_number_of_calls() {
        let list = Completions::default();
        for _ in 0..1000 {
            list.add(0, 0, true);
        }
        assert!(!list.is_full());
        for n in 1..RUNS as u64 {
            list.add(n, 0, false);
        }
        assert!(list.is_full());
        assert_eq!(list.take(0), notice(0, 999, true));
        assert!(!list.is_full());
        assert_eq!(list.take(RUNS as u64), notice(1000, 998 + u32::try_from(RUNS).unwrap(), false));
        assert!(list.take(u64::MAX).is_none());
    }

    #[test]
    fn one_too_many_is_complete_with_the_last_one() {
        let list = Completions::default();
        let runs = RUNS as u64;
        for n in 1..=runs {
            list.add(n, 0, false);
        }
        list.add(runs + 5, 0, true);
        list.add(3, 0, false);
        let last = u32::try_from(RUNS).unwrap();
        assert_eq!(list.take(runs), notice(0, last - 2, false), "not early");
        assert_eq!(list.take(runs + 5), notice(last - 1, last + 1, true));
        assert!(list.take(u64::MAX).is_none());
    }

    #[test]
    fn numbers_wrap() {
        let list = Completions::default();
        list.next.store(u32::MAX, R);
        list.untold.store(u32::MAX, R);
        list.begun.store(u32::MAX, R);
        list.told.store(u32::MAX, R);
        list.add(5, 0, false);
        list.add(6, 0, false);
        assert_eq!(list.take(6), notice(u32::MAX, 0, false));
        assert_eq!(list.next(), 1);
    }
}
