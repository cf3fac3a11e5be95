//! Where a machine has the device.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use super::{Transport, pci, server};

/// Where a machine has the device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// Socket of an ivshmem server.
    Server(PathBuf),
    /// A PCI device of this guest.
    Pci(pci::Address),
}

impl Place {
    /// Opens the device; a server has so long to introduce this machine.
    ///
    /// # Errors
    /// Why it can't be had.
    pub fn open(&self, patience: Duration) -> io::Result<Box<dyn Transport>> {
        match self {
            Self::Server(path) => Ok(Box::new(server::Peer::connect(path, patience)?)),
            Self::Pci(address) => Ok(Box::new(pci::Guest::open(address)?)),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server(path) => path.display().fmt(f),
            Self::Pci(address) => address.fmt(f),
        }
    }
}

/// A text that names no device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoPlace;

impl fmt::Display for NoPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "name the socket of an ivshmem server by its path, or a PCI device like 0000:00:05.0",
        )
    }
}

impl std::error::Error for NoPlace {}

impl FromStr for Place {
    type Err = NoPlace;

    fn from_str(text: &str) -> Result<Self, NoPlace> {
        if text.contains('/') {
            return Ok(Self::Server(text.into()));
        }
        text.parse().map(Self::Pci).map_err(|pci::NoAddress| NoPlace)
    }
}
