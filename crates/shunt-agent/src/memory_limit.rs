//! The memory that the control groups of a process leave it. The agent looks, so that the library,
//! a guest in the process, need not.

use std::fs;
use std::path::Path;

/// Where a controller's groups are, and the file that says the limit: version 1, version 2, and version 2 beside 1.
const PLACES: [(&str, &str, &str); 3] = [
    ("memory", "/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
    ("", "/sys/fs/cgroup", "memory.max"),
    ("", "/sys/fs/cgroup/unified", "memory.max"),
];

/// Bytes; `u64::MAX` where there is no limit, or none can be seen.
pub fn of_process(pid: i32) -> u64 {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let limits = groups.lines().filter_map(|line| {
        let (_number, rest) = line.split_once(':')?;
        let (controllers, group) = rest.split_once(':')?;
        let of_places = PLACES.iter().filter_map(|(controller, root, file)| {
            let is_it = controllers.split(',').any(|name| name == *controller);
            is_it.then(|| of_group(Path::new(root), group, file)).flatten()
        });
        of_places.min()
    });
    limits.min().unwrap_or(u64::MAX)
}

/// The least of the limits of a group and of those above it.
fn of_group(root: &Path, group: &str, file: &str) -> Option<u64> {
    let group = Path::new(group.trim_start_matches('/'));
    let limit =
        |above: &Path| fs::read_to_string(root.join(above).join(file)).ok()?.trim().parse().ok();
    group.ancestors().filter_map(limit).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_limit_on_the_way_up_counts() {
        let dir = tempfile::tempdir().unwrap();
        let inner = dir.path().join("a/b");
        fs::create_dir_all(&inner).unwrap();
        let of = |group: &str| of_group(dir.path(), group, "limit");
        assert_eq!(of("/a/b"), None);
        fs::write(inner.join("limit"), "max\n").unwrap();
        assert_eq!(of("/a/b"), None);
        fs::write(dir.path().join("a/limit"), "5000\n").unwrap();
        fs::write(dir.path().join("limit"), "7000\n").unwrap();
        assert_eq!(
            [of("/a/b"), of("/a"), of("/"), of("/elsewhere")],
            [Some(5000), Some(5000), Some(7000), Some(7000)]
        );
        fs::write(inner.join("limit"), "4096\n").unwrap();
        assert_eq!(of("/a/b"), Some(4096));
    }

    #[test]
    fn who_is_gone_has_no_limit() {
        assert_eq!(of_process(0), u64::MAX);
    }
}
