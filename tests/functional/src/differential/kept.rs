//! Plans that are kept in files, with what is known of them in comments.
//!
//! * `# kind: ...` names the kind of a difference (`Differs::kind`), and `# about: ...` what is to be mended.
//! * `# where: preadv2` says what other plans have to have (several things, separated by commas) for a difference of that
//!   kind to be taken for this one.
//! * With `# runs: N` it need not show each time, but in one of so many runs.
//! * `# modes: copy` says that it shows in these modes alone.
//!
//! All other comments are for people.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use super::plan::Plan;
use crate::mode::Mode;

/// A plan in a file.
#[derive(Clone, Debug)]
pub struct Kept {
    /// The file's name, without its ending.
    pub name: String,
    /// The plan.
    pub plan: Plan,
    /// How it differs, if it does.
    pub kind: Option<String>,
    /// What of the library that belongs to.
    pub about: Option<String>,
    /// What plans have that differ for the same reason.
    pub hints: Vec<String>,
    /// In how many runs at least one differs.
    pub runs: u32,
    /// In which modes.
    pub modes: Vec<Mode>,
}

impl Kept {
    /// Reads one.
    ///
    /// # Errors
    /// A sentence that says what is wrong.
    pub fn parse(name: &str, text: &str) -> Result<Self, String> {
        let comments = text.lines().filter_map(|line| line.strip_prefix('#'));
        let mut kept = Self {
            name: name.into(),
            plan: text.parse().map_err(|e| format!("{name}: {e}"))?,
            kind: None,
            about: None,
            hints: Vec::new(),
            runs: 1,
            modes: vec![Mode::Attach, Mode::Copy],
        };
        for (key, value) in comments.filter_map(|comment| comment.split_once(':')) {
            let wrong = || format!("{name}: {key}: {value:?}");
            match (key.trim(), value.trim()) {
                ("kind", kind) => kept.kind = Some(kind.into()),
                ("about", about) => kept.about = Some(about.into()),
                ("where", hints) => {
                    kept.hints = hints.split(',').map(|hint| hint.trim().to_owned()).collect();
                }
                ("runs", runs) => kept.runs = runs.parse().map_err(|_| wrong())?,
                ("modes", modes) => {
                    let known = |name: &str| Mode::ALL.into_iter().find(|m| m.to_string() == name);
                    let modes = modes.split(',').map(|name| known(name.trim()));
                    kept.modes = modes.collect::<Option<_>>().ok_or_else(wrong)?;
                }
                _ => {}
            }
        }
        Ok(kept)
    }

    /// All in a directory, by name.
    ///
    /// # Errors
    /// Those of reading files, and of [`Self::parse`].
    pub fn all(directory: &Path) -> io::Result<Vec<Self>> {
        let mut all = Vec::new();
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            if path.extension().is_some_and(|ending| ending == "plan") {
                let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                let kept = Self::parse(&name, &fs::read_to_string(&path)?);
                all.push(kept.map_err(io::Error::other)?);
            }
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }
}

/// The kinds of differences that a plan may have for the same reasons as these.
#[must_use]
pub fn kinds(kept: &[Kept], plan: &Plan) -> BTreeSet<String> {
    let text = plan.to_string();
    let same = kept.iter().filter(|kept| kept.hints.iter().all(|hint| text.contains(hint)));
    same.filter_map(|kept| kept.kind.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_say_what_is_known() {
        let text = "# Somebody forgot: this.\n# kind: recv: n / EBADF\n# about: files\n# where: recv, fork\n# runs: 5\n# modes: copy\np0: 1\np0.0 epoll_create(e0)\n";
        let kept = Kept::parse("x", text).unwrap();
        assert_eq!(kept.kind.as_deref(), Some("recv: n / EBADF"));
        assert_eq!(kept.about.as_deref(), Some("files"));
        assert_eq!((kept.runs, kept.modes.as_slice()), (5, [Mode::Copy].as_slice()));
        assert!(Kept::parse("x", "# runs: few\n").is_err());
        let plan = |text: &str| text.parse().unwrap();
        let other = "p0: 1\np1: 1\np0.0 recv(a0, 1)\n";
        assert!(kinds(std::slice::from_ref(&kept), &plan(other)).is_empty());
        assert_eq!(kinds(&[kept], &plan(&format!("{other}p0.0 fork(1)\n"))).len(), 1);
    }
}
