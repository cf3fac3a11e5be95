//! mmap(2) and its kind, by which memory is found from which the program may send without copies ([`shunt_runtime::memory::found`]).
//!
//! What does the work is given: an allocator may have put itself before libc's function, and come back by syscall(2).

use core::ptr;

use rustix::mm::munlock;
use shunt_shm::memfd;

use crate::next;
use shunt_runtime::activity;
use shunt_runtime::contain::contain;
use shunt_runtime::memory::found::{self, Moving};
use shunt_runtime::system::abi::{c_int, c_void, off_t, size_t};
use shunt_runtime::system::errno;
use shunt_runtime::system::errno::KeepErrno;

/// A mapping of `len` bytes that `make` makes.
pub fn mapping(
    (addr, len): (*mut c_void, size_t),
    flags: c_int,
    (fd, offset): (c_int, off_t),
    make: impl FnOnce() -> *mut c_void,
) -> *mut c_void {
    if flags & libc::MAP_FIXED != 0 && flags & libc::MAP_FIXED_NOREPLACE == 0 {
        contain(|| found::unmapped(addr, len));
    }
    let at = make();
    // The mapping is not to be made once more whatever happens here.
    contain(|| found::mapped(at, len, flags, fd, offset));
    at
}

/// One that `make` moves, or makes longer or shorter.
pub fn remapping(
    (old, old_len): (*mut c_void, size_t),
    (new, len): (*mut c_void, size_t),
    flags: c_int,
    make: impl FnOnce() -> *mut c_void,
) -> *mut c_void {
    if flags & libc::MREMAP_FIXED != 0 {
        found::unmapped(new, len);
    }
    let moving = Moving::begin(old, old_len);
    let at = make();
    if let Some(moving) = moving {
        contain(|| moving.end(at, len));
    }
    at
}

/// # Safety
/// As the C function.
pub unsafe fn mmap(
    addr: *mut c_void,
    len: size_t,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    mapping((addr, len), flags, (fd, offset), || {
        // SAFETY: the caller keeps the C function's contract.
        unsafe { next::mmap(addr, len, prot, flags, fd, offset) }
    })
}

/// # Safety
/// As the C function.
pub unsafe fn munmap(addr: *mut c_void, len: size_t) -> c_int {
    found::unmapped(addr, len);
    // SAFETY: the caller keeps the C function's contract.
    unsafe { next::munmap(addr, len) }
}

/// # Safety
/// As the C function.
pub unsafe fn mremap(
    old: *mut c_void,
    old_len: size_t,
    len: size_t,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    remapping((old, old_len), (new, len), flags, || {
        // SAFETY: the caller keeps the C function's contract.
        unsafe { next::mremap(old, old_len, len, flags, new) }
    })
}

/// Of the library's memory, most of which is never used, nothing is locked: all would be brought in.
///
/// # Safety
/// As the C function.
pub unsafe fn mlockall(flags: c_int) -> c_int {
    // SAFETY: the caller keeps the C function's contract.
    let kernel = |flags| unsafe { next::mlockall(flags) };
    if !activity::active() || flags & libc::MCL_CURRENT == 0 {
        return kernel(flags);
    }
    // What is mapped counts as locked, and is not brought in.
    match kernel(flags | libc::MCL_ONFAULT) {
        0 => {
            let _keep = KeepErrno::new();
            for ours in memfd::unlocked() {
                // SAFETY: an unlocked page is where it was.
                let _ =
                    unsafe { munlock(ptr::with_exposed_provenance_mut(ours.start), ours.len()) };
            }
            if flags & libc::MCL_ONFAULT == 0 {
                if locking::all_but_ours().is_none() {
                    // Without /proc.
                    return kernel(flags);
                }
                if flags & libc::MCL_FUTURE != 0 {
                    kernel(libc::MCL_FUTURE);
                }
            }
            0
        }
        // Kernels before 4.4, and flags that there are not.
        _ if errno::get() == libc::EINVAL => kernel(flags),
        // More is mapped than the program may lock, but maybe not by the program.
        failed if errno::get() == libc::ENOMEM && locking::is_permitted() => {
            let _keep = KeepErrno::new();
            if flags & libc::MCL_FUTURE != 0 && kernel(flags & !libc::MCL_CURRENT) < 0 {
                return failed;
            }
            locking::all_but_ours().map_or(failed, |()| 0)
        }
        failed => failed,
    }
}

/// What mlockall(2) does, range by range.
mod locking {
    use core::ops::Range;
    use core::ptr;

    use rustix::mm::mlock;
    use rustix::process::{Resource, getrlimit};
    use shunt_shm::memfd;

    /// Everything that is mapped but the library's; `None` where the kernel does not tell.
    fn ranges() -> Option<Vec<Range<usize>>> {
        let mut ours: Vec<Range<usize>> = memfd::unlocked().collect();
        ours.sort_unstable_by_key(|range| range.start);
        let mut found = Vec::new();
        for mapped in shunt_sys::memory::mappings()? {
            let mut from = mapped.start;
            for own in ours.iter().filter(|own| own.start < mapped.end && mapped.start < own.end) {
                found.push(from..own.start.max(from));
                from = own.end.min(mapped.end);
            }
            found.push(from..mapped.end);
        }
        found.retain(|range| !range.is_empty());
        Some(found)
    }

    /// Locks and brings in. As in mlockall(2), it does no harm that some of it cannot be brought in.
    pub fn all_but_ours() -> Option<()> {
        for range in ranges()? {
            // SAFETY: locked pages are where they were.
            let _ = unsafe { mlock(ptr::with_exposed_provenance_mut(range.start), range.len()) };
        }
        Some(())
    }

    /// True when the program may lock as much as it has mapped itself.
    pub fn is_permitted() -> bool {
        let limit = getrlimit(Resource::Memlock).current;
        let mapped = || ranges().map(|all| all.iter().map(Range::len).sum::<usize>() as u64);
        limit.is_some_and(|limit| mapped().is_some_and(|mapped| mapped <= limit))
    }
}
