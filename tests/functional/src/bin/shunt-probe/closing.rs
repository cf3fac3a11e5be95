//! How connections end.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use shunt_functional::sys;

use crate::probe::{
    Pair, Probe, address, connect_to, done, drain, listener, settle, try_recv, try_send,
};

/// The checks.
pub fn run(p: &mut Probe) -> io::Result<()> {
    half_close(p)?;
    unread_data(p)?;
    linger_zero(p)?;
    data_before_close(p)?;
    shutdown_read(p)?;
    programs_behind_the_end(p)?;
    early_client(p)?;
    closed_listener(p)
}

/// A program is started after the peer's end, while bytes lie unread: this one still gets them.
fn programs_behind_the_end(p: &Probe) -> io::Result<()> {
    for closes in [false, true] {
        let listener = listener()?;
        // The other end is not inherited.
        let client = sys::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC)?;
        sys::connect(client.as_raw_fd(), address(&listener)?)?;
        let (server, _) = sys::accept(listener.as_raw_fd(), 0)?;
        let pair = p.ready(Pair { client, server })?;
        sys::write(pair.c(), &[5; 5000])?;
        p.result("some", try_recv(pair.s(), 1000));
        let kept = if closes {
            drop(pair.client);
            None
        } else {
            sys::shutdown(pair.c(), libc::SHUT_WR)?;
            Some(pair.client)
        };
        settle();
        p.say("a program after the end", sys::system(c"true"));
        p.result("the rest", drain(pair.server.as_raw_fd()));
        p.result("then the end", try_recv(pair.server.as_raw_fd(), 10));
        if let Some(client) = kept {
            p.result("an answer", try_send(pair.server.as_raw_fd(), b"answer"));
            settle();
            p.result("arrives", try_recv(client.as_raw_fd(), 100));
        }
    }
    Ok(())
}

fn half_close(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    sys::write(pair.c(), b"last words")?;
    p.say("shutdown(WR)", done(sys::shutdown(pair.c(), libc::SHUT_WR)));
    settle();
    p.result("FIONREAD before the end", sys::fionread(pair.s()));
    p.result("the data comes first", try_recv(pair.s(), 100));
    p.result("then the end", try_recv(pair.s(), 100));
    p.result("and again", try_recv(pair.s(), 100));
    p.result("peek at the end", sys::recv(pair.s(), &mut [0; 4], libc::MSG_PEEK, false));
    p.result("recvmsg at the end", sys::recvmsg(pair.s(), &mut [0; 4], 1, 0).map(|r| r.len));
    p.result("FIONREAD at the end", sys::fionread(pair.s()));
    p.result("an answer", try_send(pair.s(), b"answer"));
    settle();
    p.result("arrives", try_recv(pair.c(), 100));
    p.say("shutdown(WR) again", done(sys::shutdown(pair.c(), libc::SHUT_WR)));
    drop(pair.server);
    settle();
    p.result("the other end closes", try_recv(pair.client.as_raw_fd(), 100));
    p.say(
        "shutdown after both are closed",
        done(sys::shutdown(pair.client.as_raw_fd(), libc::SHUT_RDWR)),
    );
    Ok(())
}

/// A close with unread data is a reset.
fn unread_data(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    sys::write(pair.c(), b"never read")?;
    settle();
    drop(pair.server);
    settle();
    let fd = pair.client.as_raw_fd();
    p.result("read after the peer closed with unread data", try_recv(fd, 10));
    p.result("read after that", try_recv(fd, 10));
    p.result("SO_ERROR after that", sys::get_option(fd, libc::SOL_SOCKET, libc::SO_ERROR));
    p.result("send after that", try_send(fd, b"x"));

    let pair = p.pair()?;
    sys::write(pair.s(), b"for the client")?;
    sys::write(pair.c(), b"never read")?;
    settle();
    drop(pair.server);
    settle();
    let fd = pair.client.as_raw_fd();
    p.result("SO_ERROR after a reset", sys::get_option(fd, libc::SOL_SOCKET, libc::SO_ERROR));
    p.result("read after that", try_recv(fd, 100));
    Ok(())
}

fn linger_zero(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    sys::linger(pair.s(), 0)?;
    drop(pair.server);
    settle();
    let fd = pair.client.as_raw_fd();
    p.result("read after SO_LINGER 0 and close", try_recv(fd, 10));
    p.result("read after that", try_recv(fd, 10));

    let pair = p.pair()?;
    sys::linger(pair.s(), 1)?;
    sys::write(pair.s(), b"lingering")?;
    drop(pair.server);
    settle();
    p.result("read after SO_LINGER 1 and close", try_recv(pair.client.as_raw_fd(), 100));
    p.result("then the end", try_recv(pair.client.as_raw_fd(), 100));
    Ok(())
}

/// A close in good order loses nothing, however much is on its way.
fn data_before_close(p: &Probe) -> io::Result<()> {
    for len in [1, 10_000, 100_000] {
        let pair = p.pair()?;
        let sent = sys::write(pair.c(), &vec![3; len])?;
        drop(pair.client);
        settle();
        let got = drain(pair.server.as_raw_fd())?;
        p.say("close after sending", format!("{sent} sent, {got} received"));
        p.result("then the end", try_recv(pair.server.as_raw_fd(), 1));
    }
    Ok(())
}

fn shutdown_read(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    sys::write(pair.c(), b"there already")?;
    settle();
    p.say("shutdown(RD)", done(sys::shutdown(pair.s(), libc::SHUT_RD)));
    p.result("data that was there", try_recv(pair.s(), 100));
    p.result("after it", try_recv(pair.s(), 100));
    p.result("the peer still sends", try_send(pair.c(), b"more"));
    settle();
    p.result("and it is read", try_recv(pair.s(), 100));
    p.result("the other direction", try_send(pair.s(), b"x"));
    settle();
    p.result("arrives", try_recv(pair.c(), 100));

    let pair = p.pair()?;
    p.say("shutdown(RDWR)", done(sys::shutdown(pair.c(), libc::SHUT_RDWR)));
    settle();
    p.result("own read", try_recv(pair.c(), 10));
    p.result("own send", try_send(pair.c(), b"x"));
    p.result("the peer's read", try_recv(pair.s(), 10));
    Ok(())
}

/// A client that is gone before the server accepts loses nothing.
fn early_client(p: &Probe) -> io::Result<()> {
    let listener = listener()?;
    if p.warm {
        drop(p.pair_with(&listener)?);
    }
    let client = connect_to(&listener)?;
    sys::write(client.as_raw_fd(), b"hello and goodbye")?;
    drop(client);
    settle();
    let (server, _) = sys::accept(listener.as_raw_fd(), 0)?;
    p.result("bytes of a client that has gone", try_recv(server.as_raw_fd(), 100));
    p.result("then the end", try_recv(server.as_raw_fd(), 100));

    let client = connect_to(&listener)?;
    sys::linger(client.as_raw_fd(), 0)?;
    drop(client);
    settle();
    sys::set_nonblocking(listener.as_raw_fd(), true)?;
    let accepted = sys::accept(listener.as_raw_fd(), 0);
    p.result(
        "accept of a client that has reset",
        accepted.as_ref().map(|_| "a socket").map_err(clone),
    );
    if let Ok((server, _)) = accepted {
        p.result("its first read", try_recv(server.as_raw_fd(), 10));
    }
    Ok(())
}

/// An error with the same code.
fn clone(error: &io::Error) -> io::Error {
    io::Error::from_raw_os_error(error.raw_os_error().unwrap_or(0))
}

/// A listener that closes resets the connections that nobody has accepted.
fn closed_listener(p: &Probe) -> io::Result<()> {
    let listener = listener()?;
    if p.warm {
        drop(p.pair_with(&listener)?);
    }
    let clients: Vec<OwnedFd> = (0..4).map(|_| connect_to(&listener)).collect::<io::Result<_>>()?;
    p.result("send into the backlog", try_send(clients[0].as_raw_fd(), b"x"));
    drop(listener);
    settle();
    for client in &clients {
        p.result("read after the listener has closed", try_recv(client.as_raw_fd(), 10));
    }
    p.result("send after that", try_send(clients[1].as_raw_fd(), b"x"));
    Ok(())
}
