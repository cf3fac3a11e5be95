//! What a plane asks its host, and how long it waits for that of the peer.

use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use shunt_sys::addresses;

/// How it learns that, by default from the kernel: two hosts in one process are told apart by other answers.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    /// The addresses of this host.
    ///
    /// # Errors
    /// Those of getifaddrs(3).
    pub addresses: fn() -> io::Result<Vec<IpAddr>>,
    /// Bytes that may be registered, after the limit was raised as far as it goes; `None`: as many as there are.
    pub memory_limit: fn() -> Option<u64>,
    /// How long connections wait for a link that has failed to go on with another queue pair, before they go back to TCP.
    pub patience: Duration,
    /// How long both wait for each other where their connection was ended, or reset, without a word. If the other agent lives, and somebody
    /// between them has done it, they are connected again at once. But it may have been killed.
    pub reunion: Duration,
}

impl Default for Host {
    fn default() -> Self {
        let (patience, reunion) = (Duration::from_millis(800), Duration::from_secs(2));
        Self { addresses: of_interfaces, memory_limit: raised_limit, patience, reunion }
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
