//! `O_ASYNC`: a signal when bytes come, or room, or the end.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use libc::c_int;
use shunt_functional::sys;

use crate::probe::{Pair, Probe, address, done, drain, fill, listener, settle, try_recv, try_send};

/// Longest wait for a signal.
const PATIENCE: Duration = Duration::from_secs(5);

/// Signals that have come.
static CAME: AtomicUsize = AtomicUsize::new(0);

extern "C" fn count(_: c_int) {
    CAME.fetch_add(1, Ordering::SeqCst);
}

/// The checks.
pub fn run(p: &mut Probe) -> io::Result<()> {
    for signal in [libc::SIGIO, libc::SIGUSR2] {
        sys::on_signal_restarting(signal, count)?;
    }
    for way in [Way::Flag, Way::Ioctl, Way::Raw] {
        for signal in [0, libc::SIGUSR2] {
            p.say("signals", format!("{way:?} {signal}"));
            arrivals(p, way, signal)?;
        }
    }
    before_connect(p)?;
    unread(p)?;
    room_and_end(p)?;
    for signal in [libc::SIGIO, libc::SIGUSR2] {
        sys::reset_signal(signal)?;
    }
    Ok(())
}

/// How a program asks for signals.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Flag,
    Ioctl,
    Raw,
}

/// Has the kernel raise a signal, SIGIO or this one, for what happens at the descriptor.
fn ask(fd: RawFd, way: Way, signal: c_int) -> io::Result<()> {
    sys::own_signals(fd, signal)?;
    set(fd, way, true)
}

fn set(fd: RawFd, way: Way, on: bool) -> io::Result<()> {
    match way {
        Way::Flag => sys::set_async(fd, on),
        Way::Ioctl => sys::set_async_ioctl(fd, on),
        Way::Raw => sys::set_async_raw(fd, on),
    }
}

/// Whether a signal comes after `work`.
fn heard(work: impl FnOnce() -> io::Result<()>) -> io::Result<bool> {
    let before = CAME.load(Ordering::SeqCst);
    work()?;
    let started = Instant::now();
    while CAME.load(Ordering::SeqCst) == before && started.elapsed() < PATIENCE {
        // Which a signal ends.
        thread::sleep(Duration::from_millis(1));
    }
    Ok(CAME.load(Ordering::SeqCst) > before)
}

fn arrivals(p: &Probe, way: Way, signal: c_int) -> io::Result<()> {
    let pair = p.pair()?;
    for (from, to) in [(pair.c(), pair.s()), (pair.s(), pair.c())] {
        p.say("asked", done(ask(to, way, signal)));
        for _ in 0..5 {
            p.result("heard of bytes", heard(|| sys::write(from, b"abc").map(drop)));
            p.result("which are there", try_recv(to, 10));
        }
        p.say("no more", done(set(to, way, false)));
        let before = CAME.load(Ordering::SeqCst);
        sys::write(from, b"abc")?;
        settle();
        p.say("then none comes", CAME.load(Ordering::SeqCst) == before);
        p.result("but bytes", sys::recv(to, &mut [0; 10], 0, false));
    }
    Ok(())
}

/// The socket that is connected has been asked before.
fn before_connect(p: &Probe) -> io::Result<()> {
    let listener = listener()?;
    let client = sys::socket(libc::AF_INET, libc::SOCK_STREAM)?;
    ask(client.as_raw_fd(), Way::Flag, 0)?;
    sys::connect(client.as_raw_fd(), address(&listener)?)?;
    let (server, _) = sys::accept(listener.as_raw_fd(), 0)?;
    let pair = p.ready(Pair { client, server })?;
    for _ in 0..3 {
        p.result("asked before: heard", heard(|| sys::write(pair.s(), b"abc").map(drop)));
        p.result("there", try_recv(pair.c(), 10));
    }
    Ok(())
}

/// Bytes that came before are there, of a peer that waits for the answer.
fn unread(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    sys::write(pair.c(), b"request")?;
    settle();
    thread::scope(|scope| {
        let waits = scope.spawn(|| sys::recv(pair.c(), &mut [0; 10], libc::MSG_WAITALL, false));
        settle();
        ask(pair.s(), Way::Flag, 0)?;
        let mut got = [0; 7];
        p.result("unread", sys::recv(pair.s(), &mut got, libc::MSG_WAITALL, false));
        p.say("right", &got == b"request");
        sys::write(pair.s(), b"the answer")?;
        p.result("answered", waits.join().unwrap_or(Ok(0)));
        p.result("heard", heard(|| sys::write(pair.c(), b"abc").map(drop)));
        p.result("there", try_recv(pair.s(), 10));
        io::Result::Ok(())
    })
}

fn room_and_end(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    ask(pair.c(), Way::Flag, 0)?;
    fill(pair.c())?;
    p.result("no room", try_send(pair.c(), b"x"));
    p.result("heard of room", heard(|| drain(pair.s()).map(drop)));
    p.result("there is", try_send(pair.c(), b"x"));
    p.result("heard of a half-close", heard(|| sys::shutdown(pair.s(), libc::SHUT_WR)));
    p.result("that is it", try_recv(pair.c(), 10));
    let Pair { client: _client, server } = pair;
    p.result(
        "heard of the close",
        heard(|| {
            drop(server);
            Ok(())
        }),
    );
    Ok(())
}
