//! Memory to send from without copies.

use std::io;
use std::ptr::{self, NonNull};

use libc::{c_int, c_void};

/// Memory of `shunt_alloc(3)`; of mmap(2) in a program without Shunt.
///
/// Whoever is the peer of a connection on which it was sent without a copy can read all of it, as long as it likes.
#[derive(Debug)]
pub struct Memory {
    at: NonNull<u8>,
    len: usize,
    free: Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
}

// SAFETY: plain memory that belongs to whoever has the value.
unsafe impl Send for Memory {}

fn symbol(name: &core::ffi::CStr) -> Option<NonNull<c_void>> {
    // SAFETY: looks a name up.
    NonNull::new(unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) })
}

impl Memory {
    /// So many bytes, zero.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(len: usize) -> io::Result<Self> {
        type Alloc = unsafe extern "C" fn(libc::size_t) -> *mut c_void;
        type Free = unsafe extern "C" fn(*mut c_void) -> c_int;
        if let (Some(alloc), Some(free)) = (symbol(c"shunt_alloc"), symbol(c"shunt_free")) {
            // SAFETY: the functions of these names have these types (shunt.h).
            let (alloc, free) = unsafe {
                (
                    core::mem::transmute::<NonNull<c_void>, Alloc>(alloc),
                    core::mem::transmute::<NonNull<c_void>, Free>(free),
                )
            };
            // SAFETY: takes any length.
            let at = NonNull::new(unsafe { alloc(len) }).ok_or_else(io::Error::last_os_error)?;
            return Ok(Self { at: at.cast(), len, free: Some(free) });
        }
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh mapping where the kernel likes.
        let at = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, -1, 0) };
        match NonNull::new(at.cast::<u8>()) {
            Some(at) if at.as_ptr().cast() != libc::MAP_FAILED => Ok(Self { at, len, free: None }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The bytes.
    pub const fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: so many are there, and are this value's alone to write.
        unsafe { core::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it is this value's, and goes with it.
        unsafe {
            match self.free {
                Some(free) => free(self.at.as_ptr().cast()),
                None => libc::munmap(self.at.as_ptr().cast(), self.len),
            };
        }
    }
}
