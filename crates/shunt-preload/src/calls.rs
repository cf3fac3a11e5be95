//! Calls of this thread that are under way, and what each has to give back.
//!
//! A call gives back what it has when it returns, and when its thread is cancelled. A signal handler
//! can also jump out of it (siglongjmp(3)), which runs nothing of the frames that it leaves. So a call
//! notes here what it has, and the hooks on longjmp(3) give it back in its place, while those frames
//! are still there. (On x86-64, where the target of a jump can be read; by other ways out, as
//! setcontext(3), what a call has is lost.)
//!
//! Handlers run on top of the very thread that changes the list: plain stores in the order of the
//! program are enough.

use core::cell::Cell;
use core::sync::atomic::{AtomicU32, Ordering, compiler_fence};

use shunt_shm::arena::Record;
use shunt_shm::lock::{Owner, OwnerLock};

use crate::conn::{Hold, Sock};
use crate::epoll::instance::Instance;
use crate::fd_table::Entry;
use crate::object;
use crate::own_fds::OwnFd;

/// Entries of a thread; what does not find a place is not given back after a jump.
const MOST: usize = 16;
/// Descriptors that handlers have closed above steps of their connections.
const MOST_CLOSES: usize = 4;

/// What a call has.
#[derive(Clone, Copy)]
pub enum Has {
    /// Nothing.
    Nothing,
    /// A lock of a connection.
    Lock(&'static Record, Which, Owner),
    /// A connection that it holds.
    Hold(&'static Sock),
    /// Several.
    Holds(*const Vec<Hold>),
    /// The lock of an epoll instance.
    Instance(&'static Instance),
    /// A wait in one.
    Wait(&'static Instance),
    /// Something else, and what drops it.
    Value(*const (), unsafe fn(*const ())),
}

impl Has {
    /// A value of the call's, which drops it after the note of it has gone.
    #[must_use]
    pub const fn value<T>(value: &T) -> Self {
        /// # Safety
        /// `value` is valid, and not dropped again.
        unsafe fn drop_it<T>(value: *const ()) {
            // SAFETY: the caller's promise.
            unsafe { core::ptr::drop_in_place(value.cast::<T>().cast_mut()) }
        }
        Self::Value(core::ptr::from_ref(value).cast(), drop_it::<T>)
    }
}

/// A lock of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    /// That of the receiving direction.
    Rx,
    /// That of the sending direction.
    Tx,
    /// That of the handshake.
    Handshake,
}

impl Which {
    /// The lock.
    #[inline]
    #[must_use]
    pub const fn of(self, record: &Record) -> &OwnerLock {
        match self {
            Self::Rx => &record.rx.lock,
            Self::Tx => &record.tx.lock,
            Self::Handshake => &record.id.handshake,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    /// Being filled in.
    Taken,
    Live,
    /// Given back, while later ones are not.
    Over,
}

struct Place {
    state: Cell<State>,
    has: Cell<Has>,
    /// An address in a frame of the call.
    at: Cell<usize>,
}

struct Thread {
    tid: Cell<u32>,
    serial: Cell<u32>,
    depth: Cell<usize>,
    places: [Place; MOST],
    /// Forks of which this thread is the child.
    forks: Cell<u32>,
    /// Locks of directions that this thread holds.
    steps: Cell<usize>,
    closes: Cell<usize>,
    /// Place of the descriptor, and the entry that it had.
    closed: [Cell<(u16, Entry)>; MOST_CLOSES],
}

thread_local! {
    static THREAD: Thread = const {
        Thread {
            tid: Cell::new(0),
            serial: Cell::new(0),
            depth: Cell::new(0),
            places: [const {
                let (state, has, at) = (State::Free, Has::Nothing, 0);
                Place { state: Cell::new(state), has: Cell::new(has), at: Cell::new(at) }
            }; MOST],
            forks: Cell::new(0),
            steps: Cell::new(0),
            closes: Cell::new(0),
            closed: [const { Cell::new((0, Entry::KERNEL)) }; MOST_CLOSES],
        }
    };
}

/// This thread's id.
#[inline]
#[must_use]
pub fn tid() -> u32 {
    THREAD.with(|thread| match thread.tid.get() {
        0 => {
            let id = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
            thread.tid.set(id);
            id
        }
        id => id,
    })
}

/// A number of this thread's that no other thread of the process has, nor a later one, and that its copy
/// in a forked child keeps; not 0.
#[inline]
#[must_use]
pub fn serial() -> u32 {
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    THREAD.with(|thread| match thread.serial.get() {
        0 => {
            let serial = GIVEN.fetch_add(1, Ordering::Relaxed).wrapping_add(1) & 0x3fff_ffff;
            thread.serial.set(serial.max(1));
            serial.max(1)
        }
        serial => serial,
    })
}

/// Something else once a handler above this thread's call has forked, and this is the child.
#[inline]
#[must_use]
pub fn forks() -> u32 {
    THREAD.with(|thread| thread.forks.get())
}

/// An entry of the list; taken out when dropped.
#[derive(Debug)]
pub struct UnderWay {
    index: usize,
}

impl UnderWay {
    /// Notes what a call has.
    #[inline]
    #[must_use]
    pub fn note(has: Has) -> Self {
        THREAD.with(|thread| {
            let index = thread.depth.get();
            let Some(place) = thread.places.get(index) else { return Self { index } };
            place.state.set(State::Taken);
            compiler_fence(Ordering::SeqCst);
            thread.depth.set(index + 1);
            place.has.set(has);
            place.at.set(core::ptr::from_ref(&index).addr());
            compiler_fence(Ordering::SeqCst);
            place.state.set(State::Live);
            Self { index }
        })
    }

    /// False when it was given back already, after a jump, or is not this process's to give back, as it
    /// was forked in a handler above the call.
    #[inline]
    #[must_use]
    pub fn is_live(&self) -> bool {
        THREAD.with(|thread| {
            thread.places.get(self.index).is_none_or(|place| place.state.get() == State::Live)
        })
    }
}

impl Drop for UnderWay {
    #[inline]
    fn drop(&mut self) {
        THREAD.with(|thread| {
            let Some(place) = thread.places.get(self.index) else { return };
            place.state.set(State::Over);
            compiler_fence(Ordering::SeqCst);
            thread.trim();
        });
    }
}

impl Thread {
    /// Frees the last places, up to one that is in use.
    #[inline]
    fn trim(&self) {
        while let Some(last) = self.depth.get().checked_sub(1) {
            if self.places[last].state.get() != State::Over {
                return;
            }
            self.depth.set(last);
            compiler_fence(Ordering::SeqCst);
            self.places[last].state.set(State::Free);
        }
    }

    fn live(&self) -> impl DoubleEndedIterator<Item = &Place> {
        let depth = self.depth.get().min(MOST);
        self.places[..depth].iter().filter(|place| place.state.get() == State::Live)
    }
}

/// Notes that this thread has a lock of a direction, or has one less.
#[inline]
pub fn count_step(more: bool) {
    THREAD.with(|thread| {
        let steps = thread.steps.get();
        thread.steps.set(if more { steps + 1 } else { steps.saturating_sub(1) });
        if !more && steps <= 1 && thread.closes.get() > 0 {
            close_deferred(thread);
        }
    });
}

/// True in a signal handler above a step of this thread's.
#[inline]
#[must_use]
pub fn is_above_a_step() -> bool {
    THREAD.with(|thread| thread.steps.get() > 0)
}

/// Closes a descriptor later, when this thread's step is over that may use its number: until then the
/// number is the library's own.
///
/// # Errors
/// The descriptor, when there are too many.
pub fn close_later(own: OwnFd, entry: Entry) -> Result<(), OwnFd> {
    THREAD.with(|thread| {
        let count = thread.closes.get();
        let Some(place) = thread.closed.get(count) else { return Err(own) };
        place.set((own.into_place(), entry));
        compiler_fence(Ordering::SeqCst);
        thread.closes.set(count + 1);
        Ok(())
    })
}

#[cold]
fn close_deferred(thread: &Thread) {
    let _keep = crate::errno::KeepErrno::new();
    while let Some(last) = thread.closes.get().checked_sub(1) {
        let (place, entry) = thread.closed[last].get();
        thread.closes.set(last);
        let Some(own) = OwnFd::from_place(u32::from(place) + 1) else { continue };
        object::before_close(own.raw(), entry);
        drop(own);
    }
}

/// In a forked child, whose one thread has another id. It may be in a handler above calls of its own: the
/// locks that these have are the parent's, who goes on as well.
pub fn fork_child() {
    THREAD.with(|thread| {
        thread.tid.set(0);
        thread.forks.set(thread.forks.get().wrapping_add(1));
        for place in thread.live().filter(|place| matches!(place.has.get(), Has::Lock(..))) {
            place.state.set(State::Over);
        }
    });
}

/// Calls `each` for the connections that calls of this thread hold, once for each hold.
pub fn each_hold(mut each: impl FnMut(&'static Sock)) {
    THREAD.with(|thread| {
        for place in thread.live() {
            match place.has.get() {
                Has::Hold(sock) => each(sock),
                // SAFETY: as in `give_back`.
                Has::Holds(holds) => unsafe { &*holds }.iter().for_each(|hold| each(hold.sock())),
                _ => {}
            }
        }
    });
}

/// Before longjmp(3) and its kind, to where `env` says.
pub fn before_jump(env: usize) {
    THREAD.with(|thread| {
        if thread.depth.get() == 0 {
            return;
        }
        // SAFETY: the first argument of these functions is an environment that setjmp(3) has filled in.
        let Some(target) = (unsafe { stack_pointer_of(env) }) else { return };
        let alternate = AlternateStack::of_this_thread();
        let is_left = |at: usize| match (alternate.has(at), alternate.has(target)) {
            (true, false) => true,
            (false, true) => false,
            // Stacks grow down: what lies below the target is left.
            _ => at < target,
        };
        for place in thread.live().rev() {
            if is_left(place.at.get()) {
                place.state.set(State::Over);
                give_back(thread, place.has.get());
            }
        }
        thread.trim();
    });
}

/// In the place of a call that does not come back.
fn give_back(thread: &Thread, has: Has) {
    let _keep = crate::errno::KeepErrno::new();
    match has {
        Has::Nothing => {}
        Has::Lock(record, which, owner) => {
            match which {
                Which::Rx => record.rx.copying.open.store(0, Ordering::Relaxed),
                Which::Tx => record.tx.copying.open.store(0, Ordering::Relaxed),
                Which::Handshake => {}
            }
            // What it protects is changed such that a whole state is left at any moment.
            which.of(record).give_up(owner);
            if which != Which::Handshake {
                let steps = thread.steps.get().saturating_sub(1);
                thread.steps.set(steps);
                if steps == 0 {
                    close_deferred(thread);
                }
            }
        }
        Has::Instance(instance) => instance.unlock_after_jump(),
        Has::Wait(instance) => instance.let_go(),
        // SAFETY: the call that has noted it takes the note back before it goes. Its frame is still
        // there, and does not come back: so it is dropped once.
        Has::Value(value, drop_it) => unsafe { drop_it(value) },
        Has::Hold(sock) => object::let_go(sock),
        Has::Holds(holds) => {
            // SAFETY: the call that has noted them takes the note back before they go. Its frame is
            // still there, and does not come back: so they are dropped once.
            drop(unsafe { core::ptr::read(holds) });
        }
    }
}

/// The stack that the thread has given its handlers (sigaltstack(2)).
struct AlternateStack {
    base: usize,
    len: usize,
}

impl AlternateStack {
    fn of_this_thread() -> Self {
        // SAFETY: all zero is a valid value, for no stack.
        let mut stack: libc::stack_t = unsafe { core::mem::zeroed() };
        // SAFETY: only asks.
        if unsafe { libc::sigaltstack(core::ptr::null(), &raw mut stack) } != 0 {
            return Self { base: 0, len: 0 };
        }
        Self { base: stack.ss_sp.addr(), len: stack.ss_size }
    }

    const fn has(&self, at: usize) -> bool {
        at.wrapping_sub(self.base) < self.len
    }
}

/// The stack pointer with which a jump goes on.
///
/// # Safety
/// `env` is the address of an environment that setjmp(3) has filled in.
#[cfg(target_arch = "x86_64")]
unsafe fn stack_pointer_of(env: usize) -> Option<usize> {
    /// `JB_RSP` (sysdeps/x86_64/jmpbuf-offsets.h in glibc).
    const RSP: usize = 6;
    /// What `PTR_MANGLE` rotates by (sysdeps/unix/sysv/linux/x86_64/pointer_guard.h).
    const TURN: u32 = 17;
    let guard: usize;
    // SAFETY: the thread's control block, at fs, holds the guard at this offset; it is only read.
    unsafe {
        core::arch::asm!("mov {}, fs:[0x30]", out(reg) guard, options(nostack, readonly));
    }
    let words = core::ptr::with_exposed_provenance::<usize>(env);
    // SAFETY: the caller's promise; the buffer has eight words for registers.
    let mangled = unsafe { words.add(RSP).read_unaligned() };
    Some(mangled.rotate_right(TURN) ^ guard)
}

/// See above.
///
/// # Safety
/// None is needed.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn stack_pointer_of(_env: usize) -> Option<usize> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn depth() -> usize {
        THREAD.with(|thread| thread.depth.get())
    }

    #[test]
    fn entries_are_taken_out_in_any_order() {
        let [first, second, third] = [(); 3].map(|()| UnderWay::note(Has::Nothing));
        assert_eq!(depth(), 3);
        drop(second);
        assert_eq!(depth(), 3);
        drop(third);
        assert_eq!(depth(), 1);
        assert!(first.is_live());
        drop(first);
        assert_eq!(depth(), 0);
    }

    #[test]
    fn what_finds_no_place_is_not_noted() {
        let all: Vec<UnderWay> = (0..MOST + 2).map(|_| UnderWay::note(Has::Nothing)).collect();
        assert_eq!(depth(), MOST);
        drop(all);
        assert_eq!(depth(), 0);
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_jump_gives_back_what_lies_below_its_target() {
        unsafe extern "C" {
            fn _setjmp(env: *mut usize) -> core::ffi::c_int;
        }
        #[inline(never)]
        fn deeper(env: usize) -> usize {
            let inner = UnderWay::note(Has::Nothing);
            before_jump(env);
            let is_live = inner.is_live();
            drop(inner);
            usize::from(is_live)
        }
        let outer = UnderWay::note(Has::Nothing);
        let mut env = [0_usize; 32];
        // SAFETY: the buffer is longer than `jmp_buf`; nobody jumps there.
        unsafe { _setjmp(env.as_mut_ptr()) };
        let env = env.as_ptr().expose_provenance();
        assert_eq!(deeper(env), 0, "it was left");
        // Its address lies in a frame of `note`, below this one.
        assert!(!outer.is_live() || depth() >= 1);
    }
}
