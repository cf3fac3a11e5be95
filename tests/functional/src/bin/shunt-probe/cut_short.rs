//! A call that has sent some of its bytes waits for room while the connection is reset: it returns what it has sent, and the
//! reset is the next call's to hear, once, whichever that is.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::thread;
use std::time::Duration;

use libc::{POLLIN, POLLOUT, POLLRDHUP, SO_ERROR, SOL_SOCKET, pollfd};
use shunt_functional::sys::{self, ListenOptions};

use crate::probe::{Pair, Probe, address, connect_to, loopback, settle, sleeper, try_recv};

/// More than all buffers take.
const MANY: usize = 32 << 20;

/// Which end sends, and what the other one is.
#[derive(Clone, Copy, Debug)]
enum Case {
    /// The connecting end, which nobody accepts: the listener is closed.
    NotAccepted,
    /// The same, with buffers for hardly anything.
    NotAcceptedSmall,
    /// The connecting end; the accepted one is closed without a call.
    Client,
    /// The same with small buffers.
    ClientSmall,
    /// The accepted end.
    Server,
    /// The same, and the other end has sent something that is not read.
    ServerUnread,
}

/// The calls that come next.
#[derive(Clone, Copy, Debug)]
enum Next {
    Send,
    Receive,
    Option,
    Poll,
}

/// The checks.
pub fn run(p: &mut Probe) -> io::Result<()> {
    sys::set_signal_counter(libc::SIGPIPE)?;
    for case in [
        Case::NotAccepted,
        Case::NotAcceptedSmall,
        Case::Client,
        Case::ClientSmall,
        Case::Server,
        Case::ServerUnread,
    ] {
        for next in [Next::Send, Next::Receive, Next::Option, Next::Poll] {
            p.say("reset in the middle of a send", format!("{case:?}, then {next:?}"));
            cut_short(p, case, next)?;
        }
    }
    sys::reset_signal(libc::SIGPIPE)
}

fn cut_short(p: &Probe, case: Case, next: Next) -> io::Result<()> {
    let (from, to) = ends(p, case)?;
    let fd = from.as_raw_fd();
    let sent = thread::scope(|scope| {
        let (begins, sleeper) = sleeper();
        let sender = scope.spawn(|| {
            let bytes = vec![3; MANY];
            begins();
            sys::write(fd, &bytes)
        });
        sleeper.sleeps()?;
        drop(to);
        sender.join().map_err(|_| io::Error::other("the sender panicked"))
    })?;
    match sent {
        Ok(n) => p.say("sent some", n > 0 && n < MANY),
        Err(e) => p.result::<usize>("sent none", Err(e)),
    }
    settle();
    calls(p, fd, next)
}

/// The end that sends, and what is closed.
fn ends(p: &Probe, case: Case) -> io::Result<(OwnedFd, OwnedFd)> {
    if matches!(case, Case::Server | Case::ServerUnread) {
        let Pair { client, server } = p.pair()?;
        if matches!(case, Case::ServerUnread) {
            sys::write(client.as_raw_fd(), b"not read in time")?;
        }
        return Ok((server, client));
    }
    let listener = sys::listen(loopback(0), ListenOptions::default())?;
    let is_small = matches!(case, Case::NotAcceptedSmall | Case::ClientSmall);
    let client = if is_small {
        sys::set_buffers(listener.as_raw_fd(), 1)?;
        connect_small(address(&listener)?)?
    } else {
        connect_to(&listener)?
    };
    Ok(match case {
        Case::NotAccepted | Case::NotAcceptedSmall => (client, listener),
        _ => (client, sys::accept(listener.as_raw_fd(), 0)?.0),
    })
}

fn connect_small(to: SocketAddr) -> io::Result<OwnedFd> {
    let client = sys::socket(libc::AF_INET, libc::SOCK_STREAM)?;
    sys::set_buffers(client.as_raw_fd(), 1)?;
    sys::connect(client.as_raw_fd(), to)?;
    Ok(client)
}

fn calls(p: &Probe, fd: RawFd, next: Next) -> io::Result<()> {
    let signals = sys::signal_count();
    let send = || p.result("send", sys::write(fd, b"x"));
    let receive = || p.result("receive", try_recv(fd, 100));
    let option = || p.result("SO_ERROR", sys::get_option(fd, SOL_SOCKET, SO_ERROR));
    let look = || -> io::Result<()> {
        let events = POLLIN | POLLOUT | POLLRDHUP;
        let mut fds = [pollfd { fd, events, revents: 0 }];
        sys::poll(&mut fds, Some(Duration::ZERO))?;
        p.say("poll", format!("{:#x}", fds[0].revents));
        Ok(())
    };
    match next {
        Next::Send => {
            send();
            p.say("signals", sys::signal_count() - signals);
            send();
            receive();
            option();
        }
        Next::Receive => {
            p.result("what was there", drained(fd));
            receive();
            receive();
            send();
        }
        Next::Option => {
            option();
            option();
            send();
        }
        Next::Poll => {
            look()?;
            look()?;
            send();
            look()?;
        }
    }
    p.say("signals", sys::signal_count() - signals);
    Ok(())
}

/// Everything up to the end, or to the error, which is returned.
fn drained(fd: RawFd) -> io::Result<usize> {
    let mut all = 0;
    loop {
        match try_recv(fd, 100)? {
            0 => return Ok(all),
            n => all += n,
        }
    }
}
