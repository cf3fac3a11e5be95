//! What I/O commands are checked against: looked up for each, or taken once and kept.

use super::config::NamespaceConfig;
use crate::wire::Status;
use std::collections::BTreeMap;

/// What the host of a connection may do with a namespace.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    pub(super) config: NamespaceConfig,
    /// The controller's write cache is on.
    pub(super) write_cache: bool,
    /// Another host's reservation forbids it to read, and to write.
    pub(super) excludes_reads: bool,
    pub(super) excludes_writes: bool,
}

/// All namespaces as one connection sees them, so that [`super::Session::plan_in`] needs no target, and
/// no lock around one.
///
/// It holds until [`super::Target::generation`] is another one. A command that was on its way when
/// something changed may be planned by either.
#[derive(Clone, Debug)]
pub struct View {
    pub(super) generation: u64,
    pub(super) namespaces: BTreeMap<u32, Result<Access, Status>>,
    /// What becomes of commands for other namespaces.
    pub(super) otherwise: Status,
}

impl View {
    /// The target's generation at which the view was taken.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    pub(super) fn access(&self, nsid: u32) -> Result<Access, Status> {
        self.namespaces.get(&nsid).copied().unwrap_or(Err(self.otherwise))
    }
}
