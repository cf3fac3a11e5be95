//! In which namespaces a process is, as one that sees it from outside knows them. For our own programs.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::MetadataExt;

/// Of `include/uapi/linux/nsfs.h`.
const NS_GET_PARENT: libc::Ioctl = 0xb702;
const NS_GET_OWNER_UID: libc::Ioctl = 0xb704;

/// Deeper than the kernel lets user namespaces nest.
const DEPTH: usize = 33;

/// The namespaces that matter for who trusts whom.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Namespaces {
    /// Number of the user namespace.
    pub user: u64,
    /// Number of the pid namespace.
    pub pid: u64,
    /// Number of the network namespace.
    pub network: u64,
    /// Who made the outermost user namespace that the process is in and the caller is not; `None`: it is in the
    /// caller's own.
    pub made_by: Option<u32>,
}

/// Those of a process.
///
/// # Errors
/// When it is gone, or may not be looked at.
pub fn of_process(pid: i32) -> io::Result<Namespaces> {
    let user = File::open(format!("/proc/{pid}/ns/user"))?;
    Ok(Namespaces {
        user: user.metadata()?.ino(),
        pid: fs::metadata(format!("/proc/{pid}/ns/pid"))?.ino(),
        network: fs::metadata(format!("/proc/{pid}/ns/net"))?.ino(),
        made_by: maker_of_outermost(user)?,
    })
}

fn maker_of_outermost(mut namespace: File) -> io::Result<Option<u32>> {
    let own = fs::metadata("/proc/self/ns/user")?.ino();
    if namespace.metadata()?.ino() == own {
        return Ok(None);
    }
    for _ in 0..DEPTH {
        let parent = parent(&namespace)?;
        if parent.metadata()?.ino() == own {
            return owner(&namespace).map(Some);
        }
        namespace = parent;
    }
    Err(io::ErrorKind::NotFound.into())
}

fn parent(namespace: &File) -> io::Result<File> {
    // SAFETY: the request takes no argument and returns a new descriptor.
    let fd = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_PARENT) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just opened it for us.
    Ok(unsafe { File::from_raw_fd(fd) })
}

fn owner(namespace: &File) -> io::Result<u32> {
    let mut uid: libc::uid_t = 0;
    // SAFETY: the request writes a user id to where it is told.
    let rc = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_OWNER_UID, &raw mut uid) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(uid) }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_in_namespaces_of_its_own_is_told_from_others() {
        let own = of_process(std::process::id().cast_signed()).unwrap();
        assert_eq!(own.made_by, None);
        let mut child = Command::new("unshare")
            .args(["--user", "--map-root-user", "--pid", "--fork", "--kill-child", "cat"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let me = rustix::process::geteuid().as_raw();
        // It is another program at first.
        let other = (0..1000).find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(5));
            let seen = of_process(child.id().cast_signed()).ok()?;
            (seen.made_by == Some(me) && seen.user != own.user).then_some(seen)
        });
        drop(child.stdin.take());
        let ended = child.wait().unwrap();
        // Where user namespaces are forbidden there is nothing to be seen.
        assert!(other.is_some() || !ended.success());
        assert!(of_process(0).is_err());
    }
}
