//! What a receiver copies from the pipes of a sender that has pinned memory in them ([`crate::stream::pins`]). A signal
//! handler above such a call gets `EINTR`: what was read from a pipe is gone from there.

use core::ptr::NonNull;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;

use libc::{EFAULT, EINTR, c_int, iovec};
use shunt_engine::pinning::Costs;
use shunt_shm::Violation;
use shunt_shm::grants::{Grants, Held, Part};
use shunt_shm::ring::Span;

use crate::conn::Sock;
use crate::memory::imports::{self, Pipes};
use crate::stream::bytes::Buffers;
use crate::stream::pins;
use crate::system::clock;
use crate::system::errno::{self, KeepErrno};
use crate::system::next;
use crate::threads::signals::Uncancelled;

/// Longest wait for a sender that reads its pipes itself.
const PATIENCE: Duration = Duration::from_secs(1);

/// Some of the bytes of an entry, which are pinned.
#[derive(Clone, Copy, Debug)]
pub struct Pull {
    number: u32,
    pipes: &'static Pipes,
    lane: usize,
    /// So many of them were read already, and lie in the ring.
    pulled: usize,
}

/// A program's places for received bytes, after the first so many.
type Places<'a> = (&'a Buffers<'a>, usize);

impl Pull {
    /// Those of this entry after the first `skip`.
    pub fn new(
        sock: &Sock,
        pipes: &'static Pipes,
        number: u32,
        (part, skip): (&Part, u64),
    ) -> Result<Self, Violation> {
        let (lane, pulled) = sock.record().rx.pulls.of(part, skip)?;
        let pulled = usize::try_from(pulled - skip).unwrap_or(usize::MAX);
        Ok(Self { number, pipes, lane, pulled })
    }

    /// Reads those of `span` to their places in the ring that are not there.
    pub fn into_ring(
        &self,
        sock: &Sock,
        (grants, ring): (&Grants, NonNull<u8>),
        span: Span,
    ) -> Result<(), Violation> {
        let (_, rest) = span.split(self.pulled);
        self.read_to_ring(sock, (grants, ring), rest)
    }

    fn read_to_ring(
        &self,
        sock: &Sock,
        (grants, ring): (&Grants, NonNull<u8>),
        rest: Span,
    ) -> Result<(), Violation> {
        if rest.is_empty() {
            return Ok(());
        }
        let places = [rest.head, rest.tail].map(|(at, iov_len)| iovec {
            iov_base: ring.as_ptr().wrapping_add(at).cast(),
            iov_len,
        });
        // SAFETY: two entries.
        let Some(places) = (unsafe { Buffers::new(places.as_ptr(), 2) }) else { return Ok(()) };
        self.read(sock, grants, (&places, 0), rest.len()).map(drop)
    }

    /// Copies those of `span`, wherever they are, to the program's places.
    pub fn copy_out(
        &self,
        sock: &Sock,
        (grants, ring): (&Grants, NonNull<u8>),
        (buffers, at): Places<'_>,
        span: Span,
    ) -> Result<(), Violation> {
        let (here, rest) = span.split(self.pulled);
        // SAFETY: the program's buffers are writable, as recv(2) asks; the span is readable. Here and below.
        unsafe { buffers.copy_out(at, ring, here) };
        let at = at + here.len();
        let cost = &sock.record().rx.costs[1];
        let read = || self.read(sock, grants, (buffers, at), rest.len());
        let read = pins::timed(cost, rest.len(), read)?;
        let (_, back) = rest.split(read);
        // Where the program's place is none, as a copy will find, or nothing was left in the pipe.
        self.read_to_ring(sock, (grants, ring), back)?;
        // SAFETY: as above.
        unsafe { buffers.copy_out(at + read, ring, back) };
        Ok(())
    }

    /// Reads up to `len` bytes: how many. The others are in the ring.
    fn read(
        &self,
        sock: &Sock,
        grants: &Grants,
        (places, at): Places<'_>,
        len: usize,
    ) -> Result<usize, Violation> {
        let _keep = KeepErrno::new();
        let _uncancelled = Uncancelled::begin();
        let (pulls, pipe) = (&sock.record().rx.pulls, &self.pipes[self.lane]);
        let mut done = 0;
        let mut until = None;
        while done < len {
            let empty = iovec { iov_base: core::ptr::null_mut(), iov_len: 0 };
            let mut iov = [empty; 16];
            let count = places.rest(at + done, len - done, &mut iov);
            // SAFETY: the program's buffers are writable, as recv(2) asks, and so is the ring.
            let n = unsafe {
                next::readv(pipe.raw(), iov.as_ptr(), c_int::try_from(count).unwrap_or(0))
            };
            match usize::try_from(n) {
                Ok(n) if n > 0 => {
                    pulls.add(self.lane, n as u64);
                    done += n;
                    continue;
                }
                Err(_) if errno::get() == EINTR => continue,
                // A place of the program's that is none.
                Err(_) if errno::get() == EFAULT => return Ok(done),
                _ => {}
            }
            // Nothing is left there.
            match grants.held(self.number) {
                Held::TakenBack => break,
                Held::Taking if !is_late(&mut until) => {
                    std::thread::sleep(Duration::from_micros(50));
                }
                // Or the sender was killed in the middle of it.
                Held::Taking | Held::Granted => return Err(Violation::Grants),
            }
        }
        Ok(done)
    }
}

fn is_late(until: &mut Option<u64>) -> bool {
    let patience = u64::try_from(PATIENCE.as_nanos()).unwrap_or(u64::MAX);
    clock::now() > *until.get_or_insert_with(|| clock::now().saturating_add(patience))
}

/// Does a copy from the ring of `len` bytes; and notes how long it takes, where the sender wants to know. With the lock of the
/// direction held.
#[inline]
pub fn noting_a_copy(sock: &Sock, len: usize, copy: impl FnOnce()) {
    if len >= pins::REST && imports::has_pipes(sock) {
        let rx = &sock.record().rx;
        #[allow(clippy::cast_possible_truncation, reason = "the low half will do")]
        let turn = rx.messages.load(Relaxed) as u32;
        pins::timed_now_and_then(&rx.costs[0], turn, len, copy);
        tell_costs(sock);
    } else {
        copy();
    }
}

/// Tells the sender what copies take here.
pub fn tell_costs(sock: &Sock) {
    let Some((mine, _)) = sock.sections() else { return };
    let (told, now) = (&mine.ctl.costs, pins::costs(&sock.record().rx.costs));
    // The word is on a line of which the sender looks at others, too.
    if Costs::from_word(told.load(Relaxed)).differ(now) {
        told.store(now.to_word(), Relaxed);
    }
}
