//! Both threads that meet peers, with programs on either side, in one process: connections from the first proposal to the last byte,
//! over loopback and the device in the process.
//!
//! Programs are those of `hubs/end.rs`: what they do is what the memory shows of the library's. Their kernel's connections are queues
//! of bytes in this process, so each host has an address of its own. Which of several threads comes first is not the same in each run.

#[path = "hubs/call.rs"]
mod call;
mod common;
#[path = "hubs/end.rs"]
mod end;
#[path = "hubs/host.rs"]
mod host;
#[path = "common/keys.rs"]
mod keys;
#[path = "common/wait.rs"]
mod wait;
#[path = "hubs/way.rs"]
mod way;

use std::time::{Duration, Instant};

use call::{Call, Plan};
use common::Running;
use host::Host;
use keys::{Id as Key, ids};
use shunt_rdma::report::{PeerReport, PeerState};
use shunt_shm::table::Table;
use shunt_verbs::fake::{Network, Random};
use wait::{PATIENCE, until};
use way::Way;

/// Two hosts; what their agents say to each other takes up to `delay`.
fn two(running: &Running, delay: Duration) -> [Host; 2] {
    two_by_way(running, delay).0
}

/// The same, with the way on which they say it.
fn two_by_way(running: &Running, delay: Duration) -> ([Host; 2], Way) {
    let [first, second] = ids();
    let nowhere = "127.0.0.1:1".parse().unwrap();
    let answers = Host::start(1, &second, (nowhere, first.0), running.network.host());
    let way = Way::to(answers.plane.report().unwrap().listen, delay);
    let dials = Host::start(0, &first, (way.at, second.0), running.network.host());
    ([dials, answers], way)
}

fn peer(host: &Host) -> PeerReport {
    host.plane.report().unwrap().peers.remove(0)
}

/// What a run has.
struct Run {
    seed: u64,
    /// Connections, and how many at once.
    count: u32,
    at_once: usize,
    /// How often a program is killed, in 10,000 rounds.
    kills: u16,
    /// All links fail when so many connections were begun: once, as links that fail again soon do not go on.
    fails_at: Option<u32>,
    /// How often the agents lose each other, in 10,000 rounds.
    cuts: u16,
}

/// Connections by plans: how many were in the ring.
fn calls(
    (hosts, way): (&[Host; 2], &Way),
    network: &Network,
    run: &Run,
    plan: impl Fn(&mut Random) -> Plan,
) -> usize {
    let Run { seed, count, at_once, kills, mut fails_at, cuts } = *run;
    let mut random = Random::new(seed);
    let tables = [&hosts[0], &hosts[1]].map(Host::table);
    let (mut open, mut number, mut in_ring) = (Vec::new(), 0, 0);
    let mut moved_at = Instant::now();
    while number < count || !open.is_empty() {
        let mut has_moved = false;
        if open.len() < at_once && number < count {
            let from = random.below(2);
            let way = [&hosts[from], &hosts[1 - from]];
            let program = (hosts[from].client(&mut random), way);
            if let Some(call) = Call::propose(number, plan(&mut random), program, &tables[from]) {
                open.push(call);
                number += 1;
            }
        }
        if fails_at.take_if(|at| number >= *at).is_some() {
            network.break_all();
        }
        // Agents that lose each other before they have found each other bring nothing on its way.
        if random.chance(cuts) && moved_at.elapsed() < Duration::from_secs(1) {
            way.cut();
        }
        if random.chance(kills) {
            let host = random.below(2);
            let (hosts, table) = ([&hosts[host], &hosts[1 - host]], &tables[host]);
            kill(hosts[0], table, &mut open, &mut random);
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

/// Kills a program of a host, which has its proposals in the table.
fn kill(host: &Host, proposals: &Table, open: &mut [Call<'_>], random: &mut Random) {
    if random.chance(5000) {
        open.iter_mut().for_each(|call| call.kill_server(host));
        host.server_ends();
    } else {
        let client = host.client(random);
        open.iter_mut().for_each(|call| call.kill_client(&client));
        host.client_ends(&client, proposals);
    }
}

/// Of the connections nothing is left, and nothing was taken for a breach.
fn are_at_rest(hosts: &[Host; 2], before: &[PeerReport]) {
    for (host, before) in hosts.iter().zip(before) {
        until("all places to be free", || host.is_at_rest() && peer(host).connections == 0);
        until("the peer", || peer(host).state == PeerState::Connected);
        let after = peer(host);
        assert_eq!(after.link_group_reason.is_some(), after.failovers_total > 0, "{after:?}");
        assert!(after.link_groups >= before.link_groups);
    }
}

fn are_up(hosts: &[Host; 2]) -> Vec<PeerReport> {
    for host in hosts {
        until("a link group", || peer(host).link_groups == 1);
    }
    hosts.iter().map(peer).collect()
}

/// Those of `HUB_SEEDS`, as in `100..200`.
fn seeds() -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("HUB_SEEDS") else { return 1..5 };
    let (from, to) = text.split_once("..").unwrap();
    from.parse().unwrap()..to.parse().unwrap()
}

/// Connections of any kind between two hosts, whose links fail when so many were begun, and whose agents lose each other so often, for each
/// seed.
fn any_calls(fails_at: fn(u64) -> Option<u32>, cuts: u16, behind: fn(&[Host; 2])) {
    for seed in seeds() {
        println!("seed {seed}");
        let running = Running::new(seed);
        let delay = Duration::from_micros((seed % 7).pow(2) * 300);
        let (hosts, way) = two_by_way(&running, delay);
        let before = are_up(&hosts);
        let at_once = 4 + usize::try_from(seed % 5).unwrap() * 12;
        let kills = u16::try_from(seed % 4).unwrap() * 60;
        let run = Run { seed, count: 300, at_once, kills, fails_at: fails_at(seed), cuts };
        assert!(calls((&hosts, &way), &running.network, &run, Plan::any) > 0);
        if cuts > 0 {
            way.cut();
            hosts.iter().for_each(|host| {
                until("both to meet again", || peer(host).resumptions_total > 0);
            });
        }
        behind(&hosts);
        are_at_rest(&hosts, &before);
    }
}

fn at_any_time(seed: u64) -> Option<u32> {
    u32::try_from(seed * 37 % 300).ok()
}

/// The side that offered a link group hears last that it goes on.
fn went_on(hosts: &[Host; 2]) {
    until("both to go on", || {
        let [one, two] = hosts.each_ref().map(|host| peer(host).failovers_total);
        one > 0 && one == two
    });
}

#[test]
fn connections_are_whole_and_leave_nothing() {
    any_calls(|_| None, 0, |_| ());
}

/// Programs notice nothing of it: none of those here would go back to TCP in the midst of its bytes.
#[test]
fn connections_are_whole_over_links_that_fail() {
    any_calls(at_any_time, 0, went_on);
}

/// Neither do they when their agents lose each other, again and again.
#[test]
fn connections_are_whole_while_agents_lose_each_other() {
    any_calls(|_| None, 20, |_| ());
}

#[test]
fn connections_are_whole_while_agents_lose_each_other_and_links_fail() {
    any_calls(at_any_time, 20, went_on);
}

/// Nothing new begins with a peer that is away, so its listeners go. What was proposed to them is answered when it is back.
#[test]
fn what_was_proposed_before_a_pause_is_answered_behind_it() {
    let running = Running::new(16);
    let (hosts, way) = two_by_way(&running, Duration::from_millis(20));
    let before = are_up(&hosts);
    let (table, mut random, mut open) = (hosts[0].table(), Random::new(16), Vec::new());
    let plan = Plan {
        bytes: [5000; 2],
        looks_at: None,
        withdraws_at: None,
        goes_on: false,
        closes_at: None,
    };
    for number in 0..20 {
        let plan = Plan { looks_at: (number % 3 > 0).then_some(0), ..plan };
        let call = (hosts[0].client(&mut random), [&hosts[0], &hosts[1]]);
        open.extend(Call::propose(number, plan, call, &table));
        std::thread::sleep(Duration::from_millis(2));
    }
    way.bar(true);
    until("the listener to go", || hosts[0].find_table().is_none());
    way.bar(false);
    let _ = hosts[0].table();
    until("all bytes", || {
        open.iter_mut().for_each(|call| _ = call.step(&mut random));
        open.iter().all(Call::is_over)
    });
    are_at_rest(&hosts, &before);
}

#[test]
fn what_is_taken_back_goes_on_over_tcp_whole() {
    let running = Running::new(12);
    let (hosts, way) = two_by_way(&running, Duration::from_millis(4));
    let before = are_up(&hosts);
    let plan = |random: &mut Random| Plan {
        looks_at: Some(0),
        withdraws_at: Some(u32::try_from(random.below(100)).unwrap()),
        goes_on: true,
        closes_at: None,
        ..Plan::any(random)
    };
    let run = Run { seed: 12, count: 200, at_once: 12, kills: 0, fails_at: None, cuts: 0 };
    let _ = calls((&hosts, &way), &running.network, &run, plan);
    are_at_rest(&hosts, &before);
}

/// The link group is used again as if it had not been.
#[test]
fn a_proposal_that_dies_with_its_acceptor_frees_its_place() {
    let running = Running::new(15);
    let hosts = two(&running, Duration::from_micros(500));
    let before = are_up(&hosts);
    let (table, mut random) = (hosts[0].table(), Random::new(15));
    let plan = Plan {
        bytes: [1000; 2],
        looks_at: None,
        withdraws_at: Some(0),
        goes_on: false,
        closes_at: None,
    };
    let registered = || hosts.each_ref().map(|host| host.plane.report().unwrap().memory_registered);
    let at_first = registered();
    let way = (hosts[0].client(&mut random), [&hosts[0], &hosts[1]]);
    let mut call = Call::propose(0, plan, way, &table).unwrap();
    until("the proposal", || call.is_taken_for_nothing());
    assert!(registered().iter().zip(at_first).all(|(now, first)| *now > first));
    until("its end", || {
        let _ = call.step(&mut random);
        call.is_over()
    });
    until("memory", || registered() == at_first);
    are_at_rest(&hosts, &before);
}

#[test]
fn hundreds_at_once_have_links() {
    const COUNT: u32 = 200;
    let running = Running::new(14);
    let hosts = two(&running, Duration::from_micros(500));
    let before = are_up(&hosts);
    (0..12).for_each(|_| hosts[0].start_client());
    let (table, mut random, mut open) = (hosts[0].table(), Random::new(14), Vec::new());
    let plan = Plan {
        bytes: [5000; 2],
        looks_at: Some(0),
        withdraws_at: None,
        goes_on: false,
        closes_at: None,
    };
    while open.len() < COUNT as usize {
        let way = (hosts[0].client(&mut random), [&hosts[0], &hosts[1]]);
        open.extend(Call::propose(u32::try_from(open.len()).unwrap(), plan, way, &table));
    }
    until("all of them to agree", || {
        let agreed = open.iter_mut().filter_map(|call| call.agrees().then_some(()));
        let n = agreed.count();
        println!("{n} {:?}", hosts.each_ref().map(|host| peer(host).link_groups));
        n == COUNT as usize
    });
    until("all bytes", || {
        open.iter_mut().for_each(|call| _ = call.step(&mut random));
        open.iter().all(Call::is_over)
    });
    are_at_rest(&hosts, &before);
}
