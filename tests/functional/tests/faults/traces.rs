//! What processes leave in the machine's tables.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// What the open descriptors of a process lead to.
pub fn descriptors(pid: i32) -> Vec<String> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    let links = entries.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
    links.map(|link| link.to_string_lossy().into_owned()).collect()
}

/// The same without what tells one socket or pipe from another, in order.
pub fn kinds(pid: i32) -> Vec<String> {
    let mut kinds = descriptors(pid);
    kinds.iter_mut().for_each(|link| link.retain(|c| !c.is_ascii_digit()));
    kinds.sort_unstable();
    kinds
}

/// Pieces of shared memory that a process has mapped or open, by a part of their name.
pub fn shared_memory(pid: i32, name: &str) -> usize {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let mapped: BTreeSet<&str> =
        // The inode is the fifth field.
        maps.lines().filter(|l| l.contains(name)).filter_map(|l| l.split_whitespace().nth(4)).collect();
    mapped.len() + descriptors(pid).iter().filter(|link| link.contains(name)).count()
}

/// Resident memory of a process in KiB, without pages of files.
pub fn resident(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let field = |name: &str| -> u64 {
        let line = status.lines().find(|line| line.starts_with(name));
        line.and_then(|l| l.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
    };
    field("RssAnon:") + field("RssShmem:")
}

/// The names in a directory.
pub fn names(dir: &Path) -> BTreeSet<String> {
    let Ok(entries) = fs::read_dir(dir) else { return BTreeSet::new() };
    entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}
