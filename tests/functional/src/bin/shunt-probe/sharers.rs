//! Threads that sleep in one epoll instance: while one that was told of something is busy, the next one hears of what comes.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use shunt_functional::sys::{self, Epoll};

use crate::crowds::asleep;
use crate::probe::{Pair, Probe};
use crate::processes::in_child;

const EDGE: u32 = libc::EPOLLIN.cast_unsigned() | libc::EPOLLET.cast_unsigned();
const ADD: i32 = libc::EPOLL_CTL_ADD;

/// The checks.
pub fn run(p: &mut Probe) -> io::Result<()> {
    inherited(p)?;
    watched_elsewhere(p)
}

/// Connections that a child has from its parent, in an instance of its own, or in the parent's.
fn inherited(p: &Probe) -> io::Result<()> {
    for is_shared in [false, true] {
        let (pair, parents) = (p.pair()?, Epoll::new(1)?);
        if is_shared {
            parents.control(ADD, pair.s(), EDGE, 0)?;
        }
        let child = in_child(|| {
            let messages = [&pair, &pair, &pair];
            if is_shared {
                return told_in_turn(p, "the parent's instance", &parents, |_| Ok(()), &messages);
            }
            let epoll = Epoll::new(1)?;
            epoll.control(ADD, pair.s(), EDGE, 0)?;
            told_in_turn(p, "inherited", &epoll, |_| Ok(()), &messages)
        })?;
        p.say("the child ends", sys::wait_for(child)?);
    }
    Ok(())
}

/// Connections that another instance watches already, in which nobody waits.
fn watched_elsewhere(p: &Probe) -> io::Result<()> {
    let (known, first, second) = (p.pair()?, p.pair()?, p.pair()?);
    let other = Epoll::new(1)?;
    for pair in [&first, &second] {
        other.control(ADD, pair.s(), EDGE, 0)?;
    }
    for has_others in [false, true] {
        let epoll = Epoll::new(1)?;
        if has_others {
            epoll.control(ADD, known.s(), EDGE, 0)?;
        }
        let what = if has_others { "of two instances" } else { "of two instances, the first one" };
        let add = |n: usize| {
            let new = [&first, &second].into_iter().nth(n).map(Pair::s);
            new.map_or(Ok(()), |fd| epoll.control(ADD, fd, EDGE, 0))
        };
        told_in_turn(p, what, &epoll, add, &[&first, &first, &second])?;
    }
    Ok(())
}

/// As many threads as there are messages come to sleep. Before each message `add` is called with its number. The thread that hears of
/// it is busy from then on.
fn told_in_turn(
    p: &Probe,
    what: &str,
    epoll: &Epoll,
    add: impl Fn(usize) -> io::Result<()>,
    messages: &[&Pair],
) -> io::Result<()> {
    let (over, end) = sys::pipe()?;
    thread::scope(|scope| {
        let (tell_tid, tids) = channel();
        let (tell, told) = channel();
        let mut busy = Vec::new();
        for _ in messages {
            let (go_on, may_go_on): (Sender<()>, Receiver<()>) = channel();
            busy.push(go_on);
            let (tell_tid, tell) = (tell_tid.clone(), tell.clone());
            scope.spawn(move || {
                // SAFETY: no arguments.
                let tid = unsafe { libc::gettid() };
                let _ = tell_tid.send(tid);
                let found = epoll.wait_for_one().is_ok();
                let _ = tell.send((tid, found));
                let _ = may_go_on.recv();
            });
        }
        let mut sleepers: Vec<i32> = tids.iter().take(messages.len()).collect();
        let mut message = |n: usize, pair: &Pair| -> io::Result<()> {
            asleep(&sleepers)?;
            add(n)?;
            asleep(&sleepers)?;
            sys::write(pair.c(), b"x")?;
            let answer = told.recv_timeout(Duration::from_secs(5));
            p.say(&format!("{what}: somebody hears of message {n}"), answer.is_ok());
            sleepers.retain(|tid| answer.map_or(true, |(other, _)| *tid != other));
            Ok(())
        };
        let sent = messages.iter().enumerate().try_for_each(|(n, pair)| message(n, pair));
        // Whoever was not told ends by this.
        busy.clear();
        epoll.control(ADD, over.as_raw_fd(), libc::EPOLLIN.cast_unsigned(), 0)?;
        sys::write(end.as_raw_fd(), b"x")?;
        sent
    })
}
