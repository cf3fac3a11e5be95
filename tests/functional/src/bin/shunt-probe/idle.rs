//! What idle connections hold of memory after large transfers.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use shunt_functional::rounds;
use shunt_functional::sys::{self, Epoll};

use crate::memory::{is_ours, of_connections};
use crate::probe::{Pair, Probe, address, listener, warm_up};

/// Connections.
const MANY: usize = 100;
/// What an idle one may hold.
const MOST: u64 = 16 << 10;
/// What each of them moves first, and what is enough to touch most of a ring.
const LARGE: usize = 10 << 20;
const ENOUGH: usize = 2 << 20;
/// For what happens after some time, on however busy a machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// How the program waits while its connections are idle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wait {
    Recv,
    Poll,
    Epoll,
    /// Again and again, without sleeping.
    BusyEpoll,
}

/// Large transfers, and idle connections after them.
pub fn run(p: &mut Probe) -> io::Result<()> {
    // Earlier connections of the process leave a page each in their link group, for the next ones.
    let bound = of_connections()? + MOST * MANY as u64;
    let listener = listener()?;
    let mut pairs = Vec::new();
    for _ in 0..MANY {
        let pair = p.pair_with(&listener)?;
        warm_up(pair.c(), pair.s())?;
        pairs.push(pair);
    }
    let waits = [Wait::Recv, Wait::Poll, Wait::Epoll, Wait::BusyEpoll];
    for (wait, len) in waits.into_iter().zip([LARGE, ENOUGH, ENOUGH, ENOUGH]) {
        p.say("waits by", format!("{wait:?}"));
        for (n, pair) in pairs.iter().enumerate() {
            // One direction or the other, and sometimes both.
            let n = n % 3;
            p.say("there", n == 1 || moves(pair.c(), pair.s(), len)?);
            p.say("and back", n == 0 || moves(pair.s(), pair.c(), len)?);
        }
        p.say("holds little when idle", is_given_back(&pairs, wait, bound)?);
        for pair in &pairs {
            warm_up(pair.c(), pair.s())?;
        }
    }
    // By threads that come to no call on a socket any more, while another one waits from before.
    p.say("waits meanwhile", "Epoll");
    let is_little = thread::scope(|scope| {
        let waiter = scope.spawn(|| wait_for_a_byte(&pairs[..1], Wait::Epoll));
        thread::sleep(Duration::from_millis(200));
        for pair in &pairs[1..] {
            p.say("there", moves(pair.c(), pair.s(), ENOUGH)?);
        }
        let is_little = becomes_little(bound)?;
        sys::write(pairs[0].c(), &[1])?;
        Ok::<_, io::Error>(is_little && waiter.join().is_ok_and(|byte| byte.is_ok()))
    })?;
    p.say("holds little when idle", is_little);
    // Of those that end, nothing is left to the others.
    for pair in &pairs {
        p.say("there", moves(pair.c(), pair.s(), ENOUGH)?);
    }
    pairs.truncate(MANY / 10);
    p.say("holds little when most have ended", is_given_back(&pairs, Wait::Epoll, bound)?);
    for pair in &pairs {
        p.say("there", moves(pair.c(), pair.s(), ENOUGH)?);
    }
    Ok(())
}

/// Very many connections: what they hold, and that a thread which gives it back comes back to its program meanwhile.
pub fn crowd(p: &mut Probe) -> io::Result<()> {
    const SPARE_DESCRIPTORS: u64 = 500;
    let (many, len) = if rounds::are_long() { (10_000, LARGE) } else { (2_000, ENOUGH) };
    // Where so many are not allowed there are fewer connections.
    sys::raise_descriptor_limit(2 * many + SPARE_DESCRIPTORS)?;
    let may_have = sys::limit(0, sys::Resource::Descriptors, None)?;
    let many = many.min(may_have.saturating_sub(SPARE_DESCRIPTORS) / 2);
    let bound = of_connections()? + MOST * many;
    let listener = listener()?;
    let mut pairs = Vec::new();
    for n in 0..many {
        let pair = p.pair_with(&listener)?;
        warm_up(pair.c(), pair.s())?;
        let is_right = match n % 3 {
            0 => moves(pair.c(), pair.s(), len)?,
            1 => moves(pair.s(), pair.c(), len)?,
            _ => moves(pair.c(), pair.s(), len)? && moves(pair.s(), pair.c(), len)?,
        };
        if !is_right || n % 100 == 0 {
            p.say("arrives as it was sent", is_right);
        }
        pairs.push(pair);
    }
    // By one thread, so what this one finds between two of its calls is what it has given back in them.
    let mut set = Epoll::new(1)?;
    set.control(libc::EPOLL_CTL_ADD, pairs[0].s(), libc::EPOLLIN.cast_unsigned(), 0)?;
    let began = Instant::now();
    let mut held = vec![of_connections()?];
    while held.last().is_some_and(|held| *held >= bound) && began.elapsed() < PATIENCE {
        set.wait(Some(Duration::ZERO))?;
        let now = of_connections()?;
        if held.last() != Some(&now) {
            held.push(now);
        }
    }
    p.say("holds little when idle", held.last().is_some_and(|held| *held < bound));
    p.say("is given back piece by piece", !is_ours()? || held.len() > 10);
    Ok(())
}

/// Threads that sleep while a connection of theirs is in use, and while none is.
pub fn asleep(p: &mut Probe) -> io::Result<()> {
    const SLEEPERS: usize = 50;
    let listener = listener()?;
    let busy = p.pair_with(&listener)?;
    warm_up(busy.c(), busy.s())?;
    let mut pairs: Vec<Pair> =
        (0..SLEEPERS).map(|_| p.pair_with(&listener)).collect::<io::Result<_>>()?;
    for pair in &pairs {
        warm_up(pair.c(), pair.s())?;
    }
    p.say("there", moves(busy.c(), busy.s(), ENOUGH)?);
    thread::scope(|scope| {
        let sleeps = |pair| move || wait_for_a_byte(std::slice::from_ref(pair), Wait::Recv);
        let sleepers: Vec<_> = pairs.iter().map(|pair| scope.spawn(sleeps(pair))).collect();
        // With something to give back at any time.
        let mut before = None;
        for n in 0..40 {
            p.say("and back", n % 20 != 0 || moves(busy.s(), busy.c(), ENOUGH)?);
            moves(busy.c(), busy.s(), 1 << 20)?;
            thread::sleep(Duration::from_millis(50));
            if n == 10 {
                before = Some(sleeps_begun()?);
            }
        }
        let (before, after) = (before.unwrap_or_default(), sleeps_begun()?);
        let often = |(tid, n): (&u32, &u64)| before.get(tid).is_some_and(|before| n - before >= 2);
        // One for all of them; another one is this.
        p.say("few wake up meanwhile", after.iter().filter(|each| often(*each)).count() < 10);
        p.say("and none in the end", nobody_wakes_up()?);
        for pair in &pairs {
            sys::write(pair.c(), &[1])?;
        }
        let are_woken =
            sleepers.into_iter().map(|sleeper| sleeper.join().is_ok_and(|byte| byte.is_ok()));
        p.say("hear of bytes", are_woken.filter(|is| *is).count());
        Ok::<_, io::Error>(())
    })?;
    // A connection that is to be looked at leaves its place to one that has no ring.
    p.say("there", moves(busy.c(), busy.s(), ENOUGH)?);
    // Last: what goes last is used again first.
    drop((pairs.split_off(1), busy));
    let (mut strangers, mut servers) = (Vec::new(), Vec::new());
    for _ in 0..=SLEEPERS {
        let (stranger, server) = stranger(&listener)?;
        strangers.push(stranger);
        servers.push(server);
    }
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| wait_for_a_byte(&pairs, Wait::Recv));
        p.say("sleeps beside strangers", nobody_wakes_up()?);
        sys::write(pairs[0].c(), &[1])?;
        p.say("hears of bytes", sleeper.join().is_ok_and(|byte| byte.is_ok()));
        Ok::<_, io::Error>(())
    })?;
    for mut stranger in strangers {
        drop(stranger.stdin.take());
        stranger.wait()?;
    }
    Ok(())
}

/// A receiver leaves shared memory (for stdio), and what it has not taken of the ring comes through the kernel socket, which
/// has room for little of it at a time. Where rings are given back all the time, that is not.
pub fn left(p: &mut Probe) -> io::Result<()> {
    const SMALL: libc::c_int = 4096;
    for len in [10_000, 60_000, 100_000] {
        let pair = p.pair()?;
        warm_up(pair.c(), pair.s())?;
        let (from, to) = (pair.c(), pair.s());
        let sent: Vec<u8> = (0..len).map(|at: usize| (at % 251).to_le_bytes()[0] + 1).collect();
        let mut rest = &sent[..];
        while !rest.is_empty() {
            rest = &rest[sys::write(from, rest)?..];
        }
        sys::set_option(from, libc::SOL_SOCKET, libc::SO_SNDBUF, SMALL)?;
        sys::set_option(to, libc::SOL_SOCKET, libc::SO_RCVBUF, SMALL)?;
        // SAFETY: an open descriptor, and a mode. The stream, and with it the descriptor, is closed below.
        let stream = unsafe { libc::fdopen(pair.server.try_clone()?.into_raw_fd(), c"r".as_ptr()) };
        p.say("has a stream", !stream.is_null());
        let got = thread::scope(|scope| {
            // Whose sender sends the rest, waits for an answer.
            let sender = scope.spawn(|| {
                let mut fds = [libc::pollfd { fd: from, events: libc::POLLIN, revents: 0 }];
                for _ in 0..20 {
                    sys::poll(&mut fds, Some(Duration::from_millis(5)))?;
                }
                sys::recv(from, &mut [0], 0, false)
            });
            thread::sleep(Duration::from_millis(50));
            let mut got = vec![0; len];
            let n = sys::recv(to, &mut got, libc::MSG_WAITALL, false)?;
            got.truncate(n);
            sys::write(to, &[1])?;
            let answer = sender.join().map_err(|_| io::Error::other("a panic"))?;
            p.result("the answer", answer);
            Ok::<_, io::Error>(got)
        })?;
        p.say("bytes", got.len());
        p.say("are right", got == sent);
        // SAFETY: the stream is open, and not used again.
        p.say("closes", unsafe { libc::fclose(stream) });
    }
    Ok(())
}

/// A program without Shunt that connects, and ends when its standard input does; and this end of the connection.
fn stranger(listener: &OwnedFd) -> io::Result<(Child, OwnedFd)> {
    let port = address(listener)?.port();
    let script = format!("exec 3<>/dev/tcp/127.0.0.1/{port}; read -r");
    let mut command = Command::new("bash");
    command.args(["-c", &script]).env("SHUNT_DISABLE", "1").stdin(Stdio::piped());
    let child = command.spawn()?;
    let (server, _) = sys::accept(listener.as_raw_fd(), 0)?;
    Ok((child, server))
}

/// How often each thread of this process has given the processor away by itself.
fn sleeps_begun() -> io::Result<BTreeMap<u32, u64>> {
    let mut all = BTreeMap::new();
    for task in fs::read_dir("/proc/self/task")? {
        let path = task?.path();
        let status = fs::read_to_string(path.join("status"))?;
        let number = |line: &str| line.trim().parse::<u64>().ok();
        let value = |name| status.lines().find_map(|line| number(line.strip_prefix(name)?));
        let (Some(tid), Some(count)) = (value("Pid:"), value("voluntary_ctxt_switches:")) else {
            return Err(io::Error::other("no such lines"));
        };
        all.insert(u32::try_from(tid).map_err(io::Error::other)?, count);
    }
    Ok(all)
}

/// True once no thread of this process but this one has woken up for a while.
fn nobody_wakes_up() -> io::Result<bool> {
    const FOR: Duration = Duration::from_millis(1500);
    let others = || {
        let mut all = sleeps_begun()?;
        all.remove(&sys::tid().cast_unsigned());
        Ok::<_, io::Error>(all)
    };
    let began = Instant::now();
    loop {
        let before = others()?;
        thread::sleep(FOR);
        let is_so = others()? == before;
        if is_so || began.elapsed() > PATIENCE {
            return Ok(is_so);
        }
    }
}

/// True when bytes arrive as they were sent.
fn moves(from: RawFd, to: RawFd, len: usize) -> io::Result<bool> {
    const PIECE: usize = 256 << 10;
    let byte = |at: usize| (at % 251).to_le_bytes()[0];
    let sent: Vec<u8> = (0..PIECE).map(byte).collect();
    thread::scope(|scope| {
        let sender = scope.spawn(|| {
            (0..len / PIECE).try_for_each(|_| {
                let mut rest = &sent[..];
                while !rest.is_empty() {
                    rest = &rest[sys::write(from, rest)?..];
                }
                Ok::<_, io::Error>(())
            })
        });
        let mut is_right = true;
        for _ in 0..len / PIECE {
            let mut got = vec![0; PIECE];
            is_right &= sys::recv(to, &mut got, libc::MSG_WAITALL, false)? == PIECE && got == sent;
        }
        let is_sent = sender.join().is_ok_and(|sent| sent.is_ok());
        Ok(is_right && is_sent)
    })
}

/// Waits in some call until the connections hold less than this. False when they do not come to.
fn is_given_back(pairs: &[Pair], wait: Wait, bound: u64) -> io::Result<bool> {
    let waker = &pairs[0];
    thread::scope(|scope| {
        let waiter = scope.spawn(|| wait_for_a_byte(pairs, wait));
        let is_given_back = becomes_little(bound)?;
        sys::write(waker.c(), &[1])?;
        let is_woken = waiter.join().is_ok_and(|byte| byte.is_ok());
        Ok(is_given_back && is_woken)
    })
}

/// True once all connections hold less than this, which may take a while.
fn becomes_little(bound: u64) -> io::Result<bool> {
    let began = Instant::now();
    loop {
        let is_little = of_connections()? < bound;
        if is_little || began.elapsed() > PATIENCE {
            return Ok(is_little);
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Waits for a byte on any of them, and takes it.
fn wait_for_a_byte(pairs: &[Pair], wait: Wait) -> io::Result<()> {
    match wait {
        Wait::Recv => {}
        Wait::Poll => {
            let ask = |pair: &Pair| libc::pollfd { fd: pair.s(), events: libc::POLLIN, revents: 0 };
            let mut fds: Vec<_> = pairs.iter().map(ask).collect();
            sys::poll(&mut fds, None)?;
        }
        Wait::Epoll | Wait::BusyEpoll => {
            let mut set = Epoll::new(1)?;
            for pair in pairs {
                set.control(libc::EPOLL_CTL_ADD, pair.s(), libc::EPOLLIN.cast_unsigned(), 0)?;
            }
            let timeout = (wait == Wait::BusyEpoll).then_some(Duration::ZERO);
            while set.wait(timeout)?.is_empty() {}
        }
    }
    let n = sys::recv(pairs[0].s(), &mut [0], 0, false)?;
    if n == 1 { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}
