//! Waits for several descriptors: what one result names, how often, and what ends it.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use libc::{POLLHUP, POLLIN, POLLOUT, POLLRDHUP, POLLRDNORM, c_short, pollfd};
use shunt_functional::sys::{self, Epoll, EpollEvent};

use crate::probe::{Pair, Probe, drain, fill, settle, show, try_recv};
use crate::readiness::bits;

const IN: u32 = libc::EPOLLIN.cast_unsigned();
const ADD: i32 = libc::EPOLL_CTL_ADD;
const PATIENCE: Option<Duration> = Some(Duration::from_secs(10));

/// The checks.
pub fn run(p: &mut Probe) -> io::Result<()> {
    several_entries(p)?;
    invalid_times(p)?;
    more_than_a_set(p)?;
    named_once(p)?;
    room(p)?;
    after_silence(p)?;
    used_again(p)
}

/// A pipe has nothing to tell for long, while a connection beside it does all the time: then it is told of as soon as ever.
fn after_silence(p: &Probe) -> io::Result<()> {
    const ANSWER: u64 = 0;
    const PIPE: u64 = 1;
    let Pair { client, server } = p.pair()?;
    let (read, write) = sys::pipe()?;
    let mut epoll = Epoll::new(8)?;
    epoll.control(ADD, client.as_raw_fd(), IN, ANSWER)?;
    epoll.control(ADD, read.as_raw_fd(), IN, PIPE)?;
    let tell = || sys::write(write.as_raw_fd(), b"x");
    // True when the pipe was told of beside or before the answer.
    let round = |epoll: &mut Epoll| {
        sys::write(client.as_raw_fd(), b"x")?;
        let mut is_told = false;
        loop {
            let found: Vec<_> = epoll.wait(PATIENCE)?.iter().map(|event| event.data).collect();
            is_told |= found.contains(&PIPE);
            if found.is_empty() || found.contains(&ANSWER) {
                try_recv(client.as_raw_fd(), 1)?;
                return io::Result::Ok(is_told);
            }
        }
    };
    let silence = |epoll: &mut Epoll| (0..300).try_for_each(|_| round(epoll).map(drop));
    thread::scope(|scope| {
        scope.spawn(|| {
            while sys::read(server.as_raw_fd(), &mut [0]).is_ok_and(|n| n > 0) {
                let _ = sys::write(server.as_raw_fd(), b"x");
            }
        });
        silence(&mut epoll)?;
        tell()?;
        p.say("after silence: asked without waiting", shown(&epoll.wait(Some(Duration::ZERO))?));
        sys::read(read.as_raw_fd(), &mut [0])?;
        silence(&mut epoll)?;
        tell()?;
        p.say("after silence: with nothing else", shown(&epoll.wait(PATIENCE)?));
        sys::read(read.as_raw_fd(), &mut [0])?;
        silence(&mut epoll)?;
        tell()?;
        let started = Instant::now();
        let mut is_told = false;
        while !is_told && started.elapsed() < Duration::from_secs(10) {
            is_told = round(&mut epoll)?;
        }
        p.say("after silence: while answers keep coming", is_told);
        sys::shutdown(client.as_raw_fd(), libc::SHUT_WR)
    })
}

fn shown(found: &[EpollEvent]) -> String {
    format!("{:?}", found.iter().map(|event| event.data).collect::<Vec<_>>())
}

/// Entries of poll for one descriptor.
fn entries(fd: RawFd, asked: &[c_short]) -> Vec<pollfd> {
    asked.iter().map(|events| pollfd { fd, events: *events, revents: 0 }).collect()
}

fn found(n: io::Result<usize>, fds: &[pollfd]) -> String {
    let each: Vec<_> = fds.iter().map(|p| bits(p.revents.into())).collect();
    format!("{}, {each:?}", show(n))
}

/// One descriptor in several entries, each of which asks for something else.
const ASKED: [&[c_short]; 4] = [
    &[POLLIN, POLLOUT],
    &[POLLOUT, POLLIN],
    &[POLLIN, POLLIN, 0, POLLRDHUP],
    &[0, POLLRDNORM, POLLOUT, POLLHUP],
];

fn several_entries(p: &Probe) -> io::Result<()> {
    let calls = [("poll", sys::poll as fn(&mut _, _) -> _), ("ppoll", sys::ppoll)];
    for (name, call) in calls {
        for asked in ASKED {
            let Pair { client, server } = p.pair()?;
            let (peer, fd) = (client.as_raw_fd(), server.as_raw_fd());
            let copy = sys::dup(fd)?;
            let with_copy = || {
                let mut fds = entries(fd, asked);
                fds.extend(entries(copy.as_raw_fd(), asked));
                fds
            };
            let mut fds = with_copy();
            let n = call(&mut fds, Some(Duration::ZERO));
            p.say(&format!("{name} of {asked:?}: idle"), found(n, &fds));
            fill(fd)?;
            let mut fds = with_copy();
            let n = call(&mut fds, Some(Duration::ZERO));
            p.say(&format!("{name} of {asked:?}: full"), found(n, &fds));
            let mut fds = with_copy();
            let woken = thread::scope(|scope| {
                scope.spawn(|| {
                    settle();
                    drain(peer)?;
                    sys::write(peer, b"answer")
                });
                call(&mut fds, PATIENCE)
            });
            p.result(&format!("{name} of {asked:?}: woken"), woken.map(|n| n > 0));
            // Which of the two was heard first is a matter of time.
            settle();
            let mut fds = with_copy();
            let n = call(&mut fds, Some(Duration::ZERO));
            p.say(&format!("{name} of {asked:?}: then"), found(n, &fds));
            p.result("read", try_recv(fd, 100));
            drop(client);
            let mut fds = with_copy();
            let n = call(&mut fds, PATIENCE);
            p.say(&format!("{name} of {asked:?}: the peer closed"), found(n, &fds));
        }
    }
    Ok(())
}

/// Times that no call takes.
fn invalid_times(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let epoll = Epoll::new(1)?;
    epoll.control(ADD, pair.s(), IN, 1)?;
    sys::write(pair.c(), b"so that none waits")?;
    settle();
    for (seconds, rest) in [(-1, 0), (0, -1), (0, 1_000_000_000), (-1, 2_000_000_000), (0, 1)] {
        let time = libc::timespec { tv_sec: seconds, tv_nsec: rest };
        let asked = || pollfd { fd: pair.s(), events: POLLIN, revents: 0 };
        p.result(&format!("ppoll for {seconds} s {rest} ns"), sys::ppoll_for(&mut [asked()], time));
        let result = sys::pselect_for(pair.s(), time);
        p.result(&format!("pselect for {seconds} s {rest} ns"), result);
        let result = sys::epoll_pwait2_for(epoll.fd(), time);
        p.result(&format!("epoll_pwait2 for {seconds} s {rest} ns"), result);
        let micros = if rest > 0 { rest / 1000 } else { rest };
        let result = sys::select_for(pair.s(), seconds, micros);
        p.result(&format!("select for {seconds} s {micros} us"), result);
    }
    Ok(())
}

/// select(2) for as many descriptors as there may be, with a set of 1,024 bits: the kernel looks at no more
/// than it has places for.
fn more_than_a_set(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let (reader, _writer) = sys::pipe()?;
    let most = sys::limit(0, sys::Resource::Descriptors, None)?;
    let most = i32::try_from(most).unwrap_or(i32::MAX);
    for (name, fd) in [("a connection", pair.s()), ("a pipe", reader.as_raw_fd())] {
        for beyond in [0x00, 0xff] {
            for call in sys::SELECTS {
                let look = || sys::select_up_to(call, most, fd, beyond);
                p.result(&format!("{call:?} for {name}, {beyond:#x} behind the set"), look());
            }
        }
    }
    sys::write(pair.c(), b"x")?;
    settle();
    for call in sys::SELECTS {
        let result = sys::select_up_to(call, most, pair.s(), 0xff);
        p.result(&format!("{call:?} for a connection with a byte"), result);
    }
    Ok(())
}

/// Memory that may not be touched: where, and how much.
static FORBIDDEN: (AtomicUsize, AtomicUsize) = (AtomicUsize::new(0), AtomicUsize::new(0));

/// Takes its time, and allows it.
extern "C" fn allow(signal: libc::c_int) {
    let (at, len) = (FORBIDDEN.0.load(Ordering::Relaxed), FORBIDDEN.1.swap(0, Ordering::Relaxed));
    thread::sleep(Duration::from_millis(2));
    let at = ptr::with_exposed_provenance_mut(at);
    // SAFETY: a mapping of this test's.
    if len == 0 || unsafe { libc::mprotect(at, len, libc::PROT_READ | libc::PROT_WRITE) } != 0 {
        sys::exit_now(128 + signal);
    }
}

/// A descriptor of the kernel's stands once in what a wait has found, however long it takes to write that
/// down: the program's memory is only there after a while. The kernel itself says EFAULT, and is asked again.
fn named_once(p: &Probe) -> io::Result<()> {
    const ROOM: i32 = 8;
    let modes = [("level", 0), ("edge", libc::EPOLLET), ("once", libc::EPOLLONESHOT)];
    for (name, mode) in modes {
        let (pair, event) = (p.pair()?, sys::eventfd()?);
        let epoll = Epoll::new(1)?;
        epoll.control(ADD, pair.s(), IN, 1)?;
        epoll.control(ADD, event.as_raw_fd(), IN | mode.cast_unsigned(), 7)?;
        let mut memory = sys::Private::new(4096)?;
        p.result(&format!("{name}: nothing yet"), memory.epoll_wait(epoll.fd(), ROOM, 0));
        let (at, len) = memory.place();
        FORBIDDEN.0.store(at, Ordering::Relaxed);
        FORBIDDEN.1.store(len, Ordering::Relaxed);
        memory.forbid()?;
        sys::on_signal(libc::SIGSEGV, allow)?;
        let found = thread::scope(|scope| {
            scope.spawn(|| {
                settle();
                sys::write(event.as_raw_fd(), &1_u64.to_ne_bytes())
            });
            let found = memory.epoll_wait(epoll.fd(), ROOM, 10_000);
            if !found.as_ref().is_err_and(|e| e.raw_os_error() == Some(libc::EFAULT)) {
                return found;
            }
            allow(libc::SIGSEGV);
            memory.epoll_wait(epoll.fd(), ROOM, 10_000)
        })?;
        sys::reset_signal(libc::SIGSEGV)?;
        p.say(&format!("{name}: found"), format!("{:?}", memory.epoll_data(found)));
        let again = memory.epoll_wait(epoll.fd(), ROOM, 0)?;
        p.say(&format!("{name}: found again"), format!("{:?}", memory.epoll_data(again)));
    }
    Ok(())
}

/// A wait for room in one descriptor.
#[derive(Clone, Copy, Debug)]
enum Room {
    Poll,
    Select,
    Level,
    Edge,
    /// An instance in another one.
    Nested,
    /// A send that blocks.
    Send,
}

impl Room {
    const ALL: [Self; 6] =
        [Self::Poll, Self::Select, Self::Level, Self::Edge, Self::Nested, Self::Send];

    fn wait(self, fd: RawFd, time: Option<Duration>) -> io::Result<usize> {
        let out = libc::EPOLLOUT.cast_unsigned();
        let epoll = |events, fd| -> io::Result<Epoll> {
            let epoll = Epoll::new(1)?;
            epoll.control(ADD, fd, events, 1)?;
            Ok(epoll)
        };
        match self {
            Self::Poll => sys::poll(&mut entries(fd, &[POLLOUT]), time),
            Self::Select => sys::select(&mut entries(fd, &[POLLOUT]), time),
            Self::Level => Ok(epoll(out, fd)?.wait(time)?.len()),
            Self::Edge => Ok(epoll(out | libc::EPOLLET.cast_unsigned(), fd)?.wait(time)?.len()),
            Self::Nested => {
                let inner = epoll(out, fd)?;
                Ok(epoll(IN, inner.fd())?.wait(time)?.len())
            }
            Self::Send if time == Some(Duration::ZERO) => Ok(0),
            Self::Send => sys::write(fd, b"one"),
        }
    }
}

/// A connection that is full, with buffers of one size or another, has no room when its peer has read a byte, and
/// whoever waits for room hears of it when the peer has read it all.
fn room(p: &Probe) -> io::Result<()> {
    for size in [None, Some(4096)] {
        for how in Room::ALL {
            let pair = p.pair()?;
            let name = format!("{how:?} for room, SO_SNDBUF {size:?}");
            if let Some(size) = size {
                sys::set_option(pair.s(), libc::SOL_SOCKET, libc::SO_SNDBUF, size)?;
            }
            fill(pair.s())?;
            let now = how.wait(pair.s(), Some(Duration::ZERO));
            p.result(&format!("{name}: full"), now);
            try_recv(pair.c(), 1)?;
            let now = how.wait(pair.s(), Some(Duration::ZERO));
            p.result(&format!("{name}: a byte is read"), now);
            let found = thread::scope(|scope| {
                let waits = scope.spawn(|| how.wait(pair.s(), PATIENCE));
                settle();
                drain(pair.c())?;
                waits.join().map_err(|_| io::Error::other("panicked"))?
            });
            p.result(&name, found);
            drain(pair.c())?;
            p.result(&format!("{name}: a send"), sys::write(pair.s(), b"more"));
        }
    }
    Ok(())
}

/// What becomes of a number while calls wait for what it stood for.
#[derive(Clone, Copy, Debug)]
enum Number {
    Closed,
    /// It is an end of a pipe, with bytes or without.
    Pipe(bool),
    /// It is another connection, with bytes or without.
    Connection(bool),
}

/// The calls by which a thread waits for several descriptors.
const CALLS: [Call; 4] = [
    ("poll", sys::poll),
    ("ppoll", sys::ppoll),
    ("select", sys::select),
    ("pselect", sys::pselect),
];
type Call = (&'static str, fn(&mut [pollfd], Option<Duration>) -> io::Result<usize>);

/// What wakes the calls, if anything does before their time is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum News {
    No,
    OfTheOld,
    OfAnother,
}

/// Calls wait for what a number stood for when they began, and tell of what it stands for when they end.
fn used_again(p: &Probe) -> io::Result<()> {
    let becomes = [
        Number::Closed,
        Number::Pipe(false),
        Number::Pipe(true),
        Number::Connection(false),
        Number::Connection(true),
    ];
    for number in becomes {
        for news in [News::No, News::OfTheOld, News::OfAnother] {
            let results = renumbered(p, number, news)?;
            p.say(&format!("{number:?}, news: {news:?}"), results.join(", "));
        }
    }
    Ok(())
}

fn renumbered(p: &Probe, number: Number, news: News) -> io::Result<Vec<String>> {
    let (old, new, another) = (p.pair()?, p.pair()?, p.pair()?);
    let (read, write) = sys::pipe()?;
    let copy = sys::dup(old.s())?;
    let fds = [copy.as_raw_fd(), another.s()];
    // Bytes of another one end each call.
    let longest = match news {
        News::OfAnother => PATIENCE,
        News::No | News::OfTheOld => Some(Duration::from_millis(400)),
    };
    let begun = &AtomicUsize::new(0);
    thread::scope(|scope| {
        let waits = CALLS.map(|(name, call)| {
            scope.spawn(move || {
                begun.fetch_add(1, Ordering::Relaxed);
                let mut fds = fds.map(|fd| pollfd { fd, events: POLLIN, revents: 0 });
                let n = call(&mut fds, longest);
                format!("{name} {}", found(n, &fds))
            })
        });
        while begun.load(Ordering::Relaxed) < CALLS.len() {
            settle();
        }
        settle();
        let has_bytes = match number {
            Number::Closed => None,
            Number::Pipe(bytes) => Some((read.as_raw_fd(), write.as_raw_fd(), bytes)),
            Number::Connection(bytes) => Some((new.s(), new.c(), bytes)),
        };
        let _copy = match has_bytes {
            None => {
                drop(copy);
                None
            }
            Some((fd, from, bytes)) => {
                sys::dup2(fd, &copy)?;
                if bytes {
                    sys::write(from, b"new")?;
                }
                Some(copy)
            }
        };
        settle();
        match news {
            News::No => {}
            News::OfTheOld => sys::write(old.c(), b"old").map(drop)?,
            News::OfAnother => sys::write(another.c(), b"else").map(drop)?,
        }
        Ok(waits.map(|wait| wait.join().unwrap_or_else(|_| "panicked".into())).to_vec())
    })
}
