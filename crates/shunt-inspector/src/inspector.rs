//! The process that receives what strangers pass. It may be stuck in any of its calls, and killed.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{
    CWD, OFlags, SealFlags, fcntl_get_seals, fcntl_getfl, fcntl_setfl, readlinkat_raw,
};
use rustix::io::{Errno, Result};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use shunt_sys::fds::close;
use shunt_sys::{seqpacket, sockinfo};
use shunt_wire::agent::{MAX_FDS, MAX_MESSAGE, Request, decode, encode};

use crate::Socket;
use crate::said::{BURY, INSPECT, Kind, MAX_SAID, Said};

/// How long it takes whom the answers are for to make room for one, at the most.
const PATIENCE: Duration = Duration::from_secs(60);

/// Does what is asked at `master` until nobody is there any more. What is to be let go of lies in the queue of `grave`.
pub fn run(master: &OwnedFd, grave: &OwnedFd) -> Result<()> {
    fcntl_setfl(master, fcntl_getfl(master)? - OFlags::NONBLOCK)?;
    let own = pidfd_open(getpid(), PidfdFlags::empty())?;
    say(master, &Said::Ready, &[own.as_fd()])?;
    close(own);
    loop {
        let (mut order, mut client) = ([0], None);
        let (len, _) = seqpacket::recv_all(master, &mut order, |fd| client = Some(fd))?;
        match (order[0], client) {
            _ if len == 0 => return Ok(()),
            (INSPECT, Some(client)) => inspect(master, client)?,
            (BURY, None) => {
                // Without receiving it.
                seqpacket::discard(grave, &mut [])?;
                say(master, &Said::Done, &[])?;
            }
            _ => return Err(Errno::BADMSG),
        }
    }
}

fn say(master: &OwnedFd, said: &Said<'_>, with: &[BorrowedFd<'_>]) -> Result<()> {
    let mut room = [0; MAX_SAID];
    let bytes = encode(said, &mut room).map_err(|_| Errno::MSGSIZE)?;
    seqpacket::send(master, bytes, with, PATIENCE)
}

fn inspect(master: &OwnedFd, client: OwnedFd) -> Result<()> {
    let mut buf = [0; MAX_MESSAGE];
    let mut fds = Vec::new();
    let received = seqpacket::recv_all(&client, &mut buf, |fd| fds.push(fd));
    let whole = received.ok().filter(|(_, whole)| *whole && fds.len() <= MAX_FDS);
    let packet = whole.map(|(len, _)| &buf[..len]);
    let (mut things, mut passed_on) = (Vec::new(), Vec::new());
    let keeps = packet.is_some_and(keeps_sockets);
    for fd in fds {
        let kind = match (packet.map(|_| look_at(&fd)), keeps) {
            (Some(Kind::Socket(socket)), true) => Kind::Kept(socket),
            (kind, _) => kind.unwrap_or(Kind::Other),
        };
        if kind.is_passed_on() {
            passed_on.push(fd);
        } else {
            // Before the answer: the agent keeps no socket of a program's open but for a while, where it is to speak on it.
            close(fd);
        }
        things.push(kind);
    }
    if packet.is_none() {
        things.clear();
    }
    // It may be thrown away by its owner meanwhile, with all that is in its queue.
    close(client);
    let with: Vec<_> = passed_on.iter().map(AsFd::as_fd).collect();
    say(master, &Said::Seen { packet, things }, &with)?;
    if !passed_on.is_empty() {
        passed_on.into_iter().for_each(close);
        say(master, &Said::Done, &[])?;
    }
    Ok(())
}

/// True for a packet whose socket is needed as long as the agent speaks on it.
fn keeps_sockets(packet: &[u8]) -> bool {
    matches!(decode(packet), Ok(Request::Mark { .. }))
}

/// What a descriptor is. Whatever it is asked first is answered by the kernel alone, without the descriptor's own code.
fn look_at(fd: &OwnedFd) -> Kind {
    if sockinfo::is_tcp(fd) {
        return socket(fd).map_or(Kind::Other, Kind::Socket);
    }
    if fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(SealFlags::SHRINK)) {
        return Kind::Memory;
    }
    // Names of files begin with a slash, or an opening parenthesis.
    match name(fd, &mut [MaybeUninit::uninit(); 64]) {
        b"anon_inode:[eventfd]" => Kind::Bell,
        name if name.starts_with(b"pipe:[") => Kind::Pipe,
        _ => Kind::Other,
    }
}

/// As `/proc/self/fd` has it, the beginning of it.
fn name<'a>(fd: &OwnedFd, room: &'a mut [MaybeUninit<u8>]) -> &'a [u8] {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    readlinkat_raw(CWD, path, room).map_or(&[], |(name, _)| name)
}

fn socket(fd: &OwnedFd) -> Result<Socket> {
    Ok(Socket {
        cookie: sockinfo::cookie(fd)?,
        netns: sockinfo::netns_cookie(fd),
        listens: sockinfo::is_listening(fd),
        v6only: sockinfo::is_v6only(fd),
        local: sockinfo::local_addr(fd).ok(),
        peer: sockinfo::peer_addr(fd).ok(),
    })
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_thing_is_what_the_kernel_says_it_is() {
        let (reader, _writer) = std::io::pipe().unwrap();
        assert_eq!(look_at(&reader.into()), Kind::Pipe);
        let eventfd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        assert_eq!(look_at(&eventfd), Kind::Bell);
        let temp = tempfile::tempdir().unwrap();
        for file in ["anon_inode:[eventfd]", "pipe:[1]"] {
            let file = File::create(temp.path().join(file)).unwrap();
            assert_eq!(look_at(&file.into()), Kind::Other);
        }
        let memory = |name: &str| {
            let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
            rustix::fs::memfd_create(name, flags).unwrap()
        };
        let sealed = memory("anon_inode:[eventfd]");
        assert_eq!(look_at(&sealed), Kind::Other, "not sealed");
        rustix::fs::fcntl_add_seals(&sealed, SealFlags::SHRINK).unwrap();
        assert_eq!(look_at(&sealed), Kind::Memory);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let Kind::Socket(socket) = look_at(&listener.into()) else { panic!("a socket") };
        assert!(socket.listens && socket.local == Some(at.into()) && socket.peer.is_none());
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!(look_at(&udp.into()), Kind::Other);
    }
}
