//! A conversation with an agent, by hand.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::SocketAddrUnix;
use shunt_sys::fds::Fds;
use shunt_sys::seqpacket;
use shunt_wire::PROTOCOL_VERSION;
use shunt_wire::agent::{EndpointId, MAX_MESSAGE, Reply, Request, decode, encode};

const PATIENCE: Duration = Duration::from_secs(10);

pub struct Agent {
    socket: OwnedFd,
}

/// What a request led to.
pub type Answer = (Reply, Vec<OwnedFd>);

impl Agent {
    /// Connects, however the directory looks.
    pub fn reach(run_dir: &Path) -> io::Result<Self> {
        let address = SocketAddrUnix::new(run_dir.join("agent.sock"))?;
        Ok(Self { socket: seqpacket::connect(&address)? })
    }

    /// Says that it is a library.
    pub fn introduced(run_dir: &Path) -> io::Result<(Self, EndpointId)> {
        let agent = Self::reach(run_dir)?;
        let bell = doorbell()?;
        let hello = Request::Hello { version: PROTOCOL_VERSION, program: "intruder", run: 0 };
        match agent.call(&hello, &[bell.as_fd()])? {
            (Reply::Welcome { endpoint, .. }, _) => Ok((agent, endpoint)),
            other => Err(io::Error::other(format!("{other:?}"))),
        }
    }

    /// Its connection.
    pub const fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Sends bytes.
    pub fn send(&self, packet: &[u8], fds: &[BorrowedFd<'_>], wait: Duration) -> io::Result<()> {
        Ok(seqpacket::send(&self.socket, packet, fds, wait)?)
    }

    /// Asks; `EPIPE` when the agent has hung up.
    pub fn call(&self, request: &Request<'_>, fds: &[BorrowedFd<'_>]) -> io::Result<Answer> {
        let mut buf = [0; MAX_MESSAGE];
        let packet = encode(request, &mut buf).map_err(io::Error::other)?;
        self.send(packet, fds, PATIENCE)?;
        let (mut buf, mut fds) = ([0; MAX_MESSAGE], Fds::new());
        match seqpacket::recv(&self.socket, &mut buf, &mut fds, PATIENCE)? {
            0 => Err(Errno::PIPE.into()),
            len => {
                let reply = decode(&buf[..len]).map_err(io::Error::other)?;
                Ok((reply, std::iter::from_fn(|| fds.take()).collect()))
            }
        }
    }
}

/// What came of a call, in a word.
pub fn outcome(answer: &io::Result<Answer>) -> String {
    match answer {
        Ok((Reply::Refused { reason }, fds)) if fds.is_empty() => {
            format!("refused: {}", reason.name())
        }
        Ok((reply, fds)) => format!("{reply:?} with {} descriptors", fds.len()),
        Err(e)
            if [Errno::PIPE, Errno::CONNRESET]
                .map(io::Error::from)
                .iter()
                .any(|hung_up| hung_up.raw_os_error() == e.raw_os_error()) =>
        {
            "refused: hung up".to_owned()
        }
        Err(e) => format!("error: {e}"),
    }
}

/// A doorbell.
pub fn doorbell() -> io::Result<OwnedFd> {
    use rustix::event::{EventfdFlags, eventfd};
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}
