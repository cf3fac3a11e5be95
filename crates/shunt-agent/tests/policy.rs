//! Who gets what: listeners, regions, doorbells, and what goes when a program dies.

mod common;

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Agent, Client, registered};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::pipe::pipe;
use rustix::process::geteuid;
use shunt_shm::memfd;
use shunt_shm::region::{Region, Side};
use shunt_shm::registry::Registry;
use shunt_shm::sync::Ordering;
use shunt_shm::table::{Place, Table};
use shunt_sys::reach::may_trace;
use shunt_sys::{seqpacket, sockinfo};
use shunt_wire::PROTOCOL_VERSION;
use shunt_wire::addr::Addr;
use shunt_wire::agent::{Exported, LANES, Reply, Request, encode};
use shunt_wire::reason::Reason;

fn listening() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

/// A connection to `listener`: the client's end and the server's.
fn connected(listener: &TcpListener) -> (TcpStream, TcpStream) {
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

#[test]
fn a_listener_is_in_the_registry_while_somebody_holds_it() {
    let agent = Agent::start();
    let client = agent.client();
    let bell = common::new_eventfd();
    let hello = Request::Hello { version: PROTOCOL_VERSION, program: "p", run: 0 };
    let (_, fds) = client.call(&hello, &[bell.as_fd()]);
    let registry = Registry::map(&fds[0]).unwrap();
    let socket = listening();
    let addr = Addr::from(socket.local_addr().unwrap());
    let listed = || registry.find(&addr, |_| true);
    assert!(listed().is_none());

    let (listener, _) = client.listen(&socket);
    let found = listed().unwrap();
    assert_eq!((found.listener, found.addr), (listener, addr));
    assert_eq!(found.netns, sockinfo::netns_cookie(&socket));

    // The same socket, by another process: one more holder.
    let worker = agent.library();
    assert_eq!(worker.listen(&socket).0, listener);
    assert_eq!(client.call(&Request::Unlisten { listener }, &[]).0, Reply::Done);
    assert!(listed().is_some());
    assert_eq!(client.refused(&Request::Unlisten { listener }, &[]), Reason::Refused);
    drop(worker);
    agent.until("the worker's hold ends", |s| s["listeners"] == serde_json::json!([]));
    assert!(listed().is_none());
}

/// A process closes what one that it has forked may serve: the listener stays for that one, and then goes with it.
#[test]
fn a_listener_waits_for_heirs() {
    let agent = Agent::start();
    let parent = agent.library();
    let socket = listening();
    let (listener, _) = parent.listen(&socket);
    let bequeath = Request::Bequeath { listener };
    let listeners = || agent.status()["listeners"].as_array().unwrap().len();
    assert_eq!(parent.call(&bequeath, &[]).0, Reply::Done);
    assert_eq!(parent.refused(&bequeath, &[]), Reason::Refused, "it has left it already");
    assert_eq!(listeners(), 1);
    let child = agent.library();
    assert_eq!(child.listen(&socket).0, listener);
    assert_eq!(parent.refused(&Request::Unlisten { listener }, &[]), Reason::Refused);
    assert_eq!(child.call(&Request::Unlisten { listener }, &[]).0, Reply::Done);
    assert_eq!(listeners(), 0);
    // An heir that is there already; a process that takes it back; one that ends.
    let (listener, _) = parent.listen(&socket);
    assert_eq!(child.listen(&socket).0, listener);
    let bequeath = Request::Bequeath { listener };
    assert_eq!(parent.call(&bequeath, &[]).0, Reply::Done);
    assert_eq!(parent.refused(&bequeath, &[]), Reason::Refused);
    assert_eq!(child.call(&bequeath, &[]).0, Reply::Done);
    assert_eq!(child.listen(&socket).0, listener);
    assert_eq!(child.call(&bequeath, &[]).0, Reply::Done);
    drop(child);
    agent.until("the child's hold ends", |s| s["listeners"] == serde_json::json!([]));
    // Nobody comes.
    let (listener, _) = parent.listen(&socket);
    assert_eq!(parent.call(&Request::Bequeath { listener }, &[]).0, Reply::Done);
    std::thread::sleep(Duration::from_secs(8));
    assert_eq!(listeners(), 1);
    agent.until("nobody has come", |s| s["listeners"] == serde_json::json!([]));
}

#[test]
fn a_program_hears_what_a_wake_up_takes_here() {
    let agent = Agent::start();
    let bell = common::new_eventfd();
    let hello = Request::Hello { version: PROTOCOL_VERSION, program: "p", run: 0 };
    let (_, fds) = agent.client().call(&hello, &[bell.as_fd()]);
    let took = Registry::map(&fds[0]).unwrap().wake_ups();
    assert!(took.iter().all(|nanos| *nanos > 0), "{took:?}");
}

#[test]
fn a_reuseport_group_is_one_listener() {
    use rustix::net::{AddressFamily, SocketType, bind, listen, socket, sockopt};
    let agent = Agent::start();
    let library = agent.library();
    let make = |port: u16| {
        let s = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        sockopt::set_socket_reuseport(&s, true).unwrap();
        bind(&s, &std::net::SocketAddr::from(([127, 0, 0, 1], port))).unwrap();
        listen(&s, 8).unwrap();
        s
    };
    let one = make(0);
    let two = make(sockinfo::local_addr(&one).unwrap().port);
    let (listener, _) = library.listen(&one);
    assert_eq!(library.listen(&two).0, listener);
    // Saying it twice does not make it two.
    assert_eq!(library.listen(&two).0, listener);
    let unlisten = Request::Unlisten { listener };
    assert_eq!(library.call(&unlisten, &[]).0, Reply::Done);
    assert_eq!(agent.status()["listeners"].as_array().unwrap().len(), 1);
    assert_eq!(library.call(&unlisten, &[]).0, Reply::Done);
    assert_eq!(agent.status()["listeners"].as_array().unwrap().len(), 0);
    assert_ne!(library.listen(&one).0, listener);
}

#[test]
fn only_listening_tcp_sockets_are_listeners() {
    let agent = Agent::start();
    let library = agent.library();
    let file = std::fs::File::open("/dev/null").unwrap();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (stream, _server) = connected(&listening());
    for fd in [file.as_fd(), udp.as_fd(), stream.as_fd()] {
        assert_eq!(library.refused(&Request::Listen, &[fd]), Reason::Unsupported);
    }
}

#[test]
fn both_ends_of_a_connection_meet() {
    let agent = Agent::start();
    let (client, server) = (agent.library_of("client", 0), agent.library_of("server", 0));
    let socket = listening();
    let (listener, _) = server.listen(&socket);
    let (region, _, memory) = client.connect(listener);
    let (near, far) = connected(&socket);
    let mine = Region::map(&memory).unwrap();
    let setup = &mine.view().section(3, Side::Client).setup;
    let attach = Request::Attach { region, slot: 3 };

    assert_eq!(server.refused(&attach, &[far.as_fd()]), Reason::Refused, "nothing proposed");
    setup.set_tuple(&sockinfo::four_tuple(&near).unwrap());
    let bells = |endpoint| Request::Bells { region, endpoint };
    assert_eq!(client.refused(&bells(server.id), &[]), Reason::Refused, "not attached");

    let (reply, fds) = server.call(&attach, &[far.as_fd()]);
    assert_eq!(reply, Reply::Attached { endpoint: client.id, pidfd: true });
    assert_eq!(fds.len(), 3, "region, pidfd, one doorbell");
    let theirs = Region::map(&fds[0]).unwrap();
    mine.view().lane(1).owner.store(77, Ordering::Release);
    assert_eq!(theirs.view().lane(1).owner.load(Ordering::Acquire), 77);

    let (reply, fds) = client.call(&bells(server.id), &[]);
    assert_eq!((reply, fds.len()), (Reply::Bells, 1));
    assert_eq!(server.refused(&bells(client.id), &[]), Reason::Refused, "not the owner");
}

#[test]
fn only_the_connections_other_end_attaches() {
    let agent = Agent::start();
    let (client, server) = (agent.library(), agent.library());
    let socket = listening();
    let (listener, _) = server.listen(&socket);
    let (region, _, memory) = client.connect(listener);
    let (near, _far) = connected(&socket);
    let (other_near, other_far) = connected(&socket);
    let map = Region::map(&memory).unwrap();
    map.view().section(0, Side::Client).setup.set_tuple(&sockinfo::four_tuple(&near).unwrap());
    let attach = |slot| Request::Attach { region, slot };
    // Not the holder of the listener, of another connection, or of the client's own end.
    for fd in [other_far.as_fd(), other_near.as_fd(), near.as_fd()] {
        assert_eq!(server.refused(&attach(0), &[fd]), Reason::Refused);
    }
    assert_eq!(server.refused(&attach(0), &[socket.as_fd()]), Reason::Unsupported);
    assert_eq!(server.refused(&attach(1), &[other_far.as_fd()]), Reason::Refused);
    let nowhere = Request::Attach { region: region + 1000, slot: 0 };
    assert_eq!(server.refused(&nowhere, &[other_far.as_fd()]), Reason::PeerGone);
}

#[test]
fn connecting_needs_a_listener_that_is_there() {
    let agent = Agent::start();
    let library = agent.library();
    let request = Request::Connect { listener: 12345 };
    assert_eq!(library.refused(&request, &[]), Reason::PeerNotShunted);
}

#[test]
fn a_dead_client_leaves_no_proposal_and_its_peer_keeps_the_memory() {
    let agent = Agent::start();
    let (client, server) = (agent.library(), agent.library());
    let socket = listening();
    let (listener, table) = server.listen(&socket);
    let (region, _, memory) = client.connect(listener);
    let (unused, _, _) = client.connect(listener);
    assert_ne!(region, unused);
    let (near, far) = connected(&socket);
    let tuple = sockinfo::four_tuple(&near).unwrap();
    let map = Region::map(&memory).unwrap();
    map.view().section(0, Side::Client).setup.set_tuple(&tuple);
    let table = Table::map(&table).unwrap();
    let place = Place { region, slot: 0, generation: 1 };
    assert!(table.post(&tuple.reversed(), place).is_some());
    let attach = Request::Attach { region, slot: 0 };
    server.call(&attach, &[far.as_fd()]);
    assert_eq!(agent.status()["regions"], 2);

    drop(client);
    agent.until("the region nobody else has is dropped", |s| s["regions"] == 1);
    assert!(table.find(&tuple.reversed()).is_none());
    assert_eq!(server.refused(&attach, &[far.as_fd()]), Reason::PeerGone);
    assert_eq!(server.call(&Request::Detach { region }, &[]).0, Reply::Done);
    assert_eq!(agent.status()["regions"], 0);
    assert_eq!(server.refused(&Request::Detach { region }, &[]), Reason::Refused);
}

#[test]
fn a_dead_acceptor_gives_its_lane_back() {
    let agent = Agent::start();
    let (client, server) = (agent.library(), agent.library());
    let socket = listening();
    let (listener, _) = server.listen(&socket);
    let (region, _, memory) = client.connect(listener);
    let (near, far) = connected(&socket);
    let view = Region::map(&memory).unwrap();
    let view = view.view();
    view.section(0, Side::Client).setup.set_tuple(&sockinfo::four_tuple(&near).unwrap());
    server.call(&Request::Attach { region, slot: 0 }, &[far.as_fd()]);
    assert_eq!(view.claim_lane(Side::Client, client.id), Some(0));
    assert_eq!(view.claim_lane(Side::Server, server.id), Some(1));
    let gone = server.id;
    drop(server);
    agent.until("the server is gone", |s| s["endpoints"] == 1);
    assert_eq!(view.lane(1).owner.load(Ordering::Acquire), 0);
    assert_eq!(view.lane(0).owner.load(Ordering::Acquire), client.id);
    let bells = Request::Bells { region, endpoint: gone };
    assert_eq!(client.refused(&bells, &[]), Reason::PeerGone);
}

#[test]
fn registered_memory_goes_to_the_parties_of_a_link_group() {
    let agent = Agent::limited(|limits| limits.exports_per_endpoint = 2);
    let (client, server, other) = (agent.library(), agent.library(), agent.library());
    let socket = listening();
    let (listener, _) = server.listen(&socket);
    let (region, _, memory) = client.connect(listener);
    let (elsewhere, _, _) = other.connect(listener);
    let export = |library: &Client| match library
        .call(&Request::Export { what: Exported::Asked }, &[registered().as_fd()])
        .0
    {
        Reply::Exported { export } => export,
        other => panic!("{other:?}"),
    };
    let (of_client, of_server) = (export(&client), export(&server));
    let import = |region, export| Request::Import { region, slot: 0, export };
    let refused = |library: &Client, request| library.refused(&request, &[]);
    assert_eq!(refused(&server, import(region, of_client)), Reason::Refused, "not attached");

    let (near, far) = connected(&socket);
    let setup = &Region::map(&memory).unwrap();
    let setup = &setup.view().section(0, Side::Client).setup;
    setup.set_tuple(&sockinfo::four_tuple(&near).unwrap());
    server.call(&Request::Attach { region, slot: 0 }, &[far.as_fd()]);
    for (library, export) in [(&server, of_client), (&client, of_server)] {
        let (reply, fds) = library.call(&import(region, export), &[]);
        assert_eq!((reply, fds.len()), (Reply::Imported, 1));
        let map = |writable| memfd::Map::new(&fds[0], 4096, writable);
        assert!(map(false).is_ok() && map(true).is_err(), "to be read");
    }
    assert_eq!(server.call(&import(region, of_server), &[]).0, Reply::Imported, "its own");
    assert_eq!(refused(&other, import(region, of_client)), Reason::Refused, "no party");
    // As a child of either end that forked after it connected or accepted.
    for end in [&near, &far] {
        let reply = other.call(&import(region, of_client), &[end.as_fd()]).0;
        assert_eq!(reply, Reply::Imported, "who holds an end");
    }
    let others = connected(&socket);
    for end in [&others.0, &others.1] {
        let request = import(region, of_client);
        assert_eq!(other.refused(&request, &[end.as_fd()]), Reason::Refused, "of another one");
    }
    let elsewhere_in_it = Request::Import { region, slot: 1, export: of_client };
    assert_eq!(other.refused(&elsewhere_in_it, &[far.as_fd()]), Reason::Refused);
    let nowhere = Request::Import { region, slot: u32::MAX, export: of_client };
    assert_eq!(other.refused(&nowhere, &[far.as_fd()]), Reason::Refused);
    // As of a child that forked later, which is no party itself. All clients of the test are this very process.
    let of_other = export(&other);
    let me = std::process::id().cast_signed();
    for (library, region, export) in
        [(&server, region, of_other), (&client, region, of_other), (&other, elsewhere, of_client)]
    {
        let reply = library.call(&import(region, export), &[]).0;
        assert_eq!(reply == Reply::Imported, may_trace(me, me), "of no party: {reply:?}");
    }
    assert_eq!(refused(&other, import(region, of_other)), Reason::Refused, "to no party");
    assert_eq!(refused(&server, import(region + 1000, of_client)), Reason::Refused);

    export(&client);
    assert_eq!(
        client.refused(&Request::Export { what: Exported::Asked }, &[registered().as_fd()]),
        Reason::Refused,
        "many"
    );
    let unexport = Request::Unexport { export: of_client };
    assert_eq!(server.refused(&unexport, &[]), Reason::Refused, "not its own");
    assert_eq!(client.call(&unexport, &[]).0, Reply::Done);
    assert_eq!(refused(&server, import(region, of_client)), Reason::Refused, "not any more");
}

/// Where an agent is, for [`a_stranger_registers_memory`].
const AGENT: &str = "SHUNT_TEST_AGENT_OF_STRANGER";

/// A process of its own, which the test below starts: registers memory, says its name, and stays until it is not listened to.
#[test]
fn a_stranger_registers_memory() {
    let Some(dir) = std::env::var_os(AGENT) else { return };
    let address = common::run_dir(Path::new(&dir)).socket().unwrap();
    let socket = seqpacket::connect(&address).unwrap();
    let library = Client { socket, id: 0 }.introduced("stranger", 0);
    let request = Request::Export { what: Exported::Asked };
    let Reply::Exported { export } = library.call(&request, &[registered().as_fd()]).0 else {
        panic!("refused")
    };
    println!("\nregistered {export}");
    let _ended = std::io::stdin().read_to_end(&mut Vec::new());
}

#[test]
fn memory_of_no_party_is_not_for_who_could_not_reach_into_it() {
    if !geteuid().is_root() {
        println!("left out: only root can have another group");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run");
    let agent = Agent::at(&path, |_| {});
    let (client, server) = (agent.library(), agent.library());
    let (listener, _) = server.listen(listening());
    let (region, ..) = client.connect(listener);
    for (group, is_given) in [(0, true), (61_101, false)] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "a_stranger_registers_memory", "--nocapture"]).env(AGENT, &path);
        command.gid(group).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut stranger = command.spawn().unwrap();
        let lines = BufReader::new(stranger.stdout.take().unwrap()).lines();
        let mut said = lines.map_while(Result::ok);
        let name = said.find_map(|line| line.strip_prefix("registered ")?.parse().ok());
        let import = Request::Import { region, slot: 0, export: name.unwrap() };
        let reply = client.call(&import, &[]).0;
        let pid = stranger.id().cast_signed();
        let is_given = is_given && may_trace(std::process::id().cast_signed(), pid);
        assert_eq!(reply == Reply::Imported, is_given, "group {group}: {reply:?}");
        drop(stranger.stdin.take());
        stranger.wait().unwrap();
    }
}

/// What a program has made itself, sealed against shrinking alone, by a descriptor to read it.
fn found() -> OwnedFd {
    let memory = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&memory, 4096).unwrap();
    fcntl_add_seals(&memory, SealFlags::SHRINK).unwrap();
    File::open(format!("/proc/self/fd/{}", memory.as_raw_fd())).unwrap().into()
}

#[test]
fn memory_that_nobody_asked_for_goes_to_who_could_reach_into_the_program() {
    let agent = Agent::start();
    let (client, server) = (agent.library(), agent.library());
    let socket = listening();
    let (listener, _) = server.listen(&socket);
    let (region, _, memory) = client.connect(listener);
    let (near, far) = connected(&socket);
    let setup = &Region::map(&memory).unwrap();
    let setup = &setup.view().section(0, Side::Client).setup;
    setup.set_tuple(&sockinfo::four_tuple(&near).unwrap());
    server.call(&Request::Attach { region, slot: 0 }, &[far.as_fd()]);
    let request = Request::Export { what: Exported::Found };
    // All clients of the test are this very process.
    let me = std::process::id().cast_signed();
    if !may_trace(me, me) {
        assert_eq!(client.refused(&request, &[found().as_fd()]), Reason::Refused);
        return;
    }
    let Reply::Exported { export } = client.call(&request, &[found().as_fd()]).0 else {
        panic!("refused")
    };
    let import = Request::Import { region, slot: 0, export };
    let (reply, fds) = server.call(&import, &[]);
    assert_eq!((reply, fds.len()), (Reply::Imported, 1));
    assert!(memfd::Map::to_read(&fds[0]).is_ok(), "nobody can cut it short");
    let other = agent.library();
    assert_eq!(other.refused(&import, &[]), Reason::Refused, "no party");

    let pipes = [pipe().unwrap(), pipe().unwrap()];
    let reading = pipes.each_ref().map(|(reading, _)| reading.as_fd());
    let export = |owner: &Client, slot| {
        let request = Request::Export { what: Exported::Pipes { region, slot } };
        match owner.call(&request, &reading).0 {
            Reply::Exported { export } => Request::Import { region, slot: 0, export },
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(server.refused(&export(&client, 1), &[]), Reason::Refused, "another connection");
    // As of a child of a party that was forked after the connection was made.
    assert_eq!(server.call(&export(&other, 0), &[]).0, Reply::Imported);
    let import = export(&client, 0);
    let (reply, fds) = server.call(&import, &[]);
    assert_eq!((reply, fds.len()), (Reply::Imported, LANES));
    for (fd, (_, writing)) in fds.iter().zip(&pipes) {
        rustix::io::write(writing, b"in its order").unwrap();
        assert_eq!(rustix::io::read(fd, &mut [0; 100]), Ok(12));
    }
    assert_eq!(other.refused(&import, &[]), Reason::Refused, "no party");
}

#[test]
fn memory_that_could_change_is_not_registered() {
    let file: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    let sealed = memfd::create_sealed("test", 4096).unwrap();
    let (map, published) = memfd::create_published("test", 4096).unwrap();
    drop(map);
    // The same memory, by a descriptor to write to it.
    let path = format!("/proc/self/fd/{}", published.as_raw_fd());
    let writable: OwnedFd = OpenOptions::new().read(true).write(true).open(path).unwrap().into();
    let unsealed = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
    use Exported::{Asked, Found};
    let pipes = Exported::Pipes { region: 1, slot: 0 };
    let (reading, writing) = pipe().unwrap();
    let cases = [
        (&file, Asked),
        (&sealed, Asked),
        (&writable, Asked),
        (&reading, Asked),
        (&file, Found),
        (&unsealed, Found),
        (&file, pipes),
        (&published, pipes),
        (&writing, pipes),
    ];
    for (memory, what) in cases {
        let agent = Agent::start();
        let request = &mut [0; 16];
        let request = encode(&Request::Export { what }, request).unwrap();
        // A second one to read, where two are asked for: so that it is the other one which does not do.
        let fds = [reading.as_fd(), memory.as_fd()];
        agent.library().dropped_for(request, if what == pipes { &fds } else { &fds[1..] });
    }
    let request = &mut [0; 16];
    let request = encode(&Request::Export { what: pipes }, request).unwrap();
    Agent::start().library().dropped_for(request, &[reading.as_fd()]);
    let agent = Agent::start();
    let reply =
        agent.library().call(&Request::Export { what: Exported::Asked }, &[published.as_fd()]).0;
    assert!(matches!(reply, Reply::Exported { .. }));
}
