//! The device operations in shared memory.
//!
//! A DMB is an extent, so none is longer than one. Attaching holds the extent for this machine: should its owner
//! unregister it, or be gone, what is attached stays where it is until the last of this end lets go.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use shunt_engine::ports::{Device, DeviceError, Gid, Token};
use shunt_shm::ivshmem::{Control, EXTENT, Kind, MemberId, offset};
use shunt_shm::memfd::Map;

use super::Transport;

/// One end of the fabric: a member.
#[derive(Debug)]
pub struct Ivshmem<T> {
    shared: Arc<Shared>,
    gid: Gid,
    transport: Mutex<T>,
    /// Somebody has interrupted this end, and [`Self::is_told`] was not asked since.
    rung: AtomicBool,
    known: Mutex<HashMap<Token, Known>>,
}

/// What is needed to let go of an extent.
#[derive(Debug)]
struct Shared {
    control: Control,
    me: MemberId,
    /// Times that each extent is held by DMBs of this end.
    held: Mutex<HashMap<usize, usize>>,
}

#[derive(Debug)]
struct Known {
    dmb: Arc<Dmb>,
    /// It is this end's own.
    own: bool,
    /// Times it is attached.
    attached: usize,
}

/// A mapped DMB.
#[derive(Debug)]
pub struct Dmb {
    map: Map,
    extent: usize,
    len: usize,
    owner: MemberId,
    shared: Arc<Shared>,
}

impl Shared {
    fn held(&self) -> MutexGuard<'_, HashMap<usize, usize>> {
        // Every change under this lock is a single call on a map: none is left half done.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Dmb {
    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// True for a DMB of no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies `data` to `offset`. `None`: it does not fit, and nothing is copied.
    #[must_use]
    pub fn write(&self, offset: usize, data: &[u8]) -> Option<()> {
        (offset.checked_add(data.len())? <= self.len).then(|| self.map.write(offset, data))?
    }

    /// Copies the bytes at `offset` out. `None`: not all of them are inside, and nothing is copied.
    #[must_use]
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Option<()> {
        (offset.checked_add(into.len())? <= self.len).then(|| self.map.read(offset, into))?
    }
}

impl Drop for Dmb {
    fn drop(&mut self) {
        let Shared { control, me, .. } = &*self.shared;
        let mut held = self.shared.held();
        if self.owner == *me {
            control.give_extent(self.extent, *me);
        } else if let Some(times) = held.get_mut(&self.extent) {
            *times -= 1;
            if *times == 0 {
                held.remove(&self.extent);
                control.extent(self.extent).release(me.index);
            }
        }
    }
}

/// What failed asks for memory or descriptors.
fn no_resources(_: io::Error) -> DeviceError {
    DeviceError::NoResources
}

impl<T: Transport> Ivshmem<T> {
    /// Joins those who share the memory.
    ///
    /// # Errors
    /// Why the memory is of no use; `QuotaExceeded` when there are as many members as can be.
    pub fn join(transport: T) -> io::Result<Self> {
        let control = Control::map(transport.memory(), transport.len())?;
        let random = || std::hash::RandomState::new().build_hasher().finish();
        let gid = Gid(control.gid(random()));
        let vectors = u32::try_from(transport.vectors()).unwrap_or(1);
        let me = control.join(random(), transport.peer(), vectors);
        let me = me.ok_or(io::ErrorKind::QuotaExceeded)?;
        let shared = Arc::new(Shared { control, me, held: Mutex::default() });
        let (transport, rung) = (Mutex::new(transport), AtomicBool::new(false));
        Ok(Self { shared, gid, transport, rung, known: Mutex::default() })
    }

    /// Does `with` to the way to the device.
    pub fn with_transport<R>(&self, with: impl FnOnce(&mut T) -> R) -> R {
        with(&mut self.transport.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// True when a peer has interrupted this end since it was last asked. [`Transport::ear`] is what to wait for.
    pub fn is_told(&self) -> bool {
        let _ = self.alive();
        self.rung.swap(false, Ordering::Relaxed)
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Token, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server tells who is gone; without it nobody could say whose memory is still somebody's.
    fn alive(&self) -> Result<(), DeviceError> {
        let heard = self.with_transport(Transport::hear);
        let Shared { control, .. } = &*self.shared;
        self.rung.fetch_or(heard.rung, Ordering::Relaxed);
        for gone in heard.left {
            control.has_left(gone);
        }
        if heard.over { Err(DeviceError::Gone) } else { Ok(()) }
    }

    /// Maps an extent of `owner`'s, of which `used` bytes were ever used and `len` are the DMB.
    fn map(
        &self,
        extent: usize,
        (len, used): (usize, usize),
        owner: MemberId,
    ) -> Result<Arc<Dmb>, DeviceError> {
        let whole = len.max(used).next_multiple_of(4096).max(4096);
        let memory = self.with_transport(|transport| Arc::clone(transport.memory()));
        let map = Map::device(&memory, offset(extent), whole).map_err(no_resources)?;
        if owner != self.shared.me {
            *self.shared.held().entry(extent).or_default() += 1;
        }
        Ok(Arc::new(Dmb { map, extent, len, owner, shared: Arc::clone(&self.shared) }))
    }

    /// Does `with` to the DMB of this name, which is mapped if it is not yet.
    fn with_dmb<R>(
        &self,
        token: Token,
        with: impl FnOnce(&mut Known) -> R,
    ) -> Result<R, DeviceError> {
        self.alive()?;
        let Shared { control, me, .. } = &*self.shared;
        let mut known = self.known();
        if let Some(dmb) = known.get_mut(&token) {
            let live = control.extent(dmb.dmb.extent).name() == token.0;
            return if live { Ok(with(dmb)) } else { Err(DeviceError::UnknownToken) };
        }
        let unknown = DeviceError::UnknownToken;
        let (extent, owner) =
            (token.0 != 0).then(|| control.find_extent(token.0)).flatten().ok_or(unknown)?;
        if control.extent(extent).kind() != Kind::Dmb {
            return Err(unknown);
        }
        let dmb = self.map(extent, (control.extent(extent).len(), 0), owner)?;
        if !control.hold(extent, (owner, token.0), *me) {
            return Err(unknown);
        }
        // The time to let go of mappings that nobody will ask for again.
        known.retain(|name, k| {
            k.own || k.attached > 0 || control.extent(k.dmb.extent).name() == name.0
        });
        Ok(with(known.entry(token).or_insert(Known { dmb, own: false, attached: 0 })))
    }

    fn tell(&self, owner: MemberId) {
        let control = &self.shared.control;
        if let Some(peer) = control.member(owner.index).peer().filter(|_| control.lives(owner)) {
            self.with_transport(|transport| transport.ring(peer, 0));
        }
    }
}

impl<T: Transport> Device for Ivshmem<T> {
    type Dmb = Arc<Dmb>;

    fn query_gid(&self) -> Gid {
        self.gid
    }

    fn register_dmb(&self, len: usize) -> Result<(Token, Arc<Dmb>), DeviceError> {
        self.alive()?;
        if len > EXTENT {
            return Err(DeviceError::NoResources);
        }
        let Shared { control, me, .. } = &*self.shared;
        let extent = control.take_extent(*me).ok_or(DeviceError::NoResources)?;
        let before = control.extent(extent);
        let used = if before.kind() == Kind::Fresh { 0 } else { EXTENT };
        let dmb = self.map(extent, (len, used), *me)?;
        dmb.map.zero(0, used);
        let token = Token(control.token());
        control.describe(extent, Kind::Dmb, len, 0, token.0);
        let known = Known { dmb: Arc::clone(&dmb), own: true, attached: 0 };
        self.known().insert(token, known);
        Ok((token, dmb))
    }

    fn unregister_dmb(&self, token: Token) -> Result<(), DeviceError> {
        let Shared { control, me, .. } = &*self.shared;
        let mut known = self.known();
        if !known.get(&token).is_some_and(|dmb| dmb.own) {
            return Err(DeviceError::UnknownToken);
        }
        if let Some(dmb) = known.remove(&token) {
            control.hide(dmb.dmb.extent, *me);
        }
        Ok(())
    }

    fn support_attach(&self) -> bool {
        true
    }

    fn attach_dmb(&self, token: Token) -> Result<Arc<Dmb>, DeviceError> {
        self.with_dmb(token, |known| {
            known.attached += 1;
            Arc::clone(&known.dmb)
        })
    }

    fn detach_dmb(&self, token: Token) -> Result<(), DeviceError> {
        let mut known = self.known();
        let dmb = known.get_mut(&token).ok_or(DeviceError::UnknownToken)?;
        dmb.attached = dmb.attached.checked_sub(1).ok_or(DeviceError::UnknownToken)?;
        if dmb.attached == 0 && !dmb.own {
            known.remove(&token);
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
        let (dmb, owner) =
            self.with_dmb(token, |known| (Arc::clone(&known.dmb), known.dmb.owner))?;
        dmb.write(offset, data).ok_or(DeviceError::OutOfBounds)?;
        if signal {
            self.tell(owner);
        }
        Ok(())
    }

    fn signal(&self, token: Token) -> Result<(), DeviceError> {
        let owner = self.with_dmb(token, |known| known.dmb.owner)?;
        self.tell(owner);
        Ok(())
    }
}

impl<T> Drop for Ivshmem<T> {
    fn drop(&mut self) {
        let Shared { control, me, .. } = &*self.shared;
        control.is_gone(*me);
    }
}
