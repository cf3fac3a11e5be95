//! Registered memory.

use core::ops::Range;
use core::ptr::NonNull;
use std::io;
use std::sync::Arc;

use crate::abi::constants::{IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE};
use crate::abi::structs::ibv_mr;
use crate::context::{Context, last_errno};
use crate::error::Refused;
use crate::memory::Memory;
use crate::port::Region;
use crate::value::{Access, LocalKey, RemoteKey};

/// Memory that a device may read, or write as well. Its pages stay where they are until this is dropped.
#[derive(Debug)]
pub struct MemoryRegion {
    raw: NonNull<ibv_mr>,
    length: usize,
    context: Arc<Context>,
    // Stays mapped as long as the device may reach it.
    _memory: Memory,
}

// SAFETY: calls on it may come from any thread.
unsafe impl Send for MemoryRegion {}
// SAFETY: what is read of it never changes.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    /// Registers a part of memory.
    ///
    /// # Errors
    /// Those of [`crate::port::Port::register`].
    pub(crate) fn register(
        context: &Arc<Context>,
        memory: &Memory,
        range: &Range<usize>,
        access: Access,
    ) -> Result<Self, Refused> {
        let from = memory.part(range).ok_or(Refused::Invalid("part of memory"))?;
        let access = match access {
            Access::Local => 0,
            Access::LocalWrite => IBV_ACCESS_LOCAL_WRITE,
            // The specification asks for the local right where the remote one is given (IBTA 10.6.3.2).
            Access::RemoteWrite => IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
        };
        let (functions, domain) = (context.functions(), context.domain.as_ptr());
        // SAFETY: the domain is the context's; the range lies in memory that this value keeps mapped, and no reference of Rust's
        // leads there, so the device may write it at any time.
        let raw =
            unsafe { (functions.ibv_reg_mr)(domain, from.as_ptr().cast(), range.len(), access) };
        let Some(raw) = NonNull::new(raw) else {
            // ibv_reg_mr(3): ENOMEM, of which the limit of locked memory is the usual cause.
            return Err(match io::Error::last_os_error().kind() {
                io::ErrorKind::OutOfMemory => Refused::MemoryLimit(range.len()),
                _ => last_errno("ibv_reg_mr"),
            });
        };
        let (context, _memory) = (context.clone(), memory.clone());
        Ok(Self { raw, length: range.len(), context, _memory })
    }

    const fn raw(&self) -> &ibv_mr {
        // SAFETY: libibverbs made it, and it lives until it is dropped here; it does not change.
        unsafe { self.raw.as_ref() }
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: it is registered, and this value alone deregisters it.
        unsafe { (self.context.functions().ibv_dereg_mr)(self.raw.as_ptr()) };
    }
}

impl Region for MemoryRegion {
    fn local_key(&self) -> LocalKey {
        LocalKey(self.raw().lkey)
    }

    fn remote_key(&self) -> RemoteKey {
        RemoteKey(self.raw().rkey)
    }

    fn address(&self) -> u64 {
        self.raw().addr.addr() as u64
    }

    fn length(&self) -> usize {
        self.length
    }
}
