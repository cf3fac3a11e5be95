//! TCP sockets as the kernel lists them, and the processes that hold them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use procfs::ProcError;
use procfs::net::{TcpNetEntry, TcpState};
use procfs::process::{FDTarget, Process, all_processes};
use shunt_wire::addr::Addr;

/// What is to be explained.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// A descriptor of a process.
    Socket(i32, i32),
    /// What listens at a port, and the connections that have it.
    Port(u16),
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let positive = |text: &str| text.parse().ok().filter(|n: &i32| *n >= 0);
        let found = match text.split_once(':') {
            Some((pid, fd)) => {
                positive(pid).zip(positive(fd)).map(|(pid, fd)| Self::Socket(pid, fd))
            }
            None => text.parse().ok().filter(|port| *port > 0).map(Self::Port),
        };
        found.ok_or_else(|| {
            "it must be PID:FD, a process and its descriptor, or PORT, from 1 to 65535".to_owned()
        })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(pid, fd) => write!(f, "{pid}:{fd}"),
            Self::Port(port) => write!(f, "{port}"),
        }
    }
}

/// A TCP socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Socket {
    /// Its address.
    pub local: Addr,
    /// The other end's; `None` for a listener.
    pub peer: Option<Addr>,
    /// It waits in its listener's queue, so no process has it.
    pub is_unaccepted: bool,
    /// The user who has made it.
    pub user: u32,
    inode: u64,
}

impl Socket {
    fn of(entry: &TcpNetEntry) -> Option<Self> {
        let peer = match entry.state {
            TcpState::Listen => None,
            TcpState::TimeWait | TcpState::Close => return None,
            _ => Some(entry.remote_address.into()),
        };
        let (local, inode) = (entry.local_address.into(), entry.inode);
        // One that was closed has none either, and is in another state.
        let is_open = matches!(entry.state, TcpState::Established | TcpState::CloseWait);
        Some(Self { local, peer, is_unaccepted: inode == 0 && is_open, user: entry.uid, inode })
    }
}

/// Why a descriptor cannot be explained. Each says what it is, and what to do.
#[derive(Debug)]
pub enum Unexplained {
    /// There is no such process.
    NoProcess(i32),
    /// It is another user's.
    NotYours(i32),
    /// It has no such descriptor.
    NotOpen(i32, i32),
    /// The descriptor is this.
    NoSocket(i32, i32, String),
    /// It is a socket of another kind, or one that is not connected.
    NotTcp(i32, i32),
    /// The kernel does not tell.
    Other(String),
}

impl fmt::Display for Unexplained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoProcess(pid) => {
                write!(f, "no process has the number {pid} here; `pgrep -l NAME` finds it")
            }
            Self::NotYours(pid) => write!(
                f,
                "process {pid} may not be looked at by you; ask as root, or as the user that it runs as"
            ),
            Self::NotOpen(pid, fd) => write!(
                f,
                "process {pid} has no descriptor {fd}; `ls -l /proc/{pid}/fd` shows those that it has, and `shunt explain \
                 PORT` also what was decided about connections that it has closed"
            ),
            Self::NoSocket(pid, fd, what) => {
                write!(f, "descriptor {fd} of process {pid} is no socket, but {what}")
            }
            Self::NotTcp(pid, fd) => write!(
                f,
                "descriptor {fd} of process {pid} is a socket, but no TCP connection and no listener; Shunt has \
                 to do with these alone"
            ),
            Self::Other(why) => write!(f, "the kernel does not tell of that: {why}"),
        }
    }
}

/// The TCP socket of a descriptor.
///
/// # Errors
/// Why it is none.
pub fn socket(pid: i32, fd: i32) -> Result<Socket, Unexplained> {
    let error = |e: ProcError, missing| match e {
        ProcError::NotFound(_) => missing,
        ProcError::PermissionDenied(_) => Unexplained::NotYours(pid),
        other => Unexplained::Other(other.to_string()),
    };
    let process = Process::new(pid).map_err(|e| error(e, Unexplained::NoProcess(pid)))?;
    let target =
        process.fd_from_fd(fd).map_err(|e| error(e, Unexplained::NotOpen(pid, fd)))?.target;
    let inode = match target {
        FDTarget::Socket(inode) => inode,
        FDTarget::Path(path) => {
            return Err(Unexplained::NoSocket(pid, fd, path.display().to_string()));
        }
        FDTarget::Pipe(_) => return Err(Unexplained::NoSocket(pid, fd, "a pipe".to_owned())),
        _ => return Err(Unexplained::NoSocket(pid, fd, "another kind of file".to_owned())),
    };
    let found = sockets(Some(pid)).into_iter().find(|socket| socket.inode == inode);
    found.ok_or(Unexplained::NotTcp(pid, fd))
}

/// The TCP sockets in the network of a process, or in this one's.
pub fn sockets(of: Option<i32>) -> Vec<Socket> {
    let Ok(process) = of.map_or_else(Process::myself, Process::new) else { return Vec::new() };
    let tables = [process.tcp(), process.tcp6()];
    tables.into_iter().flatten().flatten().filter_map(|entry| Socket::of(&entry)).collect()
}

/// A process that has a socket.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Holder {
    /// The process.
    pub pid: i32,
    /// Its name.
    pub name: String,
    /// A descriptor of it.
    pub fd: i32,
}

/// The processes that have each of these sockets, as far as this user may see them.
pub fn holders(sockets: &[Socket]) -> BTreeMap<u64, Vec<Holder>> {
    let wanted: BTreeSet<u64> = sockets.iter().map(|socket| socket.inode).collect();
    let mut found = BTreeMap::<u64, Vec<Holder>>::new();
    let processes = all_processes().into_iter().flatten().flatten();
    for process in processes.filter(|_| !wanted.is_empty()) {
        let descriptors = process.fd().into_iter().flatten().flatten();
        for descriptor in descriptors {
            let FDTarget::Socket(inode) = descriptor.target else { continue };
            let of = |held: &Vec<Holder>| held.iter().any(|holder| holder.pid == process.pid);
            if wanted.contains(&inode) && !found.get(&inode).is_some_and(of) {
                let name = process.stat().map_or_else(|_| "-".to_owned(), |stat| stat.comm);
                let holder = Holder { pid: process.pid, name, fd: descriptor.fd };
                found.entry(inode).or_default().push(holder);
            }
        }
    }
    found
}

/// The listener in whose queue a socket waits.
pub fn listener_of<'a>(all: &'a [Socket], waiting: &Socket) -> Option<&'a Socket> {
    let takes = |l: &&Socket| l.local.ip == waiting.local.ip || l.local.is_unspecified();
    let at_port = |l: &&Socket| l.peer.is_none() && l.local.port == waiting.local.port;
    all.iter().filter(at_port).find(takes)
}

/// The user who has a socket of this port, where no process that has it may be looked at.
pub fn hidden_user(port: u16) -> Option<u32> {
    let has_port =
        |s: &Socket| s.local.port == port || s.peer.is_some_and(|peer| peer.port == port);
    let sockets: Vec<_> =
        sockets(None).into_iter().filter(|s| has_port(s) && s.inode != 0).collect();
    let holders = holders(&sockets);
    sockets.iter().find(|socket| !holders.contains_key(&socket.inode)).map(|socket| socket.user)
}

/// Those of one socket.
pub fn holders_of(all: &BTreeMap<u64, Vec<Holder>>, socket: &Socket) -> Vec<Holder> {
    all.get(&socket.inode).cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn targets_are_read() {
        assert_eq!("17:3".parse(), Ok(Target::Socket(17, 3)));
        assert_eq!("80".parse(), Ok(Target::Port(80)));
        for bad in ["", "0", "65536", "x", "1:", ":1", "-1:3", "1:-3", "1:2:3", "1:x"] {
            assert!(bad.parse::<Target>().is_err(), "{bad}");
        }
    }

    #[test]
    fn descriptors_are_what_they_are() {
        let me = i32::try_from(std::process::id()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let client = TcpStream::connect(address).unwrap();
        let found = socket(me, listener.as_raw_fd()).unwrap();
        assert_eq!((found.local, found.peer), (address.into(), None));
        let found = socket(me, client.as_raw_fd()).unwrap();
        assert_eq!(found.peer, Some(address.into()));
        let held = holders_of(&holders(&[found]), &found);
        assert_eq!((held.len(), held[0].pid, held[0].fd), (1, me, client.as_raw_fd()));
        // Its other end waits to be accepted.
        let all = sockets(None);
        let other = |s: &&Socket| s.local == address.into() && s.peer == Some(found.local);
        let waiting = *all.iter().find(other).unwrap();
        assert!(waiting.is_unaccepted && !found.is_unaccepted);
        assert_eq!(listener_of(&all, &waiting).map(|l| l.local), Some(address.into()));
        drop(listener.accept().unwrap());
        assert!(!sockets(None).iter().filter(other).any(|s| s.is_unaccepted));
        let file = std::fs::File::open("/dev/null").unwrap();
        let other = UdpSocket::bind("127.0.0.1:0").unwrap();
        let said = |fd| socket(me, fd).unwrap_err().to_string();
        assert!(said(file.as_raw_fd()).contains("no socket, but /dev/null"));
        assert!(said(other.as_raw_fd()).contains("no TCP connection"));
        assert!(said(1_000_000).contains("has no descriptor 1000000"));
        assert!(socket(i32::MAX, 0).unwrap_err().to_string().contains("no process"));
    }
}
