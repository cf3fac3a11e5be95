//! Control groups of the bench's own: eBPF programs are attached to them, and tell by them whose
//! system call it is. Only a privileged user can make them.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use shunt_sys::bpf::{CallCounter, Sockmap};

use crate::contender::Contender;
use crate::failure::{Context, Failure, Result};

/// What the names of the bench's control groups begin with; its pid follows.
const PREFIX: &str = "shunt-bench-";

/// Two control groups, which are removed with this value.
#[derive(Debug)]
pub struct ControlGroups {
    top: PathBuf,
    plain: Group,
    sockmap: Group,
    programs: std::result::Result<Sockmap, String>,
}

/// A directory of the kernel's.
#[derive(Debug)]
struct Group {
    path: PathBuf,
    id: u64,
}

/// Where version 2 of control groups is mounted.
fn mount_point() -> Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/mounts").context("/proc/mounts")?;
    let found = mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (path, kind) = (fields.next()?, fields.next()?);
        (kind == "cgroup2").then(|| path.into())
    });
    found.ok_or_else(|| Failure::Skipped("control groups (version 2) are not mounted".into()))
}

fn make(path: PathBuf) -> Result<Group> {
    let cannot = |e| Failure::Skipped(format!("no control group can be made ({e})"));
    fs::create_dir(&path).map_err(cannot)?;
    let id = fs::metadata(&path).map_err(cannot)?.ino();
    Ok(Group { path, id })
}

impl ControlGroups {
    /// Makes them.
    ///
    /// # Errors
    /// [`Failure::Skipped`] without the privilege.
    pub fn new() -> Result<Self> {
        let mount = mount_point()?;
        remove_stale(&mount);
        let top = mount.join(format!("{PREFIX}{}", std::process::id()));
        make(top.clone())?;
        let children = ["plain", "sockmap"].map(|name| make(top.join(name)));
        let [Ok(plain), Ok(sockmap)] = children else {
            remove(&top);
            return Err(Failure::Skipped("no control groups can be made".into()));
        };
        let programs = File::open(&sockmap.path).and_then(|dir| Sockmap::attach(dir.as_fd()));
        let programs = programs.map_err(|e| format!("eBPF sockmap cannot be had ({e})"));
        Ok(Self { top, plain, sockmap, programs })
    }

    fn of(&self, contender: Contender) -> &Group {
        if contender == Contender::Sockmap { &self.sockmap } else { &self.plain }
    }

    /// The directory of those in which all of them are.
    #[must_use]
    pub fn top(&self) -> &Path {
        &self.top
    }

    /// The directory of the group that this contender's programs are in.
    #[must_use]
    pub fn path(&self, contender: Contender) -> &Path {
        &self.of(contender).path
    }

    /// Begins to count this contender's system calls.
    ///
    /// # Errors
    /// [`Failure::Skipped`] without the privilege.
    pub fn count_calls(&self, contender: Contender) -> Result<CallCounter> {
        let counter = CallCounter::start(self.of(contender).id);
        counter.map_err(|e| Failure::Skipped(format!("system calls cannot be counted ({e})")))
    }

    /// The programs that make the sockmap.
    ///
    /// # Errors
    /// [`Failure::Skipped`] when the kernel did not take them.
    pub fn sockmap(&self) -> Result<&Sockmap> {
        self.programs.as_ref().map_err(|why| Failure::Skipped(why.clone()))
    }
}

/// Removes what a bench that was killed has left.
fn remove_stale(mount: &Path) {
    let Ok(entries) = fs::read_dir(mount) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            remove(&entry.path());
        }
    }
}

/// Removes them. They are empty, since the bench has ended its programs.
pub fn remove(top: &Path) {
    for path in [top.join("plain"), top.join("sockmap"), top.to_owned()] {
        let _absent = fs::remove_dir(path);
    }
}

impl Drop for ControlGroups {
    fn drop(&mut self) {
        remove(&self.top);
    }
}
