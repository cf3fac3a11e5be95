//! Waiting inside a blocking call: spin, then futex, then the kernel's poll.
//!
//! A futex wake-up costs half of an eventfd's, but a futex does not notice that the peer's process
//! was killed. So the first `FUTEX_FOR` of a wait are spent on the futex, and what is longer in
//! poll(2) on the kernel socket and the doorbell, where it costs nothing and sees everything.

use core::sync::atomic::Ordering::Relaxed;
use std::os::fd::AsRawFd;

use libc::{POLLIN, POLLOUT, POLLRDHUP};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, socket_timeout};
use shunt_engine::call::{Direction, Until};
use shunt_engine::conn::End;
use shunt_engine::conn::repeated::are_pending;
use shunt_shm::doorbell::{ON_FUTEX, arm, futex_wait_timed, on_bell};
use shunt_shm::sync::{AtomicU32, prefetch};
use shunt_wire::counter::Counter;

use crate::conn::{Conn, KERNEL_HINT, SHUT_RD, Sock};
use crate::control::endpoint;
use crate::point;
use crate::stream::alarm;
use crate::stream::spin::{self, Spun};
use crate::stream::{peek, trim};
use crate::system::abi;
use crate::system::abi::pollfd;
use crate::system::clock;
use crate::system::errno;
use crate::system::kernel_poll;
use crate::threads::handlers::{self, Seen};
use crate::threads::signals;

/// Longest spin for the first byte.
const FIRST_FOR: u64 = 50_000;

/// Longest sleep on a futex.
const FUTEX_FOR: u64 = 20_000_000;

/// Pauses before a look for more of what a peer tells without being asked: some hundred nanoseconds. A receiver that is
/// faster than its sender would else take the cursor's line from it after every message, and each of the two would wait
/// for the line.
const PAUSES: u32 = 16;

/// How a wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Woken {
    /// There may be something: look.
    Look,
    /// `SO_RCVTIMEO` or `SO_SNDTIMEO` has passed.
    TimedOut,
    /// A signal handler ran whose call is not to be restarted.
    Interrupted,
    /// One ran whose call is, and its descriptor does not stand for the connection any more.
    Restarted,
}

/// The waits of one call.
pub struct Sleep {
    conn: Conn,
    sock: &'static Sock,
    direction: Direction,
    /// When the program's timeout ends; `None` until it was asked for.
    deadline: Option<Option<u64>>,
    /// When this wait began.
    since: u64,
    /// The signal handlers that have run before it, or were found not to end it.
    seen: Seen,
    /// The call has moved some bytes: a signal ends it, whatever its handler is.
    pub has_moved: bool,
}

impl Sleep {
    /// For a call on a connection, which it holds before it waits.
    pub fn new(conn: Conn, direction: Direction) -> Self {
        let (sock, seen) = (conn.sock(), Seen::now());
        Self { conn, sock, direction, deadline: None, since: 0, seen, has_moved: false }
    }

    fn receiving(&self) -> bool {
        self.direction == Direction::Receiving
    }

    /// The program's timeout, looked up when a call really has to wait.
    fn deadline(&mut self, now: u64) -> Option<u64> {
        *self.deadline.get_or_insert_with(|| {
            let record = self.sock.record();
            let (timeout, name) = match self.direction {
                Direction::Receiving => (&record.rx.timeout, Timeout::Recv),
                Direction::Sending => (&record.tx.timeout, Timeout::Send),
            };
            let ask = || {
                let ask = |fd| socket_timeout(abi::borrow(fd), name).ok()?;
                let set = self.conn.ask(ask).flatten()?;
                Some(u64::try_from(set.as_nanos()).unwrap_or(u64::MAX))
            };
            timeout.get(ask).map(|nanos| now.saturating_add(nanos))
        })
    }

    /// True when there is something to look at.
    #[inline]
    fn ready(&self, until: Until, end: &End<'_>) -> bool {
        end.ends_wait(self.direction, until)
    }

    /// Waits.
    pub fn sleep(&mut self, until: Until) -> Woken {
        let Some(end) = &self.sock.end() else {
            return self.in_kernel(until, None, clock::now());
        };
        let word = if self.receiving() { &end.mine.ctl.rx_arm } else { &end.mine.ctl.tx_arm };
        if until == Until::Ring || self.is_first(until) {
            if spin::is_long() {
                self.deadline(clock::now());
            }
            if self.spin(until, end) {
                return Woken::Look;
            }
        }
        let now = clock::now();
        trim::look(now);
        if self.since == 0 {
            self.since = now;
        }
        let deadline = self.deadline(now);
        if deadline.is_some_and(|d| now >= d) {
            return Woken::TimedOut;
        }
        // Not with a timeout: it may be long before the processor is given back.
        let once = until == Until::Ring && deadline.is_none() && self.since == now;
        if once && spin::yield_until(|| self.ready(until, end)) {
            return Woken::Look;
        }
        let futex_until = self.since.saturating_add(FUTEX_FOR);
        if until == Until::Ring && now < futex_until && !self.sock.is_far() {
            let left = deadline.map_or(futex_until, |d| d.min(futex_until)) - now;
            let left = self.overflow().map_or(left, |look| look.min(left));
            return self.on_futex(word, end, left);
        }
        self.in_kernel(until, Some((word, end)), now)
    }

    /// When a sender looks whether it goes on over TCP, in nanoseconds from now.
    fn overflow(&self) -> Option<u64> {
        if self.receiving() { None } else { self.conn.end()?.next_look_for_room(clock::now()) }
    }

    /// True before the first byte: it will come through the ring, if the peer has heard of it in time.
    fn is_first(&self, until: Until) -> bool {
        let rx = &self.sock.record().rx;
        until == Until::Both && self.receiving() && rx.marks.load(Relaxed) == 0
    }

    /// What a receiver reads once the cursor has moved. It is fetched together with that, as each line takes its time from
    /// core to core.
    fn ahead(&self, end: &End<'_>) -> *const u8 {
        let record = self.sock.record();
        let (true, Some(link)) = (self.receiving(), self.sock.link()) else {
            return core::ptr::null();
        };
        let (view, slot, side) = (link.view(), record.slot(), record.side());
        if end.theirs.prod.grants.load(Relaxed) == 0 {
            let at = record.rx.cursor.next_at(view.geometry().ring() as u64);
            view.buffer(slot, side).as_ptr().wrapping_add(at)
        } else {
            view.grants(slot, side).place(record.rx.grants.load(Relaxed))
        }
    }

    /// True for who has said nothing since it last waited here: no answer is what comes next, but more of what came.
    fn is_told(&self) -> bool {
        let said = self.sock.record().tx.messages.load(Relaxed);
        self.receiving() && self.sock.said.swap(said, Relaxed) == said
    }

    fn spin(&self, until: Until, end: &End<'_>) -> bool {
        let rx = &self.sock.record().rx;
        let ahead = self.ahead(end);
        let ready = || {
            prefetch(ahead);
            self.ready(until, end)
        };
        // Bytes that come over TCP after all are not seen here.
        let first = (until == Until::Both).then(|| clock::now() + FIRST_FOR);
        let deadline = self.deadline.flatten().into_iter().chain(first).min();
        let mut is_told = self.is_told();
        let spun = spin::spin(&rx.budget, deadline, || {
            if core::mem::take(&mut is_told) {
                (0..PAUSES).for_each(|_| core::hint::spin_loop());
            }
            ready()
        });
        let spins = match spun {
            Spun::Found => &rx.spins[0],
            Spun::Vain => &rx.spins[1],
            Spun::Not => return ready(),
        };
        spins.store(spins.load(Relaxed).wrapping_add(1), Relaxed);
        spun == Spun::Found || ready()
    }

    fn on_futex(&mut self, word: &AtomicU32, end: &End<'_>, left: u64) -> Woken {
        let armed = arm(word, ON_FUTEX);
        point!(sleep_armed);
        if self.ready(Until::Ring, end) {
            return Woken::Look;
        }
        endpoint::count(Counter::FutexSleeps, 1);
        let slept = handlers::sleep(self.seen, Some(left), |time| {
            // SAFETY: memory of this thread, laid out as rustix has it too, of which nothing but its address is used before
            // the kernel reads it.
            futex_wait_timed(word, armed, Some(unsafe { &*time.cast() }))
        });
        point!(sleep_woken);
        match slept {
            // Something may have come before the signal.
            Some(Ok(()) | Err(Errno::AGAIN)) => Woken::Look,
            Some(Err(error)) => self.interrupted(error == Errno::INTR),
            None => self.interrupted(false),
        }
    }

    /// What comes of a sleep that has found nothing.
    fn interrupted(&mut self, by_error: bool) -> Woken {
        let always = self.has_moved || self.deadline.flatten().is_some();
        let before = self.seen;
        if signals::interrupts(&mut self.seen, by_error, always) {
            return Woken::Interrupted;
        }
        // The kernel looks the number up once more.
        let is_begun_anew = before != self.seen && !self.conn.is_named();
        if is_begun_anew { Woken::Restarted } else { Woken::Look }
    }

    /// Sleeps in poll(2) on the kernel socket and the doorbell.
    fn in_kernel(&mut self, until: Until, ring: Option<(&AtomicU32, &End<'_>)>, now: u64) -> Woken {
        if self.since == 0 {
            self.since = now;
        }
        let deadline = self.deadline(now);
        if deadline.is_some_and(|d| now >= d) {
            return Woken::TimedOut;
        }
        let events = match (self.receiving(), until) {
            (true, Until::More(_)) if are_pending(self.sock.record()) => POLLRDHUP | POLLOUT,
            (true, Until::More(_)) => POLLRDHUP,
            (true, _) if are_pending(self.sock.record()) => POLLIN | POLLRDHUP | POLLOUT,
            (true, _) => POLLIN | POLLRDHUP,
            // In a ring stretch the kernel socket always has room; only an end that the peer did not
            // announce is of interest.
            (false, Until::Ring)
                if !self.sock.has(SHUT_RD)
                    && ring.is_some_and(|(_, end)| end.theirs.prod.fin.load(Relaxed) == 0) =>
            {
                POLLRDHUP
            }
            (false, Until::Ring) => 0,
            (false, _) => POLLOUT,
        };
        let bell = ring.and_then(|_| self.sock.ear());
        let ear = bell.map_or(-1, |b| b.fd().as_raw_fd());
        if let (Some((word, end)), Some(bell)) = (ring, bell) {
            arm(word, on_bell(bell.vector()));
            point!(sleep_armed);
            if until != Until::Kernel && self.ready(until, end) {
                return Woken::Look;
            }
        }
        // After the doorbell is armed: who closes the descriptor that the program knows rings it.
        let socket = self.conn.kernel().unwrap_or(-1);
        let mut fds = [
            pollfd { fd: socket, events, revents: 0 },
            pollfd { fd: ear, events: POLLIN, revents: 0 },
        ];
        endpoint::count(Counter::KernelSleeps, 1);
        let left = deadline.map(|d| d - now);
        let longest = match (ring, self.receiving()) {
            // Without a doorbell to hear: descriptors have run out.
            (Some(_), _) if bell.is_none() => Some(LOOK),
            (None, _) => self.sock.next_look(),
            // A sender whose receiver could not be told of our doorbell looks for itself.
            (Some(_), false) => Some(LOOK),
            (Some(_), true) => None,
        };
        let overflow = if until == Until::Ring { self.overflow() } else { None };
        let more = match until {
            Until::More(_) => peek::next_look(self.sock, now - self.since),
            _ => None,
        };
        let left = [left, longest, overflow, more, alarm::next_look()].into_iter().flatten().min();
        let before = errno::get();
        let woken = handlers::sleep(self.seen, left, |time| {
            // A cancellation point, as libc's function is.
            // SAFETY: memory of this thread; no mask.
            unsafe { kernel_poll::wait(&mut fds, time, core::ptr::null()) }
        });
        let woken = woken.unwrap_or(0);
        let by_error = woken < 0 && errno::get() == libc::EINTR;
        errno::set(before);
        alarm::awake();
        point!(sleep_woken);
        if woken == 0 {
            trim::look(clock::now());
        }
        if woken > 0 && self.sock.is_far() {
            spin::slept(now);
        }
        if let Some(bell) = bell.filter(|_| fds[1].revents != 0) {
            bell.quiet();
        }
        if woken <= 0 {
            return self.interrupted(by_error);
        }
        if fds[0].revents != 0 && until == Until::Ring {
            self.sock.put(KERNEL_HINT, true);
        }
        Woken::Look
    }
}

/// Longest sleep of a sender in the kernel.
const LOOK: u64 = 100_000_000;
