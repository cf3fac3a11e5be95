//! Whether the agent that wrote a registry lives, as a word on which threads can sleep.
//!
//! A thread of the agent owns the word like a robust futex (set_robust_list(2), Documentation/locking/robust-futex-ABI.rst).
//! However the agent ends, by SIGKILL too, the kernel clears the owner, sets `FUTEX_OWNER_DIED`, and wakes one of the threads
//! that sleep on the word. That one wakes all others.

use core::ptr;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use rustix::thread::gettid;

use crate::doorbell::futex_wake;
use crate::sync::{AtomicU32, Ordering};

/// The owner's thread number (`FUTEX_TID_MASK` in include/uapi/linux/futex.h).
const OWNER: u32 = 0x3fff_ffff;
/// Its owner is gone (`FUTEX_OWNER_DIED`).
const DIED: u32 = 0x4000_0000;
/// The kernel is to wake a thread (`FUTEX_WAITERS`). Those who sleep can only read the word, so it is always set.
const WAITERS: u32 = 0x8000_0000;

/// True for the word of an agent that lives. An older agent has none, and leaves 0 there.
#[must_use]
pub const fn is_alive(word: u32) -> bool {
    word & OWNER != 0
}

/// Memory with such a word, mapped to be written.
pub(super) trait Owned: Send + Sync + 'static {
    /// The word.
    fn word(&self) -> &AtomicU32;
}

/// What the kernel reads when a thread ends (`struct robust_list_head`).
#[repr(C)]
struct RobustList {
    /// The first entry; the head itself: there is none.
    next: *const RobustList,
    /// From an entry to its futex, in bytes.
    offset: isize,
    /// One more entry, which counts whether it stands in the list or not.
    pending: *const u32,
}

/// The thread that owns the word, until it is dropped.
#[derive(Debug)]
pub(super) struct Keeper {
    thread: Option<JoinHandle<()>>,
    /// The thread ends when this does.
    stop: Option<Sender<()>>,
}

impl Keeper {
    /// # Errors
    /// No thread can be made, or the kernel refuses its list.
    pub(super) fn new(memory: Arc<impl Owned>) -> io::Result<Self> {
        let (stop, stopped) = channel();
        let (begun, begins) = channel();
        let thread = thread::Builder::new()
            .name("life".into())
            .stack_size(64 << 10)
            .spawn(move || own(memory.word(), &begun, &stopped))?;
        let keeper = Self { thread: Some(thread), stop: Some(stop) };
        begins.recv().map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))??;
        Ok(keeper)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn own(word: &AtomicU32, begun: &Sender<io::Result<()>>, stopped: &Receiver<()>) {
    let mut list =
        Box::new(RobustList { next: ptr::null(), offset: 0, pending: word.as_ptr().cast_const() });
    list.next = &raw const *list;
    let owner = gettid().as_raw_nonzero().get().cast_unsigned() & OWNER;
    word.store(owner | WAITERS, Ordering::Release);
    let is_set = set_robust_list(&raw const *list);
    let is_owned = is_set.is_ok();
    let _ = begun.send(is_set);
    if is_owned {
        // An error is what is waited for: the sender is gone.
        let _ = stopped.recv();
        let _ = set_robust_list(ptr::null());
    }
    word.store(WAITERS | DIED, Ordering::Release);
    futex_wake(word, u32::MAX);
}

/// Sets the calling thread's list, in the place of libc's, which is for robust mutexes of POSIX: this thread has none.
fn set_robust_list(list: *const RobustList) -> io::Result<()> {
    // SAFETY: the kernel reads the list when the thread ends, and checks each address then; `own` keeps list and futex, or takes
    // the list back first.
    let done = unsafe { libc::syscall(libc::SYS_set_robust_list, list, size_of::<RobustList>()) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
