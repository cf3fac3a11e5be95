//! A client, as the server knows it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::Pid;
use shunt_inspector::Claimant;
use shunt_sys::process::has_exited;
use shunt_sys::seqpacket::{self, PeerCred};
use shunt_wire::agent::{MAX_MESSAGE, encode};
use shunt_wire::reason::Reason;

use crate::allowance::{Allowance, INTRODUCTION_COST, REPORT_COST};
use crate::party::{Account, Origin};
use crate::state::{Answer, Role};

/// Whether a client's packets are taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Attention {
    /// As they come.
    Heard,
    /// When its allowance has grown.
    Paused,
    /// When the inspector has received the one that is next.
    Inspected,
    /// The same, and it is known by now that the client has left.
    Leaving,
}

/// How a client has come in.
#[derive(Debug)]
pub(super) enum Entrance {
    /// By the socket, as everybody.
    Accepted,
    /// By an invitation that is not used yet, and for which this process has asked.
    Invited(i32),
    /// By an invitation; this is the process.
    Arrived(OwnedFd),
}

impl Entrance {
    /// The process, where the connection does not say who it is.
    pub(super) fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Arrived(pidfd) => Some(pidfd.as_fd()),
            Self::Accepted | Self::Invited(_) => None,
        }
    }
}

/// A connection to the agent's socket.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) socket: OwnedFd,
    pub(super) cred: PeerCred,
    pub(super) origin: Origin,
    pub(super) netns: u64,
    pub(super) role: Role,
    pub(super) entrance: Entrance,
    /// The process that has sent the packet that is next, of one that was invited.
    pub(super) speaker: Option<Pid>,
    pub(super) since: Instant,
    pub(super) allowance: Allowance,
    pub(super) attention: Attention,
}

impl Client {
    /// What its next message costs itself, and what all clients of its account.
    pub(super) fn cost(&self) -> (u32, u32) {
        match self.role {
            Role::Nobody => (1, INTRODUCTION_COST),
            Role::Tool | Role::Capture { .. } => (REPORT_COST, REPORT_COST),
            Role::Endpoint(_) => (1, 1),
        }
    }

    pub(super) fn claimant(&self) -> Claimant<Account> {
        Claimant { process: self.cred.pid, account: self.origin.account.clone() }
    }

    /// True while the agent does not know who it is, and is to hear of that soon.
    pub(super) fn is_nobody(&self) -> bool {
        self.role == Role::Nobody && !matches!(self.entrance, Entrance::Invited(_))
    }

    /// True while the kernel tells who has sent its packets.
    pub(super) const fn is_of_invitation(&self) -> bool {
        !matches!(self.entrance, Entrance::Accepted)
    }

    /// On whose account the invitation goes.
    pub(super) fn inviter(&self) -> i32 {
        match self.entrance {
            Entrance::Invited(by) => by,
            Entrance::Accepted | Entrance::Arrived(_) => self.cred.pid,
        }
    }

    /// The process that speaks is the one that has arrived.
    pub(super) fn is_itself(&self) -> bool {
        match &self.entrance {
            Entrance::Arrived(pidfd) => {
                self.speaker.map(Pid::as_raw_nonzero).map(std::num::NonZero::get)
                    == Some(self.cred.pid)
                    && !has_exited(pidfd)
            }
            Entrance::Accepted | Entrance::Invited(_) => true,
        }
    }

    /// Sends an answer, without waiting for it to be read.
    pub(super) fn send(&self, answer: &Answer) -> Result<(), End> {
        let mut buf = [0; MAX_MESSAGE];
        let Ok(bytes) = encode(&answer.reply, &mut buf) else {
            return Err(End::Dropped("its answer is too long"));
        };
        let fds: Vec<_> = answer.fds.iter().map(|fd| fd.as_fd()).collect();
        match seqpacket::send(&self.socket, bytes, &fds, Duration::ZERO) {
            Ok(()) => Ok(()),
            Err(Errno::AGAIN) => Err(End::Dropped("it does not read its answers")),
            // Somebody of this user's has too many under way, who need not be this client.
            Err(Errno::TOOMANYREFS) if !fds.is_empty() => {
                self.send(&Answer::refused(Reason::NoResources))
            }
            Err(Errno::PIPE | Errno::CONNRESET) => Err(End::Left),
            Err(_) => Err(End::Dropped("its answer could not be sent")),
        }
    }
}

/// What an account has of the agent.
#[derive(Debug)]
pub(super) struct Share {
    pub(super) clients: usize,
    pub(super) allowance: Allowance,
}

/// Why a client's connection ends.
pub(super) enum End {
    /// It closed.
    Left,
    /// The agent drops it.
    Dropped(&'static str),
}
