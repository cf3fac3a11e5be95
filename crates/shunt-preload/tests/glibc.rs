//! What is decided for each function of glibc (`glibc.toml`) is whole, and agrees with the hooks: a
//! function that a later glibc brings along is not passed over.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

#[derive(Deserialize)]
struct List {
    group: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    decision: Decision,
    reason: String,
    functions: String,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
enum Decision {
    Carried,
    HandedOver,
    Noticed,
    Harmless,
    None,
}

impl Decision {
    const fn is_hook(self) -> bool {
        matches!(self, Self::Carried | Self::HandedOver | Self::Noticed)
    }
}

/// What is decided for each function, once.
fn decisions() -> BTreeMap<String, Decision> {
    let list: List = toml::from_str(include_str!("../glibc.toml")).expect("a list of groups");
    let mut decisions = BTreeMap::new();
    for group in &list.group {
        assert!(group.reason.ends_with('.'), "a reason is a sentence: {}", group.reason);
        for name in group.functions.split_whitespace() {
            let other = decisions.insert(name.to_owned(), group.decision);
            assert_eq!(other, None, "{name} is listed once");
        }
    }
    decisions
}

/// The names of all hooks.
fn hooks() -> BTreeSet<&'static str> {
    let list = include_str!("../src/hooks.rs").lines().map(str::trim);
    const KINDS: [&str; 5] = ["fn ", "around fn ", "never fn ", "some fn ", "tail "];
    list.filter(|line| line.ends_with(';'))
        .filter_map(|line| KINDS.iter().find_map(|kind| line.strip_prefix(kind)))
        .filter_map(|rest| rest.split(['(', ' ']).next())
        .collect()
}

/// The libraries that glibc has consisted of; those of today's that are there.
fn libraries() -> Vec<PathBuf> {
    const PARTS: [&str; 7] = [
        "libc.so.6",
        "libpthread.so.0",
        "librt.so.1",
        "libdl.so.2",
        "libutil.so.1",
        "libanl.so.1",
        "libresolv.so.2",
    ];
    let maps = std::fs::read_to_string("/proc/self/maps").expect("own mappings");
    let paths = maps.lines().filter_map(|line| line.find('/').map(|at| Path::new(&line[at..])));
    let libc = paths.into_iter().find(|path| path.ends_with("libc.so.6")).expect("a glibc");
    let directory = libc.parent().expect("a directory");
    PARTS.map(|part| directory.join(part)).into_iter().filter(|path| path.exists()).collect()
}

/// The functions that a library exports, but for those that glibc's parts keep to themselves.
fn exported(library: &Path) -> BTreeSet<String> {
    let nm = Command::new("nm").args(["-D", "--defined-only"]).arg(library).output();
    let nm = nm.expect("nm runs");
    assert!(nm.status.success(), "nm reads {}", library.display());
    let lines = String::from_utf8(nm.stdout).expect("names");
    let function = |line: &str| {
        let mut words = line.split_whitespace().rev();
        let (name, kind) = (words.next()?, words.next()?);
        let (name, version) = name.split_once('@').unwrap_or((name, ""));
        let is_function = matches!(kind, "T" | "W" | "i") && !version.ends_with("GLIBC_PRIVATE");
        is_function.then(|| name.to_owned())
    };
    lines.lines().filter_map(function).collect()
}

#[test]
fn a_decision_is_made_for_each_function_of_the_installed_glibc() {
    let decisions = decisions();
    let libraries = libraries();
    assert!(!libraries.is_empty());
    for library in libraries {
        let exported = exported(&library);
        assert!(!library.ends_with("libc.so.6") || exported.len() > 2000, "{}", exported.len());
        let undecided: Vec<_> =
            exported.iter().filter(|name| !decisions.contains_key(*name)).collect();
        assert!(
            undecided.is_empty(),
            "{} exports functions of which crates/shunt-preload/glibc.toml does not say what becomes of a \
             connection: {undecided:?}",
            library.display()
        );
    }
}

#[test]
fn what_is_to_be_hooked_is_hooked_and_nothing_else() {
    let decisions = decisions();
    let hooks = hooks();
    assert!(hooks.len() > 100 && hooks.contains("recv") && hooks.contains("execl"));
    for hook in &hooks {
        let decision = decisions.get(*hook);
        assert!(decision.is_some_and(|it| it.is_hook()), "{hook} is hooked, and {decision:?}");
    }
    for (name, decision) in &decisions {
        let is_hooked = hooks.contains(name.as_str());
        assert_eq!(is_hooked, decision.is_hook(), "{name} is {decision:?}");
    }
}
