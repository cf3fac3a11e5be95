//! Why clients go, and why others don't get in. Each is listed once; the names are stable.

use serde::{Deserialize, Serialize};

/// Why a client is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// It sent something.
    Sent,
    /// Too many messages wait for it.
    Overflow,
    /// It takes no message for too long.
    Stalled,
    /// Its connection failed.
    Failed,
    /// Its descriptors did not survive a restart.
    Incomplete,
}

impl Fault {
    /// In a sentence.
    #[must_use]
    pub const fn explain(self) -> &'static str {
        match self {
            Self::Sent => "it sent something, which the protocol does not know",
            Self::Overflow => "too many messages wait for it",
            Self::Stalled => "it has taken no message for too long",
            Self::Failed => "its connection failed",
            Self::Incomplete => "its descriptors did not survive the restart",
        }
    }
}

/// Why a connection is turned away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// There are as many clients as there may be.
    Full,
    /// No ID is free.
    Ids,
    /// No descriptors or no memory are left.
    Resources,
}

impl Refusal {
    /// In a sentence.
    #[must_use]
    pub const fn explain(self) -> &'static str {
        match self {
            Self::Full => "there are as many as there may be",
            Self::Ids => "no ID is free before those go who have been connected for longest",
            Self::Resources => "no descriptors or no memory are left",
        }
    }
}

/// What has happened since the region was made, over all servers that it has had.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Totals {
    /// Clients that got an ID.
    pub accepted: u64,
    /// Clients that closed their connection, or ended.
    pub left: u64,
    /// Clients that were dropped.
    pub dropped: Dropped,
    /// Connections that were turned away.
    pub refused: Refused,
}

/// Clients that were dropped, by reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Dropped {
    /// [`Fault::Sent`].
    pub sent: u64,
    /// [`Fault::Overflow`].
    pub overflow: u64,
    /// [`Fault::Stalled`].
    pub stalled: u64,
    /// [`Fault::Failed`].
    pub failed: u64,
    /// [`Fault::Incomplete`].
    pub incomplete: u64,
}

/// Connections that were turned away, by reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Refused {
    /// [`Refusal::Full`].
    pub full: u64,
    /// [`Refusal::Ids`].
    pub ids: u64,
    /// [`Refusal::Resources`].
    pub resources: u64,
}

impl Totals {
    /// Counts a client that gets an ID.
    pub const fn accept(&mut self) {
        self.accepted = self.accepted.saturating_add(1);
    }

    /// Counts a client that has left.
    pub const fn leave(&mut self) {
        self.left = self.left.saturating_add(1);
    }

    /// Counts a client that is dropped.
    pub const fn drop(&mut self, why: Fault) {
        let count = match why {
            Fault::Sent => &mut self.dropped.sent,
            Fault::Overflow => &mut self.dropped.overflow,
            Fault::Stalled => &mut self.dropped.stalled,
            Fault::Failed => &mut self.dropped.failed,
            Fault::Incomplete => &mut self.dropped.incomplete,
        };
        *count = count.saturating_add(1);
    }

    /// Counts a connection that is turned away.
    pub const fn refuse(&mut self, why: Refusal) {
        let count = match why {
            Refusal::Full => &mut self.refused.full,
            Refusal::Ids => &mut self.refused.ids,
            Refusal::Resources => &mut self.refused.resources,
        };
        *count = count.saturating_add(1);
    }
}
