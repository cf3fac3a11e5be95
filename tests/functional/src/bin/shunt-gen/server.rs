//! The accepting end.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use shunt_functional::record::Listening;
use shunt_functional::sys::{self, Forked, ListenOptions};

use crate::board::Board;
use crate::conn::{Conn, print_line, print_totals};
use crate::driver::{Driver, Source};
use crate::options::{Common, Serve, Spread, Style};
use crate::watchdog;

/// Listens, accepts and carries the connections to their end.
pub fn run(options: &Serve) -> io::Result<()> {
    let reuse_port = options.spread == Spread::Reuseport;
    let listen = ListenOptions {
        reuse_port,
        v6_only: options.v6_only,
        // The first socket of a SO_REUSEPORT group only holds the port.
        backlog: (!reuse_port).then_some(options.backlog),
    };
    let listener = sys::listen(options.listen, listen)?;
    options.common.size(&listener)?;
    let addr = sys::local_addr(listener.as_raw_fd())?
        .get()
        .ok_or_else(|| io::Error::other("the listener has no address"))?;
    match options.spread {
        Spread::Single => {
            announce(addr, options)?;
            watchdog::start(options.common.stall());
            single(&listener, &options.common)?;
            print_totals(&options.common)
        }
        Spread::Fork => {
            announce(addr, options)?;
            fork_each(&listener, &options.common)
        }
        Spread::Prefork => prefork(options, addr, |_| sys::dup(listener.as_raw_fd())),
        Spread::Reuseport => prefork(options, addr, |addr| {
            let backlog = Some(options.backlog);
            let listen = ListenOptions { reuse_port, v6_only: options.v6_only, backlog };
            let listener = sys::listen(addr, listen)?;
            options.common.size(&listener)?;
            Ok(listener)
        }),
    }
}

/// Tells the port, then waits as long as `--accept-late` says.
fn announce(addr: SocketAddr, options: &Serve) -> io::Result<()> {
    print_line(&Listening { port: addr.port() })?;
    thread::sleep(Duration::from_millis(options.accept_late));
    Ok(())
}

/// Everything in this process.
fn single(listener: &OwnedFd, common: &Common) -> io::Result<()> {
    if common.style == Style::Blocking {
        return thread::scope(|scope| {
            for _ in 0..common.connections {
                let (fd, _) = sys::accept(listener.as_raw_fd(), libc::SOCK_CLOEXEC)?;
                // Not kept: the stack of a thread that has ended is held as long as its handle.
                scope.spawn(|| {
                    if let Err(e) = Conn::accepted(fd, common).and_then(Conn::run_blocking) {
                        eprintln!("shunt-gen {}: {e}", std::process::id());
                        std::process::exit(1);
                    }
                });
            }
            Ok(())
        });
    }
    sys::set_nonblocking(listener.as_raw_fd(), true)?;
    let threads = common.threads.clamp(1, common.connections.max(1));
    // Thread 0 accepts and deals the connections out, so each thread knows how many it will get.
    let quota = |thread: usize| (thread..common.connections).step_by(threads).count();
    thread::scope(|scope| {
        let mut desks = Vec::new();
        let mut running = Vec::new();
        for thread in 1..threads {
            let bell = sys::eventfd()?;
            let ring = sys::dup(bell.as_raw_fd())?;
            let (put, inbox) = mpsc::channel();
            desks.push((put, ring));
            let n = quota(thread);
            running.push(scope.spawn(move || {
                Driver::new(common.style, Source::Inbox(&bell, &inbox), Some(n))?.run()
            }));
        }
        let mut dealt = 0;
        let mut deal = |fd: OwnedFd| -> io::Result<Option<Conn>> {
            let conn = Conn::accepted(fd, common)?;
            let to = dealt % threads;
            dealt += 1;
            let Some((put, ring)) = to.checked_sub(1).and_then(|i| desks.get(i)) else {
                return Ok(Some(conn));
            };
            put.send(conn).map_err(|_| io::Error::other("a thread has ended early"))?;
            sys::write(ring.as_raw_fd(), &1u64.to_ne_bytes())?;
            Ok(None)
        };
        let last = (threads > 1).then_some(common.connections);
        accept_and_drive(listener, &mut deal, common, quota(0), last)?;
        running
            .into_iter()
            .try_for_each(|t| t.join().map_err(|_| io::Error::other("a thread panicked"))?)
    })
}

/// Thread 0 of [`single`]: it must go on accepting for the others when its own are done.
fn accept_and_drive(
    listener: &OwnedFd,
    deal: &mut dyn FnMut(OwnedFd) -> io::Result<Option<Conn>>,
    common: &Common,
    quota: usize,
    accept_all: Option<usize>,
) -> io::Result<()> {
    let Some(all) = accept_all else {
        return Driver::new(common.style, Source::Listener(listener, deal), Some(quota))?.run();
    };
    let mut accepted = 0;
    let mut counting = |fd: OwnedFd| {
        accepted += 1;
        deal(fd)
    };
    Driver::new(common.style, Source::Listener(listener, &mut counting), Some(quota))?.run()?;
    sys::set_nonblocking(listener.as_raw_fd(), false)?;
    while accepted < all {
        let (fd, _) = sys::accept(listener.as_raw_fd(), libc::SOCK_NONBLOCK)?;
        accepted += 1;
        deal(fd)?;
    }
    Ok(())
}

/// A child for each connection; the parent has one thread and no watchdog.
fn fork_each(listener: &OwnedFd, common: &Common) -> io::Result<()> {
    let mut children = Vec::new();
    for _ in 0..common.connections {
        let (fd, _) = sys::accept(listener.as_raw_fd(), 0)?;
        match sys::fork()? {
            Forked::Parent(pid) => children.push(pid),
            Forked::Child => {
                watchdog::start(common.stall());
                finish_child(one(fd, common));
            }
        }
    }
    for pid in children {
        match sys::wait_for(pid)? {
            0 => {}
            code => return Err(io::Error::other(format!("child {pid} ended with {code}"))),
        }
    }
    Ok(())
}

/// Carries a single connection.
fn one(fd: OwnedFd, common: &Common) -> io::Result<()> {
    if common.style == Style::Blocking {
        return Conn::accepted(fd, common)?.run_blocking();
    }
    sys::set_nonblocking(fd.as_raw_fd(), true)?;
    let mut driver = Driver::new(common.style, Source::None, Some(1))?;
    driver.add(Conn::accepted(fd, common)?, false)?;
    driver.run()
}

/// Ends a forked child.
fn finish_child(result: io::Result<()>) -> ! {
    match result {
        Ok(()) => sys::exit_now(0),
        Err(e) => {
            eprintln!("shunt-gen child {}: {e}", std::process::id());
            sys::exit_now(1)
        }
    }
}

/// Children that accept for ever, until all connections are done.
fn prefork(
    options: &Serve,
    addr: SocketAddr,
    listener: impl Fn(SocketAddr) -> io::Result<OwnedFd>,
) -> io::Result<()> {
    let board = Board::new()?;
    let mut children = Vec::new();
    for _ in 0..options.workers.max(1) {
        match sys::fork()? {
            Forked::Parent(pid) => children.push(pid),
            Forked::Child => finish_child(listener(addr).and_then(|l| {
                sys::end_with_parent()?;
                board.arrive();
                thread::sleep(Duration::from_millis(options.accept_late));
                work(&l, &options.common, &board)
            })),
        }
    }
    let result = board
        .wait_arrived(children.len())
        .and_then(|()| print_line(&Listening { port: addr.port() }))
        .and_then(|()| board.wait_finished(options.common.connections, &children));
    for pid in children {
        // One that has failed is gone already.
        if sys::kill(pid, libc::SIGTERM).is_ok() {
            sys::wait_for(pid)?;
        }
    }
    result
}

/// One prefork worker: accepts until it is killed.
fn work(listener: &OwnedFd, common: &Common, board: &Board) -> io::Result<()> {
    watchdog::start(common.stall());
    watchdog::on_finished(board.clone());
    if common.style != Style::Blocking {
        sys::set_nonblocking(listener.as_raw_fd(), true)?;
        let mut keep = |fd: OwnedFd| Conn::accepted(fd, common).map(Some);
        return Driver::new(common.style, Source::Listener(listener, &mut keep), None)?.run();
    }
    loop {
        let (fd, _) = sys::accept(listener.as_raw_fd(), 0)?;
        let common = common.clone();
        thread::spawn(move || {
            if let Err(e) = Conn::accepted(fd, &common).and_then(Conn::run_blocking) {
                finish_child(Err(e));
            }
        });
    }
}
