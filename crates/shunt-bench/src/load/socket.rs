//! TCP and UNIX stream sockets alike, through the calls that any program makes.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};

use crate::rig::endpoint::Endpoint;

/// A connection.
pub enum Socket {
    /// TCP, with `TCP_NODELAY`.
    Tcp(TcpStream),
    /// UNIX.
    Unix(UnixStream),
}

/// A listening socket.
pub enum Listener {
    /// TCP.
    Tcp(TcpListener),
    /// UNIX.
    Unix(UnixListener),
}

impl Socket {
    /// Connects.
    pub fn connect(to: &Endpoint) -> io::Result<Self> {
        match to {
            Endpoint::Tcp(address) => {
                let socket = TcpStream::connect(address)?;
                socket.set_nodelay(true)?;
                Ok(Self::Tcp(socket))
            }
            Endpoint::Unix(path) => UnixStream::connect(path).map(Self::Unix),
        }
    }

    /// No call shall block.
    pub fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Self::Tcp(socket) => socket.set_nonblocking(true),
            Self::Unix(socket) => socket.set_nonblocking(true),
        }
    }

    /// Says that nothing more will be sent.
    pub fn shutdown_write(&self) -> io::Result<()> {
        match self {
            Self::Tcp(socket) => socket.shutdown(std::net::Shutdown::Write),
            Self::Unix(socket) => socket.shutdown(std::net::Shutdown::Write),
        }
    }

    /// Fills `buffer`; false when the end came in the place of its first byte.
    pub fn read_message(&mut self, buffer: &mut [u8]) -> io::Result<bool> {
        let mut done = 0;
        while done < buffer.len() {
            match self.read(&mut buffer[done..]) {
                Ok(0) if done == 0 => return Ok(false),
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.read(buffer),
            Self::Unix(socket) => socket.read(buffer),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.write(bytes),
            Self::Unix(socket) => socket.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(socket) => socket.as_fd(),
            Self::Unix(socket) => socket.as_fd(),
        }
    }
}

impl Listener {
    /// Listens.
    pub fn bind(at: &Endpoint) -> io::Result<Self> {
        match at {
            Endpoint::Tcp(address) => TcpListener::bind(address).map(Self::Tcp),
            Endpoint::Unix(path) => UnixListener::bind(path).map(Self::Unix),
        }
    }

    /// The next connection.
    pub fn accept(&self) -> io::Result<Socket> {
        match self {
            Self::Tcp(listener) => {
                let (socket, _) = listener.accept()?;
                socket.set_nodelay(true)?;
                Ok(Socket::Tcp(socket))
            }
            Self::Unix(listener) => listener.accept().map(|(socket, _)| Socket::Unix(socket)),
        }
    }

    /// No accept shall block.
    pub fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Self::Tcp(listener) => listener.set_nonblocking(true),
            Self::Unix(listener) => listener.set_nonblocking(true),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener) => listener.as_fd(),
        }
    }
}
