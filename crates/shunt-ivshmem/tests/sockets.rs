//! The sockets' files: whose they are, who may use them, and that none is left behind.

mod common;

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use common::{Running, place};
use rustix::net::{SocketAddrUnix, bind, listen};
use shunt_ivshmem::control::{self, Unreachable};
use shunt_ivshmem::endpoint::{EndpointError, control_path};
use shunt_ivshmem::notify::Notifier;
use shunt_ivshmem::{Config, Error};
use shunt_sys::fds::Fds;
use shunt_sys::seqpacket;

fn start(path: &Path, passed: Vec<(String, OwnedFd)>) -> Result<Running, Error> {
    Running::with(Config::new(path.to_owned()), passed, Notifier::default())
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

/// Who looks at this process' descriptors at the moment when one is closed holds the socket a little longer.
fn until_nobody_listens(path: &Path) {
    let start = Instant::now();
    while UnixStream::connect(path).is_ok() {
        assert!(start.elapsed() < common::PATIENCE, "{} is still listened at", path.display());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn modes_are_as_asked_and_nothing_is_left() {
    let (dir, path) = place();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    let mut server = Running::start(Config::new(path.clone()));
    assert_eq!((mode(&path), mode(&control_path(&path))), (0o600, 0o600));
    server.stop();
    assert_eq!(names(dir.path()), [""; 0]);
    let mut server = Running::start(Config { mode: 0o660, ..Config::new(path.clone()) });
    assert_eq!((mode(&path), mode(&control_path(&path))), (0o660, 0o600));
    server.stop();
    assert_eq!(names(dir.path()), [""; 0]);
}

#[test]
fn a_socket_left_by_a_crash_is_replaced_and_a_live_one_is_not_even_disturbed() {
    let (_dir, path) = place();
    for stale in [path.clone(), control_path(&path)] {
        drop(UnixListener::bind(&stale).unwrap());
        until_nobody_listens(&stale);
    }
    let server = start(&path, Vec::new()).unwrap();
    let mut client = server.introduced(0);
    for _ in 0..3 {
        let second = start(&path, Vec::new()).err().unwrap();
        assert!(matches!(second, Error::Endpoint(EndpointError::InUse(_))), "{second}");
    }
    // A server of another make has no control socket.
    fs::remove_file(control_path(&path)).unwrap();
    let second = start(&path, Vec::new()).err().unwrap();
    assert!(second.to_string().contains("in use"), "{second}");
    assert!(client.catch_up());
    assert!(client.peers.is_empty() && client.gone.is_empty(), "a probe is no client");
}

#[test]
fn other_files_are_left_alone() {
    let (_dir, path) = place();
    fs::write(&path, "precious").unwrap();
    let refused = start(&path, Vec::new()).err().unwrap();
    assert!(matches!(refused, Error::Endpoint(EndpointError::NotASocket(_))), "{refused}");
    assert_eq!(fs::read(&path).unwrap(), b"precious");
    fs::remove_file(&path).unwrap();
    // One that somebody has put in place of the server's own.
    let mut server = start(&path, Vec::new()).unwrap();
    fs::remove_file(&path).unwrap();
    let other = UnixListener::bind(&path).unwrap();
    server.stop();
    assert!(fs::metadata(&path).unwrap().file_type().is_socket());
    drop(other);
}

#[test]
fn paths_that_cannot_be() {
    let (dir, _) = place();
    let long = dir.path().join("x".repeat(120));
    let refused = start(&long, Vec::new()).err().unwrap();
    assert!(matches!(refused, Error::Endpoint(EndpointError::Path(_))), "{refused}");
    let nowhere = dir.path().join("none/ivshmem.sock");
    let refused = start(&nowhere, Vec::new()).err().unwrap();
    assert!(matches!(refused, Error::Endpoint(EndpointError::NoDirectory(_))), "{refused}");
}

#[test]
fn sockets_of_the_service_manager_are_used_and_stay() {
    let (dir, path) = place();
    let listener = UnixListener::bind(&path).unwrap();
    let passed = || ("shunt-ivshmem.socket".to_owned(), listener.try_clone().unwrap().into());
    let mut server = start(&path, vec![passed()]).unwrap();
    drop(server.introduced(0));
    server.until(&1, |r| r.totals.left);
    server.stop();
    assert_eq!(names(dir.path()), ["ivshmem.sock"], "the control socket was its own");

    let control = seqpacket::socket().unwrap();
    bind(&control, &SocketAddrUnix::new(control_path(&path)).unwrap()).unwrap();
    listen(&control, 5).unwrap();
    let second = || ("shunt-ivshmem.socket".to_owned(), control.try_clone().unwrap());
    let mut server = start(&path, vec![second(), passed()]).unwrap();
    drop(server.introduced(0));
    server.stop();
    assert_eq!(names(dir.path()), ["ivshmem.sock", "ivshmem.sock.control"]);

    for bad in [vec![passed(), passed()], vec![second(), second()]] {
        let refused = start(&path, bad).err().unwrap();
        assert!(matches!(refused, Error::Endpoint(EndpointError::Activation)), "{refused}");
    }
    let connected = || ("x".to_owned(), seqpacket::pair().unwrap().0);
    let refused = start(&path, vec![connected()]).err().unwrap();
    assert!(matches!(refused, Error::Endpoint(EndpointError::Activation)), "{refused}");
}

#[test]
fn the_control_socket_answers_what_it_knows_and_nothing_else() {
    let (_dir, path) = place();
    assert!(matches!(control::status(&path), Err(Unreachable::NotRunning(_))));
    let server = Running::limited(&path, 2, |limits| limits.request = Duration::from_millis(300));
    let address = SocketAddrUnix::new(control_path(&path)).unwrap();
    let mut fds = Fds::new();
    for request in [&b"shunt-ivshmem 2 status"[..], b"rubbish", &[0; 1024]] {
        let socket = seqpacket::connect(&address).unwrap();
        seqpacket::send(&socket, request, &[], common::PATIENCE).unwrap();
        let mut answer = [0; 1024];
        let len = seqpacket::recv(&socket, &mut answer, &mut fds, common::PATIENCE).unwrap();
        assert!(answer[..len].starts_with(b"refused "), "{request:?}");
    }
    // Who asks nothing is not waited for; those who do are served meanwhile.
    let silent: Vec<_> = (0..8).map(|_| seqpacket::connect(&address).unwrap()).collect();
    let report = server.status();
    assert_eq!((report.vectors, report.size), (2, 4 << 20));
    assert_eq!(report.socket, path.to_str().unwrap());
    for socket in silent {
        let end = seqpacket::recv(&socket, &mut [0; 8], &mut fds, common::PATIENCE);
        assert_eq!(end, Ok(0));
    }
}

#[test]
fn a_report_may_be_long() {
    let (_dir, path) = place();
    let server = Running::limited(&path, 1, |_| {});
    let clients: Vec<_> = (0..400).map(|_| server.client()).collect();
    server.until(&clients.len(), |r| r.peers.len());
    let report = server.status();
    assert!((0..).zip(&report.peers).all(|(id, peer)| peer.id == id));
    assert!(report.peers.iter().map(|peer| peer.queued).sum::<usize>() > 400);
}
