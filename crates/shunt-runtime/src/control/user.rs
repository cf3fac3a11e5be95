//! Changes of the user, and of the root directory.
//!
//! The directory of a user's own agent is closed to all others. A server that root has started
//! gives its privileges up before it accepts, or even before it listens, and could not reach the
//! agent any more. So the library speaks to the agent before that, and the conversation, once
//! begun, goes on. The same is true of a program that leaves the directory tree in which the
//! agent's directory is.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::activity;
use crate::control::listener::register_inherited;
use crate::control::{agent_client, endpoint};
use crate::fds::owner::owns_process_state;
use crate::fds::unconnected;
use crate::system::abi::uid_t;
use crate::system::errno::KeepErrno;
use crate::threads::signals::SettingUp;

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
#[derive(Debug)]
pub struct UserChange(());

impl UserChange {
    /// Says to the agent what has to be said while we still may. `effective` is the user that the
    /// program asks for; all bits set: the same as before.
    #[must_use]
    pub fn begin(effective: uid_t) -> Self {
        if effective != NOBODY && effective != effective_user() {
            speak_while_permitted(false);
        }
        Self(())
    }
}

/// The program is about to lose its way to the agent, to its user's own or (`any`) to any: what it has
/// inherited is registered, and the conversation for what it makes later begun.
pub fn speak_while_permitted(any: bool) {
    if !activity::active() || !owns_process_state() {
        return;
    }
    let _keep = KeepErrno::new();
    let Some(_setting_up) = SettingUp::begin() else { return };
    register_inherited();
    agent_client::begin_while_permitted(any);
    endpoint::open_run_page();
}

impl Drop for UserChange {
    fn drop(&mut self) {
        forget();
    }
}

/// A thread is about to move to other namespaces, maybe: what is known of these is to be asked for.
pub fn namespaces_change() {
    unconnected::netns_changes();
    forget();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_is_asked_for_again_after_each_change() {
        let user = rustix::process::geteuid().as_raw();
        USER.store(user + 1, Ordering::Relaxed);
        assert_eq!(effective_user(), user + 1, "as long as the program changes nothing");
        drop(UserChange::begin(NOBODY));
        assert_eq!(effective_user(), user);
    }
}
