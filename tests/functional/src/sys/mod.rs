//! Thin, safe wrappers of the libc calls that the test programs make.
//!
//! Every call goes through the dynamic symbol of libc, so a preloaded library sees the calls of
//! these programs exactly as it sees those of any other program.

mod addr;
mod errqueue;
mod filter;
mod given;
mod mapped;
pub mod points;
mod process;
pub mod raw;
mod ready;
mod signal;
mod socket;
mod stream;
mod traced;
mod transfer;
pub mod uring;

use std::io;

use libc::{c_int, ssize_t};

pub use addr::RawAddr;
pub use errqueue::{Report, Stamp, recv_error, recv_stamp, send_timed};
pub use filter::{ask_for_filters, forbid_all_but_bytes, forbid_nothing};
pub use given::{open_stdio, pass, take, write_stdio};
pub use mapped::{Mapped, Private};
pub use process::{
    ExecList, Forked, KeepErrno, RawFork, Resource, block_signal, close_in_clone, close_in_vfork,
    end_group, end_with_parent, end_within, exec_in_vfork, exec_nothing, exec_to_sleep, exit_now,
    exit_quickly, forbid_forks, forget_children, fork, fork_raw, fork_raw_by, fork_raw_with,
    has_ended, kill, limit, limit_locks, mlockall, monotonic, new_session, on_least_stack,
    on_signal, pid, popen, raise_descriptor_limit, reset_signal, set_alarm_every,
    set_signal_counter, signal_count, system, tid, wait_for, wait_until_dead,
};
pub use ready::{
    Epoll, EpollEvent, SELECTS, Select, epoll_pwait2_for, poll, ppoll, ppoll_for, pselect,
    pselect_for, select, select_for, select_up_to, with_time,
};
pub use shunt_api::Memory;
pub use signal::{on_signal_restarting, own_signals, set_async, set_async_ioctl, set_async_raw};
pub use socket::{
    ListenOptions, accept, accept_without_length, connect, connect_without_address, dup, dup2,
    dup3, eventfd, fd_flags, fionread, get_option, linger, listen, local_addr, memfd, outq, pair,
    peer_addr, pipe, set_buffers, set_nonblocking, set_nonblocking_ioctl, set_option,
    set_pipe_size, set_timeout, shutdown, socket, status_flags, unsent, zerocopy_receive,
};
pub use stream::{
    Received, pwrite_all, read, readv, recv, recv_inq, recvfrom, recvmmsg, recvmsg, send, sendfile,
    sendmmsg, sendmsg, sendmsg_address, sendto, sendto_address, splice, write, writev,
};
pub use traced::{Stop, be_traced, go_on, stop_self, wait_for_stop};
pub use transfer::{
    copy_file_range, position, pread, preadv2, pwrite, pwritev2, seek, sendfile_from,
    sendfile64_from, splice_at, tee, vmsplice,
};

/// Turns a `-1` with `errno` into an error.
pub(crate) fn check(ret: c_int) -> io::Result<c_int> {
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(ret) }
}

/// As [`check`], for calls that return a length.
pub(crate) fn check_len(ret: ssize_t) -> io::Result<usize> {
    usize::try_from(ret).map_err(|_| io::Error::last_os_error())
}

/// As [`check`], for `syscall(2)`.
pub(crate) fn check_long(ret: libc::c_long) -> io::Result<usize> {
    usize::try_from(ret).map_err(|_| io::Error::last_os_error())
}

/// The size of `T` as the socket calls want it.
#[must_use]
pub const fn socklen_of<T>() -> libc::socklen_t {
    // No type passed to the kernel here is longer than sockaddr_storage (128 bytes).
    #[allow(clippy::cast_possible_truncation)]
    let len = size_of::<T>() as libc::socklen_t;
    len
}

/// The name of an errno value, as `errno(3)` spells it.
#[must_use]
pub fn errno_name(error: &io::Error) -> String {
    let Some(code) = error.raw_os_error() else { return error.to_string() };
    errno_text(code).map_or_else(|| format!("errno {code}"), str::to_owned)
}

/// The same for the bare value, if the name is known.
#[must_use]
pub const fn errno_text(code: c_int) -> Option<&'static str> {
    macro_rules! name {
        ($($id:ident)+) => { match code { $(libc::$id => Some(stringify!($id)),)+ _ => None } };
    }
    name!(
        EAGAIN EBADF EPIPE ECONNRESET ECONNREFUSED EINPROGRESS EINVAL ENOTCONN EISCONN EALREADY
        EADDRINUSE ENOTSOCK EOPNOTSUPP EDESTADDRREQ EFAULT EINTR EMSGSIZE ETIMEDOUT ENOTTY EEXIST
        ENOENT EPERM EMFILE ENOBUFS ENOPROTOOPT ESPIPE EDOM ECONNABORTED ENOSYS ELOOP EISDIR EIO
        EADDRNOTAVAIL EOVERFLOW ENOMEM EACCES EBUSY EXDEV ENXIO ESRCH
    )
}
