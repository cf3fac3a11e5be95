//! Waiting for readiness.

use std::mem;
use std::ptr;

use libc::{c_int, c_short, epoll_event, pollfd, timespec};
use shunt_functional::differential::board::Line;
use shunt_functional::differential::plan::ops::{
    Control, Entry, EpollBy, Events, PollBy, SelectBy, Top,
};
use shunt_functional::differential::plan::{Kind, Op, Var};

use super::{say_done, say_error, world};

/// Most descriptors of a call.
const MOST: usize = 16;
/// Memory of a set, of which FD_SETSIZE bits are the set.
const SET: usize = 4096;
/// Descriptors for which that would be room.
const MOST_IN_SET: c_int = 8 * 4096;
/// Stands behind each set.
const BEHIND: u8 = 0xff;

/// Does one of these operations.
pub fn perform(op: &Op, line: &mut Line) {
    match op {
        Op::Poll { entries, timeout, by } => poll(entries, *timeout, *by, line),
        Op::Select { entries, timeout, top, by } => select(entries, *timeout, *top, *by, line),
        Op::EpollCtl { epoll, control, fd, events } => {
            let mut event = epoll_event { events: events.0.cast_unsigned(), u64: number_of(*fd) };
            let control = match control {
                Control::Add => libc::EPOLL_CTL_ADD,
                Control::Mod => libc::EPOLL_CTL_MOD,
                Control::Del => libc::EPOLL_CTL_DEL,
            };
            let (epoll, fd) = (world().fd(*epoll), world().fd(*fd));
            // SAFETY: the event is valid.
            say_done(line, unsafe { libc::epoll_ctl(epoll, control, fd, &raw mut event) });
        }
        Op::EpollWait { epoll, max, timeout, by } => {
            epoll_wait(*epoll, *max as usize, *timeout, *by, line);
        }
        _ => {}
    }
}

/// Milliseconds as the calls with finer times want them.
fn spec(millis: c_int) -> timespec {
    timespec { tv_sec: (millis / 1000).into(), tv_nsec: (millis % 1000 * 1_000_000).into() }
}

fn say_events(line: &mut Line, fd: Var, events: c_int) {
    line.say(format_args!(" {fd}:"));
    // A line is never full: what is too long is cut.
    let _ = Events(events).write(line);
}

fn poll(entries: &[Entry], timeout: c_int, by: PollBy, line: &mut Line) {
    let mut fds = [pollfd { fd: -1, events: 0, revents: 0 }; MOST];
    let entries = &entries[..entries.len().min(MOST)];
    for (to, entry) in fds.iter_mut().zip(entries) {
        let events = c_short::try_from(entry.events.0).unwrap_or(0);
        *to = pollfd { fd: world().fd(entry.fd), events, revents: 0 };
    }
    let time = spec(timeout);
    let time = if timeout < 0 { ptr::null() } else { &raw const time };
    // SAFETY: the entries and the time are on this stack; no set of signals.
    let found = unsafe {
        match by {
            PollBy::Poll => libc::poll(fds.as_mut_ptr(), entries.len() as libc::nfds_t, timeout),
            PollBy::Ppoll => {
                let count = entries.len() as libc::nfds_t;
                libc::ppoll(fds.as_mut_ptr(), count, time, ptr::null())
            }
        }
    };
    if found < 0 {
        return say_error(line);
    }
    line.say(format_args!("{found}"));
    for (entry, fd) in entries.iter().zip(&fds).filter(|(_, fd)| fd.revents != 0) {
        say_events(line, entry.fd, fd.revents.into());
    }
}

/// A set as many programs have it: on the stack, with something else behind it.
#[repr(C, align(8))]
struct Set([u8; SET]);

impl Set {
    const BYTES: usize = libc::FD_SETSIZE / 8;

    fn new() -> Self {
        let mut set = Self([BEHIND; SET]);
        set.0[..Self::BYTES].fill(0);
        set
    }

    fn add(&mut self, fd: c_int) {
        if let Ok(fd) = usize::try_from(fd)
            && fd < libc::FD_SETSIZE
        {
            self.0[fd / 8] |= 1 << (fd % 8);
        }
    }

    fn has(&self, fd: c_int) -> bool {
        usize::try_from(fd)
            .is_ok_and(|fd| fd < libc::FD_SETSIZE && self.0[fd / 8] & (1 << (fd % 8)) != 0)
    }

    fn is_whole(&self) -> bool {
        self.0[Self::BYTES..].iter().all(|byte| *byte == BEHIND)
    }

    fn as_ptr(&mut self) -> *mut libc::fd_set {
        (&raw mut self.0).cast()
    }
}

fn select(entries: &[Entry], timeout: c_int, top: Top, by: SelectBy, line: &mut Line) {
    const WANTED: [Events; 3] = [Events::IN, Events::OUT, Events::PRI];
    let mut sets = [Set::new(), Set::new(), Set::new()];
    let mut highest = 0;
    for entry in entries {
        let fd = world().fd(entry.fd);
        for (set, event) in sets.iter_mut().zip(WANTED) {
            if entry.events.has(event) {
                set.add(fd);
                highest = highest.max(fd + 1);
            }
        }
    }
    let count = match top {
        Top::Exact => highest,
        Top::Size => c_int::try_from(libc::FD_SETSIZE).unwrap_or(0),
        // SAFETY: no pointers.
        Top::Limit => unsafe { libc::getdtablesize() }.min(MOST_IN_SET),
    };
    let [r, w, e] = sets.each_mut().map(Set::as_ptr);
    let mut value =
        libc::timeval { tv_sec: (timeout / 1000).into(), tv_usec: (timeout % 1000 * 1000).into() };
    let value = if timeout < 0 { ptr::null_mut() } else { &raw mut value };
    let time = spec(timeout);
    let time = if timeout < 0 { ptr::null() } else { &raw const time };
    // SAFETY: the sets have memory for as many descriptors as are said; the time is on this stack.
    let found = unsafe {
        match by {
            SelectBy::Select => libc::select(count, r, w, e, value),
            SelectBy::Pselect => libc::pselect(count, r, w, e, time, ptr::null()),
        }
    };
    if found < 0 {
        say_error(line);
    } else {
        line.say(format_args!("{found}"));
    }
    if found > 0 {
        for entry in entries {
            let fd = world().fd(entry.fd);
            let set = sets.iter().zip(WANTED).filter(|(set, _)| set.has(fd));
            let events = set.fold(0, |all, (_, event)| all | event.0);
            if events != 0 {
                say_events(line, entry.fd, events);
            }
        }
    }
    if !sets.iter().all(Set::is_whole) {
        line.say(format_args!(" and what is behind the sets"));
    }
}

/// A descriptor as the data of an epoll event.
fn number_of(fd: Var) -> u64 {
    let kind = Kind::ALL.iter().position(|kind| *kind == fd.kind).unwrap_or(0) as u64;
    kind << 16 | u64::from(fd.n) << 8 | u64::from(fd.copy)
}

fn var_of(number: u64) -> Var {
    let byte = |shift: u32| u8::try_from(number >> shift & 0xff).unwrap_or(0);
    let kind = Kind::ALL[usize::from(byte(16)) % Kind::ALL.len()];
    Var { kind, n: byte(8), copy: byte(0) }
}

fn epoll_wait(epoll: Var, max: usize, timeout: c_int, by: EpollBy, line: &mut Line) {
    // SAFETY: plain data.
    let mut events: [epoll_event; MOST] = unsafe { mem::zeroed() };
    let max = max.clamp(1, MOST);
    let (fd, count, at) =
        (world().fd(epoll), c_int::try_from(max).unwrap_or(1), events.as_mut_ptr());
    let time = spec(timeout);
    let time = if timeout < 0 { ptr::null() } else { &raw const time };
    // SAFETY: there is room for so many events; the time is on this stack; no set of signals.
    let found = unsafe {
        match by {
            EpollBy::Wait => libc::epoll_wait(fd, at, count, timeout),
            EpollBy::Pwait => libc::epoll_pwait(fd, at, count, timeout, ptr::null()),
            EpollBy::Pwait2 => libc::epoll_pwait2(fd, at, count, time, ptr::null()),
        }
    };
    let Ok(found) = usize::try_from(found) else { return say_error(line) };
    line.say(format_args!("{found}"));
    let found = &mut events[..found.min(MOST)];
    // Their order is nobody's promise.
    found.sort_unstable_by_key(|event| (event.u64, event.events));
    // Nor is which of them come first.
    if found.len() < max {
        for event in found.iter() {
            say_events(line, var_of(event.u64), { event.events }.cast_signed());
        }
    }
    for pair in found.windows(2) {
        if let [a, b] = pair
            && { a.u64 } == { b.u64 }
        {
            line.say(format_args!(" {} twice", var_of(a.u64)));
        }
    }
}
