//! Source files that pages name.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Page, root};

/// All files of the code, from the repository's root.
pub fn sources() -> Vec<PathBuf> {
    let (mut found, mut directories) =
        (Vec::new(), vec![PathBuf::from("crates"), PathBuf::from("tests")]);
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(root().join(&directory)).unwrap() {
            let entry = entry.unwrap();
            let path = directory.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                directories.push(path);
            } else {
                found.push(path);
            }
        }
    }
    found
}

/// The names that a shell makes of `a/{b,c}.rs`.
fn names(span: &str) -> Vec<String> {
    let parts =
        span.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?)));
    match parts {
        Some((before, (between, after))) => {
            between.split(',').flat_map(|part| names(&format!("{before}{part}{after}"))).collect()
        }
        None => vec![span.to_owned()],
    }
}

/// Names of no file, as whole paths or as their ends; and how many were looked at.
pub fn missing(pages: &[Page], sources: &[PathBuf]) -> (Vec<String>, usize) {
    let is_path =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '/' | '.' | '{' | '}' | ',');
    let (mut missing, mut seen) = (Vec::new(), 0);
    for page in pages {
        let spans =
            page.spans.iter().filter(|span| span.ends_with(".rs") && span.chars().all(is_path));
        for name in spans.flat_map(|span| names(span)) {
            seen += 1;
            let module = name.replace(".rs", "/mod.rs");
            if !sources
                .iter()
                .any(|path| [&name, &module].iter().any(|name| path.ends_with(Path::new(name))))
            {
                missing.push(format!("{}: no file {name}", page.path.display()));
            }
        }
    }
    (missing, seen)
}

mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_files() {
        assert_eq!(names("a/{b,c}.rs"), ["a/b.rs", "a/c.rs"]);
        let spans = ["conn/{send,recv}.rs", "gone.rs", "x = 1.rs"].map(String::from).to_vec();
        let page = Page { path: "a.md".into(), spans, ..Page::default() };
        let sources =
            ["crates/e/src/conn/send/mod.rs", "crates/e/src/conn/recv.rs"].map(PathBuf::from);
        assert_eq!(missing(&[page], &sources), (vec!["a.md: no file gone.rs".to_owned()], 3));
    }
}
