//! Starting, awaiting and ending the processes of a sandbox.

use std::fs::{self, File};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};
use std::{io, thread};

use super::Sandbox;
use super::table::where_stuck;
use crate::net;

/// How long a program may take before it counts as stuck.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a program that has ended left.
#[derive(Debug)]
pub struct Finished {
    /// The command line, for messages.
    pub command: String,
    /// How it ended.
    pub status: ExitStatus,
    /// What it printed.
    pub stdout: String,
    /// What it complained of.
    pub stderr: String,
}

impl Finished {
    /// The same, if the program succeeded.
    ///
    /// # Panics
    /// If it did not.
    #[must_use]
    pub fn success(self) -> Self {
        assert!(self.status.success(), "{self}");
        self
    }
}

impl std::fmt::Display for Finished {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { command, status, stdout, stderr } = self;
        let how = status.signal().map_or_else(|| status.to_string(), |s| format!("signal {s}"));
        write!(f, "{command}: {how}\n--- stdout\n{stdout}\n--- stderr\n{stderr}")
    }
}

/// A program that runs. It is killed when this value goes.
pub struct Process {
    child: Child,
    command: String,
    stdout: PathBuf,
    stderr: PathBuf,
    ended: bool,
}

impl Process {
    /// Its pid.
    #[must_use]
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap_or(0)
    }

    /// The command line and what it has printed so far.
    #[must_use]
    pub fn describe(&self) -> String {
        format!(
            "{}\n--- stdout\n{}\n--- stderr\n{}",
            self.command,
            self.stdout(),
            fs::read_to_string(&self.stderr).unwrap_or_default()
        )
    }

    /// What it has printed so far.
    #[must_use]
    pub fn stdout(&self) -> String {
        read_lossy(&self.stdout)
    }

    /// The same without a last line that may be half printed.
    #[must_use]
    pub fn whole_lines(&self) -> String {
        let mut text = self.stdout();
        text.truncate(text.rfind('\n').map_or(0, |end| end + 1));
        text
    }

    /// False when it has ended.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// # Panics
    /// When the program has ended.
    pub fn assert_running(&mut self) {
        if let Ok(Some(status)) = self.child.try_wait() {
            self.ended = true;
            panic!("ended with {status}: {}", self.describe());
        }
    }

    /// Waits until it has printed a line that `pick` accepts, and returns what `pick` made of it.
    ///
    /// # Panics
    /// When it ends or takes too long.
    pub fn wait_for_line<T>(&mut self, pick: impl Fn(&str) -> Option<T>) -> T {
        self.wait_for_text(|text| text.lines().find_map(&pick))
    }

    /// The same with all lines that it has printed.
    ///
    /// # Panics
    /// When it ends or takes too long.
    pub fn wait_for_text<T>(&mut self, pick: impl Fn(&str) -> Option<T>) -> T {
        let started = Instant::now();
        loop {
            if let Some(found) = pick(&self.whole_lines()) {
                return found;
            }
            self.assert_running();
            assert!(started.elapsed() < PATIENCE, "it does not say it: {}", self.describe());
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until something listens on `port`.
    ///
    /// # Panics
    /// When it ends or takes too long.
    pub fn wait_for_port(&mut self, port: u16) {
        let started = Instant::now();
        while !net::is_listening(self.pid(), port) {
            self.assert_running();
            assert!(started.elapsed() < PATIENCE, "nobody on {port}: {}", self.describe());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// When it takes longer than `patience`; it is killed then.
    #[must_use]
    pub fn wait_at_most(mut self, patience: Duration) -> Finished {
        let Some(status) = self.try_wait(patience) else {
            let stuck = where_stuck(self.child.id());
            self.kill();
            panic!("not done after {patience:?}: {}\n--- where\n{stuck}", self.describe());
        };
        let command = self.command.clone();
        let (stdout, stderr) = (read_lossy(&self.stdout), read_lossy(&self.stderr));
        Finished { command, status, stdout, stderr }
    }

    /// Waits for its end, for as long as is usual here.
    #[must_use]
    pub fn wait(self) -> Finished {
        self.wait_at_most(PATIENCE)
    }

    fn try_wait(&mut self, patience: Duration) -> Option<ExitStatus> {
        let started = Instant::now();
        let mut nap = Duration::from_micros(200);
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                self.ended = true;
                return Some(status);
            }
            if started.elapsed() > patience {
                return None;
            }
            thread::sleep(nap);
            nap = (nap * 2).min(Duration::from_millis(10));
        }
    }

    /// Sends `signal` to a program that goes on.
    ///
    /// # Panics
    /// When there is none.
    pub fn signal(&self, signal: i32) {
        crate::sys::kill(self.pid(), signal).expect("it runs");
    }

    /// Sends `signal` and waits for the end; a program that does not obey fails the test.
    pub fn terminate(&mut self, signal: i32) {
        if self.ended {
            return;
        }
        // It may have ended by itself.
        let _gone = crate::sys::kill(self.pid(), signal);
        if self.try_wait(Duration::from_secs(10)).is_none() {
            let stuck = where_stuck(self.child.id());
            self.kill();
            let message = format!("signal {signal} did not end {}\n{stuck}", self.describe());
            assert!(thread::panicking(), "{message}");
            eprintln!("{message}");
        }
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        if !self.ended {
            self.ended = true;
            // An error means that it has ended already.
            let _gone = self.child.kill();
            let _status = self.child.wait();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.terminate(libc::SIGTERM);
    }
}

/// Programs may print anything.
fn read_lossy(path: &Path) -> String {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

impl Sandbox {
    /// Starts a program; what it prints goes to `log` and to a file beside it.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start(&self, mut command: Command, log: &Path) -> Process {
        let mut stderr = log.as_os_str().to_owned();
        stderr.push(".err");
        let stderr = PathBuf::from(stderr);
        let shown = format!("[{}] {command:?}", self.mode);
        let make = |path: &Path| -> io::Result<File> {
            let file = File::create(path)?;
            self.give(path)?;
            Ok(file)
        };
        command.stdout(make(log).expect("log")).stderr(make(&stderr).expect("log"));
        // SAFETY: the closure makes two system calls and allocates nothing.
        unsafe {
            command.pre_exec(|| {
                // A session of its own names its descendants; and they must not outlive a
                // test that is killed.
                if libc::setsid() < 0 || libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) < 0 {
                    return Err(io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let child = command.spawn().unwrap_or_else(|e| panic!("{shown}: {e}"));
        self.sessions.borrow_mut().insert(child.id());
        let stdout = log.to_owned();
        Process { child, command: shown, stdout, stderr, ended: false }
    }

    /// Starts a Python program under Shunt: its text, and its arguments.
    #[must_use]
    pub fn python(&self, text: &[&str]) -> Process {
        let mut command = self.preloaded("python3");
        command.arg("-c").args(text);
        self.spawn(command)
    }

    /// Starts a program that goes on running.
    pub fn spawn(&self, command: Command) -> Process {
        let log = self.new_file("out");
        self.start(command, &log)
    }

    /// Starts a server and waits until it listens.
    pub fn serve(&self, command: Command, port: u16) -> Process {
        let mut process = self.spawn(command);
        process.wait_for_port(port);
        process
    }

    /// Runs a program to its end, which must be a success.
    #[must_use]
    pub fn run(&self, command: Command) -> Finished {
        self.spawn(command).wait().success()
    }
}
