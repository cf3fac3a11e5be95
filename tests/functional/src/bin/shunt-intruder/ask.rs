//! Requests for what others have.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;
use std::{fs, io, thread};

use shunt_shm::memfd;
use shunt_shm::region::{Region, SLOTS, Side};
use shunt_shm::registry::Registry;
use shunt_shm::sync::Ordering;
use shunt_shm::table::{Place, Table};
use shunt_wire::PROTOCOL_VERSION;
use shunt_wire::addr::{Addr, FourTuple};
use shunt_wire::agent::{Reply, Request};
use shunt_wire::clc::Proposal;

use crate::agent::{Agent, doorbell, outcome};
use crate::say;

/// Names that the agent has given out lately: it counts, and tells each client its own.
const NAMES: u64 = 200;
/// Between two looks for something that is to come.
const NAP: Duration = Duration::from_millis(2);

/// Everything that one can ask for, with each name that may be somebody's.
pub fn run(run_dir: &Path) -> io::Result<()> {
    let bell = doorbell()?;
    let hello = Request::Hello { version: PROTOCOL_VERSION, program: "intruder", run: 0 };
    let first = Agent::reach(run_dir)?.call(&hello, &[bell.as_fd()]);
    let Ok((Reply::Welcome { endpoint: newest, .. }, _)) = first else {
        say("hello", outcome(&first));
        for request in [
            Request::Tool { version: PROTOCOL_VERSION },
            Request::List,
            Request::Status,
            Request::Connect { listener: 1 },
        ] {
            say(format_args!("{request:?}"), outcome(&Agent::reach(run_dir)?.call(&request, &[])));
        }
        return Ok(());
    };
    // Sockets of its own: listening, and both ends of a connection.
    let listening = TcpListener::bind("127.0.0.1:0")?;
    let near = TcpStream::connect(listening.local_addr()?)?;
    let far = listening.accept()?.0;
    let memory = memfd::create_sealed("intruder", 4096)?;
    let things = [
        ("its connection", near.as_fd()),
        ("the other end", far.as_fd()),
        ("a listener", listening.as_fd()),
        ("memory", memory.as_fd()),
    ];
    let (agent, me) = Agent::introduced(run_dir)?;
    for name in (newest.saturating_sub(NAMES)..newest).chain([0, me + 1, u64::MAX]) {
        for (slot, (thing, fd)) in [0, 1].into_iter().flat_map(|slot| things.map(|t| (slot, t))) {
            let attach = Request::Attach { region: name, slot };
            say(format_args!("{attach:?} with {thing}"), outcome(&agent.call(&attach, &[fd])));
            let fetch = Request::Fetch { region: name, slot };
            say(format_args!("{fetch:?} with {thing}"), outcome(&agent.call(&fetch, &[fd])));
        }
        // Both ends of a link group are introduced shortly before it is made.
        let ends = (name.saturating_sub(8)..name).chain([name.wrapping_add(1), me]);
        let bells = ends.map(|endpoint| Request::Bells { region: name, endpoint });
        let others = [Request::Detach { region: name }, Request::Unlisten { listener: name }];
        for request in bells.chain(others) {
            say(format_args!("{request:?}"), outcome(&agent.call(&request, &[])));
        }
    }
    for (thing, fd) in things.iter().filter(|(thing, _)| *thing != "a listener") {
        say(format_args!("Listen with {thing}"), outcome(&agent.call(&Request::Listen, &[*fd])));
    }
    for (thing, fd) in things {
        say(format_args!("Claim with {thing}"), outcome(&agent.call(&Request::Claim, &[fd])));
    }
    // What ends a conversation ends it for this one alone.
    for request in [
        Request::Listen,
        Request::Claim,
        Request::Offer { record: u32::MAX, number: 1 },
        Request::Attach { region: newest, slot: u32::MAX },
    ] {
        let (agent, _) = Agent::introduced(run_dir)?;
        let alone = matches!(request, Request::Listen | Request::Claim);
        let fds = if alone { vec![] } else { vec![near.as_fd()] };
        say(format_args!("{request:?}"), outcome(&agent.call(&request, &fds)));
    }
    Ok(())
}

/// An IPv4 address of /proc/net/tcp.
fn parsed(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let ip = Ipv4Addr::from(u32::from_str_radix(ip, 16).ok()?.to_ne_bytes());
    Some(SocketAddrV4::new(ip, u16::from_str_radix(port, 16).ok()?).into())
}

/// The connections to `to` in this network namespace, as their acceptor sees them.
fn connections(to: SocketAddr) -> io::Result<Vec<FourTuple>> {
    const ESTABLISHED: &str = "01";
    let table = fs::read_to_string("/proc/net/tcp")?;
    let tuple = |line: &str| {
        let mut fields = line.split_whitespace().skip(1);
        let (local, peer) = (parsed(fields.next()?)?, parsed(fields.next()?)?);
        let wanted = local == to && fields.next()? == ESTABLISHED;
        wanted.then(|| FourTuple { local: Addr::from(local), peer: Addr::from(peer) })
    };
    Ok(table.lines().filter_map(tuple).collect())
}

/// Takes the proposals for connections to `to` out of the listener's table, once there are `count`, and puts
/// others in their place: for a region of its own that speaks of something else, and for places in the
/// regions of others. Stays until `until` is there, and then says what it has got.
pub fn forge(run_dir: &Path, to: SocketAddr, count: usize, until: &Path) -> io::Result<()> {
    let unexpected = |reply: Reply| Err(io::Error::other(format!("{reply:?}")));
    let nothing = || io::Error::other("nothing was sent along");
    let (agent, bell) = (Agent::reach(run_dir)?, doorbell()?);
    let hello = Request::Hello { version: PROTOCOL_VERSION, program: "intruder", run: 0 };
    let (reply, fds) = agent.call(&hello, &[bell.as_fd()])?;
    let Reply::Welcome { endpoint: me, .. } = reply else { return unexpected(reply) };
    let registry = Registry::map(fds.first().ok_or_else(nothing)?)?;
    let listing = registry.find(&Addr::from(to), |_| true).ok_or_else(nothing)?;
    let (reply, fds) = agent.call(&Request::Connect { listener: listing.listener }, &[])?;
    let Reply::Linked { region } = reply else { return unexpected(reply) };
    let [table, memory]: [OwnedFd; 2] = fds.try_into().map_err(|_| nothing())?;
    let (table, memory) = (Table::map(&table)?, Region::map(&memory)?);
    let connections = loop {
        let open = connections(to)?;
        if open.len() >= count && open.iter().all(|tuple| table.find(tuple).is_some()) {
            break open;
        }
        thread::sleep(NAP);
    };
    for (n, tuple) in connections.iter().enumerate() {
        let found = table.find(tuple).ok_or_else(nothing)?;
        let slot = n % SLOTS;
        // All as it should be, but that it is of another connection.
        let mine = &memory.view().section(slot, Side::Client).setup;
        mine.set_tuple(&connections[(n + 1) % connections.len()].reversed());
        mine.endpoint.store(me, Ordering::Relaxed);
        mine.generation.store(1, Ordering::Relaxed);
        mine.state.store(Proposal::Used as u32, Ordering::Release);
        let forged = match n % 3 {
            0 => Place { region, slot, generation: 1 },
            1 => Place { slot: (found.place().slot + 1) % SLOTS, ..found.place() },
            _ => Place { region: found.place().region + 1, ..found.place() },
        };
        let placed = table.take(&found) && table.post(tuple, forged).is_some();
        say(format_args!("forge {n}"), if placed { "placed" } else { "not placed" });
    }
    say("forged", connections.len());
    while !until.exists() {
        thread::sleep(NAP);
    }
    for endpoint in me.saturating_sub(NAMES)..me {
        let bells = Request::Bells { region, endpoint };
        say(format_args!("{bells:?}"), outcome(&agent.call(&bells, &[])));
    }
    let answered = |slot: &usize| {
        let theirs = memory.view().section(*slot, Side::Server);
        theirs.setup.state.load(Ordering::Acquire) != 0
    };
    say("answers", (0..SLOTS).filter(answered).count());
    Ok(())
}
