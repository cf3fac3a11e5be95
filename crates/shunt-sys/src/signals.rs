//! Signals that are waited for instead of handled, for programs of our own (never the library).

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr;

use libc::c_int;

/// Interrupt from the terminal.
pub const INT: c_int = libc::SIGINT;
/// The usual request to end.
pub const TERM: c_int = libc::SIGTERM;
/// The terminal is gone.
pub const HUP: c_int = libc::SIGHUP;

fn set_of(signals: &[c_int]) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the set; an invalid number is not added.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in signals {
            libc::sigaddset(set.as_mut_ptr(), *signal);
        }
        set.assume_init()
    }
}

fn mask(how: c_int, signals: &[c_int]) -> io::Result<()> {
    let set = set_of(signals);
    // SAFETY: the set is live; the old one is not asked for.
    match unsafe { libc::pthread_sigmask(how, &raw const set, ptr::null_mut()) } {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

/// Blocks these in this thread and in those that it starts from now on; children inherit it.
///
/// # Errors
/// Those of pthread_sigmask(3).
pub fn block(signals: &[c_int]) -> io::Result<()> {
    mask(libc::SIG_BLOCK, signals)
}

/// Blocks nothing in this thread.
///
/// # Errors
/// Those of pthread_sigmask(3).
pub fn unblock_all() -> io::Result<()> {
    mask(libc::SIG_SETMASK, &[])
}

/// Children of this process leave nothing behind when they end: nobody waits for them.
pub fn forget_children() {
    // SAFETY: changes this process's disposition of one signal, for which it has no handler.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
}

/// Waits for one of these, which are blocked, and returns which.
#[must_use]
pub fn wait(signals: &[c_int]) -> c_int {
    let set = set_of(signals);
    loop {
        let mut signal = 0;
        // SAFETY: both are live.
        if unsafe { libc::sigwait(&raw const set, &raw mut signal) } == 0 {
            return signal;
        }
    }
}

/// Blocks SIGTERM and SIGINT in this thread and returns a descriptor that is readable once one of
/// them has come.
///
/// # Errors
/// As [`fd`].
pub fn stop_fd() -> io::Result<OwnedFd> {
    fd(&[TERM, INT])
}

/// Blocks these in this thread and returns a descriptor that is readable once one of them has come.
///
/// # Errors
/// Those of pthread_sigmask(3) and signalfd(2).
pub fn fd(signals: &[c_int]) -> io::Result<OwnedFd> {
    block(signals)?;
    let set = set_of(signals);
    // SAFETY: the set is live; a new descriptor is asked for.
    let fd = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: signalfd has just opened it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
