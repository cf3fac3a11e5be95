//! Where the unified hierarchy of control groups is, and in which group a process is.

use std::fs;
use std::path::PathBuf;

/// Where the unified hierarchy (version 2) is mounted; `None`: nowhere.
#[must_use]
pub fn root() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    mounts.lines().find_map(|line| {
        // proc_pid_mountinfo(5): the fifth field is where, and the type stands behind a dash.
        let (place, kind) = line.split_once(" - ")?;
        let is_unified = kind.split(' ').next() == Some("cgroup2");
        is_unified.then(|| place.split(' ').nth(4).map(PathBuf::from))?
    })
}

/// The group of a process in the unified hierarchy, as a path from its root; where that says nothing, the longest that
/// it has in another one. `None` when the process is gone.
#[must_use]
pub fn of_process(pid: i32) -> Option<String> {
    choose(&fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?)
}

fn choose(groups: &str) -> Option<String> {
    let mut unified = None;
    let mut longest = None::<&str>;
    for line in groups.lines() {
        let (number, rest) = line.split_once(':')?;
        let (_, group) = rest.split_once(':')?;
        if number == "0" {
            unified = Some(group);
        }
        if longest.is_none_or(|known| group.len() > known.len()) {
            longest = Some(group);
        }
    }
    unified.filter(|group| *group != "/").or(longest).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unified_group_counts_unless_it_says_nothing() {
        assert_eq!(choose("0::/a/b\n").as_deref(), Some("/a/b"));
        assert_eq!(choose("3:cpu:/long/one\n0::/a\n").as_deref(), Some("/a"));
        assert_eq!(choose("3:cpu:/long/one\n1:pids:/x\n0::/\n").as_deref(), Some("/long/one"));
        assert_eq!(choose(""), None);
        assert!(of_process(std::process::id().cast_signed()).is_some());
    }
}
