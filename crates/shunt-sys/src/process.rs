//! Whether a process that was known once still runs.
//!
//! A pid alone does not tell: the kernel gives it to another process in time, and it means nothing
//! in another pid namespace. So a process is known by its pid, its start time and its namespace;
//! what can't be read (no `/proc`, or that of another namespace) is 0.

use std::io;
use std::os::fd::AsFd;
use std::panic::AssertUnwindSafe;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open, stat};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, getpid, getppid, pidfd_open, set_parent_process_death_signal,
    test_kill_process,
};
use rustix::time::{ClockId, clock_gettime};

use crate::fds::close;

/// What tells a process from all others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// Its pid, as its namespace counts.
    pub pid: u32,
    /// When it was started, in the kernel's ticks; 0: not known.
    pub start: u64,
    /// Its pid namespace; 0: not known, and taken for that of others where it isn't known either.
    pub namespace: u64,
}

impl Identity {
    /// Of the calling process.
    #[must_use]
    pub fn current() -> Self {
        Self {
            pid: getpid().as_raw_pid().cast_unsigned(),
            start: start_of(None).unwrap_or(0),
            namespace: own_namespace(),
        }
    }

    /// Of the calling process, which the one that has taken `before` has forked since. `by_clock`: the kernel's start times are known to be
    /// [`BeforeFork::start`]'s. Then it mostly costs two system calls, where [`Self::current`] costs some 40 µs with what the kernel
    /// does for them.
    #[must_use]
    pub fn of_child(before: &BeforeFork, by_clock: bool) -> Self {
        let start = before.start().filter(|_| by_clock);
        Self {
            pid: getpid().as_raw_pid().cast_unsigned(),
            start: start.or_else(|| start_of(None)).unwrap_or(0),
            namespace: before.namespace().unwrap_or_else(own_namespace),
        }
    }

    /// True when it is the calling process's parent, and so certainly lives. `here`: the caller's namespace.
    #[must_use]
    pub fn is_parent(&self, here: u64) -> bool {
        self.namespace == here && getppid().is_some_and(|parent| is_pid(parent, self.pid))
    }

    /// True when the process has certainly ended, as the caller in the namespace `here` sees it; a zombie
    /// has. When in doubt it lives.
    #[must_use]
    pub fn has_ended(&self, here: u64) -> bool {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else { return false };
        if self.namespace != here {
            return false;
        }
        if test_kill_process(pid) == Err(Errno::SRCH) || exited(pid) {
            return true;
        }
        // The pid may be another process's by now.
        self.start != 0
            && start_of(Some(self.pid)).is_some_and(|start| start != self.start)
            && start_of(None).is_some()
    }
}

/// What a process knows of itself before it forks, so that its child need not ask `/proc` for what follows from that.
#[derive(Clone, Copy, Debug)]
pub struct BeforeFork {
    parent: Identity,
    /// [`Clock`](ClockId::Boottime), in nanoseconds.
    at: u64,
}

impl BeforeFork {
    /// The calling process, `parent`, is about to fork.
    #[must_use]
    pub fn now(parent: Identity) -> Self {
        Self { parent, at: since_boot() }
    }

    /// When the calling process, its child, was started, by the clock by which the kernel notes that; `None` where it can't be told: a tick has
    /// passed meanwhile. The clocks of two time namespaces are apart by more than that, if at all.
    #[must_use]
    pub fn start(&self) -> Option<u64> {
        // Processors may disagree by a little.
        let earliest = self.at.saturating_sub(SLACK) / TICK;
        ((since_boot() + SLACK) / TICK == earliest).then_some(earliest)
    }

    /// The pid namespace of the calling process, its child, which knows its parent by another number, if by any, where it is in
    /// another one.
    fn namespace(&self) -> Option<u64> {
        (self.parent.namespace != 0 && self.parent.is_parent(self.parent.namespace))
            .then_some(self.parent.namespace)
    }
}

/// A tick of the kernel's start times (`USER_HZ`), in nanoseconds.
const TICK: u64 = 10_000_000;
const SLACK: u64 = 50_000;

fn since_boot() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let part = |part: i64| u64::try_from(part).unwrap_or(0);
    part(now.tv_sec) * 1_000_000_000 + part(now.tv_nsec)
}

fn is_pid(pid: Pid, number: u32) -> bool {
    pid.as_raw_pid().cast_unsigned() == number
}

/// True when the process of this pidfd has ended; false when that cannot be told.
pub fn has_exited(pidfd: impl AsFd) -> bool {
    let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1)
}

/// Makes a process that runs `body` and ends. For our own programs.
///
/// # Errors
/// Those of fork(2).
///
/// # Safety
/// The new process has this thread alone: `body` waits for no lock that another thread may have held.
pub unsafe fn fork_to(body: impl FnOnce()) -> io::Result<Pid> {
    // SAFETY: the caller promises that `body` waits for no lock of another thread; it is all that the child runs.
    match unsafe { libc::fork() } {
        0 => {
            // What is on the stack below is the parent's: the child must not get there.
            let _ = std::panic::catch_unwind(AssertUnwindSafe(body));
            // SAFETY: ends the child, without what the parent wants done at its own end.
            unsafe { libc::_exit(0) }
        }
        child => Pid::from_raw(child).filter(|_| child > 0).ok_or_else(io::Error::last_os_error),
    }
}

/// Ends with the process that started this one, even if that is killed. `parent` is its pid: the call fails where it is
/// gone already.
///
/// # Errors
/// `ESRCH`, and those of prctl(2).
pub fn end_with_parent(parent: Pid) -> rustix::io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid() == Some(parent) { Ok(()) } else { Err(Errno::SRCH) }
}

/// True for a zombie; false also on a kernel without pidfds (before 5.3).
fn exited(pid: Pid) -> bool {
    let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
    let over = has_exited(&pidfd);
    close(pidfd);
    over
}

fn own_namespace() -> u64 {
    stat(c"/proc/self/ns/pid").map_or(0, |stat| stat.st_ino)
}

/// Start time of a process, `None` for the caller's own; not known where `/proc` is that of another pid
/// namespace.
fn start_of(pid: Option<u32>) -> Option<u64> {
    let mut path = [0; 32];
    let path = match pid {
        None => c"/proc/self/stat",
        Some(pid) => stat_path(pid, &mut path)?,
    };
    let file = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut text = [0; 512];
    let len = rustix::io::read(&file, &mut text[..]);
    close(file);
    // The name in the second field may hold anything, also a closing parenthesis.
    let text = text.get(..len.ok()?)?;
    let first = text.split(|byte| *byte == b' ').next()?;
    let own = || getpid().as_raw_pid().cast_unsigned();
    if core::str::from_utf8(first).ok()?.parse() != Ok(pid.unwrap_or_else(own)) {
        return None;
    }
    let after = text.iter().rposition(|byte| *byte == b')')?;
    let field = text.get(after + 1..)?.split(|byte| *byte == b' ').nth(START_AFTER_NAME)?;
    core::str::from_utf8(field).ok()?.parse().ok()
}

/// `starttime` is field 22 (proc_pid_stat(5)), the name field 2; one empty piece lies between.
const START_AFTER_NAME: usize = 20;

/// `/proc/<pid>/stat`, without the heap.
fn stat_path(mut pid: u32, path: &mut [u8; 32]) -> Option<&core::ffi::CStr> {
    let (head, tail) = (b"/proc/", b"/stat\0");
    let mut digits = [0; 10];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + u8::try_from(pid % 10).ok()?;
        pid /= 10;
        if pid == 0 {
            break;
        }
    }
    let pieces = [&head[..], &digits[at..], &tail[..]];
    let whole = pieces.into_iter().flatten();
    for (place, byte) in path.iter_mut().zip(whole) {
        *place = *byte;
    }
    core::ffi::CStr::from_bytes_until_nul(path).ok()
}

/// Places of the calling process's table of descriptors (`FDSize` in proc_pid_status(5)); `None` where
/// that cannot be read.
#[must_use]
pub fn descriptor_places() -> Option<i32> {
    let mut text = [0; 1024];
    let status =
        open(c"/proc/self/status", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let len = rustix::io::read(&status, &mut text);
    close(status);
    let text = text.get(..len.ok()?)?;
    let mut lines = text.split(|byte| *byte == b'\n');
    let places = lines.find_map(|line| line.strip_prefix(b"FDSize:"))?;
    core::str::from_utf8(places).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use rustix::process::WaitOptions;

    use super::*;

    #[test]
    fn the_table_of_descriptors_has_a_length() {
        assert!(descriptor_places().is_some_and(|places| places >= 64));
    }

    #[test]
    fn a_process_lives_until_it_has_exited_waited_for_or_not() {
        let me = Identity::current();
        assert!(me.start != 0 && me.namespace != 0, "{me:?}");
        assert!(!me.has_ended(me.namespace));
        let mut child =
            Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let start = start_of(Some(child.id())).unwrap();
        let known = Identity { pid: child.id(), start, ..me };
        assert!(!known.has_ended(me.namespace));
        assert!(
            Identity { start: start + 1, ..known }.has_ended(me.namespace),
            "the pid is another's now"
        );
        assert!(
            !Identity { start: start + 1, namespace: me.namespace + 1, ..known }
                .has_ended(me.namespace)
        );
        assert!(!Identity { start: start + 1, namespace: 0, ..known }.has_ended(me.namespace));
        child.kill().unwrap();
        // A zombie, soon.
        while !known.has_ended(me.namespace) {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(known.has_ended(me.namespace));
        assert!(!Identity { pid: 0, ..me }.has_ended(me.namespace), "not known");
    }

    /// True when it is so in a forked child.
    fn in_child(check: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child makes system calls, and takes no lock.
        let pid = unsafe {
            fork_to(|| {
                if check() {
                    // SAFETY: ends the child.
                    libc::_exit(7)
                }
            })
        };
        let ended = rustix::process::waitpid(pid.ok(), WaitOptions::empty());
        ended.unwrap().is_some_and(|(_, status)| status.exit_status() == Some(7))
    }

    #[test]
    fn a_child_knows_who_it_is_by_what_its_parent_knew() {
        let me = Identity::current();
        for by_clock in [true, false] {
            for _ in 0..20 {
                let before = BeforeFork::now(me);
                assert!(in_child(|| Identity::of_child(&before, by_clock) == Identity::current()));
                assert!(in_child(|| before
                    .start()
                    .is_none_or(|start| start_of(None) == Some(start))));
            }
        }
        let by_chance = (0..20).find(|_| {
            let before = BeforeFork::now(me);
            in_child(|| before.start().is_some() && before.namespace() == Some(me.namespace))
        });
        assert!(by_chance.is_some(), "mostly no tick passes");
        assert!(in_child(|| me.is_parent(me.namespace) && !me.is_parent(me.namespace + 1)));
        assert!(!me.is_parent(me.namespace), "nobody is its own");
    }

    #[test]
    fn a_child_asks_where_what_its_parent_knew_does_not_tell() {
        let me = Identity::current();
        let now = BeforeFork::now(me);
        let second = 100 * TICK;
        for at in [now.at - second, now.at + second, 0, u64::MAX - SLACK] {
            assert_eq!(BeforeFork { at, ..now }.start(), None);
        }
        // As one sees it that was forked into another pid namespace, or whose parent has ended; the last did not know its own.
        let others = [
            Identity { pid: 0, namespace: 7, ..me },
            Identity { pid: me.pid + 1, namespace: 7, ..me },
            Identity { namespace: 0, ..me },
        ];
        for parent in others {
            let before = BeforeFork { parent, at: 0 };
            assert!(in_child(|| Identity::of_child(&before, true) == Identity::current()));
        }
    }

    #[test]
    fn the_path_of_any_pid_fits() {
        for pid in [0, 7, 4_194_304, u32::MAX] {
            let mut path = [0; 32];
            let expected = format!("/proc/{pid}/stat");
            assert_eq!(stat_path(pid, &mut path).unwrap().to_str(), Ok(&*expected));
        }
    }
}
