//! Conversations for children that could not begin one.

mod common;

use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use common::{Agent, Client, PATIENCE, as_user, new_eventfd};
use rustix::process::{Signal, WaitOptions, geteuid, getpid, kill_process, waitpid};
use shunt_shm::arena::Arena;
use shunt_shm::unregistered::Unregistered;
use shunt_sys::fds::Fds;
use shunt_sys::process::{end_with_parent, fork_to};
use shunt_sys::seqpacket;
use shunt_wire::PROTOCOL_VERSION;
use shunt_wire::addr::Addr;
use shunt_wire::agent::{MAX_MESSAGE, Reply, Request, encode};
use shunt_wire::reason::Reason;

const HELLO: Request<'_> = Request::Hello { version: PROTOCOL_VERSION, program: "child", run: 0 };

/// The child's end.
fn invited_by(client: &Client) -> Client {
    let (reply, mut fds) = client.call(&Request::Invite, &[]);
    assert_eq!((reply, fds.len()), (Reply::Invited, 1));
    Client { socket: fds.remove(0), id: 0 }
}

fn arrives(guest: &Client) {
    assert_eq!(guest.call(&Request::Arrive, &[]).0, Reply::Done);
}

fn encoded(request: &Request<'_>) -> Vec<u8> {
    encode(request, &mut [0; MAX_MESSAGE]).unwrap().to_vec()
}

#[test]
fn whoever_could_not_come_in_by_itself_comes_as_the_client_that_has_asked() {
    if !geteuid().is_root() {
        println!("left out: only root can be another user");
        return;
    }
    let agent = Agent::start();
    let parent = agent.library();
    let first = invited_by(&parent);
    as_user(61_004, || {
        // Before it has used its own, for a child of its own.
        let second = invited_by(&first);
        drop(parent);
        for guest in [first, second] {
            arrives(&guest);
            let guest = guest.introduced("child", 0);
            let socket = TcpListener::bind("127.0.0.1:0").unwrap();
            let (listener, _) = guest.listen(&socket);
            guest.connect(listener);
            // It is a client as others are, and asks for its children as they do.
            let third = invited_by(&guest);
            arrives(&third);
            drop(third.introduced("grandchild", 0));
        }
    });
    agent.until("all have left", |status| status["endpoints"] == 0);
    assert_eq!(agent.status()["rejected_clients"], 0);
}

/// What a packet's sender is goes by the kernel, not by who has asked for the conversation.
#[test]
fn the_process_is_the_one_that_has_arrived() {
    let agent = Agent::start();
    let parent = agent.library();
    let guest = invited_by(&parent);
    let bell = new_eventfd();
    let (arrive, hello) = (encoded(&Request::Arrive), encoded(&HELLO));
    let (told, tells) = seqpacket::pair().unwrap();
    let parent_pid = getpid();
    // SAFETY: the child makes system calls, on memory that it has.
    let child = unsafe {
        fork_to(|| {
            if end_with_parent(parent_pid).is_err() {
                return;
            }
            let (mut buf, mut fds) = ([0; MAX_MESSAGE], Fds::new());
            let send = |bytes, fds: &[_]| seqpacket::send(&guest.socket, bytes, fds, PATIENCE);
            let mut said = send(&arrive, &[]);
            said = said.and(seqpacket::recv(&guest.socket, &mut buf, &mut fds, PATIENCE).map(drop));
            said = said.and(send(&hello, &[bell.as_fd()]));
            let welcome = said.and(seqpacket::recv(&guest.socket, &mut buf, &mut fds, PATIENCE));
            let arena = (fds.take(), fds.take()).1;
            if let (Ok(len), Some(arena)) = (welcome, arena) {
                let _sent = seqpacket::send(&tells, &buf[..len], &[arena.as_fd()], PATIENCE);
            }
            std::thread::sleep(Duration::from_secs(3600));
        })
    }
    .unwrap();
    let (mut buf, mut fds) = ([0; MAX_MESSAGE], Fds::new());
    seqpacket::recv(&told, &mut buf, &mut fds, PATIENCE).unwrap();
    let arena = Arena::map(fds.take().unwrap()).unwrap();
    let addr = Addr { ip: [0; 16], port: 1 };
    let what = Unregistered { pid: 1, fd: 3, addr, reason: Reason::Refused };
    assert!(arena.unregistered().note(&what).is_some());
    let listed = || agent.tool().report(&Request::List)["listeners_unregistered"].clone();
    assert_eq!(listed()[0]["program"], "child");
    // The conversation is still open here.
    kill_process(child, Signal::KILL).unwrap();
    waitpid(Some(child), WaitOptions::empty()).unwrap();
    drop(guest);
    agent.until("it has left", |status| status["endpoints"] == 1);
    assert_eq!(listed(), serde_json::json!([]));
}

#[test]
fn another_process_than_the_one_that_has_arrived_is_dropped() {
    let agent = Agent::start();
    let parent = agent.library();
    let guest = invited_by(&parent);
    let arrive = encoded(&Request::Arrive);
    // SAFETY: the child makes system calls, on memory that it has.
    let child = unsafe {
        fork_to(|| {
            let _sent = seqpacket::send(&guest.socket, &arrive, &[], PATIENCE);
        })
    };
    assert_eq!(guest.receive().unwrap().0, Reply::Done);
    waitpid(Some(child.unwrap()), WaitOptions::empty()).unwrap();
    guest.dropped_for(&encoded(&HELLO), &[new_eventfd().as_fd()]);
    // The one who has asked has nothing to do with that.
    drop(invited_by(&parent));
}

#[test]
fn what_an_invitation_is_not_for_costs_it_and_nothing_else() {
    let agent = Agent::start();
    let parent = agent.library();
    let bell = new_eventfd();
    let wrong: [(Request<'_>, &[OwnedFd]); 5] = [
        (HELLO, std::slice::from_ref(&bell)),
        (Request::Tool { version: PROTOCOL_VERSION }, &[]),
        (Request::List, &[]),
        (Request::Arrive, std::slice::from_ref(&bell)),
        (Request::Invite, std::slice::from_ref(&bell)),
    ];
    for (request, fds) in wrong {
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        invited_by(&parent).dropped_for(&encoded(&request), &fds);
    }
    let arrived = || {
        let guest = invited_by(&parent);
        arrives(&guest);
        guest
    };
    for request in [Request::Arrive, Request::Invite, Request::List] {
        arrived().dropped_for(&encoded(&request), &[]);
    }
    arrived().dropped_for(b"\xff\xff", &[]);
    // A client that has connected by itself cannot arrive.
    agent.library().dropped_for(&encoded(&Request::Arrive), &[]);
    agent.client().dropped_for(&encoded(&Request::Invite), &[]);
    agent.tool().dropped_for(&encoded(&Request::Invite), &[]);
    assert_eq!(agent.status()["endpoints"], 1);
    drop(arrived().introduced("child", 0));
}

/// The sender of what is under way already could be dead, and its pid another's, when the agent looks.
#[test]
fn whoever_does_not_wait_for_the_answer_is_dropped() {
    let agent = Agent::limited(|limits| {
        limits.invitations_per_process = 1;
        (limits.burst, limits.rate) = (20, 1);
    });
    let parent = agent.library();
    let guest = invited_by(&parent);
    // The agent does not read any more of it for a second.
    (0..20).for_each(|_| assert_eq!(guest.refused(&Request::Invite, &[]), Reason::Refused));
    guest.send_raw(&encoded(&Request::Arrive), &[]).unwrap();
    guest.dropped_for(&encoded(&HELLO), &[new_eventfd().as_fd()]);
    assert_eq!(agent.status()["rejected"]["it has not waited for the answer"], 1);
}

#[test]
fn invitations_of_one_process_are_bounded() {
    let agent = Agent::limited(|limits| limits.invitations_per_process = 3);
    let parent = agent.library();
    let first = invited_by(&parent);
    let second = invited_by(&first);
    let third = invited_by(&second);
    for client in [&parent, &first, &third] {
        assert_eq!(client.refused(&Request::Invite, &[]), Reason::Refused);
    }
    // One that is used is none any more.
    arrives(&second);
    let fourth = invited_by(&parent);
    assert_eq!(parent.refused(&Request::Invite, &[]), Reason::Refused);
    drop([first, third, fourth]);
    let deadline = std::time::Instant::now() + PATIENCE;
    while matches!(parent.call(&Request::Invite, &[]).0, Reply::Refused { .. }) {
        assert!(std::time::Instant::now() < deadline, "they are never over");
    }
}

#[test]
fn those_who_arrive_count_as_all_clients_of_their_process() {
    let agent = Agent::limited(|limits| limits.clients_per_process = 3);
    let parent = agent.library();
    let guests: Vec<_> = (0..2).map(|_| invited_by(&parent)).collect();
    guests.iter().for_each(arrives);
    let late = invited_by(&parent);
    assert_eq!(late.refused(&Request::Arrive, &[]), Reason::Refused);
    drop(guests);
    let deadline = std::time::Instant::now() + PATIENCE;
    while late.call(&Request::Arrive, &[]).0 != Reply::Done {
        assert!(std::time::Instant::now() < deadline, "they are never over");
    }
}

#[test]
fn an_invitation_waits_and_whoever_has_arrived_does_not() {
    let agent = Agent::limited(|limits| limits.introduction = Duration::from_secs(1));
    let parent = agent.library();
    let guest = invited_by(&parent);
    let silent = invited_by(&parent);
    arrives(&silent);
    assert!(silent.receive().is_none(), "it need not say who it is");
    arrives(&guest);
    drop(guest.introduced("child", 0));
}
