//! An agent of the bench's own, and the proof that it gives.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::account::Account;
use super::endpoint::is_bound;
use super::process::{Groups, Process};
use crate::failure::{Context, Failure, Result};

/// How long it may take to start, and to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Ends of connections that were just closed may not be counted yet.
const COUNTING: Duration = Duration::from_secs(2);

/// A running agent; it ends with this value.
#[derive(Debug)]
pub struct Agent {
    shunt: PathBuf,
    run_dir: PathBuf,
    log: PathBuf,
    groups: Groups,
    /// Others than its own user must not use its directory.
    account: Option<Account>,
    process: Process,
}

/// Ends of connections that its programs have had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ends {
    /// All.
    pub all: u64,
    /// Those that went through shared memory.
    pub shunted: u64,
}

impl Agent {
    /// Starts one for `run_dir`, as this user; `command` is its command line.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn start(
        mut command: Command,
        shunt: &Path,
        run_dir: PathBuf,
        log: &Path,
        groups: &Groups,
        account: Option<&Account>,
    ) -> Result<Self> {
        command.env("SHUNT_RUN_DIR", &run_dir);
        let process = Process::start(command, log, groups)?;
        let socket = run_dir.join("agent.sock");
        process.wait_until(PATIENCE, |_| is_bound(&socket))?;
        Ok(Self {
            shunt: shunt.into(),
            run_dir,
            log: log.with_file_name("stats"),
            groups: groups.clone(),
            account: account.cloned(),
            process,
        })
    }

    /// Its directory.
    #[must_use]
    pub fn run_dir(&self) -> &Path {
        &self.run_dir
    }

    /// Its number.
    #[must_use]
    pub const fn pid(&self) -> i32 {
        self.process.pid()
    }

    fn stats(&self) -> Result<Value> {
        let mut command = Command::new(&self.shunt);
        command.env("SHUNT_RUN_DIR", &self.run_dir).args(["stats", "--json"]);
        if let Some(account) = &self.account {
            command.uid(account.uid).gid(account.gid);
        }
        let said = Process::start(command, &self.log, &self.groups)?.wait(PATIENCE)?;
        serde_json::from_str(&said.stdout).context("shunt stats")
    }

    /// What it has counted so far.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn ends(&self) -> Result<Ends> {
        let stats = self.stats()?;
        let count = |name: &str| stats[name].as_u64().unwrap_or(0);
        Ok(Ends { all: count("connections"), shunted: count("connections_shunted") })
    }

    /// Ends since `before`.
    ///
    /// # Errors
    /// When none of them was shunted: the figures would not be Shunt's.
    pub fn prove(&self, before: Ends) -> Result<Ends> {
        let until = Instant::now() + COUNTING;
        loop {
            let now = self.ends()?;
            let since = Ends { all: now.all - before.all, shunted: now.shunted - before.shunted };
            if since.shunted > 0 && since.shunted == since.all {
                return Ok(since);
            }
            if Instant::now() > until {
                if since.shunted > 0 {
                    return Ok(since);
                }
                let declined = &self.stats()?["declined"];
                let n = since.all;
                return Err(Failure::Failed(format!(
                    "none of {n} connection ends was shunted (reasons so far: {declined})"
                )));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
