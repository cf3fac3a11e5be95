//! The servers, and what they answer to SYNs.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use shunt_smc::wire::Eid;
use shunt_sys::bpf::{Answer, SmcMarks};
use shunt_sys::sockinfo;

use crate::reach::Reach;

/// What servers answer to SYNs that were marked ([`SmcMarks`]).
pub trait Marks: fmt::Debug + Send + Sync {
    /// The answer to the SYN of this socket.
    fn answer(&self, socket: BorrowedFd<'_>) -> Answer;

    /// It is not asked for any more.
    fn forget(&self, socket: BorrowedFd<'_>);
}

impl Marks for SmcMarks {
    fn answer(&self, socket: BorrowedFd<'_>) -> Answer {
        let answer = sockinfo::cookie(socket).ok().and_then(|cookie| self.answer(cookie));
        answer.unwrap_or(Answer::None)
    }

    fn forget(&self, socket: BorrowedFd<'_>) {
        if let Ok(cookie) = sockinfo::cookie(socket) {
            self.withdraw(cookie);
        }
    }
}

/// Servers that speak the kernel's SMC-R.
#[derive(Clone, Debug)]
pub struct Servers {
    /// Where they listen.
    pub at: Vec<Reach>,
    /// The groups in which this host is: one to eight.
    pub eids: Vec<Eid>,
    /// What they answer to SYNs.
    pub marks: Arc<dyn Marks>,
}

impl Servers {
    /// As which a server is named, by the most exact name of several. `None`: it is not.
    pub(crate) fn of(&self, server: SocketAddr) -> Option<Reach> {
        let named = self.at.iter().filter(|reach| reach.holds(server));
        named.max_by_key(|reach| (reach.bits, reach.at.port != 0)).copied()
    }
}
