//! Files and processes.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use shunt_functional::sys::errno_name;

use crate::agent::Agent;
use crate::say;

/// Descriptors of a process that are asked for by their number: all that a library or an agent with a few
/// clients has in the low range, where a program's own are.
const NUMBERS: std::ops::Range<i32> = 0..64;

pub fn run(run_dir: &Path, pids: &[i32], files: &[PathBuf]) {
    tell("list", run_dir, fs::read_dir(run_dir));
    for name in ["agent.lock", "totals.json"] {
        let path = run_dir.join(name);
        tell("open", &path, File::open(&path));
        tell("write to", &path, File::options().append(true).open(&path));
    }
    let new = run_dir.join("intruder");
    tell("create", &new, File::create_new(&new));
    let socket = run_dir.join("agent.sock");
    tell("connect to", &socket, Agent::reach(run_dir));
    for pid in pids {
        let dir = PathBuf::from(format!("/proc/{pid}"));
        for name in ["fd", "map_files"] {
            tell("list", &dir.join(name), fs::read_dir(dir.join(name)));
        }
        for name in ["mem", "environ", "maps"] {
            tell("open", &dir.join(name), File::open(dir.join(name)));
        }
        tell("write to", &dir.join("mem"), File::options().write(true).open(dir.join("mem")));
        tell("take descriptors of", &dir, take(*pid));
    }
    for file in files {
        tell("open", file, File::open(file));
        tell("write to", file, File::options().write(true).open(file));
    }
}

/// One of the descriptors of a process, which refuses all of them alike.
fn take(pid: i32) -> io::Result<()> {
    let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    let mut last = Ok(());
    for number in NUMBERS {
        match pidfd_getfd(&process, number, PidfdGetfdFlags::empty()) {
            Ok(_) => return Ok(()),
            Err(e) => last = Err(e.into()),
        }
    }
    last
}

fn tell<T>(verb: &str, path: &Path, result: io::Result<T>) {
    let outcome = match result {
        Ok(_) => "done".to_owned(),
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => "refused".to_owned(),
        Err(e) => errno_name(&e),
    };
    say(format_args!("{verb} {}", path.display()), outcome);
}
