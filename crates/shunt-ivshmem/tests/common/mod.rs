//! A server in a thread, and a client that speaks the protocol as QEMU does.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{Errno, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix,
    SocketFlags, SocketType, connect, recvmsg, socket_with,
};
use shunt_ivshmem::config::{Config, Limits, Start};
use shunt_ivshmem::notify::Notifier;
use shunt_ivshmem::report::Report;
use shunt_ivshmem::{Error, Server, control};
use tempfile::TempDir;

/// How long a test waits for what is due at once, on a machine with other things to do.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until `look` gives `wanted`.
pub fn settles<T: PartialEq + Debug>(what: &str, wanted: &T, mut look: impl FnMut() -> T) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let found = look();
        if found == *wanted {
            return;
        }
        assert!(Instant::now() < deadline, "{what}: {found:?} instead of {wanted:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A server that is stopped on drop.
pub struct Running {
    pub path: PathBuf,
    stop: OwnedFd,
    thread: Option<JoinHandle<Result<(), Error>>>,
}

/// A directory of one's own and the path of a server in it.
pub fn place() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ivshmem.sock");
    (dir, path)
}

impl Running {
    pub fn start(config: Config) -> Self {
        Self::with(config, Vec::new(), Notifier::default()).unwrap()
    }

    pub fn limited(path: &Path, vectors: u16, adjust: impl FnOnce(&mut Limits)) -> Self {
        let mut config = Config { vectors, ..Config::new(path.to_owned()) };
        adjust(&mut config.limits);
        Self::start(config)
    }

    pub fn take_over(path: &Path) -> Self {
        Self::start(Config { start: Start::TakeOver, ..Config::new(path.to_owned()) })
    }

    pub fn with(
        config: Config,
        passed: Vec<(String, OwnedFd)>,
        mut notifier: Notifier,
    ) -> Result<Self, Error> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let inner = stop.try_clone().unwrap();
        let path = config.socket.clone();
        let mut server = Server::start(config, passed, inner)?;
        let thread = std::thread::spawn(move || server.run(&mut notifier));
        Ok(Self { path, stop, thread: Some(thread) })
    }

    pub fn client(&self) -> Client {
        Client::connect(&self.path)
    }

    /// One that has been introduced to `others` peers.
    pub fn introduced(&self, others: usize) -> Client {
        let mut client = self.client();
        client.introduce();
        client.until("the others", |c| c.peers.len() == others);
        client
    }

    pub fn status(&self) -> Report {
        control::status(&self.path).unwrap()
    }

    pub fn until<T: PartialEq + Debug>(&self, wanted: &T, look: impl Fn(&Report) -> T) {
        settles("the status", wanted, || look(&self.status()));
    }

    /// Waits until these, who are all that there are, have been told everything.
    pub fn all_told(&self, clients: &mut [Client]) {
        self.until(&clients.len(), |report| report.peers.len());
        let mut heed = || assert!(clients.iter_mut().all(Client::catch_up));
        settles("what waits", &0, || {
            heed();
            self.status().peers.iter().map(|peer| peer.queued).sum::<usize>()
        });
        heed();
    }

    /// True when it has ended by itself.
    pub fn ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    pub fn stop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        rustix::io::write(&self.stop, &1_u64.to_ne_bytes()).unwrap();
        thread.join().unwrap().unwrap();
    }

    /// Waits for an end by itself.
    pub fn wait(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        while !self.ended() {
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::sleep(Duration::from_millis(2));
        }
        self.thread.take().unwrap().join().unwrap().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.stop();
        }
    }
}

/// A client, and what it has been told.
pub struct Client {
    pub socket: OwnedFd,
    pub id: i64,
    pub memory: Option<OwnedFd>,
    /// By peer: the eventfds of its vectors.
    pub peers: BTreeMap<i64, Vec<OwnedFd>>,
    pub own: Vec<OwnedFd>,
    /// Peers that it was told are gone.
    pub gone: Vec<i64>,
}

impl Client {
    pub fn connect(path: &Path) -> Self {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        let (peers, own, gone) = (BTreeMap::new(), Vec::new(), Vec::new());
        Self { socket, id: -1, memory: None, peers, own, gone }
    }

    /// The next message; `None` when the server has closed the connection.
    pub fn message(&self) -> Option<(i64, Option<OwnedFd>)> {
        let wait = Timespec { tv_sec: PATIENCE.as_secs().cast_signed(), tv_nsec: 0 };
        let ready = poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&wait));
        assert_eq!(ready, Ok(1), "nothing comes");
        self.next().unwrap()
    }

    /// The same, if it is there: `Err` when it is not.
    fn next(&self) -> Result<Option<(i64, Option<OwnedFd>)>, Errno> {
        let mut bytes = [0; 8];
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = RecvAncillaryBuffer::new(&mut room);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let got = recvmsg(&self.socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags);
        let got = match got {
            Err(Errno::CONNRESET) => return Ok(None),
            other => other?,
        };
        if got.bytes == 0 {
            return Ok(None);
        }
        assert_eq!(got.bytes, 8);
        let mut fds = Vec::new();
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = part {
                fds.extend(rights);
            }
        }
        assert!(fds.len() <= 1, "a message comes with {} descriptors", fds.len());
        Ok(Some((i64::from_le_bytes(bytes), fds.pop())))
    }

    /// The first three messages.
    pub fn introduce(&mut self) {
        let plain = || match self.message() {
            Some((number, None)) => number,
            other => panic!("{other:?}"),
        };
        assert_eq!(plain(), 0, "the version");
        self.id = plain();
        assert!((0..=65535).contains(&self.id));
        match self.message() {
            Some((-1, Some(memory))) => self.memory = Some(memory),
            other => panic!("{other:?} instead of the memory"),
        }
    }

    /// Heeds one message.
    pub fn heed(&mut self, (number, fd): (i64, Option<OwnedFd>)) {
        assert!((0..=65535).contains(&number), "{number}");
        match fd {
            Some(bell) if number == self.id => self.own.push(bell),
            Some(bell) => {
                // Nobody is told of others after it has got its own: their bells come first.
                self.peers.entry(number).or_default().push(bell);
            }
            None => {
                assert!(self.peers.remove(&number).is_some(), "{number} was not there");
                self.gone.push(number);
            }
        }
    }

    /// Heeds messages until it is as `wanted`.
    pub fn until(&mut self, what: &str, wanted: impl Fn(&Self) -> bool) {
        while !wanted(self) {
            let message = self.message();
            self.heed(message.unwrap_or_else(|| panic!("the server has hung up before {what}")));
        }
    }

    /// Heeds what is there; false when the server has hung up.
    pub fn catch_up(&mut self) -> bool {
        loop {
            match self.next() {
                Ok(Some(message)) => self.heed(message),
                Ok(None) => return false,
                Err(_) => return true,
            }
        }
    }

    /// Waits until the server has hung up, without heeding anything.
    pub fn hung_up(&self) {
        while self.message().is_some() {}
    }

    pub fn send(&self, bytes: &[u8]) -> rustix::io::Result<usize> {
        rustix::net::send(&self.socket, bytes, rustix::net::SendFlags::NOSIGNAL)
    }

    /// Rings a vector of a peer.
    pub fn ring(&self, peer: i64, vector: usize) {
        rustix::io::write(&self.peers[&peer][vector], &1_u64.to_ne_bytes()).unwrap();
    }

    /// How often own vectors have been rung since the last look.
    pub fn rings(&self) -> Vec<u64> {
        let look = |bell: &OwnedFd| {
            let mut count = [0; 8];
            match rustix::io::read(bell, &mut count[..]) {
                Ok(8) => u64::from_ne_bytes(count),
                Err(Errno::AGAIN) => 0,
                other => panic!("{other:?}"),
            }
        };
        self.own.iter().map(look).collect()
    }

    pub fn memory(&self) -> impl AsFd + '_ {
        self.memory.as_ref().unwrap().as_fd()
    }
}
