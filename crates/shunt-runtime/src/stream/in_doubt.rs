//! Bytes in doubt: were the library to panic now, the connection would have to be reset (`panics.rs` of the library).

use core::time::Duration;
use std::thread::panicking;

use shunt_wire::reason::Reason;

use crate::calls::Which;
use crate::conn::{Conn, Sock};
use crate::contain::contain;
use crate::control::endpoint;
use crate::stream::{notify, tcp};
use crate::system::errno::KeepErrno;

/// While it lives, a panic resets the connection. What ends well calls [`Self::ends`], which costs
/// nothing; a cancelled thread leaves the connection alone.
#[derive(Debug)]
pub struct InDoubt(Conn);

impl InDoubt {
    /// From here on.
    #[inline(always)]
    #[must_use]
    pub const fn begins(conn: Conn) -> Self {
        Self(conn)
    }

    /// The same without a [`Conn`] at hand.
    #[inline]
    #[must_use]
    pub fn on(sock: &'static Sock) -> Self {
        Self(Conn::gone(sock))
    }

    /// Up to here.
    #[inline(always)]
    pub const fn ends(self) {
        core::mem::forget(self);
    }
}

impl Drop for InDoubt {
    fn drop(&mut self) {
        if panicking() {
            reset(self.0);
        }
    }
}

/// The bytes that a call has moved so far: a panic after the first one leaves them in doubt.
#[derive(Debug)]
pub struct Progress {
    conn: Conn,
    /// Bytes.
    pub done: usize,
}

impl Progress {
    /// A call begins, or goes on after so many bytes.
    #[inline(always)]
    #[must_use]
    pub const fn begins(conn: Conn, done: usize) -> Self {
        Self { conn, done }
    }

    /// It is over.
    #[inline(always)]
    pub const fn ends(self) {
        core::mem::forget(self);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.done > 0 && panicking() {
            reset(self.conn);
        }
    }
}

/// Longest wait for a step of another thread.
const PATIENCE: Duration = Duration::from_millis(200);

/// Resets the connection at both ends. The panic may be in a step, whose locks this thread has then.
#[cold]
pub fn reset(conn: Conn) {
    let work = || {
        let _keep = KeepErrno::new();
        let sock = conn.sock();
        if sock.break_off(Reason::Internal) {
            endpoint::decline(Reason::Internal);
        }
        // With a direction's lock, so that the number stays what it is.
        let step = conn.lock_within(Which::Tx, PATIENCE);
        let abort = || {
            if let Some(fd) = conn.kernel().or_else(|| sock.descriptor()) {
                tcp::abort(fd);
            }
        };
        match sock.end() {
            Some(end) => end.reset(abort),
            None => abort(),
        }
        drop(step);
        notify::those_on_futexes(sock);
        notify::own(sock);
    };
    contain(work);
}
