//! Finds the circles in which modules of a crate import each other.
//!
//! A module is a file here; modules written within a file belong to it. One file imports another
//! when it names something that the other defines: in a `use`, or by a path in a type, an
//! expression, an attribute or a macro's arguments. Names are followed through re-exports to their
//! definitions. A child that names something of its parent imports it like any other file. Three
//! things are no imports:
//!
//! * `mod child;`, and a re-export of a descendant's item: both only give it a place and a name.
//! * Code for tests, and what fuzzers have of it.
//! * A method call: it names no module.

mod circles;
mod names;
mod source;

use std::fmt;
use std::path::{Path, PathBuf};

pub use source::Unreadable;

/// Files of which each imports all others, directly or by way of them.
#[derive(Debug, PartialEq, Eq)]
pub struct Circle {
    /// The imports among them, in order of the files' names.
    pub imports: Vec<Import>,
}

/// What one file takes from another one.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Import {
    /// The file that imports, below the crate's root file's directory.
    pub from: PathBuf,
    /// The file that is imported.
    pub to: PathBuf,
    /// What is imported.
    pub names: Vec<String>,
}

impl fmt::Display for Circle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Import { from, to, names } in &self.imports {
            writeln!(f, "{} -> {}: {}", from.display(), to.display(), names.join(", "))?;
        }
        Ok(())
    }
}

/// The circles of the crate whose root is `root`, a file such as `src/lib.rs`.
///
/// # Errors
/// When one of its files is not found, or is not Rust.
pub fn circles(root: &Path) -> Result<Vec<Circle>, Unreadable> {
    let files = source::read(root)?;
    Ok(circles::of(&files))
}
