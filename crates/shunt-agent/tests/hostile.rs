//! What a client passes may block whoever closes it, or asks it something, for as long as the client likes. Others are
//! served meanwhile, and the agent can end.

mod common;

use std::any::Any;
use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use common::{Agent, Client, PATIENCE, new_eventfd};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use shunt_agent::metrics::Address;
use shunt_agent::socket::{Access, Claim};
use shunt_agent::{HostConfig, Limits, Metrics};
use shunt_blocking::{Held, HungFile, Lingering, chain};
use shunt_wire::PROTOCOL_VERSION;
use shunt_wire::agent::{Exported, MAX_FDS, MAX_MESSAGE, Reply, Request, encode};
use shunt_wire::reason::Reason;

/// Longer than any of this takes.
const FOR_EVER: Duration = Duration::from_secs(3600);

fn encoded(request: &Request<'_>) -> Vec<u8> {
    encode(request, &mut [0; MAX_MESSAGE]).unwrap().to_vec()
}

/// Whoever has just come, and whoever was there, are served, with and without sockets of theirs. How long that takes is no
/// more than is usual: what hangs does so for ever.
fn serves(agent: &Agent, bystander: &Client) {
    let missing = Request::Connect { listener: 1 };
    assert_eq!(bystander.refused(&missing, &[]), Reason::PeerNotShunted);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (name, _) = bystander.listen(&listener);
    let program = agent.library();
    program.connect(name);
    assert_eq!(bystander.call(&Request::Unlisten { listener: name }, &[]).0, Reply::Done);
    drop(listener);
}

/// Something that blocks, with what keeps it so.
type Blocking = (OwnedFd, Box<dyn Any>);

fn lingering() -> Blocking {
    let (socket, keeper) = Lingering::connect(FOR_EVER).unwrap();
    (socket, Box::new(keeper))
}

fn hung_file() -> Blocking {
    let hung = HungFile::open().unwrap();
    (hung.file().try_clone().unwrap(), Box::new(hung))
}

fn lingering_in_a_chain() -> Blocking {
    let (socket, keeper) = lingering();
    (chain(500, socket).unwrap(), keeper)
}

fn held_bell() -> Blocking {
    let bell = new_eventfd();
    let held = Held::watching(&bell).unwrap();
    (bell, Box::new(held))
}

fn held_pipe() -> Blocking {
    let (reader, writer) = std::io::pipe().unwrap();
    let held = Held::writing(&writer).unwrap();
    (reader.into(), Box::new(held))
}

/// A listening socket that is watched.
fn held_listener() -> Blocking {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let held = Held::watching(&listener).unwrap();
    (listener.into(), Box::new(held))
}

type Kind = (&'static str, fn() -> Blocking);

const KINDS: [Kind; 6] = [
    ("a socket that lingers", lingering),
    ("a file that hangs", hung_file),
    ("a chain", lingering_in_a_chain),
    ("a bell that is watched", held_bell),
    ("a pipe", held_pipe),
    ("a listener that is watched", held_listener),
];

/// One test at a time: what one of them forks must not have what another one passes.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sends as many descriptors as the kernel takes, unless the agent has hung up.
fn send_many(to: impl AsFd, packet: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut control = SendAncillaryBuffer::new(&mut room);
    assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    match sendmsg(to, &[IoSlice::new(packet)], &mut control, SendFlags::NOSIGNAL) {
        Ok(_) | Err(Errno::PIPE | Errno::CONNRESET) => {}
        Err(e) => panic!("{e}"),
    }
}

/// Closes it at once: most of the time before the agent does, which then is the last. Where it is not, this waits instead.
fn close_elsewhere(fd: OwnedFd) {
    std::thread::spawn(move || drop(fd));
}

/// Everything that a client can do with a descriptor, with one of these each. What keeps them, and clients that stay.
fn all_ways(agent: &Agent, mut things: Vec<Blocking>) -> Vec<Box<dyn Any>> {
    let mut kept: Vec<Box<dyn Any>> = Vec::new();
    let mut pass = |client: &Client, packet: &[u8], count: usize| {
        let (fd, keeper) = things.pop().unwrap();
        send_many(&client.socket, packet, &vec![fd.as_fd(); count]);
        close_elsewhere(fd);
        kept.push(keeper);
    };
    let hello = Request::Hello { version: PROTOCOL_VERSION, program: "hostile", run: 0 };
    let what = Exported::Pipes { region: 1, slot: 0 };
    let mut clients = Vec::new();
    for request in [
        Request::Listen,
        Request::Attach { region: 1, slot: 0 },
        Request::Export { what: Exported::Asked },
        Request::Export { what },
        Request::Import { region: 1, slot: 0, export: 1 },
        Request::Await,
        Request::Claim,
        // With those that nobody asks for.
        Request::Connect { listener: 1 },
    ] {
        clients.push(agent.library());
        pass(&clients[clients.len() - 1], &encoded(&request), 1);
        pass(&agent.library(), &encoded(&request), 2);
    }
    pass(&agent.client(), &encoded(&hello), 1);
    pass(&agent.tool(), &encoded(&Request::Status), 1);
    // What is no message, too long, too many, and what nobody comes to read.
    pass(&agent.client(), &[0xff; 3], 1);
    pass(&agent.client(), &[], 1);
    pass(&agent.client(), &[0; 2 * MAX_MESSAGE], 1);
    pass(&agent.client(), &encoded(&hello), MAX_FDS + 1);
    pass(&agent.client(), &encoded(&hello), 253);
    clients.push(agent.client());
    for _ in 0..4 {
        pass(&clients[clients.len() - 1], &[0xff; 3], 1);
    }
    kept.push(Box::new(clients));
    kept
}

/// So many are needed for that.
const WAYS: usize = 27;

fn others_are_served(agent: &Agent, kinds: &[Kind]) {
    let bystander = agent.library();
    for (what, kind) in kinds {
        let things = (0..WAYS).map(|_| kind()).collect();
        let before = Instant::now();
        let kept = all_ways(agent, things);
        for _ in 0..5 {
            serves(agent, &bystander);
        }
        println!("{what}: others were served, {:?}", before.elapsed());
        drop(kept);
        agent.until("all of them have gone on", |s| s["inspectors_stuck"] == 0);
    }
}

/// Whoever is hostile and whoever is not are one process here, and must not share its bounds.
fn of_one_process(limits: &mut Limits) {
    limits.clients_per_process = 100;
    (limits.stuck_per_process, limits.stuck_per_account, limits.inspectors) = (200, 200, 200);
}

#[test]
fn others_are_served_by_a_users_agent() {
    let _alone = alone();
    let agent = Agent::limited(of_one_process);
    others_are_served(&agent, &KINDS);
}

#[test]
fn others_are_served_by_the_hosts_agent() {
    let _alone = alone();
    if !rustix::process::geteuid().is_root() {
        println!("left out: an agent for the host has to be root");
        return;
    }
    let agent = Agent::with(|config| {
        config.host = Some(HostConfig::default());
        of_one_process(&mut config.limits);
    });
    others_are_served(&agent, &KINDS);
}

/// A process that has passed too much of it is not heard any more; others are.
#[test]
fn whoever_passes_too_much_is_dropped_with_a_reason() {
    let _alone = alone();
    let agent = Agent::limited(|limits| limits.inspection = Duration::from_millis(300));
    let bystander = agent.library();
    let hung = HungFile::open().unwrap();
    let pass = || {
        let client = agent.client();
        client.send_raw(&[0xff], &[hung.file().as_fd()]).unwrap();
        client
    };
    let clients: Vec<_> = (0..4).map(|_| pass()).collect();
    for client in clients {
        assert!(client.receive().is_none());
    }
    let status = agent.status();
    assert_eq!(status["inspectors_stuck"], 2, "{status}");
    let dropped = |why: &str| status["rejected"][why].as_u64();
    assert_eq!(dropped("what it has passed is not let go of"), Some(2), "{status}");
    assert_eq!(dropped("what it has passed could not be looked at in time"), Some(2), "{status}");
    assert_eq!(status["rejected_clients"], 4);
    // Which it is itself, here: what it says without descriptors is heard.
    let missing = Request::Connect { listener: 1 };
    assert_eq!(bystander.refused(&missing, &[]), Reason::PeerNotShunted);
    drop(hung);
    agent.until("they have gone on", |s| s["inspectors_stuck"] == 0);
    serves(&agent, &bystander);
}

/// It ends, whatever it is stuck with, and leaves its place to the next one.
#[test]
fn an_agent_that_is_stuck_ends() {
    let _alone = alone();
    for (what, kind) in KINDS {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("run");
        let mut agent = Agent::at(&path, |config| of_one_process(&mut config.limits));
        let bystander = agent.library();
        let (bell, held) = held_bell();
        let kept = all_ways(&agent, (0..WAYS).map(|_| kind()).collect());
        // What it keeps as well.
        let hello = Request::Hello { version: PROTOCOL_VERSION, program: "hostile", run: 0 };
        let client = agent.client();
        client.call(&hello, &[bell.as_fd()]);
        close_elsewhere(bell);
        serves(&agent, &bystander);
        let began = Instant::now();
        agent.stop();
        assert!(began.elapsed() < PATIENCE, "{what}");
        assert!(bystander.receive().is_none(), "{what}: it was not told");
        // No agent: what that forks would have a copy of all that blocks.
        drop(Claim::take(agent.dir, Access::User, Duration::ZERO).unwrap());
        drop((kept, held, client));
    }
}

/// Where nobody is served any more, too.
#[test]
fn whoever_is_turned_away_is_not_waited_for() {
    let _alone = alone();
    let agent = Agent::limited(|limits| limits.clients_per_process = 2);
    agent.until("only the asker is there", |s| s["endpoints"] == 0);
    let bystander = agent.library();
    let full = agent.client();
    let things: Vec<_> = (0..20).map(|_| lingering()).collect();
    let mut kept = Vec::new();
    for (fd, keeper) in things {
        send_many(&agent.client().socket, &[0xff], &[fd.as_fd()]);
        close_elsewhere(fd);
        kept.push(keeper);
    }
    let missing = Request::Connect { listener: 1 };
    for _ in 0..5 {
        assert_eq!(bystander.refused(&missing, &[]), Reason::PeerNotShunted);
    }
    drop(full);
}

/// Thousands of descriptors, by clients that come and go.
#[test]
fn thousands_of_descriptors() {
    let _alone = alone();
    let agent = Agent::start();
    let bystander = agent.library();
    let (reader, writer) = std::io::pipe().unwrap();
    for round in 0..40 {
        let client = if round % 2 == 0 { agent.client() } else { agent.library() };
        for _ in 0..8 {
            send_many(&client.socket, &[0xff], &[writer.as_fd(); 253]);
        }
        serves(&agent, &bystander);
    }
    // None of them is left.
    drop(writer);
    let mut end = [rustix::event::PollFd::new(&reader, rustix::event::PollFlags::IN)];
    let patience = rustix::event::Timespec::try_from(PATIENCE).unwrap();
    assert_eq!(rustix::event::poll(&mut end, Some(&patience)), Ok(1), "some are kept");
}

/// Half a message, and then nothing.
#[test]
fn half_sent_messages() {
    let _alone = alone();
    let agent = Agent::start();
    let bystander = agent.library();
    let bell = new_eventfd();
    let hello = encoded(&Request::Hello { version: PROTOCOL_VERSION, program: "half", run: 7 });
    let mut kept = Vec::new();
    for len in 1..hello.len() {
        let client = agent.client();
        client.send_raw(&hello[..len], &[bell.as_fd()]).unwrap();
        kept.push(client);
        if kept.len() > 8 {
            kept.remove(0);
        }
        serves(&agent, &bystander);
    }
}

/// Who asks for metrics can pass descriptors, too.
#[test]
fn a_scraper_passes_what_lingers() {
    let _alone = alone();
    let temp = tempfile::tempdir().unwrap();
    let at = temp.path().join("metrics.sock");
    let agent = Agent::with(|config| {
        let address = Address::Unix(at.clone());
        config.metrics = Some(Metrics { address, public: false, required: true });
    });
    let bystander = agent.library();
    let mut kept = Vec::new();
    for bytes in [&b"GET /metrics HTTP/1.1\r\n\r\n"[..], b"G"] {
        for first in [&b""[..], b"GET /met"] {
            let mut scraper = UnixStream::connect(&at).unwrap();
            scraper.write_all(first).unwrap();
            let (fd, keeper) = lingering();
            send_many(&scraper, bytes, &[fd.as_fd()]);
            close_elsewhere(fd);
            kept.push(keeper);
            serves(&agent, &bystander);
        }
    }
    let mut honest = UnixStream::connect(&at).unwrap();
    honest.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut text = String::new();
    std::io::Read::read_to_string(&mut honest, &mut text).unwrap();
    assert!(text.contains("shunt_agent_stuck_inspectors "), "{text}");
}

/// The connection of a program that sends from memory which never comes: its addresses cannot be asked for.
#[test]
fn a_connection_that_is_locked() {
    let _alone = alone();
    let agent = Agent::start();
    let bystander = agent.library();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let held = Held::writing(&near).unwrap();
    let client = agent.library();
    client.send_raw(&encoded(&Request::Attach { region: 1, slot: 0 }), &[near.as_fd()]).unwrap();
    for _ in 0..5 {
        serves(&agent, &bystander);
    }
    drop(held);
    agent.until("it has gone on", |s| s["inspectors_stuck"] == 0);
}
