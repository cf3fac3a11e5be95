//! Where the library steps back, because of what the program is about to do to itself.
//!
//! **A seccomp filter.** It may kill the program for a system call that the library makes and the program
//! does not (sshd's forked child forbids itself `getsockopt`). So before a filter is set everything
//! goes back to TCP, epoll instances are left as the program asked for them, and the table of descriptors
//! is closed: from then on each call is the kernel's. A filter that was set before the program started
//! is no matter: those that containers have permit what the library needs.
//!
//! **io_uring.** Nobody sees the calls that go through a ring, and any connection may be meant: all
//! go back to TCP, and none is taken up any more. libuv, which asks whether there is such a thing and
//! uses epoll if there is not, is told that there is none.
//!
//! **Functions of libc that are no hooks.** The same where a library is loaded that finds libc's
//! before all others.

use core::ffi::c_long;

use shunt_wire::reason::Reason;

use crate::activity;
use crate::control::listener::leave_unregistered;
use crate::epoll;
use crate::fds::fd_table::{self, Kind};
use crate::fds::owner::owns_process_state;
use crate::fds::unconnected;
use crate::stream::hand_over;
use crate::system::abi::{c_int, c_ulong};
use crate::system::errno::{self, KeepErrno};
use crate::system::filter;

const SECCOMP_SET_MODE_STRICT: c_ulong = 0;
const SECCOMP_SET_MODE_FILTER: c_ulong = 1;

/// prctl(2) is about to be called.
pub fn before_prctl(option: c_int, mode: c_ulong, filter: c_ulong) {
    // Its modes are counted from 1.
    if option == libc::PR_SET_SECCOMP && mode > 0 {
        before_seccomp(mode - 1, filter);
    }
}

/// seccomp(2) is about to be called. A filter of nothing is a program's question whether there are
/// filters.
pub fn before_seccomp(operation: c_ulong, filter: c_ulong) {
    let sets = match operation {
        SECCOMP_SET_MODE_STRICT => true,
        SECCOMP_SET_MODE_FILTER => filter != 0,
        _ => false,
    };
    if sets && owns_process_state() && activity::active() {
        let _keep = KeepErrno::new();
        filter::comes();
        leave_all();
        epoll::all().for_each(epoll::instance::Instance::dissolve);
        activity::deactivate();
        fd_table::close();
    }
}

/// io_uring_setup(2) is about to be called. The answer, if it is not to be the kernel's.
pub fn before_io_uring() -> Option<c_long> {
    if !activity::active() || !owns_process_state() {
        return None;
    }
    if can_do_without() {
        return Some(errno::fail(libc::ENOSYS));
    }
    before_unseen_calls();
    None
}

/// The program is about to make calls that no hook sees, on any connection.
pub fn before_unseen_calls() {
    if activity::active() && owns_process_state() {
        let _keep = KeepErrno::new();
        leave_all();
        activity::retire();
    }
}

/// True in programs with libuv.
fn can_do_without() -> bool {
    let _keep = KeepErrno::new();
    // SAFETY: the name is a C string; the error that a failure leaves is taken out again.
    unsafe {
        let found = !libc::dlsym(libc::RTLD_DEFAULT, c"uv_loop_init".as_ptr()).is_null();
        if !found {
            libc::dlerror();
        }
        found
    }
}

/// Every connection goes back to TCP, and nobody proposes to this process any more.
fn leave_all() {
    for (fd, entry) in fd_table::of_program() {
        match entry.kind() {
            Kind::Stream => hand_over::hand_over(fd, entry),
            Kind::Listener => {
                leave_unregistered(fd, Reason::Bypassed);
            }
            Kind::Unconnected => unconnected::forget(fd, entry),
            Kind::Kernel | Kind::Tracked | Kind::Epoll | Kind::Connecting | Kind::Own => {}
        }
    }
}
