//! Signals that are to come once more.

use core::ffi::c_int;

use libc::siginfo_t;
use rustix::io::Result;
use rustix::process::getpid;
use rustix::thread::gettid;

use crate::raw::{int, syscall};

/// Sends the calling thread a signal that it was given just now, with all that was said of it. Where the thread blocks it meanwhile, it
/// waits for the thread as if it had never come.
///
/// # Errors
/// `EAGAIN` where too many signals are pending (of those that queue, past `SIGRTMIN`), and what a filter of system calls has for it.
pub fn leave_pending(signal: c_int, info: &siginfo_t) -> Result<()> {
    let (process, thread) = (getpid().as_raw_pid(), gettid().as_raw_pid());
    let info = core::ptr::from_ref(info).expose_provenance();
    let args = [int(process), int(thread), int(signal), info, 0];
    // SAFETY: the kernel reads `info`, which is borrowed. To itself a thread may send whatever is said there, also what is the kernel's.
    unsafe { syscall(libc::SYS_rt_tgsigqueueinfo, args) }.map(drop)
}
