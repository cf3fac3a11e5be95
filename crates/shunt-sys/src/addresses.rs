//! The addresses of this machine.

use core::ptr;
use std::io;

/// The addresses of the network interfaces of this network namespace, without those that lead only to the machine
/// itself (loopback) or to one link (IPv6 link-local), in the form of [`shunt_wire::addr::Addr`].
///
/// # Errors
/// Those of getifaddrs(3).
pub fn of_this_machine() -> io::Result<Vec<[u8; 16]>> {
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
        if let Some(ip) = unsafe { ip_of(interface.ifa_addr) }
            && !found.contains(&ip)
        {
            found.push(ip);
        }
        // SAFETY: as for the first.
        at = unsafe { interface.ifa_next.as_ref() };
    }
    // SAFETY: made by getifaddrs, and not used any more.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}

/// # Safety
/// `address` is null or points to a socket address as long as its family's.
unsafe fn ip_of(address: *const libc::sockaddr) -> Option<[u8; 16]> {
    // SAFETY: the caller's promise.
    let family = i32::from(unsafe { address.as_ref() }?.sa_family);
    let ip = match family {
        libc::AF_INET => {
            // SAFETY: as the family says.
            let v4 = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            std::net::Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)).to_ipv6_mapped()
        }
        libc::AF_INET6 => {
            // SAFETY: as the family says.
            let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            std::net::Ipv6Addr::from(v6.sin6_addr.s6_addr)
        }
        _ => return None,
    };
    let local = ip.to_canonical().is_loopback() || ip.is_unicast_link_local();
    (!local && !ip.is_unspecified()).then(|| ip.octets())
}

#[cfg(test)]
mod tests {
    #[test]
    fn none_of_them_is_loopback() {
        let addresses = super::of_this_machine().unwrap();
        for ip in addresses {
            assert!(!shunt_wire::addr::Addr { ip, port: 0 }.is_loopback());
        }
    }
}
