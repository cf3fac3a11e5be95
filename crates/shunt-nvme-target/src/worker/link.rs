//! The bytes of one connection: from the socket to the queue's machine and to the memory of its commands, and back.

use std::io::{self, ErrorKind};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

use shunt_nvme::controller::{Event, Queue};
use shunt_nvme::transport::{Command, DataRange, Next, Piece as OutPiece};
use shunt_nvme::wire::digest;

use crate::buffers::Buffer;
use crate::memory::Piece;
use crate::metrics::{Counter, Counts};
use crate::socket::{self, PARTS, Part, Span};

/// Room for headers.
const AHEAD: usize = 16 << 10;
/// So many of them follow data, as long as a command's header: reading more would read data, which then had to be copied to
/// its place, and whose first cache line had to be fetched from the host's processor also where nobody looks at it.
const AHEAD_OF_DATA: usize = 72;
/// Headers in a row without data, after which more are read at once.
const DATALESS: u8 = 4;

/// Where the data of a command is.
#[derive(Debug, Default)]
pub enum Data {
    /// Nowhere yet.
    #[default]
    None,
    /// In memory of this thread's own.
    Bytes(Vec<u8>),
    /// In a buffer.
    Buffer(Buffer),
    /// In the store itself.
    Store(Piece),
    /// In the store itself, and the host may read it there.
    Granted(Piece),
    /// What comes is dropped.
    Dropped,
}

impl Data {
    /// The piece, if it is one.
    pub fn piece(&self) -> Option<&Piece> {
        match self {
            Self::Buffer(buffer) => Some(buffer.piece()),
            Self::Store(piece) | Self::Granted(piece) => Some(piece),
            Self::None | Self::Bytes(_) | Self::Dropped => None,
        }
    }
}

/// How a step went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// On: events may have come.
    On,
    /// Nothing has come.
    Waits,
    /// What comes has no place yet.
    Stalled,
    /// Nothing is taken before something was sent.
    Blocked,
    /// The machine has closed the connection.
    Closed,
}

/// See the module's description.
#[derive(Debug)]
pub struct Link {
    socket: TcpStream,
    /// The machine.
    pub queue: Queue,
    /// Data of commands, by their slots.
    data: Vec<Data>,
    ahead: Box<[u8]>,
    /// What of `ahead` was received and not taken.
    start: usize,
    end: usize,
    dataless: u8,
}

impl Link {
    /// Over a socket that does not block.
    pub fn new(socket: TcpStream, queue: Queue) -> Self {
        let ahead = vec![0; AHEAD].into_boxed_slice();
        Self { socket, queue, data: Vec::new(), ahead, start: 0, end: 0, dataless: DATALESS }
    }

    /// The socket, for epoll.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The data of a command.
    pub fn data(&self, command: Command) -> &Data {
        self.data.get(command.slot()).unwrap_or(&Data::None)
    }

    /// Gives a command its data; what it had before is returned.
    pub fn place(&mut self, command: Command, data: Data) -> Data {
        let slot = command.slot();
        if slot >= self.data.len() {
            self.data.resize_with(slot + 1, Data::default);
        }
        std::mem::replace(&mut self.data[slot], data)
    }

    /// The next event of the machine.
    pub fn poll(&mut self) -> Option<Event> {
        self.queue.poll()
    }

    /// The host may be granted memory to read.
    pub fn allow_grants(&self) {
        // Without, all is copied.
        let _not_here = socket::allow_grants(self.socket.as_fd());
    }

    /// Nothing more will be sent. The socket is closed later: with unread bytes the kernel would reset the connection,
    /// and take back what the host has not read.
    pub fn end(&self) {
        let _gone = self.socket.shutdown(std::net::Shutdown::Write);
    }

    /// Throws away what still comes; true at the end.
    pub fn drain(&mut self) -> bool {
        loop {
            match socket::receive(self.socket.as_fd(), &mut self.ahead) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return false,
                Err(_) => return true,
            }
        }
    }

    /// Takes the next bytes where they belong. All events must have been taken.
    ///
    /// # Errors
    /// Those of the socket; `UnexpectedEof` at its end.
    pub fn step(&mut self, counts: &Counts) -> io::Result<Step> {
        let moved = match self.queue.next() {
            Next::Closed => return Ok(Step::Closed),
            Next::Blocked => return Ok(Step::Blocked),
            Next::Header { len } => self.header(len),
            Next::Discard { len } => self.discard(len),
            Next::Data(range) => return self.incoming(range, counts),
        };
        match moved {
            Ok(()) => Ok(Step::On),
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(Step::Waits),
            Err(e) => Err(e),
        }
    }

    /// True if something was received and not yet looked at.
    pub const fn has_more(&self) -> bool {
        self.buffered() > 0
    }

    /// True in the middle of data.
    pub fn is_amid(&self) -> bool {
        matches!(self.queue.next(), Next::Data(_) | Next::Discard { .. })
    }

    const fn buffered(&self) -> usize {
        self.end - self.start
    }

    /// Receives ahead, at least one byte of the `len` that are needed.
    fn fill(&mut self, len: usize) -> io::Result<()> {
        let room = if self.dataless < DATALESS { len.max(AHEAD_OF_DATA) } else { AHEAD };
        (self.start, self.end) = (0, 0);
        self.end = some(socket::receive(self.socket.as_fd(), &mut self.ahead[..room]))?;
        Ok(())
    }

    fn header(&mut self, len: usize) -> io::Result<()> {
        if self.buffered() == 0 {
            self.fill(len)?;
        }
        self.dataless = self.dataless.saturating_add(1);
        // A broken rule is in the outbox, and `next` is Closed.
        let taken = self.queue.header(&self.ahead[self.start..self.end]).unwrap_or(self.buffered());
        self.start += taken;
        Ok(())
    }

    fn discard(&mut self, len: u32) -> io::Result<()> {
        let most = len as usize;
        let n = if self.buffered() > 0 {
            let n = most.min(self.buffered());
            self.start += n;
            n
        } else {
            some(socket::skip(self.socket.as_fd(), most))?
        };
        // See above.
        let _violation = self.queue.data(u32::try_from(n).unwrap_or(len), None);
        Ok(())
    }

    fn incoming(&mut self, range: DataRange, counts: &Counts) -> io::Result<Step> {
        self.dataless = 0;
        let came = if self.buffered() > 0 { self.move_up(range) } else { self.receive(range) };
        let len = match came {
            Ok(Some(len)) => len,
            Ok(None) => return Ok(Step::Stalled),
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(Step::Waits),
            Err(e) => return Err(e),
        };
        let data = self.data(range.command);
        if matches!(data, Data::Store(_)) {
            counts.add(Counter::BytesInPlace, len as u64);
        }
        // What was placed is what is checked.
        let crc = self.queue.data_digest().then(|| crc_of(data, range.offset as usize, len));
        // See `header`.
        let _violation = self.queue.data(u32::try_from(len).unwrap_or(range.len), crc);
        Ok(Step::On)
    }

    /// Places what was received with a header; how much, `None` without a place.
    fn move_up(&mut self, range: DataRange) -> io::Result<Option<usize>> {
        let (from, len) = (range.offset as usize, self.buffered().min(range.len as usize));
        let ready = &self.ahead[self.start..self.start + len];
        match self.data.get_mut(range.command.slot()) {
            Some(Data::Dropped) => {}
            Some(Data::Bytes(bytes)) => {
                let Some(place) = bytes.get_mut(from..from + len) else { return Ok(None) };
                place.copy_from_slice(ready);
            }
            Some(data) => {
                let Some(piece) = data.piece() else { return Ok(None) };
                piece.part(from, len).copy_in(ready);
            }
            None => return Ok(None),
        }
        self.start += len;
        Ok(Some(len))
    }

    /// Receives to the place of the data, and the next header behind it.
    fn receive(&mut self, range: DataRange) -> io::Result<Option<usize>> {
        let (from, len) = (range.offset as usize, range.len as usize);
        let fd = self.socket.as_fd();
        let came = match self.data.get_mut(range.command.slot()) {
            Some(Data::Dropped) => some(socket::skip(fd, len))?,
            Some(Data::Bytes(bytes)) => {
                let Some(place) = bytes.get_mut(from..from + len) else { return Ok(None) };
                some(socket::receive(fd, place))?
            }
            Some(data) => {
                let Some(piece) = data.piece() else { return Ok(None) };
                let span = Span::new(piece, from, len);
                let behind = &mut self.ahead[..AHEAD_OF_DATA];
                let came = some(socket::receive_both(fd, span, behind))?;
                (self.start, self.end) = (0, came.saturating_sub(len));
                came.min(len)
            }
            None => return Ok(None),
        };
        Ok(Some(came))
    }

    /// Sends as much as the socket takes; how many bytes.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn flush(&mut self, counts: &Counts) -> io::Result<usize> {
        let mut total = 0;
        while !self.queue.is_sent() {
            match self.send(counts) {
                Ok(n) => {
                    self.queue.sent(n);
                    total += n;
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(total)
    }

    fn send(&self, counts: &Counts) -> io::Result<usize> {
        let digest = |range: &DataRange| {
            crc_of(self.data(range.command), range.offset as usize, range.len as usize)
        };
        let digests: Vec<[u8; digest::LEN]> = self
            .queue
            .pieces()
            .take(PARTS)
            .filter_map(|piece| match piece {
                OutPiece::Digest { range, .. } => Some(digest(&range).to_le_bytes()),
                _ => None,
            })
            .collect();
        let mut digests = digests.iter();
        let mut parts = [Part::Bytes(&[]); PARTS];
        let mut count = 0;
        for (part, piece) in parts.iter_mut().zip(self.queue.pieces()) {
            *part = match piece {
                OutPiece::Bytes(bytes) => Part::Bytes(bytes),
                OutPiece::Data(range) => {
                    let (from, len) = (range.offset as usize, range.len as usize);
                    match self.data(range.command) {
                        Data::Granted(piece) => Part::Granted(Span::new(piece, from, len)),
                        Data::Bytes(bytes) => {
                            Part::Bytes(bytes.get(from..from + len).unwrap_or(&[]))
                        }
                        data => data.piece().map_or(Part::Bytes(&[]), |piece| {
                            Part::Piece(Span::new(piece, from, len))
                        }),
                    }
                }
                OutPiece::Digest { skip, .. } => {
                    Part::Bytes(digests.next().map_or(&[], |digest| &digest[skip..]))
                }
            };
            // Less than was promised would shift all that follows.
            if part.len() != piece.len() {
                return Err(ErrorKind::InvalidData.into());
            }
            count += 1;
        }
        let sent = socket::send(self.socket.as_fd(), &parts[..count])?;
        let mut left = sent;
        for part in &parts[..count] {
            let len = part.len().min(left);
            left -= len;
            if matches!(part, Part::Granted(_)) {
                counts.add(Counter::BytesLent, len as u64);
            }
        }
        Ok(sent)
    }
}

/// The number of bytes that came, if there were some.
fn some(received: io::Result<usize>) -> io::Result<usize> {
    match received {
        Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
        other => other,
    }
}

/// CRC32C of a part of a command's data: of bytes that were copied, as those of a piece may change.
fn crc_of(data: &Data, from: usize, len: usize) -> u32 {
    const STEP: usize = 4096;
    if let Data::Bytes(bytes) = data {
        return crc32c::crc32c(bytes.get(from..from + len).unwrap_or(&[]));
    }
    let Some(piece) = data.piece() else { return 0 };
    let mut copy = [0; STEP];
    (0..len).step_by(STEP).fold(0, |crc, at| {
        let n = STEP.min(len - at);
        piece.part(from + at, n).copy_out(&mut copy);
        crc32c::crc32c_append(crc, &copy[..n])
    })
}
