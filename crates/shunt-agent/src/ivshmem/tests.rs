//! Agents that share a piece of memory, without a device and without programs.

use std::collections::HashSet;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use shunt_shm::doorbell;
use shunt_shm::ivshmem::{EXTENT, MemberId, Published, offset};
use shunt_shm::memfd::create_sealed;
use shunt_shm::reach::WHOLE;
use shunt_shm::region::{Region, Side};
use shunt_wire::addr::{Addr, FourTuple};
use shunt_wire::agent::{ListenerId, RegionId};

use super::memory::Memory;
use super::{Attached, BEAT, Fabric, News};
use crate::book::Book;
use crate::config::Limits;
use crate::held::{Grave, Held};
use crate::state::State;

const EXTENTS: usize = 8;
const NAMESPACE: u64 = 1;
/// Endpoints of a client and of an acceptor, as their agents name them.
const CLIENT: u64 = 101;
const ACCEPTOR: u64 = 201;

fn memory() -> Arc<OwnedFd> {
    Arc::new(create_sealed("test", EXTENTS * EXTENT).unwrap())
}

/// An agent with so many interrupt vectors.
fn agent(memory: &Arc<OwnedFd>, vectors: usize) -> Fabric {
    Fabric::join(Box::new(transport(memory, vectors)), 0, NAMESPACE).unwrap()
}

fn transport(memory: &Arc<OwnedFd>, vectors: usize) -> Memory {
    Memory { memory: Arc::clone(memory), len: EXTENTS * EXTENT, vectors }
}

fn bells(count: usize) -> Vec<Rc<Held>> {
    (0..count).map(|_| Rc::new(Held::own(doorbell::create().unwrap()))).collect()
}

/// What an agent notices, which names others' listeners from 1000 on. It is time for a sign of life, with all that is done
/// along with it.
fn turn(agent: &mut Fabric) -> News {
    let mut next = 1000;
    agent.beaten = agent.beaten.checked_sub(BEAT).expect("the machine has run for a while");
    agent.turn(|| {
        next += 1;
        next
    })
}

fn v4(last: u8, port: u16) -> Addr {
    let mut ip = [0; 16];
    ip[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, last]);
    Addr { ip, port }
}

/// A client's agent and an acceptor's, which has a listener: with the name that the client's knows it by.
fn two_agents(memory: &Arc<OwnedFd>) -> (Fabric, Fabric, ListenerId) {
    let [mut client, mut server] = [agent(memory, 1), agent(memory, 1)];
    let listener = Published { id: 202, addr: v4(2, 80), v6only: false, bits: WHOLE };
    server.publish(&listener, NAMESPACE).unwrap();
    let _ = (turn(&mut client), turn(&mut server));
    let known = client.remotes.keys().copied().next().expect("the listener is known");
    (client, server, known)
}

/// A proposal in the client's region, as its program writes it, from an address that is its machine's.
fn propose(client: &Fabric, region: RegionId) -> FourTuple {
    let tuple = FourTuple { local: v4(1, 5000), peer: v4(2, 80) };
    client.home.set_addresses(&[tuple.local.ip]);
    let (extent, _) = client.control.find_extent(region).expect("the region");
    let map = Region::map_device(client.transport.memory(), offset(extent)).unwrap();
    map.view().section(0, Side::Client).setup.set_tuple(&tuple);
    tuple
}

/// What the acceptor's agent gives for a proposal in the client's region.
fn attach(client: &Fabric, server: &mut Fabric, region: RegionId) -> Attached {
    let tuple = propose(client, region);
    let attached = server.attach((ACCEPTOR, &bells(1)), (region, 0), &tuple.reversed());
    attached.expect("it is vouched for")
}

/// All that another member can take: nothing of it is given back.
fn all_that_is_free(client: &Fabric, newcomer: MemberId) -> HashSet<usize> {
    std::iter::from_fn(|| client.control.take_extent(newcomer)).collect()
}

/// The `home` of a machine that is gone stays what it was until `agent` has let go of the `region` that its programs had
/// with it: they may write proposals and rings there.
fn assert_held(agent: &mut Fabric, home: usize, region: RegionId) {
    let newcomer = agent.control.join(9, None, 1).unwrap();
    assert!(!all_that_is_free(agent, newcomer).contains(&home), "while it is in use");
    let _ = turn(agent);
    let free = all_that_is_free(agent, newcomer);
    assert!(!free.contains(&home), "connections are over, maps are not");
    agent.let_go(region);
    assert!(all_that_is_free(agent, newcomer).contains(&home), "nobody needs it any more");
}

#[test]
fn nobody_takes_the_home_that_a_clients_program_writes_to() {
    let memory = memory();
    let (mut client, server, listener) = two_agents(&memory);
    let region: RegionId = 301;
    let _linked = client.connect((CLIENT, &bells(1)), listener, region).expect("a region");
    let home = server.home_at;
    drop(server);
    assert_held(&mut client, home, region);
}

/// The same the other way round: an acceptor's program rings its clients.
#[test]
fn nobody_takes_the_home_that_an_acceptors_program_writes_to() {
    let memory = memory();
    let (mut client, mut server, listener) = two_agents(&memory);
    let region: RegionId = 301;
    let linked = client.connect((CLIENT, &bells(1)), listener, region).expect("a region");
    let _attached = attach(&client, &mut server, region);
    let home = client.home_at;
    drop((linked, client));
    assert_held(&mut server, home, region);
}

/// Who is refused what it asks for leaves nothing that is held.
#[test]
fn what_is_refused_is_not_held() {
    let memory = memory();
    let (mut client, mut server, listener) = two_agents(&memory);
    let region: RegionId = 301;
    let linked = client.connect((CLIENT, &bells(1)), listener, region).expect("a region");
    let tuple = propose(&client, region);
    let another = FourTuple { local: v4(1, 5001), peer: tuple.peer };
    assert!(server.attach((ACCEPTOR, &bells(1)), (region, 0), &another.reversed()).is_err());
    assert!(!server.has(region));
    let (extent, _) = client.control.find_extent(region).expect("the region");
    drop(linked);
    client.let_go(region);
    let newcomer = client.control.join(9, None, 1).unwrap();
    assert!(all_that_is_free(&client, newcomer).contains(&extent));
}

/// Another memory has taken the place of this one, for one of two agents and then for the other: what was published here is
/// known to nobody any more, and what comes here is not heard of.
#[test]
fn nothing_is_begun_in_a_memory_that_another_one_has_replaced() {
    let memory = memory();
    let (mut client, mut server, listener) = two_agents(&memory);
    let region: RegionId = 301;
    let linked = client.connect((CLIENT, &bells(1)), listener, region).expect("a region");
    assert_eq!(client.retire(), [listener], "they are to be forgotten");
    let another = Published { id: 203, addr: v4(2, 81), v6only: false, bits: WHOLE };
    server.publish(&another, NAMESPACE).unwrap();
    let _ = turn(&mut client);
    assert!(client.remotes.is_empty());
    assert!(client.is_in_use(), "what is connected goes on");
    let mut third = agent(&memory, 1);
    let _ = turn(&mut third);
    assert_eq!(third.remotes.len(), 2);
    assert!(server.retire().is_empty());
    assert_eq!(turn(&mut third).gone.len(), 2, "they can't be reached any more");
    drop(linked);
    client.let_go(region);
    assert!(!client.is_in_use());
}

/// A server's successor is there, but its memory cannot be watched (the kernel has no room for one more): that is tried again,
/// and nothing is left of it.
#[test]
fn a_memory_that_nobody_would_hear_of_takes_no_others_place() {
    let (before, after) = (memory(), memory());
    let in_use = |memory| {
        let looks = agent(memory, 1);
        looks.control.members().count() - 1
    };
    let mut state = {
        let (limits, ended, path) = (Limits::default(), Book::default(), String::new());
        State::new(limits, None, ended, path, Grave::default()).unwrap()
    };
    let refused = |_: BorrowedFd<'_>| Err(io::ErrorKind::OutOfMemory.into());
    assert!(state.share(Box::new(transport(&before, 1)), refused).is_err());
    assert!(state.has_no_server());
    assert_eq!(in_use(&before), 0);
    state.share(Box::new(transport(&before, 1)), |_| Ok(())).unwrap();
    assert!(!state.has_no_server());

    state.fabric.as_mut().expect("it was shared").deaf = true;
    assert!(state.share(Box::new(transport(&after, 1)), refused).is_err());
    assert!(state.has_no_server(), "the one before is still in its place");
    assert_eq!((in_use(&before), in_use(&after)), (1, 0));
    assert_eq!(state.describe_shared()["earlier_memories"], 0);
    state.share(Box::new(transport(&after, 1)), |_| Ok(())).unwrap();
    assert!(!state.has_no_server());
    assert_eq!((in_use(&before), in_use(&after)), (1, 1));
    assert_eq!(state.describe_shared()["earlier_memories"], 1);
}

/// A program that has sent all is gone before its peer has read all: the machine is not, although its memory was replaced.
#[test]
fn what_is_not_read_yet_is_not_lost_with_a_replaced_memory() {
    let memory = memory();
    let (mut client, mut server, listener) = two_agents(&memory);
    let region: RegionId = 301;
    let linked = client.connect((CLIENT, &bells(1)), listener, region).expect("a region");
    let attached = attach(&client, &mut server, region);
    let _ = (client.retire(), server.retire());
    drop(linked);
    client.let_go(region);
    assert!(client.is_in_use() && server.is_in_use());
    drop(attached);
    server.let_go(region);
    assert!(!client.is_in_use() && !server.is_in_use());
}

/// Interrupts lead to the doorbells of those who came first; the others are told by their agent.
#[test]
fn interrupts_are_given_out_and_taken_back() {
    let memory = memory();
    let mut agent = agent(&memory, 6);
    let interrupts = |agent: &Fabric, place: usize| {
        [0, 1, 2].map(|vector| agent.home.interrupt_of(place, vector))
    };
    for (endpoint, count) in [(1, 2), (2, 2), (3, 3), (4, 1)] {
        agent.settle((endpoint, &bells(count))).unwrap();
    }
    assert_eq!(interrupts(&agent, 0), [Some(1), Some(2), None]);
    assert_eq!(interrupts(&agent, 1), [Some(3), Some(4), None]);
    assert_eq!(interrupts(&agent, 2), [Some(5), None, None], "there are no more");
    assert_eq!(interrupts(&agent, 3), [None; 3]);
    agent.endpoint_left(1);
    assert_eq!(interrupts(&agent, 0), [None; 3]);
    agent.settle((5, &bells(3))).unwrap();
    assert_eq!(interrupts(&agent, 0), [Some(1), Some(2), None]);
    // Of a machine that is never interrupted.
    let mut looks = super::tests::agent(&memory, 1);
    looks.settle((1, &bells(2))).unwrap();
    assert_eq!(interrupts(&looks, 0), [None; 3]);
}
