//! News for the peer.

use core::ptr;
use core::sync::atomic::Ordering;
use std::os::fd::AsFd;

use shunt_engine::wait::tell::{self, Armed, Untold, Wake};
use shunt_shm::cq::{ArmLine, CqLine, Push};
use shunt_shm::doorbell::futex_wake;
use shunt_shm::region::{Ctl, queue_place};
use shunt_shm::sync::{AtomicU32, store_load_fence};
use shunt_sys::fds::close;
use shunt_wire::agent::EndpointId;

pub use shunt_engine::wait::tell::Cost;

use crate::conn::Sock;
use crate::control::agent_client;
use crate::control::bells::COMMON;
use crate::control::link::Link;
use crate::control::peer::{Peer, Rung};
use crate::control::process;
use crate::epoll::tell as instances;
use crate::fds::own_fds::adopt;
use crate::stream::acquaint;
use crate::system::abi;
use crate::system::errno::KeepErrno;
use crate::threads::handlers;
use crate::threads::placing;
use crate::threads::signals::SettingUp;

/// The peer; a client that has only received so far may have to ask the agent for its doorbells.
fn known_peer(sock: &Sock) -> Option<&'static Peer> {
    sock.peer().or_else(|| {
        // A process that ends may be in a signal handler; its FIN, which follows at once, will do.
        if !crate::activity::active() {
            return None;
        }
        let _keep = KeepErrno::new();
        // Nor in one on top of a talk with the agent.
        let _setting_up = SettingUp::begin()?;
        let peer = acquaint::acquaint(sock, sock.peer_endpoint()?).ok()?;
        sock.has_met(peer);
        Some(peer)
    })
}

/// What wakes those of the peer who wait for a connection.
struct Theirs<'a> {
    sock: &'a Sock,
    link: &'a Link,
    ctl: &'a Ctl,
    slot: usize,
}

impl Wake for Theirs<'_> {
    fn futex(&self, word: &AtomicU32) {
        self.begins();
        futex_wake(word, u32::MAX);
    }

    fn ring(&self, vectors: impl Iterator<Item = usize>) {
        self.begins();
        if let Some(peer) = known_peer(self.sock) {
            vectors.for_each(|vector| ring(self, peer, vector));
        }
    }

    #[inline]
    fn is_queued(&self) -> bool {
        self.ctl.queue.load(Ordering::Relaxed) != 0
    }

    fn push(&self) -> Option<usize> {
        let mine = self.link.view().section(self.slot, self.link.side);
        queue(self.link, self.ctl, (self.slot, Some(&mine.prod.place)), tell::queue)
    }

    fn push_again(&self) -> Option<usize> {
        let mine = self.link.view().section(self.slot, self.link.side);
        queue(self.link, self.ctl, (self.slot, Some(&mine.prod.place)), tell::queue_again)
    }

    fn ring_all(&self) {
        self.ring(core::iter::once(COMMON));
    }

    #[inline]
    fn in_halves<T>(&self, halves: impl FnOnce() -> T) -> T {
        handlers::tell_above(ptr::from_ref(self.sock).addr(), halves)
    }
}

impl Theirs<'_> {
    /// Those who are woken are to learn what it takes.
    fn begins(&self) {
        let mine = self.link.view().section(self.slot, self.link.side);
        mine.ctl.rang.store(placing::waker().word(), Ordering::Relaxed);
    }
}

/// Rings for a completion vector of the peer's.
#[inline]
fn ring(theirs: &Theirs<'_>, peer: &Peer, vector: usize) {
    if let Rung::NotHere(endpoint) = peer.ring(vector) {
        ring_first(theirs, peer, (endpoint, vector));
    }
}

/// The same where its doorbell is not at hand: it is rung for the first time, or was given back.
#[cold]
fn ring_first(theirs: &Theirs<'_>, peer: &Peer, at: (EndpointId, usize)) {
    let _keep = KeepErrno::new();
    let (link, (_, vector)) = (theirs.link, at);
    let place = (link.region, theirs.slot);
    // The agent knows only that process as a party which has made the connection, and would not ring for its child.
    let is_known = !link.endpoint.is_inherited();
    let fetch = || {
        // Not in a process that ends, nor on top of a talk with the agent: see `known_peer`.
        let _setting_up = crate::activity::active().then(SettingUp::begin).flatten()?;
        let is_kept = process::make_room();
        if is_known && !is_kept {
            return None;
        }
        let proof = if is_known { None } else { theirs.sock.descriptor().map(abi::borrow) };
        let bell = agent_client::bell(place, at, proof).ok()?;
        shunt_shm::doorbell::ring(bell.as_fd());
        match is_kept {
            true => adopt(bell).into_iter().for_each(|bell| peer.keep(vector, bell)),
            false => close(bell),
        }
        Some(())
    };
    if fetch().is_some() {
        return;
    }
    // All who wait there look: at once, where the process ends and would wait for the agent.
    let is_rung = !crate::activity::active() && peer.ring(COMMON) == Rung::Rung;
    let is_rung = is_rung || (is_known && agent_client::ring(link.region, at));
    if !is_rung {
        peer.ring(COMMON);
    }
}

/// What wakes other threads of this side.
struct Ours<'a> {
    sock: &'a Sock,
    ctl: &'a Ctl,
}

impl Wake for Ours<'_> {
    fn futex(&self, word: &AtomicU32) {
        futex_wake(word, u32::MAX);
    }

    fn ring(&self, vectors: impl Iterator<Item = usize>) {
        let Some(link) = self.sock.link() else { return };
        for vector in vectors {
            link.endpoint.bells.ring(vector);
        }
    }

    fn is_queued(&self) -> bool {
        self.ctl.queue.load(Ordering::Relaxed) != 0
    }

    fn push(&self) -> Option<usize> {
        queue(self.sock.link()?, self.ctl, (self.sock.record().slot(), None), tell::queue)
    }

    fn push_again(&self) -> Option<usize> {
        queue(self.sock.link()?, self.ctl, (self.sock.record().slot(), None), tell::queue_again)
    }

    fn ring_all(&self) {
        self.ring(core::iter::once(COMMON));
    }

    #[inline]
    fn in_halves<T>(&self, halves: impl FnOnce() -> T) -> T {
        handlers::tell_above(ptr::from_ref(self.sock).addr(), halves)
    }
}

/// Puts a connection there, and says whether the owner is to be rung.
type Puts = fn(&CqLine, &ArmLine, usize, Option<&AtomicU32>) -> Push;

/// Puts the connection into the queue that `ctl` names; the vector whose owner is to be rung.
#[inline]
fn queue(
    link: &Link,
    ctl: &Ctl,
    (slot, place): (usize, Option<&AtomicU32>),
    puts: Puts,
) -> Option<usize> {
    let (lane, vector) = queue_place(ctl.queue.load(Ordering::Relaxed))?;
    let of = link.view().lane(lane).vector(vector);
    let rings = puts(&of.queue, &of.arm, slot, place) == Push::Ring;
    rings.then(|| {
        of.arm.rang.store(placing::waker().word(), Ordering::Relaxed);
        vector
    })
}

/// Who waits for bytes.
const fn receiver_of(ctl: &Ctl) -> Armed<'_> {
    Armed { word: &ctl.rx_arm, bells: &ctl.rx_bells }
}

/// Who waits for room.
const fn sender_of(ctl: &Ctl) -> Armed<'_> {
    Armed { word: &ctl.tx_arm, bells: &ctl.tx_bells }
}

const fn words_of(ctl: &Ctl) -> [Armed<'_>; 2] {
    [receiver_of(ctl), sender_of(ctl)]
}

/// There are bytes (or an end, or a mark) for the peer's receiver. The cursor is stored already.
#[inline]
pub fn data(sock: &Sock, link: &Link, ctl: &Ctl, slot: usize) -> Cost {
    tell::data(receiver_of(ctl), &Theirs { sock, link, ctl, slot })
}

/// There is room for the peer's sender.
pub fn space(sock: &Sock, link: &Link, ctl: &Ctl, slot: usize) {
    tell::space(sender_of(ctl), &Theirs { sock, link, ctl, slot });
}

/// Everything about the connection has changed (close, shutdown): whoever waits for anything looks.
pub fn all(sock: &Sock) {
    let (Some(link), Some((_, theirs))) = (sock.link(), sock.sections()) else { return };
    let slot = sock.record().slot();
    data(sock, link, &theirs.ctl, slot);
    space(sock, link, &theirs.ctl, slot);
}

/// The same for a peer on another host: the agent that brings it there does not hear the kernel.
pub fn all_if_of_host(sock: &Sock) {
    if sock.link().is_some_and(Link::is_of_host) {
        all(sock);
    }
}

/// This side ends a direction, and the kernel is about to say so (or has just said it) to all who watch
/// the socket. Those on a futex don't.
pub fn those_on_futexes(sock: &Sock) {
    let (Some(link), Some((_, theirs))) = (sock.link(), sock.sections()) else { return };
    let (ctl, slot) = (&theirs.ctl, sock.record().slot());
    tell::those_on_futexes(words_of(ctl), &Theirs { sock, link, ctl, slot });
}

/// Before a call in a handler of a signal sleeps, as a call below it may have done something, and not told of it yet: the
/// peer's answer may be what the handler waits for.
#[inline]
pub fn for_those_below(sock: &Sock) {
    if handlers::are_running() {
        tell_untold(sock);
    }
}

#[cold]
fn tell_untold(sock: &Sock) {
    let (Some(end), Some(link)) = (sock.end(), sock.link()) else { return };
    let is_halfway = handlers::is_below(ptr::from_ref(sock).addr());
    let (ctl, slot) = (&end.theirs.ctl, sock.record().slot());
    tell::untold(end.untold(), is_halfway, words_of(ctl), &Theirs { sock, link, ctl, slot });
    if is_halfway {
        // Or of other threads of this side.
        let (ctl, nothing) = (&end.mine.ctl, Untold { data: false, room: false });
        tell::untold(nothing, true, words_of(ctl), &Ours { sock, ctl });
    }
}

/// The peer's sender alone.
pub fn sender(sock: &Sock) {
    let (Some(link), Some((_, theirs))) = (sock.link(), sock.sections()) else { return };
    space(sock, link, &theirs.ctl, sock.record().slot());
}

/// The same for other threads of this side that wait in a call on the connection.
pub fn own(sock: &Sock) {
    store_load_fence();
    own_after_fence(sock);
}

/// The same right after a full barrier, behind what they are to look at.
fn own_after_fence(sock: &Sock) {
    let Some((mine, _)) = sock.sections() else { return };
    let ctl = &mine.ctl;
    tell::own(words_of(ctl), &Ours { sock, ctl });
}

/// There is something on the error queue, of which all are told who watch the connection, whatever else they
/// wait for. `fenced`: the peer was told of something ([`data`]) since.
pub fn own_error(sock: &'static Sock, fenced: bool) {
    if fenced {
        own_after_fence(sock);
    } else {
        own(sock);
    }
    instances::look_again(sock);
}
