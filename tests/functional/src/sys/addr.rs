//! `sockaddr` in both directions.

use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use libc::{c_int, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};

use super::socklen_of;

// Address families are small numbers: 2 and 10.
#[allow(clippy::cast_possible_truncation)]
const AF_INET: libc::sa_family_t = libc::AF_INET as libc::sa_family_t;
#[allow(clippy::cast_possible_truncation)]
const AF_INET6: libc::sa_family_t = libc::AF_INET6 as libc::sa_family_t;

/// A socket address in the kernel's form.
pub struct RawAddr {
    storage: sockaddr_storage,
    /// Bytes of `storage` in use.
    pub len: socklen_t,
}

impl RawAddr {
    /// Room for the kernel to write an address into.
    #[must_use]
    pub fn empty() -> Self {
        // SAFETY: sockaddr_storage is plain data; all zeroes is a valid value (AF_UNSPEC).
        let storage = unsafe { mem::zeroed() };
        Self { storage, len: socklen_of::<sockaddr_storage>() }
    }

    /// The address family.
    #[must_use]
    pub fn family(&self) -> c_int {
        c_int::from(self.storage.ss_family)
    }

    /// For calls that read the address.
    #[must_use]
    pub fn as_ptr(&self) -> *const sockaddr {
        (&raw const self.storage).cast()
    }

    /// For calls that write the address.
    #[must_use]
    pub fn as_mut_ptr(&mut self) -> *mut sockaddr {
        (&raw mut self.storage).cast()
    }

    /// The address; `None` for anything but IPv4 and IPv6.
    #[must_use]
    pub fn get(&self) -> Option<SocketAddr> {
        match self.family() {
            libc::AF_INET => {
                // SAFETY: the family says that this is a sockaddr_in, and storage is aligned for it.
                let v4 = unsafe { &*(&raw const self.storage).cast::<sockaddr_in>() };
                let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
                Some(SocketAddr::new(ip.into(), u16::from_be(v4.sin_port)))
            }
            libc::AF_INET6 => {
                // SAFETY: the family says that this is a sockaddr_in6, and storage is aligned for it.
                let v6 = unsafe { &*(&raw const self.storage).cast::<sockaddr_in6>() };
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                Some(SocketAddr::new(ip.into(), u16::from_be(v6.sin6_port)))
            }
            _ => None,
        }
    }
}

impl From<SocketAddr> for RawAddr {
    fn from(addr: SocketAddr) -> Self {
        let mut raw = Self::empty();
        let port = addr.port().to_be();
        match addr.ip() {
            IpAddr::V4(ip) => {
                let v4 = sockaddr_in {
                    sin_family: AF_INET,
                    sin_port: port,
                    sin_addr: libc::in_addr { s_addr: u32::from(ip).to_be() },
                    sin_zero: [0; 8],
                };
                // SAFETY: storage is large enough and aligned for every sockaddr type.
                unsafe { (&raw mut raw.storage).cast::<sockaddr_in>().write(v4) };
                raw.len = socklen_of::<sockaddr_in>();
            }
            IpAddr::V6(ip) => {
                let v6 = sockaddr_in6 {
                    sin6_family: AF_INET6,
                    sin6_port: port,
                    sin6_flowinfo: 0,
                    sin6_addr: libc::in6_addr { s6_addr: ip.octets() },
                    sin6_scope_id: 0,
                };
                // SAFETY: storage is large enough and aligned for every sockaddr type.
                unsafe { (&raw mut raw.storage).cast::<sockaddr_in6>().write(v6) };
                raw.len = socklen_of::<sockaddr_in6>();
            }
        }
        raw
    }
}
