//! Many who wait: threads with an epoll instance each, or in poll, and client processes of one server.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::process;
use std::thread;
use std::time::{Duration, Instant};

use shunt_functional::sys::{self, Epoll};

use crate::epoll::look;
use crate::probe::{Pair, Probe, connect_to, listener, settle};
use crate::processes::in_child;

const IN: u32 = libc::EPOLLIN.cast_unsigned();
const ADD: i32 = libc::EPOLL_CTL_ADD;

/// How a thread waits for one connection.
type Wait = fn(RawFd) -> io::Result<Box<dyn FnMut() -> io::Result<()>>>;

/// In an epoll instance of its own.
fn in_epoll(fd: RawFd) -> io::Result<Box<dyn FnMut() -> io::Result<()>>> {
    let mut epoll = Epoll::new(4)?;
    epoll.control(ADD, fd, IN, 0)?;
    Ok(Box::new(move || epoll.wait(None).map(drop)))
}

/// In poll, for a pipe as well.
fn in_poll(fd: RawFd) -> io::Result<Box<dyn FnMut() -> io::Result<()>>> {
    let pipe = sys::pipe()?;
    Ok(Box::new(move || {
        // Both ends stay: a pipe without writers has something to tell.
        let (reader, _writer) = &pipe;
        let ask = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut asked = [fd, reader.as_raw_fd()].map(ask);
        sys::poll(&mut asked, None).map(drop)
    }))
}

/// A message wakes the thread that waits for it, and none of the others, however many there are.
pub fn threads(p: &mut Probe) -> io::Result<()> {
    woken(p, "epoll", 60, in_epoll)?;
    // As many vectors as there are, some of which have been others'.
    woken(p, "poll", 60, in_poll)?;
    woken(p, "epoll once more", 60, in_epoll)?;
    woken_once(p)?;
    woken_by_a_change(p)?;
    told_all(p)
}

/// Threads that wait in one epoll instance.
const SHARERS: usize = 4;

/// A message for a connection of which one thread is to hear (`EPOLLONESHOT`) wakes one.
fn woken_once(p: &Probe) -> io::Result<()> {
    const ONCE: u32 = IN | libc::EPOLLONESHOT.cast_unsigned();
    let pair = p.pair()?;
    let fd = pair.s();
    let epoll = Epoll::new(1)?;
    epoll.control(ADD, fd, ONCE, 0)?;
    thread::scope(|scope| {
        let (told, tids) = std::sync::mpsc::channel();
        for _ in 0..SHARERS {
            let (told, epoll) = (told.clone(), &epoll);
            scope.spawn(move || -> io::Result<()> {
                // SAFETY: no arguments.
                let _ = told.send(unsafe { libc::gettid() });
                loop {
                    epoll.wait_for_one()?;
                    let over = sys::read(fd, &mut [0])? == 0;
                    if !over {
                        sys::write(fd, b"x")?;
                    }
                    // The next one ends, too.
                    epoll.control(libc::EPOLL_CTL_MOD, fd, ONCE, 0)?;
                    if over {
                        return Ok(());
                    }
                }
            });
        }
        let tids: Vec<i32> = tids.iter().take(SHARERS).collect();
        (0..4).try_for_each(|_| exchange(&pair.client))?;
        let mut before = asleep(&tids)?;
        for n in 0..8 {
            exchange(&pair.client)?;
            let after = asleep(&tids)?;
            let woken = before.iter().zip(&after).filter(|(before, after)| before != after).count();
            p.say(&format!("one instance, EPOLLONESHOT: threads that message {n} wakes"), woken);
            before = after;
        }
        sys::shutdown(pair.c(), libc::SHUT_WR)
    })
}

/// A thread that sleeps is woken by another one that asks for what is there already.
fn woken_by_a_change(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let mut epoll = Epoll::new(1)?;
    for interest in [IN, libc::EPOLLOUT.cast_unsigned()] {
        sys::write(pair.c(), b"x")?;
        let op = if interest == IN { ADD } else { libc::EPOLL_CTL_MOD };
        epoll.control(op, pair.s(), 0, 0)?;
        let (set, fd) = (epoll.as_raw_fd(), pair.s());
        let found = thread::scope(|scope| {
            scope.spawn(move || {
                thread::sleep(Duration::from_millis(30));
                let mut event = libc::epoll_event { events: interest, u64: 7 };
                // SAFETY: the event is valid, and the set outlives the scope.
                unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_MOD, fd, &raw mut event) }
            });
            look(&mut epoll, 3000)
        })?;
        p.say("woken by another thread's change", found);
    }
    Ok(())
}

/// All threads hear of what the first of them does not read, where it is level-triggered.
fn told_all(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let epoll = Epoll::new(1)?;
    epoll.control(ADD, pair.s(), IN, 0)?;
    for round in 0..4 {
        thread::scope(|scope| {
            let (told, tids) = std::sync::mpsc::channel();
            for _ in 0..SHARERS {
                let (told, epoll) = (told.clone(), &epoll);
                scope.spawn(move || {
                    // SAFETY: no arguments.
                    let _ = told.send(unsafe { libc::gettid() });
                    epoll.wait_for_one().map(drop)
                });
            }
            let tids: Vec<i32> = tids.iter().take(SHARERS).collect();
            asleep(&tids)?;
            sys::write(pair.c(), b"x").map(drop)
        })?;
        p.say(
            &format!("one instance, level-triggered: bytes, round {round}"),
            sys::read(pair.s(), &mut [0; 8])?,
        );
    }
    Ok(())
}

fn woken(p: &Probe, how: &str, count: usize, wait: Wait) -> io::Result<()> {
    let listener = listener()?;
    let pairs = (0..count).map(|_| p.pair_with(&listener)).collect::<io::Result<Vec<Pair>>>()?;
    let (clients, servers): (Vec<_>, Vec<_>) =
        pairs.into_iter().map(|pair| (pair.client, pair.server)).unzip();
    thread::scope(|scope| {
        let (told, tids) = std::sync::mpsc::channel();
        for server in servers {
            let told = told.clone();
            scope.spawn(move || {
                // SAFETY: no arguments.
                let _ = told.send(unsafe { libc::gettid() });
                let _ = echo(&server, wait);
            });
        }
        let tids: Vec<i32> = tids.iter().take(count).collect();
        // All have come to be shunted, and sleep.
        for client in clients.iter().chain(&clients) {
            exchange(client)?;
        }
        let mut before = asleep(&tids)?;
        for (n, client) in clients.iter().enumerate().step_by(7) {
            exchange(client)?;
            let after = asleep(&tids)?;
            let woken = before.iter().zip(&after).filter(|(before, after)| before != after).count();
            p.say(&format!("{how}: threads that message {n} wakes"), woken);
            before = after;
        }
        drop(clients);
        Ok(())
    })
}

fn exchange(client: &OwnedFd) -> io::Result<()> {
    sys::write(client.as_raw_fd(), b"x")?;
    sys::recv(client.as_raw_fd(), &mut [0], libc::MSG_WAITALL, false).map(drop)
}

fn echo(server: &OwnedFd, wait: Wait) -> io::Result<()> {
    let fd = server.as_raw_fd();
    let mut wait = wait(fd)?;
    loop {
        wait()?;
        if sys::read(fd, &mut [0])? == 0 {
            return Ok(());
        }
        sys::write(fd, b"x")?;
    }
}

/// How often each of these threads has gone to sleep, once all do.
pub fn asleep(tids: &[i32]) -> io::Result<Vec<u64>> {
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut before = Vec::new();
    loop {
        let now = tids.iter().map(|tid| sleeps(*tid)).collect::<io::Result<Vec<_>>>()?;
        if now == before {
            return Ok(now);
        }
        if Instant::now() > deadline {
            return Err(io::Error::other("they do not come to rest"));
        }
        before = now;
        thread::sleep(Duration::from_millis(60));
    }
}

fn sleeps(tid: i32) -> io::Result<u64> {
    let status = fs::read_to_string(format!("/proc/self/task/{tid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.and_then(|n| n.trim().parse().ok()).ok_or_else(|| io::Error::other("no such line"))
}

/// Client processes that sleep in epoll, all of which one server answers, also with few descriptors.
pub fn clients(p: &mut Probe) -> io::Result<()> {
    for (count, limit) in [(300, 1024), (60, 160)] {
        serve(p, count, limit)?;
    }
    Ok(())
}

fn serve(p: &Probe, count: usize, limit: u64) -> io::Result<()> {
    const ROUNDS: usize = 4;
    let listener = listener()?;
    let (go, start) = sys::pipe()?;
    let children = (0..count)
        .map(|_| {
            in_child(|| {
                sys::read(go.as_raw_fd(), &mut [0])?;
                let client = connect_to(&listener)?;
                sys::write(client.as_raw_fd(), b"x")?;
                echo(&client, in_epoll)
            })
        })
        .collect::<io::Result<Vec<_>>>()?;
    let pid = process::id().cast_signed();
    let old = sys::limit(pid, sys::Resource::Descriptors, Some(limit))?;
    let mut connections = Vec::new();
    for _ in 0..count {
        sys::write(start.as_raw_fd(), b"g")?;
        connections.push(sys::accept(listener.as_raw_fd(), 0)?.0);
    }
    let mut answered = 0;
    for round in 0..ROUNDS {
        for connection in &connections {
            answered += sys::recv(connection.as_raw_fd(), &mut [0], libc::MSG_WAITALL, false)?;
        }
        if round + 1 < ROUNDS {
            // All of them sleep by then.
            (0..10).for_each(|_| settle());
            for connection in &connections {
                sys::write(connection.as_raw_fd(), b"x")?;
            }
        }
    }
    p.say(&format!("{count} clients: messages"), answered);
    p.say("there is room for the program's descriptors", hidden()? <= limit / 8 + 16);
    drop(connections);
    sys::limit(pid, sys::Resource::Descriptors, Some(old))?;
    let mut ended = 0;
    for child in children {
        ended += u32::from(sys::wait_for(child)? == 0);
    }
    p.say("clients that ended well", ended);
    Ok(())
}

/// Descriptors of the process for others' sake: doorbells, and processes.
fn hidden() -> io::Result<u64> {
    let mut found = 0;
    for entry in fs::read_dir("/proc/self/fd")?.flatten() {
        let name = fs::read_link(entry.path()).unwrap_or_default();
        let name = name.to_string_lossy();
        found += u64::from(name.contains("eventfd") || name.contains("pidfd"));
    }
    Ok(found)
}
