//! Becoming a program of the bench.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use clap::Args;
use rustix::process::{
    Resource, Rlimit, Signal, getrlimit, set_parent_process_death_signal, setrlimit,
};
use rustix::thread::{
    CpuSet, LinkNameSpaceType, move_into_link_name_space, sched_getaffinity, sched_setaffinity,
};

/// `shunt load exec`.
#[derive(Args, Clone, Debug)]
pub struct Exec {
    /// Descriptors that the program may open, if the system lets it.
    #[arg(long)]
    nofile: u64,
    /// A control group to run in.
    #[arg(long)]
    cgroup: Option<PathBuf>,
    /// A network namespace to run in.
    #[arg(long)]
    netns: Option<PathBuf>,
    /// Run on the first so many of the processors that may be used.
    #[arg(long)]
    cores: Option<usize>,
    /// Leave so many of them out before those, where there are more.
    #[arg(long, default_value_t = 0)]
    past: usize,
    /// A user to run as, with the number of a group of its own. Needs root.
    #[arg(long, requires = "gid")]
    uid: Option<u32>,
    /// That group.
    #[arg(long, requires = "uid")]
    gid: Option<u32>,
    /// The program.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

impl Exec {
    /// Becomes the program; returns only when that fails.
    pub fn run(self) -> io::Error {
        // Command's exec keeps the process; its number is the bench's handle on it.
        let become_it = || {
            self.prepare()?;
            let Some((uid, gid)) = self.uid.zip(self.gid) else {
                return Ok(Command::new(&self.command[0]).args(&self.command[1..]).exec());
            };
            // The kernel forgets to end a process with its parent when that process changes its
            // user: that has to be asked for once more.
            let mut again = Command::new(std::env::current_exe()?);
            again.args(["load", "exec", "--nofile", &self.nofile.to_string(), "--"]);
            Ok(again.args(&self.command).uid(uid).gid(gid).exec())
        };
        become_it().unwrap_or_else(|e: io::Error| e)
    }

    fn prepare(&self) -> io::Result<()> {
        shunt_sys::signals::unblock_all()?;
        // Should the bench be killed, nothing is left behind.
        set_parent_process_death_signal(Some(Signal::TERM))?;
        raise_descriptors(self.nofile);
        if let Some(cores) = self.cores {
            let usable = sched_getaffinity(None)?;
            let usable = (0..CpuSet::MAX_CPU).filter(|cpu| usable.is_set(*cpu));
            let usable: Vec<_> = usable.collect();
            let past = if self.past < usable.len() { self.past } else { 0 };
            let mut few = CpuSet::new();
            usable.into_iter().skip(past).take(cores).for_each(|cpu| few.set(cpu));
            sched_setaffinity(None, &few)?;
        }
        if let Some(netns) = &self.netns {
            let netns = File::open(netns)?;
            move_into_link_name_space(netns.as_fd(), Some(LinkNameSpaceType::Network))?;
        }
        if let Some(group) = &self.cgroup {
            std::fs::write(group.join("cgroup.procs"), "0")?;
        }
        Ok(())
    }
}

/// As far as this user may.
fn raise_descriptors(wanted: u64) {
    let now = getrlimit(Resource::Nofile);
    let most = Rlimit { current: Some(wanted), maximum: Some(wanted) };
    if now.maximum.is_none_or(|maximum| maximum >= wanted)
        || setrlimit(Resource::Nofile, most).is_err()
    {
        let reachable = now.maximum.map_or(wanted, |maximum| maximum.min(wanted));
        let limit = Rlimit { current: Some(reachable), maximum: now.maximum };
        // Rows that need more say so when they fail.
        let _unchanged = setrlimit(Resource::Nofile, limit);
    }
}
