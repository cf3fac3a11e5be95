//! A signal comes at each step of a wait before the sleep: the call ends as if it had slept already, or goes on where its
//! handler is one that restarts calls.

use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use shunt_functional::sys::{self, Epoll, points};

use crate::steps::{Ends, PATIENCE, send};
use crate::watch;

const SIGNAL: i32 = libc::SIGUSR1;

/// Handlers that have run.
static RUNS: AtomicU32 = AtomicU32::new(0);

extern "C" fn handler(_: libc::c_int) {
    RUNS.fetch_add(1, Ordering::Relaxed);
}

/// A call that waits, and where it passes before it sleeps.
const CALLS: [(&str, &[&str]); 4] = [
    // The second time in the kernel, and not on a futex.
    ("recv", &["sleep.armed@1", "sleep.begins@1", "sleep.armed@2", "sleep.begins@2"]),
    ("poll", &["poll.begins@1", "poll.looked@1", "poll.held@1", "poll.armed@1", "sleep.begins@1"]),
    (
        "select",
        &["poll.begins@1", "poll.looked@1", "poll.held@1", "poll.armed@1", "sleep.begins@1"],
    ),
    (
        "epoll",
        &["epoll.begins@1", "epoll.looks@1", "epoll.looked@1", "epoll.armed@1", "sleep.begins@1"],
    ),
];

fn wait(call: &str, fd: RawFd, set: &mut Epoll) -> io::Result<usize> {
    let mut fds = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
    match call {
        "recv" => sys::recv(fd, &mut [0; 10], 0, false),
        "poll" => sys::poll(&mut fds, None),
        "select" => sys::select(&mut fds, None),
        _ => set.wait(None).map(|events| events.len()),
    }
}

/// What the call answers; the bytes that it waits for come when it is to go on, or does not end for long.
fn interrupted(ends: &Ends, call: &str, point: &str, goes_on: bool) -> io::Result<String> {
    watch::begin(&format!("{call}, a signal at {point}"));
    let (client, server) = ends.pair()?;
    let (fd, mut set) = (server.as_raw_fd(), Epoll::new(1)?);
    set.control(libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN.cast_unsigned(), 0)?;
    RUNS.store(0, Ordering::Relaxed);
    let (place, pass) = point.split_once('@').ok_or(ErrorKind::InvalidInput)?;
    if !points::plan(&format!("{place}=signal:{SIGNAL}@{pass}")) {
        return Err(io::Error::other("the library has no points"));
    }
    let answer = thread::scope(|scope| {
        let called = scope.spawn(|| wait(call, fd, &mut set));
        let until = Instant::now() + PATIENCE / 2;
        let is_over = || called.is_finished() || Instant::now() > until;
        let has_run = || RUNS.load(Ordering::Relaxed) > 0;
        while !(is_over() || goes_on && has_run()) {
            thread::sleep(Duration::from_micros(200));
        }
        if goes_on {
            thread::sleep(Duration::from_millis(30));
        }
        let in_time = called.is_finished() != goes_on;
        send(client.as_raw_fd(), b"at last")?;
        let answer = called.join().map_err(|_| io::Error::other("a thread is gone"))?;
        Ok::<_, io::Error>(match answer {
            _ if !in_time => "at the wrong time".to_owned(),
            Ok(n) => n.to_string(),
            Err(e) => sys::errno_name(&e),
        })
    })?;
    points::plan("");
    Ok(if RUNS.load(Ordering::Relaxed) == 1 { answer } else { "no handler".to_owned() })
}

/// All calls, at all of their steps. True when each answers as over TCP.
pub fn all() -> io::Result<bool> {
    let ends = Ends::new()?;
    let mut is_right = true;
    for restarts in [false, true] {
        if restarts {
            sys::on_signal_restarting(SIGNAL, handler)?;
        } else {
            sys::on_signal(SIGNAL, handler)?;
        }
        for (call, points) in CALLS {
            // poll, select and epoll_wait are never restarted (signal(7)).
            let goes_on = restarts && call == "recv";
            let right = if goes_on { "7" } else { "EINTR" };
            for point in points {
                let answer = interrupted(&ends, call, point, goes_on)?;
                is_right &= answer == right;
                println!("{call}, restarts: {restarts}, at {point}: {answer}");
            }
        }
    }
    Ok(is_right)
}
