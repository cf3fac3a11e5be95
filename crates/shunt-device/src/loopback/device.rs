//! The device operations over an [`Exchange`].
//!
//! A peer's DMB is mapped when it is first used and stays mapped until its owner unregisters it, so
//! that moving data costs a copy and no message. An end that unregisters a DMB says so in the DMB
//! itself: every mover sees it at its next move, also while the fabric is away.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use shunt_engine::ports::{Device, DeviceError, Gid, Token};
use shunt_shm::dmb::Dmb;
use shunt_shm::doorbell;

use super::exchange::{Exchange, Found};

/// How a sender reaches its peer's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// It maps it: its sndbuf is the peer's RMB.
    Attach,
    /// It can't; the device moves the bytes.
    Copy,
}

/// One end of a loopback fabric.
#[derive(Debug)]
pub struct Loopback<X> {
    exchange: X,
    mode: Mode,
    gid: Gid,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    own: HashMap<Token, Arc<Dmb>>,
    peers: HashMap<Token, Peer>,
}

#[derive(Clone, Debug)]
struct Peer {
    dmb: Arc<Dmb>,
    bell: Arc<OwnedFd>,
    /// Times it is attached.
    attached: usize,
}

impl Peer {
    fn open(found: Found) -> Result<Self, DeviceError> {
        // Memory that is not a DMB (unsealed, too short, something else) names none.
        let dmb = Dmb::map(&found.memory).map_err(|e| match e.kind() {
            io::ErrorKind::InvalidInput => DeviceError::UnknownToken,
            _ => DeviceError::NoResources,
        })?;
        Ok(Self { dmb: Arc::new(dmb), bell: Arc::new(found.bell), attached: 0 })
    }

    fn live(&self) -> Result<&Self, DeviceError> {
        if self.dmb.ended() { Err(DeviceError::UnknownToken) } else { Ok(self) }
    }
}

impl<X: Exchange> Loopback<X> {
    /// Joins the fabric that `exchange` leads to.
    ///
    /// # Errors
    /// [`DeviceError::Gone`].
    pub fn new(exchange: X, mode: Mode) -> Result<Self, DeviceError> {
        let gid = exchange.gid()?;
        Ok(Self { exchange, mode, gid, known: Mutex::default() })
    }

    /// The way to the fabric.
    pub const fn exchange(&self) -> &X {
        &self.exchange
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        // Every change under this lock is a single call on a map: none is left half done.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does `with` to the peer's DMB of this name, which is mapped if it is not yet. The lock is held
    /// meanwhile, but not while the fabric is asked.
    fn with_peer<T>(
        &self,
        token: Token,
        with: impl FnOnce(&mut Peer) -> T,
    ) -> Result<T, DeviceError> {
        if let Some(peer) = self.known().peers.get_mut(&token) {
            peer.live()?;
            return Ok(with(peer));
        }
        let found = Peer::open(self.exchange.look_up(token)?)?;
        found.live()?;
        let mut known = self.known();
        // The time to let go of mappings that nobody will ask for again.
        known.peers.retain(|_, peer| peer.attached > 0 || peer.live().is_ok());
        Ok(with(known.peers.entry(token).or_insert(found)))
    }
}

impl<X: Exchange> Device for Loopback<X> {
    type Dmb = Arc<Dmb>;

    fn query_gid(&self) -> Gid {
        self.gid
    }

    fn register_dmb(&self, len: usize) -> Result<(Token, Arc<Dmb>), DeviceError> {
        let (dmb, memory) = Dmb::create(len).map_err(|_| DeviceError::NoResources)?;
        let dmb = Arc::new(dmb);
        let token = self.exchange.publish(memory)?;
        self.known().own.insert(token, Arc::clone(&dmb));
        Ok((token, dmb))
    }

    fn unregister_dmb(&self, token: Token) -> Result<(), DeviceError> {
        let dmb = self.known().own.remove(&token).ok_or(DeviceError::UnknownToken)?;
        dmb.end();
        match self.exchange.withdraw(token) {
            // A fabric that is gone, or that has lost it, shows it to nobody.
            Ok(()) | Err(DeviceError::Gone | DeviceError::UnknownToken) => Ok(()),
            Err(e) => Err(e),
        }
    }

    fn support_attach(&self) -> bool {
        self.mode == Mode::Attach
    }

    fn attach_dmb(&self, token: Token) -> Result<Arc<Dmb>, DeviceError> {
        if !self.support_attach() {
            return Err(DeviceError::Unsupported);
        }
        self.with_peer(token, |peer| {
            peer.attached += 1;
            Arc::clone(&peer.dmb)
        })
    }

    fn detach_dmb(&self, token: Token) -> Result<(), DeviceError> {
        let mut known = self.known();
        let peer = known.peers.get_mut(&token).ok_or(DeviceError::UnknownToken)?;
        peer.attached = peer.attached.checked_sub(1).ok_or(DeviceError::UnknownToken)?;
        if peer.attached == 0 {
            known.peers.remove(&token);
        }
        Ok(())
    }

    fn move_data(
        &self,
        token: Token,
        offset: usize,
        data: &[u8],
        signal: bool,
    ) -> Result<(), DeviceError> {
        let peer = self.with_peer(token, |peer| peer.clone())?;
        peer.dmb.write(offset, data).ok_or(DeviceError::OutOfBounds)?;
        if signal {
            doorbell::ring_fd(&peer.bell);
        }
        Ok(())
    }

    fn signal(&self, token: Token) -> Result<(), DeviceError> {
        let peer = self.with_peer(token, |peer| peer.clone())?;
        doorbell::ring_fd(&peer.bell);
        Ok(())
    }
}
