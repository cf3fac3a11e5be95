//! The exported functions. A test executable must not have them: it would hook itself.

use crate::guard::guarded_function;
use crate::hooks::for_each_hook;
use crate::tail_call::{some_function, tail_function};
use crate::{in_list, next, ops};
use shunt_runtime::system::abi::*;

/// Defines a function, but for some where AddressSanitizer is a part of this library: its runtime calls those before instrumented
/// code can run.
macro_rules! exported {
    (getrlimit, $($item:tt)*) => { exported! { but_asan, $($item)* } };
    (setrlimit, $($item:tt)*) => { exported! { but_asan, $($item)* } };
    (dlsym, $($item:tt)*) => { exported! { but_asan, $($item)* } };
    (dlvsym, $($item:tt)*) => { exported! { but_asan, $($item)* } };
    (but_asan, $($item:tt)*) => { #[cfg(not(asan))] $($item)* };
    ($name:ident, $($item:tt)*) => { $($item)* };
}

macro_rules! export {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty = $handler:path;)*
     $(around fn $around:ident($($around_arg:ident: $around_ty:ty),*) -> $around_ret:ty = |$onward:ident| $body:expr;)*
     $(never fn $never:ident($($never_arg:ident: $never_ty:ty),*) = $end:path;)*
     $(some fn $some:ident($($some_arg:ident: $some_ty:ty),*) -> $some_ret:ty = $some_handler:path, where $table:path;)*
     $(tail $tail:ident = $before:path;)*) => {
        $(some_function! {
            #[unsafe(no_mangle)]
            fn $some($($some_arg: $some_ty),*) -> $some_ret = $some_handler, where $table, else next::$some, by next::slots::$some;
        })*
        $(guarded_function! {
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, reason = "C's names")]
            fn $name($($arg: $ty),*) -> $ret = $handler, else next::$name;
        })*
        $(exported! { $around, guarded_function! {
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, reason = "C's names")]
            fn $around($($around_arg: $around_ty),*) -> $around_ret = ops::around::$around, else next::$around;
        } })*
        $(guarded_function! {
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, reason = "C's names")]
            fn $never($($never_arg: $never_ty),*) -> ! = $end, else next::$never;
        })*
        $(exported! { $tail, tail_function! {
            #[unsafe(no_mangle)]
            fn $tail = $before, then next::slots::$tail;
        } })*
    };
}
for_each_hook!(export);
