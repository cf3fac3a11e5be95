//! A result of one check of `shunt doctor`.

use serde::Serialize;

/// How much a finding matters, from the least to the most.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mark {
    /// As it should be.
    Good,
    /// Not in the way, but worth knowing.
    Warning,
    /// Whether it is in the way cannot be told from here.
    Unknown,
    /// Keeps connections on TCP.
    Obstacle,
    /// So does this; and the program would not start with the library, so it is not given it.
    Harm,
    /// Nothing runs, with or without Shunt.
    Missing,
}

/// Something that was found out.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// What was looked at. The names are stable.
    pub(super) check: &'static str,
    pub(super) mark: Mark,
    /// What is the matter, why, and what to do.
    pub(super) text: String,
}

impl Finding {
    fn new(mark: Mark, text: impl Into<String>) -> Self {
        Self { check: "program", mark, text: text.into() }
    }

    pub(super) fn good(text: impl Into<String>) -> Self {
        Self::new(Mark::Good, text)
    }

    pub(super) fn warning(text: impl Into<String>) -> Self {
        Self::new(Mark::Warning, text)
    }

    pub(super) fn unknown(text: impl Into<String>) -> Self {
        Self::new(Mark::Unknown, text)
    }

    pub(super) fn obstacle(text: impl Into<String>) -> Self {
        Self::new(Mark::Obstacle, text)
    }

    pub(super) fn harm(text: impl Into<String>) -> Self {
        Self::new(Mark::Harm, text)
    }

    pub(super) fn missing(text: impl Into<String>) -> Self {
        Self::new(Mark::Missing, text)
    }

    /// The same, of this check.
    pub(super) fn of(self, check: &'static str) -> Self {
        Self { check, ..self }
    }

    pub(super) fn is_in_the_way(&self) -> bool {
        self.mark >= Mark::Obstacle
    }
}
