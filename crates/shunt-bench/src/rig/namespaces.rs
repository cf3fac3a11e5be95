//! Network namespaces of the bench's own, made with ip(8). Those of a process go with its rig.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::installed::program;
use crate::failure::{Failure, Result};

/// Where ip(8) keeps namespaces by their names.
const NAMESPACES: &str = "/run/netns";

/// What the names of the bench's namespaces begin with; its pid follows.
const PREFIX: &str = "shunt-bench-";

/// Removes this process's namespaces when it goes.
#[derive(Debug, Default)]
pub struct Namespaces(());

impl Drop for Namespaces {
    fn drop(&mut self) {
        remove();
    }
}

/// A namespace's name, by what it is for.
#[must_use]
pub fn name(of: &str) -> String {
    format!("{PREFIX}{}-{of}", std::process::id())
}

/// Where it can be opened.
#[must_use]
pub fn path(of: &str) -> PathBuf {
    Path::new(NAMESPACES).join(name(of))
}

/// Makes one, whose loopback device is up.
///
/// # Errors
/// [`Failure::Skipped`] without the privilege, or ip(8).
pub fn add(of: &str) -> Result<String> {
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::Skipped("only root can make network namespaces".into()));
    }
    remove_stale();
    let name = name(of);
    ip(&["netns", "add", &name])?;
    ip(&["-n", &name, "link", "set", "lo", "up"])?;
    Ok(name)
}

/// Runs ip(8).
///
/// # Errors
/// [`Failure::Skipped`] where it cannot do that.
pub fn ip(args: &[&str]) -> Result<()> {
    let cannot = |why: String| Failure::Skipped(format!("no network can be made (ip: {why})"));
    let output = Command::new(program("ip", "iproute2")?).args(args).output();
    let output = output.map_err(|e| cannot(e.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(cannot(String::from_utf8_lossy(&output.stderr).trim().into()))
}

/// Removes this process's namespaces.
pub fn remove() {
    remove_those(|pid| pid == std::process::id());
}

/// Removes what a bench that was killed has left.
fn remove_stale() {
    remove_those(|pid| !Path::new("/proc").join(pid.to_string()).exists());
}

fn remove_those(of: impl Fn(u32) -> bool) {
    let Ok(entries) = fs::read_dir(NAMESPACES) else { return };
    for entry in entries.flatten() {
        let file = entry.file_name();
        let Some(name) = file.to_str() else { continue };
        let pid = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()?.parse().ok());
        if pid.is_some_and(&of) {
            let _left = ip(&["netns", "del", name]);
        }
    }
}
