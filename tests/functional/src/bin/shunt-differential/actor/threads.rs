//! Threads that can be cancelled, and calls that signal handlers can jump out of.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use shunt_functional::differential::board::Line;
use shunt_functional::differential::plan::THREADS;

use super::{arrive, me, take_steps, world};

/// The process's threads, as the C library names them.
static HANDLES: [AtomicU64; THREADS] = [const { AtomicU64::new(0) }; THREADS];
/// A key of the C library's, plus one, at whose end a thread says that it is gone.
static LAST: AtomicU32 = AtomicU32::new(0);

extern "C" fn leave(_: *mut c_void) {
    let board = &world().board;
    board.slot(me()).tid.store(0, Ordering::Release);
    board.ring();
}

extern "C-unwind" fn body(thread: *mut c_void) -> *mut c_void {
    let key = LAST.load(Ordering::Relaxed);
    // SAFETY: the key was made before the thread; any value but null has `leave` called.
    unsafe { libc::pthread_setspecific(key.wrapping_sub(1), ptr::without_provenance(1)) };
    let thread = u8::try_from(thread.addr()).unwrap_or(0);
    arrive(thread);
    take_steps(thread)
}

/// Starts a thread of the process.
pub fn start(thread: u8) {
    let mut handle = 0;
    let number = ptr::without_provenance_mut(thread.into());
    // SAFETY: when it is cancelled the thread unwinds through `body`, which the C library lets it, and through frames without
    // destructors that matter. The argument is a number.
    unsafe {
        if LAST.load(Ordering::Relaxed) == 0 {
            let mut key = 0;
            if libc::pthread_key_create(&raw mut key, Some(leave)) == 0 {
                LAST.store(key + 1, Ordering::Relaxed);
            }
        }
        let body: extern "C" fn(*mut c_void) -> *mut c_void =
            mem::transmute(body as extern "C-unwind" fn(*mut c_void) -> *mut c_void);
        if libc::pthread_create(&raw mut handle, ptr::null(), body, number) == 0 {
            libc::pthread_detach(handle);
            HANDLES[usize::from(thread) % THREADS].store(handle, Ordering::Relaxed);
        }
    }
}

/// Cancels a thread of the process that is there.
pub fn cancel(thread: u32, line: &mut Line) {
    let actor = shunt_functional::differential::plan::Actor {
        process: me().process,
        thread: u8::try_from(thread).unwrap_or(0),
    };
    let handle = HANDLES[usize::from(actor.thread) % THREADS].load(Ordering::Relaxed);
    let lives = world().board.slot(actor).tid.load(Ordering::Acquire) != 0;
    if actor.thread == 0 || !lives || handle == 0 {
        return line.say(format_args!("nobody"));
    }
    // SAFETY: the thread lives: it waits for steps, or is in one.
    match unsafe { libc::pthread_cancel(handle) } {
        0 => line.say(format_args!("ok")),
        code => line.say(format_args!("error {code}")),
    }
}

/// Room for a `sigjmp_buf` of any machine.
#[repr(C, align(16))]
struct Place([u64; 64]);

unsafe extern "C" {
    fn __sigsetjmp(place: *mut Place, with_mask: c_int) -> c_int;
    fn siglongjmp(place: *mut Place, value: c_int) -> !;
}

thread_local! {
    /// Where to go when a handler jumps out; null when there is nothing to jump out of.
    static PLACE: Cell<*mut Place> = const { Cell::new(ptr::null_mut()) };
}

/// Calls `call`; false when a signal handler has jumped out of it, by siglongjmp(3).
pub fn protected(call: impl FnMut()) -> bool {
    extern "C-unwind" fn one<F: FnMut()>(call: *mut c_void) {
        // SAFETY: it points to the closure, which outlives the call.
        unsafe { (*call.cast::<F>())() }
    }
    fn enter<F: FnMut()>(mut call: F, place: *mut Place) -> c_int {
        // SAFETY: `one` gets the closure that it is made for. What is jumped over has nothing to clean up.
        unsafe { call_here(place, one::<F>, (&raw mut call).cast()) }
    }
    let mut place = Place([0; 64]);
    PLACE.set(&raw mut place);
    let jumped = enter(call, &raw mut place);
    PLACE.set(ptr::null_mut());
    jumped == 0
}

/// Jumps out of what this thread has been interrupted in, if that was in [`protected`].
pub fn jump() {
    let place = PLACE.replace(ptr::null_mut());
    if !place.is_null() {
        // SAFETY: the place is that of a call which has not returned.
        unsafe { siglongjmp(place, 1) }
    }
}

/// Notes in `place` where it is, and calls `call`: 0 when that returns, 1 after a jump. `sigsetjmp` returns twice, which
/// is nothing for a function of Rust's; the frame of this one is still there then.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C-unwind" fn call_here(
    place: *mut Place,
    call: extern "C-unwind" fn(*mut c_void),
    arg: *mut c_void,
) -> c_int {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "push rbx",
        ".cfi_adjust_cfa_offset 8",
        "push rbp",
        ".cfi_adjust_cfa_offset 8",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "mov rbx, rsi",
        "mov rbp, rdx",
        "mov esi, 1",
        "call {sigsetjmp}@PLT",
        "test eax, eax",
        "jnz 2f",
        "mov rdi, rbp",
        "call rbx",
        "xor eax, eax",
        "2:",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "pop rbp",
        ".cfi_adjust_cfa_offset -8",
        "pop rbx",
        ".cfi_adjust_cfa_offset -8",
        "ret",
        ".cfi_endproc",
        sigsetjmp = sym __sigsetjmp,
    )
}

/// See above.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C-unwind" fn call_here(
    place: *mut Place,
    call: extern "C-unwind" fn(*mut c_void),
    arg: *mut c_void,
) -> c_int {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "stp x29, x30, [sp, #-32]!",
        ".cfi_def_cfa_offset 32",
        ".cfi_offset x29, -32",
        ".cfi_offset x30, -24",
        "stp x19, x20, [sp, #16]",
        ".cfi_offset x19, -16",
        ".cfi_offset x20, -8",
        "mov x19, x1",
        "mov x20, x2",
        "mov w1, #1",
        "bl {sigsetjmp}",
        "cbnz w0, 2f",
        "mov x0, x20",
        "blr x19",
        "mov w0, #0",
        "2:",
        "ldp x19, x20, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        ".cfi_def_cfa_offset 0",
        "ret",
        ".cfi_endproc",
        sigsetjmp = sym __sigsetjmp,
    )
}
