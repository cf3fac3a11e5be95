//! A measurement of a link and TCP, as the thread that meets peers knows it.

use std::sync::mpsc::Sender;
use std::time::Duration;

use shunt_peer::message::{Measurable, Token};
use shunt_verbs::value::Remote;

use crate::links::Name;

/// A measurement that is under way.
pub(crate) struct Measuring {
    pub(crate) number: u64,
    pub(crate) name: Name,
    /// What the peer has asked with; `None`: this side asks.
    pub(crate) asked: Option<(Measurable, Token)>,
    pub(crate) wake_up: Duration,
    /// The peer's wake-up, and its memory.
    pub(crate) far: Option<(Duration, Remote)>,
    /// Where the thread that measures hears how long a load of the link has taken.
    pub(crate) times: Option<Sender<Duration>>,
    /// A connection has begun to use the link meanwhile.
    pub(crate) is_busy: bool,
    /// The connection that this side makes, or awaits, is this one.
    pub(crate) token: Option<Token>,
    pub(crate) until: Duration,
}
