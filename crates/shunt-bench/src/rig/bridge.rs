//! Two network namespaces at a bridge, as containers have them: one for servers, one for clients. Made with ip(8).

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::installed::program;
use crate::failure::{Failure, Result};

/// Where ip(8) keeps namespaces by their names.
const NAMESPACES: &str = "/run/netns";

/// What the names of the bench's namespaces begin with; its pid follows.
const PREFIX: &str = "shunt-bench-";

/// Where servers listen.
pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 123, 77, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 123, 77, 2);

/// Which of the two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// That of servers.
    Server,
    /// That of clients.
    Client,
}

impl End {
    const fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client => "client",
        }
    }
}

/// Both, and a third one with the bridge. They are removed with this value.
#[derive(Debug)]
pub struct Bridge(());

impl Bridge {
    /// Makes them.
    ///
    /// # Errors
    /// [`Failure::Skipped`] without the privilege, or ip(8).
    pub fn new() -> Result<Self> {
        if !rustix::process::geteuid().is_root() {
            return Err(Failure::Skipped("only root can make network namespaces".into()));
        }
        remove_stale();
        let bridge = Self(());
        let host = name("host");
        ip(&["netns", "add", &host])?;
        ip(&["-n", &host, "link", "add", "name", "bridge", "type", "bridge"])?;
        ip(&["-n", &host, "link", "set", "bridge", "up"])?;
        for (end, address) in [(End::Server, SERVER), (End::Client, CLIENT)] {
            let (port, other) = (end.name(), name(end.name()));
            let address = format!("{address}/24");
            ip(&["netns", "add", &other])?;
            ip(&[
                "-n", &host, "link", "add", "name", port, "type", "veth", "peer", "name", "eth0",
                "netns", &other,
            ])?;
            ip(&["-n", &host, "link", "set", port, "master", "bridge", "up"])?;
            ip(&["-n", &other, "addr", "add", &address, "dev", "eth0"])?;
            ip(&["-n", &other, "link", "set", "eth0", "up"])?;
            ip(&["-n", &other, "link", "set", "lo", "up"])?;
        }
        Ok(bridge)
    }

    /// The namespace of an end.
    #[must_use]
    pub fn namespace(&self, end: End) -> PathBuf {
        Path::new(NAMESPACES).join(name(end.name()))
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        remove();
    }
}

fn name(of: &str) -> String {
    format!("{PREFIX}{}-{of}", std::process::id())
}

fn ip(args: &[&str]) -> Result<()> {
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
