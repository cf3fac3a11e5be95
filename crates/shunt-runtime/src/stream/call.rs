//! The common part of receiving and sending calls: the loop of looking and waiting, and the
//! kernel's part.

use libc::{EAGAIN, ECONNRESET, MSG_DONTWAIT, MSG_NOSIGNAL, c_int, iovec, msghdr};
use shunt_engine::call::{Direction, Errno, Kernel, Step, Until};
use shunt_engine::conn::is_settled;
use shunt_engine::conn::repeated::are_pending;
use shunt_engine::handshake::Phase;
use shunt_engine::kernel::has_failed;
use shunt_shm::Violation;

use crate::conn::{Conn, Hold, NONBLOCK};
use crate::epoll::tell;
use crate::point;
use crate::stream::borrow::Request;
use crate::stream::bytes::Buffers;
use crate::stream::in_doubt::Progress;
use crate::stream::marked::{self, Awaited};
use crate::stream::sleep::{Sleep, Woken};
use crate::stream::tcp::Socket;
use crate::stream::{broken, demote, peer_death, promote};
use crate::system::errno;
use crate::system::next;
use crate::threads::signals;

/// One call.
pub struct Call<'a> {
    /// The connection.
    pub conn: Conn,
    /// Keeps it once the call goes on after its first step.
    pub hold: Hold,
    /// The program's buffers.
    pub buffers: Buffers<'a>,
    /// `MSG_*`.
    pub flags: c_int,
    /// What is asked for beyond it.
    pub request: Request<'a>,
    /// The same call on a descriptor of the kernel socket, with these flags added.
    pub kernel: &'a mut dyn FnMut(c_int, c_int) -> isize,
}

/// The bytes that were moved, or the error when there are none.
pub fn or_error(done: usize, error: c_int) -> isize {
    if done > 0 { done.cast_signed() } else { errno::fail(error) }
}

/// Looks and waits until the call has its result. `step`: one look, which counts the bytes that it
/// moved; its last argument says that the call may wait. Where it is not done it has the call hold the
/// connection before it lets go of the direction's lock.
#[inline]
pub fn run(
    call: &mut Call<'_>,
    direction: Direction,
    step: impl FnMut(&mut Call<'_>, &mut usize, bool) -> Result<Step, Violation>,
) -> isize {
    signals::cancellation_point();
    let conn = call.conn;
    match direction {
        Direction::Receiving => point!(recv_begins),
        Direction::Sending => point!(send_begins),
    }
    let phase = match promote::advance(conn) {
        Phase::Proposed => await_answer(conn, direction, is_blocking(call)),
        settled => Some(settled),
    };
    let Some(phase) = phase else { return errno::fail(EAGAIN) };
    match phase {
        // As if the library were not there: the kernel looks the number up.
        Phase::Tcp => return (call.kernel)(conn.descriptor(), 0),
        Phase::Broken => return errno::fail(ECONNRESET),
        _ => {}
    }
    let mut progress = Progress::begins(conn, 0);
    let result = look_and_wait(call, direction, &mut progress.done, step);
    progress.ends();
    result
}

/// A first call on a connection whose proposal has not been answered. Returns where the connection stands; `None` where the kernel is
/// connecting it still, and the call has to wait for that, and does not.
#[cold]
fn await_answer(conn: Conn, direction: Direction, waits: bool) -> Option<Phase> {
    match marked::await_answer(conn, waits) {
        Some(Awaited::Connecting) => return None,
        Some(Awaited::Settled) => {}
        None if direction == Direction::Sending => promote::await_answer(conn),
        None => {}
    }
    Some(conn.phase())
}

#[inline(always)]
fn is_blocking(call: &Call<'_>) -> bool {
    call.flags & MSG_DONTWAIT == 0 && !call.conn.has(NONBLOCK)
}

#[inline(always)]
fn look_and_wait(
    call: &mut Call<'_>,
    direction: Direction,
    done: &mut usize,
    mut step: impl FnMut(&mut Call<'_>, &mut usize, bool) -> Result<Step, Violation>,
) -> isize {
    let conn = call.conn;
    let blocking = is_blocking(call);
    let mut sleep = None;
    loop {
        let phase = match conn.link() {
            // Another process that holds the end has taken it up since the call began.
            None if is_settled(conn.record()) => promote::advance(conn),
            _ => conn.phase(),
        };
        if phase == Phase::Candidate && is_settled(conn.record()) {
            // In the handler of a fault, above the very step that takes it up.
            return or_error(*done, libc::EINTR);
        }
        // In another thread, or in this one while it followed a peer.
        if phase == Phase::Broken {
            return or_error(*done, ECONNRESET);
        }
        let until = match step(call, done, blocking) {
            Ok(Step::Done) => return done.cast_signed(),
            Ok(Step::Failed(error)) => return or_error(*done, error.raw_os_error()),
            Ok(Step::Again) => {
                between(direction);
                continue;
            }
            Ok(Step::Follow) if demote::follow(conn) => continue,
            Ok(Step::Follow) => return or_error(*done, libc::EINTR),
            Ok(Step::Wait(until)) => until,
            Err(_) => {
                let _lock = conn.lock_rx();
                broken(conn);
                continue;
            }
        };
        between(direction);
        if are_pending(conn.record()) {
            demote::go_on(conn);
        }
        if !blocking {
            if direction == Direction::Sending && until == Until::Both {
                tell::wants_room(conn.descriptor());
            }
            return or_error(*done, EAGAIN);
        }
        let sleep = sleep.get_or_insert_with(|| Sleep::new(conn, direction));
        match sleep.wait(until, *done) {
            Woken::Look => {}
            Woken::TimedOut => return or_error(*done, EAGAIN),
            Woken::Interrupted => return or_error(*done, libc::EINTR),
            // The kernel's call, unless it would be one past another connection.
            Woken::Restarted if Conn::named(conn.descriptor()).is_none() => {
                return (call.kernel)(conn.descriptor(), 0);
            }
            Woken::Restarted => return or_error(*done, libc::EINTR),
        }
        // A candidate may have been taken up, or declined, by another thread.
        if conn.link().is_none() {
            promote::advance(conn);
        }
    }
}

/// Between two steps of a call.
#[inline(always)]
fn between(direction: Direction) {
    match direction {
        Direction::Receiving => point!(recv_between),
        Direction::Sending => point!(send_between),
    }
}

impl Sleep {
    /// Waits, after so many bytes.
    pub fn wait(&mut self, until: Until, done: usize) -> Woken {
        self.has_moved = done > 0;
        self.sleep(until)
    }
}

impl Call<'_> {
    /// Has the kernel socket, `fd`, do up to `limit` bytes of what is left after the first `done`,
    /// without waiting. With the direction's lock held.
    pub fn on_kernel(
        &mut self,
        fd: c_int,
        direction: Direction,
        done: usize,
        limit: usize,
    ) -> Kernel {
        let left = self.buffers.total - done;
        // The kernel tells an error once. This call returns what it has sent, so that is the next one's to hear.
        if done > 0 && direction == Direction::Sending && has_failed(&Socket(fd)) {
            return Kernel::Failed(Errno::CONNRESET);
        }
        match self.request {
            Request::From(source) => return source.to_socket(fd, left),
            Request::Into(sink) => return sink.from_socket(fd, limit.min(left)),
            _ => {}
        }
        let before = errno::get();
        let n = if done == 0 && limit >= self.buffers.total {
            (self.kernel)(fd, MSG_DONTWAIT)
        } else {
            let empty = iovec { iov_base: core::ptr::null_mut(), iov_len: 0 };
            let mut iov = [empty; 16];
            let count = self.buffers.rest(done, limit, &mut iov);
            // SAFETY: all zero is a valid msghdr.
            let mut msg: msghdr = unsafe { core::mem::zeroed() };
            msg.msg_iov = iov.as_mut_ptr();
            msg.msg_iovlen = count;
            let flags = self.flags | MSG_DONTWAIT;
            // SAFETY: the entries are those of the program's call.
            unsafe {
                match direction {
                    Direction::Receiving => next::recvmsg(fd, &raw mut msg, flags),
                    // The first part was sent, so the call does not fail and raises no signal.
                    Direction::Sending => next::sendmsg(fd, &raw const msg, flags | MSG_NOSIGNAL),
                }
            }
        };
        match usize::try_from(n) {
            Ok(n) => Kernel::Moved(n),
            Err(_) if errno::get() == EAGAIN => {
                errno::set(before);
                Kernel::Nothing
            }
            Err(_) => {
                let error = errno::get();
                // It came only just now.
                if done > 0 && error == ECONNRESET {
                    peer_death::tell_later(&self.conn);
                }
                Kernel::Failed(Errno::from_raw_os_error(error))
            }
        }
    }
}
