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
//! (`handshake`), several at a time and one after the other in the same memory (`machine`, `group`); or both ends begin agreed.
//!
//! What must hold (`oracle`, `wakes`): each direction is a queue of bytes; ends and resets are told where TCP tells them; readiness
//! says what calls then find; nobody sleeps who has something to do.
//!
//! Processors that put accesses out of order are not simulated: loom does that.

mod calls;
mod counting;
mod endings;
mod families;
mod faults;
mod forks;
mod group;
mod handshake;
mod history;
mod leaving;
mod machine;
mod mind;
mod options;
mod oracle;
mod pace;
mod polling;
mod program;
mod scheduler;
mod sleep;
mod tcp;
mod telling;
#[cfg(test)]
mod tests;
mod wakes;
mod zerocopy;

use core::cell::{Cell, OnceCell, RefCell};
use core::ops::{Deref, Range};
use core::sync::atomic::Ordering::Relaxed;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

use shunt_shm::arena::{Mode, Record};
use shunt_shm::grants::Grants;
use shunt_shm::region::{Section, Side};

use crate::conn::End;
use crate::conn::poll::KernelReadiness;
use counting::Counted;
use forks::{Moved, PROGRAMS};
use group::Place;
use handshake::Shaking;
pub use history::History;
use machine::Machine;
use mind::Mind;
use pace::Program;
use tcp::{Kept, Pipe, Socket};
use zerocopy::{Lends, Sharing, Taste};

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
    /// Passes up to so many bytes over (`MSG_TRUNC`).
    Skip(usize),
    /// Sends so many bytes of registered memory without copies.
    Grant(usize),
    /// The same of private memory.
    Pin(usize),
    /// Sends so many bytes of registered memory in several buffers: some without copies, and small ones between them with copies.
    Parts(usize),
    /// Asks the error queue which buffers are its own again, and changes them.
    Hear,
    /// The same until all are.
    HearAll,
    /// Maps nothing more of the other one's memory.
    Refuse,
    /// Takes its registered memory for something else (munmap(2)), whether it was told or not.
    Unmap,
    /// Has its memory and its pipes known to the other one.
    Share,
    /// Sends so many bytes without waiting in a call, but in poll(2).
    PollSend(usize),
    /// Receives up to so many bytes that poll(2) has told of.
    PollReceive(usize),
    /// Sends so many bytes without waiting in a call, but in an edge-triggered epoll.
    EdgeSend(usize),
    /// Receives up to so many bytes; where there are none it waits in an edge-triggered epoll.
    EdgeReceive(usize),
    /// Receives so many bytes in an edge-triggered epoll, and each time as many as `FIONREAD` has counted.
    CountReceive(usize),
    /// Asks for its readiness, and tries whether that is so.
    Check,
    /// Does something else for a while.
    Sleep,
    /// Ends its direction.
    Shut,
    /// Ends the other direction: it reads nothing more, but what comes all the same.
    ShutReading,
    /// Both at once.
    ShutBoth,
    /// Says how many bytes are worth telling of (`SO_RCVLOWAT`).
    LowWater(usize),
    /// Says how large its buffers are to be (`SO_SNDBUF`, `SO_RCVBUF`).
    Buffers(usize),
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
    /// The same, and looks for the proposal only after some calls.
    AcceptLate,
    /// The same past the library.
    AcceptPlain,
    /// Makes so many calls that find nothing, for so long, that it gives its proposal up.
    Tire,
    /// The agent is killed.
    AgentDies,
    /// It is there again.
    AgentReturns,
    /// From now on it gets no more memory, nor descriptors.
    Starve,
    /// It gets some again.
    Feed,
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
    /// Stands still so many accesses further on, until nobody else can go on.
    Stall(u32),
    /// Leaves the library, if it has not used the connection yet: all its calls are the kernel's from now on.
    Bypass,
    /// Forks. The child does so many of the operations that come next.
    Fork(usize),
    /// Sends a byte of urgent data: the connection leaves the ring.
    Urgent,
    /// Asks for what only the kernel can do: the connection is on TCP then.
    Leave,
    /// Becomes a program without the library.
    Exec,
    /// Starts such a program, which does so many of the operations that come next, and waits for its end.
    Spawn(usize),
}

/// One end of a connection: what all programs share that hold it, and what the kernel knows of it.
struct Held {
    record: Record,
    /// What it writes in the link group, and the ring from which it receives: memory that connections have one after the other.
    section: Rc<Section>,
    rmb: Rc<[Cell<u8>]>,
    /// What of that lies elsewhere.
    entries: Rc<OnceCell<Box<Grants>>>,
    /// Its sends without copies, and what it is willing to map of the other one's.
    lends: OnceCell<Box<Lends>>,
    taste: Taste,
    /// Bytes of its calls, and how many of them may not be visible yet.
    sent: Cell<u64>,
    unseen: Cell<u64>,
    /// The same of those that it receives, and may not have taken yet.
    received: Cell<u64>,
    untaken: Cell<u64>,
    /// Those of the step that is under way.
    placed: Cell<Moved>,
    claimed: Cell<Moved>,
    ending: Cell<Ending>,
    /// Bytes of its calls when the other one was over: how many lay unread there for certain.
    left_unread: Cell<u64>,
    /// Bytes that it has sent by the ring, and will not send once more though the other one may not have had them.
    left_behind: RefCell<Vec<Range<u64>>>,
    /// A call has failed with `ECONNRESET`.
    is_told: Cell<bool>,
    socket: Kept,
    /// Bytes that it was to send once more when it reset the connection.
    cut_off: Cell<u64>,
    /// Bytes of the other one's calls when the kernel began to answer more of them with RST: it has ended both directions.
    refuses_from: Cell<Option<u64>>,
    /// Some of those before may come once more after that.
    is_owed: Cell<bool>,
    /// One of several programs that hold it has handed it over: the others do not read beside the new one.
    is_handed_over: Cell<bool>,
    /// The library has reset the connection for a panic of its own.
    has_reset: Cell<bool>,
    /// The kernel has sent RST for that.
    is_aborted: Cell<bool>,
    /// A program was killed before it could tell of bytes, or of room, and others hold the end.
    untold: [Cell<bool>; 2],
}

/// A program's part in an end.
struct Proc {
    mind: Rc<Mind>,
    held: Rc<Held>,
    sharing: Sharing,
    counted: Counted,
    /// It has left the library.
    is_past: Cell<bool>,
    /// It does not hold the end: it was killed, has closed its descriptor, or is not forked yet.
    is_gone: Cell<bool>,
    can_tell: Cell<bool>,
    /// Its completion queue has the connection.
    is_queued: Cell<bool>,
    heard: Cell<KernelReadiness>,
    /// It has armed the word of a direction, and has not slept since; or sleeps.
    has_armed: [Cell<bool>; 2],
    /// Such a word was taken.
    is_woken: Cell<bool>,
    /// Calls on it that are under way.
    calls: Cell<u32>,
    /// A handler has closed the connection under a call.
    is_to_close: Cell<bool>,
    /// It has let go of the connection, as the last one that held it.
    has_let_go: Cell<bool>,
    /// A handler has ended its direction above a step.
    is_to_shut: Cell<bool>,
    /// The same of the other direction.
    is_to_shut_reading: Cell<bool>,
    /// A handler has left the ring above a step.
    is_to_leave: Cell<bool>,
    /// It tells of buffers that may be no other than they were.
    has_set_buffers: Cell<bool>,
    /// Bytes that had come when its step began, with those that it has received.
    there: Cell<u64>,
    /// It leaves a ring that it has left before.
    leaves_again: Cell<bool>,
    /// It is in a step: what that has moved is in doubt.
    in_step: Cell<bool>,
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

/// What its end has.
impl Deref for Proc {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.held
    }
}

/// The end that a program holds: those of the client's have even numbers.
const fn side(who: usize) -> usize {
    who % 2
}

/// The other end, or the first program that has held it.
const fn other(who: usize) -> usize {
    1 - side(who)
}

impl Held {
    /// In this place of the link group.
    fn new(side: Side, place: &Place) -> Self {
        let record = Record::default();
        record.id.side.store(side as u32, Relaxed);
        record.id.mode.store(Mode::Attach as u32, Relaxed);
        let (section, rmb, entries) = place.of(side);
        Self {
            record,
            section,
            rmb,
            entries,
            lends: OnceCell::new(),
            taste: Taste::default(),
            sent: Cell::new(0),
            unseen: Cell::new(0),
            received: Cell::new(0),
            untaken: Cell::new(0),
            placed: Cell::default(),
            claimed: Cell::default(),
            ending: Cell::new(Ending::Not),
            left_unread: Cell::new(0),
            left_behind: RefCell::default(),
            is_told: Cell::new(false),
            socket: Kept::default(),
            cut_off: Cell::new(0),
            refuses_from: Cell::new(None),
            is_owed: Cell::new(false),
            is_handed_over: Cell::new(false),
            has_reset: Cell::new(false),
            is_aborted: Cell::new(false),
            untold: Default::default(),
        }
    }
}

impl Proc {
    fn new(mind: &Rc<Mind>, held: &Rc<Held>) -> Self {
        Self {
            mind: Rc::clone(mind),
            held: Rc::clone(held),
            sharing: Sharing::default(),
            counted: Counted::default(),
            is_past: Cell::new(false),
            is_gone: Cell::new(true),
            can_tell: Cell::new(false),
            is_queued: Cell::new(false),
            heard: Cell::new(KernelReadiness::Nothing),
            has_armed: Default::default(),
            is_woken: Cell::new(false),
            calls: Cell::new(0),
            is_to_close: Cell::new(false),
            has_let_go: Cell::new(false),
            is_to_shut: Cell::new(false),
            is_to_shut_reading: Cell::new(false),
            is_to_leave: Cell::new(false),
            has_set_buffers: Cell::new(false),
            there: Cell::new(0),
            leaves_again: Cell::new(false),
            in_step: Cell::new(false),
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
    procs: [Proc; PROGRAMS],
    /// From the first program to the second, and back.
    pipes: [Pipe; 2],
    /// A program was killed while it read pipes: nobody knows what has come, and the other one is taken for a liar.
    is_in_doubt: Cell<bool>,
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
        let nowhere = Place::default();
        let place = slot.map_or(&nowhere, |slot| &machine.group.places[slot]);
        let held = [Side::Client, Side::Server].map(|side| Rc::new(Held::new(side, place)));
        let procs = core::array::from_fn(|who| Proc::new(&machine.minds[who], &held[side(who)]));
        (0..2).for_each(|who| procs[who].begins_to_hold(who));
        let machine = Rc::clone(machine);
        let (pipes, is_in_doubt) = (<[Pipe; 2]>::default(), Cell::new(false));
        Self { machine, conn, slot, procs, pipes, is_in_doubt }
    }

    /// What a direction carries at this place: something else on each connection.
    fn byte(&self, who: usize, at: u64) -> u8 {
        let place = at + 1 + self.conn as u64 * 1_000_003;
        let mixed = place.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed.to_le_bytes()[7] ^ u8::try_from(side(who)).unwrap()
    }

    fn end(&self, who: usize) -> End<'_> {
        let (me, peer) = (&self.procs[who], &self.procs[other(who)]);
        End {
            record: &me.record,
            mine: &me.section,
            theirs: &peer.section,
            ring: Self::RING as u64,
        }
    }

    const fn socket(&self, who: usize) -> Socket<'_> {
        Socket { world: self, who: side(who) }
    }

    /// SIGKILL, wherever it is.
    fn dies(&self, who: usize) {
        let me = &self.procs[who];
        me.mind.asleep.set(None);
        me.is_gone.set(true);
        if self.is_held(who) {
            return self.is_bereaved(who);
        }
        self.ends_unannounced(who);
    }

    /// The kernel closes the socket of an end that nobody holds any more.
    fn ends_unannounced(&self, who: usize) {
        let me = &self.procs[who];
        if me.ending.get() < Ending::Closed {
            self.notes_end(who);
            let is_first = me.ending.get() == Ending::Not;
            me.ending.set(if is_first { Ending::Killed } else { Ending::KilledLater });
        }
        self.socket(who).closes();
        // The agent knows of programs that have the library.
        if me.mind.is_foreign.get() {
            return;
        }
        for peer in self.programs(other(who)).map(|who| &self.procs[who].mind) {
            peer.is_roused.set(peer.asleep.get().is_some());
        }
    }

    /// Something else whenever a program has got anywhere with it.
    fn progress(&self) -> (u64, [Ending; 2]) {
        let of = |me: &Proc| {
            let marks = me.record.rx.marks.load(Relaxed) + me.record.tx.marks.load(Relaxed);
            let repeats =
                me.record.tx.replay.load(Relaxed) + u64::from(me.record.rx.again.load(Relaxed));
            me.sent.get() + me.received.get() + u64::from(marks) + repeats
        };
        let [client, server, ..] = &self.procs;
        (of(client) + of(server) + self.lent(), [client.ending.get(), server.ending.get()])
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
    let lives = |who| Machine::here().lives(who);
    let mut programs: [_; PROGRAMS] = core::array::from_fn(|who| Program::new(who, lives));
    let result = catch_unwind(AssertUnwindSafe(|| machine.runs(&mut programs)));
    drop(programs);
    pace::ends();
    machine.is_over();
    match result {
        Ok(()) => pace::points(),
        Err(failure) => resume_unwind(failure),
    }
}
