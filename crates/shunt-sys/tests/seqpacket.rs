//! Packets with descriptors between two sockets.

use std::iter::from_fn;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::{Errno, FdFlags, fcntl_getfd};
use rustix::net::SocketAddrUnix;
use rustix::process::{WaitOptions, getpid, waitpid};
use shunt_sys::fds::Fds;
use shunt_sys::process::fork_to;
use shunt_sys::seqpacket::{
    Peeked, connect, connect_within, end_drained, pair, peek, peek_sender, peer_cred, recv, send,
    send_all, socket, tell_senders,
};
use shunt_wire::agent::MAX_FDS;

const AT_ONCE: Duration = Duration::ZERO;

fn some_fd() -> OwnedFd {
    std::fs::File::open("/dev/null").unwrap().into()
}

#[test]
fn bytes_and_descriptors_arrive_in_order() {
    let (a, b) = pair().unwrap();
    let (one, two) = (some_fd(), std::fs::File::open("/dev/zero").unwrap());
    send(&a, b"hello", &[one.as_fd(), two.as_fd()], AT_ONCE).unwrap();
    let (mut buf, mut fds) = ([0; 64], Fds::new());
    assert_eq!(recv(&b, &mut buf, &mut fds, AT_ONCE), Ok(5));
    assert_eq!(&buf[..5], b"hello");
    assert_eq!(fds.len(), 2);
    let path = |fd: &OwnedFd| std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    let (first, second) = (fds.take().unwrap(), fds.take().unwrap());
    assert_eq!(path(&first).unwrap().to_str(), Some("/dev/null"));
    assert_eq!(path(&second).unwrap().to_str(), Some("/dev/zero"));
    assert!(fcntl_getfd(&first).unwrap().contains(FdFlags::CLOEXEC));
    assert!(fds.is_empty() && fds.take().is_none());
}

#[test]
fn the_sender_is_told_and_no_descriptor_received() {
    let (a, b) = pair().unwrap();
    let (mut buf, mut fds) = ([0; 8], Fds::new());
    assert_eq!(peek_sender(&b, &mut buf), Err(Errno::AGAIN));
    tell_senders(&b, true).unwrap();
    let packet = b"packet";
    // SAFETY: the child makes a system call, on memory that it has.
    let child = unsafe {
        fork_to(|| {
            let _sent = send(&a, packet, &[], AT_ONCE);
        })
    };
    let child = child.unwrap();
    waitpid(Some(child), WaitOptions::empty()).unwrap();
    send(&a, b"longer than there is room", &[some_fd().as_fd()], AT_ONCE).unwrap();
    let peeked = Peeked { len: 6, is_longer: false, has_fds: false };
    assert_eq!(peek_sender(&b, &mut buf), Ok((peeked, Some(child))));
    assert_eq!(&buf[..6], packet);
    assert_eq!(recv(&b, &mut buf, &mut fds, AT_ONCE), Ok(6));
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open();
    let peeked = Peeked { len: 8, is_longer: true, has_fds: true };
    assert_eq!(peek_sender(&b, &mut buf), Ok((peeked, Some(getpid()))));
    assert_eq!(open(), before);
    tell_senders(&b, false).unwrap();
    assert_eq!(peek(&b, &mut buf), Ok(peeked));
    assert_eq!(recv(&b, &mut buf, &mut fds, AT_ONCE), Err(Errno::MSGSIZE));
    drop(a);
    let end = Peeked { len: 0, is_longer: false, has_fds: false };
    assert_eq!(peek_sender(&b, &mut buf), Ok((end, None)));
}

#[test]
fn a_packet_that_does_not_fit_is_an_error_and_the_next_one_is_whole() {
    let (a, b) = pair().unwrap();
    send(&a, &[7; 65], &[], AT_ONCE).unwrap();
    send(&a, b"next", &[], AT_ONCE).unwrap();
    let (mut buf, mut fds) = ([0; 64], Fds::new());
    assert_eq!(recv(&b, &mut buf, &mut fds, AT_ONCE), Err(Errno::MSGSIZE));
    assert_eq!(recv(&b, &mut buf, &mut fds, AT_ONCE), Ok(4));
}

#[test]
fn surplus_descriptors_are_closed() {
    let (a, b) = pair().unwrap();
    let fd = some_fd();
    let many = vec![fd.as_fd(); MAX_FDS + 3];
    assert_eq!(send(&a, b"x", &many, AT_ONCE), Err(Errno::MSGSIZE));
    // Past our own check, as a hostile sender would.
    let mut room = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS + 3))];
    let mut control = rustix::net::SendAncillaryBuffer::new(&mut room);
    assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(&many)));
    let bytes = rustix::io::IoSlice::new(b"x");
    rustix::net::sendmsg(&a, &[bytes], &mut control, rustix::net::SendFlags::empty()).unwrap();
    let (mut buf, mut fds) = ([0; 64], Fds::new());
    assert_eq!(recv(&b, &mut buf, &mut fds, AT_ONCE), Err(Errno::MSGSIZE));
    assert!(fds.is_empty());

    send(&a, b"x", &many[..MAX_FDS], AT_ONCE).unwrap();
    assert_eq!(recv(&b, &mut buf, &mut fds, AT_ONCE), Ok(1));
    assert_eq!(fds.len(), MAX_FDS);
    drop(fds);
    let links = std::fs::read_dir("/proc/self/fd").unwrap();
    let nulls = links.flatten().filter_map(|e| std::fs::read_link(e.path()).ok());
    // Ours, and at most those that the other tests of this process hold now.
    assert!(nulls.filter(|p| p.as_os_str() == "/dev/null").count() < MAX_FDS);
}

#[test]
fn waiting_ends_and_the_end_is_seen() {
    let (a, b) = pair().unwrap();
    let (mut buf, mut fds) = ([0; 64], Fds::new());
    assert_eq!(recv(&b, &mut buf, &mut fds, AT_ONCE), Err(Errno::AGAIN));
    let start = Instant::now();
    let wait = Duration::from_millis(30);
    assert_eq!(recv(&b, &mut buf, &mut fds, wait), Err(Errno::TIMEDOUT));
    assert!(start.elapsed() >= wait);
    drop(a);
    assert_eq!(recv(&b, &mut buf, &mut fds, wait), Ok(0));
    assert_eq!(send(&b, b"x", &[], wait), Err(Errno::PIPE));
}

#[test]
fn a_full_socket_is_told_from_a_dead_one() {
    let (a, _b) = pair().unwrap();
    let full = (0..100_000).find_map(|_| send(&a, &[0; 1024], &[], AT_ONCE).err());
    assert_eq!(full, Some(Errno::AGAIN));
}

#[test]
fn a_full_backlog_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let address = SocketAddrUnix::new(dir.path().join("door")).unwrap();
    let door = socket().unwrap();
    rustix::net::bind(&door, &address).unwrap();
    rustix::net::listen(&door, 0).unwrap();
    let crowd: Vec<_> = from_fn(|| connect(&address).ok()).collect();
    assert_eq!(connect(&address).err(), Some(Errno::AGAIN));

    let (start, wait) = (Instant::now(), Duration::from_millis(30));
    assert_eq!(connect_within(&address, wait).err(), Some(Errno::TIMEDOUT));
    assert!(start.elapsed() >= wait);

    let waiting = thread::spawn(move || connect_within(&address, Duration::from_secs(60)));
    thread::sleep(wait);
    let _accepted: Vec<_> = (0..=crowd.len()).map(|_| accept(&door)).collect();
    let came = waiting.join().unwrap().unwrap();
    assert!(fcntl_getfl(&came).unwrap().contains(OFlags::NONBLOCK));
}

fn accept(door: &OwnedFd) -> OwnedFd {
    loop {
        match rustix::net::accept(door) {
            Err(Errno::AGAIN) => thread::yield_now(),
            accepted => return accepted.unwrap(),
        }
    }
}

#[test]
fn the_peer_is_this_process() {
    let (a, _b) = pair().unwrap();
    let cred = peer_cred(&a).unwrap();
    assert_eq!(cred.pid, i32::try_from(std::process::id()).unwrap());
    assert_eq!(cred.uid, rustix::process::geteuid().as_raw());
}

#[test]
fn errno_is_kept() {
    let set = |code| {
        // SAFETY: errno of this thread.
        unsafe { *libc::__errno_location() = code }
    };
    set(123);
    assert!(peer_cred(some_fd()).is_err());
    // SAFETY: errno of this thread.
    assert_eq!(unsafe { *libc::__errno_location() }, 123);
    set(0);
}

#[test]
fn what_lies_in_a_queue_is_told_from_the_end() {
    let descriptors = [std::io::stderr()];
    let with_fd: [BorrowedFd<'_>; 1] = [descriptors[0].as_fd()];
    for (bytes, fds) in [(&b"x"[..], &[][..]), (b"", &[]), (b"", &with_fd), (b"x", &with_fd)] {
        let (a, b) = pair().unwrap();
        send_all(&a, bytes, fds).unwrap();
        assert!(!end_drained(&b), "{bytes:?}, {} descriptors", fds.len());
    }
    let (a, b) = pair().unwrap();
    assert!(end_drained(&b));
    assert!(send_all(&a, b"late", &[]).is_err());
    let (a, b) = pair().unwrap();
    drop(a);
    assert!(end_drained(&b));
}
