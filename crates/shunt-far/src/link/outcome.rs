//! What becomes of a link and its connections.

use core::fmt;
use core::time::Duration;

use shunt_verbs::Refused;
use shunt_verbs::value::{Failure, Loss};

use crate::lane::{Broken, Impossible, Stand};
use crate::message::Malformed;

/// Why a link has failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// A request has failed.
    Request(Failure),
    /// The device refused a request.
    Refused,
    /// The device told of requests in an order, or of a kind, that cannot be.
    Device,
    /// The far side said nothing for too long.
    Silence,
    /// The far side sent what is no message.
    Malformed(Malformed),
    /// The far side sent a message that does not follow the last one, or acknowledged what was not sent.
    Order,
    /// The far side spoke of a connection that there is not.
    NoConnection,
    /// The far side said of a connection what cannot be.
    Impossible(Impossible),
    /// The device says that the queue pair has failed.
    Pair,
    /// The device cannot be used any more.
    Lost(Loss),
    /// Somebody else has said that the link is over: the far side on the control connection.
    Told,
    /// Whoever has the worker ends in good order.
    Ends,
    /// There is to be no link with this peer any more.
    Parts,
    /// A link of SMC-R has ended, by what it says.
    Smc(shunt_smc::link::Cause),
}

impl Cause {
    /// True where the link may go on with another queue pair: no rule was broken, and it was not to end.
    #[must_use]
    pub const fn is_curable(self) -> bool {
        matches!(
            self,
            Self::Request(_)
                | Self::Refused
                | Self::Device
                | Self::Silence
                | Self::Pair
                | Self::Lost(_)
                | Self::Told
        )
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(failure) => failure.fmt(f),
            Self::Refused => f.write_str("the device refused a request"),
            Self::Device => f.write_str("the device told of what was not asked for"),
            Self::Silence => f.write_str("the far side has not answered in time"),
            Self::Malformed(malformed) => write!(f, "the far side sent {malformed}"),
            Self::Order => f.write_str("the far side sent a message out of order"),
            Self::NoConnection => {
                f.write_str("the far side spoke of a connection that there is not")
            }
            Self::Impossible(impossible) => write!(f, "the far side sent {impossible}"),
            Self::Pair => f.write_str("the device reports that the queue pair has failed"),
            Self::Lost(loss) => loss.fmt(f),
            Self::Told => f.write_str("the link was given up elsewhere"),
            Self::Ends => f.write_str("this agent ends"),
            Self::Parts => f.write_str("the peer is named no more"),
            Self::Smc(cause) => cause.fmt(f),
        }
    }
}

impl core::error::Error for Cause {}

/// Why a connection cannot be opened on a link.
#[derive(Debug)]
pub enum NotOpened {
    /// There is no such place, or it is taken.
    Place,
    /// The link has failed.
    Link(Cause),
    /// The device refused the memory.
    Memory(Refused),
}

impl fmt::Display for NotOpened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Place => f.write_str("the link has no such place, or it is taken"),
            Self::Link(cause) => write!(f, "the link has failed: {cause}"),
            Self::Memory(refused) => refused.fmt(f),
        }
    }
}

impl core::error::Error for NotOpened {}

/// Why a connection ends with its link, instead of going on over TCP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// It has said what cannot be.
    Impossible(Impossible),
    /// Its program began to end, and has neither ended nor followed in time.
    Stuck,
    /// Its program ended behind bytes that have not come, and sends no more.
    Lost,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Impossible(impossible) => write!(f, "the far side said {impossible}"),
            Self::Stuck => f.write_str("its program has begun to end, and does not"),
            Self::Lost => f.write_str("its last bytes were not delivered"),
        }
    }
}

/// What has happened on a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// Its program wrote what cannot be. The far side is told of a reset; the local one is to be.
    Broken(usize, Broken),
    /// Both sides have left it: its place is free.
    Free(usize),
    /// Its program has published something, and the far side has not opened it.
    Called(usize),
    /// Not of a connection: what was measured took so long.
    Measured(Duration),
}

/// Where a connection stood when its link failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Halt {
    /// Its place.
    pub slot: usize,
    /// Number of the place's use.
    pub generation: u32,
    /// Where it stood.
    pub stand: Stand,
}
