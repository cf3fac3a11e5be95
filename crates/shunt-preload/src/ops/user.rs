//! Changes of the user, and of the root directory.
//!
//! The directory of a user's own agent is closed to all others. A server that was started as root gives its
//! privileges up before it accepts, or even before it listens, and could not reach the agent any more: what has to be
//! said to the agent is said before, and the conversation, once begun, goes on. The same is true of a program that
//! leaves the directory tree in which the agent's directory is.

use core::ffi::{c_char, c_int};
use core::sync::atomic::{AtomicU32, Ordering};

use crate::next;
use shunt_runtime::activity;
use shunt_runtime::control::listener::register_inherited;
use shunt_runtime::control::{agent_client, endpoint, invitation};
use shunt_runtime::fds::owner::may_mutate;
use shunt_runtime::system::abi::uid_t;
use shunt_runtime::system::errno::KeepErrno;
use shunt_runtime::threads::signals::SettingUp;

/// The effective user, as long as the program has not changed it; [`NOBODY`]: to be asked for.
static USER: AtomicU32 = AtomicU32::new(NOBODY);
const NOBODY: u32 = u32::MAX;

/// The effective user of this process.
pub fn effective_user() -> u32 {
    match USER.load(Ordering::Relaxed) {
        NOBODY => {
            let user = rustix::process::geteuid().as_raw();
            USER.store(user, Ordering::Relaxed);
            user
        }
        known => known,
    }
}

/// It may be another one now.
pub fn forget() {
    USER.store(NOBODY, Ordering::Relaxed);
}

/// The program changes its user.
struct UserChange;

impl UserChange {
    /// Says to the agent what has to be said while we still may. `effective` is the user that the
    /// program asks for; [`NOBODY`]: the same as before.
    fn begin(effective: uid_t) -> Self {
        if effective != NOBODY && effective != effective_user() {
            speak_while_permitted(false);
        }
        Self
    }
}

/// The program is about to lose its way to the agent, to its user's own or (`any`) to any: what it has
/// inherited is registered, and the conversation for what it makes later begun.
fn speak_while_permitted(any: bool) {
    if !activity::active() || !may_mutate() {
        return;
    }
    let _keep = KeepErrno::new();
    let Some(_setting_up) = SettingUp::begin() else { return };
    register_inherited();
    agent_client::begin_while_permitted(any);
    endpoint::open_run_page();
}

/// # Safety
/// As the C function.
pub unsafe fn chroot(path: *const c_char) -> c_int {
    speak_while_permitted(true);
    // SAFETY: the caller keeps the C function's contract.
    let result = unsafe { next::chroot(path) };
    if result == 0 {
        invitation::leave_reach();
    }
    result
}

impl Drop for UserChange {
    fn drop(&mut self) {
        forget();
    }
}

/// # Safety
/// As the C function.
pub unsafe fn setuid(uid: uid_t) -> c_int {
    let _change = UserChange::begin(uid);
    // SAFETY: the caller keeps the C function's contract.
    unsafe { next::setuid(uid) }
}

/// # Safety
/// As the C function.
pub unsafe fn seteuid(uid: uid_t) -> c_int {
    let _change = UserChange::begin(uid);
    // SAFETY: the caller keeps the C function's contract.
    unsafe { next::seteuid(uid) }
}

/// # Safety
/// As the C function.
pub unsafe fn setreuid(real: uid_t, effective: uid_t) -> c_int {
    let _change = UserChange::begin(effective);
    // SAFETY: the caller keeps the C function's contract.
    unsafe { next::setreuid(real, effective) }
}

/// # Safety
/// As the C function.
pub unsafe fn setresuid(real: uid_t, effective: uid_t, saved: uid_t) -> c_int {
    let _change = UserChange::begin(effective);
    // SAFETY: the caller keeps the C function's contract.
    unsafe { next::setresuid(real, effective, saved) }
}
