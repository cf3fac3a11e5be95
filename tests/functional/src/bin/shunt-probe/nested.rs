//! Epoll instances that another one watches, or poll and select.

use std::io;
use std::os::fd::AsRawFd;
use std::thread;
use std::time::Duration;

use shunt_functional::sys::{self, Epoll};

use crate::crowds::asleep;
use crate::epoll::{ADD, DEL, ET, IN, MOD, ONESHOT, RDHUP, look, send};
use crate::probe::{Pair, Probe, settle, sleeper, try_recv};

/// The checks.
pub fn run(p: &Probe) -> io::Result<()> {
    nested(p)?;
    unasked(p, "not asked", 0)?;
    unasked(p, "told once", IN | ONESHOT)
}

fn nested(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let mut inner = Epoll::new(8)?;
    inner.control(ADD, pair.s(), IN, 1)?;
    let mut outer = Epoll::new(8)?;
    outer.control(ADD, inner.as_raw_fd(), IN, 2)?;
    let mut fds = [libc::pollfd { fd: inner.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
    p.say("nested: nothing there", look(&mut outer, 0)?);
    p.result("poll of an epoll: nothing", sys::poll(&mut fds, Some(Duration::ZERO)));
    send(pair.c(), b"x")?;
    p.say("nested: data", look(&mut outer, 1000)?);
    p.result("poll of an epoll: data", sys::poll(&mut fds, Some(Duration::from_secs(1))));
    p.result("select of an epoll: data", sys::select(&mut fds, Some(Duration::from_secs(1))));
    p.say("nested: inner", look(&mut inner, 0)?);
    p.say("nested: data, again", look(&mut outer, 0)?);
    try_recv(pair.s(), 10)?;
    p.say("nested: read", look(&mut outer, 0)?);
    p.result("poll of an epoll: read", sys::poll(&mut fds, Some(Duration::ZERO)));
    p.result("select of an epoll: read", sys::select(&mut fds, Some(Duration::ZERO)));
    // Read before anybody has asked.
    send(pair.c(), b"x")?;
    try_recv(pair.s(), 10)?;
    p.say("nested: read at once", look(&mut outer, 0)?);
    p.result("poll of an epoll: read at once", sys::poll(&mut fds, Some(Duration::ZERO)));
    // Asleep in the outer one when the data comes.
    let fd = pair.c();
    let found = thread::scope(|scope| {
        scope.spawn(move || {
            thread::sleep(Duration::from_millis(30));
            sys::write(fd, b"x")
        });
        look(&mut outer, 3000)
    })?;
    p.say("nested: woken", found);
    try_recv(pair.s(), 10)?;
    let n = thread::scope(|scope| {
        scope.spawn(move || {
            thread::sleep(Duration::from_millis(30));
            sys::write(fd, b"x")
        });
        sys::poll(&mut fds, Some(Duration::from_secs(3)))
    });
    p.result("poll of an epoll: woken", n);
    nested_ends(p, inner, outer, pair)
}

/// More of [`nested`]: edges, a kernel's descriptor beside the socket, an inner set that goes.
fn nested_ends(p: &Probe, mut inner: Epoll, mut outer: Epoll, pair: Pair) -> io::Result<()> {
    try_recv(pair.s(), 10)?;
    p.say("nested: empty again", look(&mut outer, 0)?);
    let event = sys::eventfd()?;
    inner.control(ADD, event.as_raw_fd(), IN, 3)?;
    p.say("nested: an eventfd", look(&mut outer, 0)?);
    sys::write(event.as_raw_fd(), &1u64.to_ne_bytes())?;
    p.say("nested: the eventfd", look(&mut outer, 0)?);
    p.say("nested: inner", look(&mut inner, 0)?);
    sys::read(event.as_raw_fd(), &mut [0; 8])?;
    p.say("nested: the eventfd read", look(&mut outer, 0)?);
    outer.control(MOD, inner.as_raw_fd(), IN | ET, 4)?;
    p.say("nested edge: nothing", look(&mut outer, 0)?);
    send(pair.c(), b"x")?;
    p.say("nested edge: data", look(&mut outer, 0)?);
    p.say("nested edge: again", look(&mut outer, 0)?);
    send(pair.c(), b"y")?;
    p.say("nested edge: more", look(&mut outer, 0)?);
    outer.control(MOD, inner.as_raw_fd(), IN | ONESHOT, 5)?;
    p.say("nested one-shot: data", look(&mut outer, 0)?);
    p.say("nested one-shot: again", look(&mut outer, 0)?);
    outer.control(MOD, inner.as_raw_fd(), IN, 6)?;
    inner.control(DEL, pair.s(), 0, 0)?;
    p.say("nested: the member is gone", look(&mut outer, 0)?);
    inner.control(ADD, pair.s(), IN | RDHUP, 7)?;
    p.say("nested: the member is back", look(&mut outer, 0)?);
    // Under another number.
    let copy = sys::dup(inner.as_raw_fd())?;
    drop(inner);
    try_recv(pair.s(), 10)?;
    p.say("nested: read, known by a copy", look(&mut outer, 0)?);
    drop(pair.client);
    settle();
    p.say("nested: peer closed", look(&mut outer, 1000)?);
    drop(copy);
    p.say("nested: inner is gone", look(&mut outer, 0)?);
    Ok(())
}

/// A set of which the outer one is not to hear, at first or any more: what lies there keeps nobody awake, and what comes
/// there wakes nobody, until it is asked for again.
fn unasked(p: &Probe, name: &str, interest: u32) -> io::Result<()> {
    let pair = p.pair()?;
    let mut inner = Epoll::new(8)?;
    inner.control(ADD, pair.s(), IN, 1)?;
    let mut outer = Epoll::new(8)?;
    outer.control(ADD, inner.as_raw_fd(), interest, 2)?;
    send(pair.c(), b"x")?;
    p.say(&format!("nested, {name}: data"), look(&mut outer, 0)?);
    let (begins, sleeper) = sleeper();
    let outer = &outer;
    let told = thread::scope(|scope| {
        let waits = scope.spawn(move || {
            begins();
            outer.wait_for_one()
        });
        let sleeps_on = sleeper.sleeps().and_then(|tid| {
            let before = asleep(&[tid])?;
            send(pair.c(), b"y")?;
            Ok(asleep(&[tid])? == before)
        });
        p.result(&format!("nested, {name}: sleeps on"), sleeps_on);
        p.say(&format!("nested, {name}: inner"), look(&mut inner, 0)?);
        outer.control(MOD, inner.as_raw_fd(), IN, 3)?;
        waits.join().map_err(|_| io::Error::other("a panic"))?
    })?;
    p.say(&format!("nested, {name}: asked again"), told.data);
    Ok(())
}
