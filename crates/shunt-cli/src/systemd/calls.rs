//! System calls that the library makes.

use super::unit::permits;

/// What the library calls beside what any program does to start. A filter that lacks one of these ends the service
/// at that call, unless it has an error number: what is refused with an error leaves connections on TCP.
const NEEDED: [&str; 47] = [
    "clock_nanosleep",
    "close_range",
    "connect",
    "epoll_create1",
    "epoll_ctl",
    "epoll_pwait",
    "epoll_pwait2",
    "eventfd2",
    "fcntl",
    "fstat",
    "fstatfs",
    "ftruncate",
    "futex",
    "geteuid",
    "getpeername",
    "getpid",
    "getsockname",
    "getsockopt",
    "gettid",
    "ioctl",
    "madvise",
    "memfd_create",
    "mlock",
    "mmap",
    "mprotect",
    "mremap",
    "munlock",
    "munmap",
    "pipe2",
    "poll",
    "ppoll",
    "prctl",
    "pread64",
    "prlimit64",
    "recvfrom",
    "recvmsg",
    "rt_sigprocmask",
    "rt_tgsigqueueinfo",
    "sched_getaffinity",
    "sched_yield",
    "sendmsg",
    "sendto",
    "setsockopt",
    "shutdown",
    "socket",
    "statx",
    "vmsplice",
];

/// Those that a service's `SystemCallFilter=`, as systemctl prints it, does not permit.
#[must_use]
pub fn lacking(filter: &str) -> Vec<&'static str> {
    // Nothing is said of services without a filter.
    if filter.is_empty() {
        return Vec::new();
    }
    NEEDED.into_iter().filter(|call| !permits(filter, call)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_what_is_permitted_and_of_what_is_not() {
        assert!(lacking("").is_empty() && lacking("~").is_empty());
        assert_eq!(lacking("~ptrace memfd_create"), ["memfd_create"]);
        assert_eq!(lacking("read write").len(), NEEDED.len());
        let all_but_two = NEEDED[2..].join(" ");
        assert_eq!(lacking(&all_but_two), NEEDED[..2]);
        assert!(NEEDED.is_sorted());
    }
}
