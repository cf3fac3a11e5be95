//! Servers of several processes, or that follow each other, seen by a client: what is shown here the transcript does not tell,
//! but the agent's counts do.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread;
use std::time::Duration;

use shunt_functional::sys;

use crate::probe::{Probe, address, listener, loopback};
use crate::processes::in_child;

/// Exchanges a few messages with a server that sends back what it gets.
fn exchange(fd: i32) -> io::Result<bool> {
    let mut right = true;
    for n in 0..8 {
        sys::write(fd, &[n; 500])?;
        let mut back = [0; 500];
        sys::recv(fd, &mut back, libc::MSG_WAITALL, false)?;
        right &= back == [n; 500];
    }
    Ok(right)
}

fn echo(fd: &OwnedFd) -> io::Result<()> {
    let mut buffer = [0; 4096];
    loop {
        match sys::read(fd.as_raw_fd(), &mut buffer)? {
            0 => return Ok(()),
            n => sys::write(fd.as_raw_fd(), &buffer[..n])?,
        };
    }
}

fn connect(port: u16) -> io::Result<OwnedFd> {
    let client = sys::socket(libc::AF_INET, libc::SOCK_STREAM)?;
    sys::connect(client.as_raw_fd(), loopback(port))?;
    Ok(client)
}

/// Connections to a daemon, per run.
const CONNECTIONS: usize = 4;

/// A server that listens, forks twice, and whose first two processes are gone when clients come.
pub fn daemon(p: &mut Probe) -> io::Result<()> {
    let (reader, writer) = sys::pipe()?;
    let starter = in_child(|| {
        let listener = listener()?;
        let port = address(&listener)?.port();
        in_child(|| {
            sys::new_session()?;
            in_child(|| {
                sys::write(writer.as_raw_fd(), &port.to_ne_bytes())?;
                for _ in 0..CONNECTIONS {
                    let (server, _) = sys::accept(listener.as_raw_fd(), 0)?;
                    echo(&server)?;
                }
                Ok(())
            })?;
            Ok(())
        })?;
        std::process::exit(0)
    })?;
    p.say("the starter", sys::wait_for(starter)?);
    let mut port = [0; 2];
    sys::read(reader.as_raw_fd(), &mut port)?;
    // The ends of the two have arrived at the agent.
    thread::sleep(Duration::from_millis(200));
    for _ in 0..CONNECTIONS {
        let client = connect(u16::from_ne_bytes(port))?;
        p.say("a daemon's echo", exchange(client.as_raw_fd())?);
    }
    Ok(())
}

/// Listeners that are left to a child, which accepts only later.
pub const HEIRS: usize = 4;

/// A program forks the one that serves, closes its listener, and is a client, before and after that. The child has not called accept by then.
pub fn heirs(p: &mut Probe) -> io::Result<()> {
    for _ in 0..HEIRS {
        let listener = listener()?;
        let port = address(&listener)?.port();
        let (reader, writer) = sys::pipe()?;
        let child = in_child(|| {
            sys::read(reader.as_raw_fd(), &mut [0])?;
            for _ in 0..2 {
                let (server, _) = sys::accept(listener.as_raw_fd(), 0)?;
                echo(&server)?;
            }
            Ok(())
        })?;
        let before = connect(port)?;
        drop(listener);
        let after = connect(port)?;
        sys::write(writer.as_raw_fd(), b"x")?;
        for client in [before, after] {
            p.say("an heir's echo", exchange(client.as_raw_fd())?);
        }
        p.say("the heir", sys::wait_for(child)?);
    }
    Ok(())
}

/// Connections to children that are killed, one in [`KEEP`] of which stays open.
const ORPHANS: usize = 400;
const KEEP: usize = 4;

/// A server that forks for each connection, and whose children are killed.
pub fn orphans(p: &mut Probe) -> io::Result<()> {
    let (reader, writer) = sys::pipe()?;
    let server = in_child(|| {
        sys::forget_children();
        let listener = listener()?;
        sys::write(writer.as_raw_fd(), &address(&listener)?.port().to_ne_bytes())?;
        for _ in 0..ORPHANS {
            let (server, _) = sys::accept(listener.as_raw_fd(), 0)?;
            in_child(|| {
                sys::end_with_parent()?;
                sys::write(server.as_raw_fd(), &std::process::id().to_ne_bytes())?;
                echo(&server)
            })?;
        }
        thread::sleep(Duration::from_secs(60));
        Ok(())
    })?;
    let mut port = [0; 2];
    sys::read(reader.as_raw_fd(), &mut port)?;
    let mut kept = Vec::new();
    let mut right = 0;
    for n in 0..ORPHANS {
        let client = connect(u16::from_ne_bytes(port))?;
        let fd = client.as_raw_fd();
        let mut pid = [0; 4];
        sys::recv(fd, &mut pid, libc::MSG_WAITALL, false)?;
        right += usize::from(exchange(fd)?);
        if n % KEEP == 0 {
            kept.push(client);
            continue;
        }
        sys::kill(i32::from_ne_bytes(pid), libc::SIGKILL)?;
        right += usize::from(sys::read(fd, &mut pid)? == 0);
    }
    p.say("what was right", right);
    sys::kill(server, libc::SIGKILL)?;
    p.say("the server", sys::wait_for(server)?);
    Ok(())
}

/// More listeners than a client may have link groups at once.
const LISTENERS: usize = 150;

/// Listeners that follow each other, each with one connection, as those of an FTP server's transfers.
pub fn listeners(p: &mut Probe) -> io::Result<()> {
    let mut right = 0;
    for _ in 0..LISTENERS {
        let listener = listener()?;
        let client = connect(address(&listener)?.port())?;
        let (server, _) = sys::accept(listener.as_raw_fd(), 0)?;
        let echoing = thread::spawn(move || echo(&server));
        right += usize::from(exchange(client.as_raw_fd())?);
        drop(client);
        right += usize::from(matches!(echoing.join(), Ok(Ok(()))));
    }
    p.say("what was right", right);
    Ok(())
}

/// Bytes to a client that reads only: more than a ring and the kernel's buffers hold.
const MUCH: usize = 16 << 20;

/// The byte at this place.
#[allow(clippy::cast_possible_truncation, reason = "it is less than 251")]
fn pattern(at: usize) -> u8 {
    (at % 251) as u8
}

/// The agent's pid, which comes in `PROBE_AGENT`.
fn agent() -> io::Result<libc::pid_t> {
    let agent = std::env::var("PROBE_AGENT").ok().and_then(|pid| pid.parse().ok());
    agent.ok_or_else(|| io::Error::other("PROBE_AGENT is not set"))
}

/// A server sends to a client that reads only, and that found the agent silent when it came to ask how to tell
/// of room.
pub fn reader(p: &mut Probe) -> io::Result<()> {
    let (port_out, port_in) = sys::pipe()?;
    let (go_out, go_in) = sys::pipe()?;
    let pattern = |at: usize| u8::try_from(at % 251).unwrap_or(0);
    let server = in_child(|| {
        sys::end_with_parent()?;
        let listener = listener()?;
        sys::write(port_in.as_raw_fd(), &address(&listener)?.port().to_ne_bytes())?;
        sys::read(go_out.as_raw_fd(), &mut [0])?;
        let (server, _) = sys::accept(listener.as_raw_fd(), libc::SOCK_NONBLOCK)?;
        let fd = server.as_raw_fd();
        let nothing = sys::recv(fd, &mut [0], 0, false);
        p.result("the server has read", nothing);
        sys::write(port_in.as_raw_fd(), &[0; 2])?;
        sys::read(go_out.as_raw_fd(), &mut [0])?;
        let bytes: Vec<u8> = (0..MUCH).map(pattern).collect();
        let mut sent = 0;
        while sent < MUCH {
            match sys::write(fd, &bytes[sent..]) {
                Ok(n) => sent += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    let mut fds = [libc::pollfd { fd, events: libc::POLLOUT, revents: 0 }];
                    if sys::poll(&mut fds, Some(Duration::from_secs(20)))? == 0 {
                        p.say("the server was told of room", false);
                        return Ok(());
                    }
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    })?;
    let mut port = [0; 2];
    sys::read(port_out.as_raw_fd(), &mut port)?;
    let client = connect(u16::from_ne_bytes(port))?;
    let fd = client.as_raw_fd();
    p.result("the client has read", sys::recv(fd, &mut [0], libc::MSG_DONTWAIT, false));
    sys::write(go_in.as_raw_fd(), &[0])?;
    sys::read(port_out.as_raw_fd(), &mut port)?;
    let agent = agent()?;
    sys::kill(agent, libc::SIGSTOP)?;
    sys::write(go_in.as_raw_fd(), &[0])?;
    let mut buffer = vec![0; 1 << 20];
    let (mut got, mut right) = (0, true);
    let result = loop {
        match sys::read(fd, &mut buffer) {
            Ok(0) => break Ok(got == MUCH),
            Ok(n) => {
                right &= buffer[..n].iter().enumerate().all(|(i, b)| *b == pattern(got + i));
                got += n;
            }
            Err(e) => break Err(e),
        }
    };
    sys::kill(agent, libc::SIGCONT)?;
    p.result("all bytes came", result);
    p.say("and were right", right);
    p.say("the server", sys::wait_for(server)?);
    Ok(())
}

/// A process that accepts, sends at once, and closes when it is told to.
struct Sending {
    child: libc::pid_t,
    port: u16,
    go: OwnedFd,
    sent: OwnedFd,
}

impl Sending {
    /// `sizes`: bytes that go over the connections.
    fn start(sizes: &[usize]) -> io::Result<Self> {
        let (sent, sent_in) = sys::pipe()?;
        let (go_out, go) = sys::pipe()?;
        let child = in_child(|| {
            sys::end_with_parent()?;
            let listener = listener()?;
            sys::write(sent_in.as_raw_fd(), &address(&listener)?.port().to_ne_bytes())?;
            for size in sizes {
                sys::read(go_out.as_raw_fd(), &mut [0])?;
                // The client is in its next call by then.
                thread::sleep(Duration::from_millis(20));
                let (server, _) = sys::accept(listener.as_raw_fd(), 0)?;
                let bytes: Vec<u8> = (0..*size).map(pattern).collect();
                let mut done = 0;
                while done < *size {
                    done += sys::write(server.as_raw_fd(), &bytes[done..])?;
                }
                sys::write(sent_in.as_raw_fd(), &[0])?;
                sys::read(go_out.as_raw_fd(), &mut [0])?;
            }
            Ok(())
        })?;
        let mut port = [0; 2];
        sys::read(sent.as_raw_fd(), &mut port)?;
        Ok(Self { child, port: u16::from_ne_bytes(port), go, sent })
    }

    /// A connection of which the server knows that it is read through the library, but whose client has not
    /// seen the server's answer.
    fn connect(&self, p: &mut Probe) -> io::Result<OwnedFd> {
        let client = connect(self.port)?;
        let nothing = sys::recv(client.as_raw_fd(), &mut [0], libc::MSG_DONTWAIT, false);
        p.result("the client has read", nothing);
        self.go()?;
        Ok(client)
    }

    fn go(&self) -> io::Result<()> {
        sys::write(self.go.as_raw_fd(), &[0]).map(drop)
    }

    /// Waits until all bytes were sent.
    fn wait(&self) -> io::Result<()> {
        sys::read(self.sent.as_raw_fd(), &mut [0]).map(drop)
    }
}

/// Receives so many bytes, and looks at each.
fn receive(p: &mut Probe, fd: i32, size: usize) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 20];
    let (mut got, mut right) = (0, true);
    while got < size {
        let n = sys::recv(fd, &mut buffer, 0, false)?;
        if n == 0 {
            break;
        }
        right &= buffer[..n].iter().enumerate().all(|(i, b)| *b == pattern(got + i));
        got += n;
    }
    p.say("all bytes came", got == size);
    p.say("and were right", right);
    Ok(())
}

/// The first connection shows that the server uses what it accepts.
const FIRST: usize = 1;

/// A client that asks for bytes just before a server accepts and sends more than a ring holds: the client is held
/// up in its system calls, between its look at the ring and the kernel's answer.
pub fn held_up(p: &mut Probe) -> io::Result<()> {
    let sizes = [FIRST, MUCH / 8];
    let server = Sending::start(&sizes)?;
    for size in sizes {
        let client = server.connect(p)?;
        receive(p, client.as_raw_fd(), size)?;
        server.go()?;
    }
    p.say("the server", sys::wait_for(server.child)?);
    Ok(())
}

/// What a full ring holds, and some bytes.
const RING_AND_MORE: usize = (512 << 10) + 30_000;

/// A client hands the connection over when the server has left a full ring, whose bytes come before those in
/// the kernel socket.
pub fn counted(p: &mut Probe) -> io::Result<()> {
    let server = Sending::start(&[FIRST, RING_AND_MORE])?;
    let client = server.connect(p)?;
    server.wait()?;
    receive(p, client.as_raw_fd(), FIRST)?;
    server.go()?;
    let client = server.connect(p)?;
    let fd = client.as_raw_fd();
    server.wait()?;
    sys::write_stdio(fd, b"x")?;
    p.say("bytes are counted", sys::fionread(fd)? > 0);
    receive(p, fd, RING_AND_MORE)?;
    server.go()?;
    p.say("the server", sys::wait_for(server.child)?);
    Ok(())
}

/// Bytes that go over TCP before the ring.
const EARLY: usize = 10;

/// A client that cannot ask the agent looks at bytes that came over TCP while the server fills the ring and leaves it: a look
/// sees those in the ring, too, though there are more in the kernel socket. Who is told of arrivals once is not told again.
pub fn peeked(p: &mut Probe) -> io::Result<()> {
    let (port_out, port_in) = sys::pipe()?;
    let (go_out, go) = sys::pipe()?;
    let child = in_child(|| {
        sys::end_with_parent()?;
        let listener = listener()?;
        sys::write(port_in.as_raw_fd(), &address(&listener)?.port().to_ne_bytes())?;
        let (server, _) = sys::accept(listener.as_raw_fd(), 0)?;
        let bytes: Vec<u8> = (0..EARLY + RING_AND_MORE).map(pattern).collect();
        for part in [&bytes[..EARLY], &bytes[EARLY..]] {
            sys::read(go_out.as_raw_fd(), &mut [0])?;
            let mut done = 0;
            while done < part.len() {
                done += sys::write(server.as_raw_fd(), &part[done..])?;
            }
            sys::write(port_in.as_raw_fd(), &[0; 2])?;
        }
        sys::read(go_out.as_raw_fd(), &mut [0])?;
        Ok(())
    })?;
    let mut port = [0; 2];
    sys::read(port_out.as_raw_fd(), &mut port)?;
    let client = connect(u16::from_ne_bytes(port))?;
    let fd = client.as_raw_fd();
    let part_is_sent = || {
        sys::write(go.as_raw_fd(), &[0])?;
        sys::read(port_out.as_raw_fd(), &mut [0; 2])
    };
    part_is_sent()?;
    let agent = agent()?;
    sys::kill(agent, libc::SIGSTOP)?;
    let mut buffer = vec![0; 1 << 20];
    p.result("a look before", sys::recv(fd, &mut buffer, libc::MSG_PEEK, false));
    part_is_sent()?;
    let there = sys::fionread(fd);
    let n = sys::recv(fd, &mut buffer, libc::MSG_PEEK, false);
    sys::kill(agent, libc::SIGCONT)?;
    let n = n?;
    let shortest_ring = 128 << 10;
    let enough = usize::try_from(there?).unwrap_or(0).min(EARLY + shortest_ring);
    p.say("a look saw what is in the ring", n >= enough);
    p.say("as it is", buffer[..n].iter().enumerate().all(|(i, b)| *b == pattern(i)));
    receive(p, fd, EARLY + RING_AND_MORE)?;
    sys::write(go.as_raw_fd(), &[0])?;
    p.say("the server", sys::wait_for(child)?);
    Ok(())
}
