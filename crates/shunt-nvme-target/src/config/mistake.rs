//! What is wrong with a configuration file, and where.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A mistake in a configuration file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mistake {
    file: PathBuf,
    /// Line and column, from 1; `None` where it is of the file as a whole.
    place: Option<(usize, usize)>,
    reason: String,
}

impl Mistake {
    /// Of the file as a whole.
    pub(super) fn of_file(file: &Path, reason: impl Into<String>) -> Self {
        Self { file: file.to_path_buf(), place: None, reason: reason.into() }
    }

    /// The line, from 1.
    #[must_use]
    pub fn line(&self) -> Option<usize> {
        self.place.map(|(line, _)| line)
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some((line, column)) = self.place {
            write!(f, ":{line}:{column}")?;
        }
        write!(f, ": {}", self.reason)
    }
}

impl std::error::Error for Mistake {}

/// A file's text, to find places in.
pub(super) struct Source<'a> {
    pub file: &'a Path,
    pub text: &'a str,
}

impl Source<'_> {
    /// A mistake at these bytes.
    pub fn mistake(&self, at: &Range<usize>, reason: impl Into<String>) -> Mistake {
        let before = self.text.get(..at.start).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        let (file, reason) = (self.file.to_path_buf(), reason.into());
        Mistake { file, place: Some((line, column)), reason }
    }
}
