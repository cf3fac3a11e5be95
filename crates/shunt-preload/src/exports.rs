//! The exported functions. A test executable must not have them: it would hook itself.

use crate::guard::guarded_function;
use crate::hooks::for_each_hook;
use crate::tail_call::{some_function, tail_function};
use crate::{next, ops};
use shunt_runtime::system::abi::*;

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
        $(guarded_function! {
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, reason = "C's names")]
            fn $around($($around_arg: $around_ty),*) -> $around_ret = ops::around::$around, else next::$around;
        })*
        $(guarded_function! {
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, reason = "C's names")]
            fn $never($($never_arg: $never_ty),*) -> ! = $end, else next::$never;
        })*
        $(tail_function! {
            #[unsafe(no_mangle)]
            fn $tail = $before, then next::slots::$tail;
        })*
    };
}
for_each_hook!(export);
