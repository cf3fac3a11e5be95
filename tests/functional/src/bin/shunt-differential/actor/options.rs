//! Options, flags and questions.

use std::time::{Duration, Instant};

use libc::c_int;
use shunt_functional::differential::board::Line;
use shunt_functional::differential::plan::ops::{FlagBy, How, OptionName};
use shunt_functional::differential::plan::{Op, Var};
use shunt_functional::sys;

use super::seen::is_elastic;
use super::{calls, say_done, say_error, world};

const SO_PEEK_OFF: c_int = 42;
const TCP_INQ: c_int = 36;
/// Longest wait for acknowledgements, which may be held back for a moment.
const ACKNOWLEDGED: Duration = Duration::from_secs(1);

#[repr(C)]
struct Owner {
    kind: c_int,
    pid: libc::pid_t,
}
const F_SETOWN_EX: c_int = 15;
const F_OWNER_TID: c_int = 0;

/// Does one of these operations.
pub fn perform(op: &Op, line: &mut Line) {
    let world = world();
    match *op {
        Op::Shutdown { fd, how } => {
            let how = match how {
                How::Wr => libc::SHUT_WR,
                How::Rd => libc::SHUT_RD,
                How::Both => libc::SHUT_RDWR,
            };
            // SAFETY: no pointers.
            let done = unsafe { libc::shutdown(world.fd(fd), how) };
            // Whether the peer's end has come already, behind so many bytes, depends on buffers.
            if done < 0
                && calls::errno() == libc::ENOTCONN
                && is_elastic(&world.board, fd.incoming())
            {
                return line.say(format_args!("ok"));
            }
            say_done(line, done);
        }
        Op::SetOption { fd, name, value } => set(fd, name, value, line),
        Op::GetOption { fd, name } => get(fd, name, line),
        Op::Nonblock { fd, on, by } => {
            say_done(line, set_flag(fd, libc::O_NONBLOCK, libc::FIONBIO, on, by));
        }
        Op::Available { fd } => available(fd, line),
        Op::Unacked { fd } => unacked(fd, line),
        Op::Async { fd, on, by } => {
            let owner = Owner { kind: F_OWNER_TID, pid: sys::tid() };
            // SAFETY: the owner is what this command reads.
            if unsafe { libc::fcntl(world.fd(fd), F_SETOWN_EX, &raw const owner) } < 0 {
                return say_error(line);
            }
            say_done(line, set_flag(fd, libc::O_ASYNC, libc::FIOASYNC, on, by));
        }
        _ => {}
    }
}

fn set_flag(fd: Var, flag: c_int, request: libc::Ioctl, on: u32, by: FlagBy) -> c_int {
    let (fd, mut on) = (world().fd(fd), c_int::from(on != 0));
    // SAFETY: the request reads an int.
    unsafe {
        match by {
            FlagBy::Fcntl => {
                let flags = libc::fcntl(fd, libc::F_GETFL);
                if flags < 0 {
                    return flags;
                }
                let flags = if on == 0 { flags & !flag } else { flags | flag };
                libc::fcntl(fd, libc::F_SETFL, flags)
            }
            FlagBy::Ioctl => libc::ioctl(fd, request, &raw mut on),
        }
    }
}

/// Level and name.
const fn number(name: OptionName) -> (c_int, c_int) {
    let name = match name {
        OptionName::Inq => return (libc::SOL_TCP, TCP_INQ),
        OptionName::Lowat => libc::SO_RCVLOWAT,
        OptionName::RecvTimeout => libc::SO_RCVTIMEO,
        OptionName::SendTimeout => libc::SO_SNDTIMEO,
        OptionName::PeekOff => SO_PEEK_OFF,
        OptionName::Linger => libc::SO_LINGER,
        OptionName::SendBuffer => libc::SO_SNDBUF,
        OptionName::RecvBuffer => libc::SO_RCVBUF,
        OptionName::OobInline => libc::SO_OOBINLINE,
        OptionName::KeepAlive => libc::SO_KEEPALIVE,
        OptionName::Error => libc::SO_ERROR,
    };
    (libc::SOL_SOCKET, name)
}

fn set(fd: Var, option: OptionName, value: c_int, line: &mut Line) {
    let fd = world().fd(fd);
    let (level, name) = number(option);
    let result = match option {
        OptionName::RecvTimeout | OptionName::SendTimeout => {
            let millis = u64::try_from(value).unwrap_or(0);
            sys::set_timeout(fd, name, Duration::from_millis(millis))
        }
        OptionName::Linger => sys::linger(fd, value),
        _ => sys::set_option(fd, level, name, value),
    };
    if result.is_ok() { line.say(format_args!("ok")) } else { say_error(line) }
}

fn get(fd: Var, option: OptionName, line: &mut Line) {
    let (level, name) = number(option);
    let mut value = [0 as c_int; 4];
    let mut len = sys::socklen_of::<[c_int; 4]>();
    let place = value.as_mut_ptr().cast();
    // SAFETY: there is room for `len` bytes.
    if unsafe { libc::getsockopt(world().fd(fd), level, name, place, &raw mut len) } < 0 {
        return say_error(line);
    }
    match (option, value) {
        (OptionName::Error, [0, ..]) => line.say(format_args!("none")),
        (OptionName::Error, [code, ..]) => {
            line.say(format_args!("{}", sys::errno_text(code).unwrap_or("another")));
        }
        _ => line.say(format_args!("{value:?} of {len}")),
    }
}

fn available(fd: Var, line: &mut Line) {
    let mut n: c_int = 0;
    // SAFETY: FIONREAD writes an int.
    if unsafe { libc::ioctl(world().fd(fd), libc::FIONREAD, &raw mut n) } < 0 {
        return say_error(line);
    }
    if n > 0 && is_elastic(&world().board, fd.incoming()) {
        line.say(format_args!("some"));
    } else {
        line.say(format_args!("{n}"));
    }
}

fn unacked(fd: Var, line: &mut Line) {
    let started = Instant::now();
    loop {
        let mut n: c_int = 0;
        // SAFETY: SIOCOUTQ writes an int.
        if unsafe { libc::ioctl(world().fd(fd), libc::TIOCOUTQ, &raw mut n) } < 0 {
            return say_error(line);
        }
        if n == 0 {
            return line.say(format_args!("0"));
        }
        if started.elapsed() > ACKNOWLEDGED {
            return line.say(format_args!("not 0"));
        }
        super::processes::sleep(1);
    }
}
