//! The processes that have a region mapped.
//!
//! The end of a pipe goes with a region. A process and its forks keep it as long as the mapping.
//! When the last of them is gone, the kernel tells at the other end. Neither a request nor the end
//! of a conversation would tell of a child that inherited the memory.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;

use rustix::event::epoll;
use rustix::pipe::{PipeFlags, pipe_with};
use shunt_wire::agent::RegionId;

/// Those that were given.
#[derive(Debug, Default)]
pub(super) struct Leases(HashMap<u64, (RegionId, OwnedFd)>);

impl Leases {
    /// One more use of a region: what its user keeps.
    pub(super) fn give(
        &mut self,
        region: RegionId,
        epoll: &OwnedFd,
        next_token: &mut u64,
    ) -> io::Result<OwnedFd> {
        let (here, there) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let token = *next_token;
        *next_token += 1;
        // Asked for nothing, the kernel still tells of the end.
        let data = epoll::EventData::new_u64(token);
        epoll::add(epoll, &here, data, epoll::EventFlags::empty()).map_err(io::Error::from)?;
        self.0.insert(token, (region, here));
        Ok(there)
    }

    /// A lease has ended: which region it was of, when there is none other of it.
    pub(super) fn ended(&mut self, token: u64, epoll: &OwnedFd) -> Option<RegionId> {
        let (region, here) = self.0.remove(&token)?;
        let _ = epoll::delete(epoll, &here);
        (!self.0.values().any(|(other, _)| *other == region)).then_some(region)
    }
}
