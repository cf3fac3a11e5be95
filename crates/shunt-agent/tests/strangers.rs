//! Who is not of the agent's user, however it came to the socket.

mod common;

use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use common::{Agent, Client, PATIENCE, as_user, new_eventfd};
use rustix::process::geteuid;
use shunt_sys::seqpacket;
use shunt_wire::PROTOCOL_VERSION;
use shunt_wire::agent::{MAX_MESSAGE, Request, encode};

/// An account that no program of these tests has.
const STRANGER: u32 = 65_533;

fn is_root() -> bool {
    let root = geteuid().is_root();
    if !root {
        println!("left out: only root can be another user");
    }
    root
}

fn open_up(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

/// The agent hangs up on it without a word, whatever it says.
fn turned_away(agent: &Agent, request: &Request<'_>) {
    let socket = seqpacket::connect(&agent.dir.socket().unwrap()).unwrap();
    let client = Client { socket, id: 0 };
    let (bell, listener) = (new_eventfd(), TcpListener::bind("127.0.0.1:0").unwrap());
    let fds = match request {
        Request::Hello { .. } => vec![bell.as_fd()],
        Request::Listen | Request::Attach { .. } => vec![listener.as_fd()],
        _ => vec![],
    };
    let mut buf = [0; MAX_MESSAGE];
    // It may have hung up already.
    let sent = seqpacket::send(&client.socket, encode(request, &mut buf).unwrap(), &fds, PATIENCE);
    assert!(sent.is_err() || client.receive().is_none(), "served: {request:?}");
}

#[test]
fn another_user_is_turned_away_though_the_directory_is_open() {
    if !is_root() {
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let run = temp.path().join("run");
    let agent = Agent::at(&run, |_| {});
    let server = agent.library();
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let (listener, _) = server.listen(&socket);
    let (region, _, _) = server.connect(listener);
    let reach = || seqpacket::connect(&agent.dir.socket().unwrap()).map(drop);

    open_up(temp.path(), 0o755);
    assert_eq!(as_user(STRANGER, reach), Err(rustix::io::Errno::ACCESS), "the directory is closed");
    open_up(&run, 0o777);
    assert_eq!(as_user(STRANGER, reach), Err(rustix::io::Errno::ACCESS), "the socket is closed");
    open_up(&run.join("agent.sock"), 0o777);
    let requests = [
        Request::Hello { version: PROTOCOL_VERSION, program: "stranger", run: 0 },
        Request::Tool { version: PROTOCOL_VERSION },
        Request::Listen,
        Request::Unlisten { listener },
        Request::Connect { listener },
        Request::Attach { region, slot: 0 },
        Request::Bells { region, endpoint: server.id },
        Request::Detach { region },
        Request::List,
        Request::Stats { run: 0 },
        Request::Explain { port: 80, other: 0 },
        Request::Status,
    ];
    as_user(STRANGER, || requests.iter().for_each(|request| turned_away(&agent, request)));

    let status = agent.status();
    assert_eq!(status["rejected_clients"], requests.len());
    assert_eq!((&status["endpoints"], &status["regions"]), (&1.into(), &1.into()));
    assert_eq!(status["listeners"][0]["holders"], 1);
    server.connect(listener);
}

#[test]
fn a_crowd_of_strangers_takes_no_place() {
    if !is_root() {
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let run = temp.path().join("run");
    let agent = Agent::at(&run, |c| c.limits.clients = 8);
    for path in [temp.path(), &run, &run.join("agent.sock")] {
        open_up(path, 0o777);
    }
    let crowd: Vec<_> = as_user(STRANGER, || {
        let address = agent.dir.socket().unwrap();
        (0..64).map(|_| seqpacket::connect(&address).unwrap()).collect()
    });
    agent.library();
    agent.until("all were turned away", |s| s["rejected_clients"] == crowd.len());
}
