//! The servers.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;

use shunt_sys::epoll::{self, Epoll};

use super::arguments::{Serve, Sink};
use super::reader::Reader;
use super::socket::{Listener, Socket};

/// The listener's number in the epoll instance.
const LISTENER: u64 = u64::MAX;

/// Events that are taken at once.
const BATCH: usize = 256;

/// One connection after the other. A connection that breaks is no reason to end.
pub fn blocking(serve: &Serve) -> io::Result<()> {
    let listener = Listener::bind(&serve.at)?;
    let mut buffer = vec![0; serve.size];
    loop {
        let mut socket = listener.accept()?;
        while let Ok(true) = socket.read_message(&mut buffer) {
            if socket.write_all(&buffer).is_err() {
                break;
            }
        }
    }
}

/// Counts what comes, and says at the end of the connection how much it was.
pub fn sink(sink: &Sink) -> io::Result<()> {
    let listener = Listener::bind(&sink.at)?;
    let mut reader = Reader::new(sink.reading, 0);
    loop {
        let mut socket = listener.accept()?;
        let mut bytes = 0_u64;
        while let Ok(n @ 1..) = reader.next(&mut socket) {
            bytes += n as u64;
        }
        std::hint::black_box(reader.sum());
        // The client may have gone without waiting for it.
        let _gone = socket.write_all(&bytes.to_be_bytes());
    }
}

/// A connection of the epoll server.
struct Conn {
    socket: Socket,
    buffer: Vec<u8>,
    /// Bytes of the request that have come, or of the answer that have gone.
    done: usize,
    answering: bool,
}

/// What to do with a connection after a step.
enum Next {
    Keep,
    Watch(u32),
    Close,
}

impl Conn {
    /// Goes on as far as it can without waiting.
    fn step(&mut self) -> Next {
        loop {
            let was_answering = self.answering;
            let moved = if self.answering {
                self.socket.write(&self.buffer[self.done..])
            } else {
                self.socket.read(&mut self.buffer[self.done..])
            };
            match moved {
                Ok(0) => return Next::Close,
                Ok(n) => self.done += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    return if self.answering { Next::Watch(epoll::OUT) } else { Next::Keep };
                }
                Err(_) => return Next::Close,
            }
            if self.done == self.buffer.len() {
                self.done = 0;
                self.answering = !self.answering;
                if was_answering {
                    // A client sends its next request after the answer: another look would be wasted.
                    return Next::Watch(epoll::IN);
                }
            }
        }
    }
}

/// Many connections, one thread.
pub fn epoll(serve: &Serve) -> io::Result<()> {
    let listener = Listener::bind(&serve.at)?;
    listener.set_nonblocking()?;
    let mut epoll = Epoll::new(BATCH)?;
    epoll.add(listener.as_fd(), epoll::IN, LISTENER)?;
    let mut conns: Vec<Option<(Conn, u32)>> = Vec::new();
    let mut free: Vec<usize> = Vec::new();
    let mut ready = Vec::with_capacity(BATCH);
    loop {
        ready.clear();
        ready.extend(epoll.wait(None)?.map(|event| event.data));
        for &data in &ready {
            if data == LISTENER {
                while let Ok(socket) = listener.accept() {
                    socket.set_nonblocking()?;
                    let index = free.pop().unwrap_or(conns.len());
                    epoll.add(socket.as_fd(), epoll::IN, index as u64)?;
                    let conn =
                        Conn { socket, buffer: vec![0; serve.size], done: 0, answering: false };
                    let place = Some((conn, epoll::IN));
                    match conns.get_mut(index) {
                        Some(slot) => *slot = place,
                        None => conns.push(place),
                    }
                }
                continue;
            }
            let Ok(index) = usize::try_from(data) else { continue };
            let Some(Some((conn, watched))) = conns.get_mut(index) else { continue };
            match conn.step() {
                Next::Watch(events) if *watched != events => {
                    *watched = events;
                    epoll.modify(conn.socket.as_fd(), events, data)?;
                }
                Next::Keep | Next::Watch(_) => {}
                Next::Close => {
                    conns[index] = None;
                    free.push(index);
                }
            }
        }
    }
}
