//! Which two sockets of this host are the ends of one connection, whatever was rewritten between them.
//!
//! A program at a control group writes a TCP option into the SYN of sockets that are *offered*, and into the
//! answer of listeners that are *awaiting*: each names its own socket by its cookie, and both notes are compared before
//! a pair is entered. So a pair is made only of a socket whose SYN a listener of this host has seen, and which has itself
//! received that listener's answer: what other hosts, or raw sockets, write leads to no pair, or to none but of those who
//! talk to each other. SMC marks its connections in the same place (RFC 7609 section 3.1).

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use super::insn::{Assembler, FRAME, R0, R1, R2, R3, R4, R5, R6, R7};
use super::map::Hash;
use super::sock_ops::{ACK, CALL_FOR_OPTIONS, IN_SYN, SYN, helper};
use super::{CGROUP_SOCK_OPS, PROG_TYPE_SOCK_OPS, link_to_group, load, ops};
use crate::sockinfo::OFFERED;

/// The option: kind 254 (experiments, RFC 4727), length, magic (RFC 6994), the tag of one agent, a cookie.
const LENGTH: i32 = 16;
const MAGIC: u16 = 0x5348; // "SH"
/// Kind, length and magic as they lie in memory.
const HEAD: u32 = u32::from_ne_bytes([254, 16, MAGIC.to_be_bytes()[0], MAGIC.to_be_bytes()[1]]);
/// The same to look for it: its length is that of what is compared.
const SOUGHT: u32 = u32::from_ne_bytes([254, 4, MAGIC.to_be_bytes()[0], MAGIC.to_be_bytes()[1]]);

/// Places on the stack: a cookie of this end, another one, the option.
const MINE: i16 = -8;
const OTHER: i16 = -16;
const OPTION: i16 = -32;
const TAG: i16 = OPTION + 4;
const NAMED: i16 = OPTION + 8;

/// Value of an offered socket: whom its SYN has reached last, and the socket with which it was paired.
type Offered = [u64; 2];
const REACHED: i16 = 0;
const PAIRED: i16 = 8;
/// In the place of that socket: none yet, and none though the connection is made.
const CONNECTING: u64 = 0;
const UNPAIRED: u64 = u64::MAX;

/// What has come of a connection that an offered socket makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Made {
    /// It is not made yet.
    Connecting,
    /// It leads to no awaiting listener of this host.
    Elsewhere,
    /// Its other end is the socket with this cookie.
    To(u64),
}

/// The program and what it knows, as long as this value lives.
#[derive(Debug)]
pub struct Marks {
    offered: Hash<Offered>,
    awaiting: Hash<u32>,
    /// Acceptors' sockets and the offered ones at the other end.
    pairs: Hash<u64>,
    _link: OwnedFd,
}

impl Marks {
    /// For sockets that programs of this control group, or one below it, make. `tag` tells this host, and this agent,
    /// from others; there is room for so many offers and listeners at a time.
    ///
    /// # Errors
    /// Those of bpf(2): `EPERM` without the privilege, `EINVAL` before Linux 5.10.
    pub fn attach(
        group: BorrowedFd<'_>,
        tag: u32,
        offers: u32,
        listeners: u32,
    ) -> io::Result<Self> {
        let offered = Hash::new(offers)?;
        let awaiting = Hash::new(listeners)?;
        let pairs = Hash::new(offers)?;
        let maps =
            Maps { offered: offered.number(), awaiting: awaiting.number(), pairs: pairs.number() };
        let program = load(PROG_TYPE_SOCK_OPS, &program(&maps, tag))?;
        let link = link_to_group(&program, group, CGROUP_SOCK_OPS)?;
        Ok(Self { offered, awaiting, pairs, _link: link })
    }

    /// The SYN of the socket with this cookie is to be marked. Before it connects.
    ///
    /// # Errors
    /// Those of bpf(2).
    pub fn offer(&self, socket: u64) -> io::Result<()> {
        self.offered.put(socket, &[0, CONNECTING])
    }

    /// What has come of it; `None` when it was not offered, or is not any more.
    #[must_use]
    pub fn made(&self, socket: u64) -> Option<Made> {
        self.offered.get(socket).map(|[_, paired]| match paired {
            CONNECTING => Made::Connecting,
            UNPAIRED => Made::Elsewhere,
            accepted => Made::To(accepted),
        })
    }

    /// An offer is over, and so is what has come of it.
    pub fn withdraw(&self, socket: u64) {
        if let Some([_, paired]) = self.offered.take(socket)
            && self.pairs.get(paired) == Some(socket)
        {
            self.pairs.remove(paired);
        }
    }

    /// The same of one that was paired with the socket `accepted`.
    pub fn withdraw_pair(&self, socket: u64, accepted: u64) {
        self.offered.remove(socket);
        self.pairs.remove(accepted);
    }

    /// The listener with this cookie answers marks. Before it listens.
    ///
    /// # Errors
    /// Those of bpf(2).
    pub fn await_at(&self, listener: u64) -> io::Result<()> {
        self.awaiting.put(listener, &1)
    }

    /// It does not any more: but as long as it lives its answers go by this program.
    pub fn leave(&self, listener: u64) {
        self.awaiting.remove(listener);
    }

    /// The offered socket at the other end of the connection that was accepted as the socket with this cookie.
    #[must_use]
    pub fn other_end(&self, accepted: u64) -> Option<u64> {
        self.pairs.get(accepted)
    }
}

struct Maps {
    offered: u32,
    awaiting: u32,
    pairs: u32,
}

impl Assembler {
    /// Puts the option on the stack; to the end if there is none with this tag.
    fn read_option(self, tag: u32, flags: i32) -> Self {
        self.clear_option()
            .store_value(FRAME, OPTION, SOUGHT)
            .load_option(OPTION, LENGTH, flags)
            .end_unless(R0, LENGTH)
            .load(R1, FRAME, TAG)
            .set_wide(R2, tag.into())
            .end_unless_same(R1, R2)
    }

    fn clear_option(self) -> Self {
        self.set(R1, 0).store_wide(FRAME, OPTION, R1).store_wide(FRAME, NAMED, R1)
    }

    /// Sends the option with the cookie on the stack.
    fn write_option(self, tag: u32, cookie: i16) -> Self {
        self.store_value(FRAME, OPTION, HEAD)
            .store_value(FRAME, TAG, tag)
            .load_wide(R1, FRAME, cookie)
            .store_wide(FRAME, NAMED, R1)
            .store_option(OPTION, LENGTH)
    }

    /// Says so to whoever will accept the socket: before accept(2) can return it, as the kernel has it locked here.
    fn say_paired(self) -> Self {
        self.store_value(FRAME, OPTION, OFFERED)
            .copy(R1, R6)
            .set(R2, libc::IPPROTO_TCP)
            .set(R3, libc::TCP_SYNCNT)
            .copy(R4, FRAME)
            .plus(R4, OPTION.into())
            .set(R5, 4)
            .call(helper::SET_OPTION)
    }
}

fn program(maps: &Maps, tag: u32) -> Vec<u64> {
    Assembler::default()
        .copy(R6, R1)
        .load(R7, R6, ops::OP)
        .go_if(R7, ops::OPTION_LENGTH, "length")
        .go_if(R7, ops::WRITE_OPTION, "write")
        .go_if(R7, ops::CONNECT, "connect")
        .go_if(R7, ops::LISTEN, "listen")
        .go_if(R7, ops::ACTIVE_ESTABLISHED, "made")
        .end_unless(R7, ops::PASSIVE_ESTABLISHED)
        // Whatever the flags say: another agent's program may have been here and taken them back.
        .cookie(MINE)
        .find(maps.pairs, MINE)
        .go_if(R0, 0, "accepted")
        .say_paired()
        .at("accepted")
        // What is accepted has its listener's flags.
        .load(R2, R6, ops::CALL_FLAGS)
        .end_unless_any(R2, CALL_FOR_OPTIONS)
        .stop_calls()
        .end()
        .at("connect")
        .cookie(MINE)
        .find(maps.offered, MINE)
        .end_if(R0, 0)
        .go("call")
        .at("listen")
        .cookie(MINE)
        .find(maps.awaiting, MINE)
        .end_if(R0, 0)
        .at("call")
        .begin_calls()
        .end()
        .at("length")
        .packet()
        .go_if(R2, SYN, "own")
        .end_unless(R2, SYN | ACK)
        .read_option(tag, IN_SYN)
        .go("reserve")
        // Another program may have asked to be called for this socket.
        .at("own")
        .cookie(MINE)
        .find(maps.offered, MINE)
        .end_if(R0, 0)
        .at("reserve")
        .reserve(LENGTH)
        .end()
        .at("write")
        .packet()
        .go_if(R2, SYN, "ask")
        .end_unless(R2, SYN | ACK)
        .read_option(tag, IN_SYN)
        .find(maps.offered, NAMED)
        .end_if(R0, 0)
        .copy(R7, R0)
        // The cookie of what will be accepted: the kernel hands it on.
        .cookie(OTHER)
        .store_wide(R7, REACHED, R0)
        .write_option(tag, OTHER)
        .end()
        .at("ask")
        .cookie(MINE)
        .find(maps.offered, MINE)
        .end_if(R0, 0)
        .clear_option()
        .write_option(tag, MINE)
        .end()
        .at("made")
        .cookie(MINE)
        .find(maps.offered, MINE)
        .end_if(R0, 0)
        .copy(R7, R0)
        .stop_calls()
        .set_wide(R1, UNPAIRED)
        .store_wide(R7, PAIRED, R1)
        .read_option(tag, 0)
        .load_wide(R1, FRAME, NAMED)
        .load_wide(R2, R7, REACHED)
        .end_unless_same(R1, R2)
        .set_map(R1, maps.pairs)
        .copy(R2, FRAME)
        .plus(R2, NAMED.into())
        .copy(R3, FRAME)
        .plus(R3, MINE.into())
        .set(R4, 0)
        .call(helper::MAP_UPDATE)
        .end_unless(R0, 0)
        .load_wide(R1, FRAME, NAMED)
        .store_wide(R7, PAIRED, R1)
        .finish(1)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use rustix::net::{AddressFamily, SocketType, bind, connect, listen, socket};

    use super::*;
    use crate::cgroup;
    use crate::sockinfo::{cookie, local_addr, set_syn_count, syn_count};

    fn marks(tag: u32) -> Option<Marks> {
        let root = File::open(cgroup::root()?).ok()?;
        match Marks::attach(root.as_fd(), tag, 16, 16) {
            Ok(marks) => Some(marks),
            // Not root, or a kernel without them; as root on a kernel that has them nothing else will do.
            Err(e) if e.raw_os_error() == Some(libc::EPERM) => None,
            Err(e) => panic!("{e}"),
        }
    }

    fn tcp() -> OwnedFd {
        socket(AddressFamily::INET, SocketType::STREAM, None).unwrap()
    }

    fn listener(marks: &Marks, awaiting: bool) -> TcpListener {
        let socket = tcp();
        bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        if awaiting {
            marks.await_at(cookie(&socket).unwrap()).unwrap();
        }
        listen(&socket, 8).unwrap();
        socket.into()
    }

    fn client(to: &TcpListener, offered_to: Option<&Marks>) -> TcpStream {
        let socket = tcp();
        if let Some(marks) = offered_to {
            marks.offer(cookie(&socket).unwrap()).unwrap();
        }
        connect(&socket, &SocketAddr::from(local_addr(to).unwrap())).unwrap();
        socket.into()
    }

    #[test]
    fn both_ends_of_a_marked_connection_are_known() {
        let Some(marks) = marks(1) else { return };
        let awaiting = listener(&marks, true);
        let plain = listener(&marks, false);
        for way in ["one end", "both ends"].repeat(4) {
            let offered = client(&awaiting, Some(&marks));
            let (accepted, _) = awaiting.accept().unwrap();
            let (here, there) = (cookie(&offered).unwrap(), cookie(&accepted).unwrap());
            assert_eq!(marks.made(here), Some(Made::To(there)));
            assert_eq!(marks.other_end(there), Some(here));
            // Who has accepted it sees that without asking anybody.
            assert_eq!(syn_count(&accepted), Some(OFFERED));
            set_syn_count(&accepted, syn_count(&awaiting).unwrap());
            assert!(syn_count(&accepted) < Some(OFFERED));
            if way == "one end" {
                marks.withdraw(here);
            } else {
                marks.withdraw_pair(here, there);
            }
            assert_eq!((marks.made(here), marks.other_end(there)), (None, None));

            let offered = client(&plain, Some(&marks));
            assert_eq!(marks.made(cookie(&offered).unwrap()), Some(Made::Elsewhere));
            marks.withdraw(cookie(&offered).unwrap());
            let unmarked = client(&awaiting, None);
            let (accepted, _) = awaiting.accept().unwrap();
            assert!(syn_count(&accepted) < Some(OFFERED));
            assert_eq!(marks.made(cookie(&unmarked).unwrap()), None);
            assert_eq!(marks.other_end(cookie(&accepted).unwrap()), None);
        }
    }

    #[test]
    fn an_agents_program_does_not_know_the_marks_of_another_one() {
        let (Some(one), Some(other)) = (marks(2), marks(3)) else { return };
        let awaiting = listener(&one, true);
        let offered = client(&awaiting, Some(&other));
        let (accepted, _) = awaiting.accept().unwrap();
        // Whether the listener answers to the other one's marks, too, is nothing to this one.
        assert_eq!(one.made(cookie(&offered).unwrap()), None);
        assert_eq!(one.other_end(cookie(&accepted).unwrap()), None);
        // And neither keeps the acceptor from hearing of the other's.
        for marks in [&one, &other] {
            let awaiting = listener(marks, true);
            let _offered = client(&awaiting, Some(marks));
            assert_eq!(syn_count(awaiting.accept().unwrap().0), Some(OFFERED));
        }
    }
}
