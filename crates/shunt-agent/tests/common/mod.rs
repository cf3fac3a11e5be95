//! An agent in a thread, and clients that speak to it as libraries and tools do.

#![allow(dead_code, reason = "each test program uses a part of it")]

pub mod open_metrics;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::thread::{Gid, Uid};
use serde_json::Value;
use shunt_agent::socket::{Access, Claim};
use shunt_agent::{Config, Limits, Server};
use shunt_shm::memfd;
use shunt_sys::fds::Fds;
use shunt_sys::run_dir::{Env, RunDir};
use shunt_sys::seqpacket;
use shunt_wire::PROTOCOL_VERSION;
use shunt_wire::agent::{
    EndpointId, ListenerId, MAX_MESSAGE, RegionId, Reply, Request, decode, encode,
};
use shunt_wire::reason::Reason;

pub const PATIENCE: Duration = Duration::from_secs(5);

/// Runs `body` as another user: the kernel keeps credentials per thread.
pub fn as_user<T: Send>(user: u32, body: impl FnOnce() -> T + Send) -> T {
    let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            rustix::thread::set_thread_groups(&[]).unwrap();
            rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            body()
        });
        other.join().unwrap()
    })
}

pub fn run_dir(path: &Path) -> RunDir {
    let env = Env { run_dir: Some(path.as_os_str().as_bytes()), ..Env::default() };
    RunDir::locate(env, rustix::process::geteuid().as_raw()).unwrap()
}

pub fn new_eventfd() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

/// Memory as `shunt_alloc` makes it.
pub fn registered() -> OwnedFd {
    memfd::create_published("test", 4096).unwrap().1
}

/// An agent that is stopped on drop.
pub struct Agent {
    pub dir: RunDir,
    temp: Option<tempfile::TempDir>,
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Agent {
    pub fn start() -> Self {
        Self::with(|_| {})
    }

    pub fn with(adjust: impl FnOnce(&mut Config)) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let mut agent = Self::at(&temp.path().join("run"), adjust);
        agent.temp = Some(temp);
        agent
    }

    pub fn limited(adjust: impl FnOnce(&mut Limits)) -> Self {
        Self::with(|config| adjust(&mut config.limits))
    }

    pub fn at(path: &Path, adjust: impl FnOnce(&mut Config)) -> Self {
        let dir = run_dir(path);
        let stop = new_eventfd();
        let inner = stop.try_clone().unwrap();
        let mut config = Config::new(dir);
        adjust(&mut config);
        let thread = std::thread::spawn(move || {
            let access = if config.host.is_some() { Access::All } else { Access::User };
            let claim = Claim::take(dir, access, Duration::ZERO).unwrap();
            Server::new(config, claim, inner).unwrap().run().unwrap();
        });
        let agent = Self { dir, temp: None, stop, thread: Some(thread) };
        drop(agent.client());
        agent
    }

    /// A connection that has said nothing yet.
    pub fn client(&self) -> Client {
        let address = self.dir.socket().unwrap();
        let deadline = Instant::now() + PATIENCE;
        loop {
            match seqpacket::connect(&address) {
                Ok(socket) => return Client { socket, id: 0 },
                Err(e) => assert!(Instant::now() < deadline, "no agent: {e}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn tool(&self) -> Client {
        let client = self.client();
        let request = Request::Tool { version: PROTOCOL_VERSION };
        assert_eq!(client.call(&request, &[]).0, Reply::Done);
        client
    }

    pub fn library(&self) -> Client {
        self.library_of("program", 0)
    }

    pub fn library_of(&self, program: &str, run: u64) -> Client {
        self.client().introduced(program, run)
    }

    pub fn status(&self) -> Value {
        self.tool().report(&Request::Status)
    }

    /// Waits until the status is as `wanted`.
    pub fn until(&self, what: &str, wanted: impl Fn(&Value) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let status = self.status();
            if wanted(&status) {
                return;
            }
            assert!(Instant::now() < deadline, "{what}: {status}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// True when it has ended by itself.
    pub fn ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    pub fn stop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        rustix::io::write(&self.stop, &1_u64.to_ne_bytes()).unwrap();
        thread.join().unwrap();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.stop();
        }
    }
}

pub struct Client {
    pub socket: OwnedFd,
    pub id: EndpointId,
}

impl Client {
    /// As a library.
    pub fn introduced(mut self, program: &str, run: u64) -> Self {
        let bell = new_eventfd();
        let hello = Request::Hello { version: PROTOCOL_VERSION, program, run };
        let (reply, fds) = self.call(&hello, &[bell.as_fd()]);
        let Reply::Welcome { endpoint, .. } = reply else { panic!("{reply:?}") };
        assert_eq!(fds.len(), 3);
        self.id = endpoint;
        self
    }

    pub fn send_raw(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> rustix::io::Result<()> {
        seqpacket::send(&self.socket, bytes, fds, PATIENCE)
    }

    /// The next reply; `None` when the agent has closed the connection.
    pub fn receive(&self) -> Option<(Reply, Vec<OwnedFd>)> {
        let (mut buf, mut fds) = ([0; MAX_MESSAGE], Fds::new());
        match seqpacket::recv(&self.socket, &mut buf, &mut fds, PATIENCE) {
            Ok(0) | Err(rustix::io::Errno::CONNRESET) => None,
            Ok(len) => {
                let fds = std::iter::from_fn(|| fds.take()).collect();
                Some((decode(&buf[..len]).unwrap(), fds))
            }
            Err(e) => panic!("no reply: {e}"),
        }
    }

    /// True when there is a reply to be received.
    pub fn is_answered(&self) -> bool {
        let (mut buf, mut fds) = ([0; MAX_MESSAGE], Fds::new());
        seqpacket::recv(&self.socket, &mut buf, &mut fds, Duration::ZERO).is_ok()
    }

    pub fn call(&self, request: &Request<'_>, fds: &[BorrowedFd<'_>]) -> (Reply, Vec<OwnedFd>) {
        let mut buf = [0; MAX_MESSAGE];
        self.send_raw(encode(request, &mut buf).unwrap(), fds).unwrap();
        self.receive().expect("the agent hung up")
    }

    pub fn refused(&self, request: &Request<'_>, fds: &[BorrowedFd<'_>]) -> Reason {
        match self.call(request, fds) {
            (Reply::Refused { reason }, fds) if fds.is_empty() => reason,
            other => panic!("not refused: {other:?}"),
        }
    }

    /// Sends what must cost this client its connection.
    pub fn dropped_for(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        self.send_raw(bytes, fds).unwrap();
        assert!(self.receive().is_none(), "still connected after {bytes:?}");
    }

    pub fn listen(&self, socket: impl AsFd) -> (ListenerId, OwnedFd) {
        match self.call(&Request::Listen, &[socket.as_fd()]) {
            (Reply::Listening { listener }, mut fds) => (listener, fds.pop().unwrap()),
            other => panic!("{other:?}"),
        }
    }

    /// Region, table, memory.
    pub fn connect(&self, listener: ListenerId) -> (RegionId, OwnedFd, OwnedFd) {
        match self.call(&Request::Connect { listener }, &[]) {
            (Reply::Linked { region }, mut fds) => {
                let memory = fds.pop().unwrap();
                (region, fds.pop().unwrap(), memory)
            }
            other => panic!("{other:?}"),
        }
    }

    pub fn report(&self, request: &Request<'_>) -> Value {
        let (reply, fds) = self.call(request, &[]);
        let Reply::Report { len } = reply else { panic!("{reply:?}") };
        let mut text = vec![0; len as usize];
        assert_eq!(rustix::io::pread(&fds[0], &mut text, 0), Ok(text.len()));
        serde_json::from_slice(&text).unwrap()
    }
}
