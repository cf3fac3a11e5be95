//! The one list of hooks: every function that Shunt takes over, with its handler.
//!
//! `for_each_hook!` hands the list to another macro; from it come the exported functions (`exports.rs`),
//! the next-symbol table ([`crate::next`]) and the list of names ([`HOOKS`]).
//!
//! * `fn`: exported under the guard; a panic in the handler falls through to the next definition.
//! * `around fn`: the same, and the handler stands here: an expression of the arguments, in which `next` calls the next
//!   definition with all of them. The functions in it are the runtime's (`ops/around.rs` imports them).
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
            fn __connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int = ops::around::connect;

            fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int = ops::sockopt::getsockopt;
            fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int = ops::sockopt::setsockopt;

            fn __close(fd: c_int) -> c_int = ops::around::close;
            fn __dup2(old: c_int, new: c_int) -> c_int = ops::around::dup2;
            fn __fcntl(fd: c_int, cmd: c_int, arg: c_long) -> c_int = ops::around::fcntl;
            fn fcntl64(fd: c_int, cmd: c_int, arg: c_long) -> c_int = ops::around::fcntl;
            fn ioctl(fd: c_int, request: c_ulong, arg: *mut c_void) -> c_int = ops::fd::ioctl;

            fn read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t = ops::stream::read;
            fn __read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t = ops::stream::read;
            fn readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t = ops::stream::readv;
            fn preadv2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t = ops::vectors::preadv2;
            fn preadv64v2(fd: c_int, iov: *const iovec, count: c_int, offset: off64_t, flags: c_int) -> ssize_t = ops::vectors::preadv2;
            fn recv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t = ops::stream::recv;
            fn recvfrom(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int, addr: *mut sockaddr, addr_len: *mut socklen_t) -> ssize_t = ops::stream::recvfrom;
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
            fn sendfile64(out: c_int, input: c_int, offset: *mut off64_t, count: size_t) -> ssize_t = ops::stream::sendfile;
            fn splice(input: c_int, off_in: *mut off64_t, out: c_int, off_out: *mut off64_t, len: size_t, flags: c_uint) -> ssize_t = ops::stream::splice;
            fn shutdown(fd: c_int, how: c_int) -> c_int = ops::stream::shutdown;

            fn _IO_fdopen(fd: c_int, mode: *const c_char) -> *mut FILE = ops::around::fdopen;
            fn _IO_fclose(file: *mut FILE) -> c_int = ops::around::fclose;
            fn __backtrace_symbols_fd(frames: Frames, count: c_int, fd: c_int) -> () = ops::around::backtrace_symbols_fd;

            fn __poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int = ops::around::poll;
            fn __select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int = ops::around::select;

            fn getrlimit64(resource: c_uint, limit: *mut rlimit) -> c_int = ops::around::getrlimit;
            fn setrlimit64(resource: c_uint, limit: *const rlimit) -> c_int = ops::around::setrlimit;
            fn prlimit64(pid: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int = ops::around::prlimit;

            fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int = ops::epoll::epoll_ctl;
            fn epoll_pwait2(epfd: c_int, events: *mut epoll_event, max: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int = ops::epoll::epoll_pwait2;

            fn mmap64(addr: *mut c_void, len: size_t, prot: c_int, flags: c_int, fd: c_int, offset: off64_t) -> *mut c_void = ops::around::mmap;

            fn __fork() -> pid_t = ops::around::fork;
            fn _IO_popen(command: *const c_char, mode: *const c_char) -> *mut FILE = ops::around::popen;
            fn __sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int = ops::around::sigaction;
            fn bsd_signal(signal: c_int, handler: sighandler_t) -> sighandler_t = ops::around::signal;
            fn ssignal(signal: c_int, handler: sighandler_t) -> sighandler_t = ops::around::signal;
            fn __sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t = ops::around::sysv_signal;

            around fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int = |next| { let fd = next(); was_made(fd, domain, kind, protocol); fd };
            around fn bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int = |next| next();
            around fn listen(fd: c_int, backlog: c_int) -> c_int = |next| listen::listen(fd, next);
            around fn accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int = |next| accept::accept(fd, 0, PeerOut { addr, len }, next);
            around fn accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int = |next| accept::accept(fd, flags, PeerOut { addr, len }, next);
            around fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int = |next| connect::connect(fd, addr, len, next);

            around fn close(fd: c_int) -> c_int = |next| close::close(fd, next);
            around fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int = |_next| close::close_range(first, last, flags);
            around fn closefrom(low: c_int) -> () = |_next| close::closefrom(low);
            around fn dup(fd: c_int) -> c_int = |next| duplicate(fd, next);
            around fn dup2(old: c_int, new: c_int) -> c_int = |next| duplicate_onto(old, new, next);
            around fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int = |next| duplicate_with(old, new, flags, next);
            around fn fcntl(fd: c_int, cmd: c_int, arg: c_long) -> c_int = |next| control::fcntl(fd, cmd, arg, next);

            // What is too long for its buffer is libc's to refuse.
            around fn __read_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t) -> ssize_t = |next| if len > room || Conn::named(fd).is_none() { next() } else { bytes::read(fd, buf, len) };
            around fn __recv_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t, flags: c_int) -> ssize_t = |next| if len > room || Conn::named(fd).is_none() { next() } else { bytes::recv(fd, buf, len, flags) };
            around fn __recvfrom_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t, flags: c_int, addr: *mut sockaddr, addr_len: *mut socklen_t) -> ssize_t = |next| if len > room || Conn::named(fd).is_none() { next() } else { bytes::recvfrom(fd, buf, len, flags, addr, addr_len) };
            // Of pipes alone.
            around fn tee(input: c_int, out: c_int, len: size_t, flags: c_uint) -> ssize_t = |next| next();
            around fn vmsplice(fd: c_int, iov: *const iovec, count: size_t, flags: c_uint) -> ssize_t = |next| next();
            around fn sockatmark(fd: c_int) -> c_int = |next| control::at_mark(fd, next);

            // They read, write or close by libc's inner calls, which no hook sees.
            around fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE = |next| { before_use(fd); next() };
            around fn fclose(file: *mut FILE) -> c_int = |next| { before_stream_ends(file); next() };
            around fn freopen(path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE = |next| { before_stream_ends(file); next() };
            around fn freopen64(path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE = |next| { before_stream_ends(file); next() };
            around fn vdprintf(fd: c_int, format: *const c_char, args: *mut c_void) -> c_int = |next| { before_use(fd); next() };
            around fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, args: *mut c_void) -> c_int = |next| { before_use(fd); next() };
            around fn aio_read(request: *mut aiocb) -> c_int = |next| { before_request(request); next() };
            around fn aio_read64(request: *mut aiocb) -> c_int = |next| { before_request(request); next() };
            around fn aio_write(request: *mut aiocb) -> c_int = |next| { before_request(request); next() };
            around fn aio_write64(request: *mut aiocb) -> c_int = |next| { before_request(request); next() };
            around fn lio_listio(mode: c_int, list: Requests, count: c_int, event: *mut sigevent) -> c_int = |next| { before_requests(list, count); next() };
            around fn lio_listio64(mode: c_int, list: Requests, count: c_int, event: *mut sigevent) -> c_int = |next| { before_requests(list, count); next() };
            around fn eventfd_read(fd: c_int, value: *mut u64) -> c_int = |next| { before_use(fd); next() };
            around fn eventfd_write(fd: c_int, value: u64) -> c_int = |next| { before_use(fd); next() };
            around fn backtrace_symbols_fd(frames: Frames, count: c_int, fd: c_int) -> () = |next| { before_use(fd); next() };
            around fn pidfd_getfd(pidfd: c_int, target: c_int, flags: c_uint) -> c_int = |next| { before_getting(pidfd, target); next() };
            // They put other files in the place of standard input, output and error.
            around fn daemon(nochdir: c_int, noclose: c_int) -> c_int = |next| { let _replaced = Replaced::begin(); next() };
            around fn login_tty(fd: c_int) -> c_int = |next| { let _replaced = Replaced::begin(); next() };
            around fn forkpty(master: *mut c_int, name: *mut c_char, terminal: *const termios, size: *const winsize) -> pid_t = |next| { let _replaced = Replaced::begin(); next() };

            around fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int = |next| poll_set::poll((fds, count), || Some(deadline_of(timeout)), ptr::null(), next);
            around fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, room: size_t) -> c_int = |next| if has_room::<pollfd>(room, count) { poll(fds, count, timeout) } else { next() };
            around fn ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int = |next| poll_set::poll((fds, count), || valid_deadline(timeout.as_ref()), mask, next);
            around fn __ppoll_chk(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t, room: size_t) -> c_int = |next| if has_room::<pollfd>(room, count) { ppoll(fds, count, timeout, mask) } else { next() };
            around fn select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int = |_next| sets::select(count, [read, write, except], timeout);
            around fn pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int = |_next| sets::pselect(count, [read, write, except], timeout, mask);

            around fn setrlimit(resource: c_uint, limit: *const rlimit) -> c_int = |_next| { let result = address_limit::set(resource, limit, |limit| next::setrlimit(resource, limit)); note_limit(); result };
            around fn prlimit(pid: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int = |_next| { let result = address_limit::change(pid, resource, (new, old), |new| next::prlimit(pid, resource, new, old)); note_limit(); result };
            around fn getrlimit(resource: c_uint, limit: *mut rlimit) -> c_int = |next| address_limit::get(resource, limit, next);

            around fn epoll_create(size: c_int) -> c_int = |next| created(next());
            around fn epoll_create1(flags: c_int) -> c_int = |next| created(next());
            around fn epoll_wait(epfd: c_int, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int = |next| Wait { epfd, events, max, deadline: deadline_of(timeout), mask: ptr::null() }.run(next);
            around fn epoll_pwait(epfd: c_int, events: *mut epoll_event, max: c_int, timeout: c_int, mask: *const sigset_t) -> c_int = |next| Wait { epfd, events, max, deadline: deadline_of(timeout), mask }.run(next);

            around fn mmap(addr: *mut c_void, len: size_t, prot: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void = |next| mapping((addr, len), flags, (fd, offset), next);
            around fn munmap(addr: *mut c_void, len: size_t) -> c_int = |next| { unmapping(addr, len); next() };
            // Of the library's memory, most of which is never used, nothing is locked: all would be brought in.
            around fn mlockall(flags: c_int) -> c_int = |_next| lock_all(flags, |flags| next::mlockall(flags));
            around fn mremap(old: *mut c_void, old_len: size_t, len: size_t, flags: c_int, new: *mut c_void) -> *mut c_void = |next| remapping((old, old_len), (new, len), flags, next);

            around fn __register_atfork(before: ForkHandler, in_parent: ForkHandler, in_child: ForkHandler, object: *mut c_void) -> c_int = |next| { watch_forks(); next() };
            around fn fork() -> pid_t = |next| settling(next);
            around fn _Fork() -> pid_t = |next| without_handlers(next);
            around fn execve(path: *const c_char, argv: Strings, envp: Strings) -> c_int = |next| become_program(&Program::at(path, envp), next);
            around fn execv(path: *const c_char, argv: Strings) -> c_int = |next| become_program(&Program::at(path, ptr::null()), next);
            around fn execvp(file: *const c_char, argv: Strings) -> c_int = |next| become_program(&Program::sought(ptr::null()), next);
            around fn execvpe(file: *const c_char, argv: Strings, envp: Strings) -> c_int = |next| become_program(&Program::sought(envp), next);
            around fn fexecve(fd: c_int, argv: Strings, envp: Strings) -> c_int = |next| become_program(&Program::behind(fd, envp), next);
            around fn execveat(dir: c_int, path: *const c_char, argv: Strings, envp: Strings, flags: c_int) -> c_int = |next| become_program(&Program::beneath(dir, path, envp), next);
            around fn posix_spawn(pid: *mut pid_t, path: *const c_char, actions: *const posix_spawn_file_actions_t, attr: *const posix_spawnattr_t, argv: Strings, envp: Strings) -> c_int = |next| spawn_program(&Program::at(path, envp), actions.addr(), next);
            around fn posix_spawnp(pid: *mut pid_t, file: *const c_char, actions: *const posix_spawn_file_actions_t, attr: *const posix_spawnattr_t, argv: Strings, envp: Strings) -> c_int = |next| spawn_program(&Program::sought(envp), actions.addr(), next);
            around fn pidfd_spawn(pidfd: *mut c_int, path: *const c_char, actions: *const posix_spawn_file_actions_t, attr: *const posix_spawnattr_t, argv: Strings, envp: Strings) -> c_int = |next| or_absent(spawn_program(&Program::at(path, envp), actions.addr(), next));
            around fn pidfd_spawnp(pidfd: *mut c_int, file: *const c_char, actions: *const posix_spawn_file_actions_t, attr: *const posix_spawnattr_t, argv: Strings, envp: Strings) -> c_int = |next| or_absent(spawn_program(&Program::sought(envp), actions.addr(), next));
            around fn posix_spawn_file_actions_adddup2(actions: *mut posix_spawn_file_actions_t, fd: c_int, new: c_int) -> c_int = |next| { will_duplicate(actions.addr(), fd); next() };
            around fn system(command: *const c_char) -> c_int = |next| run_shell(!command.is_null(), next);
            around fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE = |next| run_shell(true, next);
            around fn wordexp(words: *const c_char, into: *mut c_void, flags: c_int) -> c_int = |next| { before_words(words, flags); next() };
            around fn setns(fd: c_int, kind: c_int) -> c_int = |next| moving(next);
            around fn unshare(flags: c_int) -> c_int = |next| moving(next);
            around fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int = |next| { before_prctl(option, a, b); next() };
            around fn sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int = |_next| install(signal, new, old, |new| next::sigaction(signal, new, old));
            around fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t = |next| install_by_libc(signal, next);
            around fn sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t = |next| install_by_libc(signal, next);
            around fn sigset(signal: c_int, handler: sighandler_t) -> sighandler_t = |next| install_by_libc(signal, next);
            around fn siginterrupt(signal: c_int, ends: c_int) -> c_int = |next| change_by_libc(signal, next);
            around fn chroot(path: *const c_char) -> c_int = |next| change_root(next);
            // The agent may be out of reach after them.
            around fn setuid(uid: uid_t) -> c_int = |next| { let _change = UserChange::begin(uid); next() };
            around fn seteuid(uid: uid_t) -> c_int = |next| { let _change = UserChange::begin(uid); next() };
            around fn setreuid(real: uid_t, effective: uid_t) -> c_int = |next| { let _change = UserChange::begin(effective); next() };
            around fn setresuid(real: uid_t, effective: uid_t, saved: uid_t) -> c_int = |next| { let _change = UserChange::begin(effective); next() };

            never fn _exit(status: c_int) = ops::process::_exit;
            never fn _Exit(status: c_int) = ops::process::_exit;
            some fn syscall(number: c_long, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong, e: c_ulong, f: c_ulong) -> c_long = ops::raw::syscall, where ops::raw::CONCERNS;
            tail vfork = ops::process::memory_is_lent;
            tail __vfork = ops::process::memory_is_lent;
            tail clone = ops::process::memory_is_lent;
            tail __clone = ops::process::memory_is_lent;
            tail longjmp = ops::process::before_longjmp;
            tail _longjmp = ops::process::before_longjmp;
            tail siglongjmp = ops::process::before_longjmp;
            tail __longjmp_chk = ops::process::before_longjmp;
            tail execl = in_list::execl;
            tail execlp = in_list::execlp;
            tail execle = in_list::execle;
            tail dlopen = ops::loader::before_dlopen;
            tail dlmopen = shunt_runtime::loader::before_dlmopen;
            tail dlsym = ops::loader::before_dlsym;
            tail dlvsym = ops::loader::before_dlvsym;
            tail dprintf = shunt_runtime::descriptors::unseen::before_print;
            tail __dprintf_chk = shunt_runtime::descriptors::unseen::before_print;
        }
    };
}
pub(crate) use for_each_hook;

macro_rules! names {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty = $handler:path;)*
     $(around fn $around:ident($($around_arg:ident: $around_ty:ty),*) -> $around_ret:ty = |$onward:ident| $body:expr;)*
     $(never fn $never:ident($($never_arg:ident: $never_ty:ty),*) = $end:path;)*
     $(some fn $some:ident($($some_arg:ident: $some_ty:ty),*) -> $some_ret:ty = $some_handler:path, where $table:path;)*
     $(tail $tail:ident = $before:path;)*) => {
        /// The names of all hooked functions.
        pub const HOOKS: &[&str] =
            &[$(stringify!($name),)* $(stringify!($around),)* $(stringify!($never),)* $(stringify!($some),)* $(stringify!($tail),)*];
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
