//! Telling the peer that there is something to look at.

use core::sync::atomic::Ordering;

use shunt_shm::cq::Push;
use shunt_shm::doorbell::{ON_FUTEX, ON_QUEUE, bells, futex_wake, take, take_futex};
use shunt_shm::region::{Ctl, queue_place};
use shunt_shm::sync::{AtomicU32, store_load_fence};

use crate::conn::Sock;
use crate::control::link::Link;
use crate::control::peer::Peer;
use crate::epoll::tell;
use crate::system::errno::KeepErrno;
use crate::threads::signals::SettingUp;

/// What a notification cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cost {
    /// A system call.
    Rung,
    /// None.
    Saved,
}

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
        let peer = sock.link()?.acquaint(sock.peer_endpoint()?).ok()?;
        sock.has_met(peer);
        Some(peer)
    })
}

fn wake(sock: &Sock, word: &AtomicU32, asked: u32) -> Cost {
    if asked & ON_FUTEX != 0 {
        futex_wake(word, u32::MAX);
    }
    if let Some(peer) = known_peer(sock) {
        bells(asked).for_each(|vector| peer.ring(vector));
    }
    Cost::Rung
}

/// Puts the connection into the queue that `ctl` names; the vector whose owner is to be rung.
fn queue(link: &Link, ctl: &Ctl, slot: usize) -> Option<usize> {
    let (lane, vector) = queue_place(ctl.queue.load(Ordering::Relaxed))?;
    let vectors = &link.view().lane(lane).vectors[vector];
    (vectors.queue.push(&vectors.arm, slot) == Push::Ring).then_some(vector)
}

fn push(sock: &Sock, link: &Link, ctl: &Ctl, slot: usize) -> Cost {
    // Before the push, with which it is handed over.
    if let Some((lane, vector)) = queue_place(ctl.queue.load(Ordering::Relaxed))
        && let Some(place) = link.view().lane(lane).vectors[vector].queue.next_place(slot)
    {
        let mine = link.view().section(slot, link.side);
        mine.prod.place.store(place, Ordering::Relaxed);
    }
    let Some(vector) = queue(link, ctl, slot) else { return Cost::Saved };
    if let Some(peer) = known_peer(sock) {
        peer.ring(vector);
    }
    Cost::Rung
}

/// There are bytes (or an end, or a mark) for the peer's receiver. The cursor is stored already.
#[inline]
pub fn data(sock: &Sock, link: &Link, ctl: &Ctl, slot: usize) -> Cost {
    // SYNC POINT word-arm, and the same for the queue's registration: our cursor before this look.
    store_load_fence();
    let mut cost = Cost::Saved;
    if ctl.queue.load(Ordering::Relaxed) != 0 {
        cost = push(sock, link, ctl, slot);
    }
    let asked = take(&ctl.rx_arm);
    if asked != 0 {
        cost = wake(sock, &ctl.rx_arm, asked);
    }
    cost
}

/// There is room for the peer's sender.
pub fn space(sock: &Sock, link: &Link, ctl: &Ctl, slot: usize) {
    store_load_fence();
    let asked = take(&ctl.tx_arm);
    if asked == 0 {
        return;
    }
    if asked & ON_QUEUE != 0 {
        push(sock, link, ctl, slot);
    }
    if asked & !ON_QUEUE != 0 {
        wake(sock, &ctl.tx_arm, asked);
    }
}

/// Everything about the connection has changed (close, shutdown): whoever waits for anything looks.
pub fn all(sock: &Sock) {
    let (Some(link), Some((_, theirs))) = (sock.link(), sock.sections()) else { return };
    let slot = sock.record().slot();
    data(sock, link, &theirs.ctl, slot);
    space(sock, link, &theirs.ctl, slot);
}

/// This side ends a direction, and the kernel is about to say so (or has just said it) to all who watch
/// the socket. Those on a futex don't.
pub fn those_on_futexes(sock: &Sock) {
    let Some((_, theirs)) = sock.sections() else { return };
    // SYNC POINT word-arm: the announcement before the look.
    store_load_fence();
    for word in [&theirs.ctl.rx_arm, &theirs.ctl.tx_arm] {
        if take_futex(word) {
            futex_wake(word, u32::MAX);
        }
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
    for word in [&mine.ctl.rx_arm, &mine.ctl.tx_arm] {
        let asked = take(word);
        if asked == 0 {
            continue;
        }
        if asked & ON_FUTEX != 0 {
            futex_wake(word, u32::MAX);
        }
        if let Some(link) = sock.link() {
            let slot = sock.record().slot();
            let queued = (asked & ON_QUEUE != 0).then(|| queue(link, &mine.ctl, slot)).flatten();
            let vectors = bells(asked).chain(queued);
            for bell in vectors.filter_map(|vector| link.endpoint.bells.get(vector)) {
                shunt_shm::doorbell::ring(bell.borrow());
            }
        }
    }
}

/// There is something on the error queue, of which all are told who watch the connection, whatever else they
/// wait for. `fenced`: the peer was told of something ([`data`]) since.
pub fn own_error(sock: &'static Sock, fenced: bool) {
    if fenced {
        own_after_fence(sock);
    } else {
        own(sock);
    }
    tell::look_again(sock);
}
