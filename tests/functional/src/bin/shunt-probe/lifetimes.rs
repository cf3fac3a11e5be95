//! Connections whose processes end in all the ways there are, and who is then the last.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use shunt_functional::sys::{self, Forked};

use crate::probe::{
    Pair, Probe, connect_to, done, listener, settle, show, try_recv, try_send, warm_up,
};
use crate::processes::{close_on_exec, in_child};

/// The checks.
pub fn run(p: &mut Probe) -> io::Result<()> {
    last_after_a_child(p)?;
    last_is_a_child(p)?;
    last_after_a_zombie(p)?;
    last_after_a_grandchild(p)?;
    last_has_made_no_call(p)?;
    fork_that_fails(p)?;
    unannounced_fork(p)?;
    shell_commands(p)?;
    closed_under_a_thread(p)?;
    forks_among_threads(p)
}

/// How a child ends.
#[derive(Clone, Copy)]
enum End {
    Exit,
    ExitNow,
    ExitQuickly,
    Signal(i32),
}

const ENDS: [(&str, End); 5] = [
    ("exit", End::Exit),
    ("_exit", End::ExitNow),
    ("quick_exit", End::ExitQuickly),
    ("SIGKILL", End::Signal(libc::SIGKILL)),
    ("SIGTERM", End::Signal(libc::SIGTERM)),
];

fn end_by(end: End) -> ! {
    match end {
        End::Exit => std::process::exit(0),
        End::ExitNow => sys::exit_now(0),
        End::ExitQuickly => sys::exit_quickly(0),
        End::Signal(signal) => {
            // A descriptor of its own process: if the signal does not end it, the code tells.
            let _ = sys::kill(std::process::id().cast_signed(), signal);
            sys::exit_now(1)
        }
    }
}

/// A child says that it has come so far, and stays until its parent lets it go.
struct Stay {
    came: (OwnedFd, OwnedFd),
    held: (OwnedFd, OwnedFd),
}

impl Stay {
    fn new() -> io::Result<Self> {
        Ok(Self { came: sys::pipe()?, held: sys::pipe()? })
    }

    /// In the child.
    fn here(&self) -> io::Result<()> {
        let (held, hold) = &self.held;
        // This copy would hold it for ever.
        sys::dup2(2, hold)?;
        sys::write(self.came.1.as_raw_fd(), b"x")?;
        sys::read(held.as_raw_fd(), &mut [0]).map(drop)
    }

    /// In the parent, until the child has come so far; it stays until the result is dropped.
    fn wait(self) -> io::Result<OwnedFd> {
        let Self { came: (came, comes), held: (_, hold) } = self;
        drop(comes);
        match sys::read(came.as_raw_fd(), &mut [0])? {
            0 => Err(io::Error::other("a child has ended early")),
            _ => Ok(hold),
        }
    }
}

/// What the peer of a connection sees whose last descriptor was just closed: by sending first, which
/// asks nobody whether it is the end.
fn look_at_end(p: &Probe, what: &str, fd: RawFd) {
    for n in 1..=3 {
        settle();
        p.result(&format!("{what}: send {n}"), try_send(fd, b"too late"));
    }
    p.result(&format!("{what}: the end"), try_recv(fd, 100));
}

/// The parent closes last, after a child that has ended by itself.
fn last_after_a_child(p: &Probe) -> io::Result<()> {
    for (name, end) in ENDS {
        let Pair { client, server } = p.pair()?;
        let fd = server.as_raw_fd();
        let child = in_child(|| {
            let mut byte = [0; 1];
            sys::read(fd, &mut byte)?;
            sys::write(fd, b"from the child")?;
            end_by(end)
        })?;
        sys::write(client.as_raw_fd(), b"x")?;
        p.say(&format!("a child that ends by {name}"), sys::wait_for(child)?);
        settle();
        p.result("its bytes", try_recv(client.as_raw_fd(), 100));
        p.result("no end yet", try_recv(client.as_raw_fd(), 100));
        sys::write(server.as_raw_fd(), b"from the parent")?;
        settle();
        p.result("the parent's bytes", try_recv(client.as_raw_fd(), 100));
        drop(server);
        look_at_end(p, name, client.as_raw_fd());
    }
    Ok(())
}

/// The child ends last, without a close: its peer learns of that by sending alone.
fn last_is_a_child(p: &Probe) -> io::Result<()> {
    for (name, end) in &ENDS[..3] {
        let Pair { client, server } = p.pair()?;
        let (c, s) = (client.as_raw_fd(), server.as_raw_fd());
        let child = in_child(|| {
            sys::dup2(2, &client)?;
            let mut byte = [0; 1];
            sys::read(s, &mut byte)?;
            end_by(*end)
        })?;
        drop(server);
        sys::write(c, b"x")?;
        p.say(&format!("the last ends by {name}"), sys::wait_for(child)?);
        look_at_end(p, "the last has ended", c);
    }
    Ok(())
}

/// The child is dead and not waited for.
fn last_after_a_zombie(p: &Probe) -> io::Result<()> {
    let Pair { client, server } = p.pair()?;
    let child = in_child(|| {
        thread::park();
        Ok(())
    })?;
    sys::kill(child, libc::SIGKILL)?;
    sys::wait_until_dead(child)?;
    drop(server);
    look_at_end(p, "zombie", client.as_raw_fd());
    p.say("the zombie", sys::wait_for(child)?);

    // The other way round: the child is the last, and is killed.
    let Pair { client, server } = p.pair()?;
    let child = in_child(|| {
        thread::park();
        Ok(())
    })?;
    drop(server);
    settle();
    p.result("no end while the child lives", try_recv(client.as_raw_fd(), 100));
    sys::kill(child, libc::SIGKILL)?;
    p.say("the child", sys::wait_for(child)?);
    settle();
    p.result("the end when it is killed", try_recv(client.as_raw_fd(), 100));
    Ok(())
}

/// Three generations, of which the oldest and the youngest are gone when the middle one closes.
fn last_after_a_grandchild(p: &Probe) -> io::Result<()> {
    let listener = listener()?;
    let address = crate::probe::address(&listener)?;
    let warm = p.warm;
    let stay = Stay::new()?;
    let oldest = in_child(|| {
        let (server, _) = sys::accept(listener.as_raw_fd(), 0)?;
        sys::set_option(server.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)?;
        if warm {
            let mut buffer = [0; 100];
            for _ in 0..4 {
                sys::recv(server.as_raw_fd(), &mut buffer, libc::MSG_WAITALL, false)?;
                sys::write(server.as_raw_fd(), &buffer)?;
            }
        }
        let fd = server.as_raw_fd();
        in_child(|| {
            let youngest = in_child(|| end_by(End::Signal(libc::SIGKILL)))?;
            sys::wait_for(youngest)?;
            let mut word = [0; 5];
            sys::recv(fd, &mut word, libc::MSG_WAITALL, false)?;
            sys::write(fd, b"closed")?;
            sys::dup2(2, &server)?;
            // It lives on without the connection.
            stay.here()
        })?;
        end_by(End::Signal(libc::SIGKILL))
    })?;
    let client = sys::socket(libc::AF_INET, libc::SOCK_STREAM)?;
    let fd = client.as_raw_fd();
    sys::connect(fd, address)?;
    sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)?;
    if warm {
        let mut buffer = [0; 100];
        for _ in 0..4 {
            sys::write(fd, &[7; 100])?;
            sys::recv(fd, &mut buffer, libc::MSG_WAITALL, false)?;
        }
    }
    p.say("the oldest", sys::wait_for(oldest)?);
    settle();
    p.result("no end while the middle one lives", try_recv(fd, 100));
    sys::write(fd, b"close")?;
    let mut word = [0; 6];
    p.result("its answer", sys::recv(fd, &mut word, libc::MSG_WAITALL, false));
    let _lives = stay.wait()?;
    look_at_end(p, "the middle one", fd);
    Ok(())
}

/// How the last descriptor of a connection goes.
#[derive(Clone, Copy)]
enum Last {
    /// close(2), in good order.
    Close,
    /// The same over a byte that nobody has read.
    Unread,
    /// The same where the program wants a reset.
    Linger,
    /// By dup2(2).
    Replace,
    /// With its process.
    Process(End),
}

/// A child alone has used the connection, and has ended, when its parent lets go of it: which has never made a call on it.
fn last_has_made_no_call(p: &Probe) -> io::Result<()> {
    use Last::{Close, Linger, Process, Replace, Unread};
    for (name, last, child) in [
        ("close", Close, End::ExitNow),
        ("close after a child that was killed", Close, End::Signal(libc::SIGKILL)),
        ("close over a byte", Unread, End::ExitNow),
        ("close with SO_LINGER", Linger, End::ExitNow),
        ("dup2", Replace, End::ExitNow),
        ("exit", Process(End::Exit), End::ExitNow),
        ("_exit", Process(End::ExitNow), End::ExitNow),
    ] {
        let Pair { client, server } = p.pair()?;
        let (c, s) = (client.as_raw_fd(), server.as_raw_fd());
        let (used, over) = (Stay::new()?, Stay::new()?);
        let parent = in_child(|| {
            sys::dup2(2, &client)?;
            let user = in_child(|| {
                // It finds nothing, and the connection is carried from here on, in either direction.
                let _ = try_recv(s, 1);
                used.here()?;
                sys::read(s, &mut [0])?;
                sys::write(s, b"used")?;
                end_by(child)
            })?;
            // This copy would hold it for ever.
            sys::dup2(2, &used.held.1)?;
            sys::wait_for(user)?;
            if matches!(last, Linger) {
                sys::linger(s, 0)?;
            }
            match last {
                Process(end) => end_by(end),
                Replace => drop(sys::dup2(2, &server)?),
                Close | Unread | Linger => drop(server),
            }
            // It lives on without the connection.
            over.here()
        })?;
        let goes_on = used.wait()?;
        let bytes: &[u8] = if matches!(last, Unread) { b"xy" } else { b"x" };
        sys::write(c, bytes)?;
        drop(goes_on);
        let mut word = [0; 4];
        p.result("what the child has sent", sys::recv(c, &mut word, libc::MSG_WAITALL, false));
        let lives = match last {
            Process(_) => {
                p.say("the parent", sys::wait_for(parent)?);
                None
            }
            _ => Some(over.wait()?),
        };
        look_at_end(p, name, c);
        if lives.is_some() {
            drop(lives);
            p.say("the parent", sys::wait_for(parent)?);
        }
    }
    Ok(())
}

/// A child that never came to be holds nothing.
fn fork_that_fails(p: &Probe) -> io::Result<()> {
    let Pair { client, server } = p.pair()?;
    let (c, s) = (client.as_raw_fd(), server.as_raw_fd());
    let state = p.warm;
    let stay = Stay::new()?;
    let child = in_child(|| {
        // Only the other end is this process's from here on.
        sys::dup2(2, &client)?;
        sys::forbid_forks()?;
        let mut byte = [0; 1];
        sys::read(s, &mut byte)?;
        // The parent's end of standard output is this process's, too.
        let p = Probe::new("lifetimes", state);
        match sys::fork() {
            Ok(Forked::Child) => sys::exit_now(0),
            Ok(Forked::Parent(_)) => p.say("a fork without the right", "done"),
            Err(e) => p.say("a fork without the right", show::<i32>(Err(e))),
        }
        sys::write(s, b"still here")?;
        sys::dup2(2, &server)?;
        stay.here()
    })?;
    drop(server);
    sys::write(c, b"x")?;
    let mut word = [0; 10];
    p.result("its bytes", sys::recv(c, &mut word, libc::MSG_WAITALL, false));
    let lives = stay.wait()?;
    look_at_end(p, "after a fork that failed", c);
    drop(lives);
    p.say("the child", sys::wait_for(child)?);
    Ok(())
}

/// A fork that no handler sees: the child's closes are the child's alone.
fn unannounced_fork(p: &Probe) -> io::Result<()> {
    let Pair { client, server } = p.pair()?;
    let (c, s) = (client.as_raw_fd(), server.as_raw_fd());
    let child = match sys::fork_raw()? {
        Forked::Child => {
            drop(client);
            drop(server);
            sys::exit_now(0)
        }
        Forked::Parent(child) => child,
    };
    p.say("a child of a raw fork", sys::wait_for(child)?);
    settle();
    p.result("no end", try_recv(c, 100));
    p.say("and bytes go on", done(warm_up(c, s)));
    drop(server);
    look_at_end(p, "raw fork", c);

    // And it goes on where the parent leaves off.
    let Pair { client, server } = p.pair()?;
    let (c, s) = (client.as_raw_fd(), server.as_raw_fd());
    let child = match sys::fork_raw()? {
        Forked::Child => {
            drop(client);
            let mut byte = [0; 1];
            let right = sys::read(s, &mut byte).is_ok() && sys::write(s, b"child").is_ok();
            sys::exit_now(i32::from(!right))
        }
        Forked::Parent(child) => child,
    };
    sys::write(c, b"x")?;
    p.say("a child that reads", sys::wait_for(child)?);
    settle();
    p.result("its bytes", try_recv(c, 100));
    drop(server);
    look_at_end(p, "after it", c);
    Ok(())
}

/// `system` and `popen` start programs that inherit what is not close-on-exec.
fn shell_commands(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    p.say("system", sys::system(c"exit 3"));
    p.say("bytes after it", done(warm_up(pair.c(), pair.s())));
    p.say("popen", String::from_utf8_lossy(&sys::popen(c"echo hello")?));
    p.say("bytes after it", done(warm_up(pair.c(), pair.s())));

    let pair = p.pair()?;
    let command = format!("echo from the shell >&{}", pair.s());
    let command = std::ffi::CString::new(command).map_err(io::Error::other)?;
    sys::write(pair.s(), b"before, ")?;
    p.say("a command that writes", sys::system(&command));
    sys::write(pair.s(), b", after")?;
    settle();
    let mut text = [0; 100];
    let n = sys::recv(pair.c(), &mut text, libc::MSG_DONTWAIT, false)?;
    p.say("what has come", String::from_utf8_lossy(&text[..n]).replace('\n', "|"));

    let Pair { client, server } = p.pair()?;
    let (held, hold) = sys::pipe()?;
    close_on_exec(&hold)?;
    let command = format!("cat </proc/self/fd/{} &", held.as_raw_fd());
    let command = std::ffi::CString::new(command).map_err(io::Error::other)?;
    p.say("a command that stays", sys::system(&command));
    drop(server);
    settle();
    p.result("no end yet", try_recv(client.as_raw_fd(), 100));
    drop(hold);
    let mut byte = [0; 1];
    p.result("the end", sys::read(client.as_raw_fd(), &mut byte));
    Ok(())
}

/// Connections that are closed while threads use them.
const CLOSED: u32 = 60;

/// A descriptor is replaced while one thread sends on it and another receives at the other end: the
/// connection that comes next, in the same place, has its own bytes and no others, and the receiver
/// comes to the end, also where a send went past the close.
fn closed_under_a_thread(p: &Probe) -> io::Result<()> {
    let (reader, writer) = sys::pipe()?;
    let child = in_child(|| {
        sys::end_within(60);
        let nothing: OwnedFd = std::fs::File::open("/dev/null")?.into();
        let listener = listener()?;
        let mut right = 0_u32;
        for _ in 0..CLOSED {
            let first = Probe::new("lifetimes", true).pair_with(&listener)?;
            let over = AtomicBool::new(false);
            right += u32::from(thread::scope(|scope| {
                scope.spawn(|| {
                    let block = vec![0xaa; 200_000];
                    while !over.load(Ordering::Relaxed) {
                        let _ = try_send(first.s(), &block);
                    }
                });
                let receiving = scope.spawn(|| comes_to_an_end(first.c()));
                thread::sleep(Duration::from_millis(1));
                let second = sys::dup2(nothing.as_raw_fd(), &first.server)
                    .and_then(|_| Probe::new("lifetimes", false).pair_with(&listener));
                let right = second.and_then(|pair| exact(&pair));
                over.store(true, Ordering::Relaxed);
                let ended = receiving.join().is_ok_and(|ended| ended);
                right.map(|right| right && ended)
            })?);
        }
        sys::write(writer.as_raw_fd(), &right.to_ne_bytes())?;
        Ok(())
    })?;
    p.say("closes under threads", sys::wait_for(child)?);
    let mut right = [0; 4];
    drop(writer);
    sys::read(reader.as_raw_fd(), &mut right)?;
    p.say("connections that had their own bytes, after one that ended", u32::from_ne_bytes(right));
    Ok(())
}

/// Receives until there is an end, of whatever kind; false when none comes.
fn comes_to_an_end(fd: RawFd) -> bool {
    let started = Instant::now();
    loop {
        match try_recv(fd, 100_000) {
            Ok(0) => return true,
            Err(e) if e.kind() != io::ErrorKind::WouldBlock => return true,
            _ if started.elapsed() > Duration::from_secs(5) => return false,
            _ => {}
        }
    }
}

/// Messages both ways, compared.
fn exact(pair: &Pair) -> io::Result<bool> {
    let mut right = true;
    for n in 0..40 {
        for (from, to) in [(pair.c(), pair.s()), (pair.s(), pair.c())] {
            sys::write(from, &[n; 2000])?;
            let mut back = [0; 2000];
            sys::recv(to, &mut back, libc::MSG_WAITALL, false)?;
            right &= back == [n; 2000];
        }
    }
    Ok(right)
}

/// Connections per thread, and forks meanwhile.
const ROUNDS: u32 = 150;
const FORKS: u32 = 40;
const THREADS: u32 = 3;

/// Two threads fork while the others connect, accept and close: no child may find a lock that is
/// held by a thread which it does not have.
fn forks_among_threads(p: &Probe) -> io::Result<()> {
    let (right, back) = (AtomicU32::new(0), AtomicU32::new(0));
    // In a process of its own, so that this one keeps its one thread.
    let (reader, writer) = sys::pipe()?;
    let child = in_child(|| {
        sys::end_within(60);
        let over = AtomicBool::new(false);
        let listener = listener()?;
        thread::scope(|scope| {
            let working: Vec<_> = (0..THREADS)
                .map(|_| {
                    scope.spawn(|| {
                        // Stops with the forks if those take longer.
                        for _ in 0..ROUNDS {
                            right.fetch_add(u32::from(own_pair().is_ok()), Ordering::Relaxed);
                        }
                        while !over.load(Ordering::Relaxed) {
                            let _ = own_pair();
                        }
                    })
                })
                .collect();
            let fork = || {
                for _ in 0..FORKS {
                    if let Ok(Forked::Parent(child)) = fork_and_connect(&listener) {
                        let ended = sys::wait_for(child).unwrap_or(-1);
                        back.fetch_add(u32::from(ended == 0), Ordering::Relaxed);
                    }
                }
            };
            let other = scope.spawn(fork);
            fork();
            let _ = other.join();
            over.store(true, Ordering::Relaxed);
            drop(working);
        });
        let counts = [right.load(Ordering::Relaxed), back.load(Ordering::Relaxed)];
        let counts: Vec<u8> = counts.iter().flat_map(|n| n.to_ne_bytes()).collect();
        sys::write(writer.as_raw_fd(), &counts)?;
        Ok(())
    })?;
    p.say("forks among threads", sys::wait_for(child)?);
    let mut counts = [0; 8];
    drop(writer);
    sys::read(reader.as_raw_fd(), &mut counts)?;
    let [a, b, c, d, e, f, g, h] = counts;
    p.say("connections that worked", u32::from_ne_bytes([a, b, c, d]));
    p.say("children that came back", u32::from_ne_bytes([e, f, g, h]));
    Ok(())
}

/// A connection within the process, a few bytes, and its end.
fn own_pair() -> io::Result<()> {
    let listener = listener()?;
    let client = connect_to(&listener)?;
    let (server, _) = sys::accept(listener.as_raw_fd(), 0)?;
    warm_up(client.as_raw_fd(), server.as_raw_fd())
}

/// A child that closes, connects and ends, by system calls alone.
fn fork_and_connect(listener: &OwnedFd) -> io::Result<Forked> {
    let address = crate::probe::address(listener)?;
    match sys::fork()? {
        Forked::Child => {
            sys::end_within(10);
            let works = sys::socket(libc::AF_INET, libc::SOCK_STREAM)
                .and_then(|fd| sys::connect(fd.as_raw_fd(), address))
                .is_ok();
            sys::exit_now(i32::from(!works))
        }
        parent => Ok(parent),
    }
}
