//! Connections of programs here to a server that speaks the kernel's SMC-R: the agent's part, over loopback and the device in the
//! process. The server is `shunt-far`'s for tests, and has a thread of its own.

#![allow(clippy::cast_possible_truncation, reason = "bytes are made of numbers")]

mod common;
#[path = "common/keys.rs"]
mod keys;
#[path = "kernels/program.rs"]
mod program;
#[path = "../../shunt-smc/tests/common/mod.rs"]
mod scripted;
#[path = "../../shunt-far/tests/kernel/server.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod server;
#[path = "kernels/serving.rs"]
mod serving;
#[path = "common/wait.rs"]
mod wait;

use std::io::Read;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use common::Running;
use keys::ids;
use program::{Agent, Program};
use serving::Serving;
use shunt_rdma::kernels::{Marks, Servers};
use shunt_rdma::report::{Report, ServerReport};
use shunt_rdma::{Config, Host, Plane, Promote};
use shunt_sys::bpf::Answer;
use shunt_wire::reason::Reason;
use wait::{PATIENCE, until};

/// Of a byte, who has sent it.
const PROGRAM: u8 = 1;
const KERNEL: u8 = 2;

/// The byte at a place of a direction.
fn byte(connection: u32, sender: u8, place: u64) -> u8 {
    let mixed = place.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    mixed as u8 ^ (connection as u8).wrapping_mul(31) ^ sender.wrapping_mul(77)
}

/// All servers answer so.
#[derive(Debug)]
struct All(Answer);

impl Marks for All {
    fn answer(&self, _: BorrowedFd<'_>) -> Answer {
        self.0
    }

    fn forget(&self, _: BorrowedFd<'_>) {}
}

/// The server's answer is seen at the third look: the connection was made before.
#[derive(Debug, Default)]
struct Late(AtomicU32);

impl Marks for Late {
    fn answer(&self, _: BorrowedFd<'_>) -> Answer {
        match self.0.fetch_add(1, Ordering::Relaxed) {
            0 | 1 => Answer::Connecting,
            _ => Answer::Smc,
        }
    }

    fn forget(&self, _: BorrowedFd<'_>) {}
}

/// An agent with a server that answers so to SYNs, which has these EIDs.
struct World {
    agent: Agent,
    serving: Serving,
    plane: Plane,
    _running: Running,
}

impl World {
    fn new(seed: u64, answer: Answer, eids: &'static [&'static str]) -> Self {
        Self::with_limit(seed, answer, eids, usize::MAX)
    }

    /// The same, where so many bytes can be registered.
    fn with_limit(seed: u64, answer: Answer, eids: &'static [&'static str], limit: usize) -> Self {
        Self::by(seed, Arc::new(All(answer)), eids, limit)
    }

    fn by(seed: u64, marks: Arc<dyn Marks>, eids: &'static [&'static str], limit: usize) -> Self {
        let running = Running::new(seed);
        let serving = Serving::start(running.network.host(), eids);
        let port = running.network.host_with_limit(limit);
        let servers =
            Servers { at: vec![serving.at.into()], eids: vec![scripted::eid("SHUNT")], marks };
        let [id, _] = ids();
        let config = Config {
            device: "fake0".parse().unwrap(),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            key: id.1,
            peers: Vec::new(),
            promote: Promote::Always,
            servers: Some(servers),
            host: Host::default(),
        };
        let plane = Plane::start_with(config, move || Ok(port.clone())).unwrap();
        let agent = Agent::new(plane.memory(), serving.at);
        Self { agent, serving, plane, _running: running }
    }

    fn report(&self) -> Report {
        self.plane.report().unwrap()
    }

    /// What is known of the server.
    fn server(&self) -> ServerReport {
        self.report().servers.remove(0)
    }

    fn connect(&self, slot: usize) -> Program<'_> {
        Program::connect(&self.agent, slot, |region, socket| {
            self.plane.pass(region, slot, socket);
        })
    }
}

#[test]
fn programs_exchange_bytes_with_a_kernel() {
    let world = World::new(1, Answer::Smc, &["SHUNT"]);
    let mut programs: Vec<_> = (0..3)
        .map(|slot| {
            let program = world.connect(slot);
            program.until_answered();
            // One after another, as a kernel has it on a first contact.
            world.serving.gives(slot, 0);
            program
        })
        .collect();
    for (slot, program) in programs.iter_mut().enumerate() {
        program.exchange(&world.serving, slot, 600_000);
    }
    assert_eq!(world.serving.first_contacts(), 1, "all are on one link");
    until("the report", || world.server().connections_total == 3);
    let report = world.server();
    assert_eq!((report.connections, report.reason), (3, None));
    for (slot, program) in programs.into_iter().enumerate() {
        program.close();
        until("the end", || world.serving.has_closed(slot));
        world.serving.closes(slot);
        until("a place that can be used again", || world.agent.is_free(slot));
    }
    until("the report", || world.server().connections == 0);
    // Further ones have the link, and the places, of those before.
    let mut program = world.connect(1);
    program.until_answered();
    program.exchange(&world.serving, 3, 1000);
    assert_eq!(world.serving.first_contacts(), 1);
}

/// TCP and the link are two ways: the server accepts on a link that is up there and not here. To decline that would end the link.
#[test]
fn a_connection_that_is_accepted_before_its_link_is_up_waits_for_it() {
    let world = World::new(9, Answer::Smc, &["SHUNT"]);
    world.serving.holds_link(true);
    let first = world.connect(0);
    until("a confirm", || world.serving.is_confirmed(0));
    let second = world.connect(1);
    until("an accept", || world.serving.has_accepted(1));
    // The agent takes it meanwhile.
    std::thread::sleep(Duration::from_millis(50));
    world.serving.holds_link(false);
    for (slot, mut program) in [first, second].into_iter().enumerate() {
        program.until_answered();
        program.exchange(&world.serving, slot, 100_000);
    }
    assert_eq!(world.serving.first_contacts(), 1);
}

/// The agent looks at the region as another connection of the program's is told of.
#[test]
fn a_proposal_that_is_not_posted_yet_is_looked_at_again() {
    let world = World::new(12, Answer::Smc, &["SHUNT"]);
    let pass = |region, socket| world.plane.pass(region, 1, socket);
    let late = Program::connect_and(&world.agent, 1, pass, || {
        world.connect(0).until_answered();
        world.agent.is_told();
        std::thread::sleep(Duration::from_millis(50));
    });
    late.until_answered();
}

/// Behind the agreement there is no way back, and the program is told why.
#[test]
fn a_connection_whose_link_ends_is_reset_with_a_reason() {
    let world = World::new(11, Answer::Smc, &["SHUNT"]);
    let mut program = world.connect(0);
    program.until_answered();
    program.exchange(&world.serving, 0, 1000);
    world.serving.fails_link();
    until("a reason", || program.why() == Some(Reason::SmcReset));
    until("the report", || world.server().reset_total == 1);
    assert!(world.server().reason.unwrap().starts_with("its link has ended"));
}

/// Neither of both is left without an answer.
#[test]
fn a_connection_whose_link_ends_before_it_is_up_stays_on_tcp() {
    let world = World::new(10, Answer::Smc, &["SHUNT"]);
    world.serving.holds_link(true);
    let _first = world.connect(0);
    until("a confirm", || world.serving.is_confirmed(0));
    let second = world.connect(1);
    until("an accept", || world.serving.has_accepted(1));
    world.serving.drops(0);
    world.serving.fails_link();
    until("an answer", || second.is_declined());
    until("the report", || world.report().server_links == 0);
}

/// Of a server that speaks SMC none may be taken for one that does not: it waits for the client's word.
#[test]
fn an_answer_that_is_seen_behind_the_connection_counts() {
    let world = World::by(14, Arc::new(Late::default()), &["SHUNT"], usize::MAX);
    let mut program = world.connect(0);
    program.until_answered();
    program.exchange(&world.serving, 0, 1000);
}

#[test]
fn a_server_without_an_answer_is_one_of_tcp() {
    let world = World::new(15, Answer::Connecting, &["SHUNT"]);
    let program = world.connect(0);
    until("an answer", || program.is_declined());
    assert_eq!(program.why(), Some(Reason::SmcUnspoken));
    assert_eq!(program.exchange_over_tcp(&world.serving, 0), "no word of anything else");
}

#[test]
fn a_server_that_has_no_group_in_common_leaves_them_on_tcp() {
    let world = World::new(2, Answer::Smc, &["ELSEWHERE"]);
    let program = world.connect(0);
    until("an answer", || program.is_declined());
    assert!(world.serving.has_proposal(0));
    until("the report", || world.server().declined_total == 1);
    let report = world.server();
    assert_eq!(report.connections, 0);
    assert!(report.reason.unwrap().starts_with("the server says no device"));
    assert_eq!(program.why(), Some(Reason::SmcNoGroup));
    assert_eq!(program.exchange_over_tcp(&world.serving, 0), "no word of anything else");
}

#[test]
fn a_server_of_tcp_hears_no_word_of_it() {
    for (answer, why) in [(Answer::None, Reason::SmcUnspoken), (Answer::Echo, Reason::SmcEchoed)] {
        let world = World::new(3, answer, &["SHUNT"]);
        let program = world.connect(0);
        until("an answer", || program.is_declined());
        assert_eq!(program.why(), Some(why));
        assert_eq!(program.exchange_over_tcp(&world.serving, 0), "no word of anything else");
        assert!(!world.serving.has_proposal(0));
    }
}

#[test]
fn a_program_that_goes_while_they_agree_ends_the_connection() {
    let world = World::new(4, Answer::Smc, &["SHUNT"]);
    world.serving.says_nothing(true);
    let program = world.connect(0);
    until("the proposal", || world.serving.has_proposal(0));
    program.close();
    until("the end of TCP", || world.serving.has_lost(0));
    until("a place that can be used again", || world.agent.is_free(0));
}

#[test]
fn a_server_that_ends_in_the_middle_ends_it() {
    let world = World::new(5, Answer::Smc, &["SHUNT"]);
    world.serving.says_nothing(true);
    let program = world.connect(0);
    until("the proposal", || world.serving.has_proposal(0));
    world.serving.drops(0);
    until("an answer", || program.is_declined());
    assert!(program.has_ended());
    assert_eq!(program.why(), Some(Reason::SmcFailed));
    until("the report", || world.server().failed_total == 1);
}

#[test]
fn without_a_marked_socket_nobody_answers() {
    let world = World::new(6, Answer::Smc, &["SHUNT"]);
    let other = Program::connect(&world.agent, 0, |_, socket| drop(socket));
    let program = world.connect(1);
    program.until_answered();
    assert!(!other.is_declined());
    assert!(!world.serving.has_proposal(0));
}

#[test]
fn a_proposal_that_is_taken_back_leaves_no_socket() {
    let world = World::new(13, Answer::Smc, &["SHUNT"]);
    world.agent.takes_back(0, |region, socket| world.plane.pass(region, 0, socket));
    until("the end of TCP", || world.serving.has_lost(0));
    assert!(!world.serving.has_proposal(0));
    // Its place is another one's.
    world.connect(0).until_answered();
}

#[test]
fn rings_that_cannot_be_registered_leave_it_on_tcp() {
    // Enough for a link's messages.
    let world = World::with_limit(7, Answer::Smc, &["SHUNT"], 400_000);
    for call in 0..2 {
        let program = world.connect(call);
        until("an answer", || program.is_declined());
        assert_eq!(program.why(), Some(Reason::SmcDeclined));
        assert_eq!(program.exchange_over_tcp(&world.serving, call), "no word of anything else");
        until("the report", || world.server().declined_total == call as u64 + 1);
        // Nothing is left of it.
        until("memory", || world.report().memory_registered == 0);
        assert_eq!(world.report().server_links, 0);
    }
    assert!(world.server().reason.unwrap().starts_with("this host says "));
}

#[test]
fn sockets_that_are_passed_and_never_proposed_are_let_go() {
    let world = World::new(8, Answer::Smc, &["SHUNT"]);
    let (mut kept, passed) = std::os::unix::net::UnixStream::pair().unwrap();
    world.plane.pass(77, 0, passed.into());
    let program = world.connect(0);
    program.until_answered();
    kept.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(kept.read(&mut [0]).unwrap(), 0, "nobody has it any more");
}
