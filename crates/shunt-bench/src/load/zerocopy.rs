//! Sending with `MSG_ZEROCOPY`: from buffers that are used again when the error queue says so.

use std::io;

use shunt_api::{Memory, send};

/// Where a connection sends from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum From {
    /// Registered memory, where there is any.
    Registered,
    /// Memory of the program's own allocator.
    Private,
}

/// Such memory.
enum Buffers {
    Registered(Memory),
    Private(Vec<u8>),
}

impl Buffers {
    fn bytes(&mut self) -> &mut [u8] {
        match self {
            Self::Registered(memory) => memory.bytes(),
            Self::Private(bytes) => bytes,
        }
    }
}

use super::socket::Socket;

/// The buffers of a connection.
pub struct Sender {
    memory: Buffers,
    size: usize,
    /// Calls made, and those of them that are completed.
    made: u32,
    completed: u32,
    /// Buffers used so far, and for each the number of calls that were made when it was sent whole.
    used: usize,
    until: Vec<u32>,
}

impl Sender {
    /// So many buffers of so many bytes.
    pub fn new(socket: &Socket, from: From, (size, buffers): (usize, usize)) -> io::Result<Self> {
        send::allow(socket)?;
        let len = size * buffers;
        let mut memory = match from {
            From::Registered => Buffers::Registered(Memory::new(len)?),
            From::Private => Buffers::Private(vec![0; len]),
        };
        memory.bytes().fill(b'x');
        Ok(Self { memory, size, made: 0, completed: 0, used: 0, until: vec![0; buffers] })
    }

    /// Sends one buffer.
    pub fn send(&mut self, socket: &Socket) -> io::Result<()> {
        let index = self.used % self.until.len();
        while self.until[index].wrapping_sub(self.completed).cast_signed() > 0 {
            self.reap(socket)?;
        }
        let mut done = 0;
        while done < self.size {
            let left = &self.memory.bytes()[index * self.size..][done..self.size];
            match send::zerocopy(socket, left) {
                Ok(n) => {
                    done += n;
                    self.made = self.made.wrapping_add(1);
                }
                // So many calls wait to be completed.
                Err(e) if e.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error()) => {
                    self.reap(socket)?;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        self.until[index] = self.made;
        self.used += 1;
        Ok(())
    }

    /// Hears what is completed; waits until something is.
    fn reap(&mut self, socket: &Socket) -> io::Result<()> {
        let mut heard = false;
        loop {
            match send::completed(socket)? {
                Some(calls) => (self.completed, heard) = (calls.last.wrapping_add(1), true),
                None if heard => return Ok(()),
                None => send::wait(socket)?,
            }
        }
    }
}
