//! The processes that have a region mapped.
//!
//! The end of a pipe goes with a region, or of a pair of sockets where its user is to write there: a pipe without a reader would
//! end the program that writes into it, by a signal. A process and its forks keep it as long as the mapping.
//! When the last of them is gone, the kernel tells at the other end. Neither a request nor the end
//! of a conversation would tell of a child that inherited the memory.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;

use rustix::event::epoll;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};
use shunt_wire::agent::{EndpointId, RegionId};

/// Those that were given: of which region, to which endpoint, and this end.
#[derive(Debug, Default)]
pub(super) struct Leases(HashMap<u64, (RegionId, EndpointId, OwnedFd)>);

/// What a lease tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Told {
    /// There are proposals in the region.
    Proposed(RegionId),
    /// All processes are gone that had it; whether it was the last one of the region.
    Ended(RegionId, EndpointId, bool),
}

impl Leases {
    /// One more use of a region: what its user keeps. `heeds`: what it writes there is news.
    pub(super) fn give(
        &mut self,
        (region, endpoint): (RegionId, EndpointId),
        heeds: bool,
        epoll: &OwnedFd,
        next_token: &mut u64,
    ) -> io::Result<OwnedFd> {
        let (here, there) = if heeds {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?
        } else {
            pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?
        };
        let token = *next_token;
        *next_token += 1;
        // Asked for nothing, the kernel still tells of the end.
        let data = epoll::EventData::new_u64(token);
        let events = if heeds { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        epoll::add(epoll, &here, data, events).map_err(io::Error::from)?;
        self.0.insert(token, (region, endpoint, here));
        Ok(there)
    }

    /// What the lease has to tell.
    pub(super) fn told(&mut self, token: u64, heeds: bool, epoll: &OwnedFd) -> Option<Told> {
        let (region, _, here) = self.0.get(&token)?;
        let mut room = [0; 64];
        if heeds && rustix::io::read(here, &mut room[..]).is_ok_and(|len| len > 0) {
            return Some(Told::Proposed(*region));
        }
        let (region, endpoint, here) = self.0.remove(&token)?;
        let _ = epoll::delete(epoll, &here);
        let is_last = !self.0.values().any(|(other, ..)| *other == region);
        Some(Told::Ended(region, endpoint, is_last))
    }
}
