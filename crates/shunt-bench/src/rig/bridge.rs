//! Two network namespaces at a bridge, as containers have them: one for servers, one for clients.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use super::namespaces::{self, ip};
use crate::failure::Result;

/// Where servers listen.
pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 123, 77, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 123, 77, 2);

/// Which of the two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// That of servers.
    Server,
    /// That of clients.
    Client,
}

impl End {
    const fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client => "client",
        }
    }
}

/// Both, and a third one with the bridge.
#[derive(Debug)]
pub struct Bridge(());

impl Bridge {
    /// Makes them.
    ///
    /// # Errors
    /// [`crate::failure::Failure::Skipped`] without the privilege, or ip(8).
    pub fn new() -> Result<Self> {
        let host = namespaces::add("host")?;
        ip(&["-n", &host, "link", "add", "name", "bridge", "type", "bridge"])?;
        ip(&["-n", &host, "link", "set", "bridge", "up"])?;
        for (end, address) in [(End::Server, SERVER), (End::Client, CLIENT)] {
            let (port, other) = (end.name(), namespaces::add(end.name())?);
            let address = format!("{address}/24");
            ip(&[
                "-n", &host, "link", "add", "name", port, "type", "veth", "peer", "name", "eth0",
                "netns", &other,
            ])?;
            ip(&["-n", &host, "link", "set", port, "master", "bridge", "up"])?;
            ip(&["-n", &other, "addr", "add", &address, "dev", "eth0"])?;
            ip(&["-n", &other, "link", "set", "eth0", "up"])?;
        }
        Ok(Self(()))
    }

    /// The namespace of an end.
    #[must_use]
    pub fn namespace(&self, end: End) -> PathBuf {
        namespaces::path(end.name())
    }
}
