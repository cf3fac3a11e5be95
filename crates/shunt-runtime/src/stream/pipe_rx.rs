//! Reading from the pipes of a sender that has pinned memory in them ([`crate::stream::pipe_tx`]). A signal handler above such a
//! call gets `EINTR`: what was read from a pipe is gone from there. The rules are the engine's ([`shunt_engine::zerocopy::pipes`]).

use core::ptr::NonNull;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;

use libc::{EFAULT, EINTR, c_int, iovec};
use shunt_engine::pinning::REST;
use shunt_engine::zerocopy::ports::Piped;
use shunt_shm::ring::Span;

use crate::conn::Sock;
use crate::fds::own_fds::OwnFd;
use crate::memory::imports;
use crate::stream::bytes::Buffers;
use crate::stream::pipe_tx;
use crate::system::clock;
use crate::system::errno::{self, KeepErrno};
use crate::system::next;
use crate::threads::signals::Uncancelled;

/// Longest wait for a sender that reads its pipes itself.
const PATIENCE: Duration = Duration::from_secs(1);

/// Does something with pipes such that the thread is not cancelled in the middle, and `errno` stays as it is.
pub fn uncancelled<T>(what: impl FnOnce() -> T) -> T {
    let _keep = KeepErrno::new();
    let _uncancelled = Uncancelled::begin();
    what()
}

/// Reads up to `len` bytes to a program's places after the first `at`.
pub fn read(pipe: &OwnFd, (places, at): (&Buffers<'_>, usize), len: usize) -> Piped {
    let empty = iovec { iov_base: core::ptr::null_mut(), iov_len: 0 };
    let mut iov = [empty; 16];
    let count = places.rest(at, len, &mut iov);
    // SAFETY: the program's buffers are writable, as recv(2) asks, and so is the ring.
    let n = unsafe { next::readv(pipe.raw(), iov.as_ptr(), c_int::try_from(count).unwrap_or(0)) };
    match usize::try_from(n) {
        Ok(n) if n > 0 => Piped::Bytes(n),
        Err(_) if errno::get() == EINTR => Piped::Interrupted,
        Err(_) if errno::get() == EFAULT => Piped::BadPlace,
        _ => Piped::Nothing,
    }
}

/// The same to a span of the ring that begins there.
pub fn read_to_ring(pipe: &OwnFd, ring: NonNull<u8>, span: Span) -> Piped {
    let places = [span.head, span.tail]
        .map(|(at, iov_len)| iovec { iov_base: ring.as_ptr().wrapping_add(at).cast(), iov_len });
    // SAFETY: two entries.
    match unsafe { Buffers::new(places.as_ptr(), 2) } {
        Some(places) => read(pipe, (&places, 0), span.len()),
        None => Piped::BadPlace,
    }
}

/// Waits a little. False when that was for long since the first time.
pub fn wait(until: &mut Option<u64>) -> bool {
    let patience = u64::try_from(PATIENCE.as_nanos()).unwrap_or(u64::MAX);
    let is_late =
        clock::now() > *until.get_or_insert_with(|| clock::now().saturating_add(patience));
    if !is_late {
        std::thread::sleep(Duration::from_micros(50));
    }
    !is_late
}

/// Does a copy from the ring of `len` bytes; and notes how long it takes, where the sender wants to know. With the lock of the
/// direction held.
#[inline]
pub fn noting_a_copy(sock: &Sock, len: usize, copy: impl FnOnce()) {
    if len >= REST && imports::has_pipes(sock) {
        let rx = &sock.record().rx;
        #[allow(clippy::cast_possible_truncation, reason = "the low half will do")]
        let turn = rx.messages.load(Relaxed) as u32;
        pipe_tx::timed_now_and_then(&rx.costs[0], turn, len, copy);
        tell_costs(sock);
    } else {
        copy();
    }
}

/// Tells the sender what copies take here.
pub fn tell_costs(sock: &Sock) {
    if let Some(end) = sock.end() {
        end.tell_costs();
    }
}
