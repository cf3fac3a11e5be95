//! The control socket: what tools and the next server ask, and how they find it.
//!
//! A packet is a line of text. The first one is a request of the form `shunt-ivshmem 1 status`. To
//! `status` the answer is `report` and the report (if it is long, in a memfd), or `refused` and why. To
//! `take-over` it is a row of `keep` with names and descriptors, then `end`; the asking server says `ready`,
//! and with `go` clients and sockets are its own.

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::SocketAddrUnix;
use rustix::process::geteuid;
use shunt_sys::fds::Fds;
use shunt_sys::seqpacket::{self, PeerCred, peer_cred};

use crate::endpoint::control_path;
use crate::memory;
use crate::name::Name;
use crate::report::Report;

/// Longest packet.
pub const MAX_PACKET: usize = 32 << 10;
/// Longest request.
pub const MAX_REQUEST: usize = 64;

/// How each request begins: who is meant, and which version of this conversation.
const GREETING: &str = "shunt-ivshmem 1 ";
/// Longest report that is read.
const MAX_REPORT: u64 = 64 << 20;
/// How long the server may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is asked of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// What it does.
    Status,
    /// That it hand over and end.
    TakeOver,
}

impl Request {
    /// Reads one.
    #[must_use]
    pub fn parse(packet: &[u8]) -> Option<Self> {
        match packet.strip_prefix(GREETING.as_bytes())? {
            b"status" => Some(Self::Status),
            b"take-over" => Some(Self::TakeOver),
            _ => None,
        }
    }

    /// The packet.
    #[must_use]
    pub fn text(self) -> String {
        let word = match self {
            Self::Status => "status",
            Self::TakeOver => "take-over",
        };
        format!("{GREETING}{word}")
    }
}

/// What a server says on its control socket, and the next one to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Said {
    /// The report; if there is none here it is in the descriptor.
    Report(String),
    /// It does not do so, and why.
    Refused(String),
    /// The descriptors have these names.
    Keep(Vec<Name>),
    /// That was all.
    End,
    /// The next server could go on.
    Ready,
    /// It is to go on.
    Go,
}

impl Said {
    /// Reads one.
    #[must_use]
    pub fn parse(packet: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(packet).ok()?;
        let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
        match (word, rest) {
            ("report", report) => Some(Self::Report(report.to_owned())),
            ("refused", why) => Some(Self::Refused(why.to_owned())),
            ("keep", names) => {
                let names: Option<_> = names.split(':').map(Name::parse).collect();
                names.map(Self::Keep)
            }
            ("end", "") => Some(Self::End),
            ("ready", "") => Some(Self::Ready),
            ("go", "") => Some(Self::Go),
            _ => None,
        }
    }

    /// The packet.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::Report(report) => format!("report {report}"),
            Self::Refused(why) => format!("refused {why}"),
            Self::Keep(names) => {
                let names: Vec<_> = names.iter().map(Name::to_string).collect();
                format!("keep {}", names.join(":"))
            }
            Self::End => "end".to_owned(),
            Self::Ready => "ready".to_owned(),
            Self::Go => "go".to_owned(),
        }
    }
}

/// Why a server cannot be asked.
#[derive(Debug)]
pub enum Unreachable {
    /// Nobody listens there.
    NotRunning(PathBuf),
    /// Another user does.
    Impostor(PathBuf, u32),
    /// This user may not ask.
    Forbidden(PathBuf),
    /// It does not want to.
    Refused(String),
    /// It answers with something else, late, or not at all.
    Broken(String),
}

impl fmt::Display for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRunning(path) => write!(
                f,
                "no ivshmem server is running at {}; start one with `shunt ivshmem-server`, or \
                 name the right one with --socket",
                path.display()
            ),
            Self::Impostor(path, uid) => write!(
                f,
                "{} is served by another user (uid {uid}) and is not trusted; ask as that user",
                control_path(path).display()
            ),
            Self::Forbidden(path) => write!(
                f,
                "{} is not open to this user; ask as the user whom the server runs as, or as root",
                control_path(path).display()
            ),
            Self::Refused(why) => write!(f, "the ivshmem server refused: {why}"),
            Self::Broken(what) => {
                write!(f, "the ivshmem server does not answer as it should: {what}")
            }
        }
    }
}

impl std::error::Error for Unreachable {}

/// Whether somebody may be spoken to as one's own: the same user, or root.
#[must_use]
pub fn is_trusted(cred: &PeerCred) -> bool {
    cred.uid == geteuid().as_raw() || cred.uid == 0
}

/// Connects to the control socket of the server at `path`, and asks.
pub(crate) fn ask(path: &Path, request: Request) -> Result<OwnedFd, Unreachable> {
    let broken = |e: Errno| Unreachable::Broken(e.to_string());
    let address = SocketAddrUnix::new(control_path(path)).map_err(broken)?;
    let socket = match seqpacket::connect(&address) {
        Ok(socket) => socket,
        Err(Errno::NOENT | Errno::CONNREFUSED) => {
            return Err(Unreachable::NotRunning(path.to_owned()));
        }
        Err(Errno::ACCESS) => return Err(Unreachable::Forbidden(path.to_owned())),
        Err(e) => return Err(broken(e)),
    };
    let cred = peer_cred(&socket).map_err(broken)?;
    // Root may ask the server of any user.
    if !is_trusted(&cred) && !geteuid().is_root() {
        return Err(Unreachable::Impostor(path.to_owned(), cred.uid));
    }
    seqpacket::send(&socket, request.text().as_bytes(), &[], PATIENCE).map_err(broken)?;
    Ok(socket)
}

/// The next thing that is said, and what comes with it.
pub(crate) fn hear(socket: &OwnedFd, patience: Duration) -> Result<(Said, Fds), Unreachable> {
    let broken = |what: &dyn fmt::Display| Unreachable::Broken(what.to_string());
    let (mut packet, mut fds) = (vec![0; MAX_PACKET], Fds::new());
    match seqpacket::recv(socket, &mut packet, &mut fds, patience).map_err(|e| broken(&e))? {
        0 => Err(broken(&"it closed the connection")),
        len => match Said::parse(&packet[..len]) {
            Some(Said::Refused(why)) => Err(Unreachable::Refused(why)),
            Some(said) => Ok((said, fds)),
            None => Err(broken(&"it said something that is not known here")),
        },
    }
}

/// Asks the server at `path` what it does.
///
/// # Errors
/// Why it does not say.
pub fn status(path: &Path) -> Result<Report, Unreachable> {
    let broken = |what: &dyn fmt::Display| Unreachable::Broken(what.to_string());
    let socket = ask(path, Request::Status)?;
    let (Said::Report(report), mut fds) = hear(&socket, PATIENCE)? else {
        return Err(broken(&"it gave an answer to another question"));
    };
    let text = match fds.take() {
        Some(fd) => memory::text_of(&fd, MAX_REPORT).map_err(|e| broken(&e))?,
        None => report.into_bytes(),
    };
    serde_json::from_slice(&text).map_err(|e| broken(&e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        for request in [Request::Status, Request::TakeOver] {
            assert_eq!(Request::parse(request.text().as_bytes()), Some(request));
        }
        let names = vec![Name::State, Name::Peer(7), Name::Bell(65535, 255)];
        let refused = Said::Refused("it is busy".to_owned());
        let report = Said::Report("{}".to_owned());
        for said in [report, refused, Said::Keep(names), Said::End, Said::Ready, Said::Go] {
            assert_eq!(Said::parse(said.text().as_bytes()), Some(said));
        }
    }

    #[test]
    fn rubbish_is_not() {
        for packet in [&b""[..], b"status", b"shunt-ivshmem 2 status", b"shunt-ivshmem 1 statusx"] {
            assert_eq!(Request::parse(packet), None);
        }
        for packet in [&b""[..], b"end now", b"keep", b"keep peer", b"keep bell.1", b"\xff"] {
            assert_eq!(Said::parse(packet), None);
        }
    }
}
