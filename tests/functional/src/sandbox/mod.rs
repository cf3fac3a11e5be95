//! A private place for one test: a directory, an agent of its own, and the processes of the test,
//! of which nothing is left when it ends.

mod agent;
mod run;
mod stats;
mod table;

use std::cell::RefCell;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{fs, io};

use tempfile::TempDir;

use crate::binaries;
use crate::mode::Mode;

pub use agent::Agent;
pub use run::{Finished, Process};
pub use stats::{Expect, Stats};

/// Marks the processes of a sandbox.
const TAG: &str = "SHUNT_TEST_SANDBOX";

/// An account that programs run as.
#[derive(Clone, Copy)]
struct Account {
    uid: u32,
    gid: u32,
}

/// See the module's description.
pub struct Sandbox {
    /// How programs run in it.
    pub mode: Mode,
    dir: TempDir,
    account: Option<Account>,
    tag: String,
    env: Vec<(&'static str, OsString)>,
    agent: RefCell<Option<Agent>>,
    /// Sessions of the processes that have been started.
    sessions: RefCell<HashSet<u32>>,
    files: AtomicU32,
}

impl Sandbox {
    /// For programs that run as the user who runs the tests.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn new(mode: Mode) -> Self {
        Self::build(mode, None)
    }

    /// For programs that refuse to run as root: they run as `user` when the tests run as root.
    ///
    /// # Panics
    /// When it cannot be made, or there is no such user.
    #[must_use]
    pub fn for_user(mode: Mode, user: &str) -> Self {
        Self::build(mode, is_root().then(|| account_of(user)))
    }

    /// For programs that run as a user that needs no name. Needs root.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn for_uid(mode: Mode, uid: u32) -> Self {
        Self::build(mode, Some(Account { uid, gid: uid }))
    }

    /// With an agent for the host, to which `args` are given besides. Needs root.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn for_host(mode: Mode, args: &[&str]) -> Self {
        let sandbox = Self::bare(mode, None);
        open_to_all(sandbox.path());
        sandbox.install();
        sandbox.start_host_agent(args);
        sandbox
    }

    /// Starts an agent for the host.
    ///
    /// # Panics
    /// When there is none after a few seconds.
    pub fn start_host_agent(&self, args: &[&str]) {
        let mut command = self.plain(self.shunt_path());
        command.args(["agent", "--host"]).args(args);
        self.await_agent(command);
    }

    /// The same by a program that becomes the one that its arguments name.
    ///
    /// # Panics
    /// When there is none after a few seconds.
    pub fn start_host_agent_by(&self, mut command: Command) {
        command.arg(self.shunt_path()).args(["agent", "--host"]);
        self.await_agent(command);
    }

    fn await_agent(&self, command: Command) {
        let process = self.start(command, &self.path().join("agent.log"));
        *self.agent.borrow_mut() = Some(Agent::wait_for(process, &self.run_dir()));
    }

    /// What the agent has said.
    #[must_use]
    pub fn agent_log(&self) -> String {
        fs::read_to_string(self.path().join("agent.log.err")).unwrap_or_default()
    }

    fn build(mode: Mode, account: Option<Account>) -> Self {
        let sandbox = Self::bare(mode, account);
        if mode.is_shunted() {
            sandbox.install();
            sandbox.start_agent();
        }
        sandbox
    }

    /// Without an agent.
    fn bare(mode: Mode, account: Option<Account>) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = tempfile::Builder::new().prefix("shunt-test-").tempdir().expect("a directory");
        let sandbox = Self {
            mode,
            dir,
            account,
            tag: format!("{}-{n}", std::process::id()),
            env: Vec::new(),
            agent: RefCell::default(),
            sessions: RefCell::default(),
            files: AtomicU32::new(0),
        };
        sandbox.give(sandbox.path()).expect("chown");
        sandbox
    }

    /// All programs that are started from now on have this in their environment.
    #[must_use]
    pub fn with_env(mut self, name: &'static str, value: impl Into<OsString>) -> Self {
        self.env.push((name, value.into()));
        self
    }

    /// The directory; it is removed at the end.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The agent's directory.
    #[must_use]
    pub fn run_dir(&self) -> PathBuf {
        self.path().join("run")
    }

    /// A file or directory is made over to the account that programs run as.
    fn give(&self, path: &Path) -> io::Result<()> {
        match self.account {
            Some(a) => std::os::unix::fs::chown(path, Some(a.uid), Some(a.gid)),
            None => Ok(()),
        }
    }

    /// Puts `shunt` and its library where the account can read them.
    fn install(&self) {
        let bin = self.path().join("bin");
        fs::create_dir(&bin).expect("bin");
        for name in ["shunt", "libshunt.so"] {
            let (from, to) = (binaries::built(name), bin.join(name));
            if self.account.is_some() {
                self.copy(&from, &to);
            } else {
                std::os::unix::fs::symlink(&from, &to).expect("symlink");
            }
        }
        self.give(&bin).expect("chown");
    }

    /// Copies a program for the account. Another process does it: a descriptor open for writing
    /// in this one might at that moment be inherited by a child that another test starts, and
    /// then the copy could not be executed (ETXTBSY).
    fn copy(&self, from: &Path, to: &Path) {
        let status = Command::new("cp").arg(from).arg(to).status();
        assert!(status.is_ok_and(|s| s.success()), "cp {} {}", from.display(), to.display());
        self.give(to).expect("chown");
    }

    /// The installed `shunt`.
    #[must_use]
    pub fn shunt_path(&self) -> PathBuf {
        self.path().join("bin/shunt")
    }

    /// Starts an agent of the sandbox's own (`shunt run` would start one too).
    ///
    /// # Panics
    /// When there is none after a few seconds.
    pub fn start_agent(&self) {
        self.start_agent_by(self.plain("env"), &[]);
    }

    /// The same by a program that becomes the one that its arguments name.
    ///
    /// # Panics
    /// When there is none after a few seconds.
    pub fn start_agent_by(&self, mut command: Command, arguments: &[String]) {
        command.arg(self.shunt_path()).arg("agent").args(arguments);
        self.await_agent(command);
    }

    /// Sends the agent a signal.
    ///
    /// # Panics
    /// When there is none.
    pub fn signal_agent(&self, signal: i32) {
        let pid = self.agent_pid().expect("an agent");
        crate::sys::kill(pid, signal).expect("it runs");
    }

    /// The agent's pid.
    pub fn agent_pid(&self) -> Option<i32> {
        self.agent.borrow().as_ref().map(Agent::pid)
    }

    /// Ends the agent as a service manager does.
    ///
    /// # Panics
    /// When it does not end.
    pub fn stop_agent(&self) {
        drop(self.agent.borrow_mut().take());
    }

    /// `kill -9` for the agent.
    pub fn kill_agent(&self) {
        if let Some(agent) = self.agent.borrow_mut().take() {
            agent.kill();
        }
    }

    /// A command line that runs a program in this sandbox's mode.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        if !self.mode.is_shunted() {
            return self.plain(program);
        }
        let mut command = self.plain(self.shunt_path());
        command.args(["run", "--dmb", &self.mode.to_string(), "--"]).arg(program);
        command
    }

    /// A command line that runs a program with the library preloaded by hand, as `shunt run` does, but
    /// without the agent that `shunt run` would start.
    pub fn preloaded(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.plain(program);
        if self.mode.is_shunted() {
            command.env("LD_PRELOAD", self.path().join("bin/libshunt.so"));
            command.env("SHUNT_DMB", self.mode.to_string());
        }
        command
    }

    /// A command line that runs a program without Shunt.
    pub fn plain(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(self.path())
            .stdin(Stdio::null())
            .env("SHUNT_RUN_DIR", self.run_dir())
            .env(TAG, &self.tag)
            // A machine that stands still for a moment is none of the tests' business.
            .env("SHUNT_AGENT_TIMEOUT", "30000")
            .env("LC_ALL", "C")
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .env_remove("LD_PRELOAD");
        if let Some(account) = self.account {
            command.uid(account.uid).gid(account.gid);
        }
        command
    }

    /// A copy of a program that the sandbox's account can read and execute.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn readable_copy(&self, program: &Path) -> PathBuf {
        let copy = self.path().join(program.file_name().unwrap_or_default());
        self.copy(program, &copy);
        copy
    }

    /// Ends processes of this name that were started in the sandbox, but not by it; says how many
    /// there were. More than `expected` have some seconds to become fewer by themselves.
    pub fn end_strays(&self, name: &str, expected: usize) -> usize {
        let mark = format!("({name})");
        let look = || -> Vec<u32> {
            let left = self.leftovers();
            left.iter().filter(|(_, stat)| stat.contains(&mark)).map(|s| s.0).collect()
        };
        let mut strays = look();
        for _ in 0..250 {
            if strays.len() <= expected {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
            strays = look();
        }
        for pid in &strays {
            if let Ok(pid) = i32::try_from(*pid) {
                // It may have ended just now.
                let _gone = crate::sys::kill(pid, libc::SIGTERM);
            }
        }
        strays.len()
    }

    /// A new file name in the sandbox.
    fn new_file(&self, stem: &str) -> PathBuf {
        let n = self.files.fetch_add(1, Ordering::Relaxed);
        self.path().join(format!("{stem}.{n}"))
    }

    /// Processes of this sandbox that are still there: by their session, and by their environment
    /// for those that have made a session of their own.
    fn leftovers(&self) -> Vec<(u32, String)> {
        let sessions = self.sessions.borrow();
        let mark = format!("{TAG}={}", self.tag);
        let marked = |pid: u32| {
            fs::read(format!("/proc/{pid}/environ"))
                .is_ok_and(|env| env.split(|b| *b == 0).any(|var| var == mark.as_bytes()))
        };
        let ours = |entry: &table::Entry| {
            entry.state != "Z" && (sessions.contains(&entry.session) || marked(entry.pid))
        };
        let left = table::all().into_iter().filter(ours);
        left.map(|entry| (entry.pid, format!("{} {}", entry.name, entry.state))).collect()
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        drop(self.agent.get_mut().take());
        let mut left = self.leftovers();
        // Children of a server that has just ended may need a moment, a long one on a busy machine.
        for _ in 0..500 {
            if left.is_empty() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
            left = self.leftovers();
        }
        for (pid, _) in &left {
            if let Ok(pid) = i32::try_from(*pid) {
                // It may have ended just now.
                let _gone = crate::sys::kill(pid, libc::SIGKILL);
            }
        }
        if !std::thread::panicking() {
            panic!("left behind ({}): {left:?}", self.mode);
        }
    }
}

fn open_to_all(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("chmod");
}

/// True when the tests run as root.
#[must_use]
pub fn is_root() -> bool {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Whether the kernel lets programs of a user look into each other, as the agent asks it: only then is memory shown
/// that its program has not asked for. Yama's `ptrace_scope` is what forbids it as a rule.
#[must_use]
pub fn traces_are_allowed() -> bool {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    scope.map_or(true, |scope| match scope.trim() {
        "0" => true,
        "3" => false,
        _ => is_root(),
    })
}

/// Looks an account up.
fn account_of(user: &str) -> Account {
    let table = fs::read_to_string("/etc/passwd").expect("/etc/passwd");
    table
        .lines()
        .find_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            (fields.first() == Some(&user)).then_some(())?;
            Some(Account { uid: fields.get(2)?.parse().ok()?, gid: fields.get(3)?.parse().ok()? })
        })
        .unwrap_or_else(|| panic!("there is no user {user:?}"))
}
