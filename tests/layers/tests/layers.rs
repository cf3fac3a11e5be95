//! Modules of a crate import each other in one direction only.

use std::fs;
use std::path::{Path, PathBuf};

/// The crates, and their root files.
fn crates() -> Vec<(String, PathBuf)> {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates");
    let roots = fs::read_dir(all).unwrap().flat_map(|entry| {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let roots = ["src/lib.rs", "src/main.rs"].map(|root| entry.path().join(root));
        roots.into_iter().filter(|root| root.exists()).map(move |root| (name.clone(), root))
    });
    let mut roots: Vec<_> = roots.collect();
    roots.sort();
    roots
}

#[test]
fn no_crate_has_a_circle() {
    let crates = crates();
    for (name, root) in &crates {
        let circles = shunt_layers::circles(root).unwrap();
        let text: Vec<_> = circles.iter().map(ToString::to_string).collect();
        assert!(circles.is_empty(), "circles in {name}:\n\n{}", text.join("\n"));
    }
    // Else a wrong directory would pass for crates without circles.
    for name in ["shunt-preload", "shunt-runtime", "shunt-shm", "shunt-wire"] {
        assert!(crates.iter().any(|(known, _)| known == name), "{name} is not found");
    }
}
