//! A server's clients outlive it: the next one takes over, or the service manager keeps them.

mod common;

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{Client, Running, place};
use rustix::io::{IoSliceMut, pread, pwrite};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix,
    SocketFlags, SocketType, bind, connect, recvmsg, socket_with,
};
use shunt_ivshmem::config::Start;
use shunt_ivshmem::endpoint::control_path;
use shunt_ivshmem::handover::HandoverError;
use shunt_ivshmem::notify::Notifier;
use shunt_ivshmem::{Config, Error};
use shunt_sys::fds::Fds;
use shunt_sys::seqpacket;

/// Everybody reaches everybody, and the memory is one.
fn all_are_well(server: &Running, clients: &mut [Client]) {
    server.all_told(clients);
    for client in &*clients {
        client.rings();
        let mut whole = client.peers.values().chain([&client.own]);
        assert!(client.peers.len() == clients.len() - 1 && whole.all(|bells| bells.len() == 2));
    }
    for client in &*clients {
        for other in clients.iter().filter(|other| other.id != client.id) {
            client.ring(other.id, 1);
            assert_eq!(other.rings(), [0, 1], "{} rings {}", client.id, other.id);
        }
        pwrite(client.memory(), &client.id.to_le_bytes(), 64).unwrap();
        let mut seen = [0; 8];
        pread(clients[0].memory(), &mut seen, 64).unwrap();
        assert_eq!(i64::from_le_bytes(seen), client.id);
    }
}

#[test]
fn the_next_server_takes_over() {
    let (dir, path) = place();
    let mut first = Running::limited(&path, 2, |_| {});
    let mut clients: Vec<_> = (0..3).map(|others| first.introduced(others)).collect();
    drop(clients.remove(1));
    first.until(&2, |r| r.peers.len());
    // One that has read nothing yet.
    let late = first.client();
    first.until(&3, |r| r.peers.len());
    let before = first.status();

    let mut second = Running::take_over(&path);
    first.wait();
    let after = second.status();
    assert_eq!((after.since, after.totals, after.size), (before.since, before.totals, before.size));
    assert_eq!(after.peers, before.peers);
    clients.push(late);
    clients[2].introduce();
    assert_eq!(clients[2].id, 3);
    all_are_well(&second, &mut clients);

    clients.push(second.client());
    clients[3].introduce();
    assert_eq!(clients[3].id, 4);
    all_are_well(&second, &mut clients);
    drop(clients.remove(0));
    for client in &mut clients {
        client.until("0 is gone", |c| c.gone.contains(&0));
    }
    let mut third = Running::take_over(&path);
    second.wait();
    all_are_well(&third, &mut clients);
    third.stop();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "the files are the last one's");
}

#[test]
fn what_a_slow_client_has_not_been_told_is_told_by_the_next_server() {
    let (_dir, path) = place();
    let mut first = Running::limited(&path, 2, |_| {});
    let mut slow = first.client();
    first.until(&1, |r| r.peers.len());
    let mut crowd: Vec<_> = (1..40).map(|others| first.introduced(others)).collect();
    assert!(first.status().peers[0].queued > 0);
    // Some go of whom it knows, and some of whom it does not.
    let stay = crowd.split_off(30);
    let gone = crowd.split_off(1);
    drop(gone);
    first.until(&11, |r| r.peers.len());
    let second = Running::take_over(&path);
    first.wait();
    slow.introduce();
    slow.until("those who are there, alone, are known", |c| {
        c.peers.len() == 10 && c.own.len() == 2 && c.peers.values().all(|b| b.len() == 2)
    });
    let mut clients = vec![slow];
    clients.extend(crowd);
    clients.extend(stay);
    all_are_well(&second, &mut clients);
}

#[test]
fn take_overs_under_load() {
    let (_dir, path) = place();
    let mut server = Running::limited(&path, 2, |_| {});
    let mut clients: Vec<_> = (0..3).map(|others| server.introduced(others)).collect();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let churn = || {
            let mut rounds = 0;
            while !over.load(Ordering::Relaxed) {
                let mut client = Client::connect(&path);
                client.introduce();
                client.until("all three are known", |c| {
                    c.own.len() == 2 && (0..3).all(|id| c.peers.contains_key(&id))
                });
                client.ring(1, 0);
                rounds += 1;
            }
            rounds
        };
        let churners = [scope.spawn(churn), scope.spawn(churn)];
        for _ in 0..10 {
            let next = Running::take_over(&path);
            server.wait();
            server = next;
            let joined = server.status().totals.accepted;
            server.until(&true, |r| r.totals.accepted > joined + 5);
            for client in &mut clients {
                assert!(client.catch_up());
            }
        }
        over.store(true, Ordering::Relaxed);
        for churner in churners {
            assert!(churner.join().unwrap() > 0);
        }
    });
    server.until(&3, |r| r.peers.len());
    for client in &mut clients {
        client.until("all others are gone", |c| c.peers.len() == 2);
    }
    all_are_well(&server, &mut clients);
    let totals = server.status().totals;
    assert_eq!(totals.accepted, totals.left + 3);
    assert_eq!(totals.dropped, Default::default());
}

#[test]
fn a_take_over_that_fails_changes_nothing() {
    let (_dir, path) = place();
    let config = Config { start: Start::TakeOver, ..Config::new(path.clone()) };
    let nobody = Running::with(config, Vec::new(), Notifier::default()).err().unwrap();
    assert!(matches!(nobody, Error::TakeOver(HandoverError::Unreachable(_))), "{nobody}");

    let server = Running::limited(&path, 2, |_| {});
    let mut clients: Vec<_> = (0..2).map(|others| server.introduced(others)).collect();
    let address = SocketAddrUnix::new(control_path(&path)).unwrap();
    // It goes at once, after everything has come, or says the wrong thing.
    for words in [None, Some(&b""[..]), Some(b"go"), Some(b"rubbish")] {
        let socket = seqpacket::connect(&address).unwrap();
        let request = b"shunt-ivshmem 1 take-over";
        seqpacket::send(&socket, request, &[], common::PATIENCE).unwrap();
        let Some(words) = words else { continue };
        let (mut packet, mut fds) = ([0; 1024], Fds::new());
        loop {
            let len = seqpacket::recv(&socket, &mut packet, &mut fds, common::PATIENCE).unwrap();
            if &packet[..len] == b"end" {
                break;
            }
            assert!(packet.starts_with(b"keep "));
        }
        if !words.is_empty() {
            seqpacket::send(&socket, words, &[], common::PATIENCE).unwrap();
            assert_eq!(seqpacket::recv(&socket, &mut packet, &mut fds, common::PATIENCE), Ok(0));
        }
    }
    assert_eq!(server.status().peers.len(), 2);
    clients.push(server.introduced(2));
    all_are_well(&server, &mut clients);
}

/// What the service manager is told, and given to keep.
struct Manager {
    socket: OwnedFd,
    said: Vec<String>,
    kept: BTreeMap<String, OwnedFd>,
}

impl Manager {
    fn new(path: &Path) -> (Self, Notifier) {
        let datagram = || {
            let flags = SocketFlags::CLOEXEC;
            socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None).unwrap()
        };
        let (socket, client) = (datagram(), datagram());
        let address = SocketAddrUnix::new(path).unwrap();
        bind(&socket, &address).unwrap();
        connect(&client, &address).unwrap();
        (Self { socket, said: Vec::new(), kept: BTreeMap::new() }, Notifier::over(client))
    }

    /// Hears what is said until `last`.
    fn hear_until(&mut self, last: &str) {
        loop {
            let mut bytes = [0; 1024];
            let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut room);
            let buffers = &mut [IoSliceMut::new(&mut bytes)];
            let got = recvmsg(&self.socket, buffers, &mut control, RecvFlags::CMSG_CLOEXEC);
            let text = std::str::from_utf8(&bytes[..got.unwrap().bytes]).unwrap().to_owned();
            for part in control.drain() {
                let RecvAncillaryMessage::ScmRights(mut rights) = part else { continue };
                let fd = rights.next().unwrap();
                let name = text.lines().find_map(|line| line.strip_prefix("FDNAME="));
                if let Some(name) = name {
                    assert!(text.starts_with("FDSTORE=1\n"));
                    assert!(self.kept.insert(name.to_owned(), fd).is_none(), "{name}");
                }
            }
            let done = text == last;
            self.said.push(text);
            if done {
                return;
            }
        }
    }
}

#[test]
fn the_service_manager_keeps_clients_over_a_restart() {
    let (dir, path) = place();
    let (mut manager, notifier) = Manager::new(&dir.path().join("notify"));
    let config =
        || Config { vectors: 2, fd_store: true, size: 1 << 20, ..Config::new(path.clone()) };
    let mut server = Running::with(config(), Vec::new(), notifier).unwrap();
    let mut clients: Vec<_> = (0..3).map(|others| server.introduced(others)).collect();
    let late = server.client();
    server.until(&4, |r| r.peers.len());
    let before = server.status();
    let hears = std::thread::spawn(move || {
        manager.hear_until("BARRIER=1");
        manager
    });
    server.stop();
    let manager = hears.join().unwrap();
    assert_eq!(manager.said[0], "STOPPING=1");
    assert_eq!(manager.kept.len(), 2 + 4 * 3);
    assert!(!path.exists());

    // One crashes in between.
    drop(clients.remove(1));
    let passed = manager.kept.into_iter().collect();
    let other = Config { size: 2 << 20, vectors: 1, ..Config::new(path.clone()) };
    let server = Running::with(other, passed, Notifier::default()).unwrap();
    server.until(&3, |r| r.peers.len());
    let after = server.status();
    assert_eq!((after.since, after.size, after.vectors), (before.since, 1 << 20, 2));
    assert_eq!(after.totals.left, 1);
    clients.push(late);
    clients[2].introduce();
    clients[0].until("the crash is announced", |c| c.gone == [1]);
    all_are_well(&server, &mut clients);
    clients.push(server.client());
    clients[3].introduce();
    all_are_well(&server, &mut clients);
}

#[test]
fn what_was_kept_in_part_is_used_in_part() {
    let (dir, path) = place();
    let (mut manager, notifier) = Manager::new(&dir.path().join("notify"));
    let config = || Config { vectors: 2, fd_store: true, ..Config::new(path.clone()) };
    let mut server = Running::with(config(), Vec::new(), notifier).unwrap();
    let mut clients: Vec<_> = (0..4).map(|others| server.introduced(others)).collect();
    let hears = std::thread::spawn(move || {
        manager.hear_until("BARRIER=1");
        manager
    });
    server.stop();
    let mut kept = hears.join().unwrap().kept;
    drop(kept.remove("bell.1.1"));
    drop(kept.remove("peer.2"));
    let copies = |kept: &BTreeMap<String, OwnedFd>| {
        kept.iter().map(|(name, fd)| (name.clone(), fd.try_clone().unwrap())).collect()
    };
    let server = Running::with(config(), copies(&kept), Notifier::default()).unwrap();
    drop(clients.drain(1..3));
    clients[0].until("they are gone", |c| c.gone.len() == 2);
    assert_eq!(server.status().totals.dropped.incomplete, 2);
    all_are_well(&server, &mut clients);
    drop(server);

    // Without the state there is nothing to go on with, and a server all the same.
    drop(kept.remove("state"));
    let server = Running::with(config(), copies(&kept), Notifier::default()).unwrap();
    assert_eq!(server.introduced(0).id, 0);
}
