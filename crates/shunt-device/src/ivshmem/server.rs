//! This machine as a peer of the ivshmem server: the host, or a container.
//!
//! The protocol is that of QEMU's `docs/specs/ivshmem-spec.rst`: messages of 8 bytes, most with a descriptor. The server
//! is trusted with the memory (it made it), and with nothing else: what breaks the protocol ends the conversation.

use std::collections::HashMap;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix,
    SocketFlags, SocketType, connect, recvmsg, socket_with,
};

use shunt_shm::doorbell;

use super::{Heard, Means, Transport};

/// Version of the protocol.
const VERSION: i64 = 0;
/// The message with which the memory comes.
const MEMORY: i64 = -1;
/// How long to leave a server alone that has too many to accept.
const BACKLOG: Duration = Duration::from_millis(10);
/// What marks the socket in the ear; other numbers are own vectors.
const SOCKET: u64 = u64::MAX;
/// Vectors of one peer that are kept.
const MOST_VECTORS: usize = 64;
/// Messages that are taken at once.
const BATCH: usize = 4096;

/// A conversation with the server.
#[derive(Debug)]
pub struct Peer {
    socket: OwnedFd,
    id: u16,
    memory: Arc<OwnedFd>,
    len: usize,
    own: Vec<OwnedFd>,
    peers: HashMap<u16, Vec<OwnedFd>>,
    ear: OwnedFd,
    over: bool,
}

fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the ivshmem server {what}"))
}

impl Peer {
    /// Connects to the server's socket at `path`, and waits for so long until it has introduced this peer.
    ///
    /// # Errors
    /// Those of connect(2); `InvalidData` for a server that breaks the protocol, `TimedOut` for a silent one.
    pub fn connect(path: &Path, patience: Duration) -> io::Result<Self> {
        // Without waiting for one who does not accept.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let (address, deadline) = (SocketAddrUnix::new(path)?, Instant::now() + patience);
        while let Err(e) = connect(&socket, &address) {
            if e != Errno::AGAIN || Instant::now() >= deadline {
                return Err(e.into());
            }
            std::thread::sleep(BACKLOG);
        }
        let message = || wait_for(&socket, deadline);
        if message()?.0 != VERSION {
            return Err(broken("speaks another version of the protocol"));
        }
        let (id, _) = message()?;
        let id = u16::try_from(id).map_err(|_| broken("gives an ID that cannot be"))?;
        let (MEMORY, Some(memory)) = message()? else {
            return Err(broken("does not send the memory"));
        };
        // Who could cut a memfd short could end its users. A file of hugetlbfs has no seals.
        if fcntl_get_seals(&memory).is_ok_and(|seals| !seals.contains(SealFlags::SHRINK)) {
            return Err(broken("shares memory that could be cut short"));
        }
        let len = usize::try_from(fstat(&memory)?.st_size).unwrap_or(0);
        let ear = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(SOCKET);
        epoll::add(&ear, &socket, data, epoll::EventFlags::IN)?;
        let (own, peers) = (Vec::new(), HashMap::new());
        let mut peer =
            Self { socket, id, memory: Arc::new(memory), len, own, peers, ear, over: false };
        // The own vectors come last, after those of all who are there.
        while peer.own.is_empty() {
            let message = wait_for(&peer.socket, deadline)?;
            peer.heed(message, &mut Heard::default())?;
        }
        Ok(peer)
    }

    /// Hangs up as a process does that is killed: the server hears of it when what this returns is dropped.
    pub fn abandon(&mut self) -> impl Sized + use<> {
        self.over = true;
        let _ = epoll::delete(&self.ear, &self.socket);
        let closed =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        closed.map(|closed| std::mem::replace(&mut self.socket, closed))
    }

    fn heed(&mut self, (number, fd): (i64, Option<OwnedFd>), heard: &mut Heard) -> io::Result<()> {
        let id = u16::try_from(number).map_err(|_| broken("names a peer that cannot be"))?;
        match fd {
            Some(bell) if id == self.id && self.own.len() < MOST_VECTORS => {
                let vector = epoll::EventData::new_u64(self.own.len() as u64);
                // Never drained: whoever has it could make a read wait.
                let news = epoll::EventFlags::IN | epoll::EventFlags::ET;
                epoll::add(&self.ear, &bell, vector, news)?;
                self.own.push(bell);
            }
            Some(bell) => {
                let bells = self.peers.entry(id).or_default();
                if bells.len() < MOST_VECTORS {
                    bells.push(bell);
                }
            }
            None => {
                self.peers.remove(&id);
                heard.left.push(id);
            }
        }
        Ok(())
    }

    fn take_messages(&mut self, heard: &mut Heard) -> io::Result<()> {
        for _ in 0..BATCH {
            match next(&self.socket) {
                Ok(Some(message)) => self.heed(message, heard)?,
                Ok(None) => return Err(broken("has gone")),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

impl Transport for Peer {
    fn memory(&self) -> &Arc<OwnedFd> {
        &self.memory
    }

    fn len(&self) -> usize {
        self.len
    }

    fn peer(&self) -> Option<u16> {
        Some(self.id)
    }

    fn vectors(&self) -> usize {
        self.own.len().max(1)
    }

    fn ring(&self, peer: u16, vector: usize) {
        let bells = if peer == self.id { Some(&self.own) } else { self.peers.get(&peer) };
        let Some(bells) = bells.filter(|bells| !bells.is_empty()) else { return };
        if let Some(bell) = bells.get(vector % bells.len()) {
            doorbell::interrupt(bell);
        }
    }

    fn means(&self, peer: u16) -> io::Result<Means> {
        let bells = if peer == self.id { Some(&self.own) } else { self.peers.get(&peer) };
        let bells = bells.into_iter().flatten().map(OwnedFd::try_clone);
        bells.collect::<io::Result<_>>().map(Means::Eventfds)
    }

    fn ear(&self) -> Option<BorrowedFd<'_>> {
        Some(self.ear.as_fd())
    }

    fn hear(&mut self) -> Heard {
        let mut heard = Heard::default();
        let mut room = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }; 32];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let count = epoll::wait(&self.ear, &mut room[..], Some(&now)).unwrap_or(0);
        for event in room.iter().take(count) {
            match event.data.u64() {
                SOCKET if !self.over => {
                    if self.take_messages(&mut heard).is_err() {
                        self.over = true;
                        let _ = epoll::delete(&self.ear, &self.socket);
                    }
                }
                SOCKET => {}
                _ => heard.rung = true,
            }
        }
        heard.over = self.over;
        heard
    }
}

fn wait_for(socket: &OwnedFd, deadline: Instant) -> io::Result<(i64, Option<OwnedFd>)> {
    let left = deadline.saturating_duration_since(Instant::now());
    let left = Timespec {
        tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: left.subsec_nanos().into(),
    };
    if poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&left))? == 0 {
        return Err(io::Error::new(io::ErrorKind::TimedOut, "the ivshmem server is silent"));
    }
    next(socket)?.ok_or_else(|| broken("has hung up"))
}

/// The next message, if it is there; `None` at the end of the conversation.
fn next(socket: &OwnedFd) -> io::Result<Option<(i64, Option<OwnedFd>)>> {
    let mut bytes = [0; 8];
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut room);
    // The server writes whole messages, and 8 bytes are not torn on a UNIX socket.
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let got = match recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
        Err(Errno::CONNRESET) => return Ok(None),
        other => other?,
    };
    match got.bytes {
        0 => return Ok(None),
        8 => {}
        _ => return Err(broken("sends a part of a message")),
    }
    let mut fd = None;
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = part {
            fd = rights.last();
        }
    }
    Ok(Some((i64::from_le_bytes(bytes), fd)))
}
