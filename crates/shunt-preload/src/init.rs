//! Start-up, in stages of which each has its reason to be where it is.
//!
//! Runs as a constructor, before `main`, in every program under `shunt run`, however short-lived:
//! no file is opened and no connection made here. If a stage fails the library stays inert: every
//! hook passes straight on.

use core::ffi::{c_char, c_int, c_void};
use core::{mem, ptr};

use shunt_shm::memfd;

use crate::{next, sanitizers};
use shunt_runtime::calls;
use shunt_runtime::conn;
use shunt_runtime::control::agent_client;
use shunt_runtime::control::listener;
use shunt_runtime::control::thread_doorbell;
use shunt_runtime::epoll::{self, reentrancy};
use shunt_runtime::fds::fd_table;
use shunt_runtime::fds::owner;
use shunt_runtime::memory::{address_limit, exports};
use shunt_runtime::processes::close;
use shunt_runtime::processes::fork;
use shunt_runtime::processes::forking::watch_forks;
use shunt_runtime::stream::grants;
use shunt_runtime::stream::leftover::take;
use shunt_runtime::stream::shut;
#[cfg(not(test))]
use shunt_runtime::system::errno;
use shunt_runtime::system::kernel_poll;
use shunt_runtime::{activity, contain, knobs};

/// What lower layers have higher ones do.
fn connect_layers() {
    owner::BECOME_CHILD.set(fork::in_child);
    calls::BEFORE_CLOSE.set(close::before_close);
    calls::DO_LATE.set(shut::do_late);
    conn::END.set(close::end_of_calls);
    reentrancy::CATCH_UP.set(epoll::table::catch_up);
    exports::TAKE_BACK.set(grants::take_back_in);
    agent_client::BEGUN.set(listener::tell_all);
}

/// Has the end by `quick_exit` noticed; for the constructor, so that the program's own handlers, which
/// may use connections still, run before.
fn watch_quick_exit() {
    type Register = unsafe extern "C" fn(extern "C" fn(*mut c_void), *mut c_void) -> c_int;
    extern "C" fn at_quick_exit(_: *mut c_void) {
        contain::contain(close::ends);
    }
    // Behind at_quick_exit(3), which is linked into programs statically.
    // SAFETY: the name is a C string.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__cxa_at_quick_exit".as_ptr()) };
    if !found.is_null() {
        // SAFETY: the function of this name in libc has this signature; the handler lives as long as
        // the library, which is never unloaded.
        unsafe { mem::transmute::<*mut c_void, Register>(found)(at_quick_exit, ptr::null_mut()) };
    }
}

/// # Safety
/// As [`knobs::init`].
unsafe fn start(argv: *const *const c_char, envp: *const *const c_char) {
    // First, so that even an inert library passes calls on without a dlsym.
    next::resolve_all();
    // Before anything that could panic.
    contain::silence_panics();
    // SAFETY: the caller's promise. Before the stages that cost memory: they are not needed when
    // Shunt is switched off, or of no use here.
    unsafe { knobs::init(argv, envp) };
    if knobs::get().disabled || sanitizers::orders_threads_by_sockets() {
        return;
    }
    // Before anything is mapped.
    if knobs::get().core {
        memfd::keep_in_dumps();
    }
    // Before anything is done.
    connect_layers();
    // Before the fork handlers, which write to the owner's page.
    if !owner::claim() {
        return;
    }
    // Before the first descriptor can be entered.
    if !fd_table::reserve() {
        return;
    }
    if !watch_forks() {
        return;
    }
    // Early, among the first keys of the program.
    if !thread_doorbell::prepare() {
        return;
    }
    // Without it a quick_exit(3) is seen by the peers as a kill.
    watch_quick_exit();
    kernel_poll::note_limit();
    address_limit::learn();
    // Before the program can look at its descriptors.
    take::take_up();
    // Last: from here on descriptors are taken up.
    activity::activate();
}

#[cfg(not(test))]
extern "C" fn constructor(_: c_int, argv: *const *const c_char, envp: *const *const c_char) {
    let _keep = errno::KeepErrno::new();
    // SAFETY: glibc's loader passes argc, argv and envp to constructors.
    contain::contain(|| unsafe { start(argv, envp) });
}

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = constructor;

/// The process ends by exit(3): programs leave the closing of their connections to the kernel, which
/// does not know of the slots and records that go with them.
#[cfg(not(test))]
extern "C" fn destructor() {
    let _keep = errno::KeepErrno::new();
    contain::contain(close::ends);
}

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static DESTRUCTOR: extern "C" fn() = destructor;

#[cfg(test)]
mod tests {
    use super::*;
    use shunt_runtime::activity::active;

    #[test]
    fn the_library_is_inert_until_started() {
        assert!(!active());
        // SAFETY: null is an empty environment.
        unsafe { start(core::ptr::null(), core::ptr::null()) };
        assert!(active());
    }
}
