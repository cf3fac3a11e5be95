//! Link groups that others have made, on either side: those of which the agent knows that this process is a party.

use core::sync::atomic::Ordering;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use shunt_shm::region::{SLOTS, Side};
use shunt_wire::agent::RegionId;
use shunt_wire::reason::Reason;

use crate::control::agent_client::{self, Claimed, Memory};
use crate::control::bells::Kept;
use crate::control::doorbells::Doorbells;
use crate::control::endpoint::Endpoint;
use crate::control::link::removal::{collect, retire_unused};
use crate::control::link::{CHANGES, Link, all, install};
use crate::control::process::{self, Process};
use crate::threads::signals::Uncancelled;

/// The link group of `region` on the acceptor's side; fetched from the agent the first time, with
/// the accepted socket as the proof that we are a party. It counts as one use until [`detach`].
pub fn attach(
    region: RegionId,
    slot: usize,
    socket: BorrowedFd<'_>,
) -> Result<&'static Link, Reason> {
    let _uncancelled = Uncancelled::begin();
    let find = || {
        let pid = Endpoint::current().map(|e| e.pid);
        all().find(|l| l.region == region && l.side == Side::Server && Some(l.endpoint.pid) == pid)
    };
    let _changes = CHANGES.lock();
    if let Some(link) = find() {
        link.open(slot)?;
        link.users.fetch_add(1, Ordering::AcqRel);
        return Ok(link);
    }
    collect();
    let found = agent_client::attach(region, slot, socket)?;
    let attached = process::remember(found.owner, found.bells, found.pidfd)
        .and_then(|owner| acceptors(region, slot, found.memory, &owner, found.endpoint));
    attached.inspect_err(|_| give_up(region))
}

/// It could not be attached: the agent gives it once more at the next connection, and keeps it for nobody until then.
fn give_up(region: RegionId) {
    agent_client::detach(region);
}

/// A link group that this process has just attached, with one use.
fn acceptors(
    region: RegionId,
    slot: usize,
    memory: Memory,
    owner: &Arc<Process>,
    endpoint: &'static Endpoint,
) -> Result<&'static Link, Reason> {
    let party = Some(Arc::clone(owner));
    let link = Link::new(region, Side::Server, memory, endpoint, party, None)?;
    link.open(slot)?;
    // It is there for the link group's sake, whether a connection uses it or not.
    link.peers.add(owner).release();
    link.users.fetch_add(1, Ordering::AcqRel);
    install(link)
}

/// Where the connection of an accepted socket has its place, if its client has offered it: as [`attach`], but
/// that the agent finds the place.
pub fn claim(socket: BorrowedFd<'_>) -> Result<(&'static Link, Claimed), Reason> {
    let _uncancelled = Uncancelled::begin();
    let _changes = CHANGES.lock();
    let mut found = agent_client::claim(socket)?;
    if found.slot >= SLOTS {
        return Err(Reason::Internal);
    }
    let id = found.endpoint.id;
    let is_it =
        |l: &&Link| l.region == found.region && l.side == Side::Server && l.endpoint.id == id;
    if let Some(link) = all().find(is_it) {
        link.open(found.slot)?;
        link.users.fetch_add(1, Ordering::AcqRel);
        return Ok((link, found));
    }
    let attached = found.memory.take().ok_or(Reason::NoResources).and_then(|memory| {
        collect();
        let bells = core::mem::replace(&mut found.bells, Doorbells::Here(Kept::default()));
        let owner = process::remember(found.owner, bells, None)?;
        acceptors(found.region, found.slot, Memory::Host(memory), &owner, found.endpoint)
    });
    match attached {
        Ok(link) => Ok((link, found)),
        Err(why) => {
            give_up(found.region);
            Err(why)
        }
    }
}

/// The link group in which an offered connection of this process, or of one that it was forked from, was
/// claimed. It counts as one use until [`detach`].
pub fn fetch(
    region: RegionId,
    slot: usize,
    socket: BorrowedFd<'_>,
) -> Result<&'static Link, Reason> {
    let _uncancelled = Uncancelled::begin();
    let _changes = CHANGES.lock();
    let is_it = |l: &&Link| l.region == region && l.side == Side::Client && !l.is_inherited();
    if let Some(link) = all().find(is_it) {
        link.open(slot)?;
        link.users.fetch_add(1, Ordering::AcqRel);
        return Ok(link);
    }
    retire_unused();
    let (memory, endpoint) = agent_client::fetch(region, slot, socket)?;
    let link = Link::new(region, Side::Client, Memory::Host(memory), endpoint, None, None)?;
    link.open(slot)?;
    link.users.fetch_add(1, Ordering::AcqRel);
    install(link)
}

/// Takes back the use that [`attach`], [`claim`] or [`fetch`] counted.
pub fn detach(link: &Link) {
    link.users.fetch_sub(1, Ordering::AcqRel);
}
