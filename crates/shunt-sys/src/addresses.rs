//! The addresses of this machine.

use core::ptr;
use std::io;

/// An address of an interface, and the network that it is attached to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Attachment {
    /// The address, in the form of [`shunt_wire::addr::Addr`].
    pub ip: [u8; 16],
    mask: [u8; 16],
}

impl Attachment {
    /// True for an address of that network.
    #[must_use]
    pub fn reaches(&self, ip: &[u8; 16]) -> bool {
        let same = |((a, b), mask): ((&u8, &u8), &u8)| a & mask == b & mask;
        self.ip.iter().zip(ip).zip(&self.mask).all(same)
    }
}

/// The addresses of the network interfaces of this network namespace, without those that lead only to the machine
/// itself (loopback) or to one link (IPv6 link-local).
///
/// # Errors
/// Those of getifaddrs(3).
pub fn of_this_machine() -> io::Result<Vec<Attachment>> {
    let mut list: *mut libc::ifaddrs = ptr::null_mut();
    // SAFETY: `list` is live.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    // SAFETY: null, or the first of a list that is valid until it is freed below.
    let mut at = unsafe { list.as_ref() };
    while let Some(interface) = at {
        // SAFETY: null, or a socket address of the family that it says.
        let ip = unsafe { ip_of(interface.ifa_addr) };
        // SAFETY: null, or a socket address of the family that it says.
        let mask = unsafe { ip_of(interface.ifa_netmask) };
        if let (Some(ip), Some(mask)) = (ip.filter(leads_elsewhere), mask) {
            let attachment = Attachment { ip, mask: whole(mask) };
            if !found.contains(&attachment) {
                found.push(attachment);
            }
        }
        // SAFETY: null, or the next one of a list that is valid until it is freed below.
        at = unsafe { interface.ifa_next.as_ref() };
    }
    // SAFETY: made by getifaddrs, and not used any more.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}

/// # Safety
/// `address` is null or points to a socket address as long as its family's.
unsafe fn ip_of(address: *const libc::sockaddr) -> Option<[u8; 16]> {
    // SAFETY: the caller promises null or a socket address, of which the family is the beginning.
    let family = i32::from(unsafe { address.as_ref() }?.sa_family);
    let ip = match family {
        libc::AF_INET => {
            // SAFETY: the caller promises that the address is as long as its family's, which is IPv4.
            let v4 = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            std::net::Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)).to_ipv6_mapped()
        }
        libc::AF_INET6 => {
            // SAFETY: the caller promises that the address is as long as its family's, which is IPv6.
            let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            std::net::Ipv6Addr::from(v6.sin6_addr.s6_addr)
        }
        _ => return None,
    };
    Some(ip.octets())
}

/// False for what leads only to the machine itself, or to one link.
fn leads_elsewhere(ip: &[u8; 16]) -> bool {
    let ip = std::net::Ipv6Addr::from(*ip);
    let local = ip.to_canonical().is_loopback() || ip.is_unicast_link_local();
    !local && !ip.is_unspecified()
}

/// The mask for addresses in the mapped form: that of an IPv4 address is one itself.
fn whole(mut mask: [u8; 16]) -> [u8; 16] {
    if mask[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff] {
        mask[..12].fill(0xff);
    }
    mask
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn none_of_them_is_loopback() {
        for attachment in of_this_machine().unwrap() {
            assert!(leads_elsewhere(&attachment.ip) && attachment.reaches(&attachment.ip));
        }
    }

    #[test]
    fn a_network_ends_where_its_mask_says() {
        let v4 = |text: &str| {
            let v4: std::net::Ipv4Addr = text.parse().unwrap();
            v4.to_ipv6_mapped().octets()
        };
        let home = Attachment { ip: v4("10.77.0.1"), mask: whole(v4("255.255.255.0")) };
        assert!(home.reaches(&v4("10.77.0.200")) && !home.reaches(&v4("10.77.1.1")));
        assert!(!home.reaches(&v4("8.8.8.8")));
        let v6 = std::net::Ipv6Addr::LOCALHOST.octets();
        assert!(!home.reaches(&v6) && !leads_elsewhere(&v6) && !leads_elsewhere(&v4("127.0.0.1")));
    }
}
