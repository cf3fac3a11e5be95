//! An agent for the host: who is given what, with real users and real connections. Needs root, as the agent does.

mod common;

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Instant;

use common::{Agent, Client, PATIENCE, as_user, new_eventfd};
use rustix::net::{AddressFamily, SocketType, bind, connect, listen, socket};
use rustix::pipe::pipe;
use rustix::process::geteuid;
use shunt_agent::config::Limits;
use shunt_agent::{HostConfig, Policy};
use shunt_shm::arena::{Arena, RECORDS, Record};
use shunt_shm::holders::Member;
use shunt_shm::memfd;
use shunt_shm::region::{Region, Side};
use shunt_shm::registry::{Registry, Scope};
use shunt_sys::sockinfo::{OFFERED, set_syn_count, syn_count};
use shunt_wire::PROTOCOL_VERSION;
use shunt_wire::addr::Addr;
use shunt_wire::agent::{Exported, MAX_MESSAGE, RegionId, Reply, Request, encode};
use shunt_wire::offer::Offer;
use shunt_wire::reason::Reason;

/// Users without a name.
const ONE: u32 = 61_101;
const OTHER: u32 = 61_102;
const THIRD: u32 = 61_103;

fn is_root() -> bool {
    let root = geteuid().is_root();
    if !root {
        println!("left out: an agent for the host has to be root");
    }
    root
}

struct Host {
    agent: Agent,
    _dir: tempfile::TempDir,
}

/// `policy`: a file's contents.
fn host(policy: &str, limits: impl FnOnce(&mut Limits)) -> Host {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let file = dir.path().join("policy.toml");
    std::fs::write(&file, policy).unwrap();
    let policy = Policy::load(&file).unwrap();
    let agent = Agent::at(&dir.path().join("run"), |config| {
        config.host = Some(HostConfig { policy, ..HostConfig::default() });
        limits(&mut config.limits);
    });
    Host { agent, _dir: dir }
}

/// A library of a user's.
struct Program {
    client: Client,
    arena: Arena,
    registry: Registry,
}

impl Program {
    fn of(host: &Host, user: u32) -> Self {
        Self::try_of(host, user).unwrap_or_else(|why| panic!("{why:?}"))
    }

    fn try_of(host: &Host, user: u32) -> Result<Self, Reason> {
        let mut client = as_user(user, || host.agent.client());
        let bell = new_eventfd();
        let hello = Request::Hello { version: PROTOCOL_VERSION, program: "p", run: 0 };
        let (reply, fds) = client.call(&hello, &[bell.as_fd()]);
        match reply {
            Reply::Welcome { endpoint, .. } => client.id = endpoint,
            Reply::Refused { reason } => return Err(reason),
            other => panic!("{other:?}"),
        }
        let [registry, arena, _]: [OwnedFd; 3] = fds.try_into().unwrap();
        let (registry, arena) = (Registry::map(registry).unwrap(), Arena::map(arena).unwrap());
        Ok(Self { client, arena, registry })
    }

    /// A listener to which others' connections may lead.
    fn serve(&self) -> TcpListener {
        let socket = tcp();
        bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        assert_eq!(self.client.call(&Request::Await, &[socket.as_fd()]).0, Reply::Done);
        listen(&socket, 64).unwrap();
        self.client.listen(&socket);
        socket.into()
    }

    /// A connection that was offered, and its record.
    fn connect(&self, to: &TcpListener) -> (TcpStream, &Record) {
        let (socket, record) = (tcp(), self.record());
        assert_eq!(self.offer(&socket, record, 7), Reply::Done);
        connect(&socket, &to.local_addr().unwrap()).unwrap();
        (socket.into(), record)
    }

    fn record(&self) -> &Record {
        self.arena.allocate(Member::UNNAMED, &mut 0).unwrap()
    }

    fn offer(&self, socket: impl AsFd, record: &Record, number: u64) -> Reply {
        record.id.offer.store(Offer::Open(number).to_word(), Ordering::Release);
        let index = u32::try_from(self.arena.index_of(record)).unwrap();
        self.client.call(&Request::Offer { record: index, number }, &[socket.as_fd()]).0
    }

    fn claim(&self, socket: impl AsFd) -> (Reply, Vec<OwnedFd>) {
        self.client.call(&Request::Claim, &[socket.as_fd()])
    }

    fn refused(&self, request: &Request<'_>, socket: impl AsFd) -> Reason {
        self.client.refused(request, &[socket.as_fd()])
    }

    fn dropped_for(&self, request: &Request<'_>, socket: Option<&TcpListener>) {
        let fds: Vec<_> = socket.iter().map(|socket| socket.as_fd()).collect();
        self.client.dropped_for(encode(request, &mut [0; MAX_MESSAGE]).unwrap(), &fds);
    }
}

fn tcp() -> OwnedFd {
    socket(AddressFamily::INET, SocketType::STREAM, None).unwrap()
}

/// The table of a listener, and regions for it, are for its own party.
#[test]
fn a_listener_is_proposed_to_by_its_own_party_alone() {
    if !is_root() {
        return;
    }
    let host = host("", |_| {});
    let [server, friend, stranger] = [ONE, ONE, OTHER].map(|user| Program::of(&host, user));
    let socket = tcp();
    bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    listen(&socket, 64).unwrap();
    let (listener, _) = server.client.listen(&socket);
    let request = Request::Connect { listener };
    assert!(matches!(friend.client.call(&request, &[]).0, Reply::Linked { .. }));
    assert_eq!(stranger.client.refused(&request, &[]), Reason::OtherUser);
}

fn word(record: &Record) -> Offer {
    Offer::from_word(record.id.offer.load(Ordering::Acquire))
}

fn inode(fd: &OwnedFd) -> u64 {
    rustix::fs::fstat(fd).unwrap().st_ino
}

/// What a claim has given: region and slot, and the region's memory if it was not given before.
fn claimed(reply: (Reply, Vec<OwnedFd>), of: &Program) -> (RegionId, u32, Option<OwnedFd>) {
    let (Reply::Claimed { endpoint, region, slot, .. }, fds) = reply else { panic!("{reply:?}") };
    assert_eq!(endpoint, of.client.id);
    (region, slot, fds.into_iter().next())
}

/// True where connections can be marked.
fn marks(program: &Program) -> bool {
    let marked = program.registry.scope() == Scope::Marked;
    if !marked {
        println!("left out: no eBPF here");
    }
    marked
}

#[test]
fn the_two_ends_of_a_connection_meet_and_nobody_else() {
    if !is_root() {
        return;
    }
    let host = host("", |_| ());
    let [server, client, third] = [ONE, OTHER, THIRD].map(|user| Program::of(&host, user));
    if !marks(&server) {
        return;
    }
    let listener = server.serve();
    let address = Addr::from(listener.local_addr().unwrap());
    let sees = |program: &Program| program.registry.find(&address, |_| true).is_some();
    assert_eq!([sees(&server), sees(&client), sees(&third)], [true, false, false]);

    let (connected, record) = client.connect(&listener);
    let (accepted, _) = listener.accept().unwrap();
    assert_eq!(syn_count(&accepted), Some(OFFERED), "the acceptor sees it by itself");
    // Another pair of the third's own, and sockets that are none.
    let theirs = third.serve();
    let (own, _) = third.connect(&theirs);
    let (own_accepted, _) = theirs.accept().unwrap();
    assert_eq!(third.refused(&Request::Claim, &own), Reason::NoProposal);
    // What anybody can set on a socket says nothing to the agent.
    set_syn_count(&own, OFFERED);
    assert_eq!(third.refused(&Request::Claim, &own), Reason::NoProposal);
    assert_eq!(third.refused(&Request::Claim, &theirs), Reason::NoProposal);
    assert_eq!(third.refused(&Request::Claim, new_eventfd()), Reason::Unsupported);
    assert_eq!(client.refused(&Request::Claim, &connected), Reason::NoProposal, "the wrong end");
    assert!(matches!(word(record), Offer::Open(7)));

    let (region, slot, memory) = claimed(server.claim(&accepted), &client);
    let memory = memory.unwrap();
    assert_eq!(server.refused(&Request::Claim, &accepted), Reason::NoProposal, "once");
    let number = u8::try_from(slot).unwrap();
    assert_eq!(word(record), Offer::Claimed { region, slot: number });
    let fetch = Request::Fetch { region, slot };
    let (reply, fds) = client.client.call(&fetch, &[connected.as_fd()]);
    assert_eq!((reply, inode(&fds[0])), (Reply::Fetched, inode(&memory)));
    let mapped = Region::map(&memory).unwrap();
    let section = mapped.view().section(slot as usize, Side::Client);
    assert_eq!(section.setup.endpoint.load(Ordering::Relaxed), client.client.id);

    // What the third knows of it, and sockets of its own, lead to nothing.
    for socket in [&own, &own_accepted] {
        assert_eq!(third.refused(&fetch, socket), Reason::Refused);
        assert_eq!(third.refused(&Request::Attach { region, slot }, socket), Reason::Refused);
    }
    let bells = |endpoint| Request::Bells { region, endpoint };
    for endpoint in [client.client.id, server.client.id] {
        assert_eq!(third.client.refused(&bells(endpoint), &[]), Reason::Refused);
    }
    assert_eq!(third.client.refused(&Request::Detach { region }, &[]), Reason::Refused);
    // The parties may, each as what it is.
    assert!(
        matches!(client.client.call(&bells(server.client.id), &[]), (Reply::Bells, fds) if fds.len() == 1)
    );
    assert_eq!(server.client.refused(&bells(client.client.id), &[]), Reason::Refused);
    let again = Request::Attach { region, slot };
    let (reply, fds) = server.client.call(&again, &[accepted.as_fd()]);
    // The memory and a doorbell, but no pidfd, which would let it reach into the process.
    assert_eq!(reply, Reply::Attached { endpoint: client.client.id, pidfd: false });
    assert_eq!((fds.len(), inode(&fds[0])), (2, inode(&memory)));
    assert_eq!(client.refused(&again, &connected), Reason::Refused);

    // What a party has registered goes to the other one, and what no party has to nobody.
    let (_map, memory) = memfd::create_published("test", 4096).unwrap();
    for (owner, is_given) in [(&server, true), (&third, false)] {
        let request = Request::Export { what: Exported::Asked };
        let Reply::Exported { export } = owner.client.call(&request, &[memory.as_fd()]).0 else {
            panic!("refused")
        };
        let reply = client.client.call(&Request::Import { region, slot, export }, &[]).0;
        assert_eq!(reply == Reply::Imported, is_given, "{reply:?}");
    }

    // The next connection of the two is in the same region, in another slot; those of others are not.
    let (_connected, _) = client.connect(&listener);
    let (second, _) = listener.accept().unwrap();
    let (same, next, memory) = claimed(server.claim(&second), &client);
    assert!(same == region && next != slot && memory.is_none());
    let (_connected, _) = third.connect(&listener);
    let (accepted, _) = listener.accept().unwrap();
    assert_ne!(claimed(server.claim(&accepted), &third).0, region);
}

#[test]
fn wrong_sockets_and_records_are_no_offers() {
    if !is_root() {
        return;
    }
    let host = host("", |limits| limits.offers_per_endpoint = 4);
    let [server, client] = [ONE, OTHER].map(|user| Program::of(&host, user));
    if !marks(&server) {
        return;
    }
    let listener = server.serve();
    let offer = Request::Offer { record: 0, number: 1 };
    assert_eq!(client.refused(&offer, &listener), Reason::Refused, "a listener");
    assert_eq!(client.refused(&offer, new_eventfd()), Reason::Unsupported);
    assert_eq!(client.refused(&Request::Await, new_eventfd()), Reason::Unsupported);
    // Of a socket that two programs hold, one may offer it.
    let shared = tcp();
    let record = client.record();
    assert_eq!(client.offer(&shared, record, 1), Reply::Done);
    assert_eq!(server.refused(&offer, &shared), Reason::Refused);
    // No more than the limit, until some are over.
    let (sockets, records) =
        ([tcp(), tcp(), tcp()], [client.record(), client.record(), client.record()]);
    for (socket, record) in sockets.iter().zip(&records) {
        assert_eq!(client.offer(socket, record, 2), Reply::Done);
    }
    let one_more = client.record();
    let refused = Reply::Refused { reason: Reason::Refused };
    assert_eq!(client.offer(tcp(), one_more, 3), refused);
    record.id.offer.store(Offer::None.to_word(), Ordering::Release);
    assert_eq!(client.offer(tcp(), one_more, 3), Reply::Done);

    client.dropped_for(
        &Request::Offer { record: u32::try_from(RECORDS).unwrap(), number: 1 },
        Some(&listener),
    );
    for request in [Request::Claim, Request::Await, Request::Fetch { region: 1, slot: 1 }] {
        Program::of(&host, OTHER).dropped_for(&request, None);
    }
}

#[test]
fn an_offer_ends_with_its_client_its_patience_and_where_nobody_can_claim_it() {
    if !is_root() {
        return;
    }
    let host = host("", |_| ());
    let [server, client] = [ONE, OTHER].map(|user| Program::of(&host, user));
    if !marks(&server) {
        return;
    }
    let listener = server.serve();
    let (_connected, record) = client.connect(&listener);
    let (accepted, _) = listener.accept().unwrap();
    record.id.offer.store(Offer::None.to_word(), Ordering::Release);
    let why = server.refused(&Request::Claim, &accepted);
    assert!([Reason::PeerGone, Reason::NoProposal].contains(&why), "{why:?}");

    let plain = TcpListener::bind("127.0.0.1:0").unwrap();
    let (_connected, record) = client.connect(&plain);
    until("nobody can claim it", || word(record) == Offer::Declined(Reason::PeerNotShunted));

    let (_connected, _) = client.connect(&listener);
    let (accepted, _) = listener.accept().unwrap();
    drop(client);
    until("the client's death", || host.agent.status()["endpoints"] == 1);
    assert_eq!(server.refused(&Request::Claim, &accepted), Reason::NoProposal);
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn what_the_policy_denies_stays_on_tcp() {
    if !is_root() {
        return;
    }
    let denied =
        format!("[[rule]]\nverdict = 'deny'\nclient.uids = [{OTHER}]\nserver.uids = [{ONE}]");
    let host = host(&denied, |_| ());
    let [server, client, third] = [ONE, OTHER, THIRD].map(|user| Program::of(&host, user));
    if !marks(&server) {
        return;
    }
    let listener = server.serve();
    let (_connected, record) = client.connect(&listener);
    let (accepted, _) = listener.accept().unwrap();
    assert_eq!(server.refused(&Request::Claim, &accepted), Reason::Denied);
    assert_eq!(word(record), Offer::Declined(Reason::Denied));
    let (_connected, _) = third.connect(&listener);
    let (accepted, _) = listener.accept().unwrap();
    claimed(server.claim(&accepted), &third);
}

#[test]
fn one_user_cannot_take_the_places_of_all() {
    if !is_root() {
        return;
    }
    let host = host("", |limits| {
        limits.endpoints = 8;
        limits.clients = 64;
    });
    let held = [Program::of(&host, ONE), Program::of(&host, ONE)];
    assert!(matches!(Program::try_of(&host, ONE), Err(Reason::Refused)));
    let others = Program::of(&host, OTHER);
    drop(held);
    until("they are free again", || Program::try_of(&host, ONE).is_ok());
    drop(others);
}

/// Who comes again and again is looked at no more often than others are served.
#[test]
fn introductions_are_paid_for_by_the_account() {
    if !is_root() {
        return;
    }
    // A user's programs together may say four times as much.
    let host = host("", |limits| (limits.burst, limits.rate) = (20, 0));
    let _others = Program::of(&host, OTHER);
    let _came = [0; 4].map(|_| Program::of(&host, ONE));
    let late = as_user(ONE, || host.agent.client());
    let bell = new_eventfd();
    let hello = Request::Hello { version: PROTOCOL_VERSION, program: "p", run: 0 };
    let mut packet = [0; MAX_MESSAGE];
    late.send_raw(encode(&hello, &mut packet).unwrap(), &[bell.as_fd()]).unwrap();
    // Others do not wait for it, and it is still waiting then.
    let listener = Request::Connect { listener: 1 };
    let third = Program::of(&host, THIRD);
    assert_eq!(third.client.refused(&listener, &[]), Reason::PeerNotShunted);
    assert!(!late.is_answered());
}

#[test]
fn users_are_shown_their_own_programs() {
    if !is_root() {
        return;
    }
    let host = host("", |_| ());
    let _programs = [Program::of(&host, ONE), Program::of(&host, OTHER), Program::of(&host, OTHER)];
    let endpoints = |user| {
        let tool = as_user(user, || host.agent.tool());
        tool.report(&Request::Status)["endpoints"].as_u64()
    };
    assert_eq!([ONE, OTHER, THIRD].map(endpoints), [Some(1), Some(2), Some(0)]);
    // This process may itself be root in a namespace of its own.
    assert!(host.agent.status()["endpoints"].as_u64() <= Some(3));
}

#[test]
fn the_directory_is_open_to_be_read_alone() {
    if !is_root() {
        return;
    }
    let host = host("", |_| ());
    let path = host.agent.dir.path().to_string();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode, 0o755);
    let intrusion = as_user(ONE, || {
        let inside = Path::new(&path).join("agent.sock");
        [std::fs::remove_file(&inside), std::fs::write(Path::new(&path).join("x"), "")]
    });
    assert!(intrusion.iter().all(Result::is_err), "{intrusion:?}");
}

#[test]
fn memory_that_nobody_asked_for_is_not_for_an_agent_of_the_host() {
    if !is_root() {
        return;
    }
    let host = host("", |_| {});
    let program = Program::of(&host, ONE);
    let (_map, memory) = memfd::create_published("test", 4096).unwrap();
    let export = |what| program.client.call(&Request::Export { what }, &[memory.as_fd()]).0;
    assert_eq!(export(Exported::Found), Reply::Refused { reason: Reason::Refused });
    let Reply::Exported { export } = export(Exported::Asked) else { panic!("asked for") };
    let import = Request::Import { region: 1, slot: 0, export };
    assert_eq!(program.client.refused(&import, &[]), Reason::Refused, "to no party");
    let pipes = [pipe().unwrap().0, pipe().unwrap().0];
    let what = Exported::Pipes { region: 1, slot: 0 };
    let reply = program.client.call(&Request::Export { what }, &pipes.each_ref().map(AsFd::as_fd));
    assert_eq!(reply.0, Reply::Refused { reason: Reason::Refused });
}
