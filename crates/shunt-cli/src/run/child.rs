//! A program as a child that notices as little as possible of its parent.
//!
//! The parent takes its signals synchronously (sigwaitinfo), so it has no handlers. SIGINT and
//! SIGQUIT come from the terminal to the child as well, and the child decides on them. SIGTERM and
//! SIGHUP come to the parent alone, which passes them on.

use std::ffi::{OsString, c_int};
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use rustix::pipe::{PipeFlags, pipe_with};

use crate::program::become_program;

/// The signals that the parent waits for.
const WATCHED: [c_int; 5] =
    [libc::SIGCHLD, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP];

/// How this process takes signals, to be given to the child as it was.
struct Inherited {
    mask: libc::sigset_t,
    on_child: libc::sigaction,
}

fn watched() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the set, sigaddset adds valid signals to it.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in WATCHED {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        set.assume_init()
    }
}

impl Inherited {
    /// Blocks the watched signals, and has the kernel keep ended children for waitpid(2).
    fn put_aside() -> Self {
        let mut mask = MaybeUninit::uninit();
        let mut on_child = MaybeUninit::uninit();
        // SAFETY: all pointers are to live objects; both old values are written by the calls, whose
        // arguments are valid, so they cannot fail.
        unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, &watched(), mask.as_mut_ptr());
            let mut default: libc::sigaction = std::mem::zeroed();
            default.sa_sigaction = libc::SIG_DFL;
            libc::sigaction(libc::SIGCHLD, &raw const default, on_child.as_mut_ptr());
            Self { mask: mask.assume_init(), on_child: on_child.assume_init() }
        }
    }

    fn restore(&self) {
        // SAFETY: both values are what the kernel reported.
        unsafe {
            libc::sigaction(libc::SIGCHLD, &raw const self.on_child, std::ptr::null_mut());
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.mask, std::ptr::null_mut());
        }
    }
}

/// Runs `command` to its end. The status is the program's, or 128 + n when signal n ended it.
///
/// # Errors
/// Why the program could not be started.
pub fn run(command: &[OsString]) -> io::Result<u8> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    let inherited = Inherited::put_aside();
    // SAFETY: the process has one thread, so the child may do anything.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            inherited.restore();
            let error = become_program(command);
            let code = error.raw_os_error().unwrap_or(libc::EINVAL);
            let _ = rustix::io::write(writer.as_fd(), &code.to_ne_bytes());
            // SAFETY: ends the child without running what the parent has set up to run at exit.
            unsafe { libc::_exit(0) }
        }
        child => {
            drop(writer);
            let mut code = [0; size_of::<c_int>()];
            let failed = std::fs::File::from(reader).read_exact(&mut code).is_ok();
            let status = wait(child);
            inherited.restore();
            if failed {
                return Err(io::Error::from_raw_os_error(c_int::from_ne_bytes(code)));
            }
            Ok(status)
        }
    }
}

fn wait(child: libc::pid_t) -> u8 {
    let set = watched();
    loop {
        // SAFETY: the set is initialised; no details are asked for.
        let signal = unsafe { libc::sigwaitinfo(&raw const set, std::ptr::null_mut()) };
        match signal {
            libc::SIGTERM | libc::SIGHUP => {
                // SAFETY: the child is not reaped yet, so the pid is its own.
                unsafe { libc::kill(child, signal) };
            }
            libc::SIGCHLD => {
                let mut status = 0;
                // SAFETY: `status` is live.
                let rc = unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) };
                if rc == child {
                    return code(status);
                }
                if rc < 0 {
                    return 1;
                }
            }
            _ => {}
        }
    }
}

fn code(status: c_int) -> u8 {
    let code = if libc::WIFSIGNALED(status) {
        128 + libc::WTERMSIG(status)
    } else {
        libc::WEXITSTATUS(status)
    };
    u8::try_from(code).unwrap_or(1)
}
