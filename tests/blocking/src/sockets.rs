//! Sockets.

use std::io::{self, IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    sendmsg, socketpair, sockopt,
};

/// The peer of a TCP connection that lingers: it has bytes to send that are not read, and whoever closes it last waits.
#[derive(Debug)]
pub struct Lingering {
    _peer: TcpStream,
}

impl Lingering {
    /// Such a connection, and what it is connected to.
    ///
    /// # Errors
    /// Those of making it.
    pub fn connect(linger: Duration) -> io::Result<(OwnedFd, Self)> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let mut socket = TcpStream::connect(listener.local_addr()?)?;
        let (peer, _) = listener.accept()?;
        socket.set_nonblocking(true)?;
        loop {
            match socket.write(&[b'x'; 1 << 16]) {
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) => return Err(e),
            }
        }
        sockopt::set_socket_linger(&socket, Some(linger))?;
        Ok((socket.into(), Self { _peer: peer }))
    }
}

/// A UNIX socket in whose queue lies another one, in whose queue lies another one, and so on; with `last` at the end.
///
/// # Errors
/// Those of socketpair(2) and sendmsg(2).
pub fn chain(length: usize, last: OwnedFd) -> io::Result<OwnedFd> {
    let mut within = last;
    for _ in 0..length {
        let (near, far) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        pass(&near, &[within.as_fd()])?;
        within = far;
    }
    Ok(within)
}

fn pass(to: impl AsFd, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut room);
    control.push(SendAncillaryMessage::ScmRights(fds));
    sendmsg(to, &[IoSlice::new(b"x")], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}
