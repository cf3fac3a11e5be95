//! Libraries and tools of other versions, by the bytes that those send.

mod common;

use std::os::fd::AsFd;

use common::{Agent, Client, new_eventfd};
use shunt_shm::arena::ArenaView;
use shunt_shm::capture::BITS;
use shunt_sys::fds::Fds;
use shunt_sys::seqpacket;
use shunt_wire::agent::{MAX_MESSAGE, Reply, Request};
use shunt_wire::version::{CAPTURE_SINCE, OLDEST_VERSION, PROTOCOL_VERSION, SPOKEN};

/// `Hello` of a program `p` without a run, as libraries of versions 6 to 8 encode it.
const fn hello(version: u8) -> [u8; 5] {
    [0, version, 1, b'p', 0]
}
/// `Refused { version-mismatch }`, as all of them decode it.
const REFUSED: [u8; 2] = [7, 3];
/// The last version whose memory lies otherwise.
const BEFORE: u8 = 6;

fn byte(version: u32) -> u8 {
    version.try_into().unwrap()
}

/// What the agent answers, in bytes; then it has hung up, if `ends`.
fn answer(client: &Client, ends: bool) -> Vec<u8> {
    let mut buf = [0; MAX_MESSAGE];
    let mut next = || {
        let len = seqpacket::recv(&client.socket, &mut buf, &mut Fds::new(), common::PATIENCE);
        len.map(|len| buf[..len].to_vec())
    };
    let first = next().unwrap();
    assert!(!ends || next().is_ok_and(|rest| rest.is_empty()));
    first
}

/// A library of a version, with its arena.
fn library(agent: &Agent, version: u32) -> (Client, ArenaView) {
    let client = agent.client();
    client.send_raw(&hello(byte(version)), &[new_eventfd().as_fd()]).unwrap();
    let (reply, fds) = client.receive().unwrap();
    assert!(matches!(reply, Reply::Welcome { .. }), "{version}: {reply:?}");
    let arena = ArenaView::map(&fds[1]).unwrap();
    (client, arena)
}

#[test]
fn neighbours_are_welcome() {
    let agent = Agent::start();
    let programs: Vec<_> = SPOKEN.map(|version| library(&agent, version)).collect();
    for version in SPOKEN {
        let tool = agent.client();
        tool.send_raw(&[1, byte(version)], &[]).unwrap();
        assert_eq!(answer(&tool, false), [1]);
    }
    let status = agent.status();
    assert_eq!(status["endpoints"], programs.len());
    assert_eq!(status["protocol"]["newest"], PROTOCOL_VERSION);
    assert_eq!(status["protocol"]["oldest"], OLDEST_VERSION);
    assert!(status["other_versions"].as_array().is_some_and(Vec::is_empty), "{status}");
}

#[test]
fn others_are_refused_and_named() {
    let agent = Agent::start();
    for version in [BEFORE, byte(PROTOCOL_VERSION + 1)] {
        // Doorbells came along in version 6, eight at the most.
        let bells: Vec<_> = (0..8).map(|_| new_eventfd()).collect();
        let bells: Vec<_> = bells.iter().map(AsFd::as_fd).collect();
        let library = agent.client();
        library.send_raw(&hello(version), &bells).unwrap();
        assert_eq!(answer(&library, true), REFUSED);
        let tool = agent.client();
        tool.send_raw(&[1, version], &[]).unwrap();
        assert_eq!(answer(&tool, true), REFUSED);
    }
    let status = agent.status();
    // One program, however often it asks; tools tell their user themselves.
    let others = status["other_versions"].as_array().unwrap();
    assert_eq!(others.len(), 1, "{status}");
    assert_eq!(
        (&others[0]["pid"], &others[0]["version"]),
        (&std::process::id().into(), &BEFORE.into())
    );
    assert_eq!(status["rejected_clients"], 0);
}

/// What the agent would write for a capture is something else to an older library.
#[test]
fn libraries_that_know_no_captures_are_not_captured() {
    let agent = Agent::start();
    let (_old, before) = library(&agent, CAPTURE_SINCE - 1);
    let (_new, after) = library(&agent, CAPTURE_SINCE);
    let tool = agent.tool();
    let (reply, _) = tool.call(&Request::Capture { snap: 100, port: 0 }, &[]);
    assert!(matches!(reply, Reply::Capturing { .. }), "{reply:?}");
    let (_late, late) = library(&agent, CAPTURE_SINCE - 1);
    assert_eq!([&before, &late].map(ArenaView::captures), [0, 0]);
    assert_eq!(after.captures() & BITS, 1);
}
