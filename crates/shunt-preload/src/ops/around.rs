//! The handlers that are written in the list of hooks: something before the next definition, after it, or around it.

use core::ptr;

use crate::hooks::for_each_hook;
use crate::next;
use crate::ops::process::or_absent;
use crate::ops::stream as bytes;
use shunt_runtime::conn::Conn;
use shunt_runtime::control::user::UserChange;
use shunt_runtime::descriptors::duplicate::{duplicate, duplicate_onto, duplicate_with};
use shunt_runtime::descriptors::replaced::Replaced;
use shunt_runtime::descriptors::unseen::{
    before_getting, before_request, before_requests, before_stream_ends, before_use,
};
use shunt_runtime::descriptors::{close, control};
use shunt_runtime::epoll::call::Wait;
use shunt_runtime::epoll::control::created;
use shunt_runtime::establish::accept::{self, PeerOut};
use shunt_runtime::establish::socket::was_made;
use shunt_runtime::establish::{connect, listen};
use shunt_runtime::fallback::before_prctl;
use shunt_runtime::memory::address_limit;
use shunt_runtime::memory::locking::lock_all;
use shunt_runtime::memory::mapping::{mapping, remapping, unmapping};
use shunt_runtime::poll_set;
use shunt_runtime::processes::exec::{
    become_program, before_words, run_shell, spawn_program, will_duplicate,
};
use shunt_runtime::processes::forking::{settling, watch_forks, without_handlers};
use shunt_runtime::processes::namespaces::{change_root, moving};
use shunt_runtime::select as sets;
use shunt_runtime::stream::leftover::Program;
use shunt_runtime::system::abi::*;
use shunt_runtime::system::kernel_poll::note_limit;
use shunt_runtime::system::timeout::{deadline_of, valid_deadline};
use shunt_runtime::threads::installing::{change_by_libc, install, install_by_libc};

/// Whether there is room for so many of a kind, in so many bytes.
fn has_room<T>(bytes: size_t, count: nfds_t) -> bool {
    usize::try_from(count).is_ok_and(|count| count <= bytes / size_of::<T>())
}

macro_rules! handlers {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty = $handler:path;)*
     $(around fn $around:ident($($around_arg:ident: $around_ty:ty),*) -> $around_ret:ty = |$onward:ident| $body:expr;)*
     $(never fn $never:ident($($never_arg:ident: $never_ty:ty),*) = $end:path;)*
     $(some fn $some:ident($($some_arg:ident: $some_ty:ty),*) -> $some_ret:ty = $some_handler:path, where $table:path;)*
     $(tail $tail:ident = $before:path;)*) => {
        $(
            #[doc = concat!("Of `", stringify!($around), "`.")]
            ///
            /// # Safety
            /// As the C function.
            #[allow(non_snake_case, reason = "each has the name of its function")]
            #[allow(unused_unsafe, reason = "some of the functions in the list are safe")]
            pub unsafe fn $around($($around_arg: $around_ty),*) -> $around_ret {
                // SAFETY: the caller keeps the contract of the C function of this name, whose arguments these are.
                let $onward = || unsafe { next::$around($($around_arg),*) };
                // SAFETY: the list hands these arguments alone to functions that want what the C function of this name wants.
                unsafe { $body }
            }
        )*
    };
}
for_each_hook!(handlers);
