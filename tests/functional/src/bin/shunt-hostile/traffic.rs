//! Ordinary calls on ordinary connections: what gives this process memory to share.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use shunt_functional::sys;
use shunt_functional::sys::uring::unseen;

/// Connections made or accepted.
pub static CONNECTIONS: AtomicU64 = AtomicU64::new(0);
/// Calls made: as long as they grow, none hangs.
pub static CALLS: AtomicU64 = AtomicU64::new(0);

/// Calls on a connection at the most, about.
const LIFE: u32 = 300;

/// Longest life of a connection on which nothing moves: what was written may have both ends wait for each other.
const STUCK: Duration = Duration::from_secs(1);

/// Where connections come from.
pub enum From {
    /// They are made.
    To(SocketAddr),
    /// They are accepted here; the descriptor does not block.
    Listener(OwnedFd),
}

impl From {
    /// Another connection, if there is one now.
    pub fn another(&self) -> io::Result<Option<OwnedFd>> {
        let fd = match self {
            Self::To(addr) => {
                let domain = if addr.is_ipv6() { libc::AF_INET6 } else { libc::AF_INET };
                let fd = sys::socket(domain, libc::SOCK_STREAM | libc::SOCK_CLOEXEC)?;
                match sys::connect(fd.as_raw_fd(), *addr) {
                    // All ports are on their way out of use.
                    Err(e) if e.kind() == io::ErrorKind::AddrNotAvailable => return Ok(None),
                    connected => connected?,
                }
                sys::set_nonblocking(fd.as_raw_fd(), true)?;
                fd
            }
            Self::Listener(listener) => {
                let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
                match sys::accept(listener.as_raw_fd(), flags) {
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                    accepted => accepted?.0,
                }
            }
        };
        CONNECTIONS.fetch_add(1, Ordering::Relaxed);
        Ok(Some(fd))
    }
}

/// Carries up to `at_once` connections, for ever.
pub fn carry(from: &From, at_once: usize, mut rng: Rng) -> io::Result<Infallible> {
    let mut open: Vec<(OwnedFd, Instant)> = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        if open.len() < at_once {
            open.extend(from.another()?.map(|fd| (fd, Instant::now())));
        }
        if open.is_empty() {
            thread::sleep(Duration::from_millis(1));
        }
        let mut idle = true;
        open.retain_mut(|(fd, moved)| {
            CALLS.fetch_add(1, Ordering::Relaxed);
            match use_once(fd.as_raw_fd(), &mut buffer, &mut rng) {
                Ok(0) => rng.u32(..LIFE) != 0,
                Ok(_) => {
                    (idle, *moved) = (false, Instant::now());
                    rng.u32(..LIFE) != 0
                }
                Err(e) => would_block(&e) && moved.elapsed() < STUCK,
            }
        });
        CALLS.fetch_add(1, Ordering::Relaxed);
        if idle {
            thread::sleep(Duration::from_micros(100));
        }
    }
}

/// Bytes of one call, which sends or receives.
fn use_once(fd: RawFd, buffer: &mut [u8], rng: &mut Rng) -> io::Result<usize> {
    let len = (1 << rng.u32(..17)).min(buffer.len());
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    match rng.u8(..64) {
        0 => sys::shutdown(fd, libc::SHUT_WR).map(|()| 0),
        1 => sys::linger(fd, 0).map(|()| 0),
        2 => sys::fionread(fd).map(|_| 0),
        3..32 => sys::send(fd, &buffer[..len], flags),
        // The end, too, is one that the other side can be made to hear of again.
        _ => sys::recv(fd, &mut buffer[..len], flags, false),
    }
}

/// Sends past the library, as it comes.
pub fn send_unseen(fd: RawFd, bytes: &[u8]) {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let (fd, flags) = (usize::try_from(fd).unwrap_or(0), usize::try_from(flags).unwrap_or(0));
    let at = bytes.as_ptr().expose_provenance();
    let _ = unseen(libc::SYS_sendto, [fd, at, bytes.len(), flags, 0, 0]);
}

fn would_block(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
