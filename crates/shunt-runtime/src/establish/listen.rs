//! listen(2).

use shunt_wire::reason::Reason;

use crate::activity;
use crate::contain::contain_uncancelled;
use crate::control::listener::{Listener, leave_unregistered, register};
use crate::fds::fd_table;
use crate::fds::owner::owns_process_state;
use crate::fds::unconnected;
use crate::point;
use crate::stream::brokered;
use crate::system::abi::c_int;
use crate::system::errno::KeepErrno;
use crate::threads::signals::SettingUp;

/// Has a socket listen, by `kernel`.
pub fn listen(fd: c_int, kernel: impl FnOnce() -> c_int) -> c_int {
    let entry = fd_table::lookup(fd);
    let concerns_us = || match Listener::of(entry) {
        Some(listener) => listener.why.reason().is_some(),
        None => entry.is_plain() && unconnected::is_tcp(fd, entry),
    };
    let ours = (activity::active() || activity::retired()) && concerns_us() && owns_process_state();
    if ours && activity::active() {
        let _keep = KeepErrno::new();
        let _ = SettingUp::begin().map(|_setting_up| brokered::before_listen(fd));
    }
    let result = kernel();
    if result == 0 && ours {
        let _keep = KeepErrno::new();
        contain_uncancelled(|| {
            point!(listen_done);
            let Some(_setting_up) = SettingUp::begin() else { return };
            let registered =
                if activity::retired() { Err(Reason::Bypassed) } else { register(fd).map(|_| ()) };
            // A later agent finds it at the next listen or accept.
            if let Err(why) = registered {
                leave_unregistered(fd, why);
            }
        });
    }
    result
}
