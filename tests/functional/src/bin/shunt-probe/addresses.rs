//! Names of sockets.

use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};

use shunt_functional::sys::{self, ListenOptions};

use crate::probe::{Probe, address, loopback, settle, show, try_recv, warm_up};

/// The checks.
pub fn run(p: &mut Probe) -> io::Result<()> {
    names(p)?;
    families(p)?;
    bound_client(p)?;
    second_listener(p)
}

/// An address without its port, which is never the same.
fn show_ip(addr: io::Result<sys::RawAddr>) -> String {
    match addr {
        Ok(raw) => format!("{:?}, {} bytes", raw.get().map(|a| a.ip()), raw.len),
        Err(e) => sys::errno_name(&e),
    }
}

fn same(p: &Probe, what: &str, a: &sys::RawAddr, b: &sys::RawAddr) {
    p.say(what, a.get() == b.get() && a.len == b.len);
}

fn look(p: &Probe, who: &str, fd: RawFd) {
    p.say(&format!("getsockname of {who}"), show_ip(sys::local_addr(fd)));
    p.say(&format!("getpeername of {who}"), show_ip(sys::peer_addr(fd)));
}

fn names(p: &Probe) -> io::Result<()> {
    let fresh = sys::socket(libc::AF_INET, libc::SOCK_STREAM)?;
    look(p, "a new socket", fresh.as_raw_fd());
    let listener = sys::listen(loopback(0), ListenOptions::default())?;
    look(p, "a listener", listener.as_raw_fd());
    let addr = address(&listener)?;
    p.say("port 0 has become a port", addr.port() != 0);
    sys::connect(fresh.as_raw_fd(), addr)?;
    let (server, accepted) = sys::accept(listener.as_raw_fd(), 0)?;
    if p.warm {
        warm_up(fresh.as_raw_fd(), server.as_raw_fd())?;
    }
    look(p, "the client", fresh.as_raw_fd());
    look(p, "the server", server.as_raw_fd());
    let (c, s) = (fresh.as_raw_fd(), server.as_raw_fd());
    same(p, "accept's address is the peer's", &accepted, &sys::peer_addr(s)?);
    same(p, "the peer's is the client's", &accepted, &sys::local_addr(c)?);
    same(p, "and the other way", &sys::peer_addr(c)?, &sys::local_addr(s)?);
    sys::shutdown(c, libc::SHUT_RDWR)?;
    drop(server);
    settle();
    look(p, "the client at the end", c);
    Ok(())
}

fn families(p: &Probe) -> io::Result<()> {
    let six = SocketAddr::from((Ipv6Addr::LOCALHOST, 0));
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
    let mapped = SocketAddr::from((
        loopback(0)
            .ip()
            .to_string()
            .parse::<std::net::Ipv4Addr>()
            .map_err(io::Error::other)?
            .to_ipv6_mapped(),
        0,
    ));
    let other = SocketAddr::from(([127, 0, 0, 2], 0));
    let all = SocketAddr::from(([0, 0, 0, 0], 0));
    for (what, listen, to, v6_only) in [
        ("::1", six, six, false),
        (":: by ::1", any, six, false),
        (":: by 127.0.0.1", any, loopback(0), false),
        (":: by ::ffff:127.0.0.1", any, mapped, false),
        (":: with IPV6_V6ONLY by ::1", any, six, true),
        (":: with IPV6_V6ONLY by 127.0.0.1", any, loopback(0), true),
        ("127.0.0.2", other, other, false),
        ("0.0.0.0 by 127.0.0.2", all, other, false),
        ("127.0.0.1 by 127.0.0.2", loopback(0), other, false),
    ] {
        let listener = sys::listen(listen, ListenOptions { v6_only, ..Default::default() })?;
        let mut to = to;
        to.set_port(address(&listener)?.port());
        let domain = if to.is_ipv6() { libc::AF_INET6 } else { libc::AF_INET };
        let client = sys::socket(domain, libc::SOCK_STREAM)?;
        if let Err(e) = sys::connect(client.as_raw_fd(), to) {
            p.say(&format!("connect to {what}"), sys::errno_name(&e));
            continue;
        }
        let (server, _) = sys::accept(listener.as_raw_fd(), 0)?;
        warm_up(client.as_raw_fd(), server.as_raw_fd())?;
        look(p, &format!("{what}, client"), client.as_raw_fd());
        look(p, &format!("{what}, server"), server.as_raw_fd());
    }
    Ok(())
}

/// A client that binds before it connects.
fn bound_client(p: &Probe) -> io::Result<()> {
    let listener = sys::listen(loopback(0), ListenOptions::default())?;
    let to = address(&listener)?;
    let bound = sys::listen(
        SocketAddr::from(([127, 0, 0, 3], 0)),
        ListenOptions { backlog: None, ..Default::default() },
    )?;
    let before = sys::local_addr(bound.as_raw_fd())?;
    sys::connect(bound.as_raw_fd(), to)?;
    let (server, accepted) = sys::accept(listener.as_raw_fd(), 0)?;
    same(p, "a bound client keeps its name", &before, &accepted);
    warm_up(bound.as_raw_fd(), server.as_raw_fd())?;
    look(p, "the server of a bound client", server.as_raw_fd());
    Ok(())
}

/// Two listeners at one port, on different addresses, keep their clients apart.
fn second_listener(p: &Probe) -> io::Result<()> {
    let one = sys::listen(loopback(0), ListenOptions::default())?;
    let port = address(&one)?.port();
    let second = SocketAddr::from(([127, 0, 0, 2], port));
    let two = match sys::listen(second, ListenOptions::default()) {
        Ok(two) => two,
        // Another program has the port there: say what the check would have said.
        Err(e) if e.kind() == io::ErrorKind::AddrInUse => return second_listener(p),
        Err(e) => return Err(e),
    };
    for (name, to, listener) in [("first", loopback(port), &one), ("second", second, &two)] {
        let client = sys::socket(libc::AF_INET, libc::SOCK_STREAM)?;
        sys::connect(client.as_raw_fd(), to)?;
        let (server, _) = sys::accept(listener.as_raw_fd(), 0)?;
        sys::write(client.as_raw_fd(), name.as_bytes())?;
        settle();
        p.result(&format!("the {name} listener's client"), try_recv(server.as_raw_fd(), 10));
    }
    let again = sys::listen(loopback(port), ListenOptions::default());
    p.say("a second listener at the same address", show(again.map(|_| "listens")));
    Ok(())
}
