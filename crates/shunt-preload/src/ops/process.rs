//! Fork, exec and spawn.

use core::ffi::{c_char, c_int, c_void};
use core::ptr;

use crate::next;
use shunt_runtime::calls;
use shunt_runtime::control::user::{self, namespaces_change};
use shunt_runtime::fds::owner;
use shunt_runtime::processes::close::ends;
use shunt_runtime::processes::exec::{
    become_program, before_program, run_program, spawn_program, will_duplicate,
};
use shunt_runtime::processes::forking::{settling, watch_forks, without_handlers};
use shunt_runtime::stream::leftover::Program;
use shunt_runtime::stream::leftover::pass;
use shunt_runtime::system::abi::Arguments;
use shunt_runtime::system::abi::{
    FILE, ForkHandler, Strings, pid_t, posix_spawn_file_actions_t, posix_spawnattr_t,
};

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

/// Before vfork(3) and clone(3), whose child may share this memory. Their first argument is of no
/// interest.
pub fn memory_is_lent(_: Arguments) {
    owner::lend();
    pass::forget_kept();
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

/// # Safety
/// As the C function.
pub unsafe fn _exit(status: c_int) -> ! {
    ends();
    // SAFETY: the caller keeps the C function's contract.
    unsafe { next::_exit(status) }
}

/// Before the variadic functions, whose first argument is the program's path.
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
    let program = Program::at(path, envp);
    // SAFETY: what execve(2) wants, by the caller's contract, which is that of the C function.
    unsafe { become_program(&program, || next::execve(path, argv, envp)) }
}

/// # Safety
/// As the C function.
pub unsafe fn execv(path: *const c_char, argv: Strings) -> c_int {
    let program = Program::at(path, ptr::null());
    // SAFETY: what execve(2) wants, by the caller's contract, which is that of the C function.
    unsafe { become_program(&program, || next::execv(path, argv)) }
}

/// # Safety
/// As the C function.
pub unsafe fn execvp(file: *const c_char, argv: Strings) -> c_int {
    let program = Program::sought(ptr::null());
    // SAFETY: what execve(2) wants, by the caller's contract, which is that of the C function.
    unsafe { become_program(&program, || next::execvp(file, argv)) }
}

/// # Safety
/// As the C function.
pub unsafe fn execvpe(file: *const c_char, argv: Strings, envp: Strings) -> c_int {
    let program = Program::sought(envp);
    // SAFETY: what execve(2) wants, by the caller's contract, which is that of the C function.
    unsafe { become_program(&program, || next::execvpe(file, argv, envp)) }
}

/// # Safety
/// As the C function.
pub unsafe fn fexecve(fd: c_int, argv: Strings, envp: Strings) -> c_int {
    let program = Program::behind(fd, envp);
    // SAFETY: what execve(2) wants, by the caller's contract, which is that of the C function.
    unsafe { become_program(&program, || next::fexecve(fd, argv, envp)) }
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
    let program = Program::beneath(dir, path, envp);
    // SAFETY: what execve(2) wants, by the caller's contract, which is that of the C function.
    unsafe { become_program(&program, || next::execveat(dir, path, argv, envp, flags)) }
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
    let program = Program::at(path, envp);
    // SAFETY: what execve(2) wants, by the caller's contract, which is that of the C function.
    unsafe {
        spawn_program(&program, actions.addr(), || {
            next::posix_spawn(pid, path, actions, attr, argv, envp)
        })
    }
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
    let program = Program::sought(envp);
    // SAFETY: what execve(2) wants, by the caller's contract, which is that of the C function.
    unsafe {
        spawn_program(&program, actions.addr(), || {
            next::posix_spawnp(pid, file, actions, attr, argv, envp)
        })
    }
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
    let program = Program::at(path, envp);
    // SAFETY: what execve(2) wants, by the caller's contract, which is that of the C function.
    or_absent(unsafe {
        spawn_program(&program, actions.addr(), || {
            next::pidfd_spawn(pidfd, path, actions, attr, argv, envp)
        })
    })
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
    let program = Program::sought(envp);
    // SAFETY: what execve(2) wants, by the caller's contract, which is that of the C function.
    or_absent(unsafe {
        spawn_program(&program, actions.addr(), || {
            next::pidfd_spawnp(pidfd, file, actions, attr, argv, envp)
        })
    })
}

/// # Safety
/// As the C function.
pub unsafe fn system(command: *const c_char) -> c_int {
    // Without a command it only asks whether there is a shell.
    if command.is_null() {
        // SAFETY: the caller keeps the C function's contract.
        return unsafe { next::system(command) };
    }
    let shell = Program::sought(ptr::null());
    // SAFETY: a shell, with this program's environment; the caller keeps the C function's contract.
    unsafe { run_program(&shell, || next::system(command)) }
}

/// # Safety
/// As the C function.
pub unsafe fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE {
    let shell = Program::sought(ptr::null());
    // SAFETY: as above.
    unsafe { run_program(&shell, || next::popen(command, mode)) }
}

/// # Safety
/// As the C function.
pub unsafe fn posix_spawn_file_actions_adddup2(
    actions: *mut posix_spawn_file_actions_t,
    fd: c_int,
    new: c_int,
) -> c_int {
    will_duplicate(actions.addr(), fd);
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
