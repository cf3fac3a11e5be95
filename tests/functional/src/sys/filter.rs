//! A filter of system calls (seccomp) as programs set it for themselves before they deal with strangers.

use std::io;

use super::check;

/// What remains permitted; anything else kills the process.
const PERMITTED: &[libc::c_long] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_close,
    libc::SYS_socket,
    libc::SYS_connect,
    libc::SYS_accept4,
    libc::SYS_getsockname,
    libc::SYS_epoll_pwait,
    libc::SYS_clock_nanosleep,
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_getpid,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_exit_group,
];

#[cfg(target_arch = "x86_64")]
const OLD: &[libc::c_long] = &[libc::SYS_epoll_wait];
#[cfg(not(target_arch = "x86_64"))]
const OLD: &[libc::c_long] = &[];

/// Sets the filter, for the rest of this process's life.
pub fn forbid_all_but_bytes() -> io::Result<()> {
    const LOAD_NUMBER: u16 = 0x20;
    const IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let step = |code, k, jf| libc::sock_filter { code, jt: 0, jf, k };
    let mut steps = vec![step(LOAD_NUMBER, 0, 0)];
    for number in PERMITTED.iter().chain(OLD) {
        let number = u32::try_from(*number).map_err(io::Error::other)?;
        steps.extend([step(IF_EQUAL, number, 1), step(RETURN, libc::SECCOMP_RET_ALLOW, 0)]);
    }
    steps.push(step(RETURN, libc::SECCOMP_RET_KILL_PROCESS, 0));
    set(&mut steps)
}

/// Sets a filter for the calling thread that permits everything.
pub fn forbid_nothing() -> io::Result<()> {
    const RETURN: u16 = 0x06;
    set(&mut [libc::sock_filter { code: RETURN, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW }])
}

fn set(steps: &mut [libc::sock_filter]) -> io::Result<()> {
    let len = u16::try_from(steps.len()).map_err(io::Error::other)?;
    let program = libc::sock_fprog { len, filter: steps.as_mut_ptr() };
    // SAFETY: no pointers.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    let mode = libc::SECCOMP_MODE_FILTER;
    // SAFETY: the program and its steps are valid through the call.
    check(unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program) }).map(drop)
}

/// Asks whether there are such filters, as programs do: by one that is none.
pub fn ask_for_filters() -> io::Result<i32> {
    let none = std::ptr::null::<libc::sock_fprog>();
    // SAFETY: the kernel refuses a null pointer.
    check(unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, none) })
}
