//! TCP fast open: a send connects the socket, or a connect returns before there is a connection. Whether bytes go with the SYN
//! is the system's setting; where they do not, the calls do the same.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};

use shunt_functional::sys;

use crate::probe::{Probe, address, listener, warm_up};

const FIRST: &[u8] = b"the first";

/// Connects the socket, and sends [`FIRST`].
type Way = fn(RawFd, SocketAddr) -> io::Result<usize>;

const WAYS: &[(&str, bool, Way)] = &[
    ("sendto", true, |fd, to| sys::sendto_address(fd, FIRST, libc::MSG_FASTOPEN, to)),
    ("sendmsg", true, |fd, to| sys::sendmsg_address(fd, FIRST, libc::MSG_FASTOPEN, to)),
    ("sendto that does not wait", false, |fd, to| {
        sys::sendto_address(fd, FIRST, libc::MSG_FASTOPEN, to)
    }),
    ("connect", true, |fd, to| {
        sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT, 1)?;
        sys::connect(fd, to)?;
        sys::write(fd, FIRST)
    }),
];

/// Each way twice: the kernel has no cookie of the server at first.
pub fn run(p: &mut Probe) -> io::Result<()> {
    let listener = listener()?;
    sys::set_option(listener.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_FASTOPEN, 8)?;
    let to = address(&listener)?;
    for &(name, waits, way) in WAYS.iter().flat_map(|way| [way; 2]) {
        let client = sys::socket(libc::AF_INET, libc::SOCK_STREAM)?;
        let fd = client.as_raw_fd();
        sys::set_nonblocking(fd, !waits)?;
        // It may have sent all, or nothing yet, where it does not wait.
        let sent = match way(fd, to) {
            Err(e) if !waits && e.raw_os_error() == Some(libc::EINPROGRESS) => 0,
            sent => sent?,
        };
        let (server, _) = sys::accept(listener.as_raw_fd(), 0)?;
        sys::set_nonblocking(fd, false)?;
        let rest = &FIRST[sent..];
        if !rest.is_empty() {
            sys::write(fd, rest)?;
        }
        for end in [fd, server.as_raw_fd()] {
            sys::set_option(end, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)?;
        }
        let mut first = [0; FIRST.len()];
        sys::recv(server.as_raw_fd(), &mut first, libc::MSG_WAITALL, false)?;
        p.say(&format!("{name}: the first bytes arrive"), first == FIRST);
        if p.warm {
            warm_up(fd, server.as_raw_fd())?;
        }
        let again = sys::sendto_address(fd, FIRST, libc::MSG_FASTOPEN, to);
        p.result(&format!("{name}: once more"), again);
        warm_up(fd, server.as_raw_fd())?;
    }
    let client = sys::socket(libc::AF_INET, libc::SOCK_STREAM)?;
    drop(listener);
    p.result(
        "nobody listens",
        sys::sendto_address(client.as_raw_fd(), FIRST, libc::MSG_FASTOPEN, to),
    );
    Ok(())
}
