//! What a client can do wrong, and that nobody else notices.

mod common;

use std::net::TcpListener;
use std::os::fd::AsFd;
use std::time::Duration;

use common::{Agent, Client, PATIENCE, new_eventfd};
use shunt_sys::seqpacket;
use shunt_wire::PROTOCOL_VERSION;
use shunt_wire::agent::{MAX_FDS, MAX_MESSAGE, Reply, Request, encode};
use shunt_wire::reason::Reason;

fn encoded(request: &Request<'_>) -> Vec<u8> {
    encode(request, &mut [0; MAX_MESSAGE]).unwrap().to_vec()
}

fn hello() -> Vec<u8> {
    encoded(&Request::Hello { version: PROTOCOL_VERSION, program: "p", run: 0 })
}

#[test]
fn rubbish_costs_its_sender_the_connection() {
    let agent = Agent::start();
    let good = agent.library();
    let bell = new_eventfd();
    let mut dropped = 0;
    let mut expect = |client: Client, bytes: &[u8], fds: &[_]| {
        client.dropped_for(bytes, fds);
        dropped += 1;
    };
    expect(agent.client(), b"\xff\xff\xff\xff\xff\xff", &[]);
    expect(agent.client(), &[0; MAX_MESSAGE + 1], &[]);
    expect(agent.client(), &[hello().as_slice(), b"tail"].concat(), &[bell.as_fd()]);
    // Out of order, or not for its kind.
    expect(agent.client(), &encoded(&Request::Status), &[]);
    expect(agent.library(), &hello(), &[bell.as_fd()]);
    expect(agent.library(), &encoded(&Request::List), &[]);
    expect(agent.tool(), &encoded(&Request::Connect { listener: 1 }), &[]);
    // Descriptors: none, too many, of the wrong kind, where none belong.
    expect(agent.client(), &hello(), &[]);
    expect(agent.client(), &hello(), &[bell.as_fd(); 2]);
    expect(agent.client(), &hello(), &[bell.as_fd(); MAX_FDS]);
    let pipe = std::io::pipe().unwrap();
    expect(agent.client(), &hello(), &[pipe.1.as_fd()]);
    expect(agent.library(), &encoded(&Request::Listen), &[]);
    expect(agent.library(), &encoded(&Request::Connect { listener: 1 }), &[bell.as_fd()]);
    expect(agent.tool(), &encoded(&Request::Status), &[bell.as_fd()]);
    let attach = Request::Attach { region: 1, slot: u32::MAX };
    expect(agent.library(), &encoded(&attach), &[bell.as_fd(), bell.as_fd()]);

    assert_eq!(agent.status()["rejected_clients"], dropped);
    let missing = Request::Connect { listener: 1 };
    assert_eq!(good.refused(&missing, &[]), Reason::PeerNotShunted);
}

#[test]
fn another_version_is_told_so() {
    let agent = Agent::start();
    let bell = new_eventfd();
    let request = Request::Hello { version: PROTOCOL_VERSION + 1, program: "p", run: 0 };
    assert_eq!(agent.client().refused(&request, &[bell.as_fd()]), Reason::VersionMismatch);
    let request = Request::Tool { version: 0 };
    assert_eq!(agent.client().refused(&request, &[]), Reason::VersionMismatch);
    // Also when the rest of the message is of a shape that this version does not know.
    let client = agent.client();
    let unknown = [0, 99, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
    client.send_raw(&unknown, &[]).unwrap();
    let reason = Reason::VersionMismatch;
    assert_eq!(client.receive().unwrap().0, Reply::Refused { reason });
}

#[test]
fn a_flood_is_slowed_down_and_others_are_served() {
    let agent = Agent::limited(|l| (l.burst, l.rate) = (20, 50));
    let (flood, good) = (agent.library(), agent.library());
    let missing = Request::Connect { listener: 1 };
    let request = encoded(&missing);
    for _ in 0..40 {
        flood.send_raw(&request, &[]).unwrap();
    }
    // What it may not send yet stays in its socket, and is answered later.
    assert_eq!(good.refused(&missing, &[]), Reason::PeerNotShunted);
    for _ in 0..40 {
        assert!(flood.receive().is_some(), "nobody is dropped for being busy");
    }
    assert_eq!(good.refused(&missing, &[]), Reason::PeerNotShunted);
}

#[test]
fn a_client_that_leaves_while_it_is_slowed_down_is_forgotten() {
    let agent = Agent::limited(|l| (l.burst, l.rate) = (20, 1));
    let flood = agent.library();
    let request = encoded(&Request::Connect { listener: 1 });
    for _ in 0..40 {
        flood.send_raw(&request, &[]).unwrap();
    }
    drop(flood);
    agent.until("it is gone", |s| s["endpoints"] == 0);
}

#[test]
fn who_does_not_read_is_dropped() {
    let agent = Agent::start();
    let deaf = agent.library();
    let request = encoded(&Request::Connect { listener: 1 });
    let end =
        (0..100_000).find_map(|_| seqpacket::send(&deaf.socket, &request, &[], PATIENCE).err());
    assert!(end.is_some());
    agent.until("it is dropped", |s| s["rejected_clients"] == 1 && s["endpoints"] == 0);
}

#[test]
fn who_does_not_say_who_it_is_is_dropped() {
    // Long enough for the other one to say it in time.
    let agent = Agent::limited(|l| l.introduction = Duration::from_secs(1));
    let (silent, library) = (agent.client(), agent.library());
    assert!(silent.receive().is_none());
    let missing = Request::Connect { listener: 1 };
    assert_eq!(library.refused(&missing, &[]), Reason::PeerNotShunted);
}

#[test]
fn limits_refuse_and_recover() {
    let agent = Agent::limited(|l| {
        (l.endpoints, l.listeners, l.regions_per_endpoint) = (2, 1, 2);
    });
    let (one, two) = (agent.library(), agent.library());
    let bell = new_eventfd();
    let third = agent.client();
    let request = Request::Hello { version: PROTOCOL_VERSION, program: "p", run: 0 };
    assert_eq!(third.refused(&request, &[bell.as_fd()]), Reason::Refused);

    let sockets = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let (listener, _) = one.listen(&sockets[0]);
    assert_eq!(one.refused(&Request::Listen, &[sockets[1].as_fd()]), Reason::Refused);
    let (region, _, _) = two.connect(listener);
    two.connect(listener);
    assert_eq!(two.refused(&Request::Connect { listener }, &[]), Reason::Refused);
    assert_eq!(two.call(&Request::Detach { region }, &[]).0, Reply::Done);
    two.connect(listener);

    drop(two);
    agent.until("there is room again", |s| s["endpoints"] == 1 && s["regions"] == 0);
    assert!(matches!(third.call(&request, &[bell.as_fd()]).0, Reply::Welcome { .. }));
}

#[test]
fn too_many_clients_are_turned_away() {
    let agent = Agent::limited(|l| l.clients = 3);
    // The probe that `Agent` starts with may still count.
    agent.until("only the asker is there", |s| s["endpoints"] == 0);
    let mut kept = Vec::new();
    let turned_away = (0..5).any(|_| {
        let client = agent.client();
        let request = encoded(&Request::Tool { version: PROTOCOL_VERSION });
        // The agent may have hung up before the message was sent.
        let away = client.send_raw(&request, &[]).is_err() || client.receive().is_none();
        kept.push(client);
        away
    });
    assert!(turned_away);
}

#[test]
fn one_process_does_not_take_all_places() {
    let agent = Agent::limited(|l| l.clients_per_process = 4);
    // The probe that `Agent` starts with may still count.
    agent.until("only the asker is there", |s| s["endpoints"] == 0);
    let mut kept: Vec<Client> = Vec::new();
    let turned_away = |client: &Client| {
        let request = encoded(&Request::Tool { version: PROTOCOL_VERSION });
        client.send_raw(&request, &[]).is_err() || client.receive().is_none()
    };
    while kept.len() < 4 {
        // One that the agent has just been asked by may still count, too.
        let client = agent.client();
        if !turned_away(&client) {
            kept.push(client);
        }
    }
    for _ in 0..8 {
        assert!(turned_away(&agent.client()));
    }
    // Places are given back: none is lost to those who were turned away or have left.
    for _ in 0..8 {
        kept.remove(0);
        let deadline = std::time::Instant::now() + PATIENCE;
        while kept.len() < 4 {
            assert!(std::time::Instant::now() < deadline, "no place is given back");
            kept.extend(Some(agent.client()).filter(|client| !turned_away(client)));
        }
    }
}
