//! Sections of the library above which none of the program's signal handlers is to run.
//!
//! To block signals and to let them through again takes two system calls, and nearly always no signal comes in between. So a
//! section blocks nothing. The function that stands in the place of each of the program's handlers ([`super::handlers`]) asks
//! whether it has interrupted one: then it leaves the signal pending, has the thread go on with all signals blocked, and the end
//! of the section lets them through. The handler runs then, and finds what it would have found had they been blocked from the
//! beginning.
//!
//! A handler of which the library does not know would run above a section all the same. So signals are blocked as each section
//! begins until a look has found that all handlers are covered, and from the moment on at which one finds another.

use core::cell::Cell;
use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering, compiler_fence};

use libc::{siginfo_t, ucontext_t};
use shunt_sys::pending::leave_pending;

/// Signals that a program's own fault raises: those no section holds off.
pub const FAULTS: [c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS];

/// Signals as the kernel has a set of them: bit `n - 1` is signal `n`.
type Set = u64;

/// All but those of faults, those that nobody blocks, and the two that libc needs itself (`SIGCANCEL` and `SIGSETXID`).
const HELD_OFF: Set = {
    let mut set = !(bit(libc::SIGKILL) | bit(libc::SIGSTOP) | bit(32) | bit(33));
    let mut i = 0;
    while i < FAULTS.len() {
        set &= !bit(FAULTS[i]);
        i += 1;
    }
    set
};

const fn bit(signal: c_int) -> Set {
    1 << (signal - 1)
}

/// Sections that begin block no signals.
static BLOCK_NONE: AtomicBool = AtomicBool::new(false);
/// That is settled for good: they block them.
static BLOCK_ALWAYS: AtomicBool = AtomicBool::new(false);

thread_local! {
    static THREAD: Thread = const {
        Thread { depth: Cell::new(0), blocks: Cell::new(false), before: Cell::new(0) }
    };
}

/// A thread's sections.
struct Thread {
    /// How many there are, one in the other.
    depth: Cell<u32>,
    /// The thread blocks signals for them.
    blocks: Cell<bool>,
    /// What it has blocked otherwise.
    before: Cell<Set>,
}

/// Begins a section, maybe in another one.
pub fn begin() {
    THREAD.with(|thread| {
        let depth = thread.depth.get();
        if depth == 0 && !BLOCK_NONE.load(Ordering::Relaxed) {
            thread.before.set(block_all());
            thread.blocks.set(true);
        }
        thread.depth.set(depth + 1);
        // What follows is above the note, for a handler of this thread.
        compiler_fence(Ordering::SeqCst);
    });
}

/// True in one.
#[must_use]
pub fn are_under_way() -> bool {
    THREAD.with(|thread| thread.depth.get() > 0)
}

/// Ends the innermost section. With the outermost, signals that have come meanwhile have their handlers called.
pub fn end() {
    THREAD.with(|thread| {
        compiler_fence(Ordering::SeqCst);
        let depth = thread.depth.get() - 1;
        thread.depth.set(depth);
        // A handler that runs from here on runs at once; one that was held off before has left word.
        compiler_fence(Ordering::SeqCst);
        if depth == 0 && thread.blocks.get() {
            // Nothing comes in between: they are blocked.
            thread.blocks.set(false);
            set_blocked(thread.before.get());
        }
    });
}

/// Sections block signals from now on, for good: there is a handler that is not covered, or one that the kernel takes back as it
/// calls it, which would not be there the second time.
pub fn block_always() {
    BLOCK_ALWAYS.store(true, Ordering::Relaxed);
    BLOCK_NONE.store(false, Ordering::SeqCst);
}

/// All handlers were found covered.
pub fn are_covered() {
    BLOCK_NONE.store(true, Ordering::SeqCst);
    if BLOCK_ALWAYS.load(Ordering::Relaxed) {
        BLOCK_NONE.store(false, Ordering::SeqCst);
    }
}

/// True now and then, for one that asks as each section begins: whether it should look for handlers that are not covered. Nobody hears of
/// those that the program installs by a system call of its own.
#[must_use]
pub fn is_look_due() -> bool {
    /// A program that makes few connections is spared the look, which takes as long as some ten sections.
    const FIRST: u32 = 16;
    const NEXT: u32 = 1 << 10;
    static SECTIONS: AtomicU32 = AtomicU32::new(0);
    SECTIONS.fetch_add(1, Ordering::Relaxed) % NEXT == FIRST
        && !BLOCK_ALWAYS.load(Ordering::Relaxed)
}

/// As at the program's start; whether sections then come to block signals.
#[cfg(test)]
pub fn blocks_after(look: impl FnOnce()) -> bool {
    BLOCK_ALWAYS.store(false, Ordering::Relaxed);
    BLOCK_NONE.store(false, Ordering::Relaxed);
    look();
    !BLOCK_NONE.load(Ordering::Relaxed)
}

/// In the place of a handler: where it has interrupted a section the signal is left pending, and this thread goes on with all of them
/// blocked until the section ends. False: the handler is to run.
///
/// # Safety
/// The arguments with which the kernel has called a handler that takes all three.
pub unsafe fn hold_off(signal: c_int, info: *const siginfo_t, context: *mut c_void) -> bool {
    THREAD.with(|thread| {
        if thread.depth.get() == 0 {
            return false;
        }
        // SAFETY: the caller's promise. The kernel's set is one word: what libc's type has behind it is something else there.
        let (info, blocked) = unsafe {
            let blocked = &raw mut (*context.cast::<ucontext_t>()).uc_sigmask;
            (&*info, blocked.cast::<Set>())
        };
        // So that it waits also where its handler lets it through (`SA_NODEFER`), and no other one comes in between.
        let here = block_all();
        if leave_pending(signal, info).is_err() {
            // It is not lost: it runs as the handler of a fault does.
            block_always();
            set_blocked(here);
            return false;
        }
        // SAFETY: this thread's, which goes on with it when its handler returns.
        let before = unsafe { blocked.replace(blocked.read() | HELD_OFF) };
        // Of several handlers, one above the other, the lowest one has interrupted the section itself. It comes to this line last.
        thread.before.set(before);
        thread.blocks.set(true);
        true
    })
}

/// Blocks all signals but those of faults; what was blocked before.
fn block_all() -> Set {
    change(libc::SIG_BLOCK, HELD_OFF)
}

fn set_blocked(blocked: Set) {
    change(libc::SIG_SETMASK, blocked);
}

fn change(how: c_int, set: Set) -> Set {
    let (mut new, mut old) = (MaybeUninit::<libc::sigset_t>::zeroed(), MaybeUninit::zeroed());
    // SAFETY: both are room for libc's set, of which the first word is the kernel's. libc leaves the signals out of which it makes use itself.
    unsafe {
        new.as_mut_ptr().cast::<Set>().write(set);
        libc::pthread_sigmask(how, new.as_ptr(), old.as_mut_ptr());
        old.as_ptr().cast::<Set>().read()
    }
}

#[cfg(test)]
mod tests {
    use core::cell::RefCell;
    use core::ptr;

    use super::*;
    use crate::testing::in_child;
    use crate::threads::handlers;

    thread_local! {
        /// Signals whose handlers have run, with what came with them and whether a section was under way.
        static RUN: RefCell<Vec<(c_int, i32, usize, bool)>> = const { RefCell::new(Vec::new()) };
    }

    extern "C" fn note(signal: c_int, info: *const siginfo_t, _: *mut c_void) {
        // SAFETY: the kernel's; these signals come with a value.
        let (code, value) = unsafe { ((*info).si_code, (*info).si_value().sival_ptr.addr()) };
        let inside = THREAD.with(|thread| thread.depth.get() > 0);
        RUN.with_borrow_mut(|run| run.push((signal, code, value, inside)));
    }

    fn install(signal: c_int, flags: c_int, mask: Set) {
        // SAFETY: all zero is an action, and an empty set.
        let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
        action.sa_sigaction = note as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | flags;
        // SAFETY: libc's set begins with the kernel's.
        unsafe { (&raw mut action.sa_mask).cast::<Set>().write(mask) };
        handlers::cover(signal, &mut action);
        // SAFETY: an action.
        let done =
            unsafe { crate::system::next::sigaction(signal, &raw const action, ptr::null_mut()) };
        assert_eq!(done, 0);
    }

    fn send(signal: c_int, value: usize) {
        let value = libc::sigval { sival_ptr: ptr::without_provenance_mut(value) };
        // SAFETY: this thread's own.
        assert_eq!(unsafe { libc::pthread_sigqueue(libc::pthread_self(), signal, value) }, 0);
    }

    fn run() -> Vec<(c_int, i32, usize, bool)> {
        RUN.take()
    }

    fn blocked() -> Set {
        change(libc::SIG_BLOCK, 0)
    }

    /// Of each section that blocks nothing: handlers run once it is over, with what came with their signals, and leave nothing
    /// blocked.
    #[test]
    fn a_signal_waits_for_the_end_of_the_section() {
        assert!(in_child(|| {
            assert!(!blocks_after(are_covered));
            let (one, two, three) = (libc::SIGUSR1, libc::SIGUSR2, libc::SIGRTMIN() + 1);
            // One blocks another one, as handlers do; and one lets itself through.
            install(one, 0, bit(two));
            install(two, libc::SA_NODEFER, 0);
            install(three, libc::SA_RESTART, 0);
            let before = change(libc::SIG_BLOCK, bit(libc::SIGHUP)) | bit(libc::SIGHUP);
            for first in [one, two, three] {
                begin();
                begin();
                send(first, 7);
                assert!(run().is_empty());
                assert_eq!(blocked(), before | HELD_OFF, "from the first one on");
                for other in [one, two, three] {
                    if other != first {
                        send(other, 8);
                    }
                }
                end();
                assert!(run().is_empty());
                end();
                let mut run = run();
                run.sort_by_key(|it| it.0);
                let value = |signal| if signal == first { 7 } else { 8 };
                let expected = [one, two, three].map(|s| (s, libc::SI_QUEUE, value(s), false));
                assert_eq!(run, expected);
                assert_eq!(blocked(), before);
            }
            // And outside of sections at once.
            send(one, 9);
            assert_eq!(run().len(), 1);
            true
        }));
    }

    /// One that comes while another one is held off: what the section's own thread had blocked is what is left.
    #[test]
    fn handlers_above_each_other_are_all_held_off() {
        assert!(in_child(|| {
            assert!(!blocks_after(are_covered));
            let (one, two) = (libc::SIGUSR1, libc::SIGUSR2);
            install(one, 0, bit(libc::SIGHUP));
            install(two, 0, bit(libc::SIGHUP));
            let before = change(libc::SIG_SETMASK, bit(one) | bit(two));
            begin();
            send(one, 1);
            send(two, 2);
            // Both are there at once: the kernel calls the second handler before the first one's first instruction.
            set_blocked(before);
            assert!(run().is_empty());
            assert_eq!(blocked(), before | HELD_OFF);
            end();
            assert_eq!(run().len(), 2);
            assert_eq!(blocked(), before);
            true
        }));
    }

    #[test]
    fn a_section_makes_no_system_call_where_all_handlers_are_covered() {
        assert!(in_child(|| {
            assert!(!blocks_after(are_covered));
            // SAFETY: system calls but read, write, exit and sigreturn kill from here on.
            unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_STRICT) };
            begin();
            end();
            // SAFETY: ends the thread, which is all of the child.
            unsafe { libc::syscall(libc::SYS_exit, 1) };
            false
        }));
    }

    #[test]
    fn signals_are_blocked_where_a_handler_may_be_unknown() {
        assert!(in_child(|| {
            assert!(blocks_after(|| ()));
            let before = blocked();
            let is_blocked = || {
                begin();
                let during = blocked();
                end();
                assert_eq!(blocked(), before);
                during == before | HELD_OFF
            };
            assert!(is_blocked(), "before the first look");
            are_covered();
            assert!(!is_blocked());
            // One that the kernel takes back when it calls it.
            install(libc::SIGUSR1, libc::SA_RESETHAND, 0);
            assert!(is_blocked());
            are_covered();
            assert!(is_blocked(), "for good");
            begin();
            send(libc::SIGUSR1, 3);
            assert!(run().is_empty());
            end();
            run().len() == 1
        }));
    }

    /// Installed by another thread while a section is under way, it is no worse off than it would be without the library.
    #[test]
    fn a_handler_that_runs_once_is_not_called_in_vain() {
        assert!(in_child(|| {
            assert!(!blocks_after(are_covered));
            begin();
            install(libc::SIGUSR1, libc::SA_RESETHAND, 0);
            send(libc::SIGUSR1, 4);
            end();
            run() == [(libc::SIGUSR1, libc::SI_QUEUE, 4, true)]
        }));
    }
}
