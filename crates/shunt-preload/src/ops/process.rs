//! Fork, exec and spawn; and whose memory this is.
//!
//! **fork.** The handlers are registered with `pthread_atfork`, so that `daemon`, `forkpty` and
//! `system`-like helpers of libc are seen. They are the first that are registered, by the hook on
//! that very function: so the preparation is the last before a fork, and what follows the first
//! after it. The program's own handlers find no lock of ours held, whatever they call.
//!
//! **A raw fork** (`_Fork`, and `clone` and `fork` by syscall(2)) runs no handlers: the hooks on these functions do
//! what the library's handlers do. One by an instruction of the program's own, or by `clone3`, nobody sees. The owner's pid stands on
//! a page that the kernel wipes in the child (`MADV_WIPEONFORK`), so that child notices at its next call that changes the
//! table.
//!
//! **vfork and its kind** (`CLONE_VM`). The child has its own descriptors but *our* memory: what it
//! closes must stay in the parent's table. Once vfork(3) or clone(3) was called, each call that changes
//! the table asks for its pid: one that is not the owner's does the kernel's call only. What such a child
//! duplicates it means to exec with, so that is handed over. (`CLONE_VM` by a system call of the
//! program's own is not seen; its child may not call libc's functions anyhow.)
//!
//! **exec, spawn, system, popen.** What stays open across it is handed over first: the new program may not run Shunt. What lies
//! unread goes along, in case that it does ([`shunt_runtime::stream::leftover`]).

use core::cell::Cell;
use core::ffi::{c_char, c_int, c_long, c_void};
use core::sync::atomic::Ordering;
use core::{mem, ptr};
use std::collections::BTreeMap;
use std::sync::OnceLock;

use crate::next;
use crate::panics;
use shunt_runtime::conn::{Conn, Sock};
use shunt_runtime::contain::contain;
use shunt_runtime::control::user::{self, namespaces_change};
use shunt_runtime::fds::fd_table;
use shunt_runtime::fds::owner;
use shunt_runtime::point;
use shunt_runtime::processes::close;
use shunt_runtime::processes::fork;
use shunt_runtime::processes::relatives;
use shunt_runtime::processes::relatives::Child;
use shunt_runtime::stream::hand_over;
use shunt_runtime::stream::in_doubt;
use shunt_runtime::stream::leftover::Program;
use shunt_runtime::stream::leftover::pass::{self, Passed};
use shunt_runtime::system::abi::Arguments;
use shunt_runtime::system::abi::{
    FILE, ForkHandler, Strings, pid_t, posix_spawn_file_actions_t, posix_spawnattr_t,
};
use shunt_runtime::system::errno::KeepErrno;
use shunt_runtime::threads::signals::Uninterrupted;
use shunt_runtime::{activity, calls};

thread_local! {
    /// True from the fork handlers' first run to their second, in the thread that forks.
    static FORKING: Cell<bool> = const { Cell::new(false) };
    /// From the first to the second as well: a handler that forks on top of a fork would use up what is
    /// prepared for that one.
    static UNINTERRUPTED: Cell<Option<Uninterrupted>> = const { Cell::new(None) };
    /// True in the hook on fork(2), which learns what becomes of it.
    static HOOKED: Cell<bool> = const { Cell::new(false) };
}

/// Has the fork handlers called from now on, before any of the program's is registered.
pub fn watch_forks() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED.get_or_init(|| {
        // SAFETY: the handlers live as long as the library, which is never unloaded; so they belong to no
        // object whose end would take them out.
        let rc = unsafe {
            next::__register_atfork(Some(before), Some(in_parent), Some(in_child), ptr::null_mut())
        };
        rc == 0
    })
}

extern "C" fn before() {
    contain(prepare);
}

extern "C" fn in_parent() {
    if !contain(parent) {
        contain(fork::in_parent_again);
    }
}

extern "C" fn in_child() {
    if !contain(child) {
        panics::in_child();
    }
}

/// What pthread_atfork(3) comes to.
///
/// # Safety
/// As the C function.
pub unsafe fn __register_atfork(
    before: ForkHandler,
    in_parent: ForkHandler,
    in_child: ForkHandler,
    object: *mut c_void,
) -> c_int {
    watch_forks();
    // SAFETY: the caller keeps the C function's contract.
    unsafe { next::__register_atfork(before, in_parent, in_child, object) }
}

/// Has the end by `quick_exit` noticed; for the constructor, so that the program's own handlers, which
/// may use connections still, run before.
pub fn watch_quick_exit() {
    type Register = unsafe extern "C" fn(extern "C" fn(*mut c_void), *mut c_void) -> c_int;
    extern "C" fn at_quick_exit(_: *mut c_void) {
        contain(ends);
    }
    // Behind at_quick_exit(3), which is linked into programs statically.
    // SAFETY: the name is a C string.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__cxa_at_quick_exit".as_ptr()) };
    if !found.is_null() {
        // SAFETY: the function of this name in libc has this signature; the handler lives as long as
        // the library, which is never unloaded.
        unsafe { mem::transmute::<*mut c_void, Register>(found)(at_quick_exit, ptr::null_mut()) };
    }
}

/// Before vfork(3) and clone(3), whose child may share this memory. Their first argument is of no
/// interest.
pub fn memory_is_lent(_: Arguments) {
    owner::lend();
    pass::forget_kept();
}

fn prepare() {
    // Where start-up went well.
    if !owner::is_claimed() {
        return;
    }
    let uninterrupted = Uninterrupted::begin();
    if !FORKING.replace(true) {
        let _keep = KeepErrno::new();
        fork::prepare();
        UNINTERRUPTED.set(Some(uninterrupted));
    }
}

fn parent() {
    let _uninterrupted = UNINTERRUPTED.take();
    if FORKING.replace(false) {
        let _keep = KeepErrno::new();
        fork::in_parent();
        if !HOOKED.get() {
            relatives::fork_settled(Child::Unknown);
        }
    }
}

fn child() {
    let _uninterrupted = UNINTERRUPTED.take();
    if FORKING.replace(false) {
        let _keep = KeepErrno::new();
        owner::become_own();
        fork::in_child();
    }
}

/// # Safety
/// As the C function.
pub unsafe fn fork() -> pid_t {
    // SAFETY: the caller keeps the C function's contract.
    settling(|| unsafe { next::fork() })
}

/// # Safety
/// As the C function.
pub unsafe fn fork_without_handlers() -> pid_t {
    // SAFETY: the caller keeps the C function's contract.
    without_handlers(|| unsafe { next::_Fork() })
}

/// Forks, and notes what has become of the child.
fn settling<T: Copy + TryInto<u32> + PartialEq + Default>(fork: impl FnOnce() -> T) -> T {
    // In a handler above a fork of this thread, that one's.
    let outer = HOOKED.replace(true);
    let pid = fork();
    let in_child = pid == T::default();
    HOOKED.set(outer && !in_child);
    if !in_child {
        let _keep = KeepErrno::new();
        // The kernel has forked, whatever becomes of this.
        contain(|| relatives::fork_settled(pid.try_into().map_or(Child::None, Child::Pid)));
    }
    pid
}

/// The same by a call for which libc runs no handlers.
fn without_handlers<T: Copy + TryInto<u32> + PartialEq + Default>(fork: impl FnOnce() -> T) -> T {
    // A child that shares this memory has nothing to prepare here.
    if !owner::may_mutate() {
        return fork();
    }
    settling(|| {
        before();
        let pid = fork();
        if pid == T::default() {
            in_child();
        } else {
            in_parent();
        }
        pid
    })
}

/// A fork by syscall(2), with these flags of clone(2).
pub fn clone_by(flags: u64, clone: impl FnOnce() -> c_long) -> c_long {
    const NAMESPACES: c_int = libc::CLONE_NEWNET | libc::CLONE_NEWUSER | libc::CLONE_NEWPID;
    if flags & u64::from(NAMESPACES.cast_unsigned()) != 0 {
        namespaces_change();
    }
    without_handlers(clone)
}

/// The process ends without the handlers of exit(3): by `_exit`, or at the end of `quick_exit`. It may
/// be in a signal handler, and it may be a child that shares its parent's memory, or that was forked
/// without a word and has used none of what it inherited: these have nothing to give back.
pub fn ends() {
    let mine = owner::is_own();
    if mine && activity::deactivate() {
        close::at_exit();
    }
}

/// # Safety
/// As the C function.
pub unsafe fn _exit(status: c_int) -> ! {
    ends();
    // SAFETY: the caller keeps the C function's contract.
    unsafe { next::_exit(status) }
}

/// Connections of which the exec will close every descriptor, while it is tried: where a relative
/// holds one, too, this process no longer counts. Taken back when the exec fails.
struct ClosedByExec(Vec<&'static Sock>);

impl ClosedByExec {
    fn new() -> Self {
        if !owner::may_mutate() {
            return Self(Vec::new());
        }
        let _keep = KeepErrno::new();
        let mut socks = BTreeMap::new();
        for (fd, entry) in fd_table::iter(0..=c_int::MAX) {
            if let Some(sock) = Sock::of(entry) {
                let (_, stays) = socks.entry(ptr::from_ref(sock)).or_insert((sock, false));
                *stays |= pass::survives(fd);
            }
        }
        let closes = |sock: &&'static Sock| relatives::let_go_if_shared(sock);
        let closed = socks.into_values().filter(|(_, stays)| !stays).map(|(sock, _)| sock);
        let closed = Self(closed.filter(closes).collect());
        relatives::leave();
        closed
    }
}

impl Drop for ClosedByExec {
    fn drop(&mut self) {
        let _keep = KeepErrno::new();
        for sock in &self.0 {
            let again = || {
                point!(exec_failed);
                relatives::hold_again(sock);
            };
            if !contain(again) {
                in_doubt::reset(Conn::gone(sock));
            }
        }
    }
}

/// Hands over every connection that stays open across an exec. If the exec then fails they go on
/// where they were handed to.
pub fn before_exec() {
    let _keep = KeepErrno::new();
    for (fd, entry) in fd_table::iter(0..=c_int::MAX) {
        if entry.is_object() && pass::survives(fd) {
            hand_over::hand_over(fd, entry);
        }
    }
}

/// The same, and what lies unread goes along, as long as the result is kept.
///
/// # Safety
/// The program is what execve(2) wants.
unsafe fn before_program(program: &Program) -> Passed {
    before_exec();
    // SAFETY: the caller's promise.
    unsafe { pass::pass(program, |_| false) }
}

/// The same for a spawn with these actions, which may duplicate what exec would close.
///
/// # Safety
/// As for [`before_program`].
unsafe fn before_spawn(program: &Program, actions: *const posix_spawn_file_actions_t) -> Passed {
    before_exec();
    let is_named =
        |sock: &Sock| !actions.is_null() && sock.spawned.load(Ordering::Relaxed) == actions.addr();
    for (fd, entry) in fd_table::iter(0..=c_int::MAX) {
        if Sock::of(entry).is_some_and(is_named) {
            let _keep = KeepErrno::new();
            hand_over::hand_over(fd, entry);
        }
    }
    // SAFETY: the caller's promise.
    unsafe { pass::pass(program, is_named) }
}

/// [`before_exec`] for the variadic functions, whose first argument is the program's path.
pub fn before_execl([path, ..]: Arguments) {
    let path = ptr::with_exposed_provenance(path);
    // SAFETY: a path, as the caller has it. Its environment, of one of these functions, stands behind arguments of which the
    // number is not known.
    unsafe { before_program(&Program::at(path, ptr::null())) }.keep();
}

/// Before longjmp(3) and its kind, whose first argument says where to.
pub fn before_jump([env, ..]: Arguments) {
    calls::before_jump(env);
}

/// # Safety
/// As the C function.
pub unsafe fn execve(path: *const c_char, argv: Strings, envp: Strings) -> c_int {
    // SAFETY: what execve(2) wants, by the caller's contract.
    let _passed = unsafe { before_program(&Program::at(path, envp)) };
    let _closed = ClosedByExec::new();
    // SAFETY: the caller keeps the C function's contract.
    unsafe { next::execve(path, argv, envp) }
}

/// # Safety
/// As the C function.
pub unsafe fn execv(path: *const c_char, argv: Strings) -> c_int {
    // SAFETY: what execve(2) wants, by the caller's contract.
    let _passed = unsafe { before_program(&Program::at(path, ptr::null())) };
    let _closed = ClosedByExec::new();
    // SAFETY: the caller keeps the C function's contract.
    unsafe { next::execv(path, argv) }
}

/// # Safety
/// As the C function.
pub unsafe fn execvp(file: *const c_char, argv: Strings) -> c_int {
    // SAFETY: what execve(2) wants, by the caller's contract.
    let _passed = unsafe { before_program(&Program::sought(ptr::null())) };
    let _closed = ClosedByExec::new();
    // SAFETY: the caller keeps the C function's contract.
    unsafe { next::execvp(file, argv) }
}

/// # Safety
/// As the C function.
pub unsafe fn execvpe(file: *const c_char, argv: Strings, envp: Strings) -> c_int {
    // SAFETY: what execve(2) wants, by the caller's contract.
    let _passed = unsafe { before_program(&Program::sought(envp)) };
    let _closed = ClosedByExec::new();
    // SAFETY: the caller keeps the C function's contract.
    unsafe { next::execvpe(file, argv, envp) }
}

/// # Safety
/// As the C function.
pub unsafe fn fexecve(fd: c_int, argv: Strings, envp: Strings) -> c_int {
    // SAFETY: what execve(2) wants, by the caller's contract.
    let _passed = unsafe { before_program(&Program::behind(fd, envp)) };
    let _closed = ClosedByExec::new();
    // SAFETY: the caller keeps the C function's contract.
    unsafe { next::fexecve(fd, argv, envp) }
}

/// # Safety
/// As the C function.
pub unsafe fn execveat(
    dir: c_int,
    path: *const c_char,
    argv: Strings,
    envp: Strings,
    flags: c_int,
) -> c_int {
    // SAFETY: what execve(2) wants, by the caller's contract.
    let _passed = unsafe { before_program(&Program::beneath(dir, path, envp)) };
    let _closed = ClosedByExec::new();
    // SAFETY: the caller keeps the C function's contract.
    unsafe { next::execveat(dir, path, argv, envp, flags) }
}

/// # Safety
/// As the C function.
pub unsafe fn posix_spawn(
    pid: *mut pid_t,
    path: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    attr: *const posix_spawnattr_t,
    argv: Strings,
    envp: Strings,
) -> c_int {
    // SAFETY: what execve(2) wants, by the caller's contract.
    let _passed = unsafe { before_spawn(&Program::at(path, envp), actions) };
    // SAFETY: the caller keeps the C function's contract.
    unsafe { next::posix_spawn(pid, path, actions, attr, argv, envp) }
}

/// # Safety
/// As the C function.
pub unsafe fn posix_spawnp(
    pid: *mut pid_t,
    file: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    attr: *const posix_spawnattr_t,
    argv: Strings,
    envp: Strings,
) -> c_int {
    // SAFETY: what execve(2) wants, by the caller's contract.
    let _passed = unsafe { before_spawn(&Program::sought(envp), actions) };
    // SAFETY: the caller keeps the C function's contract.
    unsafe { next::posix_spawnp(pid, file, actions, attr, argv, envp) }
}

/// An error number where libc has no such function, of which a stand-in says -1.
fn or_absent(result: c_int) -> c_int {
    if result < 0 { libc::ENOSYS } else { result }
}

/// # Safety
/// As the C function.
pub unsafe fn pidfd_spawn(
    pidfd: *mut c_int,
    path: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    attr: *const posix_spawnattr_t,
    argv: Strings,
    envp: Strings,
) -> c_int {
    // SAFETY: what execve(2) wants, by the caller's contract.
    let _passed = unsafe { before_spawn(&Program::at(path, envp), actions) };
    // SAFETY: the caller keeps the C function's contract.
    or_absent(unsafe { next::pidfd_spawn(pidfd, path, actions, attr, argv, envp) })
}

/// # Safety
/// As the C function.
pub unsafe fn pidfd_spawnp(
    pidfd: *mut c_int,
    file: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    attr: *const posix_spawnattr_t,
    argv: Strings,
    envp: Strings,
) -> c_int {
    // SAFETY: what execve(2) wants, by the caller's contract.
    let _passed = unsafe { before_spawn(&Program::sought(envp), actions) };
    // SAFETY: the caller keeps the C function's contract.
    or_absent(unsafe { next::pidfd_spawnp(pidfd, file, actions, attr, argv, envp) })
}

/// # Safety
/// As the C function.
pub unsafe fn system(command: *const c_char) -> c_int {
    // Without a command it only asks whether there is a shell.
    // SAFETY: a shell, with this program's environment.
    let _passed =
        (!command.is_null()).then(|| unsafe { before_program(&Program::sought(ptr::null())) });
    // SAFETY: the caller keeps the C function's contract.
    unsafe { next::system(command) }
}

/// # Safety
/// As the C function.
pub unsafe fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE {
    // SAFETY: as above.
    let _passed = unsafe { before_program(&Program::sought(ptr::null())) };
    // SAFETY: the caller keeps the C function's contract.
    unsafe { next::popen(command, mode) }
}

/// The actions of a spawn are opaque, so what it will duplicate is handed over when that is
/// ordered: `fd` itself may be close-on-exec, its duplicate is not.
///
/// # Safety
/// As the C function.
pub unsafe fn posix_spawn_file_actions_adddup2(
    actions: *mut posix_spawn_file_actions_t,
    fd: c_int,
    new: c_int,
) -> c_int {
    let entry = fd_table::lookup(fd);
    if entry.is_object() {
        let _keep = KeepErrno::new();
        hand_over::hand_over(fd, entry);
        if let Some(sock) = Sock::of(entry) {
            sock.spawned.store(actions.addr(), Ordering::Relaxed);
        }
    }
    // SAFETY: the caller keeps the C function's contract.
    unsafe { next::posix_spawn_file_actions_adddup2(actions, fd, new) }
}

/// # Safety
/// As the C function.
pub unsafe fn setns(fd: c_int, kind: c_int) -> c_int {
    namespaces_change();
    // SAFETY: the caller keeps the C function's contract.
    let result = unsafe { next::setns(fd, kind) };
    user::forget();
    result
}

/// # Safety
/// As the C function.
pub unsafe fn unshare(flags: c_int) -> c_int {
    namespaces_change();
    // SAFETY: the caller keeps the C function's contract.
    let result = unsafe { next::unshare(flags) };
    user::forget();
    result
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicU32;
    use shunt_runtime::testing::exit_status;

    use super::*;

    #[test]
    fn fork_handlers_run_once_however_often_they_are_called() {
        assert!(owner::claim());
        assert!(!FORKING.get());
        prepare();
        prepare();
        assert!(FORKING.get());
        parent();
        parent();
        assert!(!FORKING.get());
    }

    /// What was registered before the library was asked runs inside of its own handlers.
    #[test]
    fn the_program_s_handlers_run_outside_of_ours() {
        static SEEN: AtomicU32 = AtomicU32::new(0);
        extern "C" fn look() {
            SEEN.fetch_or(1 << u32::from(FORKING.get()), Ordering::Relaxed);
        }
        assert!(owner::claim());
        // SAFETY: the handler looks at a flag.
        let rc = unsafe { __register_atfork(Some(look), Some(look), Some(look), ptr::null_mut()) };
        assert_eq!(rc, 0);
        // SAFETY: the child exits at once.
        let pid = unsafe { fork() };
        if pid == 0 {
            let own = owner::is_own();
            let outside = SEEN.load(Ordering::Relaxed) == 1;
            // SAFETY: ends the child.
            unsafe { libc::_exit(c_int::from(own && outside && !FORKING.get())) };
        }
        assert_eq!(exit_status(pid), 1);
        assert_eq!(SEEN.load(Ordering::Relaxed), 1);
    }
}
