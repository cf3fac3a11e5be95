//! The additional state of an agent for the host: a policy, marks, and offers.

use std::fmt;
use std::fs::File;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::os::fd::AsFd;

use shunt_shm::registry::Scope;
use shunt_sys::bpf::Marks;
use shunt_sys::cgroup;
use tracing::warn;

use super::offer::Offers;
use crate::config::HostConfig;
use crate::policy::Policy;

/// Offers that there can be at a time, and listeners.
const MARKS: u32 = 1 << 16;

/// Why this process cannot be the agent of the host.
#[derive(Debug)]
pub enum HostError {
    /// It is not root.
    NotRoot,
    /// A control group was named that cannot be used.
    Group(std::path::PathBuf, io::Error),
}

impl fmt::Display for HostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRoot => f.write_str(
                "an agent for the whole host has to be root: it looks at the processes of all users; \
                 start it as root, or leave out --host for an agent of your own",
            ),
            Self::Group(path, e) => write!(
                f,
                "the connections of the control group {} cannot be marked: {e}; name a directory of \
                 the unified hierarchy, or leave out --cgroup",
                path.display()
            ),
        }
    }
}

impl std::error::Error for HostError {}

/// See the module.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) policy: Policy,
    pub(super) config: HostConfig,
    /// `None`: connections cannot be marked.
    pub(super) marks: Option<Marks>,
    pub(super) offers: Offers,
}

impl Host {
    pub(super) fn new(config: &HostConfig) -> Result<Self, HostError> {
        if !rustix::process::geteuid().is_root() {
            return Err(HostError::NotRoot);
        }
        let marks = match (attach(config), &config.cgroup) {
            (Ok(marks), _) => Some(marks),
            (Err(e), Some(group)) => return Err(HostError::Group(group.clone(), e)),
            (Err(e), None) => {
                warn!(
                    "connections cannot be marked ({e}): those between users, containers and network \
                     namespaces stay on TCP"
                );
                None
            }
        };
        let policy = config.policy.clone();
        Ok(Self { policy, config: config.clone(), marks, offers: Offers::default() })
    }

    pub(super) fn scope(&self) -> Scope {
        if self.marks.is_some() { Scope::Marked } else { Scope::Unmarked }
    }
}

fn attach(config: &HostConfig) -> io::Result<Marks> {
    let unified = || cgroup::root().ok_or(io::ErrorKind::NotFound);
    let group = config.cgroup.clone().map_or_else(unified, Ok)?;
    // So that the marks of other hosts, and of an earlier agent, are not taken for ours.
    let random = std::hash::RandomState::new().build_hasher().finish();
    #[allow(clippy::cast_possible_truncation, reason = "any part of it")]
    Marks::attach(File::open(group)?.as_fd(), random as u32, MARKS, MARKS)
}
