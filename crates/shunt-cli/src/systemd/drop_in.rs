//! Drop-ins that give Shunt to a service: written whole, and recognised by their first line.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::files::{create_directory, replace_file};

/// Where systemd looks for what an administrator has written.
pub const DIRECTORY: &str = "/etc/systemd/system";

/// Name of the file, behind most that packages bring.
const NAME: &str = "50-shunt.conf";

/// The line by which such a file is known. No other file is changed or removed.
pub const MARK: &str =
    "# Written by `shunt enable`, which writes it anew; `shunt disable` removes it.";

/// What there is in the place of a service's drop-in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Present {
    /// Nothing.
    Nothing,
    /// One of ours, with this text.
    Ours(String),
    /// Somebody else's.
    Foreign,
}

/// The drop-in of one service.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct DropIn {
    /// The service.
    pub unit: String,
    path: PathBuf,
}

impl DropIn {
    /// That of the service `unit`, below `directory`.
    #[must_use]
    pub fn of(directory: &Path, unit: &str) -> Self {
        Self { unit: unit.to_owned(), path: directory.join(format!("{unit}.d")).join(NAME) }
    }

    /// All that there are below `directory`, by name.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn all(directory: &Path) -> io::Result<Vec<Self>> {
        let entries = match fs::read_dir(directory) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let units = names.filter_map(|name| Some(name.strip_suffix(".d")?.to_owned()));
        let mut all: Vec<_> = units.map(|unit| Self::of(directory, &unit)).collect();
        all.retain(|drop_in| matches!(drop_in.present(), Ok(Present::Ours(_))));
        all.sort();
        Ok(all)
    }

    /// Its file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What is there.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn present(&self) -> io::Result<Present> {
        match fs::read_to_string(&self.path) {
            Ok(text) if text.lines().next() == Some(MARK) => Ok(Present::Ours(text)),
            Ok(_) => Ok(Present::Foreign),
            Err(e) if e.kind() == io::ErrorKind::InvalidData => Ok(Present::Foreign),
            Err(e)
                if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
            {
                Ok(Present::Nothing)
            }
            Err(e) => Err(e),
        }
    }

    /// Puts the text there at once.
    ///
    /// # Errors
    /// When that fails; what was there is there still.
    pub fn write(&self, text: &str) -> io::Result<()> {
        let parent = self.path.parent().unwrap_or(Path::new("/"));
        create_directory(parent)?;
        replace_file(&self.path, text.as_bytes()).inspect_err(|_| {
            // Not empty where there is something else.
            let _ = fs::remove_dir(parent);
        })
    }

    /// Removes it, and its directory where nothing else is in there.
    ///
    /// # Errors
    /// When that fails.
    pub fn remove(&self) -> io::Result<()> {
        fs::remove_file(&self.path)?;
        if let Some(parent) = self.path.parent() {
            let _ = fs::remove_dir(parent);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_have_written_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let drop_in = DropIn::of(dir.path(), "a@b.service");
        assert_eq!(drop_in.present().unwrap(), Present::Nothing);
        let text = format!("{MARK}\n[Service]\n");
        drop_in.write(&text).unwrap();
        assert_eq!(drop_in.present().unwrap(), Present::Ours(text));
        for (unit, foreign) in [("c.service", "[Service]\n"), ("d.service", "")] {
            let other = DropIn::of(dir.path(), unit);
            other.write(foreign).unwrap();
            assert_eq!(other.present().unwrap(), Present::Foreign);
        }
        fs::create_dir(dir.path().join("e.service.d")).unwrap();
        fs::write(dir.path().join("f.service.d"), "no directory").unwrap();
        let all = DropIn::all(dir.path()).unwrap();
        assert_eq!(all, [drop_in]);
        all[0].remove().unwrap();
        assert!(!dir.path().join("a@b.service.d").exists());
        assert!(DropIn::all(&dir.path().join("none")).unwrap().is_empty());
    }

    #[test]
    fn a_directory_with_other_files_stays() {
        let dir = tempfile::tempdir().unwrap();
        let drop_in = DropIn::of(dir.path(), "a.service");
        drop_in.write(MARK).unwrap();
        let other = drop_in.path().with_file_name("override.conf");
        fs::write(&other, "").unwrap();
        drop_in.remove().unwrap();
        assert!(other.exists() && !drop_in.path().exists());
    }
}
