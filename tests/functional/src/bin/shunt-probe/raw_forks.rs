//! Forks of which libc is told nothing. What the parent closes before the child's first call is open in the child, and what its
//! calls still hold is not.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::thread;
use std::time::Duration;

use shunt_functional::sys::{self, Forked, RawFork};

use crate::probe::{Pair, Probe, done, recv_soon, settle, show, try_recv, try_send, warm_up};

/// Time for a thread to be asleep in its call.
const ASLEEP: Duration = Duration::from_millis(60);

/// The checks.
pub fn run(p: &mut Probe) -> io::Result<()> {
    for how in [RawFork::Clone, RawFork::CloneInto, RawFork::Fork, RawFork::Function] {
        p.say("fork", format!("{how:?}"));
        closed_before_the_first_call(p, how)?;
        bytes_before_and_after(p, how)?;
        child_without_a_call(p, how)?;
        closed_under_a_thread(p, how)?;
        both_go_on(p, how)?;
        in_generations(p, how)?;
    }
    p.say("a fork that shares descriptors", shares_descriptors(p)?);
    Ok(())
}

/// A child that waits for a word, and whose answers the parent reads.
struct Child {
    pid: libc::pid_t,
    tell: OwnedFd,
    hear: OwnedFd,
}

impl Child {
    /// `body` says one thing for each word.
    fn new(how: RawFork, body: impl Fn(u8) -> String) -> io::Result<Self> {
        let (told, tell) = sys::pipe()?;
        let (hear, answers) = sys::pipe()?;
        match sys::fork_raw_by(how)? {
            Forked::Parent(pid) => Ok(Self { pid, tell, hear }),
            Forked::Child => {
                drop(tell);
                let mut word = [0];
                while matches!(sys::read(told.as_raw_fd(), &mut word), Ok(1)) {
                    let mut answer = body(word[0]).into_bytes();
                    answer.resize(100, b' ');
                    if sys::write(answers.as_raw_fd(), &answer).is_err() {
                        break;
                    }
                }
                sys::exit_now(0)
            }
        }
    }

    fn ask(&self, word: u8) -> io::Result<String> {
        sys::write(self.tell.as_raw_fd(), &[word])?;
        let mut answer = [0; 100];
        let n = sys::read(self.hear.as_raw_fd(), &mut answer)?;
        Ok(String::from_utf8_lossy(&answer[..n]).trim().to_owned())
    }

    /// It ends.
    fn ends(self) -> io::Result<libc::c_int> {
        drop(self.tell);
        sys::wait_for(self.pid)
    }
}

fn receives(fd: RawFd) -> String {
    let mut got = [0; 100];
    show(sys::recv(fd, &mut got, 0, false).map(|n| format!("{n} {:?}", &got[..n.min(3)])))
}

fn closed_before_the_first_call(p: &Probe, how: RawFork) -> io::Result<()> {
    for closes_client in [true, false] {
        let Pair { client, server } = p.pair()?;
        let (ours, peer) = if closes_client { (client, server) } else { (server, client) };
        let (fd, other) = (ours.as_raw_fd(), peer.as_raw_fd());
        let child = Child::new(how, |word| match word {
            b'r' => receives(fd),
            _ => show(try_send(fd, b"of the child")),
        })?;
        // The child has the peer's end, too, so that is not looked at.
        drop(ours);
        settle();
        p.result("no end", try_recv(other, 10));
        p.result("a send", try_send(other, b"hello"));
        p.say("the child receives", child.ask(b'r')?);
        p.say("and sends", child.ask(b's')?);
        p.result("which arrives", recv_soon(other, 100));
        p.result("another", try_send(other, b"again"));
        p.say("the child receives", child.ask(b'r')?);
        p.say("the child", child.ends()?);
        p.result("the end", recv_soon(other, 100));
    }
    Ok(())
}

/// What lay unread when the parent closed is the child's.
fn bytes_before_and_after(p: &Probe, how: RawFork) -> io::Result<()> {
    let Pair { client, server } = p.pair()?;
    let (fd, other) = (client.as_raw_fd(), server.as_raw_fd());
    p.result("before the fork", try_send(other, b"123"));
    let child = Child::new(how, |_| receives(fd))?;
    p.result("after it", try_send(other, b"45"));
    settle();
    drop(client);
    p.result("after the close", try_send(other, b"6"));
    settle();
    p.say("the child receives", child.ask(b'r')?);
    sys::shutdown(other, libc::SHUT_WR)?;
    p.say("and the end", child.ask(b'r')?);
    p.say("the child", child.ends()?);
    p.result("the end", recv_soon(other, 100));
    Ok(())
}

fn child_without_a_call(p: &Probe, how: RawFork) -> io::Result<()> {
    let Pair { client, server } = p.pair()?;
    let child = Child::new(how, |_| String::new())?;
    p.say("with a child", done(warm_up(client.as_raw_fd(), server.as_raw_fd())));
    drop(client);
    settle();
    p.result("no end", try_recv(server.as_raw_fd(), 10));
    p.say("the child", child.ends()?);
    p.result("the end", recv_soon(server.as_raw_fd(), 10));

    // The other way round.
    let Pair { client, server } = p.pair()?;
    let child = Child::new(how, |_| String::new())?;
    p.say("the child", child.ends()?);
    p.result("no end", try_recv(server.as_raw_fd(), 10));
    p.say("goes on", done(warm_up(client.as_raw_fd(), server.as_raw_fd())));
    drop(client);
    p.result("the end", recv_soon(server.as_raw_fd(), 10));
    Ok(())
}

/// Another thread is in a call on what is closed: the child has nothing of that.
fn closed_under_a_thread(p: &Probe, how: RawFork) -> io::Result<()> {
    let Pair { client, server } = p.pair()?;
    let (fd, other) = (client.as_raw_fd(), server.as_raw_fd());
    thread::scope(|scope| {
        let reader = scope.spawn(move || receives(fd));
        thread::sleep(ASLEEP);
        drop(client);
        let child = Child::new(how, |_| String::new())?;
        sys::shutdown(other, libc::SHUT_WR)?;
        p.say("the call ends", reader.join().unwrap_or_default());
        p.result("and with it the connection", recv_soon(other, 10));
        p.say("the child", child.ends()?);
        io::Result::Ok(())
    })
}

fn both_go_on(p: &Probe, how: RawFork) -> io::Result<()> {
    let pair = p.pair()?;
    let (fd, other) = (pair.c(), pair.s());
    let child = Child::new(how, |word| match word {
        b'r' => receives(fd),
        _ => show(try_send(fd, b"child")),
    })?;
    for _ in 0..3 {
        p.say("the child sends", child.ask(b's')?);
        p.result("and the parent", try_send(fd, b"parent"));
        settle();
        p.result("both arrive", try_recv(other, 100));
        p.result("to the child", try_send(other, b"a"));
        p.say("it receives", child.ask(b'r')?);
        p.result("to the parent", try_send(other, b"bc"));
        p.result("it receives", recv_soon(fd, 100));
    }
    p.say("the child", child.ends()?);
    Ok(())
}

/// A child's child, when both before it have closed.
fn in_generations(p: &Probe, how: RawFork) -> io::Result<()> {
    let Pair { client, server } = p.pair()?;
    let (fd, other) = (client.as_raw_fd(), server.as_raw_fd());
    let (told, tell) = sys::pipe()?;
    let child = match sys::fork_raw_by(how)? {
        Forked::Child => {
            drop(tell);
            if let Ok(Forked::Child) = sys::fork_raw_by(how) {
                // When the one before it has ended.
                let _ = sys::read(told.as_raw_fd(), &mut [0]);
                let _ = sys::write(fd, receives(fd).as_bytes());
            } else {
                drop(client);
            }
            sys::exit_now(0)
        }
        Forked::Parent(pid) => pid,
    };
    drop(client);
    p.say("the child", sys::wait_for(child)?);
    p.result("a send", try_send(other, b"xyz"));
    sys::write(tell.as_raw_fd(), b"x")?;
    p.result("an answer", recv_soon(other, 100));
    p.result("the end", recv_soon(other, 100));
    Ok(())
}

/// That is none of a fork: a close in the child closes for both.
fn shares_descriptors(p: &Probe) -> io::Result<String> {
    let Pair { client, server } = p.pair()?;
    let fd = client.as_raw_fd();
    let flags = libc::CLONE_FILES | libc::SIGCHLD;
    let pid = match sys::fork_raw_with(flags)? {
        Forked::Child => sys::exit_now(i32::from(try_send(fd, b"child").is_err())),
        Forked::Parent(pid) => pid,
    };
    p.say("the child", sys::wait_for(pid)?);
    Ok(show(recv_soon(server.as_raw_fd(), 100)))
}
