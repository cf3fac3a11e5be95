//! The one list of hooks: every function that Shunt takes over, with its handler.
//!
//! `for_each_hook!` hands the list to another macro; from it come the exported functions (`exports.rs`),
//! the next-symbol table ([`crate::next`]) and the list of names ([`HOOKS`]).
//!
//! * `fn`: exported under the guard; a panic in the handler falls through to the next definition.
//! * `never fn`: the same for functions that do not return.
//! * `tail`: variadic functions, and `vfork`, whose caller's frame may not be left between its two
//!   returns. The named function runs first, then the call goes on to the next definition with its
//!   arguments and its return address untouched.
//! * `some fn`: as `fn` where the named table says so of the first argument (and, of a fork, the next two); else a jump to the next
//!   definition, which leaves everything as it was.
//!
//! `fcntl`, `ioctl` and `mremap` are variadic in C but take one optional word. They are defined with a fixed
//! last argument: the `SysV` x86-64 and the `AAPCS64` Linux ABIs pass a variadic word in the same
//! register as a fixed one, so this reads it where the caller put it, and hands it on likewise.

/// Calls the macro `$then` with the list of hooks.
macro_rules! for_each_hook {
    ($then:ident) => {
        $then! {
            fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int = ops::connections::socket;
            fn bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int = ops::connections::bind;
            fn listen(fd: c_int, backlog: c_int) -> c_int = ops::connections::listen;
            fn accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int = ops::connections::accept;
            fn accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int = ops::connections::accept4;
            fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int = ops::connections::connect;
            fn __connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int = ops::connections::connect;

            fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int = ops::sockopt::getsockopt;
            fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int = ops::sockopt::setsockopt;

            fn close(fd: c_int) -> c_int = ops::fd::close;
            fn __close(fd: c_int) -> c_int = ops::fd::close;
            fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int = ops::fd::close_range;
            fn closefrom(low: c_int) -> () = ops::fd::closefrom;
            fn dup(fd: c_int) -> c_int = ops::fd::dup;
            fn dup2(old: c_int, new: c_int) -> c_int = ops::fd::dup2;
            fn __dup2(old: c_int, new: c_int) -> c_int = ops::fd::dup2;
            fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int = ops::fd::dup3;
            fn fcntl(fd: c_int, cmd: c_int, arg: c_long) -> c_int = ops::fd::fcntl;
            fn __fcntl(fd: c_int, cmd: c_int, arg: c_long) -> c_int = ops::fd::fcntl;
            fn fcntl64(fd: c_int, cmd: c_int, arg: c_long) -> c_int = ops::fd::fcntl;
            fn ioctl(fd: c_int, request: c_ulong, arg: *mut c_void) -> c_int = ops::fd::ioctl;

            fn read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t = ops::stream::read;
            fn __read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t = ops::stream::read;
            fn __read_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t) -> ssize_t = ops::stream::__read_chk;
            fn readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t = ops::stream::readv;
            fn preadv2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t = ops::vectors::preadv2;
            fn preadv64v2(fd: c_int, iov: *const iovec, count: c_int, offset: off64_t, flags: c_int) -> ssize_t = ops::vectors::preadv2;
            fn recv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t = ops::stream::recv;
            fn __recv_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t, flags: c_int) -> ssize_t = ops::stream::__recv_chk;
            fn recvfrom(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int, addr: *mut sockaddr, addr_len: *mut socklen_t) -> ssize_t = ops::stream::recvfrom;
            fn __recvfrom_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t, flags: c_int, addr: *mut sockaddr, addr_len: *mut socklen_t) -> ssize_t = ops::stream::__recvfrom_chk;
            fn recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t = ops::stream::recvmsg;
            fn recvmmsg(fd: c_int, msgs: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int = ops::stream::recvmmsg;
            fn write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t = ops::stream::write;
            fn __write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t = ops::stream::write;
            fn writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t = ops::stream::writev;
            fn pwritev2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t = ops::vectors::pwritev2;
            fn pwritev64v2(fd: c_int, iov: *const iovec, count: c_int, offset: off64_t, flags: c_int) -> ssize_t = ops::vectors::pwritev2;
            fn send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t = ops::stream::send;
            fn __send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t = ops::stream::send;
            fn sendto(fd: c_int, buf: *const c_void, len: size_t, flags: c_int, addr: *const sockaddr, addr_len: socklen_t) -> ssize_t = ops::stream::sendto;
            fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t = ops::stream::sendmsg;
            fn sendmmsg(fd: c_int, msgs: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int = ops::stream::sendmmsg;
            fn sendfile(out: c_int, input: c_int, offset: *mut off_t, count: size_t) -> ssize_t = ops::stream::sendfile;
            fn sendfile64(out: c_int, input: c_int, offset: *mut off64_t, count: size_t) -> ssize_t = ops::stream::sendfile64;
            fn splice(input: c_int, off_in: *mut off64_t, out: c_int, off_out: *mut off64_t, len: size_t, flags: c_uint) -> ssize_t = ops::stream::splice;
            fn tee(input: c_int, out: c_int, len: size_t, flags: c_uint) -> ssize_t = ops::stream::tee;
            fn vmsplice(fd: c_int, iov: *const iovec, count: size_t, flags: c_uint) -> ssize_t = ops::stream::vmsplice;
            fn shutdown(fd: c_int, how: c_int) -> c_int = ops::stream::shutdown;
            fn sockatmark(fd: c_int) -> c_int = ops::inner::sockatmark;

            fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE = ops::stdio::fdopen;
            fn _IO_fdopen(fd: c_int, mode: *const c_char) -> *mut FILE = ops::stdio::fdopen;
            fn fclose(file: *mut FILE) -> c_int = ops::stdio::fclose;
            fn _IO_fclose(file: *mut FILE) -> c_int = ops::stdio::fclose;
            fn freopen(path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE = ops::stdio::freopen;
            fn freopen64(path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE = ops::stdio::freopen64;
            fn vdprintf(fd: c_int, format: *const c_char, args: *mut c_void) -> c_int = ops::stdio::vdprintf;
            fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, args: *mut c_void) -> c_int = ops::stdio::__vdprintf_chk;
            fn aio_read(request: *mut aiocb) -> c_int = ops::inner::aio_read;
            fn aio_read64(request: *mut aiocb) -> c_int = ops::inner::aio_read64;
            fn aio_write(request: *mut aiocb) -> c_int = ops::inner::aio_write;
            fn aio_write64(request: *mut aiocb) -> c_int = ops::inner::aio_write64;
            fn lio_listio(mode: c_int, list: Requests, count: c_int, event: *mut sigevent) -> c_int = ops::inner::lio_listio;
            fn lio_listio64(mode: c_int, list: Requests, count: c_int, event: *mut sigevent) -> c_int = ops::inner::lio_listio64;
            fn eventfd_read(fd: c_int, value: *mut u64) -> c_int = ops::inner::eventfd_read;
            fn eventfd_write(fd: c_int, value: u64) -> c_int = ops::inner::eventfd_write;
            fn backtrace_symbols_fd(frames: Frames, count: c_int, fd: c_int) -> () = ops::inner::backtrace_symbols_fd;
            fn __backtrace_symbols_fd(frames: Frames, count: c_int, fd: c_int) -> () = ops::inner::backtrace_symbols_fd;
            fn pidfd_getfd(pidfd: c_int, target: c_int, flags: c_uint) -> c_int = ops::inner::pidfd_getfd;
            fn daemon(nochdir: c_int, noclose: c_int) -> c_int = ops::inner::daemon;
            fn login_tty(fd: c_int) -> c_int = ops::inner::login_tty;
            fn forkpty(master: *mut c_int, name: *mut c_char, terminal: *const termios, size: *const winsize) -> pid_t = ops::inner::forkpty;

            fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int = ops::poll::poll;
            fn __poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int = ops::poll::poll;
            fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, room: size_t) -> c_int = ops::poll::__poll_chk;
            fn ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int = ops::poll::ppoll;
            fn __ppoll_chk(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t, room: size_t) -> c_int = ops::poll::__ppoll_chk;
            fn select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int = ops::poll::select;
            fn __select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int = ops::poll::select;
            fn pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int = ops::poll::pselect;

            fn setrlimit(resource: c_uint, limit: *const rlimit) -> c_int = ops::poll::setrlimit;
            fn setrlimit64(resource: c_uint, limit: *const rlimit) -> c_int = ops::poll::setrlimit;
            fn prlimit(pid: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int = ops::poll::prlimit;
            fn prlimit64(pid: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int = ops::poll::prlimit;

            fn epoll_create(size: c_int) -> c_int = ops::epoll::epoll_create;
            fn epoll_create1(flags: c_int) -> c_int = ops::epoll::epoll_create1;
            fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int = ops::epoll::epoll_ctl;
            fn epoll_wait(epfd: c_int, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int = ops::epoll::epoll_wait;
            fn epoll_pwait(epfd: c_int, events: *mut epoll_event, max: c_int, timeout: c_int, mask: *const sigset_t) -> c_int = ops::epoll::epoll_pwait;
            fn epoll_pwait2(epfd: c_int, events: *mut epoll_event, max: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int = ops::epoll::epoll_pwait2;

            fn mmap(addr: *mut c_void, len: size_t, prot: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void = ops::memory::mmap;
            fn mmap64(addr: *mut c_void, len: size_t, prot: c_int, flags: c_int, fd: c_int, offset: off64_t) -> *mut c_void = ops::memory::mmap;
            fn munmap(addr: *mut c_void, len: size_t) -> c_int = ops::memory::munmap;
            fn mlockall(flags: c_int) -> c_int = ops::memory::mlockall;
            fn mremap(old: *mut c_void, old_len: size_t, len: size_t, flags: c_int, new: *mut c_void) -> *mut c_void = ops::memory::mremap;

            fn __register_atfork(before: ForkHandler, in_parent: ForkHandler, in_child: ForkHandler, object: *mut c_void) -> c_int = ops::process::__register_atfork;
            fn fork() -> pid_t = ops::process::fork;
            fn __fork() -> pid_t = ops::process::fork;
            fn _Fork() -> pid_t = ops::process::fork_without_handlers;
            fn execve(path: *const c_char, argv: Strings, envp: Strings) -> c_int = ops::process::execve;
            fn execv(path: *const c_char, argv: Strings) -> c_int = ops::process::execv;
            fn execvp(file: *const c_char, argv: Strings) -> c_int = ops::process::execvp;
            fn execvpe(file: *const c_char, argv: Strings, envp: Strings) -> c_int = ops::process::execvpe;
            fn fexecve(fd: c_int, argv: Strings, envp: Strings) -> c_int = ops::process::fexecve;
            fn execveat(dir: c_int, path: *const c_char, argv: Strings, envp: Strings, flags: c_int) -> c_int = ops::process::execveat;
            fn posix_spawn(pid: *mut pid_t, path: *const c_char, actions: *const posix_spawn_file_actions_t, attr: *const posix_spawnattr_t, argv: Strings, envp: Strings) -> c_int = ops::process::posix_spawn;
            fn posix_spawnp(pid: *mut pid_t, file: *const c_char, actions: *const posix_spawn_file_actions_t, attr: *const posix_spawnattr_t, argv: Strings, envp: Strings) -> c_int = ops::process::posix_spawnp;
            fn pidfd_spawn(pidfd: *mut c_int, path: *const c_char, actions: *const posix_spawn_file_actions_t, attr: *const posix_spawnattr_t, argv: Strings, envp: Strings) -> c_int = ops::process::pidfd_spawn;
            fn pidfd_spawnp(pidfd: *mut c_int, file: *const c_char, actions: *const posix_spawn_file_actions_t, attr: *const posix_spawnattr_t, argv: Strings, envp: Strings) -> c_int = ops::process::pidfd_spawnp;
            fn posix_spawn_file_actions_adddup2(actions: *mut posix_spawn_file_actions_t, fd: c_int, new: c_int) -> c_int = ops::process::posix_spawn_file_actions_adddup2;
            fn system(command: *const c_char) -> c_int = ops::process::system;
            fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE = ops::process::popen;
            fn _IO_popen(command: *const c_char, mode: *const c_char) -> *mut FILE = ops::process::popen;
            fn wordexp(words: *const c_char, into: *mut c_void, flags: c_int) -> c_int = ops::inner::wordexp;
            fn setns(fd: c_int, kind: c_int) -> c_int = ops::process::setns;
            fn unshare(flags: c_int) -> c_int = ops::process::unshare;
            fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int = ops::retreat::prctl;
            fn sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int = ops::signals::sigaction;
            fn __sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int = ops::signals::sigaction;
            fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t = ops::signals::signal;
            fn bsd_signal(signal: c_int, handler: sighandler_t) -> sighandler_t = ops::signals::signal;
            fn ssignal(signal: c_int, handler: sighandler_t) -> sighandler_t = ops::signals::signal;
            fn sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t = ops::signals::sysv_signal;
            fn __sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t = ops::signals::sysv_signal;
            fn sigset(signal: c_int, handler: sighandler_t) -> sighandler_t = ops::signals::sigset;
            fn siginterrupt(signal: c_int, ends: c_int) -> c_int = ops::signals::siginterrupt;
            fn chroot(path: *const c_char) -> c_int = ops::user::chroot;
            fn setuid(uid: uid_t) -> c_int = ops::user::setuid;
            fn seteuid(uid: uid_t) -> c_int = ops::user::seteuid;
            fn setreuid(real: uid_t, effective: uid_t) -> c_int = ops::user::setreuid;
            fn setresuid(real: uid_t, effective: uid_t, saved: uid_t) -> c_int = ops::user::setresuid;
            never fn _exit(status: c_int) = ops::process::_exit;
            never fn _Exit(status: c_int) = ops::process::_exit;
            some fn syscall(number: c_long, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong, e: c_ulong, f: c_ulong) -> c_long = ops::raw::syscall, where ops::raw::CONCERNS;
            tail vfork = ops::process::memory_is_lent;
            tail __vfork = ops::process::memory_is_lent;
            tail clone = ops::process::memory_is_lent;
            tail __clone = ops::process::memory_is_lent;
            tail longjmp = ops::process::before_jump;
            tail _longjmp = ops::process::before_jump;
            tail siglongjmp = ops::process::before_jump;
            tail __longjmp_chk = ops::process::before_jump;
            tail execl = ops::process::before_execl;
            tail execlp = ops::process::before_execl;
            tail execle = ops::process::before_execl;
            tail dlopen = ops::loader::before_dlopen;
            tail dlmopen = ops::loader::before_dlmopen;
            tail dlsym = ops::loader::before_dlsym;
            tail dlvsym = ops::loader::before_dlvsym;
            tail dprintf = ops::stdio::before_print;
            tail __dprintf_chk = ops::stdio::before_print;
        }
    };
}
pub(crate) use for_each_hook;

macro_rules! names {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty = $handler:path;)*
     $(never fn $never:ident($($never_arg:ident: $never_ty:ty),*) = $end:path;)*
     $(some fn $some:ident($($some_arg:ident: $some_ty:ty),*) -> $some_ret:ty = $some_handler:path, where $table:path;)*
     $(tail $tail:ident = $before:path;)*) => {
        /// The names of all hooked functions.
        pub const HOOKS: &[&str] =
            &[$(stringify!($name),)* $(stringify!($never),)* $(stringify!($some),)* $(stringify!($tail),)*];
    };
}
for_each_hook!(names);

#[cfg(test)]
mod tests {
    use super::HOOKS;

    #[test]
    fn no_name_is_listed_twice() {
        let mut names = HOOKS.to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), HOOKS.len());
    }
}
