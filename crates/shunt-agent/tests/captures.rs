//! Captures: who is given whose rings, and what is left when a capture ends.

mod common;

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::time::Instant;

use common::{Agent, Client, PATIENCE, as_user, new_eventfd};
use serde_json::Value;
use shunt_agent::HostConfig;
use shunt_shm::arena::ArenaView;
use shunt_shm::capture::{BITS, Event, Reader, Rings};
use shunt_wire::PROTOCOL_VERSION;
use shunt_wire::agent::{MAX_MESSAGE, Reply, Request, encode};
use shunt_wire::reason::Reason;

/// Users without a name.
const ONE: u32 = 61_111;
const OTHER: u32 = 61_112;

/// A library with its memory.
struct Program {
    client: Client,
    arena: ArenaView,
    rings: Rings,
}

impl Program {
    fn of(mut client: Client, name: &str) -> Self {
        let bell = new_eventfd();
        let hello = Request::Hello { version: PROTOCOL_VERSION, program: name, run: 0 };
        let (reply, fds) = client.call(&hello, &[bell.as_fd()]);
        let Reply::Welcome { endpoint, .. } = reply else { panic!("{reply:?}") };
        client.id = endpoint;
        let [_, arena, rings] = &fds[..] else { panic!("{} descriptors", fds.len()) };
        Self { client, arena: ArenaView::map(arena).unwrap(), rings: Rings::map(rings).unwrap() }
    }

    fn is_captured(&self) -> bool {
        self.arena.captures() != 0
    }

    /// Sends a byte, if it is captured; false: the capture is over.
    fn sends(&self) -> bool {
        let event = Event { len: 1, ..Event::default() };
        let bits = self.arena.captures() & BITS;
        // SAFETY: the part is there.
        unsafe { self.rings.put(bits, &event, &[(b"x".as_ptr(), 1)], || 0) == 0 }
    }

    fn until_uncaptured(&self) {
        let begun = Instant::now();
        while self.is_captured() {
            assert!(begun.elapsed() < PATIENCE, "it is captured still");
            std::thread::yield_now();
        }
    }
}

fn capture(tool: &Client) -> usize {
    let (reply, fds) = tool.call(&Request::Capture { snap: 100, port: 0 }, &[]);
    let Reply::Capturing { place } = reply else { panic!("{reply:?}") };
    assert!(fds.is_empty());
    place.into()
}

/// Programs that have come, with their rings, and those that have ended.
fn captured(tool: &Client) -> (Vec<u64>, Vec<OwnedFd>, Vec<u64>) {
    let (reply, mut fds) = tool.call(&Request::Captured, &[]);
    let Reply::Report { len } = reply else { panic!("{reply:?}") };
    let mut text = vec![0; len as usize];
    assert_eq!(rustix::io::pread(fds.remove(0), &mut text, 0), Ok(text.len()));
    let report: Value = serde_json::from_slice(&text).unwrap();
    let programs = report["programs"].as_array().unwrap();
    let ids: Vec<_> = programs.iter().map(|p| p["endpoint"].as_u64().unwrap()).collect();
    let ended = report["ended"].as_array().unwrap().iter().map(|e| e.as_u64().unwrap());
    assert_eq!(ids.len(), fds.len());
    (ids, fds, ended.collect())
}

#[test]
fn a_capture_sees_programs_that_are_there_and_that_come() {
    let agent = Agent::start();
    let before = Program::of(agent.client(), "before");
    assert!(!before.is_captured(), "nobody captures: its word is 0");
    let tool = agent.tool();
    let place = capture(&tool);
    let (ids, rings, ended) = captured(&tool);
    assert_eq!((ids, ended), (vec![before.client.id], vec![]));
    assert!(before.is_captured() && before.sends());
    assert!(Reader::new(&rings[0], place).unwrap().next(0).is_some());
    // It comes, sends and ends before the tool asks.
    let short = Program::of(agent.client(), "short");
    assert!(short.is_captured() && short.sends());
    let id = short.client.id;
    drop(short);
    agent.until("it is gone", |status| status["endpoints"] == 1);
    let (ids, rings, ended) = captured(&tool);
    assert_eq!((ids, ended), (vec![id], vec![id]));
    assert!(Reader::new(&rings[0], place).unwrap().next(0).is_some());
    assert_eq!(captured(&tool).0, Vec::<u64>::new());
}

#[test]
fn nothing_is_left_of_a_capture_whose_tool_is_gone() {
    let agent = Agent::start();
    let program = Program::of(agent.client(), "program");
    let (one, other) = (agent.tool(), agent.tool());
    let place = capture(&one);
    assert_ne!(capture(&other), place);
    let (_, rings, _) = captured(&one);
    drop(one);
    let begun = Instant::now();
    while program.arena.captures() & 1 << place != 0 {
        assert!(begun.elapsed() < PATIENCE, "it is captured still");
        std::thread::yield_now();
    }
    assert!(program.is_captured() && program.sends(), "by the other one");
    assert_eq!(Reader::new(&rings[0], place).unwrap().next(0), None);
    // A fork of a program that has ended.
    let Program { client, arena, rings } = program;
    drop(client);
    let child = Program { client: agent.client(), arena, rings };
    agent.until("it is gone", |status| status["endpoints"] == 0);
    assert!(child.is_captured() && child.sends());
    drop(other);
    child.until_uncaptured();
}

#[test]
fn there_is_a_bound_to_captures_and_places_are_used_again() {
    let agent = Agent::start();
    let program = Program::of(agent.client(), "program");
    for _ in 0..3 {
        let tools: Vec<_> = (0..4).map(|_| agent.tool()).collect();
        let mut places: Vec<_> = tools.iter().map(capture).collect();
        places.sort_unstable();
        assert_eq!(places, [0, 1, 2, 3]);
        let request = Request::Capture { snap: 1, port: 0 };
        assert_eq!(agent.tool().refused(&request, &[]), Reason::NoResources);
        drop(tools);
        program.until_uncaptured();
    }
}

#[test]
fn a_program_that_takes_a_capture_for_over_is_told_that_it_is_not() {
    let agent = Agent::start();
    let program = Program::of(agent.client(), "program");
    let tool = agent.tool();
    capture(&tool);
    let word = program.arena.captures();
    program.arena.set_captures(0);
    let _ = captured(&tool);
    assert!(program.is_captured() && program.arena.captures() != word);
}

#[test]
fn libraries_do_not_capture_and_tools_ask_only_for_what_they_capture() {
    let agent = Agent::start();
    let packet = |request: &Request<'_>| encode(request, &mut [0; MAX_MESSAGE]).unwrap().to_vec();
    let capture = packet(&Request::Capture { snap: 1, port: 0 });
    agent.library().dropped_for(&capture, &[]);
    agent.client().dropped_for(&capture, &[]);
    agent.tool().dropped_for(&packet(&Request::Captured), &[]);
    let tool = agent.tool();
    self::capture(&tool);
    tool.dropped_for(&capture, &[]);
}

#[test]
fn users_capture_their_own_programs_and_root_all() {
    if !rustix::process::geteuid().is_root() {
        println!("left out: an agent for the host has to be root");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let agent = Agent::at(&dir.path().join("run"), |config| {
        config.host = Some(HostConfig::default());
    });
    let one = Program::of(as_user(ONE, || agent.client()), "one");
    let other = Program::of(as_user(OTHER, || agent.client()), "other");
    let (of_one, of_other) = (as_user(ONE, || agent.tool()), as_user(OTHER, || agent.tool()));
    capture(&of_one);
    assert!(one.is_captured() && !other.is_captured());
    capture(&of_other);
    assert_eq!(captured(&of_one).0, [one.client.id]);
    assert_eq!(captured(&of_other).0, [other.client.id]);
    // Also of those that come later.
    let late = Program::of(as_user(ONE, || agent.client()), "late");
    assert_eq!((captured(&of_one).0, captured(&of_other).0), (vec![late.client.id], vec![]));
    let of_root = agent.tool();
    capture(&of_root);
    assert_eq!(captured(&of_root).0.len(), 3);
}
