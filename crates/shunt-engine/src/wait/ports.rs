//! What the waiter asks of the world, and the values between them.

use shunt_shm::sync::{AtomicU32, AtomicU64};
use shunt_shm::waker::Waker;
use shunt_wire::waits::Part;

use crate::handshake::SHORTEST_LOOK;
use crate::spin::{Mode, Nanos};
use crate::wait::placing::Placing;
use crate::wait::stopwatch::{Spell, Stopwatch};

/// How a spin ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spun {
    /// There was none: it does not pay here.
    Not,
    /// Work came.
    Found(Spell),
    /// Nothing came.
    Vain(Spell),
}

/// What a thread spins by: the time, and what spins are worth in this process.
pub trait Spinner {
    /// Monotonic nanoseconds.
    fn now(&self) -> Nanos;
    /// `SHUNT_SPIN`.
    fn mode(&self) -> Mode;
    /// How long an answer from another machine takes to come to one who sleeps, in nanoseconds, as this process has measured
    /// it ([`learn`](super::spin::learn)). 0: it has no link group with another machine.
    fn far_answer(&self) -> &AtomicU32;
    /// What it takes from a wake-up of this kind to the moment when the one who slept runs, as this process has measured it
    /// ([`crate::spin::WakeUp`]).
    fn wake_up(&self, way: Way) -> &AtomicU32;
    /// Places for threads that spin for longer than a moment: as many as may do so at a time.
    fn spinners(&self) -> &[AtomicU64];
    /// When the calling thread last slept, or offered its processor to others.
    fn rested(&self) -> Nanos;
    /// It does so now.
    fn rests(&self, now: Nanos);
    /// What came of offers of the processor in this process ([`crate::spin::Offers`]).
    fn offers(&self) -> &AtomicU64;
    /// What giving the processor away is worth in this process ([`crate::spin::Yielding`]).
    fn yields(&self) -> &AtomicU32;
    /// Gives the processor away.
    fn give_way(&self);
    /// There is no other processor for this process.
    fn has_one_processor(&self) -> bool;
}

/// The process in which a thread waits.
pub trait Host: Spinner {
    /// Does what is due of what those who wait do for the whole process. With no lock held.
    fn look_after(&self, now: Nanos);
    /// When one of those who sleep is to wake up for that, in nanoseconds from now: this thread, if it says so. It says
    /// when it is [`Host::awake`].
    fn alarm(&self) -> Option<Nanos>;
    /// After a sleep that began with [`Host::alarm`].
    fn awake(&self);
    /// After each sleep, for who traces the program.
    fn wakes(&self) {}
    /// When all who wait for several connections look again, in nanoseconds from now, because something may have happened
    /// that nobody tells of.
    fn doubt(&self) -> Option<Nanos>;
    /// Counts a sleep.
    fn sleeps(&self, way: Way);
    /// What the calling thread has learnt of the processors of those who wake it.
    fn placing(&self) -> Placing;
    /// It has learnt that.
    fn learns_place(&self, placing: Placing);
    /// The processor on which it runs.
    fn processor(&self) -> u32;
    /// It goes to another one, if it may.
    fn goes_to(&self, processor: u32);
}

/// How a thread sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// On futexes: a wake-up costs half of an eventfd's, but the kernel's news are not heard.
    Futex,
    /// In the kernel's poll or epoll, for a doorbell and for the kernel's own news.
    Kernel,
}

/// The sleep that a spin spares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spared {
    /// How the thread would sleep.
    pub way: Way,
    /// Other threads sleep in the same set of connections, so that a message wakes one of them even where the spinner takes it.
    pub is_shared: bool,
}

impl From<Way> for Spared {
    /// Of a thread that waits by itself.
    fn from(way: Way) -> Self {
        Self { way, is_shared: false }
    }
}

/// Whether those who have news can wake the waiter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hearing {
    /// They can.
    Woken,
    /// Not all of them: it has no doorbell, as descriptors have run out, or they do not have that. It looks for itself.
    Deaf,
}

/// When a sleep ends at the latest.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Limits {
    /// When it begins.
    pub now: Nanos,
    /// When the wait is over.
    pub deadline: Option<Nanos>,
    /// When the waiter looks for itself at what it waits for, in nanoseconds from now.
    pub look: Option<Nanos>,
    /// It sleeps on futexes for longer than a moment, and does its part of what is due for the whole process.
    pub is_long: bool,
}

/// What a sleep came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Slept {
    /// Somebody, or the kernel, had something to tell.
    Woken,
    /// The time was over; or a signal handler has run that cut it short.
    Over,
    /// `EINTR`.
    Interrupted,
    /// The kernel refused.
    Failed,
    /// There was none: a signal handler had run before.
    NotAtAll,
}

impl Slept {
    /// By what a system call has returned, as poll(2) and epoll_wait(2) do; `None`: it was not made.
    #[must_use]
    pub fn by_call(returned: Option<i32>, is_interrupted: impl FnOnce() -> bool) -> Self {
        match returned {
            None => Self::NotAtAll,
            Some(1..) => Self::Woken,
            Some(0) => Self::Over,
            Some(_) if is_interrupted() => Self::Interrupted,
            Some(_) => Self::Failed,
        }
    }
}

/// What signal handlers that have run mean for a wait that has found nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Handlers {
    /// It goes on.
    Continue,
    /// The call is begun anew, and its descriptor does not stand for the connection any more.
    Restart,
    /// The call ends.
    End,
}

impl Handlers {
    /// For poll, select and epoll, which are never begun anew (signal(7)). `ran`: a handler did that was not seen before the
    /// call.
    #[must_use]
    pub const fn of_a_set(slept: Slept, ran: bool) -> Self {
        match slept {
            Slept::Interrupted | Slept::Failed | Slept::NotAtAll => Self::End,
            Slept::Over if ran => Self::End,
            Slept::Over | Slept::Woken => Self::Continue,
        }
    }

    /// For a call on a connection, which a handler `ends`, or lets go on. The kernel looks the number up once more when one
    /// `ran`; `is_named`: it stands for the connection still.
    #[must_use]
    pub fn of_a_call(ends: bool, ran: bool, is_named: impl FnOnce() -> bool) -> Self {
        match (ends, ran) {
            (true, _) => Self::End,
            (false, true) if !is_named() => Self::Restart,
            (false, _) => Self::Continue,
        }
    }
}

/// How a wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Woken {
    /// There may be something: look.
    Look,
    /// Its time has passed.
    TimedOut,
    /// A signal handler ran whose call is not to be restarted; or the kernel refused to wait.
    Interrupted,
    /// One ran whose call is, and its descriptor does not stand for the connection any more.
    Restarted,
}

/// What is waited for: a direction of a connection, a set of descriptors, an epoll instance.
pub trait Wait {
    /// How soon it looks for itself where it is [`Hearing::Deaf`], in nanoseconds.
    const DEAF_LOOK: Nanos = SHORTEST_LOOK;
    /// Whether it waits for several connections, and heeds [`Host::doubt`].
    const HEEDS_DOUBTS: bool = true;

    /// Spins, where that is to be done, and tells of it ([`Self::spun`]). True: there is something to look at.
    fn spin(&mut self) -> bool;
    /// The last moment before it arms: how it is to sleep, or why the wait has ended.
    ///
    /// # Errors
    /// It has ended.
    fn turn_in(&mut self) -> Result<Way, Woken>;
    /// Says how it is to be woken, goes on with `rest`, and takes that back where it has to.
    fn arm<T>(&mut self, way: Way, rest: impl FnOnce(&mut Self, Hearing) -> T) -> T;
    /// Whether there is something to look at.
    fn is_ready(&mut self) -> bool;
    /// After it has armed, and looked: whether all that it waits for is told in this way still. A connection may have gone over to
    /// TCP since the way was chosen, or by that look, and the kernel alone tells of what comes then.
    fn is_heard(&mut self, way: Way) -> bool {
        let _ = way;
        true
    }
    /// When the sleep ends at the latest.
    fn limits(&mut self, way: Way) -> Limits;
    /// Sleeps, for so many nanoseconds at the most, and takes up what the kernel has told. `awake` is called right after the
    /// sleep.
    fn sleep(
        &mut self,
        way: Way,
        longest: Option<Nanos>,
        awake: impl FnOnce(&mut Self, Slept),
    ) -> Slept;
    /// After a nap on futexes in which nothing came: asks the kernel, at once, for what it alone tells, and takes it up.
    fn visit(&mut self, slept: Slept);
    /// It was woken. Whatever came while it was awake nobody tells it again: the agent wakes those who sleep as their peer is
    /// killed, and the kernel those who sleep there. So it looks for itself soon, should it sleep on.
    fn was_woken(&mut self) {}
    /// Whether spins are learnt from how long its sleeps take.
    fn teaches(&self) -> bool;
    /// The first of those who began to wake it since `since`, on the monotonic clock of this machine; `None`: they do not say.
    fn rang(&self, way: Way, since: Nanos) -> Option<Waker> {
        let _ = (way, since);
        None
    }
    /// Whether the thread may go to the processor of those who wake it: it waits for one peer, and that one does not follow it.
    fn follows(&self) -> bool;
    /// The time of the wait that is under way.
    fn stopwatch(&mut self) -> &mut Stopwatch;
    /// A wait has ended by something to look at, or its last part has: after so long. It stands for as many as
    /// [`Part::stands_for`] says.
    fn lasted(&mut self, part: Part, nanos: Nanos) {
        let _ = (part, nanos);
    }
    /// It has spun so. True: there is something to look at.
    #[inline]
    fn spun(&mut self, spun: Spun) -> bool {
        match spun {
            Spun::Not => false,
            Spun::Vain(spell) => {
                self.stopwatch().goes_on(spell.from);
                false
            }
            Spun::Found(spell) => {
                let lasted = self.stopwatch().ends(spell.from, spell.to);
                if is_counted(spell) {
                    self.lasted(Part::Spun, lasted);
                }
                true
            }
        }
    }
    /// What signal handlers have to say to a sleep in which nothing was told.
    fn handlers(&mut self, slept: Slept) -> Handlers;
}

/// Whether a spin that has ended a wait is among the few that are counted ([`Part::stands_for`]): by when it ended, which has
/// nothing to do with how long it took, however coarse the clock is.
#[inline]
pub(super) const fn is_counted(spell: Spell) -> bool {
    let mixed = spell.to.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32).is_multiple_of(Part::Spun.stands_for())
}

/// Those who look at several things at a time, and answer by what they have found.
pub trait Set: Wait {
    /// What the call returns.
    type Answer;

    /// Looks at everything. `Some`: the call is over.
    fn look(&mut self) -> Option<Self::Answer>;
    /// A wait has ended so, and not by something to look at.
    fn ended(&mut self, woken: Woken) -> Self::Answer;
}
