//! Exported functions that go on to the next definition by a jump, so that what comes back to the caller
//! does not pass through a frame of ours.

use core::ffi::c_void;
use core::ptr::NonNull;

/// Defines a function of which the handler's business is decided by the first argument: where a table
/// of bytes says 0, or has no place, it is a jump to the next definition. (What comes back from that
/// may be another stack, as with `clone`, or come twice.)
#[cfg(not(test))]
macro_rules! some_function {
    ($(#[$attr:meta])* fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty = $handler:path, where $table:path, else $next:path, by $slot:path;) => {
        const _: () = {
            unsafe extern "C-unwind" fn handler($($arg: $ty),*) -> $ret {
                // SAFETY: the caller keeps the contract of the C function of this name.
                unsafe { $handler($($arg),*) }
            }

            unsafe extern "C-unwind" fn fallback($($arg: $ty),*) -> $ret {
                // SAFETY: the arguments are those that the handler was given, untouched.
                unsafe { $crate::ops::raw::after_panic($($arg),*, || $next($($arg),*)) }
            }

            #[unsafe(naked)]
            #[allow(named_asm_labels, reason = "as in guarded_function")]
            unsafe extern "C-unwind" fn guarded($($arg: $ty),*) -> $ret {
                $crate::guard::guard_body!(handler, fallback)
            }

            $(#[$attr])*
            #[unsafe(naked)]
            unsafe extern "C-unwind" fn $name($($arg: $ty),*) -> $ret {
                $crate::tail_call::some_body!(guarded, $table, $slot)
            }
        };
    };
}
#[cfg(not(test))]
pub(crate) use some_function;

// Before the constructor the next definition is not known: the guarded function finds it.
#[cfg(all(not(test), target_arch = "x86_64"))]
macro_rules! some_body {
    ($guarded:ident, $table:path, $slot:path) => {
        core::arch::naked_asm!(
            ".cfi_startproc",
            "cmp rdi, {len}",
            "jae 2f",
            "lea r11, [rip + {table}]",
            "cmp byte ptr [r11 + rdi], {fork}",
            "jb 2f",
            "jne {guarded}",
            "test esi, {shares}",
            "jnz 2f",
            "test rdx, rdx",
            "jz {guarded}",
            "2:",
            "mov r11, [rip + {slot} + {target}]",
            "test r11, r11",
            "jz {guarded}",
            "jmp r11",
            ".cfi_endproc",
            len = const $table.len(),
            table = sym $table,
            fork = const $crate::ops::raw::FORK,
            shares = const $crate::ops::raw::SHARES,
            slot = sym $slot,
            target = const shunt_runtime::system::next::Slot::TARGET,
            guarded = sym $guarded,
        )
    };
}

#[cfg(all(not(test), target_arch = "aarch64"))]
macro_rules! some_body {
    ($guarded:ident, $table:path, $slot:path) => {
        core::arch::naked_asm!(
            ".cfi_startproc",
            "cmp x0, #{len}",
            "b.hs 2f",
            "adrp x16, {table}",
            "add x16, x16, :lo12:{table}",
            "ldrb w17, [x16, x0]",
            "cbz w17, 2f",
            "cmp w17, #{fork}",
            "b.ne {guarded}",
            "mov w16, #{low}",
            "movk w16, #{high}, lsl #16",
            "tst w1, w16",
            "b.ne 2f",
            "cbz x2, {guarded}",
            "2:",
            "adrp x16, {slot}",
            "add x16, x16, :lo12:{slot}",
            "ldr x16, [x16, #{target}]",
            "cbz x16, {guarded}",
            "br x16",
            ".cfi_endproc",
            len = const $table.len(),
            table = sym $table,
            fork = const $crate::ops::raw::FORK,
            low = const $crate::ops::raw::SHARES & 0xffff,
            high = const $crate::ops::raw::SHARES >> 16,
            slot = sym $slot,
            target = const shunt_runtime::system::next::Slot::TARGET,
            guarded = sym $guarded,
        )
    };
}
#[cfg(not(test))]
pub(crate) use some_body;

/// Where a function goes on to.
pub trait Onward {
    /// `None`: to the next definition.
    fn instead(self) -> Option<NonNull<c_void>>;
}

impl Onward for () {
    fn instead(self) -> Option<NonNull<c_void>> {
        None
    }
}

impl Onward for Option<NonNull<c_void>> {
    fn instead(self) -> Self {
        self
    }
}

/// Defines a function that runs something first, which is given the first arguments, then jumps to
/// the next definition, or to where that has said, with every argument register as it was, and the
/// stack arguments and the return address in their place: for variadic functions, vfork, and
/// functions that look at who calls them.
macro_rules! tail_function {
    ($(#[$attr:meta])* fn $name:ident = $before:path, then $slot:path;) => {
        const _: () = {
            /// Where to jump.
            extern "C" fn before(
                a: usize,
                b: usize,
                c: usize,
                caller: usize,
            ) -> *mut core::ffi::c_void {
                let mut instead = None;
                shunt_runtime::contain::contain(|| {
                    instead = $crate::tail_call::Onward::instead($before([a, b, c, caller]));
                });
                instead.map_or_else(|| $slot.get(), core::ptr::NonNull::as_ptr)
            }

            $(#[$attr])*
            #[unsafe(naked)]
            unsafe extern "C-unwind" fn $name() {
                $crate::tail_call::tail_body!(before)
            }
        };
    };
}
#[cfg(not(test))]
pub(crate) use tail_function;

#[cfg(target_arch = "x86_64")]
macro_rules! tail_body {
    ($before:ident) => {
        core::arch::naked_asm!(
            ".cfi_startproc",
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
            "push rax", // al: how many vector registers hold variadic arguments
            ".cfi_adjust_cfa_offset 8",
            "sub rsp, 128",
            ".cfi_adjust_cfa_offset 128",
            "movups [rsp + 0], xmm0",
            "movups [rsp + 16], xmm1",
            "movups [rsp + 32], xmm2",
            "movups [rsp + 48], xmm3",
            "movups [rsp + 64], xmm4",
            "movups [rsp + 80], xmm5",
            "movups [rsp + 96], xmm6",
            "movups [rsp + 112], xmm7",
            "mov rcx, [rsp + 184]", // the return address, which lies above all that
            "call {before}",
            "mov r11, rax",
            "movups xmm0, [rsp + 0]",
            "movups xmm1, [rsp + 16]",
            "movups xmm2, [rsp + 32]",
            "movups xmm3, [rsp + 48]",
            "movups xmm4, [rsp + 64]",
            "movups xmm5, [rsp + 80]",
            "movups xmm6, [rsp + 96]",
            "movups xmm7, [rsp + 112]",
            "add rsp, 128",
            ".cfi_adjust_cfa_offset -128",
            "pop rax",
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
            "jmp r11",
            ".cfi_endproc",
            before = sym $before,
        )
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! tail_body {
    ($before:ident) => {
        core::arch::naked_asm!(
            ".cfi_startproc",
            "stp x29, x30, [sp, #-208]!",
            ".cfi_def_cfa_offset 208",
            ".cfi_offset x29, -208",
            ".cfi_offset x30, -200",
            "mov x29, sp",
            "stp x0, x1, [sp, #16]",
            "stp x2, x3, [sp, #32]",
            "stp x4, x5, [sp, #48]",
            "stp x6, x7, [sp, #64]",
            "stp q0, q1, [sp, #80]",
            "stp q2, q3, [sp, #112]",
            "stp q4, q5, [sp, #144]",
            "stp q6, q7, [sp, #176]",
            "mov x3, x30",
            "bl {before}",
            "mov x16, x0",
            "ldp q0, q1, [sp, #80]",
            "ldp q2, q3, [sp, #112]",
            "ldp q4, q5, [sp, #144]",
            "ldp q6, q7, [sp, #176]",
            "ldp x0, x1, [sp, #16]",
            "ldp x2, x3, [sp, #32]",
            "ldp x4, x5, [sp, #48]",
            "ldp x6, x7, [sp, #64]",
            "ldp x29, x30, [sp], #208",
            ".cfi_restore x29",
            ".cfi_restore x30",
            ".cfi_def_cfa_offset 0",
            "br x16",
            ".cfi_endproc",
            before = sym $before,
        )
    };
}
pub(crate) use tail_body;

#[cfg(test)]
mod tests {
    use core::ffi::{CStr, c_char, c_int};
    use core::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn a_variadic_function_goes_on_with_all_its_arguments() {
        static CALLS: AtomicU64 = AtomicU64::new(0);
        fn count([.., caller]: shunt_runtime::system::abi::Arguments) {
            let here = a_variadic_function_goes_on_with_all_its_arguments as *const ();
            assert!(caller.abs_diff(here.addr()) < 1 << 16, "{caller:x} {here:?}");
            CALLS.fetch_add(1, Ordering::Relaxed);
        }
        unsafe extern "C" {
            fn shunt_test_execl(path: *const c_char, arg: *const c_char, ...) -> c_int;
        }
        tail_function! {
            #[unsafe(no_mangle)]
            fn shunt_test_execl = count, then crate::next::slots::execl;
        }
        let [path, name, option] = [c"/bin/sh", c"sh", c"-c"].map(CStr::as_ptr);
        let script = c"test $#-$1-$8 = 8-first-last".as_ptr();
        let [first, x, last] = [c"first", c"x", c"last"].map(CStr::as_ptr);
        let end = core::ptr::null::<c_char>();
        // SAFETY: a missing program's path and the end of the arguments; nothing is replaced.
        assert_eq!(unsafe { shunt_test_execl(c"/nowhere".as_ptr(), end) }, -1);
        assert_eq!(CALLS.load(Ordering::Relaxed), 1);
        // SAFETY: the child does nothing but exec or exit.
        let status = unsafe {
            let pid = libc::fork();
            if pid == 0 {
                shunt_test_execl(path, name, option, script, x, first, x, x, x, x, x, x, last, end);
                libc::_exit(99);
            }
            let mut status = -1;
            libc::waitpid(pid, &raw mut status, 0);
            status
        };
        assert_eq!(status, 0);
    }
}
