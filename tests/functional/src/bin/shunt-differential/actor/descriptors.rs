//! Making and ending descriptors.

use std::io;
use std::mem;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering::Relaxed;

use libc::c_int;
use shunt_functional::differential::board::Line;
use shunt_functional::differential::plan::ops::{
    Address, CloseBy, Dup2By, DupBy, Opened, SocketFlags,
};
use shunt_functional::differential::plan::{Op, Var};
use shunt_functional::pattern;
use shunt_functional::sys;

use super::scratch::scratch;
use super::{say_done, say_error, world};

/// The descriptors that an operation makes.
pub fn made_by(op: &Op) -> [Option<Var>; 2] {
    match *op {
        Op::Listen { fd, .. }
        | Op::Connect { fd, .. }
        | Op::Accept { fd, .. }
        | Op::Dup { fd, .. }
        | Op::Open { fd, .. }
        | Op::Take { fd, .. }
        | Op::Epoll { epoll: fd } => [Some(fd), None],
        Op::Pipe { reader, writer, .. } => [Some(reader), Some(writer)],
        Op::Pair { left, right } => [Some(left), Some(right)],
        _ => [None, None],
    }
}

/// Does one of these operations.
pub fn perform(op: &Op, line: &mut Line) {
    let world = world();
    match *op {
        Op::Listen { fd, buffer } => listen(fd, buffer, line),
        Op::Connect { fd, to, buffer, flags } => connect(fd, to, buffer, flags, line),
        Op::Accept { fd, on, flags } => accept(fd, on, flags, line),
        Op::Close { fd, by } => {
            let fd = world.fd(fd);
            let number = fd.cast_unsigned();
            // SAFETY: a descriptor of the plan's own.
            say_done(line, unsafe {
                match by {
                    CloseBy::Close => libc::close(fd),
                    CloseBy::Range => libc::close_range(number, number, 0),
                }
            });
        }
        Op::Dup { fd, of, by } => {
            let of = world.fd(of);
            // SAFETY: no pointers.
            let new = unsafe {
                match by {
                    DupBy::Dup => libc::dup(of),
                    DupBy::Fcntl => libc::fcntl(of, libc::F_DUPFD, 0),
                    DupBy::Cloexec => libc::fcntl(of, libc::F_DUPFD_CLOEXEC, 0),
                }
            };
            keep(fd, new, line);
        }
        Op::Dup2 { fd, to, by } => {
            let (from, to) = (world.fd(fd), world.fd(to));
            // SAFETY: no pointers; both are the plan's own.
            let new = unsafe {
                match by {
                    Dup2By::Dup2 => libc::dup2(from, to),
                    Dup2By::Dup3 => libc::dup3(from, to, libc::O_CLOEXEC),
                }
            };
            super::say(line, new.into());
        }
        Op::Open { fd, what, len } => keep(fd, open(fd, what, len), line),
        Op::Pipe { reader, writer, size } => {
            let mut fds = [-1; 2];
            // SAFETY: there is room for two.
            if unsafe { libc::pipe(fds.as_mut_ptr()) } < 0 {
                return say_error(line);
            }
            keep(reader, fds[0], line);
            line.say(format_args!(" "));
            keep(writer, fds[1], line);
            if size > 0 {
                // SAFETY: no pointers. The kernel rounds the size up.
                unsafe { libc::fcntl(fds[1], libc::F_SETPIPE_SZ, size) };
            }
        }
        Op::Pair { left, right } => {
            let mut fds = [-1; 2];
            let made =
                // SAFETY: there is room for two.
                unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, fds.as_mut_ptr()) };
            if made < 0 {
                return say_error(line);
            }
            keep(left, fds[0], line);
            line.say(format_args!(" "));
            keep(right, fds[1], line);
        }
        Op::Pass { fd, via } => match sys::pass(world.fd(via), world.fd(fd)) {
            Ok(()) => line.say(format_args!("ok")),
            Err(_) => say_error(line),
        },
        Op::Take { fd, via } => match sys::take(world.fd(via)) {
            Ok(taken) => keep_owned(fd, taken, line),
            Err(e) if e.raw_os_error().is_none() => line.say(format_args!("none")),
            Err(_) => say_error(line),
        },
        Op::Epoll { epoll } => {
            // SAFETY: no pointers.
            keep(epoll, unsafe { libc::epoll_create1(0) }, line);
        }
        _ => {}
    }
}

/// Notes a descriptor that a call has made, and says its number; or the error.
fn keep(var: Var, fd: RawFd, line: &mut Line) {
    if fd < 0 {
        return say_error(line);
    }
    world().place(var).store(fd, Relaxed);
    line.say(format_args!("={fd}"));
}

/// The same for one that is owned.
fn keep_owned(var: Var, fd: OwnedFd, line: &mut Line) {
    keep(var, fd.into_raw_fd(), line);
}

/// Sets what nobody is asked about; it does not fail.
fn set_up(fd: RawFd, buffer: u32) {
    // Nagle's algorithm would make it a matter of time what has arrived.
    let _always = sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
    if buffer > 0 {
        let _always = sys::set_buffers(fd, buffer.cast_signed());
    }
}

fn listen(var: Var, buffer: u32, line: &mut Line) {
    let Ok(fd) = sys::socket(libc::AF_INET, libc::SOCK_STREAM) else { return say_error(line) };
    set_up(fd.as_raw_fd(), buffer);
    let any = sys::RawAddr::from(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    // SAFETY: the address is as long as it says; the rest are numbers.
    let listening = unsafe {
        libc::bind(fd.as_raw_fd(), any.as_ptr(), any.len) == 0
            && libc::listen(fd.as_raw_fd(), 64) == 0
    };
    let address = sys::local_addr(fd.as_raw_fd()).ok().and_then(|address| address.get());
    match address {
        Some(address) if listening => {
            world().board.port(var.n).store(address.port().into(), Relaxed);
            keep_owned(var, fd, line);
        }
        _ => say_error(line),
    }
}

/// A connection to a listener of the plan.
pub fn connection_to(listener: u8) -> io::Result<OwnedFd> {
    let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM)?;
    set_up(fd.as_raw_fd(), 0);
    sys::connect(fd.as_raw_fd(), address_of(listener))?;
    Ok(fd)
}

fn address_of(listener: u8) -> SocketAddr {
    let port = u16::try_from(world().board.port(listener).load(Relaxed)).unwrap_or(0);
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

fn connect(var: Var, to: Address, buffer: u32, flags: SocketFlags, line: &mut Line) {
    let kind = libc::SOCK_STREAM | flags.0;
    let Ok(fd) = sys::socket(libc::AF_INET, kind) else { return say_error(line) };
    let fd = fd.into_raw_fd();
    world().place(var).store(fd, Relaxed);
    line.say(format_args!("={fd} "));
    set_up(fd, buffer);
    let to = sys::RawAddr::from(address_of(to.0));
    // SAFETY: the address is as long as it says.
    say_done(line, unsafe { libc::connect(fd, to.as_ptr(), to.len) });
}

fn accept(var: Var, on: Var, flags: SocketFlags, line: &mut Line) {
    // SAFETY: sockaddr_storage is plain data.
    let mut from: libc::sockaddr_storage = unsafe { mem::zeroed() };
    let mut len = sys::socklen_of::<libc::sockaddr_storage>();
    let on = world().fd(on);
    // SAFETY: there is room for `len` bytes.
    let fd = unsafe { libc::accept4(on, (&raw mut from).cast(), &raw mut len, flags.0) };
    if fd >= 0 {
        set_up(fd, 0);
    }
    keep(var, fd, line);
}

/// Opens something; its descriptor.
fn open(var: Var, what: Opened, len: u32) -> c_int {
    let path = match what {
        Opened::Memory => return memory(var, len as usize),
        // SAFETY: no pointers.
        Opened::Datagram => return unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM, 0) },
        // SAFETY: no pointers.
        Opened::Event => return unsafe { libc::eventfd(0, 0) },
        Opened::Null => c"/dev/null",
        Opened::Directory => c"/",
        Opened::Proc => c"/proc/version",
    };
    let how = if what == Opened::Null { libc::O_RDWR } else { libc::O_RDONLY };
    // SAFETY: a C string.
    unsafe { libc::open(path.as_ptr(), how) }
}

/// A file with so many bytes of its stream.
fn memory(var: Var, len: usize) -> c_int {
    // SAFETY: a C string.
    let fd = unsafe { libc::memfd_create(c"differential".as_ptr(), 0) };
    if fd < 0 {
        return fd;
    }
    scratch(len, |bytes| {
        pattern::fill(var.stream().label(), 0, bytes);
        // SAFETY: the bytes are readable. A file in memory takes all of them, and keeps its place.
        unsafe { libc::pwrite(fd, bytes.as_ptr().cast(), bytes.len(), 0) };
    });
    fd
}
