//! A signal comes at each point of the library. Its handler calls what POSIX lets it call, on the
//! connection whose call it has interrupted and on others, and nothing of that call is lost or doubled.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::Duration;

use shunt_functional::sys::{self, Forked, ListenOptions};

/// What the handler uses besides the interrupted connection.
struct Own {
    listener: OwnedFd,
    at: SocketAddr,
    pair: (OwnedFd, OwnedFd),
}

static OWN: OnceLock<Own> = OnceLock::new();
/// The connection under test; -1: none.
static CURRENT: AtomicI32 = AtomicI32::new(-1);
/// Handlers that have run.
static RUNS: AtomicU32 = AtomicU32::new(0);
/// The first step of a handler that went wrong, and its errno.
static FAILED: [AtomicI32; 2] = [AtomicI32::new(0), AtomicI32::new(0)];

/// The signal.
pub const SIGNAL: i32 = libc::SIGUSR1;

/// Handlers use this connection from now on.
pub fn concern(fd: RawFd) {
    CURRENT.store(fd, Ordering::Relaxed);
}

/// How often the handler has run.
pub fn runs() -> u64 {
    RUNS.load(Ordering::Relaxed).into()
}

/// What has gone wrong in a handler since the last call.
pub fn failure() -> Option<String> {
    let step = FAILED[0].swap(0, Ordering::Relaxed);
    let error = io::Error::from_raw_os_error(FAILED[1].load(Ordering::Relaxed));
    (step != 0).then(|| format!("step {step} of a handler: {}", sys::errno_name(&error)))
}

/// Installs the handler.
pub fn prepare() -> io::Result<()> {
    let listener = sys::listen(([127, 0, 0, 1], 0).into(), ListenOptions::default())?;
    let at = sys::local_addr(listener.as_raw_fd())?.get().ok_or(ErrorKind::AddrNotAvailable)?;
    let client = sys::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC)?;
    sys::connect(client.as_raw_fd(), at)?;
    let (server, _) = sys::accept(listener.as_raw_fd(), libc::SOCK_CLOEXEC)?;
    OWN.get_or_init(|| Own { listener, at, pair: (client, server) });
    sys::on_signal(SIGNAL, handler)
}

extern "C" fn handler(_: libc::c_int) {
    let _keep = sys::KeepErrno::now();
    RUNS.fetch_add(1, Ordering::Relaxed);
    let mut step = 0;
    if let Some(own) = OWN.get()
        && let Err(e) = calls(own, CURRENT.load(Ordering::Relaxed), &mut step)
        && FAILED[0].load(Ordering::Relaxed) == 0
    {
        FAILED[1].store(e.raw_os_error().unwrap_or(0), Ordering::Relaxed);
        FAILED[0].store(step, Ordering::Relaxed);
    }
}

/// What a handler does. `step` counts along.
fn calls(own: &Own, current: RawFd, step: &mut i32) -> io::Result<()> {
    let mut next = || *step += 1;
    let wrong = || Err(io::Error::from_raw_os_error(libc::EBADMSG));
    let (a, b) = (own.pair.0.as_raw_fd(), own.pair.1.as_raw_fd());
    for (from, to) in [(a, b), (b, a)] {
        let mut got = [0; 5];
        next();
        sys::write(from, b"hello")?;
        let mut fds = [libc::pollfd { fd: to, events: libc::POLLIN, revents: 0 }];
        next();
        sys::poll(&mut fds, Some(Duration::from_secs(5)))?;
        sys::select(&mut fds, Some(Duration::from_secs(5)))?;
        next();
        if sys::recv(to, &mut got, 0, false)? != 5 || got != *b"hello" {
            return wrong();
        }
    }
    if current >= 0 {
        next();
        let copy = sys::dup(current)?;
        let wanted = libc::POLLIN | libc::POLLOUT;
        let mut fds = [libc::pollfd { fd: copy.as_raw_fd(), events: wanted, revents: 0 }];
        sys::poll(&mut fds, Some(Duration::ZERO))?;
        sys::status_flags(current)?;
        match sys::peer_addr(current) {
            // It has ended by then.
            Err(e) if e.kind() != ErrorKind::NotConnected => return Err(e),
            _ => {}
        }
        next();
        let mut byte = [0];
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        match sys::recv(current, &mut byte, flags, false) {
            // The call underneath may be about to take what there is.
            Err(e) if !matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                return Err(e);
            }
            _ => {}
        }
        next();
        drop(copy);
    }
    // A connection of its own.
    next();
    let client = sys::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC)?;
    sys::connect(client.as_raw_fd(), own.at)?;
    next();
    let (server, _) = sys::accept(own.listener.as_raw_fd(), libc::SOCK_CLOEXEC)?;
    next();
    sys::write(client.as_raw_fd(), b"new")?;
    sys::shutdown(client.as_raw_fd(), libc::SHUT_WR)?;
    let mut got = [0; 9];
    next();
    if sys::read(server.as_raw_fd(), &mut got)? != 3
        || sys::read(server.as_raw_fd(), &mut got)? != 0
    {
        return wrong();
    }
    drop((client, server));
    next();
    match sys::fork()? {
        Forked::Child => sys::exit_now(0),
        Forked::Parent(pid) => match sys::wait_for(pid)? {
            0 => Ok(()),
            _ => wrong(),
        },
    }
}
