//! Connections to servers that speak the kernel's SMC-R: the agent marks the socket's SYN before it connects, and is the acceptor
//! of its proposal.
//!
//! Such a server awaits the agent's messages on the TCP connection, and takes whatever comes first for one. So a call that would move
//! bytes waits until the agent has answered: a moment, also on a socket that does not block. From then on the bytes go into the
//! ring, or the connection is TCP and the server awaits nothing.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use rustix::thread::nanosleep;
use shunt_engine::handshake::Phase;
use shunt_wire::reason::Reason;

use crate::conn::Conn;
use crate::control::link::Link;
use crate::stream::decline::decline;
use crate::stream::promote;
use crate::system::abi;
use crate::system::clock;
use crate::system::errno::KeepErrno;

/// How long agent and server may take, in nanoseconds: a little longer than each of them waits for the other one.
const PATIENCE: u64 = 45_000_000_000;
/// Time between two looks, in nanoseconds: at first, and at the most.
const PAUSES: (i64, i64) = (20_000, 1_000_000);

/// What comes of a wait for the answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Awaited {
    /// The connection is where its phase says; or it failed, and the kernel says how.
    Settled,
    /// The kernel is connecting it still, and the call does not wait for that.
    Connecting,
}

/// Waits for the answer to a proposal to such a server. `waits`: also for the kernel, where it has not made the connection yet. `None`:
/// it leads elsewhere.
#[cold]
pub fn await_answer(conn: Conn, waits: bool) -> Option<Awaited> {
    let is_marked = conn.sock().link().is_some_and(Link::is_to_kernel);
    is_marked.then(|| wait(conn, waits))
}

fn wait(conn: Conn, waits: bool) -> Awaited {
    let _keep = KeepErrno::new();
    let (mut until, (mut pause, longest)) = (None, PAUSES);
    loop {
        if promote::advance(conn) != Phase::Proposed {
            return Awaited::Settled;
        }
        match state(conn) {
            State::Failed => return Awaited::Settled,
            State::Connecting if !waits => return Awaited::Connecting,
            State::Connecting => {}
            State::Connected => {
                let until = *until.get_or_insert_with(|| clock::now() + PATIENCE);
                let is_lost = conn.sock().link().is_none_or(Link::is_cut_off);
                if is_lost || clock::now() > until {
                    give_up(conn);
                    return Awaited::Settled;
                }
            }
        }
        // A signal makes it shorter.
        let _ = nanosleep(&Timespec { tv_sec: 0, tv_nsec: pause });
        pause = (pause * 2).min(longest);
    }
}

/// How far the kernel is with a connection.
enum State {
    Connecting,
    Connected,
    Failed,
}

fn state(conn: Conn) -> State {
    let Some(fd) = conn.kernel() else { return State::Failed };
    let mut asked = [PollFd::from_borrowed_fd(abi::borrow(fd), PollFlags::OUT)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    match poll(&mut asked, Some(&now)) {
        Ok(0) | Err(Errno::INTR) => State::Connecting,
        Ok(_) if asked[0].revents() == PollFlags::OUT => State::Connected,
        _ => State::Failed,
    }
}

/// There is no agent any more that would speak to the server, which goes on waiting for it: both ends hear of an end.
fn give_up(conn: Conn) {
    if let Some(fd) = conn.kernel() {
        let _ = shutdown(abi::borrow(fd), Shutdown::Both);
    }
    decline(conn, Reason::NoAgent);
}
