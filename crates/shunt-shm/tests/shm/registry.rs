//! The registry of shunted listeners.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use shunt_shm::doorbell::futex_wait;
use shunt_shm::memfd::{Map, create_sealed};
use shunt_shm::reach::WHOLE;
use shunt_shm::registry::{Listing, NETWORKS, Network, Registry, RegistryWriter, Scope, life};
use shunt_wire::addr::Addr;

use crate::{v4, v6};

fn pair() -> (RegistryWriter, Registry) {
    let (writer, fd) = Registry::create().unwrap();
    (writer, Registry::map(fd).unwrap())
}

fn listing(listener: u64, addr: Addr) -> Listing {
    Listing { listener, addr, v6only: false, bits: WHOLE, netns: 1 }
}

fn find(registry: &Registry, to: Addr) -> Option<u64> {
    registry.find(&to, |_| true).map(|l| l.listener)
}

#[test]
fn libraries_can_only_read_it() {
    let (_, fd) = Registry::create().unwrap();
    assert!(Map::new(&fd, 4096, true).is_err());
    assert!(Registry::map(&fd).is_ok());
    assert!(Registry::map(create_sealed("test", 1 << 20).unwrap()).is_err());
}

#[test]
fn a_listing_is_read_as_it_was_written() {
    let (mut writer, registry) = pair();
    let written = Listing { netns: 1 << 40, v6only: true, ..listing(u64::MAX, v6(443)) };
    assert!(registry.find(&v6(443), |_| true).is_none());
    assert!(writer.publish(&written));
    assert_eq!(registry.find(&v6(443), |_| true), Some(written));
    assert_eq!(registry.find(&v6(444), |_| true), None);
    assert_eq!(registry.find(&v4(443), |_| true), None);
    assert_eq!(registry.find(&v6(443), |_| false), None);
}

#[test]
fn what_wake_ups_take_is_not_known_until_it_is_said() {
    let (mut writer, registry) = pair();
    assert_eq!(registry.wake_ups(), [0, 0]);
    writer.set_wake_ups([30_000, 40_000]);
    assert_eq!(registry.wake_ups(), [30_000, 40_000]);
}

#[test]
fn those_who_sleep_hear_of_the_end_of_the_agent() {
    let (mut writer, registry) = pair();
    let word = || registry.agent().load(Ordering::Acquire);
    assert!(!life::is_alive(word()), "an agent that says nothing");
    writer.tell_of_our_end().unwrap();
    let lives = word();
    assert!(life::is_alive(lives));
    let (registry, longest) = (&registry, Some(Duration::from_secs(30)));
    thread::scope(|scope| {
        let sleeper =
            scope.spawn(move || while futex_wait(registry.agent(), lives, longest).is_ok() {});
        drop(writer);
        sleeper.join().unwrap();
    });
    assert!(!life::is_alive(word()));
}

#[test]
fn an_exact_address_beats_any() {
    for exact_first in [true, false] {
        let (mut writer, registry) = pair();
        let mut listings = [listing(1, v4(80)), listing(2, Addr::any_v4(80))];
        if !exact_first {
            listings.reverse();
        }
        listings.iter().for_each(|l| assert!(writer.publish(l)));
        assert_eq!(find(&registry, v4(80)), Some(1));
        let elsewhere = Addr::from(SocketAddr::from((Ipv4Addr::new(127, 0, 0, 2), 80)));
        assert_eq!(find(&registry, elsewhere), Some(2));
    }
}

#[test]
fn ipv4_reaches_a_dual_stack_listener_and_no_other() {
    let (mut writer, registry) = pair();
    assert!(writer.publish(&Listing { v6only: true, ..listing(1, Addr::any_v6(80)) }));
    assert_eq!(find(&registry, v4(80)), None);
    assert_eq!(find(&registry, v6(80)), Some(1));
    assert!(writer.publish(&listing(2, Addr::any_v6(81))));
    assert_eq!(find(&registry, v4(81)), Some(2));
    assert!(writer.publish(&listing(3, Addr::any_v4(82))));
    assert_eq!(find(&registry, v6(82)), None);
    assert_eq!(find(&registry, v4(82)), Some(3));
}

#[test]
fn who_asks_picks_among_namespaces() {
    let (mut writer, registry) = pair();
    for netns in 1..=3 {
        assert!(writer.publish(&Listing { netns, ..listing(netns, v4(80)) }));
    }
    for netns in 1..=3 {
        let found = registry.find(&v4(80), |l| l.netns == netns).unwrap();
        assert_eq!(found.listener, netns);
    }
}

#[test]
fn a_removed_listener_is_not_found_and_hides_nobody() {
    let (mut writer, registry) = pair();
    (1..=3).for_each(|n| assert!(writer.publish(&Listing { netns: n, ..listing(n, v4(80)) })));
    writer.remove(2);
    assert_eq!(registry.find(&v4(80), |l| l.netns == 2), None);
    assert!(registry.find(&v4(80), |l| l.netns == 3).is_some(), "behind the gap");
    writer.remove(99);
    assert!(writer.publish(&Listing { netns: 4, ..listing(4, v4(80)) }));
    assert!(registry.find(&v4(80), |l| l.netns == 4).is_some());
}

#[test]
fn places_are_used_again_for_ever() {
    let (mut writer, registry) = pair();
    for n in 1..=10_000 {
        assert!(writer.publish(&listing(n, v4(80))), "{n}");
        assert_eq!(find(&registry, v4(80)), Some(n));
        writer.remove(n);
        assert_eq!(find(&registry, v4(80)), None);
    }
}

#[test]
fn a_full_neighbourhood_is_refused() {
    let (mut writer, registry) = pair();
    let room = (1..).take_while(|n| writer.publish(&listing(*n, v4(80)))).count();
    assert!((8..2048).contains(&room), "{room}");
    writer.remove(1);
    assert!(writer.publish(&listing(9999, v4(80))));
    assert!(registry.find(&v4(80), |l| l.listener == 9999).is_some());
}

/// The agent changes an entry while it is read: the reader sees one listing or the other, or none.
#[test]
fn no_torn_listing_is_ever_seen() {
    let (mut writer, registry) = pair();
    let over = AtomicBool::new(false);
    let make = |n: u64| Listing { v6only: n.is_multiple_of(2), netns: n, ..listing(n, v4(80)) };
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                if let Some(l) = registry.find(&v4(80), |_| true) {
                    assert_eq!(l, make(l.listener));
                }
            }
        });
        for n in 1..=50_000 {
            assert!(writer.publish(&make(n)));
            writer.remove(n);
        }
        over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn it_says_where_connections_may_lead() {
    let (mut writer, registry) = pair();
    assert_eq!(registry.scope(), Scope::User);
    assert!(!registry.may_lead_elsewhere(&v4(80)));
    let network = |addr: Addr, len| Network { ip: addr.ip, len };
    writer.set_scope(Scope::Marked, &[network(v4(0), 96 + 8), network(v6(0), 128)]);
    assert_eq!(registry.scope(), Scope::Marked);
    let leads = |addr: Addr| registry.may_lead_elsewhere(&addr);
    let (mut near, mut far) = (v4(80), v4(80));
    near.ip[15] ^= 0x70;
    far.ip[12] ^= 0x70;
    assert!(leads(v4(80)) && leads(near) && leads(v6(443)) && !leads(far));
    // As many as there is room for; and none of those before.
    writer.set_scope(Scope::Unmarked, &vec![network(far, 128); NETWORKS + 1]);
    assert!(leads(far) && !leads(near));
    assert_eq!(registry.scope(), Scope::Unmarked);
}

#[test]
fn a_network_is_found_for_its_servers_behind_those_that_are_named() {
    let (mut writer, registry) = pair();
    let ip = |last: u8, port| Addr::from(std::net::SocketAddr::from(([10, 0, 0, last], port)));
    let wide = |listener, addr, bits| Listing { bits, ..listing(listener, addr) };
    assert!(writer.publish(&wide(1, ip(0, 80), 96 + 24)));
    assert!(writer.publish(&wide(2, ip(0, 0), 96 + 25)));
    assert!(writer.publish(&wide(3, ip(7, 0), WHOLE)));
    assert!(writer.publish(&listing(4, ip(5, 80))));
    assert!(writer.publish(&listing(5, Addr::any_v4(80))));
    for (to, found) in [
        (ip(200, 80), Some(1)),
        (ip(200, 81), None),
        // The smaller network.
        (ip(100, 80), Some(2)),
        (ip(100, 9), Some(2)),
        (ip(7, 80), Some(3)),
        (ip(5, 80), Some(4)),
        (v4(80), Some(5)),
    ] {
        assert_eq!(find(&registry, to), found, "{to}");
    }
    let narrow = registry.find(&ip(200, 80), |listing| !listing.is_wide());
    assert_eq!(narrow.map(|listing| listing.listener), Some(5));
    writer.remove(1);
    assert_eq!(find(&registry, ip(200, 80)), Some(5));
}
