//! What an agent with RDMA is told.

use std::fmt;
use std::net::{Ipv6Addr, SocketAddr};
use std::str::FromStr;

use shunt_peer::{KeyError, PublicKey, SecretKey};

use crate::device::Wanted;
use crate::host::Host;
use crate::kernels::Servers;

/// Where agents listen for each other, unless they are told: the number of the RFC that describes SMC-R.
pub const PORT: u16 = 7609;

/// Most peers of an agent.
pub const PEERS: usize = 256;

/// When connections are promoted.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Promote {
    /// Where the link was measured, and is not slower than TCP.
    #[default]
    Faster,
    /// Where there is a link.
    Always,
}

impl FromStr for Promote {
    type Err = BadPromote;

    fn from_str(text: &str) -> Result<Self, BadPromote> {
        match text {
            "faster" => Ok(Self::Faster),
            "always" => Ok(Self::Always),
            _ => Err(BadPromote(text.to_owned())),
        }
    }
}

/// A text that does not say when to promote connections.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadPromote(String);

impl fmt::Display for BadPromote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it must be `faster` or `always`, not `{}`", self.0)
    }
}

impl std::error::Error for BadPromote {}

/// What an agent is told.
#[derive(Clone, Debug)]
pub struct Config {
    /// The device.
    pub device: Wanted,
    /// Where it listens for peers.
    pub listen: SocketAddr,
    /// Its key.
    pub key: SecretKey,
    /// Its peers, at most [`PEERS`].
    pub peers: Vec<PeerName>,
    /// When connections are promoted.
    pub promote: Promote,
    /// Servers that speak the kernel's SMC-R; `None`: none are named.
    pub servers: Option<Servers>,
    /// What it asks this host.
    pub host: Host,
}

/// Where an agent listens, unless it is told: at all addresses.
#[must_use]
pub const fn everywhere() -> SocketAddr {
    SocketAddr::new(std::net::IpAddr::V6(Ipv6Addr::UNSPECIFIED), PORT)
}

/// Another agent: where it is, and by which key it is known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerName {
    /// A name or an address, without brackets.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Its key.
    pub key: PublicKey,
}

/// Why a text names no peer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BadPeer {
    /// There is no `=`.
    NoKey,
    /// There is no host in front of it.
    NoHost,
    /// That is no port.
    Port(String),
    /// That is no key.
    Key(KeyError),
}

impl fmt::Display for BadPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoKey => f.write_str(
                "it must be HOST=KEY or HOST:PORT=KEY, with the key that `shunt agent-key` prints on that host",
            ),
            Self::NoHost => f.write_str("it names no host in front of the key"),
            Self::Port(text) => write!(f, "`{text}` is no port; an IPv6 address with one is [ADDRESS]:PORT"),
            Self::Key(why) => why.fmt(f),
        }
    }
}

impl std::error::Error for BadPeer {}

impl PeerName {
    /// Of a host, with its port or without, and a key.
    ///
    /// # Errors
    /// Why it is none.
    pub fn new(place: &str, key: PublicKey) -> Result<Self, BadPeer> {
        let (host, port) = split(place)?;
        let is_host =
            !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || c.is_control());
        if is_host { Ok(Self { host: host.to_owned(), port, key }) } else { Err(BadPeer::NoHost) }
    }
}

/// Host and port.
fn split(place: &str) -> Result<(&str, u16), BadPeer> {
    let port = |text: &str| match text.parse() {
        Ok(port) if port != 0 => Ok(port),
        _ => Err(BadPeer::Port(text.to_owned())),
    };
    if let Some(rest) = place.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or(BadPeer::NoHost)?;
        let number = rest.strip_prefix(':');
        return match number {
            Some(number) => Ok((host, port(number)?)),
            None if rest.is_empty() => Ok((host, PORT)),
            None => Err(BadPeer::Port(rest.to_owned())),
        };
    }
    // More than one colon: an IPv6 address.
    match place.split_once(':') {
        Some((host, number)) if !number.contains(':') => Ok((host, port(number)?)),
        _ => Ok((place, PORT)),
    }
}

impl FromStr for PeerName {
    type Err = BadPeer;

    fn from_str(text: &str) -> Result<Self, BadPeer> {
        // A key ends with `=` as well.
        let (place, key) = text.split_once('=').ok_or(BadPeer::NoKey)?;
        let key = key.parse().map_err(BadPeer::Key)?;
        Self::new(place, key)
    }
}

impl fmt::Display for PeerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_v6 = self.host.contains(':');
        match (self.port, is_v6) {
            (PORT, _) => f.write_str(&self.host),
            (port, true) => write!(f, "[{}]:{port}", self.host),
            (port, false) => write!(f, "{}:{port}", self.host),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=";

    fn peer(place: &str) -> Result<(String, u16), BadPeer> {
        let peer: PeerName = format!("{place}={KEY}").parse()?;
        assert_eq!(peer.key.to_string(), KEY);
        Ok((peer.host, peer.port))
    }

    #[test]
    fn peers_are_named_as_people_write() {
        for (text, host, port) in [
            ("db1", "db1", PORT),
            ("db1.example.org:7000", "db1.example.org", 7000),
            ("10.0.0.2", "10.0.0.2", PORT),
            ("10.0.0.2:1", "10.0.0.2", 1),
            ("fd00::2", "fd00::2", PORT),
            ("[fd00::2]", "fd00::2", PORT),
            ("[fd00::2]:7000", "fd00::2", 7000),
        ] {
            assert_eq!(peer(text), Ok((host.to_owned(), port)), "{text}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        assert_eq!("db1".parse::<PeerName>(), Err(BadPeer::NoKey));
        assert_eq!(peer(""), Err(BadPeer::NoHost));
        assert_eq!(peer("d b"), Err(BadPeer::NoHost));
        assert_eq!(peer("[fd00::2"), Err(BadPeer::NoHost));
        assert_eq!(peer("db1:0"), Err(BadPeer::Port("0".into())));
        assert_eq!(peer("db1:x"), Err(BadPeer::Port("x".into())));
        assert_eq!(peer("[fd00::2]7"), Err(BadPeer::Port("7".into())));
        assert_eq!("db1=x".parse::<PeerName>(), Err(BadPeer::Key(KeyError::Form)));
        let secret = "db1=secret:dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=";
        assert_eq!(secret.parse::<PeerName>(), Err(BadPeer::Key(KeyError::Secret)));
    }

    #[test]
    fn promotion_is_judged_unless_it_is_told() {
        assert_eq!(Promote::default(), Promote::Faster);
        assert_eq!(
            ["faster", "always"].map(str::parse),
            [Ok(Promote::Faster), Ok(Promote::Always)]
        );
        let why = "never".parse::<Promote>().unwrap_err().to_string();
        assert!(why.contains("`faster` or `always`, not `never`"), "{why}");
    }

    #[test]
    fn a_name_is_shown_as_it_was_written() {
        for text in ["db1", "db1:7000", "fd00::2", "[fd00::2]:7000"] {
            let peer: PeerName = format!("{text}={KEY}").parse().unwrap();
            assert_eq!(peer.to_string(), text);
        }
    }
}
