//! The outcome of a request.

use std::io;
use std::rc::Rc;

use shunt_wire::agent::Reply;
use shunt_wire::reason::Reason;

use crate::held::Held;

/// A reply with its descriptors.
#[derive(Debug)]
pub struct Answer {
    /// The message.
    pub reply: Reply,
    /// What travels with it, in order.
    pub fds: Vec<Rc<Held>>,
}

impl Answer {
    pub(super) fn bare(reply: Reply) -> Self {
        Self { reply, fds: Vec::new() }
    }

    /// Nothing but that it is done.
    #[must_use]
    pub fn done() -> Self {
        Self::bare(Reply::Done)
    }

    /// A refusal.
    #[must_use]
    pub fn refused(reason: Reason) -> Self {
        Self::bare(Reply::Refused { reason })
    }
}

/// What the protocol does not allow; it costs the client its connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Misconduct(pub &'static str);

/// Why a request gets no positive answer.
#[derive(Debug)]
pub(crate) enum Rejection {
    Refused(Reason),
    Misconduct(&'static str),
}

impl From<io::Error> for Rejection {
    fn from(_: io::Error) -> Self {
        // Every call that can fail here asks for memory or descriptors.
        Self::Refused(Reason::NoResources)
    }
}

pub(super) type Outcome = Result<Answer, Rejection>;
