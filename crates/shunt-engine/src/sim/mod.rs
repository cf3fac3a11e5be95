//! A simulator: two programs, their connections, kernel TCP between them, an agent, a clock, and a scheduler, all from one history.
//!
//! The ends run the engine's own code. A program is a coroutine (`pace`). It may stop behind each single access to an atomic,
//! and before each thing that a step asks of a port; then the other one goes on, or it is killed there and nothing of the step
//! ever happens. A handler of a signal may run above a copy. What another thread of the same program does waits for the lock.
//!
//! What the library does around the engine is modelled: how a blocking call sleeps (futex, then poll(2) on kernel socket and
//! doorbell), how poll and an edge-triggered epoll look and sleep (`polling`), how an end is announced. Arm words are real ones,
//! and sleep ends by them, by the kernel's events or by time alone: so a wake-up that nobody sends is missed here, too.
//!
//! Connections come about by the engine's course of the handshake, with the real table of proposals and the real slots
//! (`handshake`), several at a time and one after the other in the same memory (`machine`); or both ends begin agreed.
//!
//! What must hold (`oracle`, `wakes`): each direction is a queue of bytes; ends and resets are told where TCP tells them; readiness
//! says what calls then find; nobody sleeps who has something to do.
//!
//! Processors that put accesses out of order are not simulated: loom does that.

mod calls;
mod faults;
mod handshake;
mod history;
mod machine;
mod oracle;
mod pace;
mod polling;
mod program;
mod tcp;
#[cfg(test)]
mod tests;
mod wakes;

use core::cell::Cell;
use core::ops::Deref;
use core::sync::atomic::Ordering::Relaxed;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

use shunt_shm::arena::Record;
use shunt_shm::region::{Section, Side};

use crate::conn::End;
use crate::conn::poll::KernelReadiness;
use handshake::Shaking;
pub use history::History;
use machine::{Machine, Mind, Place};
use pace::Program;
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
    /// Connects; from now on this is the connection that it acts on.
    Connect,
    /// The same past the library.
    ConnectPlain,
    /// Accepts, and acts on that connection.
    Accept,
    /// The same, and looks for the proposal at once.
    AcceptNow,
    /// The same past the library.
    AcceptPlain,
    /// Makes so many calls that find nothing, for so long, that it gives its proposal up.
    Tire,
    /// The agent is killed.
    AgentDies,
    /// It is there again.
    AgentReturns,
    /// Acts on the descriptor of this number.
    On(usize),
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

/// A program's end of a connection, and what the kernel knows of it.
struct Proc {
    mind: Rc<Mind>,
    record: Record,
    /// What it writes in the link group, and the ring from which it receives: memory that connections have one after the other.
    section: Rc<Section>,
    rmb: Rc<[Cell<u8>]>,
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
    /// Calls on it that are under way.
    calls: Cell<u32>,
    /// A handler has closed the connection under a call.
    is_to_close: Cell<bool>,
    /// A handler has ended its direction above a step.
    is_to_shut: Cell<bool>,
    /// It is in a step: what that has moved is in doubt.
    in_step: Cell<bool>,
    /// The locks of its directions are held, that of receiving first.
    locks: [Cell<bool>; 2],
    /// The library has reset the connection for a panic of its own.
    has_reset: Cell<bool>,
    /// The kernel has sent RST for that.
    is_aborted: Cell<bool>,
    /// When it first found no room while the other one was gone.
    doubts_since: Cell<u64>,
    /// That one is gone without a word.
    is_orphaned: Cell<bool>,
    /// How far it has come in the handshake.
    shaking: Shaking,
    /// Points that had been passed when its step began.
    step_began: Cell<u32>,
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

/// What a program knows beside this connection.
impl Deref for Proc {
    type Target = Mind;

    fn deref(&self) -> &Mind {
        &self.mind
    }
}

impl Proc {
    /// In this place of the link group.
    fn new(side: Side, mind: &Rc<Mind>, place: &Place) -> Self {
        let record = Record::default();
        record.id.side.store(side as u32, Relaxed);
        let (section, rmb) = place.of(side);
        Self {
            mind: Rc::clone(mind),
            record,
            section,
            rmb,
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
            calls: Cell::new(0),
            is_to_close: Cell::new(false),
            is_to_shut: Cell::new(false),
            in_step: Cell::new(false),
            locks: Default::default(),
            has_reset: Cell::new(false),
            is_aborted: Cell::new(false),
            doubts_since: Cell::new(0),
            is_orphaned: Cell::new(false),
            shaking: Shaking::default(),
            step_began: Cell::new(0),
        }
    }
}

/// A connection.
struct World {
    machine: Rc<Machine>,
    /// Its number among those of the history.
    conn: usize,
    /// Its place in the link group, if it was given one.
    slot: Option<usize>,
    procs: [Proc; 2],
    /// From the first program to the second, and back.
    pipes: [Pipe; 2],
}

/// What all connections share.
impl Deref for World {
    type Target = Machine;

    fn deref(&self) -> &Machine {
        &self.machine
    }
}

impl World {
    /// Length of a ring.
    const RING: usize = 4096;
    /// Looks of the clock while nobody gets anywhere, until all that wait wait for good.
    const PATIENCE: u32 = 8;
    /// Time between two of them, in nanoseconds.
    const LOOK: u64 = 40_000_000;

    fn new(machine: &Rc<Machine>, conn: usize, slot: Option<usize>) -> Self {
        let [client, server] = &machine.minds;
        let nowhere = Place::default();
        let place = slot.map_or(&nowhere, |slot| &machine.group.places[slot]);
        Self {
            machine: Rc::clone(machine),
            conn,
            slot,
            procs: [Proc::new(Side::Client, client, place), Proc::new(Side::Server, server, place)],
            pipes: <[Pipe; 2]>::default(),
        }
    }

    /// What a direction carries at this place: something else on each connection.
    fn byte(&self, who: usize, at: u64) -> u8 {
        let place = at + 1 + self.conn as u64 * 1_000_003;
        let mixed = place.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed.to_le_bytes()[7] ^ u8::try_from(who).unwrap()
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

    /// Something else whenever a program has got anywhere with it.
    fn progress(&self) -> (u64, [Ending; 2]) {
        let of = |me: &Proc| {
            let marks = me.record.rx.marks.load(Relaxed) + me.record.tx.marks.load(Relaxed);
            let repeats =
                me.record.tx.replay.load(Relaxed) + u64::from(me.record.rx.again.load(Relaxed));
            me.sent.get() + me.received.get() + u64::from(marks) + repeats
        };
        (of(&self.procs[0]) + of(&self.procs[1]), self.procs.each_ref().map(|me| me.ending.get()))
    }
}

/// Runs a history. Returns at how many points a program could have stopped.
///
/// # Panics
/// When something does not hold.
fn run(history: &History) -> u32 {
    let machine = Machine::new(history);
    machine.is_here();
    pace::begins();
    let mut programs = [0, 1].map(|who| Program::new(who, move || Machine::here().lives(who)));
    let result = catch_unwind(AssertUnwindSafe(|| machine.runs(&mut programs)));
    drop(programs);
    pace::ends();
    machine.is_over();
    match result {
        Ok(()) => pace::points(),
        Err(failure) => resume_unwind(failure),
    }
}
