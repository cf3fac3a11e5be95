//! What goes wrong in a program: handlers of signals above its calls, panics of the library, and a program that lies.

use core::sync::atomic::Ordering::{Relaxed, Release};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use shunt_shm::arena::UNDECIDED;
use shunt_shm::region::Section;
use shunt_shm::sync::{AtomicU32, AtomicU64};

use super::pace::{self, Panicked, at_once, point};
use super::program::Doing;
use super::{Ending, World, other};
use crate::handshake::Phase;
use crate::kernel::KernelSocket;

/// What a peer can find to write: the rest is made of what is there.
const WORDS: [u64; 6] = [0, 1, 2, 3, 1 << 31, u64::MAX];

/// A word of either width.
enum Word<'a> {
    Short(&'a AtomicU32),
    Long(&'a AtomicU64),
}

impl Word<'_> {
    fn get(&self) -> u64 {
        match self {
            Self::Short(word) => word.load(Relaxed).into(),
            Self::Long(word) => word.load(Relaxed),
        }
    }

    #[allow(clippy::cast_possible_truncation, reason = "the low half is as good")]
    fn set(&self, value: u64) {
        match self {
            Self::Short(word) => word.store(value as u32, Relaxed),
            Self::Long(word) => word.store(value, Relaxed),
        }
    }
}

/// Where the two are among [`words`] by which their owner is woken.
const ARMS: usize = 10;

/// All words of a section.
fn words(section: &Section) -> [Word<'_>; 20] {
    let Section { prod, cons, ctl, setup } = section;
    [
        Word::Long(&prod.prod),
        Word::Long(&cons.cons),
        Word::Short(&prod.marks),
        Word::Short(&cons.marks_passed),
        Word::Long(&prod.mark_at[0]),
        Word::Long(&prod.mark_at[1]),
        Word::Long(&prod.base),
        Word::Short(&prod.fin),
        Word::Short(&ctl.closed),
        Word::Short(&ctl.handed_over),
        Word::Short(&ctl.rx_arm),
        Word::Short(&ctl.tx_arm),
        Word::Short(&prod.grants),
        Word::Short(&ctl.window),
        Word::Short(&ctl.queue),
        Word::Short(&setup.state),
        Word::Short(&prod.place),
        Word::Long(&ctl.accepted),
        Word::Short(&setup.done),
        Word::Short(&setup.generation),
    ]
}

impl World {
    /// True where one of the two keeps to no protocol: then what they have sent each other cannot be told.
    pub fn is_lied_to(&self, who: usize) -> bool {
        self.procs[other(who)].mind.is_liar.get()
    }

    /// Neither of the two lies.
    pub fn is_honest(&self) -> bool {
        !self.is_in_doubt.get() && self.procs.iter().all(|me| !me.mind.is_liar.get())
    }

    /// Writes something to a word of its own, or to one by which the other one is woken.
    pub fn lies(&self, who: usize, number: u32) {
        self.procs[who].mind.is_liar.set(true);
        at_once(|| {
            let n = number as usize;
            let [mine, theirs] = [who, other(who)].map(|owner| words(&self.procs[owner].section));
            let words = mine.len();
            let word = if n % 4 == 3 { &theirs[ARMS + n / 4 % 2] } else { &mine[n / 4 % words] };
            let (what, now) = (n / 4 / words % 12, word.get());
            word.set(match what {
                0 => now.wrapping_add(1),
                1 => now.wrapping_sub(1),
                2 => now.wrapping_add(2),
                3 => now.wrapping_add(Self::RING as u64),
                4 => now.wrapping_sub(Self::RING as u64 / 2),
                5 => self.byte(who, u64::from(number)).into(),
                other => WORDS[other - 6],
            });
        });
    }

    /// The other one has broken the protocol: as the library's `stream::broken` has it.
    pub fn breaks_off(&self, who: usize) {
        if !self.is_lied_to(who) && self.may_break(who) {
            self.is_in_doubt.set(true);
        }
        // A liar may have written over what it goes by itself.
        let is_liar = self.procs[who].mind.is_liar.get();
        let is_meant = self.is_lied_to(who) || is_liar || self.is_in_doubt.get();
        assert!(is_meant, "{who} takes the other one for a liar");
        let me = &self.procs[who];
        me.record.id.phase.swap(Phase::Broken as u32, Relaxed);
        me.section.prod.fin.store(1, Release);
        self.socket(who).shut();
        self.tells_own(who);
    }

    /// Its calls fail from now on.
    pub fn is_broken(&self, who: usize) -> bool {
        at_once(|| self.end(who).phase() == Phase::Broken)
    }

    /// The library has panicked in a call that has moved so many bytes, and that the program has not been told of: as its
    /// `stream::in_doubt` has it.
    pub fn contains(&self, who: usize, doing: &mut Doing, was_in_step: bool) {
        if was_in_step || doing.moved > 0 {
            return pace::uninterrupted(|| self.resets(who));
        }
        // Nothing is in doubt: the kernel does the call. Another panic there leaves something so.
        let is_given_back = self.contained(who, || self.gives_back(who));
        let is_the_kernels = || self.linked(who).is_none_or(|end| end.is_the_kernels());
        if !is_given_back || !at_once(is_the_kernels) {
            return pace::uninterrupted(|| self.resets(who));
        }
        // Others, or the call below a handler, would read in the ring beside it.
        let is_alone = self.procs[who].calls.get() == 1 && !self.has_relatives(who);
        let is_left = doing.op.moves() && is_alone && !self.is_broken(who);
        // A handler that came back to the ring just then would read in it beside the kernel's call; that is not modelled.
        let moves = || pace::uninterrupted(|| self.moves_past(who, doing));
        if is_left && !self.contained(who, moves) {
            pace::uninterrupted(|| self.resets(who));
        }
    }

    /// Does this; false where the library panics in it.
    pub fn contained(&self, who: usize, what: impl FnOnce()) -> bool {
        let in_step = &self.procs[who].in_step;
        let was_in_step = in_step.get();
        let result = catch_unwind(AssertUnwindSafe(what));
        in_step.set(was_in_step);
        match result {
            Err(why) if !why.is::<Panicked>() => resume_unwind(why),
            result => result.is_ok(),
        }
    }

    /// The library resets the connection.
    pub fn resets(&self, who: usize) {
        let me = &self.procs[who];
        me.has_reset.set(true);
        let pending = at_once(|| me.record.tx.replay.load(Relaxed) & !UNDECIDED);
        me.cut_off.set(pending + self.kept_from(other(who)));
        me.record.id.phase.swap(Phase::Broken as u32, Relaxed);
        self.end(who).reset(|| {
            point();
            self.notes_end(who);
            me.is_aborted.set(true);
            self.socket(who).aborts();
            let is_first = me.ending.get() == Ending::Not;
            me.ending.set(if is_first { Ending::Killed } else { Ending::KilledLater });
        });
        point();
        self.tells_of_end(who);
        self.tells_own(who);
    }
}
