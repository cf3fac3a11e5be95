//! One connection to a server that speaks the kernel's SMC-R, from its proposal here to the worker that has it.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use shunt_far::worker::Name as LinkName;
use shunt_shm::region::Side;
use shunt_shm::sync::Ordering;
use shunt_smc::wire::clc::{Accept, Diagnosis, End};
use shunt_wire::clc::Proposal;
use shunt_wire::reason::Reason;

use super::agreement::Agreement;
use super::socket::Socket;
use crate::mirror::Place;

/// How long a server's answer to a SYN is looked for when the connection is made. The kernel tells of that a moment before the program at
/// the control group has seen the answer.
const ANSWER: Duration = Duration::from_secs(1);
/// Time between two looks for it.
const LOOK_FOR_ANSWER: Duration = Duration::from_millis(1);

/// How far it is.
#[derive(Debug)]
pub(crate) enum Stage {
    /// The TCP connection is being made: its socket.
    Connecting(Socket),
    /// The server was asked.
    Agreeing(Box<Agreement>),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Talk {
    pub(crate) place: Place,
    /// Number of the use of its place in the region.
    pub(crate) use_: u32,
    pub(crate) server: SocketAddr,
    pub(crate) stage: Stage,
    /// The TCP connection is made, and the server's answer to its SYN is not seen yet.
    pub(crate) unanswered: Option<Unanswered>,
    /// Its place in a link group, once the server has accepted.
    pub(crate) at: Option<(LinkName, usize)>,
    /// The server has accepted it on a link that is not up here yet.
    pub(crate) waits: Option<Accept>,
    /// The server has accepted it with a first contact.
    pub(crate) is_first: bool,
    /// This host's end, until the server was told of it.
    pub(crate) end: Option<End>,
    /// The connection stays on TCP.
    pub(crate) declined: Option<Declined>,
}

/// When to look for an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unanswered {
    look_at: Duration,
    /// From then on there is none.
    until: Duration,
}

/// That a connection stays on TCP, and why.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Declined {
    pub(crate) diagnosis: Diagnosis,
    /// The server has said so, and not this host.
    pub(crate) is_peers: bool,
    /// The server gives the link group up.
    pub(crate) is_out_of_step: bool,
}

impl Talk {
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        match &self.stage {
            Stage::Connecting(socket) => socket.as_fd(),
            Stage::Agreeing(agreement) => agreement.fd(),
        }
    }

    /// What to wait for.
    pub(crate) fn wants(&self) -> PollFlags {
        match &self.stage {
            Stage::Connecting(_) if self.unanswered.is_some() => PollFlags::empty(),
            Stage::Connecting(_) => PollFlags::OUT,
            Stage::Agreeing(agreement) => agreement.wants(),
        }
    }

    /// Its program still has the connection.
    pub(crate) fn is_wanted(&self) -> bool {
        let mine = &self.place.section(Side::Client).setup;
        let is_its = mine.generation.load(Ordering::Relaxed) == self.use_
            && mine.done.load(Ordering::Acquire) == 0;
        is_its && mine.state.load(Ordering::Acquire) != Proposal::Withdrawn as u32
    }

    pub(crate) fn deadline(&self) -> Option<Duration> {
        match &self.stage {
            Stage::Connecting(_) => self.unanswered.map(|unanswered| unanswered.look_at),
            Stage::Agreeing(agreement) => agreement.deadline(),
        }
    }

    /// The server's answer is not seen yet. False: it was looked for long enough.
    pub(crate) fn waits_for_answer(&mut self, now: Duration) -> bool {
        let until = self.unanswered.map_or(now + ANSWER, |before| before.until);
        self.unanswered = Some(Unanswered { look_at: now + LOOK_FOR_ANSWER, until });
        now < until
    }

    /// The server is asked.
    pub(crate) fn agrees(self, begin: impl FnOnce(Socket) -> Agreement) -> Self {
        let stage = match self.stage {
            Stage::Connecting(socket) => Stage::Agreeing(Box::new(begin(socket))),
            agreeing @ Stage::Agreeing(_) => agreeing,
        };
        Self { stage, ..self }
    }

    pub(crate) fn agreement(&mut self) -> Option<&mut Agreement> {
        match &mut self.stage {
            Stage::Connecting(_) => None,
            Stage::Agreeing(agreement) => Some(agreement),
        }
    }

    /// All is said of a connection that stays on TCP.
    pub(crate) fn is_over(&self) -> bool {
        match &self.stage {
            Stage::Connecting(_) => false,
            Stage::Agreeing(agreement) => self.declined.is_some() && agreement.has_said_all(),
        }
    }
}

impl Declined {
    /// What its program is told.
    pub(crate) const fn reason(self) -> Reason {
        // Linux says the same of both (`smc_listen_find_device`).
        match self.diagnosis {
            Diagnosis::NO_DEVICE | Diagnosis::NO_RDMA_DEVICE | Diagnosis::NO_EID
                if self.is_peers =>
            {
                Reason::SmcNoGroup
            }
            _ => Reason::SmcDeclined,
        }
    }
}

impl fmt::Display for Declined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = if self.is_peers { "the server" } else { "this host" };
        write!(f, "{who} says {}", self.diagnosis)
    }
}

/// How far the kernel is with a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Made {
    /// It is not made yet.
    No,
    /// It is.
    Yes,
    /// It is not, and will not be.
    Never,
}

/// Looks how far the kernel is with a socket's connection, and leaves the program what it is to be told.
pub(crate) fn is_made(socket: BorrowedFd<'_>) -> io::Result<Made> {
    let mut asked = [PollFd::from_borrowed_fd(socket, PollFlags::OUT)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut asked, Some(&now))?;
    let told = asked[0].revents();
    Ok(if told.intersects(PollFlags::ERR | PollFlags::HUP) {
        Made::Never
    } else if told.contains(PollFlags::OUT) {
        Made::Yes
    } else {
        Made::No
    })
}
