//! Connections that several processes hold: parent and forked children.
//!
//! A record counts the processes that hold it and names them ([`shunt_shm::holders`]). The number
//! of descriptors is each process's own business ([`Sock`]). The last process that lets go ends the
//! connection towards the peer. A killed relative has let go of nothing: the next process that lets
//! go, or looks now and then, does so in its place.

use core::sync::atomic::Ordering;

use shunt_engine::conn::is_half_settled;
use shunt_engine::handshake::{Phase, course};
use shunt_shm::arena::{Arena, Record};
use shunt_shm::holders::Member;
use shunt_sys::process::BeforeFork;

use crate::conn::{Sock, brevity, hold};
use crate::control::endpoint::Endpoint;
use crate::control::link::{self, Link};
use crate::control::members;
use crate::fds::fd_table;
use crate::point;
use crate::processes::account;
use crate::stream::agree;
use crate::stream::{grants, promote};
use crate::threads::across_forks::ACROSS_FORKS;
use crate::threads::few::Few;
use crate::threads::kept::Kept;
use crate::threads::mutex::{Guard, Mutex};

/// [`Sock::counted`]: the child is counted among the record's holders.
const COUNTED: u32 = 1;
/// [`Sock::counted`]: the child has it indeed.
const FOUND: u32 = 2;

/// A connection that was counted for a child.
#[derive(Clone, Copy)]
struct Counted {
    sock: &'static Sock,
    record: &'static Record,
    endpoint: &'static Endpoint,
}

/// Of several threads that fork, one at a time counts for its child.
static FORKS: &Mutex<()> = &ACROSS_FORKS.forks;

/// What a thread that forks keeps meanwhile.
struct Forking {
    /// Until the fork is done; not until the program's handlers have run, which may wait for a thread
    /// that is about to fork.
    alone: Option<Guard<'static, ()>>,
    counted: Few<Counted, 4>,
    /// The child's name in each arena.
    children: Few<(&'static Endpoint, Member), 2>,
    /// What tells the child who it is; `None`: it has no name.
    before: Option<BeforeFork>,
}

thread_local! {
    static FORKING: Kept<Forking> = const { Kept::none() };
}

/// How a fork has ended, as far as the parent knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Child {
    /// It lives.
    Pid(u32),
    /// There is none: the fork failed.
    None,
    /// Some function of libc has forked, and does not say.
    Unknown,
}

/// This process has closed its last descriptor of the connection. True when no process is left that
/// has one.
pub fn let_go(endpoint: &Endpoint, record: &Record) -> bool {
    let_go_for_the_dead(endpoint, record);
    record.id.holders.remove(endpoint.member())
}

/// Before this process lets go: of several that die or close at once, one is the last.
fn let_go_for_the_dead(endpoint: &Endpoint, record: &Record) {
    let holders = &record.id.holders;
    if course::is_to_be_told(record) && holders.count() > 1 {
        for other in holders.names().filter(|other| members::has_died(endpoint, *other)) {
            holders.bereave(other);
        }
    }
}

/// The same before an exec closes it, unless this process is the last: the exec may fail.
pub fn let_go_if_shared(sock: &'static Sock) -> bool {
    grants::leave(sock);
    let_go_for_the_dead(sock.endpoint(), sock.record());
    sock.record().id.holders.remove_if_shared(sock.endpoint().member())
}

/// Takes [`let_go_if_shared`] back.
pub fn hold_again(sock: &Sock) {
    sock.record().id.holders.add(members::member(sock.endpoint()));
}

/// This process is about to end or to become another program: where it holds nothing any more its
/// place among its relatives is free.
pub fn leave() {
    Endpoint::all().for_each(members::leave);
}

fn phase(record: &Record) -> Phase {
    Phase::from_code(record.id.phase.load(Ordering::Acquire))
}

/// Where this process holds no connection of an inherited endpoint any more, what its parent's connections are doing is not
/// in its memory either.
pub fn shed(endpoint: &'static Endpoint) {
    if !endpoint.is_shed()
        && Sock::all().all(|sock| !core::ptr::eq(sock.endpoint(), endpoint))
        && endpoint.is_shed_first()
    {
        members::leave(endpoint);
        endpoint.arena.blank();
    }
}

/// Records that are taken between two looks whether a relative has been killed.
const LOOK_AFTER: usize = 16;

/// A fresh record. Lives in memory that is never unmapped.
#[must_use]
pub fn new_record(endpoint: &'static Endpoint) -> Option<&'static Record> {
    if endpoint.hint().is_multiple_of(LOOK_AFTER) {
        look_after(endpoint);
    }
    endpoint.allocate(members::member(endpoint), |owner| members::has_ended(endpoint, owner))
}

/// Looks whether the next relative in turn has been killed, and lets go of all in its place.
pub fn look_after(endpoint: &Endpoint) {
    let processes = endpoint.arena.processes();
    let Some(relative) = processes.next().filter(|relative| members::has_died(endpoint, *relative))
    else {
        return;
    };
    for record in endpoint.arena.held_by(relative) {
        if record.id.holders.bereave(relative) {
            bury(record, &endpoint.arena);
        }
    }
    processes.free(relative);
}

/// The last holder of a connection was killed. What the peer is to know the kernel has told it; the
/// slot and the record are free.
fn bury(record: &Record, arena: &Arena) {
    account::add(record, arena);
    brevity::settle(record, arena);
    let region = record.id.region.load(Ordering::Relaxed);
    let (slot, side) = (record.slot(), record.side());
    let has_ended = |link: &Link| {
        link.view().section(slot, side).setup.done.store(1, Ordering::Release);
    };
    if let Some(link) = link::all().find(|link| link.region == region && link.side == side) {
        match phase(record) {
            Phase::Active | Phase::Broken => has_ended(link),
            Phase::Candidate if is_half_settled(record) => has_ended(link),
            Phase::Proposed if agree::withdraw_from(link, record) => {
                link.free_slot(slot);
            }
            Phase::Tcp if region != 0 => link.free_slot(slot),
            _ => {}
        }
    }
    record.id.live.store(0, Ordering::Release);
}

/// Before a fork, and before any other lock is taken for it.
pub fn fork_begins() {
    let alone = FORKS.lock();
    let (counted, children) = (Few::default(), Few::default());
    FORKING.with(|kept| kept.put(Forking { alone: Some(alone), counted, children, before: None }));
    for endpoint in Endpoint::all() {
        // Twice: with each fork the table may grow by one, and the look has to get around.
        look_after(endpoint);
        look_after(endpoint);
    }
}

/// Before a fork: the child is counted among the holders of all that this process holds, so that
/// nobody is the last who closes meanwhile.
pub fn fork_prepare() {
    Endpoint::all().for_each(|endpoint| endpoint.set_child(Member::UNNAMED));
    let mut counted = Few::default();
    for (_, entry) in fd_table::of_program() {
        let Some(sock) = Sock::of(entry) else { continue };
        if sock.counted.swap(COUNTED, Ordering::AcqRel) == COUNTED {
            continue;
        }
        let (record, endpoint) = (sock.record(), sock.endpoint());
        if endpoint.child() == Member::UNNAMED {
            endpoint.set_child(endpoint.arena.processes().claim());
        }
        record.id.holders.add(endpoint.child());
        promote::is_left_to_others(sock);
        counted.push(Counted { sock, record, endpoint });
    }
    let child = |endpoint: &'static Endpoint| (endpoint, endpoint.child());
    let children = Endpoint::all().map(child).filter(|(_, child)| *child != Member::UNNAMED);
    let children: Few<_, _> = children.collect();
    let me = children.iter().next().and_then(|(endpoint, _)| members::own(endpoint));
    FORKING.with(|kept| {
        if let Some(forking) = kept.take() {
            let before = me.map(BeforeFork::now);
            kept.put(Forking { counted, children, before, ..forking });
        }
    });
}

/// After it, in the parent: another thread may fork.
pub fn fork_parent() {
    FORKING.with(|kept| {
        if let Some(mut forking) = kept.take() {
            for Counted { sock, .. } in forking.counted.iter() {
                sock.counted.store(0, Ordering::Release);
            }
            Endpoint::all().for_each(|endpoint| endpoint.set_child(Member::UNNAMED));
            drop(forking.alone.take());
            kept.put(forking);
        }
    });
}

/// What has become of the child, in the parent.
pub fn fork_settled(child: Child) {
    let Some(Forking { counted, children, .. }) = FORKING.with(Kept::take) else { return };
    point!(fork_settles);
    let name_in = |endpoint: &Endpoint| {
        let found = children.iter().find(|(other, _)| core::ptr::eq(*other, endpoint));
        found.map_or(Member::UNNAMED, |(_, name)| *name)
    };
    if child == Child::None {
        for Counted { record, endpoint, .. } in counted.iter() {
            if record.id.holders.remove(name_in(endpoint)) {
                bury(record, &endpoint.arena);
            }
        }
    }
    for &(endpoint, name) in children.iter() {
        let processes = endpoint.arena.processes();
        match child {
            Child::Pid(pid) => {
                let me = processes.who(endpoint.member());
                processes.born(name, pid, me.map_or(0, |me| me.namespace));
            }
            Child::None => processes.free(name),
            Child::Unknown => {}
        }
    }
}

/// In the child: what it holds is what its own copy of the table says, also of connections that
/// other threads of the parent have opened or closed meanwhile, and after a fork that nobody
/// announced.
pub fn fork_child() {
    let forking = FORKING.with(Kept::take);
    let mut known = None;
    for endpoint in Endpoint::all() {
        let (child, processes) = (endpoint.child(), endpoint.arena.processes());
        endpoint.take_name(child);
        if child != Member::UNNAMED {
            let before = forking.as_ref().and_then(|forking| forking.before);
            let me = known.get_or_insert_with(|| members::forked(before, processes));
            processes.introduce(child, members::who(me));
        }
    }
    for link in link::all() {
        link.users.store(0, Ordering::Release);
        link.peers.forget_users();
    }
    let table = || fd_table::of_program().filter_map(|(_, entry)| Sock::of(entry));
    Sock::all().for_each(|sock| sock.set_descriptors(0));
    for sock in table() {
        sock.set_descriptors(sock.descriptors() + 1);
        if let Some(link) = sock.link() {
            link.users.fetch_add(1, Ordering::AcqRel);
        }
        let counted = sock.counted.swap(FOUND, Ordering::AcqRel);
        if counted == 0 {
            sock.record().id.holders.add(members::member(sock.endpoint()));
        }
        if let Some(peer) = sock.peer().filter(|_| counted != FOUND) {
            peer.count_again();
        }
    }
    for Counted { sock, record, endpoint } in
        forking.iter().flat_map(|forking| forking.counted.iter())
    {
        let found = sock.counted.load(Ordering::Acquire) == FOUND;
        if !(found && core::ptr::eq(sock.record(), *record))
            && record.id.holders.remove(endpoint.member())
        {
            bury(record, &endpoint.arena);
        }
        sock.counted.store(0, Ordering::Release);
    }
    table().for_each(|sock| sock.counted.store(0, Ordering::Release));
    forget_calls_of_others();
    Endpoint::all().for_each(Endpoint::inherit);
    let place = |sock: &Sock| {
        let record = sock.record();
        (record.id.region.load(Ordering::Relaxed), record.side(), record.slot())
    };
    link::keep_what_is_held(|| Sock::all().map(place));
    Endpoint::all().for_each(shed);
}

/// In a forked child: what only calls of the parent's other threads have held is none of its business.
fn forget_calls_of_others() {
    // This thread may be in a signal handler above calls of its own.
    hold::each(|sock| {
        if sock.is_unused() {
            sock.record().id.holders.add(members::member(sock.endpoint()));
            if let Some(link) = sock.link() {
                link.users.fetch_add(1, Ordering::AcqRel);
            }
            if let Some(peer) = sock.peer() {
                peer.count_again();
            }
        }
        sock.hold_again();
    });
    for sock in Sock::all() {
        if sock.is_unused() {
            sock.give_back();
        } else {
            sock.end_lingering_if_named();
            sock.set_member(sock.endpoint().member());
        }
    }
}
