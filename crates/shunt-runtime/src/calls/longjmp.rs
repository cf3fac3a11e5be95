//! longjmp(3): the calls of which the frames are left.

use core::ptr;

use crate::calls::{State, current, give_back};

/// Before longjmp(3) and its kind, to where `env` says.
pub fn before_longjmp(env: usize) {
    let thread = current();
    if thread.depth() == 0 {
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
            // What it has is told by its state.
            let has = place.has();
            place.state.set(State::Over);
            give_back(has);
        }
    }
    thread.trim();
    thread.end_deferred();
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
        if unsafe { libc::sigaltstack(ptr::null(), &raw mut stack) } != 0 {
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
    let words = ptr::with_exposed_provenance::<usize>(env);
    // SAFETY: the caller promises a filled environment, which has eight words for registers.
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
    use core::cell::Cell;

    use super::*;
    use crate::calls::{Has, UnderWay};

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_jump_gives_back_what_lies_below_its_target() {
        struct Given<'a>(&'a Cell<u32>);
        impl Drop for Given<'_> {
            fn drop(&mut self) {
                self.0.set(self.0.get() + 1);
            }
        }
        unsafe extern "C" {
            fn _setjmp(env: *mut usize) -> core::ffi::c_int;
        }
        #[inline(never)]
        fn deeper(env: usize, count: &Cell<u32>) -> usize {
            // The jump drops it in the place of this frame, which comes back in the test alone.
            let given = core::mem::ManuallyDrop::new(Given(count));
            let inner = UnderWay::note(Has::value::<Given<'_>>(&given));
            before_longjmp(env);
            let is_live = current().has_noted(inner.0);
            drop(inner);
            usize::from(is_live)
        }
        let outer = UnderWay::note(Has::Nothing);
        let mut env = [0_usize; 32];
        // SAFETY: the buffer is longer than `jmp_buf`; nobody jumps there.
        unsafe { _setjmp(env.as_mut_ptr()) };
        let env = env.as_ptr().expose_provenance();
        let count = Cell::new(0);
        assert_eq!(deeper(env, &count), 0, "it was left");
        assert_eq!(count.get(), 1, "what it had was given back");
        // Its address lies in a frame of `note`, below this one.
        assert!(!current().has_noted(outer.0) || current().depth() >= 1);
    }
}
