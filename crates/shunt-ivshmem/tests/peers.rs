//! What clients are told of each other, and that it is true.

mod common;

use common::{Client, Running, place, settles};
use rustix::fs::{fstat, ftruncate};
use rustix::io::{Errno, pread, pwrite};
use rustix::process::{geteuid, getpid};
use shunt_ivshmem::Config;

#[test]
fn the_first_message_is_the_version_and_the_memory_is_shared_and_sealed() {
    let (_dir, path) = place();
    let config = Config { size: 1 << 20, vectors: 2, ..Config::new(path) };
    let server = Running::start(config);
    let (first, second) = (server.introduced(0), server.introduced(1));
    assert_eq!((first.id, second.id), (0, 1));
    assert_eq!(fstat(first.memory()).unwrap().st_size, 1 << 20);
    pwrite(first.memory(), b"hello", 77).unwrap();
    let mut bytes = [0; 5];
    pread(second.memory(), &mut bytes, 77).unwrap();
    assert_eq!(&bytes, b"hello");
    assert_eq!(ftruncate(first.memory(), 0), Err(Errno::PERM));
    assert_eq!(ftruncate(first.memory(), 2 << 20), Err(Errno::PERM));
}

#[test]
fn a_doorbell_reaches_its_peer_at_its_vector() {
    let (_dir, path) = place();
    let server = Running::limited(&path, 3, |_| {});
    let mut clients: Vec<_> = (0..4).map(|others| server.introduced(others)).collect();
    for client in &mut clients {
        client.until("all are known", |c| {
            c.peers.len() == 3 && c.own.len() == 3 && c.peers.values().all(|b| b.len() == 3)
        });
    }
    for (from, client) in (0_i64..).zip(&clients) {
        for (to, other) in (0_i64..).zip(&clients).filter(|(to, _)| *to != from) {
            for vector in 0..3 {
                client.ring(to, vector);
                client.ring(to, vector);
                let mut expected = [0; 3];
                expected[vector] = 2;
                assert_eq!(other.rings(), expected, "{from} rings {to}");
            }
        }
    }
    assert!(clients.iter().all(|client| client.rings() == [0; 3]));
}

#[test]
fn a_client_that_goes_is_announced_and_its_id_rests_while_somebody_knows_it() {
    let (_dir, path) = place();
    let server = Running::limited(&path, 2, |_| {});
    let mut stays = server.introduced(0);
    let goes = server.introduced(1);
    let last = server.introduced(2);
    assert_eq!((goes.id, last.id), (1, 2));
    drop(goes);
    stays.until("1 is gone", |c| c.gone == [1]);
    let mut new = server.introduced(2);
    assert_eq!(new.id, 3);
    new.until("all bells are there", |c| c.own.len() == 2);
    assert_eq!(new.peers.keys().collect::<Vec<_>>(), [&0, &2]);
    let report = server.status();
    assert_eq!((report.totals.accepted, report.totals.left), (4, 1));
    assert_eq!(report.peers.iter().map(|p| p.id).collect::<Vec<_>>(), [0, 2, 3]);
    assert_eq!(report.ids_left, 65536 - 4);
    let me = (getpid().as_raw_pid(), geteuid().as_raw());
    assert!(report.peers.iter().all(|p| (p.pid, p.uid) == me));
    drop((stays, last));
    new.until("both are gone", |c| c.peers.is_empty());
    assert_eq!(server.introduced(1).id, 1, "nobody who has heard of it is left");
}

#[test]
fn where_clients_bear_it_an_id_is_used_again_at_once() {
    let (_dir, path) = place();
    let server = Running::limited(&path, 2, |limits| limits.reuse_ids = true);
    let mut stays = server.introduced(0);
    let goes = server.introduced(1);
    let last = server.introduced(2);
    drop(goes);
    stays.until("1 is gone", |c| c.gone == [1]);
    let new = server.introduced(2);
    assert_eq!(new.id, 1);
    let mut clients = [stays, new, last];
    server.all_told(&mut clients);
    clients[0].ring(1, 1);
    assert_eq!(clients[1].rings(), [0, 1], "not the bells of the one who had this ID before");
}

#[test]
fn many_come_and_go() {
    let (_dir, path) = place();
    let server = Running::limited(&path, 2, |_| {});
    let mut witness = server.introduced(0);
    for round in 0..20 {
        let crowd: Vec<_> = (0..10).map(|_| server.client()).collect();
        // Some leave before they have read anything, and before the witness has.
        let (leave, stay): (Vec<_>, Vec<_>) =
            crowd.into_iter().enumerate().partition(|(i, _)| (i + round) % 3 == 0);
        drop(leave);
        let mut stay: Vec<Client> = stay.into_iter().map(|(_, client)| client).collect();
        server.until(&(1 + stay.len()), |report| report.peers.len());
        for client in &mut stay {
            client.introduce();
        }
        let ids: Vec<_> = stay.iter().map(|client| client.id).collect();
        for client in &mut stay {
            client.until("all who stay are known", |c| {
                let whole = |id: &i64| *id == c.id || c.peers.get(id).is_some_and(|b| b.len() == 2);
                c.own.len() == 2 && ids.iter().all(whole) && c.peers.len() == ids.len()
            });
            client.ring(0, 1);
        }
        assert!(witness.catch_up());
        assert_eq!(witness.rings()[1], stay.len() as u64);
        drop(stay);
        server.until(&1, |report| report.peers.len());
    }
    settles("the witness knows that all are gone", &0, || {
        assert!(witness.catch_up());
        witness.peers.len()
    });
    let totals = server.status().totals;
    assert_eq!((totals.accepted, totals.left), (201, 200));
}
