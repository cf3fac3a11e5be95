//! Calls that wait, and what ends the wait.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use shunt_functional::sys;

use crate::probe::{Pair, Probe, drain, fill, listener, show};

const NAP: Duration = Duration::from_millis(30);
/// Shorter, so that who still waits for so long alone does not see what comes after a nap.
const TIMEOUT: Duration = Duration::from_millis(20);

/// The checks.
pub fn run(p: &mut Probe) -> io::Result<()> {
    receive_timeout(p)?;
    send_timeout(p)?;
    woken(p)?;
    wait_for_all(p)?;
    told_at_once(p)?;
    blocked_send(p)?;
    signals(p)?;
    blocked_accept(p)
}

/// Runs `action` a moment after `wait` has begun; what `wait` returned, and whether it waited.
fn meanwhile<T: Send>(
    action: impl FnOnce() -> T + Send,
    wait: impl FnOnce() -> io::Result<usize>,
) -> String {
    let started = Instant::now();
    let result = thread::scope(|scope| {
        scope.spawn(move || {
            thread::sleep(NAP);
            action()
        });
        wait()
    });
    let waited = started.elapsed() >= NAP;
    format!("{}, waited {waited}", show(result))
}

fn receive_timeout(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    sys::set_timeout(pair.s(), libc::SO_RCVTIMEO, TIMEOUT)?;
    let started = Instant::now();
    p.result("recv with SO_RCVTIMEO", sys::recv(pair.s(), &mut [0; 8], 0, false));
    let took = started.elapsed();
    // The kernel counts in ticks, of which the first one has begun.
    p.say("in time", took >= TIMEOUT / 2 && took < Duration::from_secs(2));
    sys::write(pair.c(), b"abc")?;
    p.result(
        "MSG_WAITALL with too little",
        sys::recv(pair.s(), &mut [0; 8], libc::MSG_WAITALL, false),
    );
    sys::set_timeout(pair.s(), libc::SO_RCVTIMEO, Duration::ZERO)?;
    let (peer, own) = (pair.c(), pair.s());
    let text = meanwhile(|| sys::write(peer, b"abc"), || sys::read(own, &mut [0; 8]));
    p.say("recv without a timeout again", text);
    sys::set_timeout(pair.s(), libc::SO_RCVTIMEO, TIMEOUT)?;
    p.result("and with one", sys::recv(pair.s(), &mut [0; 8], 0, false));
    Ok(())
}

fn send_timeout(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let (own, peer) = (pair.c(), pair.s());
    let mut sent = fill(own)?;
    let block = vec![2; 1 << 20];
    sys::set_timeout(own, libc::SO_SNDTIMEO, TIMEOUT)?;
    let full = loop {
        match sys::write(own, &block) {
            // There was room still.
            Ok(n) => sent += n,
            Err(e) => break e,
        }
    };
    p.say("send with SO_SNDTIMEO", sys::errno_name(&full));
    sys::set_timeout(own, libc::SO_SNDTIMEO, Duration::ZERO)?;
    let (text, _) = send_while_read(own, peer, &block, sent);
    p.say("send without a timeout again", text);
    sys::set_timeout(own, libc::SO_SNDTIMEO, TIMEOUT)?;
    let full = (0..100).find_map(|_| sys::write(own, &block).err());
    p.say("and with one", full.map_or_else(|| "no end".into(), |e| sys::errno_name(&e)));
    Ok(())
}

fn woken(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let (peer, own) = (pair.c(), pair.s());
    let text = meanwhile(|| sys::write(peer, b"abc"), || sys::recv(own, &mut [0; 8], 0, false));
    p.say("recv until data", text);
    let text = meanwhile(
        || sys::write(peer, b"abc"),
        || sys::recvmsg(own, &mut [0; 8], 2, 0).map(|r| r.len),
    );
    p.say("recvmsg until data", text);
    let text = meanwhile(
        || sys::write(peer, b"abc"),
        || sys::recv(own, &mut [0; 8], libc::MSG_PEEK, false),
    );
    p.say("peek until data", text);
    drain(own)?;
    for (name, call) in [("poll", sys::poll as fn(&mut _, _) -> _), ("select", sys::select)] {
        let text = meanwhile(
            || sys::write(peer, b"abc"),
            || call(&mut [libc::pollfd { fd: own, events: libc::POLLIN, revents: 0 }], None),
        );
        p.say(&format!("{name} until data"), text);
        drain(own)?;
    }
    let text = meanwhile(|| sys::shutdown(own, libc::SHUT_RD), || sys::read(own, &mut [0; 8]));
    p.say("read until own shutdown", text);

    let pair = p.pair()?;
    let own = pair.s();
    let client = pair.client;
    let text = meanwhile(move || drop(client), || sys::read(own, &mut [0; 8]));
    p.say("read until the peer closes", text);

    let pair = p.pair()?;
    let own = pair.s();
    sys::linger(pair.c(), 0)?;
    let client = pair.client;
    let text = meanwhile(move || drop(client), || sys::read(own, &mut [0; 8]));
    p.say("read until the peer resets", text);
    Ok(())
}

fn wait_for_all(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let (peer, own) = (pair.c(), pair.s());
    let all = |len| sys::recv(own, &mut vec![0; len], libc::MSG_WAITALL, false);
    sys::write(peer, b"abc")?;
    p.say("MSG_WAITALL in two parts", meanwhile(|| sys::write(peer, b"defgh"), || all(8)));
    let large = vec![1; 3 << 20];
    let text = meanwhile(move || write_all(peer, &large), || all(3 << 20));
    p.say("MSG_WAITALL of much", text);
    let text = meanwhile(
        || sys::write(peer, &[1; 7]),
        || sys::recvmsg(own, &mut [0; 7], 3, libc::MSG_WAITALL).map(|r| r.len),
    );
    p.say("recvmsg with MSG_WAITALL", text);
    sys::write(peer, b"abc")?;
    let text = meanwhile(|| sys::shutdown(peer, libc::SHUT_WR), || all(8));
    p.say("MSG_WAITALL until the end", text);
    Ok(())
}

fn write_all(fd: RawFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        bytes = &bytes[sys::write(fd, bytes)?..];
    }
    Ok(())
}

/// Where this thread sleeps in a call that waits for a socket: in the kernel's, or on a futex.
const SLEEPS: [libc::c_long; 5] =
    [libc::SYS_recvfrom, libc::SYS_sendto, libc::SYS_poll, libc::SYS_ppoll, libc::SYS_futex];
/// Less than a waiter takes to look for itself whether the other end is still there.
const AT_ONCE: Duration = Duration::from_millis(10);
/// Tries, one of which a busy machine lets be quick.
const TRIES: u32 = 100;

/// True when `wait` is over as soon as `end`, which is called when it sleeps, has told it so.
fn is_told(end: impl FnOnce() + Send, wait: impl FnOnce() -> io::Result<usize>) -> bool {
    // SAFETY: no arguments, cannot fail.
    let path = format!("/proc/self/task/{}/syscall", unsafe { libc::gettid() });
    let sleeps = move || {
        let call = std::fs::read_to_string(&path).unwrap_or_default();
        let number = call.split(' ').next().and_then(|n| n.parse().ok());
        number.is_some_and(|number| SLEEPS.contains(&number))
    };
    thread::scope(|scope| {
        let ender = scope.spawn(move || {
            let began = Instant::now();
            let mut slept = sleeps();
            while !slept && began.elapsed() < NAP {
                slept = sleeps();
            }
            let ended = Instant::now();
            end();
            slept.then_some(ended)
        });
        // What it says of the end is looked at elsewhere.
        let _end = wait();
        let told = Instant::now();
        matches!(ender.join(), Ok(Some(ended)) if told.duration_since(ended) < AT_ONCE)
    })
}

/// Who sleeps is told of the end, and does not have to look for itself.
fn told_at_once(p: &Probe) -> io::Result<()> {
    // Only where the bytes have moved away from the kernel does its word not suffice.
    let warm = Probe::new("blocking", true);
    let one_of = |round: &dyn Fn(Pair) -> io::Result<bool>| {
        let mut rounds = (0..TRIES).map(|_| warm.pair().and_then(round));
        rounds.find(|told| !matches!(told, Ok(false))).unwrap_or(Ok(false))
    };
    let told = one_of(&|Pair { client, server }| {
        let own = server.as_raw_fd();
        Ok(is_told(move || drop(client), || sys::recv(own, &mut [0; 8], 0, false)))
    });
    p.result("a receiver is told of a close", told);
    let told = one_of(&|pair| {
        let (peer, own) = (pair.c(), pair.s());
        let end = move || {
            let _ = sys::shutdown(peer, libc::SHUT_WR);
        };
        Ok(is_told(end, || sys::recv(own, &mut [0; 8], 0, false)))
    });
    p.result("a receiver is told of a half-close", told);
    let told = one_of(&|Pair { client, server }| {
        let own = client.as_raw_fd();
        fill(own)?;
        Ok(is_told(move || drop(server), || sys::send(own, &[2; 100_000], libc::MSG_NOSIGNAL)))
    });
    p.result("a sender is told of a close", told);
    Ok(())
}

/// Sends a block that has no room, while the peer reads it and the `sent` bytes before it: what the send
/// says, and how many bytes were read.
fn send_while_read(own: RawFd, peer: RawFd, block: &[u8], sent: usize) -> (String, usize) {
    let mut got = 0;
    let text = meanwhile(
        || {
            while got < sent + block.len() {
                got += sys::read(peer, &mut vec![0; 1 << 20])?;
            }
            Ok::<_, io::Error>(())
        },
        || sys::write(own, block),
    );
    (text, got)
}

fn blocked_send(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let (own, peer) = (pair.c(), pair.s());
    let sent = fill(own)?;
    let block = vec![2; 1 << 20];
    let (text, got) = send_while_read(own, peer, &block, sent);
    p.say("a blocking send waits for room and sends everything", text);
    p.say("all of it arrives", got == sent + block.len());

    sys::set_signal_counter(libc::SIGPIPE)?;
    let pair = p.pair()?;
    let own = pair.c();
    fill(own)?;
    let server = pair.server;
    // The close with unread data resets; a sender that waits is told.
    let text = meanwhile(move || drop(server), || sys::write(own, &block));
    p.say("a blocked send when the peer closes", text);
    p.say("SIGPIPEs", sys::signal_count());
    sys::reset_signal(libc::SIGPIPE)
}

/// Interrupts `wait` a moment after it has begun; and again while it goes on, since a handler that runs
/// when the thread is only on its way into the wait does not end it. What `wait` returned.
fn interrupted(wait: impl FnOnce() -> io::Result<usize>) -> String {
    // SAFETY: no arguments, cannot fail.
    let me = unsafe { libc::pthread_self() };
    let is_over = AtomicBool::new(false);
    show(thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(NAP);
            while !is_over.load(Ordering::Relaxed) {
                // SAFETY: the thread waits for this one.
                unsafe { libc::pthread_kill(me, libc::SIGUSR1) };
                thread::sleep(NAP);
            }
        });
        let result = wait();
        is_over.store(true, Ordering::Relaxed);
        result
    }))
}

fn signals(p: &Probe) -> io::Result<()> {
    sys::set_signal_counter(libc::SIGUSR1)?;
    let pair = p.pair()?;
    let own = pair.s();
    p.say("recv and a signal", interrupted(|| sys::recv(own, &mut [0; 8], 0, false)));
    let fds = || [libc::pollfd { fd: own, events: libc::POLLIN, revents: 0 }];
    let limit = Some(Duration::from_secs(10));
    p.say("poll and a signal", interrupted(|| sys::poll(&mut fds(), limit)));
    p.say("select and a signal", interrupted(|| sys::select(&mut fds(), limit)));
    let mut epoll = sys::Epoll::new(4)?;
    epoll.control(libc::EPOLL_CTL_ADD, own, libc::EPOLLIN.cast_unsigned(), 1)?;
    let text = interrupted(|| epoll.wait(limit).map(|found| found.len()));
    p.say("epoll_wait and a signal", text);
    sys::write(pair.c(), b"abc")?;
    let text = interrupted(|| sys::recv(own, &mut [0; 8], libc::MSG_WAITALL, false));
    p.say("MSG_WAITALL, some data and a signal", text);
    p.say("a signal for each", sys::signal_count() >= 5);
    sys::reset_signal(libc::SIGUSR1)
}

fn blocked_accept(p: &Probe) -> io::Result<()> {
    let listener = listener()?;
    let own = listener.as_raw_fd();
    let text = meanwhile(|| crate::probe::connect_to(&listener), || sys::accept(own, 0).map(|_| 1));
    p.say("accept until somebody connects", text);
    sys::set_timeout(own, libc::SO_RCVTIMEO, Duration::from_millis(40))?;
    p.result("accept with SO_RCVTIMEO", sys::accept(own, 0).map(|_| "a socket"));
    // What it accepts from then on has it, too, until it is taken back.
    let accept = || -> io::Result<_> {
        let client = crate::probe::connect_to(&listener)?;
        let (accepted, _) = sys::accept(own, 0)?;
        // So that it is shunted, where it can be.
        sys::write(client.as_raw_fd(), b"a")?;
        sys::read(accepted.as_raw_fd(), &mut [0; 8])?;
        Ok((client, accepted))
    };
    sys::set_timeout(own, libc::SO_RCVTIMEO, TIMEOUT)?;
    let (_client, accepted) = accept()?;
    p.result("recv on what it accepts", sys::read(accepted.as_raw_fd(), &mut [0; 8]));
    sys::set_timeout(own, libc::SO_RCVTIMEO, Duration::ZERO)?;
    let (client, accepted) = accept()?;
    let text = meanwhile(
        || sys::write(client.as_raw_fd(), b"abc"),
        || sys::read(accepted.as_raw_fd(), &mut [0; 8]),
    );
    p.say("and without a timeout again", text);
    Ok(())
}
