//! Both threads that meet peers, with programs on either side, in one process: connections from the first proposal to the last byte,
//! over loopback and the device in the process.
//!
//! Programs are those of `hubs/end.rs`: what they do is what the memory shows of the library's. Their kernel's connections are queues
//! of bytes in this process, so each host has an address of its own. Which of several threads comes first is not the same in each run.

#[path = "hubs/call.rs"]
mod call;
mod common;
#[path = "hubs/delay.rs"]
mod delay;
#[path = "hubs/end.rs"]
mod end;
#[path = "hubs/host.rs"]
mod host;
#[path = "common/keys.rs"]
mod keys;

use std::time::{Duration, Instant};

use call::{Call, Plan};
use common::Running;
use host::Host;
use keys::{Id as Key, ids};
use shunt_rdma::report::{PeerReport, PeerState};
use shunt_verbs::fake::Random;

const PATIENCE: Duration = Duration::from_secs(60);

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "in vain for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Two hosts; what their agents say to each other takes up to `delay`.
fn two(running: &Running, delay: Duration) -> [Host; 2] {
    let [first, second] = ids();
    let nowhere = "127.0.0.1:1".parse().unwrap();
    let answers = Host::start(1, &second, (nowhere, first.0), running.network.host());
    let at = delay::to(answers.plane.report().unwrap().listen, delay);
    let dials = Host::start(0, &first, (at, second.0), running.network.host());
    [dials, answers]
}

fn peer(host: &Host) -> PeerReport {
    host.plane.report().unwrap().peers.remove(0)
}

/// So many connections, at most so many of them at once: how many were in the ring.
fn calls(
    hosts: &[Host; 2],
    seed: u64,
    (count, at_once): (u32, usize),
    plan: impl Fn(&mut Random) -> Plan,
) -> usize {
    let mut random = Random::new(seed);
    let tables = [&hosts[0], &hosts[1]].map(Host::table);
    let (mut open, mut number, mut in_ring) = (Vec::new(), 0, 0);
    let mut moved_at = Instant::now();
    while number < count || !open.is_empty() {
        let mut has_moved = false;
        if open.len() < at_once && number < count {
            let from = random.below(2);
            let way = [&hosts[from], &hosts[1 - from]];
            if let Some(call) = Call::propose(number, plan(&mut random), way, &tables[from]) {
                open.push(call);
                number += 1;
            }
        }
        for call in &mut open {
            has_moved |= call.step(&mut random);
        }
        open.retain(|call| {
            in_ring += usize::from(call.is_over() && call.was_in_ring);
            !call.is_over()
        });
        if has_moved {
            moved_at = Instant::now();
        }
        std::thread::sleep(Duration::from_micros(50));
        let stands = moved_at.elapsed() > PATIENCE;
        assert!(!stands, "they stand still: {open:#?} {:#?}", hosts.each_ref().map(peer));
    }
    in_ring
}

/// Of the connections nothing is left, and nothing was taken for a breach.
fn are_at_rest(hosts: &[Host; 2], before: &[PeerReport]) {
    for (host, before) in hosts.iter().zip(before) {
        until("all places to be free", || host.is_at_rest() && peer(host).connections == 0);
        let after = peer(host);
        assert_eq!(after.state, PeerState::Connected);
        assert_eq!(after.link_group_reason, None);
        assert!(after.link_groups >= before.link_groups);
    }
}

fn are_up(hosts: &[Host; 2]) -> Vec<PeerReport> {
    for host in hosts {
        until("a link group", || peer(host).link_groups == 1);
    }
    hosts.iter().map(peer).collect()
}

#[test]
fn connections_are_whole_and_leave_nothing() {
    let running = Running::new(11);
    let hosts = two(&running, Duration::from_micros(500));
    let before = are_up(&hosts);
    assert!(calls(&hosts, 11, (400, 12), Plan::any) > 0);
    are_at_rest(&hosts, &before);
}

#[test]
fn what_is_taken_back_goes_on_over_tcp_whole() {
    let running = Running::new(12);
    let hosts = two(&running, Duration::from_millis(4));
    let before = are_up(&hosts);
    let plan = |random: &mut Random| Plan {
        looks_at: Some(0),
        withdraws_at: Some(u32::try_from(random.below(100)).unwrap()),
        goes_on: true,
        closes_at: None,
        ..Plan::any(random)
    };
    let _ = calls(&hosts, 12, (200, 12), plan);
    are_at_rest(&hosts, &before);
}
