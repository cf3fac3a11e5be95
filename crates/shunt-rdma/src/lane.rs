//! A connection, as the thread that meets peers knows it.

use std::net::SocketAddr;
use std::time::Duration;

use shunt_peer::{PublicKey, message};
use shunt_shm::table::Ticket;
use shunt_verbs::value::Remote;
use shunt_wire::agent::RegionId;

use crate::mirror::Place;

/// A connection.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) place: Place,
    /// Number of the use of its place in the link group.
    pub(crate) generation: u32,
    /// The same of its place in the region.
    pub(crate) use_: u32,
    pub(crate) client: SocketAddr,
    pub(crate) server: SocketAddr,
    pub(crate) stage: Stage,
    /// What the peer asks for at its place: there it is over, and here the worker is about to hear that.
    pub(crate) next: Option<message::Lane>,
}

/// How far it is.
#[derive(Debug)]
pub(crate) enum Stage {
    /// Its rings are being registered; on the acceptor's side with where the client's is.
    Registering(Option<Remote>),
    /// The acceptor's: the same, and the client's program has taken it back meanwhile.
    TakenBack,
    /// The client's: the acceptor's host has been asked. How the program tells of news.
    Asked(u32),
    /// The acceptor's: it is proposed there, until that time. Where both rings are. `is_taken`: an acceptor has it, and had not answered
    /// when that time was over.
    Proposed { far: Remote, own: Remote, ticket: Ticket, until: Duration, is_taken: bool },
    /// Both sides have taken it up, and the worker is about to begin; the acceptor's with where its ring is, which the client is to be
    /// told then.
    Attaching(Option<Remote>),
    /// The worker has it.
    Open,
    /// The client's: the far side has taken it up, and its program had taken it back. The worker leaves it.
    Left,
    /// The client's: its program has taken it back. Its place in the region may be another connection's, and the far side, if it was asked,
    /// is about to say what it knows of it.
    Over,
}

/// A proposal that waits for a link group.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) peer: PublicKey,
    pub(crate) region: RegionId,
    pub(crate) slot: usize,
    pub(crate) until: Duration,
}
