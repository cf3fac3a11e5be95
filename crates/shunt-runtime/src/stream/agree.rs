//! The steps by which both ends come to agree that a connection is shunted, and the one by which the client takes it back.

use core::sync::atomic::Ordering;

use shunt_engine::handshake::Phase;
use shunt_shm::arena::Record;
use shunt_shm::region::Side;
use shunt_shm::sync::store_load_fence;
use shunt_shm::table::{Place, Ticket};
use shunt_wire::counter::Counter;

use crate::conn::Sock;
use crate::control::endpoint;
use crate::control::link::{self, Link};
use crate::control::peer::Peer;
use crate::point;
use crate::stream::in_doubt::InDoubt;
use crate::threads::signals::SettingUp;

/// When a proposal is taken up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Time {
    /// In accept(2): the program can't have sent anything.
    AtAccept,
    /// Later.
    AtUse,
}

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

/// The phase that the acceptor's answer leads to; `None` without an answer that settles anything.
pub fn answered(sock: &'static Sock) -> Option<Phase> {
    let end = sock.end()?;
    end.uses_proposal();
    let acceptor = end.answerer()?;
    let _setting_up = SettingUp::begin()?;
    // Without the acceptor's doorbells this side could not wake it: then it goes on over TCP, and
    // reads what comes through the ring all the same.
    sock.has_met(sock.link()?.acquaint(acceptor).ok()?);
    point!(promote_met);
    sock.set_phase(Phase::Active);
    sock.count_shunted();
    Some(Phase::Active)
}

/// Takes an open proposal back. False: it has been taken up.
pub fn withdraw(sock: &Sock) -> bool {
    sock.link().is_none_or(|link| withdraw_from(link, sock.record()))
}

/// The same for the connection of a record.
pub fn withdraw_from(link: &Link, record: &Record) -> bool {
    // What the agent has found an acceptor for, it has told that as well.
    let Some(target) = link::Target::of(link) else { return link.side == Side::Server };
    let id = &record.id;
    let place = Place {
        region: link.region,
        slot: record.slot(),
        generation: id.slot_generation.load(Ordering::Relaxed),
    };
    let words = (id.ticket[0].load(Ordering::Relaxed), id.ticket[1].load(Ordering::Relaxed));
    point!(promote_withdraws);
    if !target.table.take(&Ticket::from_words(words, place)) {
        return false;
    }
    point!(promote_withdrawn);
    // The slot stays taken until the connection ends: another thread may still be looking at it.
    link.end(record).withdraws();
    true
}
