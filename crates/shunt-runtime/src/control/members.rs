//! The processes that share an endpoint's arena: a program and its forked children.

use shunt_shm::holders::{Member, Processes, Who};
use shunt_shm::lock::Owner;
use shunt_sys::process::{BeforeFork, Identity};

use crate::control::endpoint::Endpoint;

/// This process among those that share the endpoint's arena; entered there when it is first asked.
pub fn member(endpoint: &Endpoint) -> Member {
    let known = endpoint.member();
    if known != Member::UNNAMED {
        return known;
    }
    let processes = endpoint.arena.processes();
    let new = processes.claim();
    processes.introduce(new, who(&Identity::current()));
    match endpoint.set_member_once(new) {
        Ok(()) => new,
        // Another thread has made its first connection at the same time.
        Err(first) => {
            processes.free(new);
            first
        }
    }
}

/// This process as it has introduced itself.
pub fn own(endpoint: &Endpoint) -> Option<Identity> {
    endpoint.arena.processes().who(endpoint.member()).map(identity)
}

/// Who this process is, which its parent has forked after `before`; `None`: without a word.
pub fn forked(before: Option<BeforeFork>, processes: &Processes) -> Identity {
    let Some(before) = before else { return Identity::current() };
    let by_clock = processes.starts_by_clock();
    let clock = before.start();
    let me = Identity::of_child(&before, by_clock == Some(true));
    if let Some(clock) = clock.filter(|_| by_clock.is_none() && me.start != 0) {
        processes.note_starts(me.start == clock);
    }
    me
}

const fn identity(who: Who) -> Identity {
    let Who { pid, start, namespace } = who;
    Identity { pid, start, namespace }
}

/// How a process is introduced.
pub const fn who(identity: &Identity) -> Who {
    let Identity { pid, start, namespace } = *identity;
    Who { pid, start, namespace }
}

/// True when a process that shares the endpoint's arena has died.
pub fn has_died(endpoint: &Endpoint, member: Member) -> bool {
    let processes = endpoint.arena.processes();
    let Some(other) = processes.who(member).map(identity) else { return false };
    // As this process has introduced itself: by now it may see no `/proc`.
    let here = || own(endpoint).unwrap_or_else(Identity::current).namespace;
    let may_have_died = |here| {
        // A child that ends looks at its parent for each connection that it has inherited.
        !(member == endpoint.parent() && other.is_parent(here)) && other.has_ended(here)
    };
    member != endpoint.member() && may_have_died(here())
}

/// True when an owner of locks in the endpoint's arena has certainly ended.
pub fn has_ended(endpoint: &Endpoint, owner: Owner) -> bool {
    let process = owner.process();
    if process == endpoint.member() || process == Member::UNNAMED {
        return owner.has_ended_here();
    }
    endpoint.arena.processes().has_left(process) || has_died(endpoint, process)
}

/// This process is about to end or to become another program, or holds nothing any more: its place among those that
/// share the arena is free.
pub fn leave(endpoint: &Endpoint) {
    let me = endpoint.member();
    if me != Member::UNNAMED && endpoint.arena.held_by(me).next().is_none() {
        endpoint.set_member(Member::UNNAMED);
        endpoint.arena.processes().free(me);
    }
}
