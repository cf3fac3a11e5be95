//! A server as many are: one event loop. And those who visit it.

use std::mem;
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};

use libc::{c_int, epoll_event};
use shunt_functional::differential::board::Line;
use shunt_functional::differential::plan::Var;
use shunt_functional::differential::plan::ops::{Address, Visitor};
use shunt_functional::sys::{self, Forked};

use super::{calls, descriptors, say_error, world};

/// Length of a message.
const MESSAGE: usize = 50;

/// What has come without being there.
#[derive(Default)]
struct Served {
    accepted: u32,
    closed: u32,
    /// Events without what they said.
    spurious: u32,
    /// Descriptors that one wait named twice.
    twice: u32,
}

/// Adds a descriptor to an epoll instance, or makes `fd` one where there is none.
fn watch(epoll: RawFd, fd: RawFd) -> c_int {
    let events = libc::EPOLLIN.cast_unsigned();
    let mut event = epoll_event { events, u64: u64::from(fd.cast_unsigned()) };
    // SAFETY: the event is valid.
    unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event) }
}

/// See the operation.
pub fn serve(listener: Var, connections: u32, line: &mut Line) {
    let listener = world().fd(listener);
    // SAFETY: no pointers.
    let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    if epoll < 0 || sys::set_nonblocking(listener, true).is_err() || watch(epoll, listener) < 0 {
        return say_error(line);
    }
    let mut served = Served::default();
    while served.closed < connections {
        // SAFETY: plain data.
        let mut events: [epoll_event; 64] = unsafe { mem::zeroed() };
        // SAFETY: there is room for so many.
        let found = unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), 64, -1) };
        let found = usize::try_from(found).unwrap_or(0);
        let mut named = [0; 64];
        for (event, name) in events.iter().zip(&mut named).take(found) {
            *name = event.u64;
        }
        for n in 0..found {
            let fd = RawFd::try_from(named[n]).unwrap_or(-1);
            if named[..n].contains(&named[n]) {
                served.twice += 1;
            }
            if fd == listener {
                accept(epoll, listener, &mut served);
            } else {
                answer(fd, &mut served);
            }
        }
    }
    // SAFETY: its own descriptor.
    unsafe { libc::close(epoll) };
    let Served { accepted, spurious, twice, .. } = served;
    line.say(format_args!("accepted {accepted}, spurious {spurious}, twice {twice}"));
}

fn accept(epoll: RawFd, listener: RawFd, served: &mut Served) {
    match sys::accept(listener, libc::SOCK_NONBLOCK) {
        Ok((fd, _)) => {
            served.accepted += 1;
            let _always = sys::set_option(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
            watch(epoll, fd.into_raw_fd());
        }
        Err(_) => served.spurious += 1,
    }
}

fn answer(fd: RawFd, served: &mut Served) {
    let mut bytes = [0; 4096];
    match sys::recv(fd, &mut bytes, 0, false) {
        Ok(0) => {}
        // Its messages are small, so there is room for the answer.
        Ok(n) => return drop(sys::send(fd, &bytes[..n], libc::MSG_NOSIGNAL)),
        Err(_) if calls::errno() == libc::EAGAIN => {
            served.spurious += 1;
            return;
        }
        Err(_) => {}
    }
    served.closed += 1;
    // SAFETY: accepted by this loop, and known to it alone.
    unsafe { libc::close(fd) };
}

/// See the operation.
pub fn visit(to: Address, connections: u32, messages: u32, by: Visitor, line: &mut Line) {
    let mut failed = 0;
    for n in 0..connections {
        let well = match by {
            Visitor::Thread => converse(to, messages, n),
            Visitor::Forked => match sys::fork() {
                Ok(Forked::Child) => sys::exit_now(c_int::from(!converse(to, messages, n))),
                Ok(Forked::Parent(pid)) => sys::wait_for(pid).is_ok_and(|code| code == 0),
                Err(_) => false,
            },
        };
        failed += u32::from(!well);
    }
    line.say(format_args!("made {connections}, failed {failed}"));
}

/// One connection; true when all messages have come back as they were.
fn converse(to: Address, messages: u32, seed: u32) -> bool {
    let Ok(fd) = descriptors::connection_to(to.0) else { return false };
    (0..messages).all(|n| {
        let byte = u8::try_from((seed * 31 + n) % 251).unwrap_or(0);
        let sent: [u8; MESSAGE] = std::array::from_fn(|at| byte ^ u8::try_from(at).unwrap_or(0));
        let mut back = [0; MESSAGE];
        let mut got = 0;
        if sys::send(fd.as_raw_fd(), &sent, libc::MSG_NOSIGNAL).is_err() {
            return false;
        }
        while got < MESSAGE {
            match sys::recv(fd.as_raw_fd(), &mut back[got..], 0, false) {
                Ok(0) | Err(_) => return false,
                Ok(n) => got += n,
            }
        }
        back == sent
    })
}
