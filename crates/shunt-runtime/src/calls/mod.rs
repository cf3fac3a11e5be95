//! Calls of this thread that are under way, and the resources that each has to give back.
//!
//! A call gives its resources back when it returns, and when its thread is cancelled. A signal
//! handler can also jump out of it (siglongjmp(3)), which runs nothing of the frames that it
//! leaves. So a call notes its resources here, and the hooks on longjmp(3) give them back in its
//! place, while those frames are still there. (On x86-64, where the hook can read the target of a
//! jump. By other ways out, as setcontext(3), the resources of a call are lost.)
//!
//! Handlers run on top of the very thread that changes the list: plain stores in the order of the
//! program are enough.

mod longjmp;

pub use longjmp::before_longjmp;

use core::cell::Cell;
use core::ffi::c_int;
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering, compiler_fence};

use shunt_shm::arena::Record;
use shunt_shm::lock::{Owner, OwnerLock};
use shunt_wire::reason::Reason;

use crate::callback::Callback;
use crate::fds::fd_table::Entry;
use crate::fds::own_fds::OwnFd;
use crate::system::errno::KeepErrno;

/// Entries of a thread; what does not find a place is not given back after a jump.
const MOST: usize = 16;
/// Descriptors that handlers have closed above steps of their connections.
const MOST_CLOSES: usize = 4;

/// How a kind of things is given back that calls keep while they are under way.
#[derive(Debug)]
pub struct Keeper {
    /// Gives one back in the place of its call, which does not come back.
    ///
    /// # Safety
    /// The address is one that a call has noted with this keeper ([`Has::kept`]), and has not taken back.
    give_back: unsafe fn(*const ()),
}

impl Keeper {
    /// Of what `give_back` gives back.
    ///
    /// # Safety
    /// `give_back` is sound for each address that is noted with it, once, while its call is under way.
    #[must_use]
    pub const unsafe fn new(give_back: unsafe fn(*const ())) -> Self {
        Self { give_back }
    }

    /// Of values, which are dropped.
    const fn of_values<T>() -> Self {
        /// # Safety
        /// `value` is valid, and not dropped again.
        unsafe fn drop_it<T>(value: *const ()) {
            // SAFETY: the caller promises a valid `T`, which it leaves to this.
            unsafe { ptr::drop_in_place(value.cast::<T>().cast_mut()) }
        }
        Self { give_back: drop_it::<T> }
    }
}

/// What a call has.
#[derive(Clone, Copy)]
pub enum Has {
    /// Nothing.
    Nothing,
    /// A lock of a connection.
    Lock(&'static Record, Which, Owner),
    /// Something else, and who gives it back.
    Kept(*const (), &'static Keeper),
}

impl Has {
    /// Something that is at an address.
    #[inline(always)]
    #[must_use]
    pub const fn kept<T>(at: *const T, keeper: &'static Keeper) -> Self {
        Self::Kept(at.cast(), keeper)
    }

    /// A value of the call's, which forgets the note before it drops it.
    #[must_use]
    pub const fn value<T>(value: &T) -> Self {
        Self::kept(ptr::from_ref(value), const { &Keeper::of_values::<T>() })
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

/// What stands at a place, as two words say more exactly.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum State {
    /// Nothing, or what is being filled in.
    Free = 0,
    /// What was given back, while later ones were not.
    Over,
    Nothing,
    Rx,
    Tx,
    Handshake,
    Kept,
}

struct Place {
    state: Cell<State>,
    words: [Cell<usize>; 2],
    /// An address in a frame of the call.
    at: Cell<usize>,
}

impl Place {
    #[inline(always)]
    fn is_live(&self) -> bool {
        !matches!(self.state.get(), State::Free | State::Over)
    }

    #[inline(always)]
    fn fill(&self, has: Has) {
        let (state, words) = match has {
            Has::Nothing => (State::Nothing, [0, 0]),
            Has::Lock(record, which, owner) => {
                let state = match which {
                    Which::Rx => State::Rx,
                    Which::Tx => State::Tx,
                    Which::Handshake => State::Handshake,
                };
                (state, [ptr::from_ref(record).expose_provenance(), owner.to_word()])
            }
            Has::Kept(at, keeper) => {
                let keeper = ptr::from_ref(keeper).expose_provenance();
                (State::Kept, [at.expose_provenance(), keeper])
            }
        };
        self.words[0].set(words[0]);
        self.words[1].set(words[1]);
        compiler_fence(Ordering::SeqCst);
        self.state.set(state);
    }

    /// What [`Self::fill`] was given.
    fn has(&self) -> Has {
        fn at<T>(word: usize) -> *const T {
            ptr::with_exposed_provenance(word)
        }
        let [first, second] = [&self.words[0], &self.words[1]].map(Cell::get);
        let lock = |which| {
            // SAFETY: `fill` was given a reference that is good for ever.
            Has::Lock(unsafe { &*at(first) }, which, Owner::from_word(second))
        };
        // SAFETY: the state says what `fill` was given: references that are good for ever, and keepers with what they keep.
        unsafe {
            match self.state.get() {
                State::Free | State::Over | State::Nothing => Has::Nothing,
                State::Rx => lock(Which::Rx),
                State::Tx => lock(Which::Tx),
                State::Handshake => lock(Which::Handshake),
                State::Kept => Has::Kept(at(first), &*at(second)),
            }
        }
    }
}

/// What is done before a descriptor is closed that had this entry.
pub static BEFORE_CLOSE: Callback<fn(c_int, Entry)> = Callback::none();

/// What a handler of a signal has put off above a step of the same thread. All zero is the first of them.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Late {
    /// shutdown(2), of these directions.
    Shut(c_int),
    /// The connection leaves shared memory.
    Leave(Reason),
}

/// What is done once no step is under way above which a handler has put this off for the descriptor, which had this entry.
pub static DO_LATE: Callback<fn(c_int, Entry, Late)> = Callback::none();

/// What is kept of a thread.
pub struct Thread {
    tid: Cell<u32>,
    serial: Cell<u32>,
    /// Bytes of the places that are in use, or between those.
    used: Cell<usize>,
    places: [Place; MOST],
    /// Something is to be done once an entry goes.
    is_untidy: Cell<bool>,
    closes: Cell<usize>,
    /// Place of the descriptor, and the entry that it had.
    closed: [Cell<(u16, Entry)>; MOST_CLOSES],
    put_off: Cell<usize>,
    /// The descriptor, its entry, and what is done about it.
    late: [Cell<(c_int, Entry, Late)>; MOST_CLOSES],
}

impl core::fmt::Debug for Thread {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Thread").field("tid", &self.tid).finish_non_exhaustive()
    }
}

/// What is kept of the calling thread, for as long as it runs.
///
/// On x86-64 the value lies at a fixed distance from the thread pointer (the *initial-exec* model), as
/// the library is there when the program starts: so it takes two instructions to find, and not a call of
/// `__tls_get_addr`, which each send and receive would make several times.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub fn current() -> &'static Thread {
    let at: *const Thread;
    // SAFETY: the linker fills in the distance. The block is as long and aligned as a `Thread`, for which
    // all zero is the beginning, and has no destructor: it is there until the thread has ended, and the
    // reference cannot leave the thread.
    unsafe {
        core::arch::asm!(
            "mov {at}, qword ptr [rip + SHUNT_THREAD@GOTTPOFF]",
            "add {at}, qword ptr fs:[0]",
            at = out(reg) at,
            options(pure, nomem, nostack),
        );
        &*at
    }
}

#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".section .tbss.SHUNT_THREAD,\"awT\",@nobits",
    ".balign {align}",
    ".hidden SHUNT_THREAD",
    ".globl SHUNT_THREAD",
    ".type SHUNT_THREAD,@object",
    ".size SHUNT_THREAD,{size}",
    "SHUNT_THREAD:",
    ".zero {size}",
    ".text",
    align = const align_of::<Thread>(),
    size = const size_of::<Thread>(),
);

/// See above.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
pub fn current() -> &'static Thread {
    thread_local! {
        // SAFETY: all zero is the beginning.
        static THREAD: Thread = const { unsafe { core::mem::zeroed() } };
    }
    // SAFETY: the value has no destructor, so it lives as long as the thread, which alone gets the reference.
    THREAD.with(|thread| unsafe { &*ptr::from_ref(thread) })
}

/// This thread's id.
#[inline]
#[must_use]
pub fn tid() -> u32 {
    current().tid()
}

impl Thread {
    /// The thread's id.
    #[inline]
    pub fn tid(&self) -> u32 {
        match self.tid.get() {
            0 => self.ask_tid(),
            id => id,
        }
    }

    #[cold]
    fn ask_tid(&self) -> u32 {
        let id = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        self.tid.set(id);
        id
    }
}

/// A number of this thread's that no other thread of the process has, nor a later one, and that its copy
/// in a forked child keeps; not 0.
#[inline]
#[must_use]
pub fn serial() -> u32 {
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    let thread = current();
    match thread.serial.get() {
        0 => {
            let serial = GIVEN.fetch_add(1, Ordering::Relaxed).wrapping_add(1) & 0x3fff_ffff;
            thread.serial.set(serial.max(1));
            serial.max(1)
        }
        serial => serial,
    }
}

/// An entry of the list of the thread that has made it; taken out when dropped.
#[derive(Debug)]
pub struct UnderWay(Index);

impl UnderWay {
    /// Notes what a call has.
    #[inline]
    #[must_use]
    pub fn note(has: Has) -> Self {
        Self(current().note(has))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        current().forget(self.0);
    }
}

/// The place of an entry; null: it has found none.
#[derive(Clone, Copy, Debug)]
pub struct Index(*const Place);

impl Thread {
    /// Notes what a call of this thread, the calling one, has. [`Self::forget`] takes the note back.
    #[inline(always)]
    pub fn note(&self, has: Has) -> Index {
        let at = self.used.get();
        let first = self.places.as_ptr();
        let place = first.wrapping_byte_add(at);
        if at >= size_of_val(&self.places) {
            return Index(ptr::null());
        }
        self.used.set(at + size_of::<Place>());
        compiler_fence(Ordering::SeqCst);
        // SAFETY: `at` is the offset of a place of the array, as it is below its length.
        let to = unsafe { &*place };
        to.at.set(ptr::from_ref(&at).addr());
        to.fill(has);
        Index(place)
    }

    /// False when it was given back already, after a jump, or is not this process's to give back, as it
    /// was forked in a handler above the call.
    #[inline(always)]
    pub fn has_noted(&self, Index(place): Index) -> bool {
        // SAFETY: null, or a place of this thread's array, which lives as long as the thread.
        unsafe { place.as_ref() }.is_none_or(Place::is_live)
    }

    /// Gives back what was noted, unless that was done already ([`Self::has_noted`]), and takes the note back.
    #[inline(always)]
    pub fn give_back(&self, index: Index, give_back: impl FnOnce()) {
        if self.has_noted(index) {
            give_back();
        }
        self.forget(index);
    }

    /// Takes the note back.
    #[inline(always)]
    pub fn forget(&self, Index(place): Index) {
        // SAFETY: null, or a place of this thread's array, which lives as long as the thread.
        let Some(to) = (unsafe { place.as_ref() }) else { return };
        let end = place.addr() + size_of::<Place>() - self.places.as_ptr().addr();
        if self.used.get() == end {
            to.state.set(State::Free);
            compiler_fence(Ordering::SeqCst);
            self.used.set(end - size_of::<Place>());
        } else {
            to.state.set(State::Over);
            self.is_untidy.set(true);
        }
        if self.is_untidy.get() {
            self.tidy();
        }
    }

    /// Places that are in use, or between those.
    fn depth(&self) -> usize {
        (self.used.get() / size_of::<Place>()).min(MOST)
    }
}

impl Thread {
    /// After an entry has gone before a later one, or while descriptors are to be closed.
    #[cold]
    fn tidy(&self) {
        self.trim();
        self.end_deferred();
        let is_tidy = self.depth() == 0 && self.closes.get() == 0 && self.put_off.get() == 0;
        self.is_untidy.set(!is_tidy);
    }

    /// Frees the last places, up to one that is in use.
    fn trim(&self) {
        while let Some(last) = self.depth().checked_sub(1) {
            let Some(place) = self.places.get(last).filter(|p| p.state.get() == State::Over) else {
                return;
            };
            place.state.set(State::Free);
            compiler_fence(Ordering::SeqCst);
            self.used.set(last * size_of::<Place>());
        }
    }

    fn live(&self) -> impl DoubleEndedIterator<Item = &Place> + '_ {
        self.places[..self.depth()].iter().filter(|place| place.is_live())
    }

    /// True in a call that has the lock of a direction, or in a handler above it.
    fn is_in_a_step(&self) -> bool {
        self.live().any(|place| match place.has() {
            Has::Lock(_, which, _) => which != Which::Handshake,
            _ => false,
        })
    }

    /// Shuts and closes what is to be once no step is under way.
    #[cold]
    fn end_deferred(&self) {
        if self.closes.get() + self.put_off.get() == 0 || self.is_in_a_step() {
            return;
        }
        let _keep = KeepErrno::new();
        while let Some(last) = self.put_off.get().checked_sub(1) {
            let (fd, entry, what) = self.late[last].get();
            self.put_off.set(last);
            if let Some(do_late) = DO_LATE.get() {
                do_late(fd, entry, what);
            }
        }
        while let Some(last) = self.closes.get().checked_sub(1) {
            let (place, entry) = self.closed[last].get();
            self.closes.set(last);
            let Some(own) = OwnFd::from_place(u32::from(place) + 1) else { continue };
            if let Some(before_close) = BEFORE_CLOSE.get() {
                before_close(own.raw(), entry);
            }
            drop(own);
        }
    }
}

/// True in a signal handler above a step of this thread's.
#[must_use]
pub fn is_above_a_step() -> bool {
    current().is_in_a_step()
}

/// Does this later, when this thread's step is over. False when there are too many.
#[must_use]
pub fn do_later(fd: c_int, entry: Entry, what: Late) -> bool {
    let thread = current();
    let count = thread.put_off.get();
    let Some(place) = thread.late.get(count) else { return false };
    place.set((fd, entry, what));
    compiler_fence(Ordering::SeqCst);
    thread.put_off.set(count + 1);
    thread.is_untidy.set(true);
    true
}

/// Closes a descriptor later, when this thread's step is over that may use its number: until then the
/// number is the library's own.
///
/// # Errors
/// The descriptor, when there are too many.
pub fn close_later(own: OwnFd, entry: Entry) -> Result<(), OwnFd> {
    let thread = current();
    let count = thread.closes.get();
    let Some(place) = thread.closed.get(count) else { return Err(own) };
    place.set((own.into_place(), entry));
    compiler_fence(Ordering::SeqCst);
    thread.closes.set(count + 1);
    thread.is_untidy.set(true);
    Ok(())
}

/// In a forked child, whose one thread has another id. It may be in a handler above calls of its own: the
/// locks that these have are the parent's, who goes on as well.
pub fn fork_child() {
    let thread = current();
    thread.tid.set(0);
    for place in thread.live() {
        if let Has::Lock(record, which, _) = place.has() {
            place.state.set(State::Over);
            // A copy that is under way is for nothing, here and, which does no harm, in the parent.
            match which {
                Which::Rx => record.rx.copying.calls.fetch_add(1, Ordering::Relaxed),
                Which::Tx => record.tx.copying.calls.fetch_add(1, Ordering::Relaxed),
                Which::Handshake => 0,
            };
        }
    }
}

/// Calls `each` for what calls of this thread keep with this keeper, a static.
pub fn each_kept(keeper: &'static Keeper, mut each: impl FnMut(*const ())) {
    let thread = current();
    for place in thread.live() {
        if let Has::Kept(at, its_keeper) = place.has()
            && ptr::eq(its_keeper, keeper)
        {
            each(at);
        }
    }
}

/// In the place of a call that does not come back.
fn give_back(has: Has) {
    let _keep = KeepErrno::new();
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
        }
        // SAFETY: the call that has noted it takes the note back before it goes. Its frame is still
        // there, and does not come back: so it is given back once.
        Has::Kept(at, keeper) => unsafe { (keeper.give_back)(at) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn depth() -> usize {
        current().depth()
    }

    #[test]
    fn entries_are_taken_out_in_any_order() {
        let [first, second, third] = [(); 3].map(|()| UnderWay::note(Has::Nothing));
        assert_eq!(depth(), 3);
        drop(second);
        assert_eq!(depth(), 3);
        drop(third);
        assert_eq!(depth(), 1);
        assert!(current().has_noted(first.0));
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
}
