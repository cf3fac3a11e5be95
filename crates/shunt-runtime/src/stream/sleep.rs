//! A blocking call's wait for one direction of its connection, as the engine's port: how it spins, arms, and sleeps on a
//! futex or in poll(2) on the kernel socket and the doorbell. What it does when is the engine's ([`shunt_engine::wait`]).

use core::sync::atomic::Ordering::Relaxed;
use std::os::fd::AsRawFd;

use libc::{POLLIN, c_short};
use rustix::net::sockopt::{Timeout, socket_timeout};
use shunt_engine::call::{Direction, Until};
use shunt_engine::conn::{End, kernel_events};
use shunt_engine::wait::{
    self, Blocking, Ears, Handlers, Hearing, Host, Limits, PAUSES, Placing, Slept, Stopwatch, Wait,
    Way, spins,
};
use shunt_shm::doorbell::{ON_FUTEX, arm, arm_bell};
use shunt_shm::region::Ctl;
use shunt_shm::sync::{AtomicU32, AtomicU64, prefetch};
use shunt_shm::waker::Waker;
use shunt_wire::counter::Counter;
use shunt_wire::waits::Part;

pub use shunt_engine::wait::Woken;

use crate::conn::{Conn, KERNEL_HINT, Sock};
use crate::control::endpoint;
use crate::control::thread_doorbell::ThreadDoorbell;
use crate::point;
use crate::probes;
use crate::stream::alarm;
use crate::stream::spin::{self, Spun, ThisProcess};
use crate::stream::{has_lost_agent, liveness, notify, peek, tcp, trim};
use crate::system::abi;
use crate::system::abi::pollfd;
use crate::system::clock;
use crate::system::errno;
use crate::system::kernel_poll;
use crate::threads::futexes;
use crate::threads::handlers::{self, Seen};
use crate::threads::placing;
use crate::threads::signals;

impl Host for ThisProcess {
    fn look_after(&self, now: u64) {
        trim::look(now);
    }

    fn alarm(&self) -> Option<u64> {
        alarm::next_look()
    }

    fn awake(&self) {
        alarm::awake();
    }

    fn doubt(&self) -> Option<u64> {
        liveness::next_look()
    }

    fn sleeps(&self, way: Way) {
        let counter = match way {
            Way::Futex => Counter::FutexSleeps,
            Way::Kernel => Counter::KernelSleeps,
        };
        endpoint::count(counter, 1);
        probes::sleeps(way);
    }

    fn wakes(&self) {
        probes::wakes();
    }

    fn placing(&self) -> Placing {
        placing::learnt()
    }

    fn learns_place(&self, placing: Placing) {
        placing::learn(placing);
    }

    fn processor(&self) -> u32 {
        placing::here()
    }

    fn goes_to(&self, processor: u32) {
        placing::go_to(processor);
    }
}

/// The waits of one call.
pub struct Sleep {
    conn: Conn,
    sock: &'static Sock,
    direction: Direction,
    times: Blocking,
    /// The signal handlers that have run before it, or were found not to end it.
    seen: Seen,
    /// It has not slept yet, and tells what calls below a handler have not told of. Once: two that wait for each other would else
    /// wake each other all the time.
    tells_below: bool,
    /// The call has moved some bytes: a signal ends it, whatever its handler is.
    pub has_moved: bool,
}

impl Sleep {
    /// For a call on a connection, which it holds before it waits.
    pub fn new(conn: Conn, direction: Direction) -> Self {
        let (sock, seen) = (conn.sock(), Seen::now());
        let times = Blocking::default();
        Self { conn, sock, direction, times, seen, tells_below: true, has_moved: false }
    }

    fn receiving(&self) -> bool {
        self.direction == Direction::Receiving
    }

    /// Waits.
    pub fn sleep(&mut self, until: Until) -> Woken {
        let end = self.sock.end();
        let mut waiting = Waiting { of: self, until, end, armed: 0, bell: None };
        wait::wait(&mut waiting, &ThisProcess)
    }

    /// When a sender looks whether it goes on over TCP, in nanoseconds from now.
    fn overflow(&self) -> Option<u64> {
        if self.receiving() { None } else { self.conn.end()?.next_look_for_room(clock::now()) }
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
}

/// Who of the peer began to wake those who wait for a connection, if it did since then.
pub fn rang(theirs: &Ctl, since: u64) -> Option<Waker> {
    Waker::since(theirs.rang.load(Relaxed), since)
}

/// The program's timeout, looked up when a call really has to wait.
fn timeout(conn: Conn, sock: &Sock, direction: Direction) -> Option<u64> {
    let record = sock.record();
    let (timeout, name) = match direction {
        Direction::Receiving => (&record.rx.timeout, Timeout::Recv),
        Direction::Sending => (&record.tx.timeout, Timeout::Send),
    };
    timeout.get(|| {
        let ask = |fd| socket_timeout(abi::borrow(fd), name).ok()?;
        let set = conn.ask(ask).flatten()?;
        Some(u64::try_from(set.as_nanos()).unwrap_or(u64::MAX))
    })
}

/// One of them.
struct Waiting<'a> {
    of: &'a mut Sleep,
    until: Until,
    /// `None`: there is no ring yet.
    end: Option<End<'static>>,
    /// The word by which it is woken, as it was armed for a futex.
    armed: u32,
    /// What it hears of it in the kernel.
    bell: Option<ThreadDoorbell>,
}

impl Waiting<'_> {
    fn word(&self) -> Option<&'static AtomicU32> {
        let ctl = &self.end.as_ref()?.mine.ctl;
        Some(if self.of.receiving() { &ctl.rx_arm } else { &ctl.tx_arm })
    }

    fn bells(&self) -> Option<&'static AtomicU64> {
        let ctl = &self.end.as_ref()?.mine.ctl;
        Some(if self.of.receiving() { &ctl.rx_bells } else { &ctl.tx_bells })
    }

    /// True when the kernel has something to tell.
    fn ask_kernel(&self) -> bool {
        let Sleep { sock, conn, direction, .. } = *self.of;
        let theirs = self.end.map(|end| end.theirs);
        let asked = kernel_events(sock.record(), theirs, direction, self.until);
        let has_told = conn.ask(|fd| tcp::readiness(fd, asked)).is_some_and(|told| told != 0);
        if has_told {
            sock.put(KERNEL_HINT, true);
        }
        has_told
    }

    /// Before a long nap: true when a program has gone, and the kernel has something to tell.
    #[cold]
    fn hears_of_the_gone(&self) -> bool {
        let (sock, gone) = (self.of.sock, self.of.sock.gone());
        if !sock.is_anybody_gone() {
            return false;
        }
        let has_told = self.ask_kernel();
        sock.has_waited_long(gone);
        has_told
    }

    fn on_futex(&self, longest: Option<u64>) -> Slept {
        let Some(word) = self.word() else { return Slept::NotAtAll };
        let agent = self.of.sock.endpoint().agent();
        let slept =
            futexes::sleep_on(&[(word, self.armed)], agent.as_slice(), self.of.seen, longest);
        point!(sleep_woken);
        slept
    }

    /// Sleeps in poll(2) on the kernel socket and the doorbell; and on the agent, where the peer is on another host.
    fn in_kernel(&mut self, longest: Option<u64>, awake: impl FnOnce(&mut Self, Slept)) -> Slept {
        let Sleep { sock, conn, direction, seen, .. } = *self.of;
        let theirs = self.end.map(|end| end.theirs);
        let asked = kernel_events(sock.record(), theirs, direction, self.until);
        let ear = self.bell.map_or(-1, |b| b.fd().as_raw_fd());
        // After the doorbell is armed: who closes the descriptor that the program knows rings it.
        let socket = conn.kernel().unwrap_or(-1);
        let mut fds = [
            pollfd { fd: socket, events: c_short::try_from(asked).unwrap_or(POLLIN), revents: 0 },
            pollfd { fd: ear, events: POLLIN, revents: 0 },
            pollfd { fd: liveness::lifeline(sock).unwrap_or(-1), events: 0, revents: 0 },
        ];
        let before = errno::get();
        let woken = handlers::sleep(seen, longest, |time| {
            // A cancellation point, as libc's function is.
            // SAFETY: memory of this thread; no mask.
            unsafe { kernel_poll::wait(&mut fds, time, core::ptr::null()) }
        });
        let slept = Slept::by_call(woken, || errno::get() == libc::EINTR);
        errno::set(before);
        awake(self, slept);
        point!(sleep_woken);
        if let Some(bell) = self.bell.filter(|_| fds[1].revents != 0) {
            bell.quiet();
        }
        if slept == Slept::Woken && fds[2].revents != 0 {
            has_lost_agent(conn);
        }
        if slept == Slept::Woken && fds[0].revents != 0 && self.until == Until::Ring {
            sock.put(KERNEL_HINT, true);
        }
        slept
    }
}

impl Wait for Waiting<'_> {
    const DEAF_LOOK: u64 = 100_000_000;
    const HEEDS_DOUBTS: bool = false;

    fn spin(&mut self) -> bool {
        let Self { of, until, end: Some(end), .. } = self else { return false };
        let (until, direction, sock) = (*until, of.direction, of.sock);
        let rx = &sock.record().rx;
        if !spins(direction, until, rx.marks.load(Relaxed) == 0) {
            return false;
        }
        let timeout = || timeout(of.conn, sock, direction);
        let deadline = of.times.spins_until(until, &ThisProcess, timeout);
        let ahead = of.ahead(end);
        let ready = || {
            prefetch(ahead);
            end.ends_wait(direction, until)
        };
        let mut is_told = of.is_told();
        let spun = spin::spin(Way::Futex, &rx.budget, deadline, || {
            if core::mem::take(&mut is_told) {
                (0..PAUSES).for_each(|_| core::hint::spin_loop());
            }
            ready()
        });
        let spins = match spun {
            Spun::Found(_) => &rx.spins[0],
            Spun::Vain(_) => {
                sock.leave_learnt();
                &rx.spins[1]
            }
            Spun::Not => return ready(),
        };
        spins.store(spins.load(Relaxed).wrapping_add(1), Relaxed);
        let spun = match spun {
            Spun::Vain(spell) if ready() => Spun::Found(spell),
            spun => spun,
        };
        self.spun(spun)
    }

    fn turn_in(&mut self) -> Result<Way, Woken> {
        let Self { of, until, end, .. } = self;
        let (until, direction, sock) = (*until, of.direction, of.sock);
        if core::mem::take(&mut of.tells_below) {
            notify::for_those_below(sock);
        }
        let ears = Ears {
            ring: end.is_some(),
            is_far: sock.is_far(),
            kernel: sock.has(KERNEL_HINT),
            agent: sock.endpoint().agent().is_some(),
            gone: sock.is_patient(),
        };
        let timeout = || timeout(of.conn, sock, direction);
        let ready = || end.as_ref().is_some_and(|end| end.ends_wait(direction, until));
        let lasted = |part, nanos| sock.count_wait(part, nanos);
        of.times.turn_in(until, &ThisProcess, ears, timeout, ready, lasted)
    }

    fn arm<T>(&mut self, way: Way, rest: impl FnOnce(&mut Self, Hearing) -> T) -> T {
        let mut hearing = Hearing::Woken;
        if let (Some(word), Some(bells)) = (self.word(), self.bells()) {
            self.bell = match way {
                Way::Futex => None,
                Way::Kernel => self.of.sock.ear(),
            };
            let armed = match way {
                Way::Futex => Some(arm(word, ON_FUTEX)),
                Way::Kernel => self.bell.map(|bell| arm_bell(word, bells, bell.vector())),
            };
            if let Some(armed) = armed {
                self.armed = armed;
                point!(sleep_armed);
            }
            // A sender whose receiver could not be told of our doorbell looks for itself.
            if armed.is_none() || !self.of.receiving() {
                hearing = Hearing::Deaf;
            }
        }
        rest(self, hearing)
    }

    #[inline]
    fn is_ready(&mut self) -> bool {
        let has_news = self.until != Until::Kernel
            && self.end.as_ref().is_some_and(|end| end.ends_wait(self.of.direction, self.until));
        has_news || (self.of.times.is_patient() && self.hears_of_the_gone())
    }

    fn limits(&mut self, way: Way) -> Limits {
        let of = &mut *self.of;
        let overflow = if self.until == Until::Ring { of.overflow() } else { None };
        let more = match self.until {
            Until::More(_) => peek::next_look(of.sock, of.times.waited()),
            _ => None,
        };
        let candidate = if self.end.is_none() { of.sock.next_look() } else { None };
        of.times.limits(way, [overflow, more, candidate].into_iter().flatten().min())
    }

    fn sleep(
        &mut self,
        way: Way,
        longest: Option<u64>,
        awake: impl FnOnce(&mut Self, Slept),
    ) -> Slept {
        match way {
            Way::Futex => {
                let slept = self.on_futex(longest);
                awake(self, slept);
                slept
            }
            Way::Kernel => self.in_kernel(longest, awake),
        }
    }

    fn visit(&mut self, slept: Slept) {
        self.of.times.looks(&ThisProcess);
        let gone = self.of.sock.gone();
        if !self.ask_kernel() && slept == Slept::Over {
            self.of.sock.has_waited_long(gone);
        }
    }

    fn was_woken(&mut self) {
        if self.of.times.was_woken(&ThisProcess) {
            self.of.sock.has_waited_shortly();
        }
    }

    fn teaches(&self) -> bool {
        self.of.sock.is_far()
    }

    fn rang(&self, _: Way, since: u64) -> Option<Waker> {
        if self.of.sock.is_far() { None } else { rang(&self.end.as_ref()?.theirs.ctl, since) }
    }

    fn follows(&self) -> bool {
        placing::follows(self.of.sock)
    }

    fn stopwatch(&mut self) -> &mut Stopwatch {
        self.of.times.stopwatch()
    }

    fn lasted(&mut self, part: Part, nanos: u64) {
        self.of.sock.count_wait(part, nanos);
    }

    fn handlers(&mut self, slept: Slept) -> Handlers {
        let always = self.of.times.always_ends(self.of.has_moved);
        let before = self.of.seen;
        let ends = signals::interrupts(&mut self.of.seen, slept == Slept::Interrupted, always);
        Handlers::of_a_call(ends, before != self.of.seen, || self.of.conn.is_named())
    }
}
