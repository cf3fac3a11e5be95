//! The names of containers, as far as their control groups tell.

/// What container runtimes put before a container's id, in the last parts of the group's path.
const PREFIXES: [&str; 5] = ["docker-", "libpod-", "cri-containerd-", "crio-", "nerdctl-"];
/// As much of an id as people use.
const SHORT: usize = 12;
const ID: usize = 64;

/// The short id of the container whose group this is, or is in.
#[must_use]
pub fn name(cgroup: &str) -> Option<&str> {
    cgroup.rsplit('/').find_map(|part| {
        let part = part.strip_suffix(".scope").unwrap_or(part);
        let id = PREFIXES.iter().find_map(|prefix| part.strip_prefix(prefix)).unwrap_or(part);
        let is_id = id.len() == ID && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_id.then(|| &id[..SHORT])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_containers_are_found() {
        let id = "0123456789abcdef".repeat(4);
        for group in [
            format!("/system.slice/docker-{id}.scope"),
            format!("/docker/{id}"),
            format!("/machine.slice/libpod-{id}.scope/container"),
            format!("/kubepods.slice/kubepods-pod1.slice/cri-containerd-{id}.scope"),
        ] {
            assert_eq!(name(&group), Some("0123456789ab"), "{group}");
        }
        for group in ["/", "", "/user.slice/user-1000.slice", "/docker/0123"] {
            assert_eq!(name(group), None);
        }
    }
}
