//! The connecting end.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread;

use shunt_functional::sys;

use crate::conn::{Conn, lost, print_totals};
use crate::driver::{Driver, Source};
use crate::options::{Connect, Style};
use crate::watchdog;

/// Opens the connections and carries them to their end.
pub fn run(options: &Connect) -> io::Result<()> {
    watchdog::start(options.common.stall());
    if options.common.style == Style::Blocking {
        blocking(options)?;
    } else {
        driven(options)?;
    }
    print_totals(&options.common)
}

/// The address of connection `number`.
fn target(options: &Connect, number: usize) -> SocketAddr {
    options.to[number % options.to.len()]
}

fn domain(addr: SocketAddr) -> i32 {
    if addr.is_ipv6() { libc::AF_INET6 } else { libc::AF_INET }
}

fn context(error: &io::Error, number: usize) -> io::Error {
    io::Error::new(error.kind(), format!("connection {number}: {error}"))
}

fn blocking(options: &Connect) -> io::Result<()> {
    thread::scope(|scope| {
        let running: Vec<_> = (0..options.common.connections)
            .map(|number| {
                scope.spawn(move || -> io::Result<()> {
                    let to = target(options, number);
                    let fd = sys::socket(domain(to), libc::SOCK_STREAM | libc::SOCK_CLOEXEC)?;
                    options.common.size(&fd)?;
                    if let Err(e) = sys::connect(fd.as_raw_fd(), to) {
                        return lost(e, options.common.survive);
                    }
                    Conn::connected(fd, number, options.leave, &options.common)?
                        .run_blocking()
                        .map_err(|e| context(&e, number))
                })
            })
            .collect();
        running
            .into_iter()
            .try_for_each(|t| t.join().map_err(|_| io::Error::other("a thread panicked"))?)
    })
}

/// A socket that is connected, or connecting (true).
fn open(options: &Connect, number: usize) -> io::Result<(OwnedFd, bool)> {
    let to = target(options, number);
    if options.nonblocking_connect {
        let fd = sys::socket(domain(to), libc::SOCK_STREAM | libc::SOCK_NONBLOCK)?;
        options.common.size(&fd)?;
        return match sys::connect(fd.as_raw_fd(), to) {
            Ok(()) => Ok((fd, false)),
            Err(e) if e.raw_os_error() == Some(libc::EINPROGRESS) => Ok((fd, true)),
            Err(e) => Err(e),
        };
    }
    let fd = sys::socket(domain(to), libc::SOCK_STREAM)?;
    options.common.size(&fd)?;
    sys::connect(fd.as_raw_fd(), to)?;
    // Both ways of making a descriptor non-blocking.
    if number.is_multiple_of(2) {
        sys::set_nonblocking(fd.as_raw_fd(), true)?;
    } else {
        sys::set_nonblocking_ioctl(fd.as_raw_fd(), true)?;
    }
    Ok((fd, false))
}

fn driven(options: &Connect) -> io::Result<()> {
    let common = &options.common;
    let threads = common.threads.clamp(1, common.connections.max(1));
    thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || -> io::Result<()> {
                    let mut mine = (thread..common.connections).step_by(threads);
                    let quota = mine.len();
                    let at_once = options.at_once.unwrap_or(quota).clamp(1, quota.max(1));
                    let mut another = || {
                        let Some(number) = mine.next() else { return Ok(None) };
                        let (fd, connecting) =
                            open(options, number).map_err(|e| context(&e, number))?;
                        let conn = Conn::connected(fd, number, options.leave, common)?;
                        Ok(Some((conn, connecting)))
                    };
                    let first: Vec<_> = (0..at_once)
                        .filter_map(|_| another().transpose())
                        .collect::<io::Result<_>>()?;
                    let source = Source::Opener(&mut another);
                    let mut driver = Driver::new(common.style, source, Some(quota))?;
                    for (conn, connecting) in first {
                        driver.add(conn, connecting)?;
                    }
                    driver.run()
                })
            })
            .collect();
        running
            .into_iter()
            .try_for_each(|t| t.join().map_err(|_| io::Error::other("a thread panicked"))?)
    })
}
