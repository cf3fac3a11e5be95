//! What a plane asks its host.

use std::io;
use std::net::{IpAddr, Ipv6Addr};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use shunt_sys::addresses;

/// How it learns that. By default from the kernel; two hosts in one process are told apart by other answers.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    /// The addresses of this host.
    ///
    /// # Errors
    /// Those of getifaddrs(3).
    pub addresses: fn() -> io::Result<Vec<IpAddr>>,
    /// Bytes that may be registered, after the limit was raised as far as it goes; `None`: as many as there are.
    pub memory_limit: fn() -> Option<u64>,
}

impl Default for Host {
    fn default() -> Self {
        Self { addresses: of_interfaces, memory_limit: raised_limit }
    }
}

fn of_interfaces() -> io::Result<Vec<IpAddr>> {
    let found = addresses::of_this_machine()?;
    Ok(found.iter().map(|at| Ipv6Addr::from(at.ip).to_canonical()).collect())
}

fn raised_limit() -> Option<u64> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Memlock);
    let _ = setrlimit(Resource::Memlock, Rlimit { current: maximum, maximum });
    getrlimit(Resource::Memlock).current
}
