//! One io_uring with one call at a time, by `syscall(2)` or, as liburing does it, past libc.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use super::check_long;

/// `IORING_OP_SEND` and `IORING_OP_RECV`.
const SEND: u8 = 26;
const RECV: u8 = 27;
/// `IORING_ENTER_GETEVENTS`.
const GET_EVENTS: usize = 1;
/// `IORING_OFF_SQES`.
const ENTRIES: i64 = 0x1000_0000;
const PAGE: usize = 4096;

/// `struct io_uring_params`: its offsets are counted in words of 32 bits.
type Params = [u32; 30];
const SQ_TAIL: usize = 11;
const SQ_MASK: usize = 12;
const SQ_ARRAY: usize = 16;
const CQ_HEAD: usize = 20;
const CQ_TAIL: usize = 21;
const CQ_MASK: usize = 22;
const CQ_CQES: usize = 25;

/// `struct io_uring_sqe`, as far as it is used here.
#[repr(C)]
struct Entry {
    opcode: u8,
    flags: u8,
    priority: u16,
    fd: i32,
    offset: u64,
    address: u64,
    len: u32,
    message_flags: u32,
    data: u64,
    rest: [u64; 3],
}

/// How a ring is made and used.
pub type Kernel = fn(libc::c_long, [usize; 6]) -> io::Result<usize>;

/// By `syscall(2)`.
pub fn by_libc(number: libc::c_long, [a, b, c, d, e, f]: [usize; 6]) -> io::Result<usize> {
    // SAFETY: only called from here, with what the calls want.
    check_long(unsafe { libc::syscall(number, a, b, c, d, e, f) })
}

/// By an instruction of our own, which no library sees.
pub fn unseen(number: libc::c_long, [a, b, c, d, e, f]: [usize; 6]) -> io::Result<usize> {
    let result: libc::c_long;
    // SAFETY: only called from this file, with what the calls want; the clobbers are those of the kernel's calling convention.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
        );
    }
    // SAFETY: only called from this file, with what the calls want.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!(
            "svc #0",
            in("x8") number,
            inlateout("x0") a => result,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
        );
    }
    let error = |_| io::Error::from_raw_os_error(i32::try_from(-result).unwrap_or(libc::EIO));
    usize::try_from(result).map_err(error)
}

/// A ring.
pub struct Ring {
    kernel: Kernel,
    fd: OwnedFd,
    params: Params,
    /// Both queues.
    queues: NonNull<u8>,
    entries: NonNull<Entry>,
}

impl Ring {
    /// io_uring_setup(2), and its memory.
    pub fn new(kernel: Kernel) -> io::Result<Self> {
        let mut params: Params = [0; 30];
        let args = [4, params.as_mut_ptr().expose_provenance(), 0, 0, 0, 0];
        let fd = kernel(libc::SYS_io_uring_setup, args)?;
        let fd = RawFd::try_from(fd).map_err(io::Error::other)?;
        // SAFETY: a new descriptor.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let queues = map(&fd, 0)?;
        let entries = map(&fd, ENTRIES)?.cast();
        Ok(Self { kernel, fd, params, queues, entries })
    }

    fn word(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: the kernel's offsets lie in its mapping, which is never undone, and are aligned.
        unsafe { self.queues.add(offset as usize).cast::<AtomicU32>().as_ref() }
    }

    fn call(&mut self, entry: Entry) -> io::Result<usize> {
        let tail = self.word(self.params[SQ_TAIL]);
        let mask = self.word(self.params[SQ_MASK]).load(Ordering::Relaxed);
        let at = tail.load(Ordering::Relaxed);
        let index = at & mask;
        // SAFETY: the index is masked; the kernel looks at the entry after the tail has moved.
        unsafe { self.entries.add(index as usize).write(entry) };
        self.word(self.params[SQ_ARRAY] + 4 * index).store(index, Ordering::Relaxed);
        tail.store(at.wrapping_add(1), Ordering::Release);
        let fd = usize::try_from(self.fd.as_raw_fd()).map_err(io::Error::other)?;
        (self.kernel)(libc::SYS_io_uring_enter, [fd, 1, 1, GET_EVENTS, 0, 0])?;
        let head = self.word(self.params[CQ_HEAD]);
        let mask = self.word(self.params[CQ_MASK]).load(Ordering::Relaxed);
        let at = head.load(Ordering::Relaxed);
        if at == self.word(self.params[CQ_TAIL]).load(Ordering::Acquire) {
            return Err(io::Error::other("no completion"));
        }
        // The result comes after 64 bits of the caller's.
        let result = self.word(self.params[CQ_CQES] + 16 * (at & mask) + 8).load(Ordering::Relaxed);
        head.store(at.wrapping_add(1), Ordering::Release);
        let result = result.cast_signed();
        usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))
    }

    /// send(2) by the ring.
    pub fn send(&mut self, fd: RawFd, bytes: &[u8]) -> io::Result<usize> {
        self.call(entry(SEND, fd, bytes.as_ptr().expose_provenance(), bytes.len()))
    }

    /// recv(2) by the ring.
    pub fn recv(&mut self, fd: RawFd, bytes: &mut [u8]) -> io::Result<usize> {
        self.call(entry(RECV, fd, bytes.as_mut_ptr().expose_provenance(), bytes.len()))
    }
}

fn entry(opcode: u8, fd: RawFd, address: usize, len: usize) -> Entry {
    Entry {
        opcode,
        flags: 0,
        priority: 0,
        fd,
        offset: 0,
        address: address as u64,
        len: u32::try_from(len).unwrap_or(u32::MAX),
        message_flags: 0,
        data: 0,
        rest: [0; 3],
    }
}

fn map(fd: &OwnedFd, offset: i64) -> io::Result<NonNull<u8>> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping of what the kernel has made for the ring; four entries fit into a page.
    let at = unsafe {
        libc::mmap(std::ptr::null_mut(), PAGE, prot, libc::MAP_SHARED, fd.as_raw_fd(), offset)
    };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(at.cast()).ok_or_else(|| io::Error::other("mapped at 0"))
}
