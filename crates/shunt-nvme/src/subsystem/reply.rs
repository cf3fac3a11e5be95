//! What a command takes, and its outcome.

use super::request::{Io, Range};
use crate::{controller::Queue, wire::Status};

/// What a command takes, by its entry alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plan {
    /// A request to the store. Data of the host goes where the store wants it; the response is
    /// what the store says.
    Io(Io),
    /// Data of the host, if there is any, goes to a small buffer; then [`super::Session::execute`].
    Execute,
    /// The command is refused.
    Refuse(Status),
}

/// The outcome of a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// Respond.
    Done {
        /// The status.
        status: Status,
        /// The result.
        result: u64,
        /// Data for the host.
        data: Vec<u8>,
    },
    /// Connect has succeeded: [`Queue::connected`] and, if a proof is asked for,
    /// [`Queue::require_authentication`]; then respond. [`Reply::apply`] does it.
    Connected {
        /// Entries of the queue.
        depth: u16,
        /// An I/O queue.
        io_queue: bool,
        /// SQ flow control is on.
        flow_control: bool,
        /// The host has to prove who it is.
        authenticate: bool,
        /// The result.
        result: u64,
    },
    /// The host has proved who it is: [`Queue::authenticated`]; then respond.
    Authenticated {
        /// Data for the host.
        data: Vec<u8>,
    },
    /// Deallocate these ranges; the response is what the store says.
    Deallocate {
        /// The request; its block fields are not in use.
        io: Io,
        /// The ranges.
        ranges: Vec<Range>,
    },
    /// The response comes with a notice, [`Completed`](super::Notice::Completed): an Asynchronous
    /// Event Request, or an Abort.
    Later,
    /// Respond with success, and close the connection.
    Disconnect,
}

impl Reply {
    pub(super) fn success() -> Self {
        Self::result(0)
    }

    pub(super) fn result(result: u64) -> Self {
        Self::Done { status: Status::SUCCESS, result, data: Vec::new() }
    }

    pub(super) fn data(data: Vec<u8>) -> Self {
        Self::Done { status: Status::SUCCESS, result: 0, data }
    }

    pub(super) fn refusal(status: Status) -> Self {
        Self::Done { status, result: 0, data: Vec::new() }
    }

    /// Changes the queue's phase as the reply says, before the response is given.
    pub fn apply(&self, queue: &mut Queue) {
        match self {
            Self::Connected { depth, io_queue, flow_control, authenticate, .. } => {
                queue.connected(*depth, *io_queue, *flow_control);
                if *authenticate {
                    queue.require_authentication();
                }
            }
            Self::Authenticated { .. } => queue.authenticated(),
            _ => {}
        }
    }
}
