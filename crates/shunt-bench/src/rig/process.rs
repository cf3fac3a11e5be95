//! Processes: each in a group of its own, bounded in time, ended by number.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use crate::failure::{Context, Failure, Result};

/// How long a program may take to do what it is asked before it is killed.
const GRACE: Duration = Duration::from_secs(3);

/// How much of a program's complaint is repeated.
const MOST_SAID: usize = 600;

/// The process groups that run: to be counted, and to be ended when this program is interrupted.
#[derive(Clone, Default, Debug)]
pub struct Groups(Arc<Mutex<BTreeSet<i32>>>);

impl Groups {
    fn with<T>(&self, act: impl FnOnce(&mut BTreeSet<i32>) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The numbers of all groups that run.
    #[must_use]
    pub fn all(&self) -> Vec<i32> {
        self.with(|set| set.iter().copied().collect())
    }

    /// Sends all of them a signal.
    pub fn signal(&self, signal: Signal) {
        for group in self.all() {
            send(group, signal);
        }
    }
}

/// A group that has ended in the meantime is no error.
fn send(group: i32, signal: Signal) {
    if let Some(group) = Pid::from_raw(group) {
        let _ended = kill_process_group(group, signal);
    }
}

/// What a program that has ended well printed.
#[derive(Debug)]
pub struct Finished {
    /// On standard output.
    pub stdout: String,
    /// On standard error.
    pub stderr: String,
}

/// A program that runs. It and its group are ended with this value.
#[derive(Debug)]
pub struct Process {
    child: Child,
    pidfd: OwnedFd,
    group: i32,
    groups: Groups,
    name: String,
    stdout: PathBuf,
    stderr: PathBuf,
}

impl Process {
    /// Starts it; what it prints goes to files that begin with `log`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(mut command: Command, log: &std::path::Path, groups: &Groups) -> Result<Self> {
        let name = describe(&command);
        let (stdout, stderr) = (beside(log, "out"), beside(log, "err"));
        let open = |path| File::create(path).context("a file for output");
        command.stdin(Stdio::null()).stdout(open(&stdout)?).stderr(open(&stderr)?);
        command.process_group(0);
        let mut child = command.spawn().context(&name)?;
        let group = i32::try_from(child.id()).unwrap_or(0);
        let pid = Pid::from_raw(group).ok_or_else(|| Failure::failed("no pid"))?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).inspect_err(|_| {
            let _ended = child.kill();
        });
        let pidfd = pidfd.context(&name)?;
        groups.with(|set| set.insert(group));
        Ok(Self { child, pidfd, group, groups: groups.clone(), name, stdout, stderr })
    }

    /// Its number, which is also that of its group.
    #[must_use]
    pub const fn pid(&self) -> i32 {
        self.group
    }

    /// True when it has ended.
    fn has_ended(&self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).ok();
            let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
            match poll(&mut fds, timeout.as_ref()) {
                Ok(0) | Err(_) if left.is_zero() => return false,
                Ok(n) if n > 0 => return true,
                _ => {}
            }
        }
    }

    /// What it has printed so far.
    #[must_use]
    pub fn stdout(&self) -> String {
        read_lossy(&self.stdout)
    }

    /// How it has ended, which is not reaped yet.
    fn ending(&self) -> String {
        // The last field: the status as wait(2) gives it, if we may see it.
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.group)).unwrap_or_default();
        let status = stat.split_whitespace().next_back().and_then(|field| field.parse().ok());
        status.map_or_else(|| "gone".into(), |raw| ExitStatus::from_raw(raw).to_string())
    }

    /// What its threads wait for in the kernel.
    fn whereabouts(&self) -> String {
        let Ok(tasks) = fs::read_dir(format!("/proc/{}/task", self.group)) else {
            return "gone".into();
        };
        let waits = tasks.flatten().map(|task| {
            let place = fs::read_to_string(task.path().join("wchan")).unwrap_or_default();
            if matches!(place.as_str(), "" | "0") { "running".into() } else { place }
        });
        format!("at {}", waits.collect::<Vec<_>>().join(" and "))
    }

    fn complaint(&self, what: &str) -> Failure {
        let said = format!("{}\n{}", self.stdout(), read_lossy(&self.stderr));
        let from = said.char_indices().rev().nth(MOST_SAID).map_or(0, |(at, _)| at);
        Failure::Failed(format!("{} {what}; it said: {}", self.name, said[from..].trim()))
    }

    /// Waits until `ready`.
    ///
    /// # Errors
    /// When it ends before, or that takes longer than `patience`.
    pub fn wait_until(&self, patience: Duration, ready: impl Fn(&Self) -> bool) -> Result<()> {
        let started = Instant::now();
        while !ready(self) {
            if self.has_ended(Duration::from_millis(5)) {
                return Err(self.complaint(&format!("ended at once ({})", self.ending())));
            }
            if started.elapsed() > patience {
                let what = format!("was not ready after {patience:?}, {}", self.whereabouts());
                return Err(self.complaint(&what));
            }
        }
        Ok(())
    }

    /// True while it is stopped (`SIGSTOP`).
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.group)).unwrap_or_default();
        stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
    }

    /// Sends it on when it is stopped.
    pub fn go_on(&self) {
        send(self.group, Signal::CONT);
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// When it fails, or takes longer than `patience`; it is ended then.
    pub fn wait(mut self, patience: Duration) -> Result<Finished> {
        if !self.has_ended(patience) {
            let what = format!("was not done after {patience:?}, {}", self.whereabouts());
            return Err(self.complaint(&what));
        }
        let status = self.reap().context(&self.name)?;
        if status.success() {
            return Ok(Finished { stdout: self.stdout(), stderr: read_lossy(&self.stderr) });
        }
        let how = status.signal().map_or_else(|| status.to_string(), |s| format!("signal {s}"));
        Err(self.complaint(&format!("failed ({how})")))
    }

    /// Ends what is left of the group, while its leader still holds the number, and reaps the leader.
    fn reap(&mut self) -> std::io::Result<ExitStatus> {
        send(self.group, Signal::KILL);
        self.groups.with(|set| set.remove(&self.group));
        self.child.wait()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.groups.with(|set| set.contains(&self.group)) {
            return;
        }
        send(self.group, Signal::TERM);
        // One that is stopped has to go on to end.
        self.go_on();
        self.has_ended(GRACE);
        let _ended = self.reap();
    }
}

/// `log` with a suffix; `with_extension` would replace its number.
fn beside(log: &std::path::Path, suffix: &str) -> PathBuf {
    let mut name = log.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    name.into()
}

fn read_lossy(path: &std::path::Path) -> String {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// The command line from the program proper on.
fn describe(command: &Command) -> String {
    let args: Vec<_> = command.get_args().map(|a| a.to_string_lossy()).collect();
    let own = args.iter().rposition(|a| a == "--").map_or(0, |at| at + 1);
    if own == 0 {
        let program = command.get_program().to_string_lossy();
        return format!("{program} {}", args.join(" "));
    }
    args[own..].join(" ")
}
