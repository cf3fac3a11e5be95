//! Messages over a stream with descriptors: a header that says how many bytes follow.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::cmsg_space;
use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Most descriptors of any message: those that `Framing` allows are fewer.
const MAX_FDS: usize = 128;

/// How messages of a protocol are told apart.
#[derive(Clone, Copy, Debug)]
pub struct Framing {
    /// Bytes of a header.
    pub header: usize,
    /// Where a header has the number of bytes, of 32 bits.
    pub size_at: usize,
    /// That counts the header, too.
    pub counts_header: bool,
    /// Most bytes behind a header.
    pub most: usize,
    /// Most descriptors.
    pub fds: usize,
}

/// A message.
#[derive(Debug, Default)]
pub struct Message {
    /// Its bytes, with the header.
    pub bytes: Vec<u8>,
    /// Its descriptors.
    pub fds: Vec<OwnedFd>,
}

impl Message {
    /// The next one; none where the other end has gone before it.
    ///
    /// # Errors
    /// It breaks a rule of the framing, or those of recvmsg(2).
    pub fn receive(from: &UnixStream, framing: &Framing) -> io::Result<Option<Self>> {
        let mut message = Self::default();
        if !message.fill(from, framing.header, framing.fds)? {
            return Ok(None);
        }
        let size = message.word(framing.size_at) as usize;
        let header = if framing.counts_header { framing.header } else { 0 };
        match size.checked_sub(header) {
            Some(len) if len <= framing.most => message.fill(from, len, framing.fds)?,
            _ => return Err(io::Error::other(format!("a message of {size} bytes"))),
        };
        Ok(Some(message))
    }

    /// Receives so many bytes more, and no byte of the next message: its descriptors would come with these. False where there
    /// are none, and there were none before.
    fn fill(&mut self, from: &UnixStream, more: usize, fds: usize) -> io::Result<bool> {
        let mut at = self.bytes.len();
        self.bytes.resize(at + more, 0);
        while let Some(room) = self.bytes.get_mut(at..).filter(|room| !room.is_empty()) {
            let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_FDS))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut room = [IoSliceMut::new(room)];
            let flags = RecvFlags::CMSG_CLOEXEC;
            let came = retry_on_intr(|| recvmsg(from, &mut room, &mut control, flags))?;
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(fds) = message {
                    self.fds.extend(fds);
                }
            }
            if came.flags.contains(ReturnFlags::CTRUNC) || self.fds.len() > fds {
                return Err(io::Error::other("a message with too many descriptors"));
            }
            if came.bytes == 0 {
                return if at == 0 { Ok(false) } else { Err(ErrorKind::UnexpectedEof.into()) };
            }
            at += came.bytes;
        }
        Ok(true)
    }

    /// Sends it as it is.
    ///
    /// # Errors
    /// Those of sendmsg(2).
    pub fn send(&self, mut to: &UnixStream) -> io::Result<()> {
        let fds: Vec<_> = self.fds.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&fds)) {
            return Err(ErrorKind::InvalidData.into());
        }
        let bytes = [IoSlice::new(&self.bytes)];
        let sent = retry_on_intr(|| sendmsg(to, &bytes, &mut control, SendFlags::NOSIGNAL))?;
        to.write_all(&self.bytes[sent..])
    }

    /// A field of 32 bits; zero where there is none.
    #[must_use]
    pub fn word(&self, at: usize) -> u32 {
        let bytes = self.bytes.get(at..).and_then(|rest| rest.first_chunk());
        bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
    }
}
