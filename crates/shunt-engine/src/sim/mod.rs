//! A simulator: two ends, their programs, kernel TCP between them, a clock, and a scheduler, all from one history.
//!
//! The ends run the engine's own code. A program is a coroutine (`pace`). It may stop behind each single access to an atomic,
//! and before each thing that a step asks of a port; then the other one goes on, or it is killed there and nothing of the step
//! ever happens. A handler of a signal may run above a copy. What another thread of the same program does waits for the lock.
//!
//! What the library does around the engine is modelled: how a blocking call sleeps (futex, then poll(2) on kernel socket and
//! doorbell), how poll and an edge-triggered epoll look and sleep (`polling`), how an end is announced. Arm words are real ones,
//! and sleep ends by them, by the kernel's events or by time alone: so a wake-up that nobody sends is missed here, too.
//!
//! What must hold (`oracle`): each direction is a queue of bytes; ends and resets are told where TCP tells them; readiness
//! says what calls then find; nobody sleeps who has something to do.
//!
//! Processors that put accesses out of order are not simulated: loom does that.

mod calls;
mod faults;
mod history;
mod oracle;
mod pace;
mod polling;
mod program;
mod tcp;
#[cfg(test)]
mod tests;

use core::cell::{Cell, RefCell};
use core::sync::atomic::Ordering::Relaxed;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

use shunt_shm::arena::Record;
use shunt_shm::region::{Section, Side};
use shunt_wire::clc::Proposal;

use crate::conn::End;
use crate::conn::poll::KernelReadiness;
use crate::handshake::Phase;
pub use history::History;
use pace::{Program, Stopped};
use program::Asleep;
use tcp::{Kept, Pipe, Socket};

/// What a program does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Learns of the peer's doorbells, so that it may send by the ring.
    Meet,
    /// Sends so many bytes.
    Send(usize),
    /// Receives up to so many bytes.
    Receive(usize),
    /// Receives so many bytes, or all up to the end.
    ReceiveAll(usize),
    /// Looks at up to so many bytes.
    Look(usize),
    /// Sends so many bytes without waiting in a call, but in poll(2).
    PollSend(usize),
    /// Receives up to so many bytes that poll(2) has told of.
    PollReceive(usize),
    /// Sends so many bytes without waiting in a call, but in an edge-triggered epoll.
    EdgeSend(usize),
    /// Receives up to so many bytes; where there are none it waits in an edge-triggered epoll.
    EdgeReceive(usize),
    /// Asks for its readiness, and tries whether that is so.
    Check,
    /// Does something else for a while.
    Sleep,
    /// Ends its direction.
    Shut,
    /// Closes the connection.
    Close,
    /// Is killed so many accesses further on.
    Die(u32),
    /// A handler of a signal does what comes next, so many accesses further on, above whatever the program does by then.
    Signal(u32),
    /// The library panics so many accesses further on, if the next call comes so far.
    Panic(u32),
    /// Writes something to a word of the memory that it shares with the other one: the number says which and what. From now on
    /// nothing that it does is right.
    Lie(u32),
}

/// A program, its end, and what the kernel knows of it.
struct Proc {
    record: Record,
    section: Section,
    /// The ring from which it receives.
    rmb: Vec<Cell<u8>>,
    ops: RefCell<VecDeque<Op>>,
    asleep: Cell<Option<Asleep>>,
    /// Bytes of its calls, and how many of them may not be visible yet.
    sent: Cell<u64>,
    unseen: Cell<u64>,
    /// The same of those that it receives, and may not have taken yet.
    received: Cell<u64>,
    untaken: Cell<u64>,
    can_tell: Cell<bool>,
    ending: Cell<Ending>,
    /// Bytes of its calls when the other one was over: how many lay unread there for certain.
    left_unread: Cell<u64>,
    /// A call has failed with `ECONNRESET`.
    is_told: Cell<bool>,
    socket: Kept,
    /// Its completion queue has the connection.
    is_queued: Cell<bool>,
    heard: Cell<KernelReadiness>,
    /// A handler has sent or received something.
    had_handler: Cell<bool>,
    /// Handlers of signals that run.
    handlers: Cell<u32>,
    /// A handler has closed the connection under a call.
    is_to_close: Cell<bool>,
    /// A handler has ended its direction above a step.
    is_to_shut: Cell<bool>,
    /// It is in a step: what that has moved is in doubt.
    in_step: Cell<bool>,
    /// The locks of its directions are held, that of receiving first.
    locks: [Cell<bool>; 2],
    /// It keeps to no protocol.
    is_liar: Cell<bool>,
    /// The library has reset the connection for a panic of its own.
    has_reset: Cell<bool>,
    /// When it first found no room while the other one was gone.
    doubts_since: Cell<u64>,
    /// The agent has woken it, as its peer was killed.
    is_roused: Cell<bool>,
    /// Sleeps beside a liar.
    rests: Cell<u32>,
    /// That one is gone without a word.
    is_orphaned: Cell<bool>,
}

/// How far a program has come with ending its direction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Ending {
    /// It sends.
    Not,
    /// It says so, or has.
    Announced,
    /// The kernel has sent its FIN.
    Shut,
    /// It has closed the connection.
    Closed,
    /// It was killed before it ended anything.
    Killed,
    /// It was killed after that.
    KilledLater,
}

impl Ending {
    /// The program will do nothing more.
    fn is_over(self) -> bool {
        self >= Self::Closed
    }
}

impl Proc {
    fn new(side: Side, ops: &[Op]) -> Self {
        let record = Record::default();
        record.id.side.store(side as u32, Relaxed);
        record.id.phase.store(Phase::Active as u32, Relaxed);
        let section = Section::default();
        if side == Side::Client {
            section.setup.state.store(Proposal::Active as u32, Relaxed);
        }
        Self {
            record,
            section,
            rmb: vec![Cell::new(0); World::RING],
            ops: RefCell::new(ops.iter().copied().collect()),
            asleep: Cell::new(None),
            sent: Cell::new(0),
            unseen: Cell::new(0),
            received: Cell::new(0),
            untaken: Cell::new(0),
            can_tell: Cell::new(false),
            ending: Cell::new(Ending::Not),
            left_unread: Cell::new(0),
            is_told: Cell::new(false),
            socket: Kept::default(),
            is_queued: Cell::new(false),
            heard: Cell::new(KernelReadiness::Nothing),
            had_handler: Cell::new(false),
            handlers: Cell::new(0),
            is_to_close: Cell::new(false),
            is_to_shut: Cell::new(false),
            in_step: Cell::new(false),
            locks: Default::default(),
            is_liar: Cell::new(false),
            has_reset: Cell::new(false),
            doubts_since: Cell::new(0),
            is_roused: Cell::new(false),
            rests: Cell::new(0),
            is_orphaned: Cell::new(false),
        }
    }
}

/// What a direction carries at this place.
fn byte(who: usize, at: u64) -> u8 {
    let mixed = (at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed.to_le_bytes()[7] ^ u8::try_from(who).unwrap()
}

/// All of it.
struct World {
    procs: [Proc; 2],
    /// From the first program to the second, and back.
    pipes: [Pipe; 2],
    now: Cell<u64>,
    choices: RefCell<VecDeque<u8>>,
}

thread_local! {
    static HERE: RefCell<Option<Rc<World>>> = const { RefCell::new(None) };
}

impl World {
    /// Length of a ring.
    const RING: usize = 4096;
    /// Looks of the clock while nobody gets anywhere, until all that wait wait for good.
    const PATIENCE: u32 = 8;
    /// Time between two of them, in nanoseconds.
    const LOOK: u64 = 40_000_000;

    fn new(history: &History) -> Self {
        Self {
            procs: [
                Proc::new(Side::Client, &history.client),
                Proc::new(Side::Server, &history.server),
            ],
            pipes: <[Pipe; 2]>::default(),
            now: Cell::new(1 << 30),
            choices: RefCell::new(history.choices.iter().copied().collect()),
        }
    }

    /// That of this thread.
    fn here() -> Rc<Self> {
        HERE.with_borrow(|here| here.clone().unwrap())
    }

    fn end(&self, who: usize) -> End<'_> {
        let (me, peer) = (&self.procs[who], &self.procs[1 - who]);
        End {
            record: &me.record,
            mine: &me.section,
            theirs: &peer.section,
            ring: Self::RING as u64,
        }
    }

    const fn socket(&self, who: usize) -> Socket<'_> {
        Socket { world: self, who }
    }

    /// One in so many.
    fn choose(&self, of: u8) -> bool {
        self.choices.borrow_mut().pop_front().is_some_and(|choice| choice % of == 0)
    }

    /// Which program comes first, and after how many points it stops: few as a rule.
    fn turn(&self) -> (usize, u32) {
        let Some(choice) = self.choices.borrow_mut().pop_front() else { return (0, u32::MAX) };
        let gap = match u32::from(choice & 0x7f) {
            few @ 0..64 => few,
            more @ 64..112 => 64 + (more - 64) * 8,
            _ => u32::MAX,
        };
        (usize::from(choice >> 7), gap)
    }

    fn can_go_on(&self, who: usize) -> bool {
        let me = &self.procs[who];
        !me.ending.get().is_over()
            && me.asleep.get().is_none_or(|asleep| self.is_woken(who, &asleep))
    }

    /// SIGKILL, wherever it is.
    fn dies(&self, who: usize) {
        let me = &self.procs[who];
        me.asleep.set(None);
        self.notes_end(who);
        let is_first = me.ending.get() == Ending::Not;
        me.ending.set(if is_first { Ending::Killed } else { Ending::KilledLater });
        self.socket(who).closes();
        let peer = &self.procs[1 - who];
        peer.is_roused.set(peer.asleep.get().is_some());
    }

    /// Something else whenever a program has got anywhere.
    fn progress(&self) -> (u64, usize, [Ending; 2]) {
        let of = |me: &Proc| {
            let marks = me.record.rx.marks.load(Relaxed) + me.record.tx.marks.load(Relaxed);
            let repeats =
                me.record.tx.replay.load(Relaxed) + u64::from(me.record.rx.again.load(Relaxed));
            me.sent.get() + me.received.get() + u64::from(marks) + repeats
        };
        let left = self.procs.each_ref().map(|me| me.ops.borrow().len());
        (
            of(&self.procs[0]) + of(&self.procs[1]),
            left[0] + left[1],
            self.procs.each_ref().map(|me| me.ending.get()),
        )
    }

    /// Runs both programs until neither can go on.
    fn runs(&self, programs: &mut [Program; 2]) {
        let (mut idle, mut before) = (0, self.progress());
        let mut is_done = [false; 2];
        let mut states = [0, 1].map(|end| self.state(end));
        while idle < Self::PATIENCE {
            let (first, gap) = self.turn();
            let can = |who: &usize| !is_done[*who] && self.can_go_on(*who);
            if let Some(who) = [first, 1 - first].into_iter().find(can) {
                match programs[who].goes_on(gap) {
                    Stopped::Between => {}
                    Stopped::Done => is_done[who] = true,
                    Stopped::Dies => self.dies(who),
                }
                states = self.have_moved(states, gap);
                continue;
            }
            (0..2).for_each(|who| self.rests(who));
            let is_doomed = |who: &usize| {
                programs[*who].is_doomed() && !self.procs[*who].ending.get().is_over()
            };
            if let Some(who) = (0..2).find(is_doomed) {
                self.dies(who);
                continue;
            }
            let now = self.progress();
            idle = if now == before { idle + 1 } else { 0 };
            before = now;
            self.passes_time();
        }
        (0..2).for_each(|who| self.rests_for_good(who));
    }

    fn passes_time(&self) {
        self.now.set(self.now.get() + Self::LOOK);
    }
}

/// Runs a history. Returns at how many points a program could have stopped.
///
/// # Panics
/// When something does not hold.
fn run(history: &History) -> u32 {
    let world = Rc::new(World::new(history));
    HERE.set(Some(Rc::clone(&world)));
    pace::begins();
    let mut programs = [0, 1].map(|who| Program::new(who, move || World::here().lives(who)));
    let result = catch_unwind(AssertUnwindSafe(|| world.runs(&mut programs)));
    drop(programs);
    pace::ends();
    HERE.set(None);
    match result {
        Ok(()) => pace::points(),
        Err(failure) => resume_unwind(failure),
    }
}
