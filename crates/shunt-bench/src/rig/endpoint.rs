//! Where a server listens.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use super::ports;
use crate::contender::Contender;
use crate::failure::{Failure, Result};

/// Where a server listens, as the load programs write it: `127.0.0.1:80` or `unix:PATH`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Endpoint {
    /// TCP.
    Tcp(SocketAddr),
    /// A UNIX stream socket.
    Unix(PathBuf),
}

impl Endpoint {
    /// A free one for this contender, at an address that is not this network's, if there is one; files go into `dir`.
    ///
    /// # Errors
    /// When no port is free.
    pub fn free(
        contender: Contender,
        dir: &std::path::Path,
        elsewhere: Option<Ipv4Addr>,
    ) -> Result<Self> {
        let port = ports::free_port().ok_or_else(|| Failure::failed("no port is free"))?;
        Ok(match contender {
            Contender::Unix => Self::Unix(dir.join(format!("socket.{port}"))),
            _ => Self::Tcp((elsewhere.unwrap_or(Ipv4Addr::LOCALHOST), port).into()),
        })
    }

    /// The port; 0 for a UNIX socket.
    #[must_use]
    pub fn port(&self) -> u16 {
        match self {
            Self::Tcp(address) => address.port(),
            Self::Unix(_) => 0,
        }
    }

    /// The address; that of the loopback device for a UNIX socket.
    #[must_use]
    pub fn ip(&self) -> IpAddr {
        match self {
            Self::Tcp(address) => address.ip(),
            Self::Unix(_) => Ipv4Addr::LOCALHOST.into(),
        }
    }

    /// True when somebody listens there, in the network of the process.
    #[must_use]
    pub fn is_served(&self, process: i32) -> bool {
        match self {
            Self::Tcp(address) => ports::is_listening(process, address.port()),
            Self::Unix(path) => is_bound(path),
        }
    }
}

/// True when a UNIX socket that is in use has this path: the kernel's table names it.
#[must_use]
pub fn is_bound(path: &std::path::Path) -> bool {
    let Some(path) = path.to_str() else { return false };
    std::fs::read_to_string("/proc/net/unix")
        .is_ok_and(|table| table.lines().any(|line| line.ends_with(path)))
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text.strip_prefix("unix:") {
            Some(path) => Ok(Self::Unix(path.into())),
            None => text.parse().map(Self::Tcp).map_err(|e| format!("{text}: {e}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_and_read() {
        for text in ["127.0.0.1:80", "unix:/tmp/x y"] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
        assert!("somewhere".parse::<Endpoint>().is_err());
    }
}
