//! A fabric inside one process, in place of the agent.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use shunt_device::loopback::{Exchange, Found};
use shunt_engine::ports::{DeviceError, Gid, Token};
use shunt_shm::doorbell;

/// What all ends share.
#[derive(Debug)]
pub struct Fabric {
    gid: Gid,
    gone: AtomicBool,
    next: AtomicU64,
    dmbs: Mutex<HashMap<Token, (OwnedFd, Arc<OwnedFd>)>>,
}

/// One end's way to it.
#[derive(Debug)]
pub struct End {
    fabric: Arc<Fabric>,
    bell: Arc<OwnedFd>,
    /// Has heard the doorbell since it was last asked.
    ear: OwnedFd,
}

impl Fabric {
    /// A fabric with a gid of its own.
    pub fn new() -> Arc<Self> {
        static GIDS: AtomicU64 = AtomicU64::new(1);
        Arc::new(Self {
            gid: Gid(GIDS.fetch_add(1, Ordering::Relaxed)),
            gone: AtomicBool::new(false),
            next: AtomicU64::new(1),
            dmbs: Mutex::default(),
        })
    }

    /// One more end.
    pub fn join(self: &Arc<Self>) -> End {
        let bell = doorbell::create().unwrap();
        let ear = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        epoll::add(&ear, &bell, epoll::EventData::new_u64(0), doorbell::RUNG).unwrap();
        let end = End { fabric: Arc::clone(self), bell: Arc::new(bell), ear };
        // The start.
        assert!(end.is_told(Duration::ZERO));
        end
    }

    /// From now on every exchange answers that the fabric is gone.
    pub fn die(&self) {
        self.gone.store(true, Ordering::Relaxed);
    }

    /// The memory behind a token, as any end can have it.
    pub fn memory(&self, token: Token) -> Option<File> {
        let dmbs = self.dmbs.lock().unwrap();
        Some(dmbs.get(&token)?.0.try_clone().unwrap().into())
    }

    fn alive(&self) -> Result<(), DeviceError> {
        if self.gone.load(Ordering::Relaxed) { Err(DeviceError::Gone) } else { Ok(()) }
    }
}

fn no_resources(_: io::Error) -> DeviceError {
    DeviceError::NoResources
}

impl End {
    /// True when the doorbell was rung since the last look, or is within `patience`.
    pub fn is_told(&self, patience: Duration) -> bool {
        let mut events = Vec::with_capacity(1);
        let patience = Timespec::try_from(patience).unwrap();
        epoll::wait(&self.ear, spare_capacity(&mut events), Some(&patience)).unwrap() > 0
    }
}

impl Exchange for End {
    fn gid(&self) -> Result<Gid, DeviceError> {
        self.fabric.alive()?;
        Ok(self.fabric.gid)
    }

    fn publish(&self, memory: OwnedFd) -> Result<Token, DeviceError> {
        self.fabric.alive()?;
        let token = Token(self.fabric.next.fetch_add(1, Ordering::Relaxed));
        self.fabric.dmbs.lock().unwrap().insert(token, (memory, Arc::clone(&self.bell)));
        Ok(token)
    }

    fn withdraw(&self, token: Token) -> Result<(), DeviceError> {
        self.fabric.alive()?;
        let withdrawn = self.fabric.dmbs.lock().unwrap().remove(&token);
        withdrawn.map(drop).ok_or(DeviceError::UnknownToken)
    }

    fn look_up(&self, token: Token) -> Result<Found, DeviceError> {
        self.fabric.alive()?;
        let dmbs = self.fabric.dmbs.lock().unwrap();
        let (memory, bell) = dmbs.get(&token).ok_or(DeviceError::UnknownToken)?;
        Ok(Found {
            memory: memory.try_clone().map_err(no_resources)?,
            bell: bell.try_clone().map_err(no_resources)?,
        })
    }
}
