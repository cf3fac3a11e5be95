//! What holds for the source text itself.

use std::fs;
use std::path::{Path, PathBuf};

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else {
            found.push(path);
        }
    }
}

/// An atomic that does not come from `sync` would be invisible to the loom models.
#[test]
fn atomics_have_one_door() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut all = Vec::new();
    sources(&src, &mut all);
    assert!(all.len() > 10);
    let door = src.join("sync");
    assert!(all.iter().any(|path| path.starts_with(&door)));
    for path in all.iter().filter(|path| !path.starts_with(&door)) {
        let text = fs::read_to_string(path).unwrap();
        assert!(!text.contains("sync::atomic"), "{} has a door of its own", path.display());
    }
}
