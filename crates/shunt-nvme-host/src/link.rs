//! One connection: bytes between its socket, the queue's machine, and the memory of commands.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use shunt_nvme::host::{Completion, Config, Event, Fate, Negotiated, Queue, SubmitError, Transfer};
use shunt_nvme::transport::{Command, DataRange, Next, Piece};
use shunt_nvme::wire::{Sqe, digest};

use crate::memory::Data;
use crate::socket::{self, PARTS, Vectors};

/// Room for headers.
const AHEAD: usize = 16 << 10;
/// So many of them follow data: reading more would read data, which then had to be copied.
const AHEAD_OF_DATA: usize = 128;
/// Headers in a row without data, after which more are read at once.
const DATALESS: u8 = 4;

/// A command that is over.
#[derive(Debug)]
pub(crate) struct Ended {
    /// The submitter's number for it.
    pub(crate) tag: u64,
    pub(crate) completion: Completion,
    pub(crate) data: Data,
    /// What was sent of it could be read in place by the controller.
    pub(crate) offered: bool,
}

/// A command whose connection is lost.
#[derive(Debug)]
pub(crate) struct Lost {
    pub(crate) tag: u64,
    pub(crate) fate: Fate,
    pub(crate) data: Data,
}

/// What a command has while it is under way.
#[derive(Debug, Default)]
struct Held {
    tag: u64,
    data: Data,
    /// What is sent instead of memory that others may change: its digest has to fit.
    copy: Option<Vec<u8>>,
}

/// See the module's description.
pub(crate) struct Link {
    /// The first field: it is closed before the data of commands goes.
    socket: TcpStream,
    machine: Queue,
    depth: u16,
    /// By the commands' slots.
    held: Vec<Held>,
    ahead: Box<[u8]>,
    /// What of `ahead` was received and not taken.
    start: usize,
    end: usize,
    dataless: u8,
    negotiated: Option<Negotiated>,
    grants: bool,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("machine", &self.machine).finish_non_exhaustive()
    }
}

/// How far receiving went.
enum Step {
    On,
    /// The socket has no more.
    Empty,
}

impl Link {
    /// Over a socket that was just connected.
    ///
    /// # Errors
    /// Those of setting its options.
    pub(crate) fn new(socket: TcpStream, config: Config, grant: bool) -> io::Result<Self> {
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        // A kernel without the option copies everything.
        let grants = grant && socket::allow_grants(socket.as_fd()).is_ok();
        Ok(Self {
            socket,
            depth: config.depth,
            machine: Queue::new(config),
            held: Vec::new(),
            ahead: vec![0; AHEAD].into_boxed_slice(),
            start: 0,
            end: 0,
            dataless: DATALESS,
            negotiated: None,
            grants,
        })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// What was agreed on, once it was.
    pub(crate) const fn negotiated(&self) -> Option<Negotiated> {
        self.negotiated
    }

    /// True if nothing waits for the socket to take it.
    pub(crate) fn is_sent(&self) -> bool {
        self.machine.is_sent()
    }

    /// The identifier of a command, for an Abort.
    pub(crate) fn cid(&self, command: Command) -> Option<u16> {
        self.machine.cid(command)
    }

    /// Puts a command into the outbox. It goes with the next [`Self::flush`].
    ///
    /// # Errors
    /// Why it was not taken; the data is the caller's again.
    pub(crate) fn submit(
        &mut self,
        sqe: &Sqe,
        transfer: Transfer,
        mut data: Data,
        tag: u64,
    ) -> Result<Command, (SubmitError, Data)> {
        let (len, is_sent) = match transfer {
            Transfer::None => (0, false),
            Transfer::InCapsule(len) | Transfer::ToController(len) => (len as usize, true),
            Transfer::ToHost(len) => (len as usize, false),
        };
        if data.len() < len {
            return Err((SubmitError::DataLength, data));
        }
        let command = match self.machine.submit(sqe, transfer) {
            Ok(command) => command,
            Err(error) => return Err((error, data)),
        };
        let is_foreign = matches!(data, Data::Segments(_));
        let copies = is_sent && is_foreign && self.negotiated.is_some_and(|n| n.data_digest);
        let copy = copies.then(|| data.copy_out(0, len));
        let slot = command.slot();
        if slot >= self.held.len() {
            self.held.resize_with(slot + 1, Held::default);
        }
        self.held[slot] = Held { tag, data, copy };
        Ok(command)
    }

    /// True if so many commands more can be submitted.
    pub(crate) fn has_room(&self, count: usize) -> bool {
        usize::from(self.depth).saturating_sub(self.machine.outstanding()) >= count
    }

    /// Sends as much as the socket takes.
    ///
    /// # Errors
    /// Those of the socket.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        while !self.machine.is_sent() {
            match self.send() {
                Ok(sent) => self.machine.sent(sent),
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn send(&mut self) -> io::Result<usize> {
        let mut vectors = Vectors::new();
        let mut digests = [[0; digest::LEN]; PARTS];
        let mut free = digests.iter_mut();
        'pieces: for piece in self.machine.pieces() {
            let room = match piece {
                Piece::Bytes(bytes) => vectors.push(bytes.as_ptr().cast_mut(), bytes.len(), false),
                Piece::Data(range) => {
                    let Some(held) = self.held.get_mut(range.command.slot()) else { break };
                    let (from, len) = (range.offset as usize, range.len as usize);
                    if let Some(copy) = &held.copy {
                        let part = &copy[from..from + len];
                        vectors.push(part.as_ptr().cast_mut(), len, false)
                    } else {
                        let grants = self.grants && !matches!(held.data, Data::Bytes(_));
                        for (at, len) in held.data.pieces(from, len) {
                            if !vectors.push(at, len, grants) {
                                break 'pieces;
                            }
                        }
                        true
                    }
                }
                Piece::Digest { range, skip } => {
                    let Some(held) = self.held.get(range.command.slot()) else { break };
                    let Some(digest) = free.next() else { break };
                    let bytes = held.copy.as_deref().unwrap_or_else(|| held.data.bytes());
                    let (from, len) = (range.offset as usize, range.len as usize);
                    *digest = digest::crc32c(&bytes[from..from + len]).to_le_bytes();
                    let rest = &mut digest[skip..];
                    vectors.push(rest.as_mut_ptr(), rest.len(), false)
                }
            };
            if !room || vectors.room() == 0 {
                break;
            }
        }
        // SAFETY: the parts are those of the machine's outbox and of `digests`, and of the data of
        // commands, which is held until the controller has responded or, if the connection is lost,
        // until the socket is closed (`lose`).
        unsafe { socket::send(self.socket.as_fd(), &mut vectors) }
    }

    /// Takes all that has come. Commands that are over are added to the list.
    ///
    /// # Errors
    /// The connection is over.
    pub(crate) fn receive(&mut self, ended: &mut Vec<Ended>) -> io::Result<()> {
        loop {
            let step = match self.machine.next() {
                Next::Header { len } => self.header(len),
                Next::Data(range) => self.incoming(range),
                Next::Discard { len } => self.discard(len),
                Next::Blocked => return Ok(()),
                Next::Closed => return Err(self.closed()),
            };
            self.events(ended)?;
            match step {
                Ok(Step::On) => {}
                Ok(Step::Empty) => return Ok(()),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    fn events(&mut self, ended: &mut Vec<Ended>) -> io::Result<()> {
        while let Some(event) = self.machine.poll() {
            match event {
                Event::Ready(negotiated) => self.negotiated = Some(negotiated),
                Event::Completed { command, completion } => {
                    let Some(held) = self.held.get_mut(command.slot()) else { continue };
                    let Held { tag, data, copy } = std::mem::take(held);
                    let offered = self.grants && copy.is_none() && !matches!(data, Data::Bytes(_));
                    ended.push(Ended { tag, completion, data, offered });
                }
                Event::Terminated(why) => {
                    let status = why.status.map_or("unknown".to_owned(), |s| format!("{s:?}"));
                    let text = format!(
                        "the controller has ended the connection: {status} ({:#x})",
                        why.information
                    );
                    return Err(io::Error::other(text));
                }
            }
        }
        Ok(())
    }

    /// Why the machine has closed the connection.
    fn closed(&mut self) -> io::Error {
        let Some(violation) = self.machine.violation() else {
            return ErrorKind::UnexpectedEof.into();
        };
        // The controller is told, if it can be.
        let _gone = self.flush();
        io::Error::other(format!("the controller broke a rule of NVMe/TCP: {violation}"))
    }

    const fn buffered(&self) -> usize {
        self.end - self.start
    }

    fn header(&mut self, len: usize) -> io::Result<Step> {
        let mut is_short = false;
        if self.buffered() == 0 {
            let room = if self.dataless < DATALESS { len.max(AHEAD_OF_DATA) } else { AHEAD };
            (self.start, self.end) = (0, 0);
            self.end = some(socket::receive(self.socket.as_fd(), &mut self.ahead[..room]))?;
            is_short = self.end < room;
            self.dataless = self.dataless.saturating_add(1);
        }
        while self.buffered() > 0 && matches!(self.machine.next(), Next::Header { .. }) {
            // A broken rule is in the outbox, and `next` is Closed.
            let ready = &self.ahead[self.start..self.end];
            self.start += self.machine.header(ready).unwrap_or(ready.len());
        }
        // A connection that was closed is looked at once more.
        let is_over = matches!(self.machine.next(), Next::Closed);
        Ok(if is_short && self.buffered() == 0 && !is_over { Step::Empty } else { Step::On })
    }

    fn discard(&mut self, len: u32) -> io::Result<Step> {
        let most = len as usize;
        let n = if self.buffered() > 0 {
            let n = most.min(self.buffered());
            self.start += n;
            n
        } else {
            some(socket::skip(self.socket.as_fd(), most))?
        };
        // See `header`.
        let _violation = self.machine.data(u32::try_from(n).unwrap_or(len), None);
        Ok(Step::On)
    }

    fn incoming(&mut self, range: DataRange) -> io::Result<Step> {
        self.dataless = 0;
        let (from, len) = (range.offset as usize, range.len as usize);
        let Some(held) = self.held.get_mut(range.command.slot()) else {
            return Err(ErrorKind::InvalidData.into());
        };
        let (came, step) = if self.end > self.start {
            let len = len.min(self.end - self.start);
            held.data.copy_in(from, &self.ahead[self.start..self.start + len]);
            self.start += len;
            (len, Step::On)
        } else {
            let mut vectors = Vectors::new();
            let mut wanted = 0;
            for (at, len) in held.data.pieces(from, len) {
                // The last place is for what comes behind.
                if vectors.room() == 1 {
                    break;
                }
                vectors.push(at, len, false);
                wanted += len;
            }
            // What is behind a part of the data is more of it.
            let behind = if wanted == len { AHEAD_OF_DATA } else { 0 };
            if behind > 0 {
                vectors.push(self.ahead.as_mut_ptr(), behind, false);
            }
            // SAFETY: the parts are of the command's data, which is the queue's to write until its
            // completion, and of `ahead`.
            let came = some(unsafe { socket::receive_into(self.socket.as_fd(), &mut vectors) })?;
            (self.start, self.end) = (0, came.saturating_sub(wanted));
            let step = if came < wanted { Step::Empty } else { Step::On };
            (came.min(wanted), step)
        };
        // What was placed is what is checked.
        let crc = self.machine.data_digest().then(|| crc_of(&mut held.data, from, came));
        // See `header`.
        let _violation = self.machine.data(u32::try_from(came).unwrap_or(range.len), crc);
        Ok(step)
    }

    /// Ends the connection: what became of each command. All memory is the caller's again: closing
    /// the socket takes back what was granted, so the controller reads it no more.
    pub(crate) fn lose(mut self) -> Vec<Lost> {
        let fates = self.machine.lose();
        let _gone = self.socket.shutdown(Shutdown::Both);
        let Self { socket, held, .. } = self;
        drop(socket);
        let mut held: Vec<_> = held.into_iter().map(Some).collect();
        let lost = fates.into_iter().filter_map(|(command, fate)| {
            let Held { tag, data, .. } = held.get_mut(command.slot())?.take()?;
            Some(Lost { tag, fate, data })
        });
        lost.collect()
    }
}

/// The number of bytes that came, if there were some.
fn some(received: io::Result<usize>) -> io::Result<usize> {
    match received {
        Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
        other => other,
    }
}

/// CRC32C of a part of the data; of a copy where others may change it.
fn crc_of(data: &mut Data, from: usize, len: usize) -> u32 {
    match data.bytes().get(from..from + len) {
        Some(bytes) => digest::crc32c(bytes),
        None => digest::crc32c(&data.copy_out(from, len)),
    }
}
