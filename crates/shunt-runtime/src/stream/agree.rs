//! The steps by which both ends come to agree that a connection is shunted, and the one by which the client takes it back.

use core::sync::atomic::Ordering;

use shunt_engine::handshake::course::Time;
use shunt_engine::handshake::{Phase, proposals};
use shunt_shm::arena::Record;
use shunt_shm::region::Side;
use shunt_shm::sync::store_load_fence;
use shunt_wire::agent::EndpointId;
use shunt_wire::counter::Counter;

use crate::conn::Sock;
use crate::control::endpoint;
use crate::control::link::{self, Link};
use crate::control::peer::Peer;
use crate::point;
use crate::stream::acquaint;
use crate::stream::in_doubt::InDoubt;
use crate::threads::signals::SettingUp;

/// The connection has its place in a link group from now on.
pub fn settle(
    sock: &'static Sock,
    link: &'static Link,
    side: Side,
    (slot, generation): (usize, u32),
) {
    sock.activate(link, side, slot, generation);
    sock.set_link(link);
    // The link before the flag: shutdown does it in the other order, so one of us announces it.
    store_load_fence();
    if let Some(end) = sock.end() {
        end.announce_shut();
    }
    // Nobody watches the connection here yet, whoever watched the one before in this slot.
    link.watch[slot].store(0, Ordering::Release);
}

/// Says to the client that its connection is taken up.
pub fn answer(
    sock: &'static Sock,
    link: &'static Link,
    (slot, generation): (usize, u32),
    peer: &'static Peer,
    time: Time,
) {
    settle(sock, link, Side::Server, (slot, generation));
    sock.set_peer(peer);
    let end = link.end(sock.record());
    // All that this side will send goes through the ring then.
    if end.prepare_answer(generation, link.endpoint.id, time == Time::AtAccept) {
        endpoint::count(Counter::Promotions, 1);
    }
    let _in_doubt = InDoubt::on(sock);
    point!(promote_settled);
    end.answer();
    point!(promote_answered);
    sock.set_phase(Phase::Active);
    sock.count_shunted();
}

/// Gets the doorbells of the acceptor that has answered, and says so to it. False: not now, or not at all.
pub fn meet(sock: &'static Sock, acceptor: EndpointId) -> bool {
    let Some(_setting_up) = SettingUp::begin() else { return false };
    let Ok(peer) = acquaint::acquaint(sock, acceptor) else { return false };
    point!(promote_acquainted);
    sock.has_met(peer);
    point!(promote_met);
    true
}

/// Takes an open proposal back. False: it has been taken up.
pub fn withdraw(sock: &Sock) -> bool {
    sock.link().is_none_or(|link| withdraw_from(link, sock.record()))
}

/// The same for the connection of a record.
pub fn withdraw_from(link: &Link, record: &Record) -> bool {
    // What the agent has found an acceptor for, it has told that as well.
    let Some(target) = link::Target::of(link) else { return link.side == Side::Server };
    point!(promote_withdraws);
    let taken = || point!(promote_withdrawn);
    let is_withdrawn = proposals::withdraw(&target.table, link.region, link.end(record), taken);
    if is_withdrawn {
        link.tell_of_proposal();
    }
    is_withdrawn
}
