//! preadv2(2), pwritev2(2), and calls that name a position.

use std::io;

use shunt_functional::sys::{self, raw};

use crate::probe::{Probe, drain, fill, settle};

/// The checks.
pub fn run(p: &mut Probe) -> io::Result<()> {
    moved(p)?;
    without_waiting(p)?;
    positions(p)?;
    other_flags(p)?;
    by_number(p)
}

const HERE: i64 = -1;

fn moved(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let mut buffer = [0; 10];
    p.result("pwritev2", sys::pwritev2(pair.c(), b"0123456789", HERE, 0));
    settle();
    p.result("preadv2", sys::preadv2(pair.s(), &mut buffer, HERE, 0));
    p.say("what came", String::from_utf8_lossy(&buffer));
    p.result("pwritev2 of nothing", sys::pwritev2(pair.c(), b"", HERE, 0));
    p.result("preadv2 of nothing", sys::preadv2(pair.s(), &mut [], HERE, 0));
    p.result("back", sys::pwritev2(pair.s(), b"back", HERE, 0));
    p.result("waits for it", sys::preadv2(pair.c(), &mut buffer, HERE, 0));
    sys::shutdown(pair.c(), libc::SHUT_WR)?;
    settle();
    p.result("the end", sys::preadv2(pair.s(), &mut buffer, HERE, 0));
    sys::set_signal_counter(libc::SIGPIPE)?;
    p.result("after it", sys::pwritev2(pair.c(), b"abc", HERE, 0));
    p.result("without waiting", sys::pwritev2(pair.c(), b"abc", HERE, libc::RWF_NOWAIT));
    p.say("SIGPIPEs", sys::signal_count());
    sys::reset_signal(libc::SIGPIPE)
}

fn without_waiting(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let mut buffer = [0; 10];
    p.result("nothing there", sys::preadv2(pair.s(), &mut buffer, HERE, libc::RWF_NOWAIT));
    p.result("sent", sys::pwritev2(pair.c(), b"abc", HERE, libc::RWF_NOWAIT));
    settle();
    p.result("received", sys::preadv2(pair.s(), &mut buffer, HERE, libc::RWF_NOWAIT));
    p.result("nothing, of nothing", sys::preadv2(pair.s(), &mut [], HERE, libc::RWF_NOWAIT));
    let mut sent = fill(pair.c())?;
    let full = loop {
        match sys::pwritev2(pair.c(), &[1; 1000], HERE, libc::RWF_NOWAIT) {
            Ok(n) => sent += n,
            Err(e) => break sys::errno_name(&e),
        }
    };
    p.say("a full connection", full);
    p.say("all of it arrives", drain(pair.s())? == sent);
    Ok(())
}

/// A connection has no positions.
fn positions(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    sys::write(pair.c(), b"abc")?;
    settle();
    let mut buffer = [0; 10];
    for at in [0, 1, -2, i64::MIN, i64::MAX] {
        for flags in [0, libc::RWF_NOWAIT] {
            let what = format!("at {at}, flags {flags}");
            p.result(&what, sys::preadv2(pair.s(), &mut buffer, at, flags));
            p.result(&what, sys::pwritev2(pair.s(), b"abc", at, flags));
        }
        p.result("pread", sys::pread(pair.s(), &mut buffer, at));
        p.result("pwrite", sys::pwrite(pair.s(), b"abc", at));
    }
    p.result("what is there", drain(pair.s()));
    p.result("at the other end", drain(pair.c()));
    Ok(())
}

/// What means nothing to a connection, and what the kernel may know or not.
fn other_flags(p: &Probe) -> io::Result<()> {
    let known = [libc::RWF_HIPRI, libc::RWF_DSYNC, libc::RWF_SYNC, libc::RWF_APPEND];
    for flags in known.into_iter().chain((5..9).map(|bit| 1 << bit)).chain([1 << 30]) {
        let pair = p.pair()?;
        let mut buffer = [0; 10];
        let what = format!("with flags {flags:#x}");
        sys::write(pair.c(), b"in front ")?;
        p.result(&what, sys::pwritev2(pair.c(), b"abc", HERE, flags));
        sys::write(pair.c(), b" behind")?;
        settle();
        p.result(&what, sys::preadv2(pair.s(), &mut buffer, HERE, flags));
        let mut rest = [0; 100];
        let n = sys::recv(pair.s(), &mut rest, libc::MSG_DONTWAIT, false)?;
        p.say("the rest", String::from_utf8_lossy(&rest[..n]));
        p.result("back", sys::write(pair.s(), b"back"));
        settle();
        p.result("arrives", drain(pair.c()));
    }
    Ok(())
}

/// The same by syscall(2).
fn by_number(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let mut buffer = [0; 10];
    p.result("pwritev2 by number", raw::pwritev2(pair.c(), b"abc", HERE, 0));
    settle();
    p.result("preadv2 by number", raw::preadv2(pair.s(), &mut buffer, HERE, libc::RWF_NOWAIT));
    p.result("nothing more", raw::preadv2(pair.s(), &mut buffer, HERE, libc::RWF_NOWAIT));
    p.result("a position", raw::preadv2(pair.s(), &mut buffer, 0, 0));
    Ok(())
}
