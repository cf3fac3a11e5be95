//! The last decisions of an endpoint about its connections and listeners, for `shunt explain`: the library prints nothing.
//!
//! Threads, signal handlers and forks write at once, without waiting: each takes the next number, whose entry is its own until
//! [`ENTRIES`] decisions later. An entry ends with a sum of its words. So the agent, which reads, passes over one that is half
//! written, or that two have written at once.

use shunt_wire::addr::{Addr, FourTuple};
use shunt_wire::decision::Decision;
use shunt_wire::reason::Reason;

use crate::sync::{AtomicU64, Ordering};

/// Decisions that are kept.
pub const ENTRIES: usize = 512;

/// Words of an entry without the sum.
const WORDS: usize = 8;

/// A decision as it was noted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Noted {
    /// When, in nanoseconds since 1970.
    pub at: u64,
    /// What.
    pub decision: Decision,
    /// Why.
    pub reason: Option<Reason>,
    /// The process, as it counts.
    pub pid: u32,
    /// One of the descriptors; -1: none.
    pub fd: i32,
    /// The connection. A listener's has no peer.
    pub tuple: FourTuple,
}

impl Noted {
    fn words(&self, number: u64) -> [u64; WORDS] {
        let Self { at, decision, reason, pid, fd, tuple: FourTuple { local, peer } } = self;
        let reason = reason.map_or(0, |reason| reason as u64);
        let ports = u64::from(local.port) << 16 | u64::from(peer.port);
        let half = |ip: &[u8; 16], i: usize| {
            let mut half = [0; 8];
            half.copy_from_slice(&ip[i * 8..][..8]);
            u64::from_ne_bytes(half)
        };
        let process = u64::from(*pid) << 32 | u64::from(fd.cast_unsigned());
        let what = ports << 16 | reason << 8 | *decision as u64;
        let ips = [half(&local.ip, 0), half(&local.ip, 1), half(&peer.ip, 0), half(&peer.ip, 1)];
        [number, *at, process, what, ips[0], ips[1], ips[2], ips[3]]
    }

    #[allow(clippy::cast_possible_truncation, reason = "parts of words")]
    fn of(words: &[u64; WORDS]) -> Option<Self> {
        let [_, at, process, what, ips @ ..] = words;
        let ip = |halves: &[u64]| {
            let mut ip = [0; 16];
            for (to, half) in ip.chunks_exact_mut(8).zip(halves) {
                to.copy_from_slice(&half.to_ne_bytes());
            }
            ip
        };
        let code = (what >> 8) as u8;
        Some(Self {
            at: *at,
            decision: Decision::from_code(*what as u8)?,
            reason: if code == 0 { None } else { Some(Reason::from_code(code)?) },
            pid: (process >> 32) as u32,
            fd: (*process as u32).cast_signed(),
            tuple: FourTuple {
                local: Addr { ip: ip(&ips[..2]), port: (what >> 32) as u16 },
                peer: Addr { ip: ip(&ips[2..]), port: (what >> 16) as u16 },
            },
        })
    }
}

/// Whatever words are mixed with others, their sum is another.
fn sum(words: &[u64; WORDS]) -> u64 {
    let mixed =
        |sum: u64, word: &u64| (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    words.iter().fold(0x5348_554e_545f_444e, mixed)
}

#[repr(C)]
#[derive(Debug)]
struct Entry {
    words: [AtomicU64; WORDS],
    sum: AtomicU64,
}

/// The decisions of an endpoint.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Decisions {
    /// Decisions ever noted.
    count: AtomicU64,
    entries: [Entry; ENTRIES],
}

impl Decisions {
    /// Notes a decision. Safe in signal handlers.
    pub fn note(&self, what: &Noted) {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let words = what.words(number);
        let entry = self.entry(number);
        for (to, word) in entry.words.iter().zip(words) {
            to.store(word, Ordering::Relaxed);
        }
        entry.sum.store(sum(&words), Ordering::Relaxed);
    }

    #[allow(clippy::cast_possible_truncation, reason = "taken modulo their number")]
    fn entry(&self, number: u64) -> &Entry {
        &self.entries[number as usize % ENTRIES]
    }

    /// Decisions ever noted: those before the last [`ENTRIES`] are not kept.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// The decisions that are kept, the oldest first.
    pub fn read(&self) -> impl Iterator<Item = Noted> + '_ {
        let end = self.count();
        (end.saturating_sub(ENTRIES as u64)..end).filter_map(|number| {
            let entry = self.entry(number);
            let words = core::array::from_fn(|i| entry.words[i].load(Ordering::Relaxed));
            let is_whole = entry.sum.load(Ordering::Relaxed) == sum(&words) && words[0] == number;
            is_whole.then(|| Noted::of(&words)).flatten()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::{self, Arena};

    fn arena() -> Arena {
        Arena::map(arena::create().unwrap()).unwrap()
    }

    fn noted(at: u64) -> Noted {
        let tuple = FourTuple {
            local: Addr { ip: *b"0123456789abcdef", port: 65_535 },
            peer: Addr { ip: *b"fedcba9876543210", port: 1 },
        };
        Noted {
            at,
            decision: Decision::Ended,
            reason: Some(Reason::Bypassed),
            pid: u32::MAX,
            fd: -1,
            tuple,
        }
    }

    #[test]
    fn what_was_noted_is_read() {
        let arena = arena();
        let decisions = arena.decisions().unwrap();
        assert_eq!(decisions.read().count(), 0);
        let plain =
            Noted { decision: Decision::Listening, reason: None, pid: 7, fd: 3, ..noted(2) };
        decisions.note(&noted(1));
        decisions.note(&plain);
        assert!(decisions.read().eq([noted(1), plain]));
    }

    #[test]
    fn the_last_ones_are_kept() {
        let arena = arena();
        let decisions = arena.decisions().unwrap();
        let all = ENTRIES as u64 + 10;
        (0..all).for_each(|at| decisions.note(&noted(at)));
        assert_eq!(decisions.count(), all);
        assert!(decisions.read().map(|noted| noted.at).eq(10..all));
    }

    /// A thread was stopped while it wrote, and others went on; or was killed.
    #[test]
    fn what_is_half_written_is_passed_over() {
        let arena = arena();
        let decisions = arena.decisions().unwrap();
        (0..3).for_each(|at| decisions.note(&noted(at)));
        let entry = &decisions.entries[1];
        for word in 0..WORDS {
            let right = entry.words[word].fetch_xor(1, Ordering::Relaxed);
            assert!(decisions.read().map(|noted| noted.at).eq([0, 2]), "{word}");
            entry.words[word].store(right, Ordering::Relaxed);
        }
        // A whole one of another round.
        let late = noted(9).words(1 + ENTRIES as u64);
        for (to, word) in entry.words.iter().zip(late) {
            to.store(word, Ordering::Relaxed);
        }
        entry.sum.store(sum(&late), Ordering::Relaxed);
        assert!(decisions.read().map(|noted| noted.at).eq([0, 2]));
    }

    /// The process can write anything there.
    #[test]
    fn what_cannot_be_is_passed_over() {
        let arena = arena();
        let decisions = arena.decisions().unwrap();
        for wrong in [0, 200, 7 | 99 << 8] {
            decisions.note(&noted(1));
            let entry = decisions.entry(decisions.count() - 1);
            let mut words: [u64; WORDS] =
                core::array::from_fn(|i| entry.words[i].load(Ordering::Relaxed));
            words[3] = words[3] >> 16 << 16 | wrong;
            entry.words[3].store(words[3], Ordering::Relaxed);
            entry.sum.store(sum(&words), Ordering::Relaxed);
        }
        assert_eq!(decisions.read().count(), 0);
        decisions.count.store(u64::MAX, Ordering::Relaxed);
        assert_eq!(decisions.read().count(), 0);
    }

    #[test]
    fn threads_note_at_once() {
        let arena = arena();
        let decisions = arena.decisions().unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || {
                    (0..5000).for_each(|n| decisions.note(&noted(thread * 5000 + n)));
                });
            }
            for _ in 0..200 {
                assert!(decisions.read().all(|it| it == noted(it.at)));
            }
        });
        assert_eq!(decisions.count(), 20_000);
        // A thread that stood still in the middle of one may have spoilt the one of the next round.
        assert!(decisions.read().count() > ENTRIES - 4);
    }

    #[test]
    fn arenas_of_older_agents_have_none() {
        let whole = arena::create().unwrap();
        assert!(Arena::map(&whole).unwrap().decisions().is_some());
        let len = arena::LEAST_LEN;
        let short = arena::tests::older(len);
        assert!(Arena::map(&short).unwrap().decisions().is_none());
        assert!(
            crate::memfd::create_sealed("short", len - 4096)
                .is_ok_and(|fd| Arena::map(fd).is_err())
        );
    }
}
