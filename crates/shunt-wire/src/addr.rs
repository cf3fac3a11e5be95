//! Socket addresses in one form for IPv4 and IPv6.

use core::fmt;
use core::net::{IpAddr, Ipv6Addr, SocketAddr};

use serde::{Deserialize, Serialize};

/// A TCP address. IPv4 addresses are kept in their IPv4-mapped form (`::ffff:a.b.c.d`,
/// RFC 4291 section 2.5.5.2), so a dual-stack socket and an IPv4 socket name one connection alike.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, Default)]
pub struct Addr {
    /// The address in network order.
    pub ip: [u8; 16],
    /// The port in host order.
    pub port: u16,
}

impl Addr {
    /// `0.0.0.0` in its mapped form, with `port`.
    #[must_use]
    pub const fn any_v4(port: u16) -> Self {
        Self { ip: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0], port }
    }

    /// `::` with `port`.
    #[must_use]
    pub const fn any_v6(port: u16) -> Self {
        Self { ip: [0; 16], port }
    }

    /// True for an address of the IPv4-mapped range.
    #[must_use]
    pub const fn is_v4(&self) -> bool {
        matches!(self.ip, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, ..])
    }

    /// True for 127.0.0.0/8 and `::1`.
    #[must_use]
    pub const fn is_loopback(&self) -> bool {
        (self.is_v4() && self.ip[12] == 127)
            || matches!(self.ip, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1])
    }

    /// True for `0.0.0.0` and `::`.
    #[must_use]
    pub const fn is_unspecified(&self) -> bool {
        matches!(self.ip, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])
            || (self.is_v4() && matches!(self.ip, [.., 0, 0, 0, 0]))
    }
}

impl From<SocketAddr> for Addr {
    fn from(value: SocketAddr) -> Self {
        let ip = match value.ip() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        };
        Self { ip, port: value.port() }
    }
}

impl From<Addr> for SocketAddr {
    fn from(value: Addr) -> Self {
        Self::new(Ipv6Addr::from(value.ip).to_canonical(), value.port)
    }
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        SocketAddr::from(*self).fmt(f)
    }
}

impl fmt::Debug for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A TCP connection as one of its ends sees it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct FourTuple {
    /// `getsockname` of this end.
    pub local: Addr,
    /// `getpeername` of this end.
    pub peer: Addr,
}

impl FourTuple {
    /// The same connection as the other end sees it.
    #[must_use]
    pub const fn reversed(&self) -> Self {
        Self { local: self.peer, peer: self.local }
    }

    /// A hash for the proposal table (FNV-1a, 64 bit): stable across processes, not secret.
    #[must_use]
    pub fn hash64(&self) -> u64 {
        let mut h = 0xcbf2_9ce4_8422_2325_u64;
        let mut eat = |b: u8| h = (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3);
        for end in [&self.local, &self.peer] {
            end.ip.iter().copied().for_each(&mut eat);
            end.port.to_be_bytes().into_iter().for_each(&mut eat);
        }
        h ^ (h >> 29)
    }
}
