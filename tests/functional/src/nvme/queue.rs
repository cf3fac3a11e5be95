//! One queue over one socket.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

use shunt_nvme::host::{Completion, Config, Event, Queue as Machine, Transfer};
use shunt_nvme::transport::{Command, DataRange, Next, Piece};
use shunt_nvme::wire::{Sqe, digest};

/// How a command ended.
#[derive(Debug)]
pub struct Ended {
    /// Which.
    pub command: Command,
    /// How.
    pub completion: Completion,
    /// Its data: what came, or what was sent.
    pub data: Vec<u8>,
}

/// See the module's description.
pub struct Queue {
    socket: TcpStream,
    machine: Machine,
    data: HashMap<usize, Vec<u8>>,
    ended: Vec<Ended>,
    ready: bool,
}

impl Queue {
    /// Connects, up to the end of the handshake.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn connect(to: SocketAddr, config: Config) -> io::Result<Self> {
        let socket = TcpStream::connect(to)?;
        socket.set_nodelay(true)?;
        let machine = Machine::new(config);
        let mut queue =
            Self { socket, machine, data: HashMap::new(), ended: Vec::new(), ready: false };
        queue.flush()?;
        while !queue.ready {
            queue.receive()?;
        }
        Ok(queue)
    }

    /// The socket.
    #[must_use]
    pub const fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Commands that are not over.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.machine.outstanding()
    }

    /// The identifier of a command that is not over.
    #[must_use]
    pub fn cid(&self, command: Command) -> Option<u16> {
        self.machine.cid(command)
    }

    /// Sends a command.
    ///
    /// # Errors
    /// Those of the socket; `InvalidInput` where the queue is full.
    pub fn submit(&mut self, sqe: &Sqe, transfer: Transfer, data: Vec<u8>) -> io::Result<Command> {
        let submitted = self.machine.submit(sqe, transfer);
        let command =
            submitted.map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e.to_string()))?;
        self.data.insert(command.slot(), data);
        self.flush()?;
        Ok(command)
    }

    /// Waits for the end of any command.
    ///
    /// # Errors
    /// Those of the socket; `UnexpectedEof` at its end.
    pub fn wait(&mut self) -> io::Result<Ended> {
        while self.ended.is_empty() {
            self.receive()?;
            self.flush()?;
        }
        Ok(self.ended.remove(0))
    }

    /// Sends one, and waits for its end; no other must be under way.
    ///
    /// # Errors
    /// As the two.
    pub fn run(&mut self, sqe: &Sqe, transfer: Transfer, data: Vec<u8>) -> io::Result<Ended> {
        self.submit(sqe, transfer, data)?;
        self.wait()
    }

    fn flush(&mut self) -> io::Result<()> {
        let range = |range: &DataRange| {
            let (from, len) = (range.offset as usize, range.len as usize);
            &self.data[&range.command.slot()][from..from + len]
        };
        let mut bytes = Vec::new();
        for piece in self.machine.pieces() {
            match piece {
                Piece::Bytes(head) => bytes.extend_from_slice(head),
                Piece::Data(data) => bytes.extend_from_slice(range(&data)),
                Piece::Digest { range: data, skip } => {
                    let digest = digest::crc32c(range(&data)).to_le_bytes();
                    bytes.extend_from_slice(&digest[skip..]);
                }
            }
        }
        self.socket.write_all(&bytes)?;
        self.machine.sent(bytes.len());
        self.events()
    }

    fn receive(&mut self) -> io::Result<()> {
        let broken = |e: &dyn std::fmt::Display| io::Error::other(e.to_string());
        match self.machine.next() {
            Next::Header { len } => {
                let mut bytes = vec![0; len];
                self.socket.read_exact(&mut bytes)?;
                self.machine.header(&bytes).map_err(|e| broken(&e))?;
            }
            Next::Data(DataRange { command, offset, len }) => {
                let memory = self.data.get_mut(&command.slot()).expect("a command's memory");
                let place = &mut memory[offset as usize..(offset + len) as usize];
                self.socket.read_exact(place)?;
                let crc = digest::crc32c(place);
                self.machine.data(len, Some(crc)).map_err(|e| broken(&e))?;
            }
            Next::Discard { len } => {
                self.socket.read_exact(&mut vec![0; len as usize])?;
                self.machine.data(len, None).map_err(|e| broken(&e))?;
            }
            Next::Blocked => {}
            Next::Closed => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
        self.events()
    }

    fn events(&mut self) -> io::Result<()> {
        while let Some(event) = self.machine.poll() {
            match event {
                Event::Ready(_) => self.ready = true,
                Event::Completed { command, completion } => {
                    let data = self.data.remove(&command.slot()).unwrap_or_default();
                    self.ended.push(Ended { command, completion, data });
                }
                Event::Terminated(why) => {
                    return Err(io::Error::other(format!("the controller has ended it: {why:?}")));
                }
            }
        }
        Ok(())
    }
}
