//! What is known of the device and of the peers.

use std::net::{IpAddr, SocketAddr};

use serde::Serialize;

pub use crate::judge::Figures;

/// All of it, at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Report {
    /// The device, as it was named.
    pub device: String,
    /// Why it cannot be used; `None`: it can.
    pub device_lacks: Option<String>,
    /// Where peers are awaited.
    pub listen: SocketAddr,
    /// By which key this agent is known.
    pub key: String,
    /// Its address; `None`: it cannot be used.
    pub device_address: Option<String>,
    /// Bytes that may be registered (`RLIMIT_MEMLOCK`); `None`: any number.
    pub memory_limit: Option<u64>,
    /// Bytes that are.
    pub memory_registered: u64,
    /// Connections of others that were no peers, or did not get so far.
    pub turned_away: u64,
    /// Why that happened last.
    pub turned_away_last: Option<String>,
    /// The peers, in the order of the configuration.
    pub peers: Vec<PeerReport>,
    /// Servers that speak the kernel's SMC-R, by address.
    pub servers: Vec<ServerReport>,
    /// Links to them.
    pub server_links: usize,
}

/// A server that speaks the kernel's SMC-R.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ServerReport {
    /// Where it listens, as it was named.
    pub at: String,
    /// Connections to it by SMC-R, now.
    pub connections: usize,
    /// Those that were ever.
    pub connections_total: u64,
    /// Connections that have stayed on TCP.
    pub declined_total: u64,
    /// Connections that have failed before they were agreed upon.
    pub failed_total: u64,
    /// Connections that were reset behind the agreement.
    pub reset_total: u64,
    /// Why one last stayed on TCP, failed, or was reset.
    pub reason: Option<String>,
}

/// How far it is with a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PeerState {
    /// Both have proved who they are.
    Connected,
    /// This agent is about to connect, or will try again.
    Connecting,
    /// The peer has to connect: its key is the smaller one.
    Awaited,
    /// One of both does not take the other one.
    Refused,
}

impl PeerState {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Connected, Self::Connecting, Self::Awaited, Self::Refused];

    /// Its name, which is stable.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connected => "connected",
            Self::Connecting => "connecting",
            Self::Awaited => "awaited",
            Self::Refused => "refused",
        }
    }
}

/// What becomes of connections with a peer to which there is a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Promotion {
    /// They are promoted: the link is not slower than TCP.
    Faster,
    /// They are promoted, whatever was measured.
    Always,
    /// They stay on TCP: the link is slower.
    Slower,
    /// They stay on TCP: the link was not measured yet, or could not be.
    Unmeasured,
    /// They stay on TCP: the peer does not promote them.
    Refused,
}

impl Promotion {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Faster, Self::Always, Self::Slower, Self::Unmeasured, Self::Refused];

    /// Its name, which is stable.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Faster => "faster",
            Self::Always => "always",
            Self::Slower => "slower",
            Self::Unmeasured => "unmeasured",
            Self::Refused => "refused",
        }
    }

    /// True when connections are promoted, by what this side knows.
    pub(crate) const fn promotes(self) -> bool {
        matches!(self, Self::Faster | Self::Always)
    }
}

/// One peer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct PeerReport {
    /// As it was named.
    pub host: String,
    /// Its key.
    pub key: String,
    /// How far it is.
    pub state: PeerState,
    /// Why it is not connected, or was not before; `None`: nothing has gone wrong.
    pub reason: Option<String>,
    /// Its own name for itself.
    pub name: Option<String>,
    /// From where, or to where, the connection is.
    pub address: Option<SocketAddr>,
    /// Seconds since it was made.
    pub connected_s: Option<u64>,
    /// It has a device that can be used.
    pub has_device: Option<bool>,
    /// What becomes of connections with it; `None`: there is no link.
    pub promotion: Option<Promotion>,
    /// Why they are not promoted; `None`: they are, or there is no link.
    pub promotion_reason: Option<String>,
    /// What was measured last; `None`: nothing was.
    pub measured: Option<Figures>,
    /// Link groups that are up.
    pub link_groups: usize,
    /// How often the link of one has gone on with another queue pair.
    pub failovers_total: u64,
    /// How often the agents' connection has ended, and all has gone on over another one.
    pub resumptions_total: u64,
    /// Connections in them, and those that there have ever been.
    pub connections: usize,
    /// See there.
    pub connections_total: u64,
    /// Why the last one failed, or was refused; `None`: none has.
    pub link_group_reason: Option<String>,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Its listeners.
    pub listeners: Vec<SocketAddr>,
}

impl Report {
    /// How many peers are in a state.
    #[must_use]
    pub fn count(&self, state: PeerState) -> usize {
        self.peers.iter().filter(|peer| peer.state == state).count()
    }

    /// With how many peers connections are promoted, or why not.
    #[must_use]
    pub fn count_promotion(&self, promotion: Promotion) -> usize {
        self.peers.iter().filter(|peer| peer.promotion == Some(promotion)).count()
    }
}
