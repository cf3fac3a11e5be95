//! Variadic functions by which a program becomes another one: execl(3) and its kind.
//!
//! What is done before they go on has to be taken back where they fail, so the next definition of them would not do: the call is
//! that of the function that takes a list. Its arguments become one where they lie. Those in registers are put in front of those
//! on the stack.

#[cfg(not(test))]
use core::ffi::{c_char, c_int, c_void};
#[cfg(not(test))]
use core::ptr::NonNull;

#[cfg(not(test))]
use shunt_runtime::system::abi::{Arguments, Strings};

#[cfg(not(test))]
use crate::guard::{after_panic, guard_body};
#[cfg(not(test))]
use crate::{next, ops};

/// The end of the list, behind which stands the environment.
#[cfg(target_arch = "x86_64")]
macro_rules! list_and_environment_body {
    ($to:ident) => {
        list_body!(
            $to,
            "mov rdx, rsi",
            "2:",
            "add rdx, 8",
            "cmp qword ptr [rdx - 8], 0",
            "jne 2b",
            "mov rdx, [rdx]",
        )
    };
}

#[cfg(target_arch = "x86_64")]
macro_rules! list_body {
    ($to:ident $(, $more:literal)* $(,)?) => {
        core::arch::naked_asm!(
            ".cfi_startproc",
            // The return address, which lies between the arguments.
            "pop rax",
            ".cfi_adjust_cfa_offset -8",
            ".cfi_register rip, rax",
            "push r9",
            ".cfi_adjust_cfa_offset 8",
            "push r8",
            ".cfi_adjust_cfa_offset 8",
            "push rcx",
            ".cfi_adjust_cfa_offset 8",
            "push rdx",
            ".cfi_adjust_cfa_offset 8",
            "push rsi",
            ".cfi_adjust_cfa_offset 8",
            "mov rsi, rsp",
            "push rax",
            ".cfi_adjust_cfa_offset 8",
            ".cfi_offset rip, -48",
            $($more,)*
            "call {to}",
            "pop rcx",
            ".cfi_adjust_cfa_offset -8",
            ".cfi_register rip, rcx",
            "add rsp, 40",
            ".cfi_adjust_cfa_offset -40",
            "push rcx",
            ".cfi_adjust_cfa_offset 8",
            ".cfi_offset rip, -8",
            "ret",
            ".cfi_endproc",
            to = sym $to,
        )
    };
}

/// The end of the list, behind which stands the environment.
#[cfg(target_arch = "aarch64")]
macro_rules! list_and_environment_body {
    ($to:ident) => {
        list_body!($to, "mov x9, x1", "2:", "ldr x10, [x9], #8", "cbnz x10, 2b", "ldr x2, [x9]",)
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! list_body {
    ($to:ident $(, $more:literal)* $(,)?) => {
        core::arch::naked_asm!(
            ".cfi_startproc",
            "stp x29, x30, [sp, #-80]!",
            ".cfi_def_cfa_offset 80",
            ".cfi_offset x29, -80",
            ".cfi_offset x30, -72",
            "mov x29, sp",
            "str x1, [sp, #24]",
            "stp x2, x3, [sp, #32]",
            "stp x4, x5, [sp, #48]",
            "stp x6, x7, [sp, #64]",
            "add x1, sp, #24",
            $($more,)*
            "bl {to}",
            "ldp x29, x30, [sp], #80",
            ".cfi_restore x29",
            ".cfi_restore x30",
            ".cfi_def_cfa_offset 0",
            "ret",
            ".cfi_endproc",
            to = sym $to,
        )
    };
}

/// Where a function that `$name` is the hook on goes on to: to `$to`, guarded.
#[cfg(not(test))]
macro_rules! in_list {
    ($(fn $name:ident = $to:ident($($arg:ident: $ty:ty),*), by $body:ident;)*) => {
        $(
            #[doc = concat!("Of `", stringify!($name), "`.")]
            pub fn $name(_: Arguments) -> Option<NonNull<c_void>> {
                unsafe extern "C-unwind" fn handler($($arg: $ty),*) -> c_int {
                    // SAFETY: the caller keeps the contract of the variadic function, and so that of the one with a list.
                    unsafe { ops::around::$to($($arg),*) }
                }

                unsafe extern "C-unwind" fn fallback($($arg: $ty),*) -> c_int {
                    // SAFETY: the arguments are those that the handler was given, untouched.
                    unsafe { after_panic!(($($arg)*) ($($arg)*) next::$to) }
                }

                #[unsafe(naked)]
                #[allow(named_asm_labels, reason = "as in guarded_function")]
                unsafe extern "C-unwind" fn guarded($($arg: $ty),*) -> c_int {
                    guard_body!(handler, fallback)
                }

                #[unsafe(naked)]
                unsafe extern "C-unwind" fn listed() {
                    $body!(guarded)
                }

                NonNull::new(listed as *mut c_void)
            }
        )*
    };
}

#[cfg(not(test))]
in_list! {
    fn execl = execv(path: *const c_char, argv: Strings), by list_body;
    fn execlp = execvp(file: *const c_char, argv: Strings), by list_body;
    fn execle = execve(path: *const c_char, argv: Strings, envp: Strings), by list_and_environment_body;
}

#[cfg(test)]
mod tests {
    use core::ffi::{CStr, c_char, c_int};

    /// Reads the list, and what stands behind it.
    unsafe extern "C-unwind" fn reads(
        path: *const c_char,
        argv: *const *const c_char,
        envp: *const *const c_char,
    ) -> c_int {
        // SAFETY: strings, of which a null ends each list.
        let text = |list: *const *const c_char| unsafe {
            let mut text = Vec::new();
            for n in 0.. {
                match *list.add(n) {
                    string if string.is_null() => break,
                    string => text.push(CStr::from_ptr(string).to_str().unwrap()),
                }
            }
            text.concat()
        };
        // SAFETY: a string.
        assert_eq!(unsafe { CStr::from_ptr(path) }, c"path");
        if !envp.is_null() {
            assert_eq!(text(envp), "A=1B=2");
        }
        // The frames can be walked, down to the test.
        assert!(std::backtrace::Backtrace::force_capture().to_string().contains("test_of_lists"));
        text(argv).parse().unwrap()
    }

    unsafe extern "C-unwind" fn reads_list(
        path: *const c_char,
        argv: *const *const c_char,
    ) -> c_int {
        // SAFETY: the caller's.
        unsafe { reads(path, argv, core::ptr::null()) }
    }

    #[unsafe(naked)]
    #[unsafe(no_mangle)]
    unsafe extern "C-unwind" fn shunt_test_in_list() {
        list_body!(reads_list)
    }

    #[unsafe(naked)]
    #[unsafe(no_mangle)]
    unsafe extern "C-unwind" fn shunt_test_in_list_with_environment() {
        list_and_environment_body!(reads)
    }

    type Variadic = unsafe extern "C-unwind" fn(*const c_char, ...) -> c_int;

    fn as_variadic(function: unsafe extern "C-unwind" fn()) -> Variadic {
        // SAFETY: a function that takes its arguments from where those of a variadic one lie.
        unsafe { core::mem::transmute(function) }
    }

    #[test]
    fn test_of_lists_wherever_the_arguments_lie() {
        let list = as_variadic(shunt_test_in_list);
        let (path, end) = (c"path".as_ptr(), core::ptr::null::<c_char>());
        let [a, b, c] = [c"1".as_ptr(), c"2".as_ptr(), c"3".as_ptr()];
        // SAFETY: strings, and a null behind the last.
        unsafe {
            assert_eq!(list(path, a, end), 1);
            assert_eq!(list(path, a, b, c, a, end), 1231);
            assert_eq!(list(path, a, b, c, a, b, end), 12312);
            assert_eq!(list(path, a, b, c, a, b, c, end), 123_123);
            assert_eq!(list(path, a, b, c, a, b, c, a, b, end), 12_312_312);
        }
    }

    #[test]
    fn test_of_lists_with_the_environment_behind_them() {
        let list = as_variadic(shunt_test_in_list_with_environment);
        let (path, end) = (c"path".as_ptr(), core::ptr::null::<c_char>());
        let [a, b, c] = [c"1".as_ptr(), c"2".as_ptr(), c"3".as_ptr()];
        let environment = [c"A=1".as_ptr(), c"B=2".as_ptr(), end];
        let envp = environment.as_ptr();
        // SAFETY: strings, a null behind the last, and a list of strings behind that.
        unsafe {
            assert_eq!(list(path, a, end, envp), 1);
            assert_eq!(list(path, a, b, c, end, envp), 123);
            assert_eq!(list(path, a, b, c, a, end, envp), 1231);
            assert_eq!(list(path, a, b, c, a, b, end, envp), 12312);
            assert_eq!(list(path, a, b, c, a, b, c, end, envp), 123_123);
        }
    }
}
