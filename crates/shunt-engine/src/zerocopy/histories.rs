//! Histories of a sender without copies and its receiver. Whatever they do, the bytes that come are those that were sent, each
//! number is told once, and no buffer is given back whose bytes are still read: the program overwrites it at once.

use std::collections::VecDeque;

use proptest::collection::vec;
use proptest::prelude::*;

use crate::zerocopy::granting::Put;
use crate::zerocopy::model::{Pair, Process, Reader};
use crate::zerocopy::numbers::Outcome;
use crate::zerocopy::received::Use;

/// Length of a buffer of the program's.
const BUFFER: usize = 8192;
/// So many buffers lie in registered memory, and as many in private memory.
const BUFFERS: usize = 8;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Sends so much of a buffer, if it is free: of registered memory, or a private one.
    Send { is_private: bool, buffer: usize, len: usize },
    /// Receives up to so many bytes, or looks at them, or passes them over.
    Receive(u64, u8),
    /// The sender takes everything back, while the receiver copies if that comes next.
    TakeBack { while_copied: bool },
    /// Time passes.
    Time(u32),
    /// Asks the error queue.
    Ask,
    /// A relative grants some of a buffer, and is killed before the cursor covers it.
    Dies { len: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let len = || prop_oneof![1..200_usize, 4000..=BUFFER];
    prop_oneof![
        6 => (any::<bool>(), 0..BUFFERS, len())
            .prop_map(|(is_private, buffer, len)| Step::Send { is_private, buffer, len }),
        6 => (1..12_000_u64, 0..6_u8).prop_map(|(n, how)| Step::Receive(n, how)),
        1 => any::<bool>().prop_map(|while_copied| Step::TakeBack { while_copied }),
        1 => (1..20_u32).prop_map(Step::Time),
        4 => Just(Step::Ask),
        1 => len().prop_map(|len| Step::Dies { len }),
    ]
}

/// What the program knows.
struct Program<'p, 'a> {
    process: &'p Process<'a>,
    reader: Reader<'p, 'a>,
    /// Bytes on their way.
    sent: VecDeque<u8>,
    /// Which buffer the next calls of which nothing was told are about.
    calls: VecDeque<usize>,
    told: u32,
    fresh: u8,
}

impl Program<'_, '_> {
    fn is_free(&self, address: usize) -> bool {
        !self.calls.contains(&address)
    }

    fn sends(&mut self, address: usize, len: usize) {
        let (process, pair) = (self.process, self.process.pair.unwrap());
        if !self.is_free(address) || pair.numbers().begin(false, false, || ()).is_err() {
            return;
        }
        while (self.sent.len() + len) as u64 > Pair::RING / 2 {
            self.receives(Use::Copied, 5000);
        }
        for byte in &mut process.memory.borrow_mut()[address..address + len] {
            self.fresh = self.fresh.wrapping_mul(5).wrapping_add(1);
            *byte = self.fresh;
        }
        let (mut outcome, mut done) = (Outcome::default(), 0);
        while done < len {
            let (put, n) = process.puts(address + done, len - done, &mut outcome);
            assert!(n > 0, "there is room");
            if done + n == len {
                pair.numbers().number_before(&mut outcome, put);
                self.calls.push_back(address);
            }
            let is_pinned = address >= Process::PRIVATE && matches!(put, Put::Granted(_));
            process.publishes(n, is_pinned);
            self.sent.extend(process.at(address + done, n));
            done += n;
        }
        if outcome.is_unknown && address < Process::PRIVATE {
            pair.granting().offer(process, Process::REGION, false);
        }
    }

    fn receives(&mut self, what: Use, n: u64) {
        let got = self.reader.does(what, n);
        let expected: Vec<_> = self.sent.iter().copied().take(got.len()).collect();
        assert!(what == Use::Dropped || got == expected, "other bytes have come");
        if what != Use::Seen {
            self.sent.drain(..got.len());
        }
    }

    fn asks(&mut self) {
        let (process, numbers) = (self.process, self.process.pair.unwrap().numbers());
        let ready = numbers.await_notice(Some(process)) != 0;
        let notice = numbers.take(false, Some(process));
        assert_eq!(ready, notice.is_some(), "readiness says what the call finds");
        let Some(notice) = notice else { return };
        assert_eq!(notice.first, self.told, "in order, and none twice");
        self.told = notice.last + 1;
        for _ in notice.first..=notice.last {
            let address = self.calls.pop_front().expect("told of a call that was made");
            if self.is_free(address) {
                process.scribbles(address, BUFFER);
            }
        }
    }

    fn does(&mut self, step: Step) {
        let (process, pair) = (self.process, self.process.pair.unwrap());
        match step {
            Step::Send { is_private, buffer, len } => {
                let first = if is_private { Process::PRIVATE } else { 0 };
                self.sends(first + buffer * BUFFER, len);
            }
            Step::Receive(n, 0) => self.receives(Use::Seen, n),
            Step::Receive(n, 1) => self.receives(Use::Dropped, n),
            Step::Receive(n, _) => self.receives(Use::Copied, n),
            Step::TakeBack { while_copied } => {
                if while_copied {
                    self.reader.loses.set(true);
                    self.receives(Use::Seen, 5000);
                    self.reader.loses.set(false);
                } else {
                    assert!(pair.granting().take_back(process));
                }
            }
            Step::Time(by) => process.time.set(process.time.get() + by),
            Step::Ask => self.asks(),
            Step::Dies { len } => {
                // Of a buffer that no call uses.
                process.puts(BUFFERS * BUFFER, len, &mut Outcome::default());
            }
        }
    }
}

proptest! {
    #[test]
    fn buffers_come_back_once_and_never_while_they_are_read(
        steps in vec(step(), 1..120),
        most in prop_oneof![Just(usize::MAX), 3000..9000_usize],
    ) {
        let pair = Pair::default();
        let process = Process { most, ..Process::with_pipes(&pair) };
        let reader = Reader::of(&process);
        let mut program = Program {
            process: &process,
            reader,
            sent: VecDeque::new(),
            calls: VecDeque::new(),
            told: 0,
            fresh: 1,
        };
        steps.into_iter().for_each(|step| program.does(step));
        while !program.sent.is_empty() {
            program.receives(Use::Copied, u64::MAX);
        }
        // All is passed: nothing is granted any more, and all numbers are told.
        for _ in 0..=shunt_shm::completions::RUNS {
            program.asks();
        }
        assert!(program.calls.is_empty());
        // As the next send does.
        pair.granting().withdraw();
        assert!(!pair.granting().is_open());
    }
}
