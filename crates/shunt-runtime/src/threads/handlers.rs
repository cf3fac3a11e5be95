//! Which of the program's signal handlers have run above the calls of a thread.
//!
//! The kernel ends a wait when a handler runs, or begins it anew (`SA_RESTART`), from the first
//! instruction of the system call on (signal(7)). A call of Shunt's spins before it sleeps, and asks the
//! kernel several times: a signal in between would be lost. So the hooks on sigaction(2) and its kin put
//! a function of their own in the place of each handler, which takes a note and calls it.
//!
//! What is left is the time between the last look at the notes and the system call that sleeps. The time
//! of that sleep lies in memory of the thread ([`sleep`]); a handler that has run leaves zero there.
//!
//! Above a section of the library that is not to be interrupted ([`sections`]) it holds the signal off instead.
//!
//! Handlers of faults ([`FAULTS`]) interrupt no wait, and are left as they are.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::mem;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence};

use libc::{SA_RESETHAND, SA_RESTART, SA_SIGINFO, sigaction, siginfo_t};

use crate::system::abi::timespec;
use crate::threads::sections::{self, FAULTS};

/// Signals, and 0.
const SIGNALS: usize = 65;

/// Bits of a place beside the address of the handler.
const RUNS_ONCE: u64 = 1 << 61;
const RESTARTS: u64 = 1 << 62;
const TAKES_INFO: u64 = 1 << 63;
const FLAGS: u64 = RUNS_ONCE | RESTARTS | TAKES_INFO;

/// The program's handler of each signal; never forgotten, as one that was replaced may be about to be
/// called.
static HANDLERS: [AtomicU64; SIGNALS] = [const { AtomicU64::new(0) }; SIGNALS];

/// What a sleep without end is told: so long that the kernel sets no timer by it.
const FOR_EVER: timespec = timespec { tv_sec: 1 << 40, tv_nsec: 0 };
const NOT_AT_ALL: timespec = timespec { tv_sec: 0, tv_nsec: 0 };

/// A thread's notes.
struct Notes {
    /// Handlers that have run.
    all: AtomicU32,
    /// Those that were installed without `SA_RESTART`. One that runs above another handler counts until that one returns: the kernel
    /// goes by the one that has interrupted the wait itself.
    ending: AtomicU32,
    /// Those that run. One that is left by a jump counts for good.
    running: AtomicU32,
    /// What a call below is in the middle of telling others of ([`tell_above`]).
    telling: AtomicUsize,
    /// How long the thread is to sleep.
    time: UnsafeCell<timespec>,
}

thread_local! {
    static NOTES: Notes = const {
        Notes {
            all: AtomicU32::new(0),
            ending: AtomicU32::new(0),
            running: AtomicU32::new(0),
            telling: AtomicUsize::new(0),
            time: UnsafeCell::new(NOT_AT_ALL),
        }
    };
}

/// The program's handler of a signal, as sigaction(2) was told of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Handler(u64);

impl Handler {
    /// The last one that was put in place for the signal; what the signal does now may be something else.
    /// `None` for signals whose handlers are left as they are.
    pub fn known(signal: c_int) -> Option<Self> {
        Some(Self(place(signal)?.load(Ordering::Relaxed)))
    }

    /// As the program gets to see it: whatever of an action is this module's is replaced.
    pub fn show(self, action: &mut sigaction) {
        // The kernel takes back a handler that is to run once, and leaves its flags.
        let has_run_once =
            action.sa_sigaction == libc::SIG_DFL && action.sa_flags & SA_RESETHAND != 0;
        if is_covered(action) || has_run_once && self.0 != 0 {
            action.sa_sigaction = self.shown(action.sa_sigaction);
            let takes_info = if self.0 & TAKES_INFO != 0 { SA_SIGINFO } else { 0 };
            action.sa_flags = action.sa_flags & !SA_SIGINFO | takes_info;
        }
    }

    /// The same for an action that is an address alone.
    pub fn shown(self, action: usize) -> usize {
        if action == address() { self.address() } else { action }
    }

    const fn address(self) -> usize {
        (self.0 & !FLAGS) as usize
    }
}

/// Puts this module's function in the place of a handler that is about to be installed, where it can be.
pub fn cover(signal: c_int, action: &mut sigaction) {
    let (Some(place), handler) = (place(signal), action.sa_sigaction as u64) else { return };
    if action.sa_sigaction <= libc::SIG_IGN {
        return;
    }
    let flag = |flag, bit| if action.sa_flags & flag != 0 { bit } else { 0 };
    let (restarts, takes_info) = (flag(SA_RESTART, RESTARTS), flag(SA_SIGINFO, TAKES_INFO));
    let runs_once = flag(SA_RESETHAND, RUNS_ONCE);
    if runs_once != 0 {
        sections::block_always();
    }
    if handler & FLAGS != 0 {
        return;
    }
    if is_covered(action) {
        // It is in place, or was found there by who asked the kernel itself.
        let known = place.load(Ordering::Relaxed) & !(RESTARTS | RUNS_ONCE);
        place.store(known | restarts | runs_once, Ordering::Relaxed);
    } else {
        place.store(handler | restarts | takes_info | runs_once, Ordering::Relaxed);
        action.sa_sigaction = address();
    }
    action.sa_flags |= SA_SIGINFO;
}

/// Takes back what [`cover`] has noted of a handler that could not be installed.
pub fn uncover(signal: c_int, known: Handler) {
    if let Some(place) = place(signal) {
        place.store(known.0, Ordering::Relaxed);
    }
}

/// True for an action that takes notes.
pub fn is_covered(action: &sigaction) -> bool {
    action.sa_sigaction == address()
}

fn place(signal: c_int) -> Option<&'static AtomicU64> {
    let place = HANDLERS.get(usize::try_from(signal).ok()?)?;
    (signal != 0 && !FAULTS.contains(&signal)).then_some(place)
}

fn address() -> usize {
    above as *const () as usize
}

/// Takes a note, and calls the program's handler, by which it may be left for good; or has the signal wait for the end of a section.
unsafe extern "C-unwind" fn above(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let Some(handler) = Handler::known(signal).filter(|handler| handler.0 != 0) else { return };
    // One that the kernel has just taken back would not be there the second time.
    // SAFETY: the kernel's arguments, as the action asks for all three.
    if handler.0 & RUNS_ONCE == 0 && unsafe { sections::hold_off(signal, info, context) } {
        return;
    }
    // SAFETY: the kernel's arguments, as the action asks for all three.
    let is_above_another = unsafe { has_interrupted_the_begin(context) };
    let (running, ending) = NOTES.with(|notes| {
        // Nobody else changes them but handlers above this one, which put back what they find.
        let add =
            |n: &AtomicU32| n.store(n.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        add(&notes.all);
        if handler.0 & RESTARTS == 0 && !is_above_another {
            add(&notes.ending);
        }
        let running = notes.running.load(Ordering::Relaxed);
        notes.running.store(running.wrapping_add(1), Ordering::Relaxed);
        (running, notes.ending.load(Ordering::Relaxed))
    });
    // SAFETY: what the program has given to sigaction(2), with the arguments of one that takes all three;
    // one that takes fewer does not look at the others.
    let body = unsafe {
        mem::transmute::<usize, unsafe extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void)>(
            handler.address(),
        )
    };
    // SAFETY: the arguments are those with which the kernel has called this handler in the place of that one.
    unsafe { body(signal, info, context) };
    NOTES.with(|notes| {
        notes.running.store(running, Ordering::Relaxed);
        notes.ending.store(ending, Ordering::Relaxed);
    });
    // Afterwards: the handler may have slept itself.
    set_time(NOT_AT_ALL);
}

/// True where a handler has interrupted another one in front of its first instruction. So it is with several that were pending at once: the
/// last one runs first, and the first one is that of the wait.
///
/// # Safety
/// The context with which the kernel has called a handler.
unsafe fn has_interrupted_the_begin(context: *const c_void) -> bool {
    // SAFETY: the caller's promise.
    let machine = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext };
    #[cfg(target_arch = "x86_64")]
    let next = machine.gregs[libc::REG_RIP as usize].cast_unsigned();
    #[cfg(target_arch = "aarch64")]
    let next = machine.pc;
    next == address() as u64
}

/// True in a handler.
#[must_use]
pub fn are_running() -> bool {
    NOTES.with(|notes| notes.running.load(Ordering::Relaxed) != 0)
}

/// Tells others of `what`, not 0: handlers above know of it meanwhile ([`is_below`]).
#[inline]
pub fn tell_above<T>(what: usize, tell: impl FnOnce() -> T) -> T {
    let notes = |what| {
        compiler_fence(Ordering::SeqCst);
        let before = NOTES.with(|notes| {
            let before = notes.telling.load(Ordering::Relaxed);
            notes.telling.store(what, Ordering::Relaxed);
            before
        });
        compiler_fence(Ordering::SeqCst);
        before
    };
    let before = notes(what);
    let result = tell();
    notes(before);
    result
}

/// True in a handler above a call that is in the middle of telling others of this. Of one that a handler has left by a jump it
/// may be true for longer.
#[must_use]
pub fn is_below(what: usize) -> bool {
    NOTES.with(|notes| notes.telling.load(Ordering::Relaxed) == what)
}

fn set_time(time: timespec) -> *const timespec {
    NOTES.with(|notes| {
        // SAFETY: this thread's alone, and no reference to it is made anywhere.
        unsafe { notes.time.get().write_volatile(time) };
        compiler_fence(Ordering::SeqCst);
        notes.time.get().cast_const()
    })
}

/// The handlers that had run on this thread at some time, or had been taken into account.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    all: u32,
    ending: u32,
}

impl Seen {
    /// Those until now.
    pub fn now() -> Self {
        NOTES.with(|notes| {
            let read = |n: &AtomicU32| n.load(Ordering::Relaxed);
            // In this order: a handler in between is one that runs later.
            let (all, ending) = (read(&notes.all), read(&notes.ending));
            compiler_fence(Ordering::SeqCst);
            Self { all, ending }
        })
    }

    /// True when another one has run.
    pub fn is_old(self) -> bool {
        self.all != Self::now().all
    }

    /// Takes those into account that have run meanwhile. `None`: none; else whether one of them ends a
    /// call that the others would have begun anew.
    pub fn renew(&mut self) -> Option<bool> {
        let now = Self::now();
        let before = mem::replace(self, now);
        (before.all != now.all).then_some(before.ending != now.ending)
    }
}

/// Sleeps by a system call that takes this time, of so many nanoseconds or without end. `None`, and no
/// sleep, when a handler has run that was not `seen`; one that runs before the kernel has read the time
/// ends the sleep at once.
pub fn sleep<T>(
    seen: Seen,
    nanos: Option<u64>,
    system_call: impl FnOnce(*const timespec) -> T,
) -> Option<T> {
    let time = set_time(nanos.map_or(FOR_EVER, |nanos| timespec {
        tv_sec: i64::try_from(nanos / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(nanos % 1_000_000_000).unwrap_or(0),
    }));
    if seen.is_old() {
        return None;
    }
    crate::point!(sleep_begins);
    Some(system_call(time))
}
