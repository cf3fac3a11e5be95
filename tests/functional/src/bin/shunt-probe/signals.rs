//! Waits and signals: handlers that use the connection, restarts, cancelled threads.

use std::ffi::c_void;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use libc::c_int;
use shunt_functional::sys;

use crate::probe::{Probe, drain, fill, listener, settle, show, try_recv};

/// The checks.
pub fn run(p: &mut Probe) -> io::Result<()> {
    restarts(p)?;
    restarts_below_another(p)?;
    handlers_that_answer(p)?;
    handlers_that_send(p)?;
    handlers_that_receive(p)?;
    handlers_that_close(p)?;
    cancelled(p)
}

/// The connection that the handlers use, what they did, and how often that failed.
static FD: AtomicI32 = AtomicI32::new(-1);
static CALLS: AtomicUsize = AtomicUsize::new(0);
static FAILURES: AtomicUsize = AtomicUsize::new(0);
/// Handlers that have run, whatever they did.
static RUNS: AtomicUsize = AtomicUsize::new(0);

/// Has a handler called.
pub fn install(signal: c_int, handler: extern "C" fn(c_int), flags: c_int) -> io::Result<()> {
    // SAFETY: all zero is a valid action.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = handler as *const () as libc::sighandler_t;
    action.sa_flags = flags;
    // SAFETY: the action is valid, and the handlers here call send and recv alone.
    match unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn begin(fd: RawFd) {
    FD.store(fd, Ordering::Relaxed);
    CALLS.store(0, Ordering::Relaxed);
    FAILURES.store(0, Ordering::Relaxed);
}

/// A handler keeps errno.
fn count(call: impl FnOnce() -> isize) {
    // SAFETY: the calling thread's own errno.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: the place of the calling thread's own errno.
    let before = unsafe { *errno };
    if call() == 1 {
        CALLS.fetch_add(1, Ordering::Relaxed);
    } else if io::Error::last_os_error().kind() != io::ErrorKind::WouldBlock {
        FAILURES.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: the place of the calling thread's own errno.
    unsafe { *errno = before };
    RUNS.fetch_add(1, Ordering::Release);
}

/// A handler that does nothing.
pub extern "C" fn nothing(_: c_int) {
    RUNS.fetch_add(1, Ordering::Release);
}

extern "C" fn send_one(_: c_int) {
    let fd = FD.load(Ordering::Relaxed);
    // SAFETY: one readable byte.
    count(|| unsafe { libc::send(fd, b"h".as_ptr().cast(), 1, libc::MSG_NOSIGNAL) });
}

extern "C" fn receive_one(_: c_int) {
    let (fd, mut byte) = (FD.load(Ordering::Relaxed), 0_u8);
    // SAFETY: one writable byte.
    count(|| unsafe { libc::recv(fd, (&raw mut byte).cast(), 1, libc::MSG_DONTWAIT) });
}

/// Sends `signal` to the calling thread a moment after `wait` has begun, so many times as long as it
/// waits, then, when the handler is done, does `after`. A handler that runs just when the thread is on its way into the wait does
/// not end it, so what counts is that one of several does.
pub fn interrupted(
    signal: c_int,
    times: usize,
    after: impl FnOnce() + Send,
    wait: impl FnOnce() -> io::Result<usize>,
) -> String {
    // SAFETY: no arguments, cannot fail.
    let me = unsafe { libc::pthread_self() };
    let is_over = AtomicBool::new(false);
    show(thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(60));
            for _ in 0..times {
                if !is_over.load(Ordering::Relaxed) {
                    let before = RUNS.load(Ordering::Acquire);
                    // SAFETY: the thread waits for this one.
                    unsafe { libc::pthread_kill(me, signal) };
                    while RUNS.load(Ordering::Acquire) == before {
                        thread::sleep(Duration::from_millis(1));
                    }
                    thread::sleep(Duration::from_millis(30));
                }
            }
            after();
        });
        let result = wait();
        is_over.store(true, Ordering::Relaxed);
        result
    }))
}

/// A receive that is restarted gets what comes after the signal.
fn restarts(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let (own, peer) = (pair.s(), pair.c());
    let send = || {
        let _ = sys::write(peer, b"abc");
    };
    for (name, flags) in [("SA_RESTART", libc::SA_RESTART), ("no SA_RESTART", 0)] {
        install(libc::SIGUSR1, nothing, flags)?;
        let text = interrupted(libc::SIGUSR1, 5, send, || sys::recv(own, &mut [0; 8], 0, false));
        p.say(&format!("recv and a handler with {name}"), text);
        drain(own)?;
        sys::set_timeout(own, libc::SO_RCVTIMEO, Duration::from_secs(5))?;
        let text = interrupted(libc::SIGUSR1, 5, send, || sys::recv(own, &mut [0; 8], 0, false));
        p.say(&format!("recv with a timeout and a handler with {name}"), text);
        sys::set_timeout(own, libc::SO_RCVTIMEO, Duration::ZERO)?;
        drain(own)?;
    }
    sys::reset_signal(libc::SIGUSR1)
}

/// Has another handler run above itself, as those do by which collectors of garbage stop threads.
extern "C" fn raise_another(signal: c_int) {
    // SAFETY: a signal that has a handler.
    unsafe { libc::raise(libc::SIGUSR2) };
    nothing(signal);
}

/// Of several handlers the one counts that has interrupted the call itself.
fn restarts_below_another(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let (own, peer) = (pair.s(), pair.c());
    let send = || {
        let _ = sys::write(peer, b"abc");
    };
    for (name, flags) in
        [("SA_RESTART", [libc::SA_RESTART, 0]), ("no SA_RESTART", [0, libc::SA_RESTART])]
    {
        install(libc::SIGUSR1, raise_another, flags[0])?;
        install(libc::SIGUSR2, nothing, flags[1])?;
        let text = interrupted(libc::SIGUSR1, 5, send, || sys::recv(own, &mut [0; 8], 0, false));
        p.say(&format!("recv and a handler with {name} below another one"), text);
        drain(own)?;
    }
    sys::reset_signal(libc::SIGUSR2)?;
    sys::reset_signal(libc::SIGUSR1)
}

/// A handler above a receive that waits uses both directions of the same connection.
fn handlers_that_answer(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let (own, peer) = (pair.s(), pair.c());
    begin(own);
    install(libc::SIGUSR1, send_one, libc::SA_RESTART)?;
    let send = || {
        let _ = sys::write(peer, b"abc");
    };
    let text = interrupted(libc::SIGUSR1, 1, send, || sys::recv(own, &mut [0; 8], 0, false));
    p.say("recv while a handler sends", text);
    settle();
    p.result("what the handler has sent", try_recv(peer, 10));
    install(libc::SIGUSR1, receive_one, libc::SA_RESTART)?;
    let text = interrupted(libc::SIGUSR1, 1, send, || sys::recv(own, &mut [0; 8], 0, false));
    p.say("recv while a handler receives", text);
    p.say("the handlers' failures", FAILURES.load(Ordering::Relaxed));
    sys::reset_signal(libc::SIGUSR1)
}

/// Memory that may not be read: where, and how much.
static FORBIDDEN: (AtomicUsize, AtomicUsize) = (AtomicUsize::new(0), AtomicUsize::new(0));

/// Sends a byte, and lets the interrupted call read what it is to send.
extern "C" fn send_and_allow(signal: c_int) {
    let (at, len) = (FORBIDDEN.0.load(Ordering::Relaxed), FORBIDDEN.1.swap(0, Ordering::Relaxed));
    let at = ptr::with_exposed_provenance_mut(at);
    // SAFETY: a mapping of this test's.
    if len == 0 || unsafe { libc::mprotect(at, len, libc::PROT_READ) } != 0 {
        sys::exit_now(128 + signal);
    }
    send_one(signal);
}

/// A handler sends on top of a call that puts bytes into a ring from which the peer has read nothing yet, nor what it was
/// sent before. Not to be compared with TCP, which faults in the kernel.
pub fn faulted(p: &mut Probe) -> io::Result<()> {
    const BYTES: usize = 32 << 10;
    let pair = p.pair()?;
    let (own, peer) = (pair.c(), pair.s());
    sys::write(own, &[b'b'; 100])?;
    sys::write(peer, &[b'a'; 10])?;
    sys::recv(own, &mut [0; 10], libc::MSG_WAITALL, false)?;
    let mut block = sys::Mapped::new(BYTES, 0)?;
    block.bytes().fill(b'm');
    let (at, len) = block.forbid_half()?;
    FORBIDDEN.0.store(at, Ordering::Relaxed);
    FORBIDDEN.1.store(len, Ordering::Relaxed);
    begin(own);
    install(libc::SIGSEGV, send_and_allow, 0)?;
    let sent = block.send(own, 0, BYTES, 0)?;
    sys::reset_signal(libc::SIGSEGV)?;
    p.say("the handler has sent", CALLS.load(Ordering::Relaxed) == 1);
    p.say("and the call", sent == BYTES);
    let mut got = vec![0; 100 + CALLS.load(Ordering::Relaxed) + sent];
    sys::recv(peer, &mut got, libc::MSG_WAITALL, false)?;
    p.say("what was sent before comes first", got.starts_with(&[b'b'; 100]));
    let of = |byte| got[100..].iter().filter(|b| **b == byte).count();
    p.say("all bytes come", (of(b'm'), of(b'h')) == (BYTES, 1));
    p.result("and no more", try_recv(peer, 10));
    Ok(())
}

/// SIGALRM every so often for as long as `work` runs.
fn alarmed<T>(work: impl FnOnce() -> T) -> io::Result<T> {
    let every = |micros| {
        let time = libc::timeval { tv_sec: 0, tv_usec: micros };
        let timer = libc::itimerval { it_interval: time, it_value: time };
        // SAFETY: the timer is valid.
        match unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, ptr::null_mut()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    let_in(libc::SIG_UNBLOCK);
    every(300)?;
    let result = work();
    every(0)?;
    Ok(result)
}

/// SIGALRM is for the thread that works: blocked before others are made, and let in by [`alarmed`].
fn let_in(how: c_int) {
    // SAFETY: the set is initialized before use; only this thread's mask is changed.
    unsafe {
        let mut set: libc::sigset_t = mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGALRM);
        libc::pthread_sigmask(how, &raw const set, ptr::null_mut());
    }
}

const ENOUGH: usize = 200;

fn say_calls(p: &Probe, what: &str) {
    let (calls, failures) = (CALLS.load(Ordering::Relaxed), FAILURES.load(Ordering::Relaxed));
    p.say(&format!("{what}: enough"), calls >= ENOUGH);
    // Where a call holds a lock for an instant a handler may be turned away with EINTR.
    p.say(&format!("{what}: nearly all work"), failures * 4 < calls);
}

/// A handler sends in the middle of large sends on the same connection.
fn handlers_that_send(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let (own, peer) = (pair.c(), pair.s());
    begin(own);
    install(libc::SIGALRM, send_one, libc::SA_RESTART)?;
    let_in(libc::SIG_BLOCK);
    let (mut main, mut handler) = (0, 0);
    let sent = thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = vec![0; 256 << 10];
            while let Ok(n @ 1..) = sys::read(peer, &mut buffer) {
                let marked = buffer[..n].iter().filter(|b| **b == b'h').count();
                handler += marked;
                main += n - marked;
            }
        });
        let block = vec![b'm'; 256 << 10];
        let sent = alarmed(|| {
            let mut sent = 0;
            for _ in 0..20_000 {
                if CALLS.load(Ordering::Relaxed) >= ENOUGH {
                    break;
                }
                match sys::write(own, &block) {
                    Ok(n) => sent += n,
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(e),
                }
            }
            Ok(sent)
        });
        let _ = sys::shutdown(own, libc::SHUT_WR);
        sent
    })??;
    say_calls(p, "handlers that send");
    p.say("the program's bytes arrive", main == sent);
    p.say("the handlers' bytes arrive", handler == CALLS.load(Ordering::Relaxed));
    sys::reset_signal(libc::SIGALRM)
}

/// A handler receives in the middle of large receives.
fn handlers_that_receive(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let (own, peer) = (pair.s(), pair.c());
    begin(own);
    install(libc::SIGALRM, receive_one, libc::SA_RESTART)?;
    let_in(libc::SIG_BLOCK);
    let (mut sent, mut sum) = (0, 0);
    let got = thread::scope(|scope| {
        scope.spawn(|| {
            let block = vec![b'm'; 256 << 10];
            for _ in 0..20_000 {
                if CALLS.load(Ordering::Relaxed) >= ENOUGH {
                    break;
                }
                match sys::write(peer, &block) {
                    Ok(n) => sent += n,
                    Err(_) => break,
                }
            }
            let _ = sys::shutdown(peer, libc::SHUT_WR);
        });
        alarmed(|| {
            let mut buffer = vec![0; 256 << 10];
            loop {
                match sys::read(own, &mut buffer) {
                    Ok(0) => return Ok(()),
                    Ok(n) => sum += n,
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(e),
                }
            }
        })
    });
    got??;
    say_calls(p, "handlers that receive");
    p.say("every byte is received once", sum + CALLS.load(Ordering::Relaxed) == sent);
    sys::reset_signal(libc::SIGALRM)
}

/// Descriptors for handlers to close, from the last one on; and how many are left.
static DOOMED: [AtomicI32; DOOMED_COUNT] = [const { AtomicI32::new(-1) }; DOOMED_COUNT];
static LEFT: AtomicUsize = AtomicUsize::new(0);
const DOOMED_COUNT: usize = 100;

/// Sends a last byte, and closes.
extern "C" fn close_one(_: c_int) {
    if let Some(last) = LEFT.load(Ordering::Relaxed).checked_sub(1) {
        LEFT.store(last, Ordering::Relaxed);
        let fd = DOOMED[last].load(Ordering::Relaxed);
        // SAFETY: one readable byte; the descriptor is the handler's.
        count(|| unsafe { libc::send(fd, b"h".as_ptr().cast(), 1, libc::MSG_NOSIGNAL) });
        // SAFETY: the descriptor is the handler's, which uses it no more.
        unsafe { libc::close(fd) };
    }
}

/// A handler closes connections in the middle of calls on the epoll instance that watches them.
fn handlers_that_close(p: &Probe) -> io::Result<()> {
    const IN: u32 = libc::EPOLLIN.cast_unsigned();
    let mut epoll = sys::Epoll::new(64)?;
    let pair = p.pair()?;
    begin(pair.c());
    let mut peers = Vec::new();
    for doomed in &DOOMED {
        let other = p.pair()?;
        let fd = other.client.into_raw_fd();
        epoll.control(libc::EPOLL_CTL_ADD, fd, IN, 1)?;
        doomed.store(fd, Ordering::Relaxed);
        peers.push(other.server);
    }
    LEFT.store(DOOMED_COUNT, Ordering::Relaxed);
    install(libc::SIGALRM, close_one, libc::SA_RESTART)?;
    let_in(libc::SIG_BLOCK);
    let mut strange = 0;
    alarmed(|| -> io::Result<()> {
        while LEFT.load(Ordering::Relaxed) > 0 {
            epoll.control(libc::EPOLL_CTL_ADD, pair.c(), IN | libc::EPOLLOUT.cast_unsigned(), 2)?;
            match epoll.wait(Some(Duration::ZERO)) {
                Ok(found) => strange += found.iter().filter(|event| event.data != 2).count(),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
            epoll.control(libc::EPOLL_CTL_DEL, pair.c(), 0, 0)?;
        }
        Ok(())
    })??;
    p.say("handlers that close: events of what is closed", strange);
    p.say("the handlers' failures", FAILURES.load(Ordering::Relaxed));
    let ends = peers.iter().filter(|peer| {
        let last = sys::recv(peer.as_raw_fd(), &mut [0; 8], 0, false);
        let end = sys::recv(peer.as_raw_fd(), &mut [0; 8], 0, false);
        matches!((last, end), (Ok(1), Ok(0)))
    });
    p.say("a byte and an end", ends.count());
    p.say("what is left to tell", epoll.wait(Some(Duration::ZERO))?.len());
    sys::reset_signal(libc::SIGALRM)
}

/// What a thread does that is to be cancelled.
type Wait = fn(RawFd) -> io::Result<usize>;

extern "C-unwind" fn body(arg: *mut c_void) -> *mut c_void {
    // SAFETY: points to the caller's pair, which outlives the thread.
    let (wait, fd) = unsafe { &*arg.cast::<(Wait, RawFd)>() };
    let _ = wait(*fd);
    ptr::null_mut()
}

unsafe extern "C" {
    fn pthread_timedjoin_np(
        thread: libc::pthread_t,
        result: *mut *mut c_void,
        until: *const libc::timespec,
    ) -> c_int;
}

/// Whether a thread that waits ends when it is cancelled.
fn cancel(wait: Wait, fd: RawFd) -> String {
    let arg = Box::leak(Box::new((wait, fd)));
    let mut thread = 0;
    // SAFETY: `arg` is leaked and so outlives the thread, which unwinds through `body` when it is
    // cancelled: the C library's thread functions let it.
    unsafe {
        let body: extern "C" fn(*mut c_void) -> *mut c_void =
            mem::transmute(body as extern "C-unwind" fn(*mut c_void) -> *mut c_void);
        let arg = ptr::from_mut(arg).cast();
        if libc::pthread_create(&raw mut thread, ptr::null(), body, arg) != 0 {
            return "no thread".into();
        }
        thread::sleep(Duration::from_millis(60));
        libc::pthread_cancel(thread);
        let mut until = mem::zeroed::<libc::timespec>();
        libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut until);
        until.tv_sec += 20;
        let mut result = ptr::null_mut();
        match pthread_timedjoin_np(thread, &raw mut result, &raw const until) {
            0 if result.addr() == usize::MAX => "cancelled".into(),
            0 => "returned".into(),
            e => format!("still there ({e})"),
        }
    }
}

fn cancelled(p: &Probe) -> io::Result<()> {
    fn one(fd: RawFd) -> [libc::pollfd; 1] {
        [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }]
    }
    let waits: &[(&str, Wait)] = &[
        ("recv", |fd| sys::recv(fd, &mut [0; 8], 0, false)),
        ("read", |fd| sys::read(fd, &mut [0; 8])),
        ("recvmsg", |fd| sys::recvmsg(fd, &mut [0; 8], 2, 0).map(|r| r.len)),
        ("poll", |fd| sys::poll(&mut one(fd), None)),
        ("select", |fd| sys::select(&mut one(fd), None)),
        ("epoll_wait", |fd| {
            let mut epoll = sys::Epoll::new(4)?;
            epoll.control(libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN.cast_unsigned(), 1)?;
            epoll.wait(None).map(|found| found.len())
        }),
    ];
    let pair = p.pair()?;
    for (name, wait) in waits {
        p.say(&format!("cancelled in {name}"), cancel(*wait, pair.s()));
    }
    // What they have left behind works.
    sys::write(pair.c(), b"x")?;
    settle();
    p.result("after that: recv", try_recv(pair.s(), 10));
    fill(pair.c())?;
    p.say("cancelled in send", cancel(|fd| sys::write(fd, &[1; 1 << 20]), pair.c()));
    let listener = listener()?;
    p.say("cancelled in accept", cancel(|fd| sys::accept(fd, 0).map(|_| 1), listener.as_raw_fd()));
    Ok(())
}
