//! What another thread, a relative or a handler does between two steps of a call, which a point holds.
//!
//! Both ends of each connection are in this process.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use shunt_functional::sys::{self, Forked, ListenOptions, points};

use crate::watch;

pub const PATIENCE: Duration = Duration::from_secs(10);

/// Connections of this process to itself.
pub struct Ends {
    listener: OwnedFd,
    at: SocketAddr,
}

impl Ends {
    pub fn new() -> io::Result<Self> {
        let listener = sys::listen(([127, 0, 0, 1], 0).into(), ListenOptions::default())?;
        let at = sys::local_addr(listener.as_raw_fd())?.get();
        Ok(Self { listener, at: at.ok_or(ErrorKind::AddrNotAvailable)? })
    }

    /// A connection that is in the ring in both directions: the client's end and the server's.
    pub fn pair(&self) -> io::Result<(OwnedFd, OwnedFd)> {
        let (client, server) = self.fresh()?;
        exchange(&client, &server)?;
        Ok((client, server))
    }

    /// One that nobody has used yet.
    pub fn fresh(&self) -> io::Result<(OwnedFd, OwnedFd)> {
        Ok((self.client()?, self.accept()?))
    }

    /// The client's end of one that is not accepted yet.
    pub fn client(&self) -> io::Result<OwnedFd> {
        let client = sys::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC)?;
        sys::connect(client.as_raw_fd(), self.at)?;
        Ok(client)
    }

    /// The server's end of the next one.
    pub fn accept(&self) -> io::Result<OwnedFd> {
        Ok(sys::accept(self.listener.as_raw_fd(), libc::SOCK_CLOEXEC)?.0)
    }
}

/// Messages to and fro, so that both ends are in the ring.
pub fn exchange(client: &OwnedFd, server: &OwnedFd) -> io::Result<()> {
    for _ in 0..4 {
        for (from, to) in [(client, server), (server, client)] {
            send(from.as_raw_fd(), b"to and fro")?;
            expect(to.as_raw_fd(), b"to and fro")?;
        }
    }
    Ok(())
}

pub fn send(fd: RawFd, bytes: &[u8]) -> io::Result<()> {
    match sys::send(fd, bytes, libc::MSG_NOSIGNAL)? {
        n if n == bytes.len() => Ok(()),
        n => Err(io::Error::other(format!("{n} of {} bytes are sent", bytes.len()))),
    }
}

/// The next bytes are these.
pub fn expect(fd: RawFd, bytes: &[u8]) -> io::Result<()> {
    let mut got = vec![0; bytes.len()];
    let n = sys::recv(fd, &mut got, libc::MSG_WAITALL, false)?;
    if got[..n] == *bytes {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&got[..n]);
    Err(io::Error::other(format!(
        "{n} bytes {text:?} in place of {:?}",
        String::from_utf8_lossy(bytes)
    )))
}

/// Nothing has come, and no end.
pub fn expect_nothing(fd: RawFd) -> io::Result<()> {
    let mut got = [0; 100];
    match sys::recv(fd, &mut got, libc::MSG_DONTWAIT, false) {
        Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(()),
        Err(e) => Err(e),
        Ok(n) => {
            Err(io::Error::other(format!("{:?} has come", String::from_utf8_lossy(&got[..n]))))
        }
    }
}

/// A point at which the next thread stops that comes there.
pub struct Held {
    path: PathBuf,
    point: String,
}

impl Held {
    pub fn at(point: &str) -> io::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::current_dir()?.join(format!("held.{}.{n}", std::process::id()));
        if !points::plan(&format!("{point}=hold:{}@1", path.display())) {
            return Err(io::Error::other("the library has no points"));
        }
        Ok(Self { path, point: point.to_owned() })
    }

    /// Waits until a thread is there.
    pub fn wait(&self) -> io::Result<()> {
        let there = PathBuf::from(format!("{}.there", self.path.display()));
        let until = Instant::now() + PATIENCE;
        while !Path::exists(&there) {
            if Instant::now() > until {
                return Err(io::Error::other(format!("no thread comes to {}", self.point)));
            }
            thread::sleep(Duration::from_micros(300));
        }
        Ok(())
    }

    /// It goes on.
    pub fn go_on(&self) -> io::Result<()> {
        std::fs::write(&self.path, "")
    }
}

/// A call of another thread is held at `point` while the number of its descriptor becomes another
/// connection's: it stays with the old one, and moves no byte of the new one.
fn number_is_used_again(ends: &Ends, name: &str, point: &str) -> io::Result<()> {
    watch::begin(&format!("{name} held at {point}"));
    let (old, old_peer) = ends.pair()?;
    let (new, new_peer) = ends.pair()?;
    let fd = old.as_raw_fd();
    let file = sys::memfd(c"shunt-points")?;
    sys::pwrite_all(file.as_raw_fd(), &[b'f'; 200_000])?;
    let (pipe_out, pipe_in) = sys::pipe()?;
    if name == "splice in" {
        // So that there is something to look at.
        send(old_peer.as_raw_fd(), b"old")?;
    }
    if name == "splice out" {
        sys::write(pipe_in.as_raw_fd(), b"piped")?;
    }
    let held = Held::at(point)?;
    let call = || -> io::Result<(usize, Vec<u8>)> {
        let mut buffer = vec![0; 100];
        let n = match name {
            "recv" => sys::recv(fd, &mut buffer, 0, false),
            "send" => sys::send(fd, b"of the old one", libc::MSG_NOSIGNAL),
            "full send" => sys::send(fd, &vec![b's'; 8 << 20], libc::MSG_NOSIGNAL),
            "sendfile" => sys::sendfile(fd, file.as_raw_fd(), 200_000),
            "splice in" => sys::splice(fd, pipe_in.as_raw_fd(), 100, 0),
            "splice out" => sys::splice(pipe_out.as_raw_fd(), fd, 5, 0),
            "poll" => {
                let mut fds = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
                let found = sys::poll(&mut fds, Some(PATIENCE));
                found.map(|_| usize::from(fds[0].revents.cast_unsigned()))
            }
            "select" => {
                let mut fds = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
                sys::select(&mut fds, Some(PATIENCE))
            }
            _ => Err(io::Error::other("no such call")),
        }?;
        buffer.truncate(n);
        Ok((n, buffer))
    };
    thread::scope(|scope| {
        let called = scope.spawn(call);
        held.wait()?;
        // Points are passed by this thread as well.
        sys::dup2(new.as_raw_fd(), &old)?;
        send(new_peer.as_raw_fd(), b"of the new one")?;
        held.go_on()?;
        // A call that waits for the old connection hears of its end, or of its bytes.
        match sys::send(old_peer.as_raw_fd(), b"of the old one", libc::MSG_NOSIGNAL) {
            Ok(_) => {}
            Err(e) if matches!(e.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {}
            Err(e) => return Err(e),
        }
        sys::shutdown(old_peer.as_raw_fd(), libc::SHUT_WR)
            .or_else(|e| if e.kind() == ErrorKind::NotConnected { Ok(()) } else { Err(e) })?;
        let deadline = Instant::now() + PATIENCE;
        let mut drained = vec![0; 1 << 20];
        while !called.is_finished() && Instant::now() < deadline {
            // The sender of more than fits goes on to the old peer.
            let got = sys::recv(old_peer.as_raw_fd(), &mut drained, libc::MSG_DONTWAIT, false);
            if got.is_err() {
                thread::sleep(Duration::from_micros(200));
            }
        }
        let result = called.join().map_err(|_| io::Error::other("a thread is gone"))?;
        if let Ok((_, bytes)) = &result
            && name == "recv"
            && !b"of the old one".starts_with(bytes)
        {
            return Err(io::Error::other(format!("{bytes:?} were received")));
        }
        // The new connection has its own bytes, all of them, and no others.
        expect(fd, b"of the new one")?;
        expect_nothing(fd)?;
        expect_nothing(new_peer.as_raw_fd())?;
        send(fd, b"back")?;
        expect(new_peer.as_raw_fd(), b"back")?;
        println!(
            "{name} held at {point}: {}",
            match &result {
                Ok((n, _)) => n.to_string(),
                Err(e) => sys::errno_name(e),
            }
        );
        Ok(())
    })
}

/// A client's first call is held at `point` of the handshake while its connection is closed, and the next one comes to be in the
/// same place: that one takes none of its steps.
fn place_is_used_again(ends: &Ends, point: &str) -> io::Result<()> {
    watch::begin(&format!("a handshake held at {point}"));
    // One that has been used: from now on the listener answers as it accepts.
    drop(ends.pair()?);
    let (old, _peer) = ends.fresh()?;
    let file = sys::memfd(c"shunt-points")?;
    let held = Held::at(point)?;
    thread::scope(|scope| {
        let called =
            scope.spawn(|| sys::send(old.as_raw_fd(), b"of the old one", libc::MSG_NOSIGNAL));
        held.wait()?;
        sys::dup2(file.as_raw_fd(), &old)?;
        let client = ends.client()?;
        held.go_on()?;
        let result = called.join().map_err(|_| io::Error::other("a thread is gone"))?;
        let pair = (client, ends.accept()?);
        exchange(&pair.0, &pair.1)?;
        expect_nothing(pair.1.as_raw_fd())?;
        println!(
            "a handshake held at {point}: {}",
            result.map_or_else(|e| sys::errno_name(&e), |n| n.to_string())
        );
        Ok(())
    })
}

/// Calls, and where each is held.
const CALLS: &[(&str, &[&str])] = &[
    ("recv", &["recv.begins", "recv.between", "sleep.armed", "sleep.begins", "sleep.woken"]),
    ("send", &["send.begins"]),
    ("full send", &["send.begins", "send.between", "send.told", "sleep.armed", "sleep.begins"]),
    ("sendfile", &["sendfile.between"]),
    ("splice in", &["recv.begins", "splice.peeked", "splice.written"]),
    ("splice out", &["splice.read", "send.begins"]),
    ("poll", &["poll.begins", "poll.looked", "poll.held", "poll.armed"]),
    ("select", &["poll.begins", "poll.looked", "poll.held", "poll.armed"]),
];

/// Point 1: a call stays with its connection.
pub fn identity() -> io::Result<bool> {
    let ends = Ends::new()?;
    let mut is_right = true;
    for point in ["promote.acquainted", "promote.met"] {
        if let Err(e) = place_is_used_again(&ends, point) {
            is_right = false;
            eprintln!("a handshake held at {point}: {e}");
        }
    }
    for (name, places) in CALLS {
        for point in *places {
            if let Err(e) = number_is_used_again(&ends, name, point) {
                is_right = false;
                eprintln!("{name} held at {point}: {e}");
            }
        }
    }
    Ok(is_right)
}

/// A thread is held in the middle of a fork; others go on then, and parent and child have what they had.
fn held_in_fork(ends: &Ends, point: &str) -> io::Result<()> {
    watch::begin(&format!("a fork held at {point}"));
    let (client, server) = ends.pair()?;
    let held = Held::at(point)?;
    thread::scope(|scope| {
        let forks = scope.spawn(|| -> io::Result<()> {
            match sys::fork()? {
                Forked::Child => {
                    let said = send(client.as_raw_fd(), b"child");
                    sys::exit_now(i32::from(said.is_err()));
                }
                Forked::Parent(pid) => match sys::wait_for(pid)? {
                    0 => Ok(()),
                    code => Err(io::Error::other(format!("the child ends with {code}"))),
                },
            }
        });
        held.wait()?;
        // What the fork holds, these wait for; the rest goes on at once.
        let others = scope.spawn(|| -> io::Result<()> {
            let (a, b) = ends.pair()?;
            send(a.as_raw_fd(), b"meanwhile")?;
            expect(b.as_raw_fd(), b"meanwhile")?;
            let mut epoll = sys::Epoll::new(2)?;
            epoll.control(libc::EPOLL_CTL_ADD, b.as_raw_fd(), 1, 5)?;
            send(a.as_raw_fd(), b"more")?;
            match &epoll.wait(Some(PATIENCE))?[..] {
                [one] if one.data == 5 => {}
                _ => return Err(io::Error::other("no event")),
            }
            let copy = sys::dup(a.as_raw_fd())?;
            drop((a, copy));
            expect(b.as_raw_fd(), b"more")?;
            expect(b.as_raw_fd(), b"")
        });
        thread::sleep(Duration::from_millis(20));
        held.go_on()?;
        let gone = |_| io::Error::other("a thread is gone");
        forks.join().map_err(gone)??;
        others.join().map_err(gone)??;
        expect(server.as_raw_fd(), b"child")?;
        send(client.as_raw_fd(), b"parent")?;
        expect(server.as_raw_fd(), b"parent")?;
        send(server.as_raw_fd(), b"back")?;
        expect(client.as_raw_fd(), b"back")
    })?;
    println!("a fork held at {point}");
    Ok(())
}

static IN_HANDLERS: AtomicU32 = AtomicU32::new(0);

/// The program's own handlers of pthread_atfork(3) run outside of the library's: before it has made
/// ready, and after it has let go.
fn order_of_handlers(ends: &Ends) -> io::Result<()> {
    extern "C" fn before() {
        IN_HANDLERS.fetch_or(u32::from(points::passed("fork.prepared") == 0), Ordering::Relaxed);
    }
    extern "C" fn in_parent() {
        IN_HANDLERS.fetch_or(u32::from(points::passed("fork.parent") == 1) << 1, Ordering::Relaxed);
    }
    extern "C" fn in_child() {
        IN_HANDLERS
            .fetch_or(u32::from(points::passed("fork.adopted") == 1) << 2, Ordering::Relaxed);
    }
    watch::begin("handlers of forks");
    let _pair = ends.pair()?;
    // SAFETY: the handlers touch an atomic alone, and live as long as the program.
    let rc = unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    if rc != 0 {
        return Err(io::Error::from_raw_os_error(rc));
    }
    points::plan("");
    match sys::fork()? {
        Forked::Child => sys::exit_now(i32::from(IN_HANDLERS.load(Ordering::Relaxed) != 0b101)),
        Forked::Parent(pid) => match (sys::wait_for(pid)?, IN_HANDLERS.load(Ordering::Relaxed)) {
            (0, 0b011) => Ok(()),
            (child, seen) => Err(io::Error::other(format!("child {child}, parent {seen:b}"))),
        },
    }
}

/// Point 2: forks.
pub fn forks() -> io::Result<bool> {
    let ends = Ends::new()?;
    let mut is_right = true;
    let mut note = |what: &str, result: io::Result<()>| {
        if let Err(e) = result {
            is_right = false;
            eprintln!("{what}: {e}");
        }
    };
    for point in [
        "fork.prepared",
        "fork.parent",
        "fork.settles",
        "fork.child",
        "fork.counted",
        "fork.adopted",
    ] {
        note(point, held_in_fork(&ends, point));
    }
    note("handlers", order_of_handlers(&ends));
    Ok(is_right)
}

/// Point 10: the main threads of two pid namespaces have the same id. One is held with the lock of a
/// direction; the other, a relative, waits for it.
pub fn identities_of_threads() -> io::Result<bool> {
    /// Longer than what is put into the ring at once, so that two calls may not mix.
    const LENGTH: usize = 1000;
    let in_namespace = |work: &dyn Fn() -> io::Result<()>| -> io::Result<Option<i32>> {
        // SAFETY: no pointers.
        if unsafe { libc::unshare(libc::CLONE_NEWPID) } != 0 {
            return Err(io::Error::last_os_error());
        }
        match sys::fork()? {
            Forked::Child => {
                let result = work();
                if let Err(e) = &result {
                    eprintln!("{e}");
                }
                sys::exit_now(i32::from(result.is_err()));
            }
            Forked::Parent(pid) => Ok(Some(pid)),
        }
    };
    let outer = in_namespace(&|| {
        watch::begin("two first threads");
        let ends = Ends::new()?;
        let (client, server) = ends.pair()?;
        let held = Held::at("send.copied")?;
        let relative = in_namespace(&|| {
            // SAFETY: no arguments.
            if unsafe { libc::gettid() } != 1 {
                return Err(io::Error::other("not the first thread"));
            }
            held.wait()?;
            points::plan("");
            if sys::fork()? == Forked::Child {
                // By then the relative waits, or has put its bytes where the held ones are.
                thread::sleep(Duration::from_millis(50));
                sys::exit_now(i32::from(held.go_on().is_err()));
            }
            send(client.as_raw_fd(), &[b'b'; LENGTH])
        })?;
        send(client.as_raw_fd(), &[b'a'; LENGTH])?;
        if let Some(pid) = relative
            && sys::wait_for(pid)? != 0
        {
            return Err(io::Error::other("the relative fails"));
        }
        expect(server.as_raw_fd(), &[b'a'; LENGTH])?;
        expect(server.as_raw_fd(), &[b'b'; LENGTH])?;
        expect_nothing(server.as_raw_fd())
    })?;
    Ok(match outer {
        Some(pid) => sys::wait_for(pid)? == 0,
        None => true,
    })
}
