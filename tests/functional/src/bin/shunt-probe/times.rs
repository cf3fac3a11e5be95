//! `SO_TIMESTAMPING`: the kernel tells of bytes when they were sent, and when they came.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use libc::{SO_TIMESTAMPING, SOL_SOCKET};
use shunt_functional::sys::{self, Epoll};

use crate::probe::{Pair, Probe, address, done, listener};
use crate::zerocopy::awaited;

/// When the kernel has taken bytes, the device has, and the peer has acknowledged them.
const SENDING: u32 = libc::SOF_TIMESTAMPING_TX_SCHED
    | libc::SOF_TIMESTAMPING_TX_SOFTWARE
    | libc::SOF_TIMESTAMPING_TX_ACK;
const RECEIVING: u32 = libc::SOF_TIMESTAMPING_RX_SOFTWARE;
/// The times alone, without the bytes.
const TOLD: u32 = libc::SOF_TIMESTAMPING_SOFTWARE | libc::SOF_TIMESTAMPING_OPT_TSONLY;
/// With numbers, which count from the call on: only of what is connected.
const NUMBERED: u32 = libc::SOF_TIMESTAMPING_OPT_ID | OPT_ID_TCP;
/// include/uapi/linux/net_tstamp.h.
const OPT_ID_TCP: u32 = 1 << 16;

/// Longest wait for an acknowledgement.
const PATIENCE: Duration = Duration::from_secs(5);

/// All checks.
pub fn run(p: &mut Probe) -> io::Result<()> {
    of_a_connection(p)?;
    of_one_that_is_used(p)?;
    before_connect(p)?;
    of_what_is_accepted(p)?;
    of_one_message(p)?;
    received(p)
}

fn set(fd: RawFd, flags: u32) -> io::Result<()> {
    sys::set_option(fd, SOL_SOCKET, SO_TIMESTAMPING, flags.cast_signed())
}

/// Sends a message, takes it, and says which times are told of it.
fn timed(
    p: &Probe,
    from: RawFd,
    to: RawFd,
    send: impl Fn() -> io::Result<usize>,
) -> io::Result<()> {
    p.result("sent", send());
    p.result("received", sys::recv(to, &mut [0; 100], libc::MSG_WAITALL, false));
    p.result("poll", awaited(from));
    let started = Instant::now();
    let mut told = 0;
    while told < 3 && started.elapsed() < PATIENCE {
        match sys::recv_stamp(from) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                sys::poll(&mut [], Some(Duration::from_millis(1)))?;
            }
            result => {
                told += 1;
                p.result("told", result);
            }
        }
    }
    p.result("and no more", sys::recv_stamp(from));
    Ok(())
}

fn both_ways(p: &Probe, (from, to): (RawFd, RawFd)) -> io::Result<()> {
    for _ in 0..3 {
        timed(p, from, to, || sys::write(from, &[1; 100]))?;
        p.result("answered", sys::write(to, &[2; 100]));
        let answer = sys::recv(from, &mut [0; 100], libc::MSG_WAITALL, false);
        p.result("received", answer);
    }
    Ok(())
}

fn of_a_connection(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    p.say("set", done(set(pair.c(), SENDING | TOLD | NUMBERED)));
    p.result("it is", sys::get_option(pair.c(), SOL_SOCKET, SO_TIMESTAMPING));
    both_ways(p, (pair.c(), pair.s()))
}

/// Bytes wait at both ends, and somebody watches.
fn of_one_that_is_used(p: &Probe) -> io::Result<()> {
    let pair = p.pair()?;
    let mut epoll = Epoll::new(4)?;
    epoll.control(libc::EPOLL_CTL_ADD, pair.s(), libc::EPOLLRDHUP.cast_unsigned(), 1)?;
    sys::write(pair.c(), &[3; 150])?;
    sys::write(pair.s(), &[4; 50])?;
    sys::recv(pair.s(), &mut [0; 50], libc::MSG_WAITALL, false)?;
    p.say("set", done(set(pair.s(), SENDING | TOLD | NUMBERED)));
    p.result("sent", sys::write(pair.s(), &[5; 50]));
    let found = epoll.wait(Some(PATIENCE))?;
    p.say("watched", format!("{found:?}"));
    p.result("waited at one end", sys::recv(pair.c(), &mut [0; 100], libc::MSG_WAITALL, false));
    p.result("and at the other", sys::recv(pair.s(), &mut [0; 100], libc::MSG_WAITALL, false));
    Ok(())
}

fn before_connect(p: &Probe) -> io::Result<()> {
    let listener = listener()?;
    let client = socket()?;
    p.say("numbers before connect", done(set(client.as_raw_fd(), SENDING | TOLD | NUMBERED)));
    p.say("set before connect", done(set(client.as_raw_fd(), SENDING | TOLD)));
    let pair = connected(&listener, client)?;
    both_ways(p, (pair.c(), pair.s()))
}

fn socket() -> io::Result<OwnedFd> {
    sys::socket(libc::AF_INET, libc::SOCK_STREAM)
}

fn connected(listener: &OwnedFd, client: OwnedFd) -> io::Result<Pair> {
    sys::connect(client.as_raw_fd(), address(listener)?)?;
    let (server, _) = sys::accept(listener.as_raw_fd(), 0)?;
    Ok(Pair { client, server })
}

/// Accepted sockets have the option of their listener.
fn of_what_is_accepted(p: &Probe) -> io::Result<()> {
    let listener = listener()?;
    p.say("set at the listener", done(set(listener.as_raw_fd(), SENDING | TOLD)));
    let pair = connected(&listener, socket()?)?;
    p.result("inherited", sys::get_option(pair.s(), SOL_SOCKET, SO_TIMESTAMPING));
    both_ways(p, (pair.s(), pair.c()))?;
    p.say("set back", done(set(listener.as_raw_fd(), 0)));
    let pair = connected(&listener, socket()?)?;
    p.result("inherited", sys::get_option(pair.s(), SOL_SOCKET, SO_TIMESTAMPING));
    Ok(())
}

/// The socket tells times, and one message asks for them.
fn of_one_message(p: &Probe) -> io::Result<()> {
    for numbered in [0, NUMBERED] {
        let pair = p.pair()?;
        let other = || {
            p.result("sent", sys::write(pair.c(), &[1; 10]));
            p.result("received", sys::recv(pair.s(), &mut [0; 10], libc::MSG_WAITALL, false));
        };
        p.say("set", done(set(pair.c(), TOLD | numbered)));
        other();
        timed(p, pair.c(), pair.s(), || sys::send_timed(pair.c(), &[1; 100], SENDING))?;
        other();
        p.result("told", sys::recv_stamp(pair.c()));
    }
    Ok(())
}

/// Times of receiving alone, asked for at either end; and who does not want to know after all.
pub fn received(p: &mut Probe) -> io::Result<()> {
    let talk = |pair: Pair| {
        let pair = p.ready(pair)?;
        for (from, to) in [(pair.c(), pair.s()), (pair.s(), pair.c())].repeat(2) {
            p.result("sent", sys::write(from, &[1; 100]));
            p.result("received", sys::recv(to, &mut [0; 100], libc::MSG_WAITALL, false));
        }
        p.result("told", sys::recv_stamp(pair.c()));
        p.result("and at the other end", sys::recv_stamp(pair.s()));
        Ok::<_, io::Error>(())
    };
    let listener = listener()?;
    p.say("set at the listener", done(set(listener.as_raw_fd(), RECEIVING | TOLD)));
    let client = socket()?;
    p.say("set before connect", done(set(client.as_raw_fd(), RECEIVING | TOLD)));
    let pair = connected(&listener, client)?;
    for fd in [pair.c(), pair.s()] {
        p.say("set", done(set(fd, RECEIVING | TOLD)));
    }
    talk(pair)?;
    let client = socket()?;
    for fd in [listener.as_raw_fd(), client.as_raw_fd()] {
        p.say("set, and set back", done(set(fd, SENDING | TOLD).and_then(|()| set(fd, 0))));
    }
    talk(connected(&listener, client)?)
}
