//! Doorbells that follow after the first one, who is given them, and rings that the agent does for others.

mod common;

use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};

use common::{Agent, Client, new_eventfd, registered};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use shunt_shm::doorbell::RUNG;
use shunt_shm::region::{Region, Side};
use shunt_sys::sockinfo;
use shunt_wire::agent::{MAX_MESSAGE, MAX_VECTORS, RegionId, Reply, Request, encode};
use shunt_wire::reason::Reason;

fn encoded(request: &Request<'_>) -> Vec<u8> {
    encode(request, &mut [0; MAX_MESSAGE]).unwrap().to_vec()
}

/// What hears a doorbell.
struct Ear(OwnedFd);

impl Ear {
    fn of(bell: &OwnedFd) -> Self {
        let ear = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        epoll::add(&ear, bell, epoll::EventData::new_u64(0), RUNG).unwrap();
        let ear = Self(ear);
        assert!(ear.is_rung(), "the start");
        ear
    }

    /// Whether it was rung since the last look.
    fn is_rung(&self) -> bool {
        let mut events = Vec::with_capacity(1);
        let found = spare_capacity(&mut events);
        epoll::wait(&self.0, found, Some(&Timespec::default())).unwrap() == 1
    }
}

/// A further doorbell of a library: its number, and what hears it.
fn add(library: &Client) -> (u8, Ear) {
    let bell = new_eventfd();
    match library.call(&Request::AddBell, &[bell.as_fd()]) {
        (Reply::Added { vector }, fds) if fds.is_empty() => (vector, Ear::of(&bell)),
        other => panic!("{other:?}"),
    }
}

/// Two libraries that share a link group, the connection in its slot 0, and what keeps them.
struct Group {
    agent: Agent,
    client: Client,
    server: Client,
    region: RegionId,
    ends: (TcpStream, TcpStream),
    _kept: (TcpListener, Region),
}

impl Group {
    fn new(agent: Agent) -> Self {
        let (client, server) = (agent.library(), agent.library());
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let (listener, _) = server.listen(&socket);
        let (region, _, memory) = client.connect(listener);
        let near = TcpStream::connect(socket.local_addr().unwrap()).unwrap();
        let far = socket.accept().unwrap().0;
        let mine = Region::map(&memory).unwrap();
        let setup = &mine.view().section(0, Side::Client).setup;
        setup.set_tuple(&sockinfo::four_tuple(&near).unwrap());
        let attach = Request::Attach { region, slot: 0 };
        let (reply, fds) = server.call(&attach, &[far.as_fd()]);
        assert_eq!(reply, Reply::Attached { endpoint: client.id, pidfd: true });
        assert_eq!(fds.len(), 3, "region, pidfd, the first doorbell");
        Self { agent, client, server, region, ends: (near, far), _kept: (socket, mine) }
    }

    fn bell(&self, of: &Client, vector: u8) -> Request<'static> {
        Request::Bell { region: self.region, slot: 0, endpoint: of.id, vector }
    }

    fn ring(&self, of: &Client, vector: u8) -> Request<'static> {
        Request::Ring { region: self.region, endpoint: of.id, vector }
    }
}

/// What the agent was sent before has been done when it answers.
fn settled(library: &Client) {
    let missing = Request::Connect { listener: 1 };
    assert_eq!(library.refused(&missing, &[]), Reason::PeerNotShunted);
}

#[test]
fn each_party_is_given_the_others_doorbells() {
    let group = Group::new(Agent::start());
    let (of_client, of_server) = (add(&group.client), add(&group.server));
    assert_eq!((of_client.0, of_server.0), (1, 1));
    for (asker, of, ear) in
        [(&group.server, &group.client, &of_client.1), (&group.client, &group.server, &of_server.1)]
    {
        let (reply, mut fds) = asker.call(&group.bell(of, 1), &[]);
        assert_eq!((reply, fds.len()), (Reply::Bell, 1));
        assert!(!ear.is_rung());
        shunt_shm::doorbell::ring_fd(&fds.pop().unwrap());
        assert!(ear.is_rung());
        assert_eq!(asker.refused(&group.bell(of, 2), &[]), Reason::Refused, "there is none");
        assert_eq!(asker.refused(&group.bell(of, u8::MAX), &[]), Reason::Refused);
    }
}

#[test]
fn strangers_are_given_none_and_ring_none() {
    let group = Group::new(Agent::start());
    let (stranger, others) = (group.agent.library(), Group::new(Agent::start()));
    let (vector, ear) = add(&group.client);
    let of_stranger = add(&stranger);
    assert_eq!(stranger.refused(&group.bell(&group.client, vector), &[]), Reason::Refused);
    let (reply, _) = group.server.call(&group.bell(&group.client, vector), &[]);
    assert_eq!(reply, Reply::Bell);
    // Nor is a party given those of one that is none.
    assert_eq!(group.server.refused(&group.bell(&stranger, 1), &[]), Reason::Refused);
    let nowhere =
        Request::Bell { region: group.region + 1000, slot: 0, endpoint: group.client.id, vector };
    assert_eq!(group.server.refused(&nowhere, &[]), Reason::Refused);
    // A socket that is no end of the connection proves nothing.
    let proof = others.ends.0.as_fd();
    assert_eq!(stranger.refused(&group.bell(&group.client, vector), &[proof]), Reason::Refused);

    stranger.send_raw(&encoded(&group.ring(&group.client, vector)), &[]).unwrap();
    settled(&stranger);
    assert!(!ear.is_rung());
    group.server.send_raw(&encoded(&group.ring(&stranger, of_stranger.0)), &[]).unwrap();
    settled(&group.server);
    assert!(!of_stranger.1.is_rung());
}

#[test]
fn who_holds_the_connection_is_given_the_doorbells_of_its_ends() {
    let group = Group::new(Agent::start());
    let child = group.agent.library();
    let (vector, ear) = add(&group.client);
    let request = group.bell(&group.client, vector);
    for end in [&group.ends.0, &group.ends.1] {
        let (reply, fds) = child.call(&request, &[end.as_fd()]);
        assert_eq!((reply, fds.len()), (Reply::Bell, 1));
        shunt_shm::doorbell::ring_fd(&fds[0]);
        assert!(ear.is_rung());
    }
    let memory = registered();
    assert_eq!(child.refused(&request, &[memory.as_fd()]), Reason::Refused);
}

#[test]
fn the_agent_rings_for_a_party_and_does_not_answer() {
    let group = Group::new(Agent::start());
    let bells = [add(&group.client), add(&group.client)];
    for (vector, ear) in &bells {
        group.server.send_raw(&encoded(&group.ring(&group.client, *vector)), &[]).unwrap();
        settled(&group.server);
        assert!(ear.is_rung());
        assert!(!group.server.is_answered());
    }
    assert!(bells.iter().all(|(_, ear)| !ear.is_rung()));
    // One that there is not is nobody's.
    for vector in [3, 63, 64, u8::MAX] {
        group.server.send_raw(&encoded(&group.ring(&group.client, vector)), &[]).unwrap();
    }
    settled(&group.server);
    assert!(bells.iter().all(|(_, ear)| !ear.is_rung()));
    let ring = encoded(&group.ring(&group.client, 1));
    let bell = new_eventfd();
    group.agent.library().dropped_for(&ring, &[bell.as_fd()]);
    group.agent.tool().dropped_for(&ring, &[]);
    group.agent.client().dropped_for(&ring, &[]);
}

#[test]
fn doorbells_are_eventfds_and_not_too_many() {
    let agent = Agent::limited(|limits| limits.bells = MAX_VECTORS + 8);
    let (one, other) = (agent.library(), agent.library());
    for wanted in 1..MAX_VECTORS {
        assert_eq!(usize::from(add(&one).0), wanted);
    }
    let bell = new_eventfd();
    let refused = |library: &Client| library.refused(&Request::AddBell, &[bell.as_fd()]);
    assert_eq!(refused(&one), Reason::NoResources, "it has them all");
    // 63 of one, 9 of the other.
    for wanted in 1..10 {
        assert_eq!(add(&other).0, wanted);
    }
    assert_eq!(refused(&other), Reason::NoResources, "all together have too many");
    drop(one);
    agent.until("it is gone", |status| status["endpoints"] == 1);
    assert_eq!(add(&other).0, 10);

    let packet = encoded(&Request::AddBell);
    let null = File::open("/dev/null").unwrap();
    agent.library().dropped_for(&packet, &[]);
    agent.library().dropped_for(&packet, &[null.as_fd()]);
    agent.library().dropped_for(&packet, &[bell.as_fd(), bell.as_fd()]);
    agent.client().dropped_for(&packet, &[bell.as_fd()]);
    agent.tool().dropped_for(&packet, &[bell.as_fd()]);
}
