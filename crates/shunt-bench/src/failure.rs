//! Why there is no figure.

use std::fmt;

/// Why a row has no figure for a contender.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Failure {
    /// It cannot be had on this machine: a program is not installed, a privilege is missing.
    Skipped(String),
    /// It went wrong.
    Failed(String),
}

/// What most of the bench returns.
pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// It went wrong because of `what`.
    pub fn failed(what: impl fmt::Display) -> Self {
        Self::Failed(what.to_string())
    }

    /// The reason alone.
    #[must_use]
    pub fn why(&self) -> &str {
        match self {
            Self::Skipped(why) | Self::Failed(why) => why,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.why())
    }
}

impl std::error::Error for Failure {}

/// Adds what was being done to an error.
pub trait Context<T> {
    /// The same, with an error that begins with `what`.
    ///
    /// # Errors
    /// [`Failure::Failed`].
    fn context(self, what: impl fmt::Display) -> Result<T>;
}

impl<T, E: fmt::Display> Context<T> for std::result::Result<T, E> {
    fn context(self, what: impl fmt::Display) -> Result<T> {
        self.map_err(|e| Failure::Failed(format!("{what}: {e}")))
    }
}
