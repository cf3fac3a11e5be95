//! Processes and signals.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{c_int, pid_t};

use super::check;

/// Which side of a [`fork`] this is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Forked {
    /// The new process.
    Child,
    /// The old one, with the new one's pid.
    Parent(pid_t),
}

/// `fork(2)`. Call it only while the process has one thread.
pub fn fork() -> io::Result<Forked> {
    // SAFETY: the callers have one thread, so the child may go on as the parent could.
    match check(unsafe { libc::fork() })? {
        0 => Ok(Forked::Child),
        pid => Ok(Forked::Parent(pid)),
    }
}

/// Asks the kernel to end this process with SIGTERM when its parent ends.
pub fn end_with_parent() -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) }).map(drop)
}

/// `_exit(2)`: ends a forked child without the parent's exit handlers.
pub fn exit_now(code: c_int) -> ! {
    // SAFETY: _exit never returns and touches no memory.
    unsafe { libc::_exit(code) }
}

/// `kill(2)`.
pub fn kill(pid: pid_t, signal: c_int) -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::kill(pid, signal) }).map(drop)
}

/// `waitpid(2)`: the exit code, or 128 + signal.
pub fn wait_for(pid: pid_t) -> io::Result<c_int> {
    let mut status = 0;
    loop {
        // SAFETY: status is valid.
        match check(unsafe { libc::waitpid(pid, &raw mut status, 0) }) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
            Ok(_) if libc::WIFSIGNALED(status) => return Ok(128 + libc::WTERMSIG(status)),
            Ok(_) => return Ok(libc::WEXITSTATUS(status)),
        }
    }
}

static SIGNALS: AtomicU32 = AtomicU32::new(0);

extern "C" fn on_signal(_: c_int) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
}

/// Installs `handler` without SA_RESTART.
fn install(signal: c_int, handler: libc::sighandler_t) -> io::Result<()> {
    // SAFETY: sigaction is plain data; all zeroes is an empty mask without flags.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    // SAFETY: action is valid and its handler only touches an atomic.
    check(unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) }).map(drop)
}

/// Counts this signal from now on instead of what it did.
pub fn set_signal_counter(signal: c_int) -> io::Result<()> {
    install(signal, on_signal as *const () as libc::sighandler_t)
}

/// Gives the signal its default action back.
pub fn reset_signal(signal: c_int) -> io::Result<()> {
    install(signal, libc::SIG_DFL)
}

/// Signals counted since the last call.
#[must_use]
pub fn signal_count() -> u32 {
    SIGNALS.swap(0, Ordering::Relaxed)
}
