//! Where servers listen: at an address, or at all of a network, and at a port or at all.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use shunt_shm::reach::{WHOLE, is_there_for, is_wide};
use shunt_wire::addr::Addr;

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Reach {
    /// An address; port 0 is every port.
    pub(crate) at: Addr,
    /// Bits of it that count, of the 128 of an IPv6 address.
    pub(crate) bits: u8,
}

/// What stands for every port.
const EVERY: &str = "*";
/// Bits before an IPv4 address in its mapped form.
const MAPPED: u8 = 96;

impl Reach {
    /// True where one of these servers is there.
    #[must_use]
    pub fn holds(&self, to: SocketAddr) -> bool {
        is_there_for(&self.at, self.bits, &Addr::from(to))
    }

    /// True where they are several, or may be.
    #[must_use]
    pub const fn is_wide(&self) -> bool {
        is_wide(&self.at, self.bits)
    }
}

impl From<SocketAddr> for Reach {
    fn from(at: SocketAddr) -> Self {
        Self { at: at.into(), bits: WHOLE }
    }
}

/// That a text names no server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NoReach(String);

impl fmt::Display for NoReach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` names no server: one is written like 10.0.0.7:6379 or [fd00::7]:6379, those of a network like 10.0.0.0/24:6379 or \
             [fd00::]/64:6379, and those at every port like 10.0.0.0/24:*",
            self.0
        )
    }
}

impl std::error::Error for NoReach {}

impl FromStr for Reach {
    type Err = NoReach;

    fn from_str(text: &str) -> Result<Self, NoReach> {
        let parse = || {
            let (network, port) = text.rsplit_once(':')?;
            let port = match port {
                EVERY => 0,
                port => port.parse().ok().filter(|port| *port != 0)?,
            };
            let (ip, bits) = match network.split_once('/') {
                Some((ip, bits)) => (ip, Some(bits.parse::<u8>().ok()?)),
                None => (network, None),
            };
            let ip = match ip.strip_prefix('[').map(|ip| ip.strip_suffix(']')) {
                Some(ip) => IpAddr::V6(ip?.parse().ok()?),
                None => IpAddr::V4(ip.parse().ok()?),
            };
            let before = if ip.is_ipv4() { MAPPED } else { 0 };
            let bits = bits.unwrap_or(WHOLE - before).checked_add(before)?;
            let at = Addr::from(SocketAddr::new(ip, port));
            (bits <= WHOLE).then_some(Self { at, bits })
        };
        parse().ok_or_else(|| NoReach(text.to_owned()))
    }
}

impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = SocketAddr::from(self.at);
        let before = if at.is_ipv4() { MAPPED } else { 0 };
        match at.ip() {
            IpAddr::V4(ip) => write!(f, "{ip}")?,
            IpAddr::V6(ip) => write!(f, "[{ip}]")?,
        }
        if self.bits < WHOLE {
            write!(f, "/{}", self.bits.saturating_sub(before))?;
        }
        match at.port() {
            0 => write!(f, ":{EVERY}"),
            port => write!(f, ":{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reach(text: &str) -> Reach {
        text.parse().unwrap()
    }

    #[test]
    fn they_are_read_as_they_are_written() {
        for text in [
            "10.0.0.7:6379",
            "10.0.0.0/24:6379",
            "10.0.0.0/24:*",
            "10.0.0.7:*",
            "0.0.0.0/0:*",
            "[fd00::7]:80",
            "[fd00::]/64:80",
            "[fd00::]/64:*",
        ] {
            assert_eq!(reach(text).to_string(), text);
        }
        for wrong in [
            "10.0.0.7",
            "10.0.0.0/33:1",
            "10.0.0.7:0",
            "fd00::7:80",
            "[fd00::7]/129:1",
            "a:1",
            ":1",
        ] {
            assert!(wrong.parse::<Reach>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_network_holds_its_servers_and_no_others() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        for (text, inside, outside) in [
            ("10.0.0.7:80", "10.0.0.7:80", "10.0.0.7:81"),
            ("10.0.0.7:80", "10.0.0.7:80", "10.0.0.6:80"),
            ("10.0.0.0/24:80", "10.0.0.200:80", "10.0.1.1:80"),
            ("10.0.0.0/24:80", "10.0.0.200:80", "10.0.0.200:81"),
            ("10.0.0.0/24:*", "10.0.0.1:1", "10.0.1.1:1"),
            ("10.0.0.7:*", "10.0.0.7:9", "10.0.0.8:9"),
            ("[fd00::]/64:80", "[fd00::1]:80", "[fd01::1]:80"),
            ("0.0.0.0/0:80", "10.0.0.1:80", "[fd01::1]:80"),
        ] {
            assert!(reach(text).holds(at(inside)) && !reach(text).holds(at(outside)), "{text}");
        }
    }
}
