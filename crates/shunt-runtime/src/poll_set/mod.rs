//! A set of descriptors that poll(2) or select(2) waits for, with shunted connections in it.
//!
//! Shunted connections are looked at here, all others by the kernel. When nothing is ready, a call that waits for shunted
//! connections alone sleeps on their arm words (futex(2), futex_waitv(2)). Otherwise the kernel's poll sleeps for both: for
//! the others' events, for the ends of the shunted connections, and for this thread's doorbell.
//!
//! As in the kernel (`do_poll` and `do_select` in fs/select.c), a call waits for what the descriptors stood
//! for when it began, and so holds the connections. But whatever it finds in a later look it finds by the
//! numbers: when the old file wakes a call whose descriptor was closed, or used again, the call tells of the
//! file that has the number by then.
//!
//! The order of the looks, spins and sleeps is the engine's ([`shunt_engine::wait`]).

mod target;

use libc::{EINTR, POLLIN, POLLOUT, POLLPRI, POLLRDHUP, POLLRDNORM, c_short};
use shunt_engine::conn::repeated::are_known;
use shunt_engine::conn::{End, SendPath};
use shunt_engine::events;
use shunt_engine::handshake::Phase;
use shunt_engine::wait::{
    Handlers, Hearing, Limits, Naps, SOON, Set, Slept, Spinner, Stopwatch, Wait, Way, Woken,
    wait_for,
};
use shunt_shm::doorbell::arm_bell;
use shunt_shm::sync::AtomicU32;
use shunt_shm::waker::Waker;
use shunt_wire::waits::Part;

use crate::calls::{Has, UnderWay};
use crate::conn::{Conn, Hold, KERNEL_HINT, NUMBERED, Sock};
use crate::control::endpoint;
use crate::control::thread_doorbell::ThreadDoorbell;
use crate::epoll::nested::Awaited;
use crate::point;
use crate::poll_set::target::{Target, by_number, wanted};
use crate::stream::sleep::rang;
use crate::stream::spin::{self, Spun, ThisProcess};
use crate::stream::{has_lost_agent, liveness, notify, trim};
use crate::system::abi::{c_int, nfds_t, pollfd, sigset_t, timespec};
use crate::system::errno::{self, KeepErrno};
use crate::system::kernel_poll;
use crate::threads::futexes::{Words, can_sleep_on};
use crate::threads::handlers::Seen;
use crate::threads::placing;
use crate::threads::{handlers, signals};

/// Writes an entry's result; 1 when there is one.
fn tell(entry: &mut pollfd, ready: u32) -> c_int {
    let ready = ready & (wanted(entry) | events::ALWAYS | events::NVAL);
    entry.revents = c_short::from_ne_bytes(low_half(ready));
    c_int::from(entry.revents != 0)
}

/// poll(2), by `kernel` where it is that one's business alone. `deadline` is asked for when it is not, and says what
/// ends the wait; or that the kernel refuses the time.
///
/// # Safety
/// `fds` points to `count` entries, the mask is null or valid.
#[inline]
pub unsafe fn poll(
    (fds, count): (*mut pollfd, nfds_t),
    deadline: impl FnOnce() -> Option<Option<u64>>,
    mask: *const sigset_t,
    kernel: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let found = unsafe { shunted(fds, count) };
    match found.and_then(|fds| Some((fds, deadline()?))) {
        Some((fds, deadline)) => wait(fds, deadline, mask).found,
        None => kernel(),
    }
}

/// The array, if a shunted connection is in it.
///
/// # Safety
/// `fds` points to `count` entries.
#[inline]
unsafe fn shunted<'a>(fds: *mut pollfd, count: nfds_t) -> Option<&'a mut [pollfd]> {
    let count = usize::try_from(count).ok()?;
    if fds.is_null() || count == 0 || kernel_poll::refuses(count) {
        return None;
    }
    // SAFETY: the caller's promise.
    let fds = unsafe { core::slice::from_raw_parts_mut(fds, count) };
    concerns(fds).then_some(fds)
}

/// True when a shunted connection is, or may be, among the descriptors.
pub fn concerns(fds: &[pollfd]) -> bool {
    fds.iter().any(|p| !matches!(Target::of(p.fd), Target::Kernel))
}

/// What spins for several connections at a time have taught, in all threads of the process.
static BUDGET: AtomicU32 = AtomicU32::new(0);

/// The program's array, and what its entries stand for.
struct PollSet<'a> {
    fds: &'a mut [pollfd],
    targets: Vec<Target>,
    deadline: Option<u64>,
    mask: *const sigset_t,
    /// The signal handlers that have run before the call.
    seen: Seen,
    /// Of `holds`, once the call waits.
    noted: Option<UnderWay>,
    /// The connections, once the call waits.
    holds: Vec<Hold>,
    /// Which ways they sent before the look in front of a sleep in the kernel.
    paths: Vec<SendPath>,
    /// How many of them were in a ring then.
    rings: usize,
    /// What this thread hears of them in a sleep in the kernel.
    ears: Vec<ThreadDoorbell>,
    /// By what it is woken in a sleep on futexes.
    words: Words,
    naps: Naps,
    /// Some entry is the kernel's.
    others: bool,
    /// It has not slept yet, and tells what calls below a handler have not told of: once, as [`crate::stream::sleep`] does.
    tells_below: bool,
    /// It had nothing to tell at first, and went on.
    slept: bool,
    stopwatch: Stopwatch,
}

/// What a wait came to.
pub struct Waited {
    /// The number of entries with events; -1 with errno.
    pub found: c_int,
    /// It had nothing to tell at first, and went on.
    pub slept: bool,
}

/// poll(2).
pub fn wait(fds: &mut [pollfd], deadline: Option<u64>, mask: *const sigset_t) -> Waited {
    signals::cancellation_point();
    // Before the descriptors are looked up: a handler that runs later may have been called because of what became of one.
    let seen = Seen::now();
    let targets = fds.iter().map(|p| Target::of(p.fd)).collect();
    let mut set = PollSet {
        fds,
        targets,
        deadline,
        mask,
        seen,
        noted: None,
        holds: Vec::new(),
        paths: Vec::new(),
        rings: 0,
        ears: Vec::new(),
        words: Words::default(),
        naps: Naps::default(),
        tells_below: true,
        others: false,
        slept: false,
        stopwatch: Stopwatch::default(),
    };
    point!(poll_begins);
    let found = wait_for(&mut set, &ThisProcess);
    Waited { found, slept: set.slept }
}

impl Set for PollSet<'_> {
    type Answer = c_int;

    fn look(&mut self) -> Option<c_int> {
        loop {
            self.note_news();
            for p in self.fds.iter_mut() {
                p.revents = 0;
            }
            let mut found = self.look_at_conns();
            if self.others || !self.mask.is_null() {
                match self.ask_about_others(self.mask) {
                    n if n >= 0 => found += n,
                    _ if found == 0 => return Some(-1),
                    _ => {}
                }
            }
            point!(poll_looked);
            let now = ThisProcess.now();
            trim::look(now);
            if found == 0 && self.deadline.is_none_or(|d| now < d) {
                return None;
            }
            if !self.visit_due(now) {
                return Some(found + self.look_at_moved());
            }
        }
    }

    fn ended(&mut self, _: Woken) -> c_int {
        -1
    }
}

impl Wait for PollSet<'_> {
    fn spin(&mut self) -> bool {
        self.hold();
        let spins = !self.slept && !self.others && self.mask.is_null();
        self.slept = true;
        if !spins {
            return false;
        }
        let deadline = self.deadline;
        // A connection that is waited for alone has learnt for itself, in blocking calls, too.
        let alone = self.alone();
        let budget = alone.map_or(&BUDGET, |sock| &sock.record().rx.budget);
        let spun = spin::spin(Way::Futex, budget, deadline, || self.look_at_conns() > 0);
        spin::count(spun);
        if let Some(sock) = alone.filter(|_| matches!(spun, Spun::Vain(_))) {
            sock.leave_learnt();
        }
        self.spun(spun)
    }

    fn turn_in(&mut self) -> Result<Way, Woken> {
        if core::mem::take(&mut self.tells_below) {
            self.conns().for_each(|(_, conn)| notify::for_those_below(conn.sock()));
        }
        self.naps.begins(ThisProcess.now());
        let is_patient = self.socks().all(Sock::is_patient);
        self.naps.have_lasted(is_patient);
        Ok(if self.is_heard_by_words() { Way::Futex } else { Way::Kernel })
    }

    fn arm<T>(&mut self, way: Way, rest: impl FnOnce(&mut Self, Hearing) -> T) -> T {
        self.paths.clear();
        if way == Way::Futex {
            self.arm_words();
            point!(poll_armed);
            return rest(self, Hearing::Woken);
        }
        self.paths = self.conns().map(|(_, conn)| conn.sends()).collect();
        self.rings = self.rings();
        let hearing = self.arm_conns();
        let sets = self.targets.iter().filter_map(|target| match target {
            Target::Set(set) => Some(Awaited::new(set)),
            Target::Kernel | Target::Conn(_) => None,
        });
        let awaited: Vec<Awaited> = sets.collect();
        let _awaited = UnderWay::note(Has::value(&awaited));
        point!(poll_armed);
        rest(self, hearing)
    }

    fn is_ready(&mut self) -> bool {
        self.look_at_conns() > 0
            || self.have_changed_paths()
            || (self.naps.is_patient() && self.hears_of_the_gone())
    }

    fn is_heard(&mut self, way: Way) -> bool {
        match way {
            // A look may find the proposal of one: then what comes comes through a ring, of which nobody would tell.
            Way::Kernel => self.rings() == self.rings && !self.has_unregistered(),
            Way::Futex => self.is_heard_by_words(),
        }
    }

    fn limits(&mut self, way: Way) -> Limits {
        let look = self.targets.iter().filter_map(Target::next_look).min();
        let now = ThisProcess.now();
        let nap = (way == Way::Futex).then(|| match self.words.is_unattended() {
            false => self.naps.end(now),
            true => self.naps.end_unattended(now),
        });
        let deadline = self.deadline.into_iter().chain(nap).min();
        Limits { now, deadline, look, is_long: !self.naps.is_young(now) }
    }

    fn sleep(
        &mut self,
        way: Way,
        longest: Option<u64>,
        awake: impl FnOnce(&mut Self, Slept),
    ) -> Slept {
        if way == Way::Futex {
            let slept = self.words.sleep(self.seen, longest);
            awake(self, slept);
            point!(poll_woken);
            return slept;
        }
        point!(poll_found_nothing);
        let mut asked = self.for_the_kernel();
        for ear in &self.ears {
            let fd = std::os::fd::AsRawFd::as_raw_fd(&ear.fd());
            asked.push(pollfd { fd, events: POLLIN, revents: 0 });
        }
        let lifelines = asked.len();
        self.watch_agents(&mut asked);
        let slept =
            handlers::sleep(self.seen, longest, |time| kernel_poll(&mut asked, time, self.mask));
        let slept = Slept::by_call(slept, || errno::get() == EINTR);
        awake(self, slept);
        point!(poll_woken);
        self.ears.iter().for_each(ThreadDoorbell::quiet);
        if slept == Slept::Woken && asked[lifelines..].iter().any(|lifeline| lifeline.revents != 0)
        {
            self.conns().for_each(|(_, conn)| has_lost_agent(conn));
        }
        self.conns().for_each(|(i, conn)| hear(&conn, &asked[i]));
        slept
    }

    fn visit(&mut self, slept: Slept) {
        self.naps.looks(ThisProcess.now());
        let gone = self.socks().map(Sock::gone).collect();
        let has_told = self.ask_kernel();
        if slept == Slept::Over && !has_told {
            self.have_waited_long(gone);
        }
    }

    fn was_woken(&mut self) {
        let now = ThisProcess.now();
        if self.naps.lasted(now) < SOON {
            self.socks().for_each(Sock::has_waited_shortly);
        }
        self.naps.begins_anew(now);
    }

    fn teaches(&self) -> bool {
        true
    }

    fn rang(&self, _: Way, since: u64) -> Option<Waker> {
        self.conns()
            .filter(|(_, conn)| !conn.sock().is_far())
            .filter_map(|(_, conn)| rang(&conn.end()?.theirs.ctl, since))
            .min_by_key(|waker| waker.at)
    }

    fn follows(&self) -> bool {
        let mut conns = self.conns();
        conns.next().is_some_and(|(_, conn)| placing::follows(conn.sock()))
            && conns.next().is_none()
    }

    fn stopwatch(&mut self) -> &mut Stopwatch {
        &mut self.stopwatch
    }

    fn lasted(&mut self, part: Part, nanos: u64) {
        match self.alone() {
            Some(sock) => sock.count_wait(part, nanos),
            None => endpoint::count_wait(part, nanos),
        }
    }

    fn handlers(&mut self, slept: Slept) -> Handlers {
        // Of a sleep on futexes; one in the kernel is one anyhow.
        signals::cancellation_point();
        let handlers = Handlers::of_a_set(slept, self.seen.is_old());
        if handlers == Handlers::End && slept != Slept::Failed {
            errno::set(EINTR);
        }
        handlers
    }
}

impl PollSet<'_> {
    fn socks(&self) -> impl Iterator<Item = &'static Sock> + '_ {
        self.conns().map(|(_, conn)| conn.sock())
    }

    /// The connection that is waited for alone.
    fn alone(&self) -> Option<&'static Sock> {
        match self.targets.as_slice() {
            [Target::Conn(conn)] => Some(conn.sock()),
            _ => None,
        }
    }

    fn conns(&self) -> impl Iterator<Item = (usize, Conn)> + '_ {
        self.targets.iter().enumerate().filter_map(|(i, target)| match target {
            Target::Conn(conn) => Some((i, *conn)),
            Target::Kernel | Target::Set(_) => None,
        })
    }

    /// The same in an epoll instance.
    fn has_unregistered(&self) -> bool {
        let is_one = |target: &Target| matches!(target, Target::Set(set) if set.has_unregistered());
        self.targets.iter().any(is_one)
    }

    fn rings(&self) -> usize {
        self.conns().filter(|(_, conn)| conn.sections().is_some()).count()
    }

    /// Room that the last look did not find may be elsewhere by now.
    fn have_changed_paths(&self) -> bool {
        self.conns().zip(&self.paths).any(|((_, conn), path)| *path != conn.sends())
    }

    /// True when the kernel has something to tell.
    fn ask_kernel(&self) -> bool {
        let mut asked = self.for_the_kernel();
        let at_once = timespec { tv_sec: 0, tv_nsec: 0 };
        let _keep = KeepErrno::new();
        let has_told = kernel_poll(&mut asked, &raw const at_once, core::ptr::null()) > 0;
        if has_told {
            self.conns().for_each(|(i, conn)| hear(&conn, &asked[i]));
        }
        has_told
    }

    /// Before a long nap: true when a program has gone, and the kernel has something to tell.
    fn hears_of_the_gone(&self) -> bool {
        self.socks().any(Sock::is_anybody_gone) && {
            let gone = self.socks().map(Sock::gone).collect();
            let has_told = self.ask_kernel();
            self.have_waited_long(gone);
            has_told
        }
    }

    fn have_waited_long(&self, gone: Vec<u32>) {
        self.socks().zip(gone).for_each(|(sock, gone)| sock.has_waited_long(gone));
    }

    /// Another thread may have had a socket become a shunted connection, or an instance watch one.
    fn note_news(&mut self) {
        self.others = false;
        for (target, p) in self.targets.iter_mut().zip(&*self.fds) {
            if matches!(target, Target::Kernel) && p.fd >= 0 {
                *target = Target::of(p.fd);
                self.others |= matches!(target, Target::Kernel);
                if let (Target::Conn(conn), false) = (*target, self.holds.is_empty()) {
                    self.holds.extend(Hold::of_many(conn));
                }
            }
        }
    }

    /// From now on the connections do not end, whatever becomes of their descriptors.
    fn hold(&mut self) {
        if self.holds.is_empty() {
            self.holds = self.conns().filter_map(|(_, conn)| Hold::of_many(conn)).collect();
        }
        let Self { noted, holds, .. } = self;
        noted.get_or_insert_with(|| UnderWay::note(Hold::several(holds)));
        point!(poll_held);
    }

    /// One pass over the shunted connections; returns how many are ready.
    fn look_at_conns(&mut self) -> c_int {
        let mut found = 0;
        for (p, target) in self.fds.iter_mut().zip(&self.targets) {
            let wanted = wanted(p);
            let ready = match target {
                Target::Kernel => continue,
                // Before the call has come to hold it.
                moved if moved.has_moved(p.fd) && self.holds.is_empty() => by_number(p.fd, wanted),
                moved if moved.has_moved(p.fd) && moved.wakes(wanted) => by_number(p.fd, wanted),
                moved if moved.has_moved(p.fd) => 0,
                target => target.readiness(wanted),
            };
            found += tell(p, ready);
        }
        found
    }

    /// The entries whose numbers stand for something else by now, when the call ends; returns how many are ready of
    /// those that were not so far.
    fn look_at_moved(&mut self) -> c_int {
        let mut found = 0;
        for (p, target) in self.fds.iter_mut().zip(&self.targets) {
            if p.revents == 0 && target.has_moved(p.fd) {
                found += tell(p, by_number(p.fd, wanted(p)));
            }
        }
        found
    }

    /// Asks the kernel about the entries that are its own, at once.
    fn ask_about_others(&mut self, mask: *const sigset_t) -> c_int {
        let others = self.fds.iter().zip(&self.targets).map(|(p, target)| match target {
            Target::Kernel => pollfd { revents: 0, ..*p },
            Target::Conn(_) | Target::Set(_) => pollfd { fd: -1, events: 0, revents: 0 },
        });
        let mut others: Vec<pollfd> = others.collect();
        let now = timespec { tv_sec: 0, tv_nsec: 0 };
        let n = kernel_poll(&mut others, &raw const now, mask);
        if n > 0 {
            for (p, q) in self.fds.iter_mut().zip(&others).filter(|(_, q)| q.fd >= 0) {
                p.revents = q.revents;
            }
        }
        n
    }

    /// Asks the kernel about the ends of connections, on behalf of who never sleeps: there are only
    /// ends of which nobody else can tell. True when there is one.
    fn visit_due(&self, now: u64) -> bool {
        let all = self.conns().map(|(_, conn)| conn);
        let due: Vec<Conn> =
            all.filter(|conn| conn.end().is_some_and(|end| end.notes_visit(now))).collect();
        if due.is_empty() {
            return false;
        }
        due.iter().for_each(|conn| has_lost_agent(*conn));
        let end = |conn: &Conn| {
            let fd = conn.kernel().unwrap_or(-1);
            pollfd { fd, events: POLLRDHUP, revents: 0 }
        };
        let mut asked: Vec<pollfd> = due.iter().map(end).collect();
        let _keep = KeepErrno::new();
        let at_once = timespec { tv_sec: 0, tv_nsec: 0 };
        if kernel_poll(&mut asked, &raw const at_once, core::ptr::null()) <= 0 {
            return false;
        }
        due.iter().zip(&asked).for_each(|(conn, p)| hear(conn, p));
        true
    }

    /// True for a call that waits for shunted connections alone, of which their words tell all.
    fn is_heard_by_words(&self) -> bool {
        let mut words = 0;
        let is_heard = |(target, p): (&Target, &pollfd)| match target {
            Target::Kernel => p.fd < 0,
            Target::Conn(conn) => {
                let (reads, writes) = directions(conn, p);
                words += usize::from(reads) + usize::from(writes);
                let by_words = |end: End<'_>| end.is_heard_by_words(wanted(p));
                !target.has_moved(p.fd) && !conn.is_far() && conn.end().is_some_and(by_words)
            }
            Target::Set(_) => false,
        };
        self.mask.is_null()
            && self.targets.iter().zip(&*self.fds).all(is_heard)
            && words > 0
            && can_sleep_on(words)
    }

    /// Has the connections wake this thread.
    fn arm_words(&mut self) {
        self.words.clear();
        for (target, p) in self.targets.iter().zip(&*self.fds) {
            let Target::Conn(conn) = target else { continue };
            let Some((mine, _)) = conn.sections() else { continue };
            let (reads, writes) = directions(conn, p);
            if reads {
                self.words.arm(&mine.ctl.rx_arm);
            }
            if writes {
                self.words.arm(&mine.ctl.tx_arm);
            }
            self.words.attend(conn.sock().endpoint().agent());
        }
    }

    /// Adds what tells of the end of agents that bring what comes from other hosts.
    fn watch_agents(&self, asked: &mut Vec<pollfd>) {
        let first = asked.len();
        for fd in self.socks().filter_map(liveness::lifeline) {
            if !asked[first..].iter().any(|known| known.fd == fd) {
                asked.push(pollfd { fd, events: 0, revents: 0 });
            }
        }
    }

    /// Has the connections ring this thread's doorbells.
    fn arm_conns(&mut self) -> Hearing {
        self.ears.clear();
        let mut hearing = Hearing::Woken;
        for (target, p) in self.targets.iter().zip(&*self.fds) {
            let Target::Conn(conn) = target else { continue };
            let Some(bell) = conn.ear() else {
                hearing = Hearing::Deaf;
                continue;
            };
            if let Some((mine, _)) = conn.sections() {
                let (reads, writes) = directions(conn, p);
                if reads {
                    arm_bell(&mine.ctl.rx_arm, &mine.ctl.rx_bells, bell.vector());
                }
                if writes {
                    arm_bell(&mine.ctl.tx_arm, &mine.ctl.tx_bells, bell.vector());
                }
            }
            if !self.ears.iter().any(|e| e.same(&bell)) {
                self.ears.push(bell);
            }
        }
        hearing
    }

    /// What the kernel is asked in a sleep, entry by entry.
    fn for_the_kernel(&self) -> Vec<pollfd> {
        let mut asked = Vec::with_capacity(self.fds.len() + 1);
        let mut paths = self.paths.iter();
        for (p, target) in self.fds.iter().zip(&self.targets) {
            let mut q = pollfd { revents: 0, ..*p };
            if let Target::Conn(conn) = target {
                // What has woken the call once, and was no news of the number, does not keep it awake.
                let is_over = target.has_moved(p.fd) && target.wakes(wanted(p));
                q.fd = conn.kernel().filter(|_| !is_over).unwrap_or(-1);
                let sends_over_tcp = paths.next().is_some_and(|path| path.is_tcp());
                // The end of a connection shows as IN; that there is room is no news of a ring.
                if conn.phase() != Phase::Tcp && !sends_over_tcp {
                    q.events &= !(POLLOUT | libc::POLLWRNORM);
                }
                if are_known(conn.record()) {
                    q.events |= POLLOUT;
                }
                let end = conn.end();
                let is_agents = end.is_some_and(|end| end.is_under_agreement());
                if is_agents {
                    q.events &= !(POLLIN | POLLRDNORM);
                }
                if is_agents || end.is_some_and(|end| end.is_woken_by_fin()) {
                    q.events |= POLLRDHUP;
                }
            }
            asked.push(q);
        }
        asked
    }
}

/// Whose news an entry waits for: the receiving direction's, and the sending one's.
fn directions(conn: &Conn, p: &pollfd) -> (bool, bool) {
    // Also for one who waits for errors alone.
    let reads = p.events & (POLLIN | POLLRDNORM | POLLPRI) != 0 || p.events & POLLOUT == 0;
    (reads, p.events & POLLOUT != 0 || conn.has(NUMBERED))
}

/// Notes whether the kernel has news of a connection.
fn hear(conn: &Conn, told: &pollfd) {
    if told.revents & !POLLOUT != 0 {
        conn.put(KERNEL_HINT, true);
    }
}

#[allow(clippy::cast_possible_truncation, reason = "poll's bits are the low half")]
const fn low_half(bits: u32) -> [u8; 2] {
    (bits as u16).to_ne_bytes()
}

fn kernel_poll(fds: &mut [pollfd], time: *const timespec, mask: *const sigset_t) -> c_int {
    // SAFETY: memory of this thread; the mask is the program's.
    unsafe { crate::system::kernel_poll::wait(fds, time, mask) }
}
