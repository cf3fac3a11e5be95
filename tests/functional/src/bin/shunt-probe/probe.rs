//! What every check needs.

use std::fmt::Display;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use shunt_functional::sys::{self, ListenOptions};

/// Time for a peer's action to take effect before it is looked at.
const SETTLE: Duration = Duration::from_millis(15);
/// Longest wait for what another process does, on however busy a machine.
const PATIENCE: Duration = Duration::from_secs(10);

/// Prints the transcript and makes connections.
pub struct Probe {
    group: &'static str,
    /// Connections have carried bytes before they are looked at.
    pub warm: bool,
}

/// The two ends of a connection within this process.
pub struct Pair {
    /// The connecting end.
    pub client: OwnedFd,
    /// The accepted end.
    pub server: OwnedFd,
}

impl Pair {
    /// The connecting end's number.
    pub fn c(&self) -> RawFd {
        self.client.as_raw_fd()
    }

    /// The accepted end's number.
    pub fn s(&self) -> RawFd {
        self.server.as_raw_fd()
    }
}

impl Probe {
    /// For one group of checks.
    pub fn new(group: &'static str, warm: bool) -> Self {
        Self { group, warm }
    }

    /// One line of the transcript.
    pub fn say(&self, what: &str, value: impl Display) {
        let state = if self.warm { "warm" } else { "fresh" };
        println!("{} ({state}): {what}: {value}", self.group);
    }

    /// One line on what a call returned.
    pub fn result<T: Display>(&self, what: &str, result: io::Result<T>) {
        self.say(what, show(result));
    }

    /// A connection over IPv4 loopback.
    pub fn pair(&self) -> io::Result<Pair> {
        let listener = listener()?;
        self.pair_with(&listener)
    }

    /// A connection through this listener.
    pub fn pair_with(&self, listener: &OwnedFd) -> io::Result<Pair> {
        let client = connect_to(listener)?;
        let (server, _) = sys::accept(listener.as_raw_fd(), 0)?;
        self.ready(Pair { client, server })
    }

    /// The connection in the state that the checks want.
    pub fn ready(&self, pair: Pair) -> io::Result<Pair> {
        // Nagle's algorithm would make it a matter of time what has arrived.
        for fd in [pair.c(), pair.s()] {
            sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)?;
        }
        if self.warm {
            warm_up(pair.c(), pair.s())?;
        }
        Ok(pair)
    }
}

/// Carries a few messages both ways, and leaves nothing behind.
pub fn warm_up(a: RawFd, b: RawFd) -> io::Result<()> {
    let mut buffer = [0; 100];
    for _ in 0..4 {
        for (from, to) in [(a, b), (b, a)] {
            sys::write(from, &[7; 100])?;
            sys::recv(to, &mut buffer, libc::MSG_WAITALL, false)?;
        }
    }
    Ok(())
}

/// A listener on a port that the kernel chooses.
pub fn listener() -> io::Result<OwnedFd> {
    sys::listen(loopback(0), ListenOptions::default())
}

/// IPv4 loopback.
pub fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// The address of a socket.
pub fn address(fd: &OwnedFd) -> io::Result<SocketAddr> {
    sys::local_addr(fd.as_raw_fd())?.get().ok_or_else(|| io::Error::other("no address"))
}

/// A blocking connection to a listener of this process.
pub fn connect_to(listener: &OwnedFd) -> io::Result<OwnedFd> {
    let client = sys::socket(libc::AF_INET, libc::SOCK_STREAM)?;
    sys::connect(client.as_raw_fd(), address(listener)?)?;
    Ok(client)
}

/// A thread of this process that is to go to sleep in a call.
pub struct Sleeper(mpsc::Receiver<libc::pid_t>);

/// What the thread tells that it is about to make the call with, and who waits for its sleep.
pub fn sleeper() -> (impl FnOnce() + Send, Sleeper) {
    let (told, tid) = mpsc::channel();
    let begins = move || {
        // SAFETY: no arguments.
        let _ = told.send(unsafe { libc::gettid() });
    };
    (begins, Sleeper(tid))
}

impl Sleeper {
    /// Waits until it sleeps and goes on doing so, on however busy a machine. Which thread it is.
    pub fn sleeps(self) -> io::Result<libc::pid_t> {
        const LOOKS: u32 = 3;
        let tid = self.0.recv_timeout(PATIENCE).map_err(io::Error::other)?;
        let started = Instant::now();
        let (mut before, mut same) = (None, 0);
        while same < LOOKS {
            if started.elapsed() > PATIENCE {
                return Err(io::Error::other("the thread does not come to rest"));
            }
            let now = asleep(tid)?;
            same = if now.is_some() && now == before { same + 1 } else { 0 };
            before = now;
            thread::sleep(SETTLE * 2);
        }
        Ok(tid)
    }
}

/// How often a thread of this process that sleeps has gone to sleep.
fn asleep(tid: libc::pid_t) -> io::Result<Option<String>> {
    let status = fs::read_to_string(format!("/proc/self/task/{tid}/status"))?;
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let is_asleep = field("State:").is_some_and(|state| state.trim().starts_with('S'));
    Ok(field("voluntary_ctxt_switches:").filter(|_| is_asleep).map(str::to_owned))
}

/// Lets the peer's last action arrive.
pub fn settle() {
    thread::sleep(SETTLE);
}

/// The value, or the error's name.
pub fn show<T: Display>(result: io::Result<T>) -> String {
    match result {
        Ok(value) => value.to_string(),
        Err(e) => sys::errno_name(&e),
    }
}

/// As [`show`], for calls that return nothing.
pub fn done(result: io::Result<()>) -> String {
    show(result.map(|()| "done"))
}

/// Receives without waiting.
pub fn try_recv(fd: RawFd, len: usize) -> io::Result<usize> {
    sys::recv(fd, &mut vec![0; len], libc::MSG_DONTWAIT, false)
}

/// Receives, as [`try_recv`] does, what another process is about to send or to end.
pub fn recv_soon(fd: RawFd, len: usize) -> io::Result<usize> {
    let started = Instant::now();
    loop {
        match try_recv(fd, len) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && started.elapsed() < PATIENCE => {
                settle();
            }
            result => return result,
        }
    }
}

/// Sends without waiting and without SIGPIPE.
pub fn try_send(fd: RawFd, bytes: &[u8]) -> io::Result<usize> {
    sys::send(fd, bytes, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
}

/// Sends until there is no room; the number of bytes.
pub fn fill(fd: RawFd) -> io::Result<usize> {
    let block = vec![9; 64 << 10];
    let mut sent = 0;
    let mut full = 0;
    // The kernel makes room while the receiver's buffer still grows; and a ring that stays full is left for
    // the kernel's buffers.
    while full < 6 {
        match try_send(fd, &block) {
            Ok(n) => (sent, full) = (sent + n, 0),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                full += 1;
                thread::sleep(Duration::from_millis(10));
            }
            Err(e) => return Err(e),
        }
    }
    Ok(sent)
}

/// Receives until there is nothing; the number of bytes.
pub fn drain(fd: RawFd) -> io::Result<usize> {
    let mut got = 0;
    let mut empty = 0;
    while empty < 5 {
        match try_recv(fd, 256 << 10) {
            Ok(0) => break,
            Ok(n) => (got, empty) = (got + n, 0),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                empty += 1;
                thread::sleep(Duration::from_millis(2));
            }
            Err(e) => return Err(e),
        }
    }
    Ok(got)
}
