//! The suite on memory of one machine: sealed memfds, and eventfds for doorbells.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use shunt_conformance::Rig;
use shunt_shm::region::{self, LEN, Region};
use shunt_shm::{doorbell, memfd};

/// Nothing but the kernel.
struct Host;

impl Rig for Host {
    type Made = OwnedFd;
    /// Has heard the doorbell since it was last asked.
    type Ear = OwnedFd;
    type Bell = Arc<OwnedFd>;

    fn new() -> Self {
        Self
    }

    fn register(&self, name: u64) -> io::Result<OwnedFd> {
        region::create(name)
    }

    fn unregister(&self, made: OwnedFd) {
        drop(made);
    }

    fn attach(&self, made: &OwnedFd) -> io::Result<Region> {
        Region::map(made)
    }

    fn attach_no_region(&self) -> io::Result<Region> {
        Region::map(memfd::create_sealed("no-region", LEN)?)
    }

    fn resize(&self, made: &OwnedFd, len: u64) -> io::Result<()> {
        File::from(made.try_clone()?).set_len(len)
    }

    fn ear(&self) -> (OwnedFd, Arc<OwnedFd>) {
        let bell = Arc::new(doorbell::create().unwrap());
        let mut ear = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        epoll::add(&ear, &bell, epoll::EventData::new_u64(0), doorbell::RUNG).unwrap();
        // The start.
        assert!(Self::told(&mut ear, Duration::ZERO));
        (ear, bell)
    }

    fn signal(bell: &Arc<OwnedFd>) {
        doorbell::ring(bell.as_fd());
    }

    fn told(ear: &mut OwnedFd, patience: Duration) -> bool {
        let mut events = Vec::with_capacity(1);
        let patience = Timespec::try_from(patience).unwrap();
        epoll::wait(ear, spare_capacity(&mut events), Some(&patience)).unwrap() > 0
    }
}

shunt_conformance::link_group_conformance!(Host);
