//! The C types that the hook list speaks in.

pub use libc::{
    FILE, c_char, c_int, c_long, c_uint, c_ulong, c_void, epoll_event, fd_set, iovec, mmsghdr,
    msghdr, nfds_t, off_t, off64_t, pid_t, pollfd, posix_spawn_file_actions_t, posix_spawnattr_t,
    sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval, uid_t,
};

/// `const char *const argv[]`, as the exec family takes it.
pub type Strings = *const *const c_char;
