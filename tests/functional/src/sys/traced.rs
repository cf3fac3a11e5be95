//! Children that are stopped in the middle of what they do (ptrace(2)).

use std::io;
use std::ptr;

use libc::pid_t;

use super::{check_long, kill};

/// Where a traced child stops next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// After an instruction.
    Instruction,
    /// Where it enters a system call, or comes back from it.
    SystemCall,
}

/// The parent of this process traces it from now on: it stops where it [stops itself](stop_self), and then as the parent
/// lets it.
pub fn be_traced() -> io::Result<()> {
    trace(libc::PTRACE_TRACEME, 0)
}

/// Stops this process.
pub fn stop_self() -> io::Result<()> {
    // SAFETY: no pointers.
    kill(unsafe { libc::getpid() }, libc::SIGSTOP)
}

/// Waits until a traced child stops: whether it was not the child itself that did so, or has ended.
pub fn wait_for_stop(pid: pid_t) -> io::Result<bool> {
    let mut status = 0;
    // SAFETY: status is valid.
    super::check(unsafe { libc::waitpid(pid, &raw mut status, 0) })?;
    Ok(libc::WIFSTOPPED(status) && libc::WSTOPSIG(status) == libc::SIGTRAP)
}

/// Lets a traced child go on to the next stop.
pub fn go_on(pid: pid_t, stop: Stop) -> io::Result<()> {
    let how = match stop {
        Stop::Instruction => libc::PTRACE_SINGLESTEP,
        Stop::SystemCall => libc::PTRACE_SYSCALL,
    };
    trace(how, pid)
}

fn trace(how: libc::c_uint, pid: pid_t) -> io::Result<()> {
    let none: *mut libc::c_void = ptr::null_mut();
    // SAFETY: these requests read and write no memory of ours.
    check_long(unsafe { libc::ptrace(how, pid, none, none) }).map(drop)
}
