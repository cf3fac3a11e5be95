//! Processes and signals.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{c_int, c_void, pid_t};

use super::check;

/// Which side of a [`fork`] this is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Forked {
    /// The new process.
    Child,
    /// The old one, with the new one's pid.
    Parent(pid_t),
}

/// `fork(2)`. In a process of several threads the child may do little more than system calls.
pub fn fork() -> io::Result<Forked> {
    // SAFETY: the callers have one thread, so the child may go on as the parent could, or keep to
    // what is safe after a fork of several.
    match check(unsafe { libc::fork() })? {
        0 => Ok(Forked::Child),
        pid => Ok(Forked::Parent(pid)),
    }
}

/// Asks the kernel to end this process with SIGTERM when its parent ends.
pub fn end_with_parent() -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) }).map(drop)
}

/// `_exit(2)`: ends a forked child without the parent's exit handlers.
pub fn exit_now(code: c_int) -> ! {
    // SAFETY: _exit never returns and touches no memory.
    unsafe { libc::_exit(code) }
}

/// `quick_exit(3)`.
pub fn exit_quickly(code: c_int) -> ! {
    unsafe extern "C" {
        fn quick_exit(code: c_int) -> !;
    }
    // SAFETY: no pointers; these programs register no handlers that could do harm.
    unsafe { quick_exit(code) }
}

/// A fork of which libc knows nothing. Call it only while the process has one thread.
pub fn fork_raw() -> io::Result<Forked> {
    fork_raw_with(libc::SIGCHLD)
}

/// How libc is told nothing of a fork.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RawFork {
    /// The clone system call, by syscall(2).
    Clone,
    /// The same with flags that ask for more.
    CloneInto,
    /// The fork system call, by syscall(2).
    Fork,
    /// `_Fork`.
    Function,
}

/// The functions of libc that become a program by a list of arguments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExecList {
    /// `execl`.
    Path,
    /// `execlp`.
    Sought,
    /// `execle`.
    Environment,
}

/// Becomes a program that sleeps for a minute. Why it has not.
pub fn exec_to_sleep(how: ExecList) -> io::Error {
    let (path, name, time) = (c"/bin/sleep".as_ptr(), c"sleep".as_ptr(), c"60".as_ptr());
    let end = std::ptr::null::<libc::c_char>();
    // SAFETY: strings, a null behind the last, and an empty list.
    unsafe {
        match how {
            ExecList::Path => libc::execl(path, name, time, end),
            ExecList::Sought => libc::execlp(name, name, time, end),
            ExecList::Environment => libc::execle(path, name, time, end, &raw const end),
        }
    };
    io::Error::last_os_error()
}

/// Such a fork. Call it only while no other thread has locked what the child wants.
pub fn fork_raw_by(how: RawFork) -> io::Result<Forked> {
    unsafe extern "C" {
        fn _Fork() -> pid_t;
    }
    let mut tid: c_int = 0;
    let at = &raw mut tid;
    // SAFETY: as for fork(2), which this is to the kernel; it may write the child's id.
    let pid = unsafe {
        match how {
            RawFork::Clone => libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0),
            RawFork::CloneInto => {
                let flags = libc::CLONE_CHILD_SETTID | libc::CLONE_PARENT_SETTID | libc::SIGCHLD;
                libc::syscall(libc::SYS_clone, flags, 0, at, at, 0)
            }
            RawFork::Fork => libc::syscall(libc::SYS_fork),
            RawFork::Function => _Fork().into(),
        }
    };
    match check(c_int::try_from(pid).unwrap_or(-1))? {
        0 => Ok(Forked::Child),
        pid => Ok(Forked::Parent(pid)),
    }
}

/// The clone system call with these flags, and the parent's stack. As [`fork_raw_by`].
pub fn fork_raw_with(flags: c_int) -> io::Result<Forked> {
    // SAFETY: as for fork(2): without memory in common there is a stack for each.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    match check(c_int::try_from(pid).unwrap_or(-1))? {
        0 => Ok(Forked::Child),
        pid => Ok(Forked::Parent(pid)),
    }
}

/// vfork(2), and a child that closes a descriptor and ends.
#[allow(deprecated, reason = "the function that programs in C call")]
#[inline(never)]
pub fn close_in_vfork(fd: c_int) -> io::Result<pid_t> {
    // SAFETY: the child makes two calls whose arguments are there already, and never returns.
    let pid = unsafe { libc::vfork() };
    if pid == 0 {
        // SAFETY: the child's own descriptor; `_exit` ends the child.
        unsafe {
            libc::close(fd);
            libc::_exit(0)
        }
    }
    check(pid)
}

/// vfork(2), and a child that becomes another program.
#[allow(deprecated, reason = "the function that programs in C call")]
#[inline(never)]
pub fn exec_in_vfork(program: &std::ffi::CStr, args: &[&std::ffi::CStr]) -> io::Result<pid_t> {
    let mut pointers: Vec<_> = args.iter().map(|arg| arg.as_ptr()).collect();
    pointers.push(std::ptr::null());
    let (program, args) = (program.as_ptr(), pointers.as_ptr());
    // SAFETY: the child makes two calls whose arguments are there already, and never returns.
    let pid = unsafe { libc::vfork() };
    if pid == 0 {
        // SAFETY: C strings, and a null pointer that ends them; `_exit` ends the child.
        unsafe {
            libc::execv(program, args);
            libc::_exit(127)
        }
    }
    check(pid)
}

/// [`close_in_vfork`] with clone(2) and `CLONE_VM`, in a child with a stack of its own.
pub fn close_in_clone(fd: c_int) -> io::Result<pid_t> {
    extern "C" fn child(fd: *mut c_void) -> c_int {
        // SAFETY: the child's own descriptor.
        unsafe { libc::close(*fd.cast::<c_int>()) }
    }
    let mut fd = fd;
    let mut stack = vec![0_u128; 16 << 10];
    // SAFETY: the number and the child's stack outlive the child: CLONE_VFORK waits.
    let pid = unsafe {
        let top = stack.as_mut_ptr_range().end.cast();
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        libc::clone(child, top, flags, (&raw mut fd).cast())
    };
    check(pid)
}

/// Gives up root and the right to make processes: every fork of this process fails from now on.
pub fn forbid_forks() -> io::Result<()> {
    // SAFETY: no pointers. The real user is what the limit counts for.
    check(unsafe { libc::setresuid(65_534, 65_534, 65_534) }).or_else(|e| {
        // Who is not root has no root to give up.
        if e.raw_os_error() == Some(libc::EPERM) { Ok(0) } else { Err(e) }
    })?;
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit is valid.
    check(unsafe { libc::setrlimit(libc::RLIMIT_NPROC, &raw const none) }).map(drop)
}

/// `system(3)`: the status.
pub fn system(command: &std::ffi::CStr) -> c_int {
    // SAFETY: a C string.
    unsafe { libc::system(command.as_ptr()) }
}

/// execve(2) of a program that is not there, to which `fd` would be left open.
pub fn exec_nothing(fd: std::os::fd::RawFd) {
    let none = [std::ptr::null()];
    // SAFETY: a C string, and two empty lists; it fails. The flags are numbers.
    unsafe {
        libc::fcntl(fd, libc::F_SETFD, 0);
        libc::execve(c"/nowhere".as_ptr(), none.as_ptr(), none.as_ptr());
        libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC);
    }
}

/// `popen(3)` to read, and `pclose(3)`: what the command printed.
pub fn popen(command: &std::ffi::CStr) -> io::Result<Vec<u8>> {
    // SAFETY: two C strings.
    let file = unsafe { libc::popen(command.as_ptr(), c"r".as_ptr()) };
    if file.is_null() {
        return Err(io::Error::last_os_error());
    }
    let mut text = vec![0; 1000];
    // SAFETY: the file is open, the buffer as long as said.
    unsafe {
        let n = libc::fread(text.as_mut_ptr().cast(), 1, text.len(), file);
        text.truncate(n);
        libc::pclose(file);
    }
    Ok(text)
}

/// Leaves the session of the parent.
pub fn new_session() -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::setsid() }).map(drop)
}

/// Has ended children reaped without being waited for.
pub fn forget_children() {
    // SAFETY: SIG_IGN is no function of ours.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
}

/// Ends the process by SIGALRM unless it has ended by then.
pub fn end_within(seconds: u32) {
    // SAFETY: a number.
    unsafe { libc::alarm(seconds) };
}

/// `kill(2)`.
pub fn kill(pid: pid_t, signal: c_int) -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::kill(pid, signal) }).map(drop)
}

/// `waitpid(2)`: the exit code, or 128 + signal.
pub fn wait_for(pid: pid_t) -> io::Result<c_int> {
    let mut status = 0;
    loop {
        // SAFETY: status is valid.
        match check(unsafe { libc::waitpid(pid, &raw mut status, 0) }) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
            Ok(_) if libc::WIFSIGNALED(status) => return Ok(128 + libc::WTERMSIG(status)),
            Ok(_) => return Ok(libc::WEXITSTATUS(status)),
        }
    }
}

/// How a child has ended, if it has: its exit code, or 128 + signal. It stays a zombie.
pub fn has_ended(pid: pid_t) -> io::Result<Option<c_int>> {
    // SAFETY: siginfo_t is plain data.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let flags = libc::WEXITED | libc::WNOWAIT | libc::WNOHANG;
    // SAFETY: info is valid.
    check(unsafe { libc::waitid(libc::P_PID, pid.cast_unsigned(), &raw mut info, flags) })?;
    // SAFETY: what waitid(2) has written, or all zeroes.
    let (child, status) = unsafe { (info.si_pid(), info.si_status()) };
    let by_signal = info.si_code != libc::CLD_EXITED;
    Ok((child != 0).then_some(if by_signal { 128 + status } else { status }))
}

/// Kills the processes of a group that a child of this process leads, which has not been waited for yet, and waits for
/// those that are children of this process, or become so.
pub fn end_group(leader: pid_t) {
    // SAFETY: no pointers. The number is not another group's: its leader is there, if only as a zombie.
    unsafe {
        libc::kill(-leader, libc::SIGKILL);
        while libc::waitpid(-leader, std::ptr::null_mut(), 0) > 0 {}
    }
}

/// Waits until a child is dead, and leaves it a zombie.
pub fn wait_until_dead(pid: pid_t) -> io::Result<()> {
    // SAFETY: siginfo_t is plain data.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let flags = libc::WEXITED | libc::WNOWAIT;
    // SAFETY: info is valid.
    check(unsafe { libc::waitid(libc::P_PID, pid.cast_unsigned(), &raw mut info, flags) }).map(drop)
}

/// What a process may have of something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resource {
    /// Bytes of virtual memory.
    AddressSpace,
    /// The highest descriptor, plus one.
    Descriptors,
}

/// The soft limit of another process, before it is set to `new`.
pub fn limit(pid: pid_t, resource: Resource, new: Option<u64>) -> io::Result<u64> {
    let resource = match resource {
        Resource::AddressSpace => libc::RLIMIT_AS,
        Resource::Descriptors => libc::RLIMIT_NOFILE,
    };
    let mut old = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: only asks, and old is valid.
    check(unsafe { libc::prlimit(pid, resource, std::ptr::null(), &raw mut old) })?;
    if let Some(new) = new {
        let new = libc::rlimit { rlim_cur: new, ..old };
        // SAFETY: the limit is valid.
        check(unsafe { libc::prlimit(pid, resource, &raw const new, std::ptr::null_mut()) })?;
    }
    Ok(old.rlim_cur)
}

/// Lets this process have descriptors up to `wanted`, or as many as it may.
pub fn raise_descriptor_limit(wanted: u64) -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit is valid in both calls.
    unsafe {
        check(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit))?;
        limit.rlim_cur = wanted.min(limit.rlim_max);
        check(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit)).map(drop)
    }
}

/// This process.
#[must_use]
pub fn pid() -> pid_t {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// This thread.
#[must_use]
pub fn tid() -> pid_t {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Runs `body` on a thread with as little stack as one may have, below which nothing can be touched.
pub fn on_least_stack(body: &mut (dyn FnMut() + Send)) -> io::Result<()> {
    const STACK: usize = 16 << 10;
    const GUARD: usize = 256 << 10;
    extern "C" fn start(body: *mut c_void) -> *mut c_void {
        // What a program has there of its own.
        let own = [0_u8; 2 << 10];
        std::hint::black_box(&own);
        // SAFETY: whoever made the thread waits for it, and has the body until then.
        unsafe { (*body.cast::<&mut (dyn FnMut() + Send)>())() };
        std::hint::black_box(&own);
        std::ptr::null_mut()
    }
    let mut body = body;
    // SAFETY: a fresh mapping, of which the upper part becomes the stack; the thread is waited for before it goes.
    unsafe {
        let (none, prot) = (libc::PROT_NONE, libc::PROT_READ | libc::PROT_WRITE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK;
        let all = libc::mmap(std::ptr::null_mut(), GUARD + STACK, none, flags, -1, 0);
        let stack = all.byte_add(GUARD);
        check(if all == libc::MAP_FAILED { -1 } else { 0 })?;
        check(libc::mprotect(stack, STACK, prot))?;
        let mut attributes = std::mem::zeroed();
        let mut thread = 0;
        libc::pthread_attr_init(&raw mut attributes);
        libc::pthread_attr_setstack(&raw mut attributes, stack, STACK);
        let made = libc::pthread_create(
            &raw mut thread,
            &raw const attributes,
            start,
            (&raw mut body).cast(),
        );
        libc::pthread_attr_destroy(&raw mut attributes);
        if made == 0 {
            libc::pthread_join(thread, std::ptr::null_mut());
        }
        libc::munmap(all, GUARD + STACK);
        if made == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(made)) }
    }
}

/// mlockall(2).
pub fn mlockall(flags: c_int) -> io::Result<()> {
    // SAFETY: no pointers; locked memory is where it was.
    check(unsafe { libc::mlockall(flags) }).map(drop)
}

/// Gives up root, and the right to lock more than so many bytes.
pub fn limit_locks(most: u64) -> io::Result<()> {
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: the limit is valid.
    check(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) })?;
    // SAFETY: no pointers.
    check(unsafe { libc::setresuid(65_534, 65_534, 65_534) }).or_else(|e| {
        // Who is not root has no root to give up.
        if e.raw_os_error() == Some(libc::EPERM) { Ok(0) } else { Err(e) }
    })?;
    Ok(())
}

/// `CLOCK_MONOTONIC`, in nanoseconds: the same for all processes of the machine.
#[must_use]
pub fn monotonic() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: now is valid. It cannot fail for this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

static SIGNALS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count_signal(_: c_int) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
}

/// Installs `handler` without SA_RESTART.
fn install(signal: c_int, handler: libc::sighandler_t) -> io::Result<()> {
    // SAFETY: sigaction is plain data; all zeroes is an empty mask without flags.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    // SAFETY: action is valid and its handler only touches an atomic.
    check(unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) }).map(drop)
}

/// Counts this signal from now on instead of what it did.
pub fn set_signal_counter(signal: c_int) -> io::Result<()> {
    install(signal, count_signal as *const () as libc::sighandler_t)
}

/// Gives the signal its default action back.
pub fn reset_signal(signal: c_int) -> io::Result<()> {
    install(signal, libc::SIG_DFL)
}

/// Puts `errno` back when it goes, as a signal handler has to.
#[derive(Debug)]
pub struct KeepErrno(c_int);

impl KeepErrno {
    /// Keeps what is there now.
    #[must_use]
    pub fn now() -> Self {
        // SAFETY: the place of the thread's own errno.
        Self(unsafe { *libc::__errno_location() })
    }
}

impl Drop for KeepErrno {
    fn drop(&mut self) {
        // SAFETY: the place of the thread's own errno.
        unsafe { *libc::__errno_location() = self.0 };
    }
}

/// Has `handler` run at this signal, which interrupts calls.
pub fn on_signal(signal: c_int, handler: extern "C" fn(c_int)) -> io::Result<()> {
    install(signal, handler as *const () as libc::sighandler_t)
}

/// SIGALRM each so many microseconds from now on; 0: no more.
pub fn set_alarm_every(micros: u32) -> io::Result<()> {
    let time = libc::timeval { tv_sec: 0, tv_usec: micros.into() };
    let timer = libc::itimerval { it_interval: time, it_value: time };
    // SAFETY: the timer is valid.
    check(unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()) })
        .map(drop)
}

/// Blocks a signal in this thread and in those that it makes, or lets it in.
pub fn block_signal(signal: c_int, block: bool) -> io::Result<()> {
    let how = if block { libc::SIG_BLOCK } else { libc::SIG_UNBLOCK };
    // SAFETY: the set is initialized before use; only this thread's mask is changed.
    let code = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, signal);
        libc::pthread_sigmask(how, &raw const set, std::ptr::null_mut())
    };
    if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(code)) }
}

/// Signals counted since the last call.
#[must_use]
pub fn signal_count() -> u32 {
    SIGNALS.swap(0, Ordering::Relaxed)
}
