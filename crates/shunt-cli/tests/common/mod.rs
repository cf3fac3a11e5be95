//! `shunt` in a directory of one's own.

#![allow(dead_code, reason = "each test program uses a part of it")]

#[path = "../../../shunt-agent/tests/common/open_metrics.rs"]
pub mod open_metrics;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

pub const EXE: &str = env!("CARGO_BIN_EXE_shunt");

/// A directory of one's own: `shunt` in it as installed, and a place for the agent.
pub struct Sandbox {
    temp: tempfile::TempDir,
}

impl Sandbox {
    pub fn new() -> Self {
        Self { temp: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    pub fn run_dir(&self) -> PathBuf {
        self.path("run")
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(EXE);
        command.args(args).env("SHUNT_RUN_DIR", self.run_dir()).stdin(Stdio::null());
        for name in ["LD_PRELOAD", "SHUNT_LIB", "SHUNT_DISABLE", "SHUNT_METRICS"] {
            command.env_remove(name);
        }
        command
    }

    /// A stand-in for libshunt.so, so that these tests do not depend on the real one: any shared
    /// object will do.
    pub fn with_library(&self, args: &[&str]) -> Command {
        let mut command = self.command(args);
        command.env("SHUNT_LIB", any_library());
        command
    }

    pub fn output(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Pid of the agent, if one runs.
    pub fn agent(&self) -> Option<i32> {
        let locks = fs::read_to_string("/proc/locks").unwrap();
        let inode = fs::metadata(self.run_dir().join("agent.lock")).ok()?;
        let inode = format!(":{}", std::os::unix::fs::MetadataExt::ino(&inode));
        let line = locks.lines().find(|l| l.split(' ').any(|w| w.ends_with(&inode)))?;
        line.split_whitespace().nth(4)?.parse().ok()
    }

    /// Ends it.
    pub fn end_agent(&self) {
        let Some(pid) = self.agent() else { return };
        // SAFETY: ends the agent of this test's own directory.
        unsafe { libc::kill(pid, libc::SIGTERM) };
        let deadline = Instant::now() + Duration::from_secs(5);
        while self.agent().is_some() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        self.end_agent();
    }
}

pub fn any_library() -> PathBuf {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let found = maps.lines().filter_map(|l| l.split_whitespace().nth(5));
    found.map(PathBuf::from).find(|p| p.to_string_lossy().contains("libgcc_s")).unwrap()
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
