//! What a client sends along may block whoever closes it for as long as the client likes. Others are served meanwhile, and
//! the server can end.

mod common;

use std::any::Any;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use common::{Client, PATIENCE, Running, place};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, sendmsg};
use shunt_blocking::{Lingering, chain};
use shunt_ivshmem::endpoint::control_path;
use shunt_sys::seqpacket;

/// In whose queue there is a socket that lingers: whoever throws that queue away closes it last.
fn blocking() -> (OwnedFd, Box<dyn Any>) {
    let (socket, keeper) = Lingering::connect(Duration::from_secs(3600)).unwrap();
    (chain(1, socket).unwrap(), Box::new(keeper))
}

/// Sends a byte with it, and has it no more.
fn pass(to: impl AsFd, fd: OwnedFd) {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut room);
    let fds = [fd.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    // It may have hung up before, and then it goes on being this one's.
    let sent = sendmsg(to, &[IoSlice::new(b"x")], &mut control, SendFlags::NOSIGNAL);
    if sent.is_err() {
        return std::mem::forget(fd);
    }
    // Most of the time before the server does, which then is the last. Where it is not, this waits instead.
    std::thread::spawn(move || drop(fd));
}

#[test]
fn others_are_served_and_it_ends() {
    let (_dir, path) = place();
    let mut server = Running::limited(&path, 1, |limits| limits.peers = 4);
    let mut other = server.introduced(0);
    let mut kept = Vec::new();
    for _ in 0..4 {
        // Before it is introduced, and after.
        for introduced in [false, true] {
            let mut client = server.client();
            if introduced {
                client.introduce();
            }
            let (fd, keeper) = blocking();
            pass(&client.socket, fd);
            kept.push(keeper);
            client.hung_up();
            // Those are served who come, and those who are there.
            let late = server.introduced(1);
            other.until("it is told", |c| c.peers.contains_key(&late.id));
            drop(late);
            other.until("it is told of the end", |c| c.peers.is_empty());
        }
    }
    server.until(&8, |report| report.totals.dropped.sent);

    // Whoever is turned away, at either socket.
    let crowd: Vec<_> = (0..3).map(|_| server.client()).collect();
    server.until(&4, |report| report.peers.len());
    for _ in 0..4 {
        let (fd, keeper) = blocking();
        pass(&Client::connect(&path).socket, fd);
        kept.push(keeper);
        let (fd, keeper) = blocking();
        let control = SocketAddrUnix::new(control_path(&path)).unwrap();
        pass(seqpacket::connect(&control).unwrap(), fd);
        kept.push(keeper);
        assert_eq!(server.status().peers.len(), 4);
    }
    let began = Instant::now();
    server.stop();
    assert!(began.elapsed() < PATIENCE);
    drop((crowd, kept));
}
