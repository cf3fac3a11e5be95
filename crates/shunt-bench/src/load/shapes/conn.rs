//! A connection of a server, whatever its shape.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use super::sizes::{NUMBER, Sizes};
use crate::load::work::work;

/// What is done for a request.
#[derive(Clone, Copy, Debug)]
pub struct Service {
    sizes: Sizes,
    work: u64,
}

impl Service {
    /// With so many steps of work.
    pub const fn new(sizes: Sizes, work: u64) -> Self {
        Self { sizes, work }
    }

    /// Works, and writes the answer: the number of the request, and one.
    fn answer(self, request: &[u8], answer: &mut [u8]) {
        work(self.work);
        let number = request.first_chunk().map_or(0, |number| u64::from_be_bytes(*number));
        if let Some(place) = answer.first_chunk_mut::<NUMBER>() {
            *place = number.wrapping_add(1).to_be_bytes();
        }
    }
}

/// What to do with a connection after a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Wait until there is something to read.
    Read,
    /// Wait until there is room to write.
    Write,
    /// It has ended.
    Close,
}

/// See the module's description.
#[derive(Debug)]
pub struct Conn {
    socket: TcpStream,
    service: Service,
    request: Vec<u8>,
    answer: Vec<u8>,
    /// Bytes of the request that have come, or of the answer that have gone.
    done: usize,
    answering: bool,
}

impl Conn {
    /// The next connection at `listener`; none when there is none now, and calls there do not block.
    pub fn accept(listener: &TcpListener, service: Service) -> io::Result<Option<Self>> {
        loop {
            match listener.accept() {
                Ok((socket, _)) => {
                    socket.set_nodelay(true)?;
                    return Ok(Some(Self::new(socket, service)));
                }
                Err(e) => match e.kind() {
                    io::ErrorKind::WouldBlock => return Ok(None),
                    // The client has given up meanwhile.
                    io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted => {}
                    _ => return Err(e),
                },
            }
        }
    }

    fn new(socket: TcpStream, service: Service) -> Self {
        let Sizes { request, response } = service.sizes;
        let (request, answer) = (vec![0; request], vec![b'y'; response]);
        Self { socket, service, request, answer, done: 0, answering: false }
    }

    /// No call shall block.
    pub fn set_nonblocking(&self) -> io::Result<()> {
        self.socket.set_nonblocking(true)
    }

    /// True while an answer has not gone whole.
    pub const fn is_answering(&self) -> bool {
        self.answering
    }

    /// Blocking: one call of recv, and the answer if the request is whole by then. False at the end.
    pub fn receive(&mut self) -> io::Result<bool> {
        match self.socket.read(&mut self.request[self.done..]) {
            Ok(0) => return Ok(false),
            Ok(n) => self.done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => return Ok(true),
            Err(e) => return Err(e),
        }
        if self.done == self.request.len() {
            self.done = 0;
            self.service.answer(&self.request, &mut self.answer);
            self.socket.write_all(&self.answer)?;
        }
        Ok(true)
    }

    /// Blocking: a whole request and its answer. False at the end.
    pub fn turn(&mut self) -> io::Result<bool> {
        loop {
            if !self.receive()? {
                return Ok(false);
            }
            if self.done == 0 {
                return Ok(true);
            }
        }
    }

    /// Not blocking: goes on as far as it can. With `drain`, until a call would block; without,
    /// until an answer has gone: clients send their next request after it.
    pub fn step(&mut self, drain: bool) -> Next {
        loop {
            let moved = if self.answering {
                self.socket.write(&self.answer[self.done..])
            } else {
                self.socket.read(&mut self.request[self.done..])
            };
            match moved {
                Ok(0) => return Next::Close,
                Ok(n) => self.done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    return if self.answering { Next::Write } else { Next::Read };
                }
                Err(_) => return Next::Close,
            }
            if self.answering && self.done == self.answer.len() {
                (self.answering, self.done) = (false, 0);
                if !drain {
                    return Next::Read;
                }
            } else if !self.answering && self.done == self.request.len() {
                (self.answering, self.done) = (true, 0);
                self.service.answer(&self.request, &mut self.answer);
            }
        }
    }
}

impl AsFd for Conn {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
