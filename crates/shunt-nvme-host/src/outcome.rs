//! How commands end.

use std::fmt;

use shunt_nvme::wire::Status;

use crate::memory::Data;

/// A command that is over.
#[derive(Debug)]
pub struct Completion {
    /// What it was submitted with.
    pub token: u64,
    /// Its data, the caller's again.
    pub data: Data,
    /// The result's dwords, or why it has failed.
    pub result: Result<u64, Failure>,
}

/// Why a command has failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The controller's answer.
    Status(Status),
    /// What was read was damaged on the way, again and again.
    Damaged,
    /// It took too long, and was aborted. The controller may have executed it.
    TimedOut,
    /// Its connection is lost. The controller may have executed it, and it is none that can be sent
    /// twice.
    Lost,
    /// No path to its namespace, for too long.
    NoPath,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => status.fmt(f),
            Self::Damaged => f.write_str("data was damaged on the way"),
            Self::TimedOut => f.write_str("it took too long, and was aborted"),
            Self::Lost => f.write_str("the connection was lost, and it may have been executed"),
            Self::NoPath => f.write_str("there is no path to the namespace"),
        }
    }
}

impl std::error::Error for Failure {}

/// What a queue's commands have sent, so far as controllers have answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Traffic {
    /// Bytes of commands that went as memory which the controller may read in place. Whether it did is the connection's
    /// to say: over kernel TCP the kernel copies them.
    pub offered: u64,
    /// Bytes of commands that were copied into the connection.
    pub copied: u64,
    /// Times that a command went back to wait for a connection: its own was lost, or it was refused for the path or for
    /// now.
    pub repeated: u64,
}

/// A command that was not taken.
#[derive(Debug)]
pub struct Refused {
    /// Why.
    pub why: Refusal,
    /// Its data.
    pub data: Data,
}

/// Why a command is not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// As many commands are under way as the queue has places.
    Full,
    /// The data is shorter than the request says.
    ShortData,
    /// More data than the controller takes: `Subsystem::max_transfer`.
    TooLong,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.why {
            Refusal::Full => "the queue is full",
            Refusal::ShortData => "there is less data than the request says",
            Refusal::TooLong => "more data than the controller takes in a command",
        })
    }
}

impl std::error::Error for Refused {}
