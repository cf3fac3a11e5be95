//! An opened device: what all that belongs to it keeps.

use core::ptr::NonNull;
use std::io;
use std::sync::Arc;

use crate::abi::structs::{ibv_context, ibv_pd};
use crate::error::Refused;
use crate::library::{Functions, Library};

/// What `errno` says, after a function that tells by it.
pub(crate) fn last_errno(tried: &'static str) -> Refused {
    Refused::System(tried, io::Error::last_os_error())
}

/// What a function's value says that is 0 or an `errno`; some return -1 and set `errno`.
pub(crate) fn checked(tried: &'static str, returned: i32) -> Result<(), Refused> {
    match returned {
        0 => Ok(()),
        -1 => Err(last_errno(tried)),
        errno => Err(Refused::of(tried, errno)),
    }
}

/// An opened device and its protection domain.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) library: Library,
    pub(crate) raw: NonNull<ibv_context>,
    pub(crate) domain: NonNull<ibv_pd>,
}

// SAFETY: libibverbs' calls on a context may come from any thread (ibv_open_device(3): "thread-safe").
unsafe impl Send for Context {}
// SAFETY: and from several at a time; nothing here is written after it was made.
unsafe impl Sync for Context {}

impl Context {
    /// Takes over an opened device, and makes a protection domain.
    ///
    /// # Safety
    /// `raw` comes from this library's `ibv_open_device`, and nothing else closes it.
    pub(crate) unsafe fn of(
        library: Library,
        raw: NonNull<ibv_context>,
    ) -> Result<Arc<Self>, Refused> {
        // SAFETY: the device is open.
        let domain = unsafe { (library.functions.ibv_alloc_pd)(raw.as_ptr()) };
        let Some(domain) = NonNull::new(domain) else {
            let refused = last_errno("ibv_alloc_pd");
            // SAFETY: the device is open, and nothing belongs to it.
            unsafe { (library.functions.ibv_close_device)(raw.as_ptr()) };
            return Err(refused);
        };
        Ok(Arc::new(Self { library, raw, domain }))
    }

    pub(crate) fn functions(&self) -> &Functions {
        &self.library.functions
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: all that belongs to the domain and the device keeps this value, so nothing is left of it.
        unsafe {
            (self.functions().ibv_dealloc_pd)(self.domain.as_ptr());
            (self.functions().ibv_close_device)(self.raw.as_ptr());
        }
    }
}
