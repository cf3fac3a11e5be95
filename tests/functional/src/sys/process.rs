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

/// `fork(2)`. In a process of several threads the child may do little more than system calls.
pub fn fork() -> io::Result<Forked> {
    // SAFETY: the callers have one thread, so the child may go on as the parent could, or keep to
    // what is safe after a fork of several.
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

/// `quick_exit(3)`.
pub fn exit_quickly(code: c_int) -> ! {
    unsafe extern "C" {
        fn quick_exit(code: c_int) -> !;
    }
    // SAFETY: no pointers; these programs register no handlers that could do harm.
    unsafe { quick_exit(code) }
}

/// A fork of which libc knows nothing. Call it only while the process has one thread.
pub fn fork_raw() -> io::Result<Forked> {
    // SAFETY: as for fork(2), which this is to the kernel.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
    match check(c_int::try_from(pid).unwrap_or(-1))? {
        0 => Ok(Forked::Child),
        pid => Ok(Forked::Parent(pid)),
    }
}

/// Gives up root and the right to make processes: every fork of this process fails from now on.
pub fn forbid_forks() -> io::Result<()> {
    // SAFETY: no pointers. The real user is what the limit counts for.
    check(unsafe { libc::setresuid(65_534, 65_534, 65_534) }).or_else(|e| {
        // Who is not root has no root to give up.
        if e.raw_os_error() == Some(libc::EPERM) { Ok(0) } else { Err(e) }
    })?;
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit is valid.
    check(unsafe { libc::setrlimit(libc::RLIMIT_NPROC, &raw const none) }).map(drop)
}

/// `system(3)`: the status.
pub fn system(command: &std::ffi::CStr) -> c_int {
    // SAFETY: a C string.
    unsafe { libc::system(command.as_ptr()) }
}

/// `popen(3)` to read, and `pclose(3)`: what the command printed.
pub fn popen(command: &std::ffi::CStr) -> io::Result<Vec<u8>> {
    // SAFETY: two C strings.
    let file = unsafe { libc::popen(command.as_ptr(), c"r".as_ptr()) };
    if file.is_null() {
        return Err(io::Error::last_os_error());
    }
    let mut text = vec![0; 1000];
    // SAFETY: the file is open, the buffer as long as said.
    unsafe {
        let n = libc::fread(text.as_mut_ptr().cast(), 1, text.len(), file);
        text.truncate(n);
        libc::pclose(file);
    }
    Ok(text)
}

/// Leaves the session of the parent.
pub fn new_session() -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::setsid() }).map(drop)
}

/// Has ended children reaped without being waited for.
pub fn forget_children() {
    // SAFETY: SIG_IGN is no function of ours.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
}

/// Ends the process by SIGALRM unless it has ended by then.
pub fn end_within(seconds: u32) {
    // SAFETY: a number.
    unsafe { libc::alarm(seconds) };
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

/// Waits until a child is dead, and leaves it a zombie.
pub fn wait_until_dead(pid: pid_t) -> io::Result<()> {
    // SAFETY: siginfo_t is plain data.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let flags = libc::WEXITED | libc::WNOWAIT;
    // SAFETY: info is valid.
    check(unsafe { libc::waitid(libc::P_PID, pid.cast_unsigned(), &raw mut info, flags) }).map(drop)
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
