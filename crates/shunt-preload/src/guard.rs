//! What stands between the program and a handler: a panic must never reach the program.
//!
//! An exported function is a few instructions of assembly (`guarded_function!`): it saves the
//! argument registers, calls the handler, and returns what that returned. If the handler panics,
//! the unwinder asks the frame's [`personality`], which sends it to the frame's landing pad; there
//! the panic is disposed of, the arguments are restored, and the call goes on to the next
//! definition as if Shunt were not there.
//!
//! Why not `catch_unwind`: glibc cancels a thread (`pthread_cancel`, `pthread_exit`) by a *forced
//! unwind* through these very frames, since most of the hooked functions are cancellation points.
//! `catch_unwind` stops a forced unwind and aborts the program; this personality lets it pass.
//! The good path costs the saved registers, nothing else.

use core::ffi::{c_int, c_void};

use shunt_runtime::contain;

/// The unwinder's view of a frame.
#[repr(C)]
pub struct UnwindContext {
    _opaque: [u8; 0],
}

// The Itanium C++ ABI's "level I" interface, which std links already (libgcc_s).
unsafe extern "C-unwind" {
    fn _Unwind_GetLanguageSpecificData(context: *mut UnwindContext) -> *mut c_void;
    fn _Unwind_SetGR(context: *mut UnwindContext, register: c_int, value: usize);
    fn _Unwind_SetIP(context: *mut UnwindContext, ip: usize);
    fn _Unwind_RaiseException(exception: *mut c_void) -> c_int;
}

const SEARCH_PHASE: c_int = 1;
const HANDLER_FRAME: c_int = 4;
const FORCE_UNWIND: c_int = 8;
const HANDLER_FOUND: c_int = 6;
const INSTALL_CONTEXT: c_int = 7;
const CONTINUE_UNWIND: c_int = 8;

/// `_Unwind_Exception::exception_class` of Rust's panics. Not a promise of std's: should it change,
/// the test below fails.
const RUST_PANIC: u64 = u64::from_ne_bytes(*b"MOZ\0RUST");

/// The register in which a landing pad gets the exception
/// (`__builtin_eh_return_data_regno(0)`): rax, or x0.
const EXCEPTION_REGISTER: c_int = 0;

/// Personality of the guarded frames: stops Rust panics, lets everything else pass.
///
/// A guarded frame has one landing pad, so its language-specific data is not a table: the address
/// that the unwinder takes for the table's is the landing pad's own.
///
/// # Safety
/// For the unwinder alone.
pub unsafe extern "C" fn personality(
    _version: c_int,
    actions: c_int,
    class: u64,
    exception: *mut c_void,
    context: *mut UnwindContext,
) -> c_int {
    if class != RUST_PANIC || actions & FORCE_UNWIND != 0 {
        return CONTINUE_UNWIND;
    }
    if actions & SEARCH_PHASE != 0 {
        return HANDLER_FOUND;
    }
    if actions & HANDLER_FRAME == 0 {
        return CONTINUE_UNWIND;
    }
    // SAFETY: the unwinder passes a context that is valid for this call, of a frame that names
    // this personality and so has its landing pad in the place of the table.
    unsafe {
        let landing_pad = _Unwind_GetLanguageSpecificData(context);
        _Unwind_SetGR(context, EXCEPTION_REGISTER, exception.addr());
        _Unwind_SetIP(context, landing_pad.addr());
    }
    INSTALL_CONTEXT
}

/// Ends a panic whose unwinding was stopped at a landing pad.
///
/// Only std can take its exception apart (and must: it counts running panics per thread), so the
/// exception is raised once more under std's own `catch_unwind`. No forced unwind can be under way
/// here.
///
/// # Safety
/// `exception` is that of a Rust panic that [`personality`] stopped. It is used up.
pub unsafe extern "C" fn forget_panic(exception: *mut c_void) {
    let _keep = shunt_runtime::system::errno::KeepErrno::new();
    // SAFETY: the exception is whole and no longer being unwound; an exception may be raised again.
    let raise = || unsafe {
        _Unwind_RaiseException(exception);
    };
    contain::contain(raise);
}

/// Defines a function that calls a handler, and the next definition if the handler panics.
///
/// x86-64: the handler's and the caller's frames look alike (six register arguments, and at most
/// one more on the stack, which is copied and at once aligns the frame; where there is no seventh
/// argument the copy is of no consequence).
macro_rules! guarded_function {
    ($(#[$attr:meta])* fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty = $handler:path, else $next:path;) => {
        const _: () = {
            unsafe extern "C-unwind" fn handler($($arg: $ty),*) -> $ret {
                // SAFETY: the caller keeps the contract of the C function of this name.
                unsafe { $handler($($arg),*) }
            }

            unsafe extern "C-unwind" fn fallback($($arg: $ty),*) -> $ret {
                // SAFETY: the arguments are those that the handler was given, untouched.
                unsafe {
                    $crate::guard::after_panic!(($($arg)*) ($($arg)*) $next)
                }
            }

            $(#[$attr])*
            #[unsafe(naked)]
            #[allow(named_asm_labels, reason = "a directive takes no numbered label; a naked \
                function is emitted once, and the label carries the handler's mangled name")]
            unsafe extern "C-unwind" fn $name($($arg: $ty),*) -> $ret {
                $crate::guard::guard_body!(handler, fallback)
            }
        };
    };
}
#[cfg(not(test))]
pub(crate) use guarded_function;

/// What a call comes to after a panic in its handler: the connections that its arguments name are
/// put into a state in which the next definition may do it ([`crate::panics`]). The names of the
/// arguments, as the list of hooks has them, tell what these are.
macro_rules! after_panic {
    ((fd buf $($_x:ident)*) ($($arg:ident)*) $next:path) => {
        $crate::guard::after_panic!(@bytes ($($arg)*) $next)
    };
    ((fd iov $($_x:ident)*) ($($arg:ident)*) $next:path) => {
        $crate::guard::after_panic!(@bytes ($($arg)*) $next)
    };
    ((fd msg $($_x:ident)*) ($($arg:ident)*) $next:path) => {
        $crate::guard::after_panic!(@bytes ($($arg)*) $next)
    };
    (@bytes ($fd:ident $($arg:ident)*) $next:path) => {
        match $crate::panics::after($fd) {
            true => $crate::panics::Failed::failed(),
            false => $crate::panics::whole($fd, $next($fd $(, $arg)*)),
        }
    };
    ((fd $($_x:ident)*) ($fd:ident $($arg:ident)*) $next:path) => {
        match $crate::panics::after($fd) {
            true => $crate::panics::Failed::failed(),
            false => $next($fd $(, $arg)*),
        }
    };
    ((out input $($_x:ident)*) ($out:ident $in:ident $($arg:ident)*) $next:path) => {
        match $crate::panics::after($out) | $crate::panics::after($in) {
            true => $crate::panics::Failed::failed(),
            false => $next($out, $in $(, $arg)*),
        }
    };
    ((input off_in out $($_x:ident)*) ($in:ident $off:ident $out:ident $($arg:ident)*) $next:path) => {
        match $crate::panics::after($out) | $crate::panics::after($in) {
            true => $crate::panics::Failed::failed(),
            false => $crate::panics::whole($in, $next($in, $off, $out $(, $arg)*)),
        }
    };
    ((fds count $($_x:ident)*) ($fds:ident $count:ident $($arg:ident)*) $next:path) => {{
        $crate::panics::after_poll($fds, $count);
        $next($fds, $count $(, $arg)*)
    }};
    ((count read write except $($_x:ident)*) ($count:ident $r:ident $w:ident $e:ident $($arg:ident)*) $next:path) => {{
        $crate::panics::after_select($count, [$r, $w, $e]);
        $next($count, $r, $w, $e $(, $arg)*)
    }};
    ((epfd op fd event) ($epfd:ident $op:ident $fd:ident $event:ident) $next:path) => {
        $crate::panics::epoll_ctl($epfd, $op, $fd, $event)
    };
    ((epfd $($_x:ident)*) ($epfd:ident $($arg:ident)*) $next:path) => {{
        $crate::panics::after_wait_for($epfd);
        $next($epfd $(, $arg)*)
    }};
    (($($_x:ident)*) ($($arg:ident)*) $next:path) => { $next($($arg),*) };
}
pub(crate) use after_panic;

#[cfg(target_arch = "x86_64")]
macro_rules! guard_body {
    ($handler:ident, $fallback:ident) => {
        core::arch::naked_asm!(
            ".cfi_startproc",
            ".cfi_personality 0x1b, {personality}",
            ".cfi_lsda 0x1b, .Llanding_pad_{handler}",
            "push rdi",
            ".cfi_adjust_cfa_offset 8",
            "push rsi",
            ".cfi_adjust_cfa_offset 8",
            "push rdx",
            ".cfi_adjust_cfa_offset 8",
            "push rcx",
            ".cfi_adjust_cfa_offset 8",
            "push r8",
            ".cfi_adjust_cfa_offset 8",
            "push r9",
            ".cfi_adjust_cfa_offset 8",
            "push qword ptr [rsp + 56]",
            ".cfi_adjust_cfa_offset 8",
            "call {handler}",
            "add rsp, 56",
            ".cfi_adjust_cfa_offset -56",
            "ret",
            ".cfi_adjust_cfa_offset 56",
            ".Llanding_pad_{handler}:",
            "mov rdi, rax",
            "call {forget_panic}",
            "add rsp, 8",
            ".cfi_adjust_cfa_offset -8",
            "pop r9",
            ".cfi_adjust_cfa_offset -8",
            "pop r8",
            ".cfi_adjust_cfa_offset -8",
            "pop rcx",
            ".cfi_adjust_cfa_offset -8",
            "pop rdx",
            ".cfi_adjust_cfa_offset -8",
            "pop rsi",
            ".cfi_adjust_cfa_offset -8",
            "pop rdi",
            ".cfi_adjust_cfa_offset -8",
            "jmp {fallback}",
            ".cfi_endproc",
            handler = sym $handler,
            fallback = sym $fallback,
            personality = sym $crate::guard::personality,
            forget_panic = sym $crate::guard::forget_panic,
        )
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! guard_body {
    ($handler:ident, $fallback:ident) => {
        core::arch::naked_asm!(
            ".cfi_startproc",
            ".cfi_personality 0x1b, {personality}",
            ".cfi_lsda 0x1b, .Llanding_pad_{handler}",
            "stp x29, x30, [sp, #-80]!",
            ".cfi_def_cfa_offset 80",
            ".cfi_offset x29, -80",
            ".cfi_offset x30, -72",
            "mov x29, sp",
            "stp x0, x1, [sp, #16]",
            "stp x2, x3, [sp, #32]",
            "stp x4, x5, [sp, #48]",
            "stp x6, x7, [sp, #64]",
            "bl {handler}",
            ".cfi_remember_state",
            "ldp x29, x30, [sp], #80",
            ".cfi_restore x29",
            ".cfi_restore x30",
            ".cfi_def_cfa_offset 0",
            "ret",
            ".cfi_restore_state",
            ".Llanding_pad_{handler}:",
            "bl {forget_panic}",
            "ldp x0, x1, [sp, #16]",
            "ldp x2, x3, [sp, #32]",
            "ldp x4, x5, [sp, #48]",
            "ldp x6, x7, [sp, #64]",
            "ldp x29, x30, [sp], #80",
            ".cfi_restore x29",
            ".cfi_restore x30",
            ".cfi_def_cfa_offset 0",
            "b {fallback}",
            ".cfi_endproc",
            handler = sym $handler,
            fallback = sym $fallback,
            personality = sym $crate::guard::personality,
            forget_panic = sym $crate::guard::forget_panic,
        )
    };
}
pub(crate) use guard_body;

#[cfg(test)]
mod tests {

    use super::*;
    use core::sync::atomic::Ordering;
    use shunt_runtime::contain::{PANICS, silence_panics};

    mod cases {
        use std::sync::atomic::AtomicUsize;

        pub static DROPS: AtomicUsize = AtomicUsize::new(0);

        pub struct CountDrop;
        impl Drop for CountDrop {
            fn drop(&mut self) {
                DROPS.fetch_add(1, super::Ordering::Relaxed);
            }
        }

        /// Seven arguments: the last travels on the stack on x86-64.
        pub unsafe fn weigh(a: u64, b: u64, c: u64, d: u64, e: u64, f: u64, g: u64) -> u64 {
            a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g
        }

        pub unsafe fn panics(_: u64, _: u64, _: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
            let _count = CountDrop;
            panic!("contained");
        }

        pub unsafe fn sleeps_forever(fd: i32) -> i32 {
            let _count = CountDrop;
            // SAFETY: a null set of descriptors of length 0; waits until it is cancelled.
            unsafe { crate::next::poll(std::ptr::null_mut(), 0, -1) + fd }
        }

        pub unsafe fn never(_: i32) -> i32 {
            unreachable!()
        }
    }

    macro_rules! call {
        ($name:ident($($arg:ident: $ty:ty),*) -> $ret:ty, $handler:path, $next:path) => {{
            unsafe extern "C-unwind" { fn $name($($arg: $ty),*) -> $ret; }
            guarded_function! {
                #[unsafe(no_mangle)]
                fn $name($($arg: $ty),*) -> $ret = $handler, else $next;
            }
            $name
        }};
    }

    #[test]
    fn arguments_and_result_pass_and_a_panic_falls_through_with_the_same_arguments() {
        silence_panics();
        let good = call!(shunt_test_good(a: u64, b: u64, c: u64, d: u64, e: u64, f: u64, g: u64) -> u64,
            cases::weigh, cases::panics);
        let bad = call!(shunt_test_bad(a: u64, b: u64, c: u64, d: u64, e: u64, f: u64, g: u64) -> u64,
            cases::panics, cases::weigh);
        let before = (PANICS.load(Ordering::Relaxed), cases::DROPS.load(Ordering::Relaxed));
        for _ in 0..3 {
            // SAFETY: plain numbers.
            assert_eq!(unsafe { good(1, 2, 3, 4, 5, 6, 7) }, 140);
            // SAFETY: plain numbers.
            assert_eq!(unsafe { bad(1, 2, 3, 4, 5, 6, 7) }, 140);
            assert!(!std::thread::panicking(), "the panic is over");
        }
        assert_eq!(PANICS.load(Ordering::Relaxed), before.0 + 3);
        assert!(cases::DROPS.load(Ordering::Relaxed) >= before.1 + 3);
    }

    #[test]
    fn a_cancelled_thread_unwinds_through_the_guard() {
        let sleep = call!(shunt_test_sleep(fd: i32) -> i32, cases::sleeps_forever, cases::never);
        unsafe extern "C-unwind" {
            fn pthread_create(
                thread: *mut libc::pthread_t,
                attr: *const c_void,
                start: unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void,
                arg: *mut c_void,
            ) -> c_int;
        }
        unsafe extern "C-unwind" fn start(function: *mut c_void) -> *mut c_void {
            // SAFETY: the test passes this very function.
            let sleep: unsafe extern "C-unwind" fn(i32) -> i32 =
                unsafe { core::mem::transmute(function) };
            // SAFETY: a number.
            unsafe { sleep(1) };
            core::ptr::null_mut()
        }
        let mut thread = 0;
        let mut result = core::ptr::null_mut();
        // SAFETY: the thread is cancelled and joined before the stack it uses goes away.
        unsafe {
            let function = sleep as *mut c_void;
            assert_eq!(pthread_create(&raw mut thread, core::ptr::null(), start, function), 0);
            assert_eq!(libc::pthread_cancel(thread), 0);
            assert_eq!(libc::pthread_join(thread, &raw mut result), 0);
        }
        assert_eq!(result.addr(), usize::MAX, "PTHREAD_CANCELED");
    }
}
