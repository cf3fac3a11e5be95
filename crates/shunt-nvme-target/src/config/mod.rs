//! The configuration: what is served, where, to whom, and bounds.
//!
//! It comes from a TOML file, described in docs/nvme.md, or from a few options ([`Config::quick`]). A mistake in the
//! file is told with its line, its reason, and what to do.

mod check;
mod identity;
mod mistake;
mod raw;
mod size;
mod values;

use std::fmt;
use std::path::Path;

pub use identity::{Identity, default_identity, default_serial};
pub use mistake::Mistake;
pub use size::parse as parse_size;
pub use values::{
    ANA_STATES, Ana, Backing, Config, Host, Hosts, Key, Limits, Namespace, QUICK_NQN, Referral,
    Subsystem,
};

use mistake::Source;

/// The largest file that is read.
const MAX_FILE: u64 = 16 << 20;

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn load(path: &Path) -> Result<Self, Mistake> {
        let failed =
            |e: &dyn fmt::Display| Mistake::of_file(path, format!("it cannot be read: {e}"));
        if std::fs::metadata(path).map_err(|e| failed(&e))?.len() > MAX_FILE {
            return Err(failed(&"it is no configuration: too long"));
        }
        let text = std::fs::read_to_string(path).map_err(|e| failed(&e))?;
        Self::parse(path, &text)
    }

    /// Reads a text; `path` is what mistakes name.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(path: &Path, text: &str) -> Result<Self, Mistake> {
        let source = Source { file: path, text };
        let file = toml::from_str::<raw::File>(text).map_err(|e| {
            // A mistake without a place is at the end: something is missing.
            let place = e.span().unwrap_or(text.len()..text.len());
            source.mistake(&place, e.message().trim_end())
        })?;
        check::check(file, &source)
    }
}

#[cfg(test)]
mod tests;
