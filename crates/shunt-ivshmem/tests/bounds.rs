//! Clients that do what they should not harm themselves alone.

mod common;

use std::time::Duration;

use common::{Client, Running, place};

#[test]
fn who_sends_something_is_dropped() {
    let (_dir, path) = place();
    let server = Running::limited(&path, 1, |_| {});
    let other = server.introduced(0);
    for rubbish in [&b"x"[..], &[0xff; 8], &[0; 65536]] {
        let client = server.client();
        let _ = client.send(rubbish);
        client.hung_up();
    }
    server.until(&(1, 3), |r| (r.peers.len(), r.totals.dropped.sent));
    let mut clients = [other, server.introduced(1)];
    server.all_told(&mut clients);
    clients[0].ring(clients[1].id, 0);
    assert_eq!(clients[1].rings(), [1]);
}

#[test]
fn who_reads_nothing_is_dropped_and_nobody_else_suffers() {
    let (_dir, path) = place();
    // By nothing else than by what waits for it.
    let server = Running::limited(&path, 8, |limits| limits.queue = 100);
    let mut reads = server.introduced(0);
    let reads_nothing = server.client();
    server.until(&2, |r| r.peers.len());
    let mut crowd = Vec::new();
    while server.status().totals.dropped.overflow == 0 {
        crowd.push(server.client());
        assert!(crowd.len() < 100, "it is never dropped");
        assert!(reads.catch_up());
        for client in &mut crowd {
            if client.id < 0 {
                client.introduce();
            }
            assert!(client.catch_up());
        }
    }
    reads_nothing.hung_up();
    reads.until("it is gone", |c| c.gone == [1]);
    let known = crowd.len();
    reads.until("all others are known", |c| c.peers.len() == known);
    let totals = server.status().totals;
    assert_eq!((totals.dropped.overflow, totals.dropped.stalled, totals.left), (1, 0, 0));
}

#[test]
fn who_takes_nothing_for_long_is_dropped() {
    let (_dir, path) = place();
    // Its introduction alone is more than the socket takes.
    let server = Running::limited(&path, 256, |limits| limits.stall = Duration::from_millis(200));
    let takes_nothing = server.client();
    server.until(&1, |r| r.totals.dropped.stalled);
    takes_nothing.hung_up();
    assert_eq!(server.status().peers.len(), 0);
}

#[test]
fn a_flood_is_turned_away_and_others_are_served() {
    let (_dir, path) = place();
    let server = Running::limited(&path, 2, |limits| limits.peers = 3);
    let mut inside: Vec<_> = (0..3).map(|others| server.introduced(others)).collect();
    let flood: Vec<_> = (0..300).map(|_| Client::connect(&path)).collect();
    for client in &flood {
        client.hung_up();
    }
    let report = server.status();
    assert_eq!((report.peers.len(), report.peers_max), (3, 3));
    assert_eq!((report.totals.refused.full, report.totals.accepted), (300, 3));
    let last = inside.pop().unwrap();
    drop(last);
    inside[0].until("one has gone", |c| c.gone == [2]);
    let mut new = server.introduced(2);
    assert_eq!(new.id, 3);
    inside[0]
        .until("the new one is known", |c| c.peers.get(&3).is_some_and(|bells| bells.len() == 2));
    new.until("all bells are there", |c| c.own.len() == 2);
    inside[0].ring(3, 1);
    assert_eq!(new.rings(), [0, 1]);
}

#[test]
fn there_are_no_more_clients_than_descriptors_for_them() {
    let (_dir, path) = place();
    let server = Running::limited(&path, 256, |_| {});
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let most = server.status().peers_max as u64;
    assert!(limit.is_none_or(|limit| most * 257 < limit), "{most} clients, {limit:?} descriptors");
}
