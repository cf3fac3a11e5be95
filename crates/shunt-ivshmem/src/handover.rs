//! Taking everything to the next server, so that clients notice nothing.
//!
//! All of it is descriptors with names, one of which is the state as text. They go to the next server
//! over the control socket, or to the service manager, which passes them to the next start. Until the next
//! server has said that it could go on, and has been told to, all is still the old one's.

use std::collections::HashMap;
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use shunt_sys::seqpacket;
use shunt_wire::agent::MAX_FDS;

use crate::control::{self, Request, Said, Unreachable};
use crate::memory;
use crate::name::Name;
use crate::snapshot::Snapshot;

/// How long all of it may take. Clients wait meanwhile.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long until another try where the kernel has no room.
const NAP: Duration = Duration::from_millis(10);
/// Longest state: a few times what all clients that there can be take.
const MAX_STATE: u64 = 256 << 20;

/// Why nothing was handed over.
#[derive(Debug)]
pub enum HandoverError {
    /// The server cannot be asked.
    Unreachable(Unreachable),
    /// What it has handed over cannot be used.
    Unusable(String),
}

impl fmt::Display for HandoverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(e) => e.fmt(f),
            Self::Unusable(why) => write!(
                f,
                "what the ivshmem server handed over cannot be used ({why}), and it goes on \
                 serving; end it and start a new one, which its clients don't survive"
            ),
        }
    }
}

impl std::error::Error for HandoverError {}

impl From<Unreachable> for HandoverError {
    fn from(e: Unreachable) -> Self {
        Self::Unreachable(e)
    }
}

/// What one server leaves to the next.
#[derive(Debug)]
pub struct Kept {
    /// Its state.
    pub snapshot: Snapshot,
    fds: HashMap<Name, OwnedFd>,
}

impl Kept {
    /// From what has been passed.
    ///
    /// # Errors
    /// Why it is not enough.
    pub fn new(mut fds: HashMap<Name, OwnedFd>) -> Result<Self, String> {
        let state = fds.remove(&Name::State).ok_or("its state is missing")?;
        let text = memory::text_of(&state, MAX_STATE)
            .map_err(|e| format!("its state is not readable: {e}"))?;
        Ok(Self { snapshot: Snapshot::parse(&text)?, fds })
    }

    /// Takes a descriptor out.
    pub fn take(&mut self, name: Name) -> Option<OwnedFd> {
        self.fds.remove(&name)
    }
}

/// Tells what was kept for this start from other descriptors that were passed.
#[must_use]
pub fn sort(passed: Vec<(String, OwnedFd)>) -> (HashMap<Name, OwnedFd>, Vec<OwnedFd>) {
    let (mut kept, mut others) = (HashMap::new(), Vec::new());
    for (name, fd) in passed {
        match Name::parse(&name) {
            Some(name) => drop(kept.insert(name, fd)),
            None => others.push(fd),
        }
    }
    (kept, others)
}

/// The names of what was kept for this start.
#[must_use]
pub fn names_of(passed: &[(String, OwnedFd)]) -> Vec<String> {
    let names = passed.iter().map(|(name, _)| name);
    names.filter(|name| Name::parse(name).is_some()).cloned().collect()
}

/// Hands over to the server that has asked for it. Once this has returned without an error, all is that
/// server's.
///
/// # Errors
/// Why it has not been handed over.
pub fn give(socket: &OwnedFd, all: &[(Name, BorrowedFd<'_>)]) -> Result<(), Unreachable> {
    let deadline = Instant::now() + PATIENCE;
    for some in all.chunks(MAX_FDS) {
        let (names, fds): (Vec<_>, Vec<_>) = some.iter().copied().unzip();
        say(socket, &Said::Keep(names), &fds, deadline)?;
    }
    say(socket, &Said::End, &[], deadline)?;
    expect(socket, &Said::Ready, deadline)?;
    say(socket, &Said::Go, &[], deadline)
}

/// Asks the server at `path` to hand over. It waits for [`go_on`].
///
/// # Errors
/// Why it does not, or what is wrong with it.
pub fn request(path: &Path) -> Result<(Kept, OwnedFd), HandoverError> {
    let deadline = Instant::now() + PATIENCE;
    let socket = control::ask(path, Request::TakeOver)?;
    let mut kept = HashMap::new();
    loop {
        match control::hear(&socket, left(deadline))? {
            (Said::Keep(names), mut fds) if names.len() == fds.len() => {
                for name in names {
                    kept.extend(fds.take().map(|fd| (name, fd)));
                }
            }
            (Said::End, _) => break,
            (said, _) => return Err(unexpected(&said).into()),
        }
    }
    Ok((Kept::new(kept).map_err(HandoverError::Unusable)?, socket))
}

/// Tells the server that has handed over that this one can go on, and waits for its word.
///
/// # Errors
/// When it has gone on itself meanwhile.
pub fn go_on(socket: &OwnedFd) -> Result<(), HandoverError> {
    let deadline = Instant::now() + PATIENCE;
    say(socket, &Said::Ready, &[], deadline)?;
    Ok(expect(socket, &Said::Go, deadline)?)
}

fn say(
    socket: &OwnedFd,
    said: &Said,
    fds: &[BorrowedFd<'_>],
    deadline: Instant,
) -> Result<(), Unreachable> {
    loop {
        match seqpacket::send(socket, said.text().as_bytes(), fds, left(deadline)) {
            Ok(()) => return Ok(()),
            // The kernel has no room for more descriptors in flight, until somebody reads.
            Err(Errno::TOOMANYREFS) if Instant::now() < deadline => sleep(NAP),
            Err(e) => return Err(Unreachable::Broken(e.to_string())),
        }
    }
}

fn expect(socket: &OwnedFd, wanted: &Said, deadline: Instant) -> Result<(), Unreachable> {
    let (said, _) = control::hear(socket, left(deadline))?;
    if said == *wanted { Ok(()) } else { Err(unexpected(&said)) }
}

fn unexpected(said: &Said) -> Unreachable {
    Unreachable::Broken(format!("it said \u{201c}{}\u{201d} out of turn", said.text()))
}

fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}
