//! The imports of a crate's files, and the circles among them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::source::Module;
use crate::{Circle, Import, names};

/// For each file, those that it imports, and what it takes from each.
type Imports<'a> = BTreeMap<&'a Path, BTreeMap<&'a Path, BTreeSet<&'a str>>>;

/// All circles among the files of these modules.
pub(crate) fn of(modules: &[Module]) -> Vec<Circle> {
    let imports = imports(modules);
    let below: BTreeMap<_, _> = imports.keys().map(|file| (*file, below(&imports, file))).collect();
    let reaches = |from: &Path, to: &Path| below.get(from).is_some_and(|files| files.contains(to));
    let mut seen = BTreeSet::new();
    let mut circles = Vec::new();
    for file in imports.keys().copied() {
        if !reaches(file, file) || seen.contains(file) {
            continue;
        }
        let is_within = |other: &Path| reaches(file, other) && reaches(other, file);
        let files: Vec<_> = imports.keys().copied().filter(|other| is_within(other)).collect();
        let among = files.iter().flat_map(|from| {
            let targets = imports[from].iter().filter(|(to, _)| files.contains(to));
            targets.map(move |(to, names)| Import {
                from: PathBuf::from(from),
                to: PathBuf::from(to),
                names: names.iter().map(ToString::to_string).collect(),
            })
        });
        circles.push(Circle { imports: among.collect() });
        seen.extend(files);
    }
    circles
}

fn imports(modules: &[Module]) -> Imports<'_> {
    let mut imports = Imports::new();
    for (id, module) in modules.iter().enumerate() {
        let from = module.file.as_path();
        for mention in &module.mentions {
            let Some((to, name)) = names::imported(modules, id, mention) else { continue };
            let to = modules[to].file.as_path();
            if from != to {
                imports.entry(from).or_default().entry(to).or_default().insert(name);
            }
        }
    }
    imports
}

/// All files that one imports, directly or by way of others.
fn below<'a>(imports: &Imports<'a>, file: &Path) -> BTreeSet<&'a Path> {
    let mut below = BTreeSet::new();
    let mut open = vec![file];
    while let Some(file) = open.pop() {
        for next in imports.get(file).into_iter().flat_map(BTreeMap::keys) {
            if below.insert(*next) {
                open.push(next);
            }
        }
    }
    below
}
