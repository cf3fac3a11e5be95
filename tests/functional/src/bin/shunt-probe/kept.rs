//! A program runs another one, which inherits its connections and leaves them alone: it reads on itself, although the peer does
//! not look at the connection meanwhile.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

use libc::{POLLIN, POLLRDHUP, pollfd};
use shunt_functional::sys::{self, Epoll};

use crate::probe::{Pair, Probe, address, listener, settle, try_recv, try_send};
use crate::processes::in_child;

/// How the other program is run.
#[derive(Clone, Copy, Debug)]
enum Run {
    System,
    Popen,
    /// fork(2) and exec in the child.
    Child,
    /// An exec that fails.
    Fails,
}

/// Bytes that lie unread: a few, and more than a page.
const LENGTHS: [usize; 2] = [10, 20_000];

/// The checks.
pub fn run(p: &mut Probe) -> io::Result<()> {
    for how in [Run::System, Run::Popen, Run::Child, Run::Fails] {
        for len in LENGTHS {
            p.say("another program is run", format!("{how:?}, {len} unread"));
            reads_on(p, how, len)?;
            looks(p, how, len)?;
            reads_in_parts(p, how, len)?;
            runs_again(p, how, len)?;
            peer_ends(p, how, len)?;
            own_reading_is_shut(p, how, len)?;
            closes(p, how, len)?;
        }
    }
    Ok(())
}

fn run_program(how: Run, fd: RawFd) -> io::Result<()> {
    match how {
        Run::System => {
            sys::system(c":");
        }
        Run::Popen => {
            sys::popen(c":")?;
        }
        Run::Child => {
            let pid = in_child(|| {
                std::process::Command::new("true").status()?;
                Ok(())
            })?;
            sys::wait_for(pid)?;
        }
        Run::Fails => sys::exec_nothing(fd),
    }
    Ok(())
}

/// The other end is not inherited.
fn pair(p: &Probe) -> io::Result<Pair> {
    let listener = listener()?;
    let client = sys::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC)?;
    sys::connect(client.as_raw_fd(), address(&listener)?)?;
    let (server, _) = sys::accept(listener.as_raw_fd(), 0)?;
    p.ready(Pair { client, server })
}

fn ready(fd: RawFd) -> io::Result<String> {
    let mut fds = [pollfd { fd, events: POLLIN | POLLRDHUP, revents: 0 }];
    sys::poll(&mut fds, Some(Duration::ZERO))?;
    Ok(format!("{:#x}", fds[0].revents))
}

/// All that is there, and whether it is what was sent.
fn all(p: &Probe, fd: RawFd, expected: &[u8]) -> io::Result<()> {
    let mut got = vec![0; expected.len() + 1];
    let n = sys::recv(fd, &mut got, libc::MSG_DONTWAIT, false)?;
    p.say("bytes", n);
    p.say("are right", got[..n] == *expected);
    p.result("then", try_recv(fd, 10));
    Ok(())
}

fn bytes(len: usize, from: u8) -> Vec<u8> {
    (0..251).map(|n: u8| n.wrapping_add(from)).cycle().take(len).collect()
}

fn reads_on(p: &Probe, how: Run, len: usize) -> io::Result<()> {
    let pair = pair(p)?;
    sys::write(pair.c(), &bytes(len, 1))?;
    run_program(how, pair.s())?;
    all(p, pair.s(), &bytes(len, 1))?;
    // The peer looks, and what it would have sent once more was read.
    sys::write(pair.c(), b"more")?;
    settle();
    all(p, pair.s(), b"more")?;
    sys::write(pair.s(), b"answer")?;
    settle();
    all(p, pair.c(), b"answer")
}

fn looks(p: &Probe, how: Run, len: usize) -> io::Result<()> {
    let pair = pair(p)?;
    let mut set = Epoll::new(4)?;
    let mut edges = Epoll::new(4)?;
    set.control(libc::EPOLL_CTL_ADD, pair.s(), libc::EPOLLIN.cast_unsigned(), 1)?;
    let on_edge = (libc::EPOLLIN | libc::EPOLLET).cast_unsigned();
    edges.control(libc::EPOLL_CTL_ADD, pair.s(), on_edge, 1)?;
    sys::write(pair.c(), &bytes(len, 2))?;
    run_program(how, pair.s())?;
    settle();
    p.say("poll", ready(pair.s())?);
    p.result("FIONREAD", sys::fionread(pair.s()));
    for set in [&mut set, &mut edges] {
        p.say("epoll", set.wait(Some(Duration::ZERO))?.len());
    }
    let mut got = vec![0; len];
    let peeked = sys::recv(pair.s(), &mut got, libc::MSG_PEEK | libc::MSG_DONTWAIT, false)?;
    p.say("peek", peeked);
    p.say("is right", got[..peeked] == bytes(len, 2)[..peeked]);
    p.result("FIONREAD", sys::fionread(pair.s()));
    all(p, pair.s(), &bytes(len, 2))?;
    p.say("poll", ready(pair.s())?);
    p.result("FIONREAD", sys::fionread(pair.s()));
    sys::write(pair.c(), b"more")?;
    settle();
    for set in [&mut set, &mut edges] {
        p.say("epoll", set.wait(Some(Duration::ZERO))?.len());
    }
    p.say("poll", ready(pair.s())?);
    all(p, pair.s(), b"more")
}

/// Some before the peer looks, some after it.
fn reads_in_parts(p: &Probe, how: Run, len: usize) -> io::Result<()> {
    let pair = pair(p)?;
    sys::write(pair.c(), &bytes(len, 3))?;
    run_program(how, pair.s())?;
    p.result("a part", try_recv(pair.s(), 4));
    // It looks, and sends once more what was not read.
    p.result("the peer looks", try_recv(pair.c(), 4));
    settle();
    p.result("FIONREAD", sys::fionread(pair.s()));
    p.result("a part", try_recv(pair.s(), 3));
    sys::write(pair.c(), b"more")?;
    settle();
    let mut expected = bytes(len, 3).split_off(7);
    expected.extend(b"more");
    p.result("FIONREAD", sys::fionread(pair.s()));
    let mut got = vec![0; expected.len()];
    p.result("the rest", sys::recv(pair.s(), &mut got, libc::MSG_WAITALL, false));
    p.say("is right", got == expected);
    Ok(())
}

/// Between the reads.
fn runs_again(p: &Probe, how: Run, len: usize) -> io::Result<()> {
    let pair = pair(p)?;
    sys::write(pair.c(), &bytes(len, 4))?;
    run_program(how, pair.s())?;
    p.result("a part", try_recv(pair.s(), 4));
    run_program(how, pair.s())?;
    p.result("a part", try_recv(pair.s(), 3));
    run_program(how, pair.s())?;
    p.result("the peer looks", try_recv(pair.c(), 4));
    settle();
    let expected = bytes(len, 4).split_off(7);
    p.say("poll", ready(pair.s())?);
    all(p, pair.s(), &expected)?;
    p.result("an answer", try_send(pair.s(), b"answer"));
    settle();
    all(p, pair.c(), b"answer")
}

fn peer_ends(p: &Probe, how: Run, len: usize) -> io::Result<()> {
    let Pair { client, server } = pair(p)?;
    sys::write(client.as_raw_fd(), &bytes(len, 5))?;
    run_program(how, server.as_raw_fd())?;
    p.result("a part", try_recv(server.as_raw_fd(), 4));
    sys::shutdown(client.as_raw_fd(), libc::SHUT_WR)?;
    settle();
    p.say("poll", ready(server.as_raw_fd())?);
    all(p, server.as_raw_fd(), &bytes(len, 5).split_off(4))?;
    drop(server);
    settle();
    p.result("the peer's end", try_recv(client.as_raw_fd(), 4));
    Ok(())
}

fn own_reading_is_shut(p: &Probe, how: Run, len: usize) -> io::Result<()> {
    let pair = pair(p)?;
    sys::write(pair.c(), &bytes(len, 6))?;
    settle();
    run_program(how, pair.s())?;
    sys::shutdown(pair.s(), libc::SHUT_RD)?;
    all(p, pair.s(), &bytes(len, 6))
}

/// All was read, so the end is none by reset.
fn closes(p: &Probe, how: Run, len: usize) -> io::Result<()> {
    let Pair { client, server } = pair(p)?;
    sys::write(client.as_raw_fd(), &bytes(len, 7))?;
    run_program(how, server.as_raw_fd())?;
    all(p, server.as_raw_fd(), &bytes(len, 7))?;
    drop::<OwnedFd>(server);
    settle();
    p.result("the peer's end", try_recv(client.as_raw_fd(), 4));
    p.result("a send", try_send(client.as_raw_fd(), b"x"));
    Ok(())
}
