//! ioctl(2).

use core::ffi::{c_int, c_ulong, c_void};

use crate::next;
use shunt_runtime::descriptors::control;
use shunt_runtime::fds::fd_table::{self, Kind};
use shunt_runtime::system::errno;

/// # Safety
/// As the C function.
pub unsafe fn ioctl(fd: c_int, request: c_ulong, arg: *mut c_void) -> c_int {
    let entry = fd_table::lookup(fd);
    if entry.kind() == Kind::Own {
        return errno::fail(libc::EBADF);
    }
    let number = arg.cast::<c_int>();
    if is_mapped(arg)
        && let Some(answer) = control::known(entry, request)
    {
        // SAFETY: the caller keeps the C function's contract.
        unsafe { number.write_unaligned(answer) };
        return 0;
    }
    // The kernel first in all other cases: it has its say about the descriptor and the pointer.
    // SAFETY: the caller keeps the C function's contract.
    let result = unsafe { next::ioctl(fd, request, arg) };
    if result != 0 {
        return result;
    }
    // SAFETY: asked for where the kernel has just read the number there.
    let asked = || unsafe { number.read_unaligned() };
    if let Some(answer) = control::was_called(fd, entry, request, asked) {
        // SAFETY: the kernel has just written a number there.
        unsafe { number.write_unaligned(answer) };
    }
    0
}

/// False for what programs pass by mistake or to try us out: no page is mapped so low.
fn is_mapped(arg: *const c_void) -> bool {
    const LOWEST: usize = 1 << 16;
    arg.addr() >= LOWEST
}

#[cfg(test)]
mod tests {
    use core::ffi::{c_long, c_uint};
    use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;
    use crate::ops::around::{close, close_range, closefrom, dup, dup2, dup3, fcntl};
    use shunt_runtime::fds::fd_table::Entry;
    use shunt_runtime::fds::own_fds::{OwnFd, adopt};
    use shunt_runtime::fds::owner;
    use shunt_runtime::testing::in_child;

    const CLOSE_RANGE_UNSHARE: c_int = 1 << 1;
    const CLOSE_RANGE_CLOEXEC: c_int = 1 << 2;

    fn is_open(fd: c_int) -> bool {
        // SAFETY: only looked at; if it is closed the kernel says so.
        rustix::io::fcntl_getfd(unsafe { BorrowedFd::borrow_raw(fd) }).is_ok()
    }

    fn event() -> OwnedFd {
        eventfd(0, EventfdFlags::empty()).unwrap()
    }

    fn own() -> OwnFd {
        assert!(fd_table::reserve() && owner::claim());
        adopt(event()).unwrap()
    }

    #[test]
    fn own_descriptors_do_not_exist_for_the_program() {
        let own = own();
        let fd = own.raw();
        let refused = |result: c_int| (result, errno::get()) == (-1, libc::EBADF);
        let mut number = 0;
        // SAFETY: the calls are refused; the pointer is valid all the same.
        unsafe {
            assert!(refused(close(fd)));
            assert!(refused(dup(fd)));
            assert!(refused(dup2(fd, fd)));
            assert!(refused(dup2(fd, 400)));
            assert!(refused(dup3(fd, 400, 0)));
            assert!(refused(fcntl(fd, libc::F_GETFD, 0)));
            assert!(refused(fcntl(fd, libc::F_DUPFD_CLOEXEC, 0)));
            assert!(refused(ioctl(fd, libc::FIONREAD, (&raw mut number).cast())));
        }
        assert!(is_open(own.raw()));
    }

    #[test]
    fn an_own_descriptor_makes_room_for_a_duplicate() {
        let own = own();
        let wanted = own.raw();
        rustix::io::write(own.borrow(), &9_u64.to_ne_bytes()).unwrap();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        // SAFETY: the descriptors are this test's.
        unsafe {
            // A bad source changes nothing.
            assert_eq!((dup2(99_999, wanted), errno::get()), (-1, libc::EBADF));
            assert_eq!(own.raw(), wanted);
            assert_eq!(dup2(writer.as_raw_fd(), wanted), wanted);
        }
        assert_ne!(own.raw(), wanted);
        assert_eq!(fd_table::lookup(wanted), Entry::KERNEL);
        // SAFETY: the number is the program's now: an end of the pipe.
        rustix::io::write(unsafe { BorrowedFd::borrow_raw(wanted) }, b"x").unwrap();
        let mut buf = [0; 8];
        assert_eq!(rustix::io::read(&reader, &mut buf), Ok(1));
        assert_eq!(rustix::io::read(own.borrow(), &mut buf), Ok(8));
        assert_eq!(u64::from_ne_bytes(buf), 9);
        // SAFETY: the number is the program's: the duplicate of a pipe's end, which nothing uses any more.
        assert_eq!(unsafe { close(wanted) }, 0);
    }

    #[test]
    fn closing_a_range_leaves_own_descriptors_open() {
        let own = own();
        let fd = own.raw();
        assert!(in_child(|| {
            // SAFETY: the child's descriptors.
            unsafe {
                let below = next::fcntl(0, libc::F_DUPFD, 100);
                let above = next::fcntl(0, libc::F_DUPFD, c_long::from(fd) + 1);
                let first = below.cast_unsigned();
                is_open(below)
                    && is_open(above)
                    && close_range(first, c_uint::MAX, 0) == 0
                    && is_open(fd)
                    && !is_open(below)
                    && !is_open(above)
                    && close_range(first, c_uint::MAX, CLOSE_RANGE_UNSHARE) == 0
                    && is_open(fd)
            }
        }));
        assert!(is_open(fd));
    }

    #[test]
    fn closefrom_leaves_own_descriptors_open() {
        let own = own();
        let fd = own.raw();
        let plain = event();
        assert!(in_child(|| {
            // SAFETY: the child's descriptors.
            unsafe { closefrom(3) };
            is_open(fd) && is_open(2) && !is_open(plain.as_raw_fd())
        }));
        assert!(in_child(|| {
            // SAFETY: the child's descriptors. A negative number means all.
            unsafe { closefrom(-5) };
            is_open(fd) && !is_open(0) && !is_open(plain.as_raw_fd())
        }));
    }

    #[test]
    fn nonsense_gets_the_kernels_answer() {
        let own = own();
        let last = own.raw().cast_unsigned();
        // SAFETY: the kernel refuses these.
        unsafe {
            assert_eq!((close_range(last, 0, 0), errno::get()), (-1, libc::EINVAL));
            assert_eq!((close_range(last, last, 64), errno::get()), (-1, libc::EINVAL));
            assert_eq!((dup3(0, 0, 0), errno::get()), (-1, libc::EINVAL));
            assert_eq!((dup3(0, own.raw(), 1), errno::get()), (-1, libc::EINVAL));
            assert_eq!((close(-1), errno::get()), (-1, libc::EBADF));
        }
        assert!(is_open(own.raw()));
    }

    #[test]
    fn close_on_exec_for_a_range_closes_nothing() {
        let own = own();
        let fd = own.raw().cast_unsigned();
        // SAFETY: sets a flag that the descriptor has.
        assert_eq!(unsafe { close_range(fd, fd, CLOSE_RANGE_CLOEXEC) }, 0);
        assert_eq!(fd_table::lookup(own.raw()).kind(), Kind::Own);
    }
}
