//! The next definitions of functions that the library hooks, which it calls itself: libc's, or those of another preloaded
//! library.
//!
//! The constructor resolves all of them at once, so a call costs one relaxed load and a check for
//! null. A hook that is called before the constructor (an allocator that reads its configuration
//! while it starts) finds null and resolves its own entry; a `dlsym` that succeeds does not
//! allocate, so this can't recurse.
//!
//! The functions here are `C-unwind`: most are cancellation points, and glibc cancels a thread by
//! unwinding its stack.

use core::ffi::CStr;
use core::sync::atomic::{AtomicPtr, Ordering};
use core::{mem, ptr};

use crate::system::abi::*;
use crate::system::dynamic;
use crate::system::errno;

/// Any function; never called as this type.
pub type Function = unsafe extern "C-unwind" fn();

/// Where one function goes on to.
pub struct Slot {
    /// Null until resolved; then never null again.
    target: AtomicPtr<c_void>,
    name: &'static CStr,
    /// Stands in for a function that this libc does not have.
    absent: Function,
}

impl Slot {
    /// Where [`Self::get`] finds the address, for assembly.
    pub const TARGET: usize = core::mem::offset_of!(Self, target);

    /// Of a function that goes by this name.
    #[must_use]
    pub const fn new(name: &'static CStr, absent: Function) -> Self {
        Self { target: AtomicPtr::new(ptr::null_mut()), name, absent }
    }

    /// What the function goes by.
    #[must_use]
    pub const fn name(&self) -> &'static CStr {
        self.name
    }

    /// The address of the next definition; never null.
    #[inline]
    #[must_use]
    pub fn get(&self) -> *mut c_void {
        // Relaxed: what the pointer points to is code, which was there before the pointer.
        let target = self.target.load(Ordering::Relaxed);
        if target.is_null() { self.resolve() } else { target }
    }

    #[cold]
    fn resolve(&self) -> *mut c_void {
        let _keep = errno::KeepErrno::new();
        // SAFETY: what dlsym(3) takes.
        let mut target = unsafe { symbol(libc::RTLD_NEXT, self.name) };
        if target.is_null() {
            // SAFETY: takes no arguments; it clears the error that the program would else see at
            // its next dlerror().
            unsafe { libc::dlerror() };
            target = self.absent as *mut c_void;
        }
        self.target.store(target, Ordering::Relaxed);
        target
    }
}

/// What libc's own `dlsym` says, on behalf of this library: that of its name here is a hook. Null
/// where there is no such symbol; the error stays for dlerror(3).
///
/// # Safety
/// The handle is one that dlsym(3) takes.
pub unsafe fn symbol(handle: *mut c_void, name: &CStr) -> *mut c_void {
    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    let mut dlsym = FOUND.load(Ordering::Relaxed);
    if dlsym.is_null() {
        dlsym = dynamic::function(c"dlsym");
        if dlsym.is_null() {
            return ptr::null_mut();
        }
        FOUND.store(dlsym, Ordering::Relaxed);
    }
    type Signature = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
    // SAFETY: the function of this name, of this signature. The name is a C string; the handle
    // is the caller's promise.
    unsafe { mem::transmute::<*mut c_void, Signature>(dlsym)(handle, name.as_ptr()) }
}

/// What a function returns when the libc of this machine does not have it.
pub trait Absent {
    /// It, with errno set.
    fn absent() -> Self;
}

macro_rules! absent_is_minus_one {
    ($($ty:ty)+) => {$(
        impl Absent for $ty {
            fn absent() -> Self {
                errno::fail(libc::ENOSYS)
            }
        }
    )+};
}
absent_is_minus_one!(c_int ssize_t c_long);

impl Absent for () {
    fn absent() {}
}

impl Absent for sighandler_t {
    fn absent() -> Self {
        errno::set(libc::ENOSYS);
        libc::SIG_ERR
    }
}

impl Absent for *mut c_void {
    fn absent() -> Self {
        errno::set(libc::ENOSYS);
        libc::MAP_FAILED
    }
}

impl Absent for *mut FILE {
    fn absent() -> Self {
        errno::set(libc::ENOSYS);
        ptr::null_mut()
    }
}

/// Calls of the next functions of these signatures, whose slots are in a module `slots`.
#[macro_export]
macro_rules! next_functions {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty;)*) => {
        $(
            #[doc = concat!("The next `", stringify!($name), "`.")]
            ///
            /// # Safety
            /// As the C function.
            #[allow(non_snake_case, reason = "each has the name of its function")]
            #[inline]
            pub unsafe fn $name($($arg: $ty),*) -> $ret {
                let target = slots::$name.get();
                // SAFETY: the slot holds the function of this name, or its stand-in, both of this
                // signature; the caller keeps the C function's contract.
                unsafe {
                    type Signature = unsafe extern "C-unwind" fn($($ty),*) -> $ret;
                    core::mem::transmute::<*mut core::ffi::c_void, Signature>(target)($($arg),*)
                }
            }
        )*
    };
}

/// Their slots.
#[macro_export]
macro_rules! next_slots {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty;)*) => {
        $(
            #[doc = concat!("Of `", stringify!($name), "`.")]
            pub static $name: $crate::system::next::Slot = {
                unsafe extern "C-unwind" fn absent($(_: $ty),*) -> $ret {
                    $crate::system::next::Absent::absent()
                }
                type Signature = unsafe extern "C-unwind" fn($($ty),*) -> $ret;
                // SAFETY: a function pointer stays one; the call casts it back.
                let absent = unsafe {
                    core::mem::transmute::<Signature, $crate::system::next::Function>(absent)
                };
                $crate::system::next::Slot::new($crate::c_name!($name), absent)
            };
        )*
    };
}

/// A function's name as a C string.
#[macro_export]
macro_rules! c_name {
    ($name:ident) => {
        match core::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
            Ok(name) => name,
            Err(_) => panic!("an identifier has no NUL"),
        }
    };
}

macro_rules! table {
    ($($signatures:tt)*) => {
        $crate::next_functions! { $($signatures)* }

        /// One slot per function.
        #[allow(non_upper_case_globals, reason = "each has the name of its function")]
        pub mod slots {
            use crate::system::abi::*;

            $crate::next_slots! { $($signatures)* }
        }
    };
}

table! {
    fn __register_atfork(before: ForkHandler, in_parent: ForkHandler, in_child: ForkHandler, object: *mut c_void) -> c_int;
    fn epoll_create1(flags: c_int) -> c_int;
    fn close(fd: c_int) -> c_int;
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    fn closefrom(low: c_int) -> ();
    fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    fn epoll_pwait(epfd: c_int, events: *mut epoll_event, max: c_int, timeout: c_int, mask: *const sigset_t) -> c_int;
    fn epoll_pwait2(epfd: c_int, events: *mut epoll_event, max: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int;
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int;
    fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    fn ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    fn select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int;
    fn pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    fn preadv2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    fn pwritev2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    fn readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t;
    fn recv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    fn recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t;
    fn send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t;
    fn sendfile64(out: c_int, input: c_int, offset: *mut off64_t, count: size_t) -> ssize_t;
    fn sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int;
    fn splice(input: c_int, off_in: *mut off64_t, out: c_int, off_out: *mut off64_t, len: size_t, flags: c_uint) -> ssize_t;
    fn write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_functions_are_libcs_and_unknown_ones_say_enosys() {
        // SAFETY: takes no arguments.
        let fd = unsafe { epoll_create1(0) };
        assert!(fd >= 0);
        // SAFETY: the descriptor is ours.
        assert_eq!(unsafe { close(fd) }, 0);

        unsafe extern "C-unwind" fn absent() -> c_int {
            Absent::absent()
        }
        type Signature = unsafe extern "C-unwind" fn() -> c_int;
        // SAFETY: cast back before it is called.
        let absent = unsafe { mem::transmute::<Signature, Function>(absent) };
        let slot = Slot::new(c"shunt_no_such_function", absent);
        errno::set(0);
        // SAFETY: resolved to the stand-in, of this signature.
        let result = unsafe { mem::transmute::<*mut c_void, Signature>(slot.get())() };
        assert_eq!((result, errno::get()), (-1, libc::ENOSYS));
    }
}
