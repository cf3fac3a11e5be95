//! `RLIMIT_NOFILE`, lowered while connections are open: calls on them go on as before, but for those that the kernel
//! itself refuses.

use std::io;
use std::process;
use std::thread;
use std::time::Duration;

use shunt_functional::sys;

use crate::probe::{Pair, Probe, done, warm_up};

/// Time in which a call comes to wait.
const WHILE: Duration = Duration::from_millis(60);
/// Longest wait.
const PATIENCE: Option<Duration> = Some(Duration::from_secs(20));
/// More than a ring, and the kernel's buffers, hold.
const MANY: usize = 16 << 20;

/// The checks.
pub fn run(p: &mut Probe) -> io::Result<()> {
    for limit in [0, 1, 2, 3] {
        p.say("descriptors that there may be", limit);
        let pairs: Vec<Pair> = (0..4).map(|_| p.pair()).collect::<io::Result<_>>()?;
        for pair in &pairs {
            warm_up(pair.c(), pair.s())?;
        }
        let pid = process::id().cast_signed();
        let old = sys::limit(pid, sys::Resource::Descriptors, Some(limit))?;
        let checked = checks(p, pairs);
        sys::limit(pid, sys::Resource::Descriptors, Some(old))?;
        checked?;
    }
    Ok(())
}

fn checks(p: &Probe, mut pairs: Vec<Pair>) -> io::Result<()> {
    let mut buffer = vec![0; MANY];
    let pair = &pairs[0];
    let soon = |act: &(dyn Fn() -> io::Result<()> + Sync), wait: &mut dyn FnMut()| {
        thread::scope(|scope| {
            let other = scope.spawn(|| {
                thread::sleep(WHILE);
                act()
            });
            let before = cpu_time();
            wait();
            // A call that goes in circles takes all of the time.
            p.say("sleeps", cpu_time() - before < WHILE / 2);
            let acted = other.join().unwrap_or_else(|_| Err(io::Error::other("panicked")));
            p.say("meanwhile", done(acted));
        });
    };
    let write = || sys::write(pair.c(), b"bytes").map(drop);
    soon(&write, &mut || p.result("a read that waits", sys::read(pair.s(), &mut buffer)));
    let mut asked =
        [pair.s(), pair.c()].map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    for n in [1, 2] {
        p.result("poll at once", sys::poll(&mut asked[..n], Some(Duration::ZERO)));
    }
    soon(&write, &mut || p.result("select that waits", sys::select(&mut asked, PATIENCE)));
    p.result("what came", sys::read(pair.s(), &mut buffer));

    let all = vec![7; MANY];
    let mut got = 0;
    thread::scope(|scope| {
        let sender = scope.spawn(|| sys::write(pair.c(), &all));
        thread::sleep(WHILE);
        while got < MANY {
            match sys::read(pair.s(), &mut buffer) {
                Ok(n) if n > 0 => got += n,
                _ => break,
            }
        }
        p.result(
            "a write that waits",
            sender.join().unwrap_or_else(|_| Err(io::Error::other("panicked"))),
        );
    });
    p.say("is read", got);

    let shut = || sys::shutdown(pair.c(), libc::SHUT_WR);
    soon(&shut, &mut || {
        p.result("a read that waits for the end", sys::read(pair.s(), &mut buffer));
    });
    p.result("the other way", sys::write(pair.s(), b"more"));
    p.result("comes", sys::read(pair.c(), &mut buffer));

    let Some(Pair { client, server }) = pairs.pop() else { return Ok(()) };
    let end = std::os::fd::AsRawFd::as_raw_fd(&server);
    sys::linger(std::os::fd::AsRawFd::as_raw_fd(&client), 0)?;
    let cell = std::sync::Mutex::new(Some(client));
    let reset = || {
        drop(cell.lock().map(|mut client| client.take()));
        Ok(())
    };
    soon(&reset, &mut || p.result("a read that is reset", sys::read(end, &mut buffer)));
    p.result("and the next one", sys::read(end, &mut buffer));
    Ok(())
}

/// What this thread has taken.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::from_secs(time.tv_sec.unsigned_abs())
        + Duration::from_nanos(time.tv_nsec.unsigned_abs())
}
