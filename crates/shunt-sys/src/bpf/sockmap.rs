//! The accelerator that people use today: connections between programs of one control group are
//! entered in a map when they are established, and what is sent on one is put into the receive
//! queue of the other, past the rest of the stack.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use super::insn::{Assembler, FRAME, R0, R1, R2, R3, R4, R6};
use super::map::{self, Counter};
use super::{CGROUP_SOCK_OPS, PROG_TYPE_SOCK_OPS, ops};
use super::{attach_to_map, link_to_group, load, number};

const MAP_TYPE_SOCKHASH: u32 = 18;
const PROG_TYPE_SK_MSG: u32 = 16;
const SK_MSG_VERDICT: u32 = 7;

const HELPER_SOCK_HASH_UPDATE: i32 = 70;
const HELPER_MSG_REDIRECT_HASH: i32 = 71;

const INGRESS: i32 = 1;
const PASS: i32 = 1;

/// Connection ends that the map has room for.
const ENTRIES: u32 = 1 << 17;

/// Fields of `struct sk_msg_md`.
mod msg {
    pub const REMOTE_IP4: i16 = 20;
    pub const LOCAL_IP4: i16 = 24;
    pub const REMOTE_PORT: i16 = 60;
    pub const LOCAL_PORT: i16 = 64;
}

/// The key of a connection end, on the stack: own address, other address, own port, other port.
const KEY: i16 = -16;
const KEY_SIZE: u32 = 16;

/// Programs that are attached to a control group as long as this value lives.
#[derive(Debug)]
pub struct Sockmap {
    entered: Counter,
    _sockets: OwnedFd,
    _link: OwnedFd,
}

impl Sockmap {
    /// For the IPv4 connections that programs of this control group make from now on.
    ///
    /// # Errors
    /// Those of bpf(2): `EPERM` without the privilege.
    pub fn attach(group: BorrowedFd<'_>) -> io::Result<Self> {
        let sockets = map::create(MAP_TYPE_SOCKHASH, KEY_SIZE, 4, ENTRIES, 0)?;
        let entered = Counter::new()?;
        let sender = load(PROG_TYPE_SK_MSG, &redirect(number(&sockets)))?;
        attach_to_map(&sender, &sockets, SK_MSG_VERDICT)?;
        let maker = load(PROG_TYPE_SOCK_OPS, &enter(number(&sockets), number(&entered.map)))?;
        let link = link_to_group(&maker, group, CGROUP_SOCK_OPS)?;
        Ok(Self { entered, _sockets: sockets, _link: link })
    }

    /// Connection ends that were ever entered.
    ///
    /// # Errors
    /// Those of bpf(2).
    pub fn entered(&self) -> io::Result<u64> {
        self.entered.get()
    }
}

/// Runs when a connection is established, at either end.
fn enter(sockets: u32, entered: u32) -> Vec<u64> {
    Assembler::default()
        .copy(R6, R1)
        .load(R2, R6, ops::OP)
        .skip_one_if(R2, ops::ACTIVE_ESTABLISHED)
        .end_unless(R2, ops::PASSIVE_ESTABLISHED)
        .load(R2, R6, ops::FAMILY)
        .end_unless(R2, libc::AF_INET)
        .load(R2, R6, ops::LOCAL_IP4)
        .store(FRAME, KEY, R2)
        .load(R2, R6, ops::REMOTE_IP4)
        .store(FRAME, KEY + 4, R2)
        .load(R2, R6, ops::LOCAL_PORT)
        .store(FRAME, KEY + 8, R2)
        // The kernel has the one port in host order and the other in network order.
        .load(R2, R6, ops::REMOTE_PORT)
        .swap(R2)
        .store(FRAME, KEY + 12, R2)
        .copy(R1, R6)
        .set_map(R2, sockets)
        .copy(R3, FRAME)
        .plus(R3, KEY.into())
        .set(R4, 0)
        .call(HELPER_SOCK_HASH_UPDATE)
        .end_unless(R0, 0)
        .count(entered)
        .finish(1)
}

/// Runs when something is sent: to the other end if that is in the map, else over TCP.
fn redirect(sockets: u32) -> Vec<u64> {
    Assembler::default()
        .copy(R6, R1)
        .load(R2, R6, msg::REMOTE_IP4)
        .store(FRAME, KEY, R2)
        .load(R2, R6, msg::LOCAL_IP4)
        .store(FRAME, KEY + 4, R2)
        .load(R2, R6, msg::REMOTE_PORT)
        .swap(R2)
        .store(FRAME, KEY + 8, R2)
        .load(R2, R6, msg::LOCAL_PORT)
        .store(FRAME, KEY + 12, R2)
        .copy(R1, R6)
        .set_map(R2, sockets)
        .copy(R3, FRAME)
        .plus(R3, KEY.into())
        .set(R4, INGRESS)
        .call(HELPER_MSG_REDIRECT_HASH)
        .finish(PASS)
}
