//! A call of the program on a connection: it goes on by *steps*, each of them one look with the lock of its direction held.

use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::compiler_fence;

pub use rustix::io::Errno;
use shunt_shm::arena::Copying;

/// Which way the bytes of a call go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// To the program.
    Receiving,
    /// From it.
    Sending,
}

/// What one step comes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The call returns the number of bytes that it has moved.
    Done,
    /// It fails; if it has moved some bytes it returns their number.
    Failed(Errno),
    /// Look again at once.
    Again,
    /// The peer has left the ring: follow it, then look again.
    Follow,
    /// Nothing to do until then.
    Wait(Until),
}

/// What can end a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Until {
    /// The ring, or the end that shows in it.
    Ring,
    /// The ring or the kernel socket.
    Both,
    /// The kernel socket alone.
    Kernel,
    /// More than was there when [`End::arrivals`](crate::conn::End::arrivals) said this.
    More(u64),
}

/// What the kernel socket did without waiting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kernel {
    /// Moved so many bytes.
    Moved(usize),
    /// `EAGAIN`.
    Nothing,
    /// Failed.
    Failed(Errno),
}

/// Moments in a step at which tests stop, interrupt and end threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// A sender has set a mark, and does not know it yet.
    MarkSet,
    /// A sender has a place in the ring.
    Reserved,
    /// Its bytes are there; or a receiver has copied them.
    Copied,
    /// The receiver can see them.
    Published,
    /// The other end was told.
    Told,
    /// A sender has written to the kernel socket.
    Written,
    /// A receiver has read from it.
    Read,
    /// It has taken bytes out of the ring.
    Taken,
    /// It has passed a mark that leads into the ring.
    Passed,
}

/// Runs `copy` while the direction's lock is held, such that a signal handler which interrupts it may use the direction
/// nevertheless ([`enter`]). False when one did, or has forked, and this is the child: nothing of what was known before
/// holds.
///
/// The handler runs on top of the very thread that copies, so plain stores in the order of the program are enough.
#[inline(always)]
pub fn interruptible<T>(copying: &Copying, copy: impl FnOnce() -> T) -> (T, bool) {
    let before = copying.calls.load(Relaxed);
    copying.open.store(1, Relaxed);
    compiler_fence(SeqCst);
    let result = copy();
    compiler_fence(SeqCst);
    // First the door, then the look: who comes later is turned away.
    copying.open.store(0, Relaxed);
    compiler_fence(SeqCst);
    (result, copying.calls.load(Relaxed) == before)
}

/// A step of a call, while it holds the direction's lock, or is above one that does.
#[derive(Debug)]
#[must_use]
pub struct Entered<'a>(Option<&'a Copying>);

/// A step begins, under the direction's lock. `is_nested`: in a signal handler above a call that has the lock. Then it may go on
/// if that one is only copying, and will notice; otherwise it is turned away, with `None`. It shuts the door behind it: the next
/// handler above this step would find it in the middle.
#[inline]
pub fn enter(is_nested: bool, copying: &Copying) -> Option<Entered<'_>> {
    if is_nested { intrude(copying) } else { Some(Entered(None)) }
}

#[cold]
fn intrude(copying: &Copying) -> Option<Entered<'_>> {
    if copying.open.load(Relaxed) == 0 {
        return None;
    }
    copying.open.store(0, Relaxed);
    copying.calls.store(copying.calls.load(Relaxed).wrapping_add(1), Relaxed);
    compiler_fence(SeqCst);
    Some(Entered(Some(copying)))
}

impl Drop for Entered<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(copying) = self.0 {
            compiler_fence(SeqCst);
            // The call below copies still.
            copying.open.store(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comes_in(copying: &Copying) -> bool {
        enter(true, copying).is_some()
    }

    #[test]
    fn one_that_copies_notices_who_came_meanwhile() {
        let copying = Copying::default();
        assert!(!comes_in(&copying), "the door is shut");
        assert!(enter(false, &copying).is_some(), "nobody is below");
        assert_eq!(interruptible(&copying, || 1), (1, true));
        assert_eq!(interruptible(&copying, || comes_in(&copying)), (true, false));
        let outer = || interruptible(&copying, || 2).1;
        assert_eq!(interruptible(&copying, outer), (true, true), "who comes goes by `enter`");
        assert!(!comes_in(&copying));
    }

    #[test]
    fn a_handler_above_one_that_came_in_is_turned_away_unless_that_one_copies() {
        let copying = Copying::default();
        let first = || {
            let entered = enter(true, &copying);
            let second = comes_in(&copying);
            let while_it_copies = interruptible(&copying, || comes_in(&copying));
            (entered.is_some(), second, while_it_copies)
        };
        assert_eq!(interruptible(&copying, first), ((true, false, (true, false)), false));
        assert!(!comes_in(&copying));
        let two_steps = || (comes_in(&copying), comes_in(&copying));
        assert_eq!(
            interruptible(&copying, two_steps),
            ((true, true), false),
            "one after the other"
        );
    }
}
