//! libibverbs, loaded at run time: its functions by name.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use crate::abi::structs::{
    ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_device_attr, ibv_gid,
    ibv_gid_entry, ibv_mr, ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_attr, ibv_qp_init_attr,
};
use crate::error::Unavailable;

/// The library's name of this ABI.
const NAME: &CStr = c"libibverbs.so.1";

/// What the loader said last.
fn loader_error() -> String {
    // SAFETY: dlerror returns null or a string that is valid until this thread's next call of the loader.
    let said = unsafe { libc::dlerror() };
    if said.is_null() {
        return "no reason given".to_owned();
    }
    // SAFETY: as above; it ends with a zero.
    unsafe { CStr::from_ptr(said) }.to_string_lossy().into_owned()
}

/// The functions, each with its name and type once.
macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident: fn($($argument:ty),*) $(-> $returned:ty)?;)+) => {
        /// libibverbs' functions.
        pub(crate) struct Functions {
            $($(#[$doc])* pub(crate) $name: unsafe extern "C" fn($($argument),*) $(-> $returned)?,)+
        }

        impl Functions {
            /// Looks all of them up in a library.
            ///
            /// # Safety
            /// `handle` is that of a libibverbs, whose functions are those of `infiniband/verbs.h`.
            unsafe fn of(handle: *mut c_void) -> Result<Self, Unavailable> {
                Ok(Self {
                    $($name: {
                        let name = concat!(stringify!($name), "\0");
                        // SAFETY: the handle is open, and the name ends with a zero.
                        let found = unsafe { libc::dlsym(handle, name.as_ptr().cast()) };
                        if found.is_null() {
                            return Err(Unavailable::Function(stringify!($name)));
                        }
                        // SAFETY: the function of that name has this type in `infiniband/verbs.h`, which the caller vouches for;
                        // a pointer to a function is as long as one to data.
                        unsafe {
                            core::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument),*) $(-> $returned)?,
                            >(found)
                        }
                    },)+
                })
            }
        }
    };
}

functions! {
    ibv_get_device_list: fn(*mut c_int) -> *mut *mut ibv_device;
    ibv_free_device_list: fn(*mut *mut ibv_device);
    ibv_get_device_name: fn(*mut ibv_device) -> *const c_char;
    ibv_open_device: fn(*mut ibv_device) -> *mut ibv_context;
    ibv_close_device: fn(*mut ibv_context) -> c_int;
    ibv_query_device: fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    /// The function, which `verbs.h` hides behind a macro: it fills in what old programs know, so the rest has to be zero.
    ibv_query_port: fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
    ibv_query_gid: fn(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int;
    /// What `ibv_query_gid_ex` calls.
    _ibv_query_gid_ex: fn(*mut ibv_context, u32, u32, *mut ibv_gid_entry, u32, usize) -> c_int;
    ibv_alloc_pd: fn(*mut ibv_context) -> *mut ibv_pd;
    ibv_dealloc_pd: fn(*mut ibv_pd) -> c_int;
    ibv_reg_mr: fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    ibv_dereg_mr: fn(*mut ibv_mr) -> c_int;
    ibv_create_comp_channel: fn(*mut ibv_context) -> *mut ibv_comp_channel;
    ibv_destroy_comp_channel: fn(*mut ibv_comp_channel) -> c_int;
    ibv_create_cq: fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    ibv_destroy_cq: fn(*mut ibv_cq) -> c_int;
    ibv_get_cq_event: fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    ibv_ack_cq_events: fn(*mut ibv_cq, c_uint);
    ibv_create_qp: fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    ibv_modify_qp: fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    ibv_query_qp: fn(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int;
    ibv_destroy_qp: fn(*mut ibv_qp) -> c_int;
    ibv_get_async_event: fn(*mut ibv_context, *mut ibv_async_event) -> c_int;
    ibv_ack_async_event: fn(*mut ibv_async_event);
}

/// libibverbs, loaded. It stays loaded: providers may have threads, and handlers for forks.
#[derive(Clone)]
pub struct Library {
    pub(crate) functions: Arc<Functions>,
}

impl core::fmt::Debug for Library {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Library")
    }
}

impl Library {
    /// Loads the system's.
    ///
    /// # Errors
    /// [`Unavailable::Library`] where it is not installed; [`Unavailable::Function`] where it is too old.
    pub fn load() -> Result<Self, Unavailable> {
        // SAFETY: a library of this name has libibverbs' ABI of version 1: that is what the number is for.
        unsafe { Self::open(NAME) }
    }

    /// Loads that of a path, for tests.
    ///
    /// # Safety
    /// It has libibverbs' ABI of version 1.
    ///
    /// # Errors
    /// Those of [`Self::load`].
    pub unsafe fn load_from(path: &Path) -> Result<Self, Unavailable> {
        let name = CString::new(path.as_os_str().as_bytes())
            .map_err(|error| Unavailable::Library(error.to_string()))?;
        // SAFETY: the caller vouches for what is there.
        unsafe { Self::open(&name) }
    }

    /// # Safety
    /// What is called so has libibverbs' ABI of version 1.
    unsafe fn open(name: &CStr) -> Result<Self, Unavailable> {
        // SAFETY: initialisers of a library that the caller vouches for may run.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(Unavailable::Library(loader_error()));
        }
        // SAFETY: the handle is open and never closed.
        let functions = unsafe { Functions::of(handle) }?;
        Ok(Self { functions: Arc::new(functions) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_library_is_a_reason() {
        // SAFETY: nothing is there.
        let absent = unsafe { Library::load_from(Path::new("/nowhere/libibverbs.so.1")) };
        let said = absent.unwrap_err().to_string();
        assert!(said.contains("install libibverbs1"), "{said}");
        assert!(said.contains("/nowhere/libibverbs.so.1"), "{said}");
    }

    #[test]
    fn a_library_without_the_functions_is_a_reason() {
        // SAFETY: of libc, no function is called.
        let other = unsafe { Library::load_from(Path::new("libc.so.6")) };
        assert!(matches!(other, Err(Unavailable::Function("ibv_get_device_list"))), "{other:?}");
    }
}
