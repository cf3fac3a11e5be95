//! A call that waits, or goes on after its first step, and the connection that it keeps.

use crate::calls::{self, Has, Index};
use crate::conn::{Conn, Sock};

/// A call's hold on a connection. As long as it is kept, the connection does not end, whatever
/// becomes of its descriptors: as in the kernel, where a call that waits has the open file.
#[derive(Debug)]
pub struct Hold {
    kept: Option<&'static Sock>,
    noted: Option<Index>,
}

impl Hold {
    /// Nothing is kept yet: most calls are done with their first step.
    #[must_use]
    pub const fn none() -> Self {
        Self { kept: None, noted: None }
    }

    /// One of several, which whoever has them notes together ([`Has::Holds`]). `None` when this end of
    /// the connection is closed already.
    #[must_use]
    pub fn of_many(conn: Conn) -> Option<Self> {
        let is_kept = conn.sock().hold(conn.entry());
        is_kept.then(|| Self { kept: Some(conn.sock()), noted: None })
    }

    /// The process's part of the connection that is kept.
    #[must_use]
    pub const fn sock(&self) -> Option<&'static Sock> {
        self.kept
    }

    /// Keeps the connection from now on. With a direction's lock held under which [`Conn::kernel`] had an
    /// answer: so this end of it is not closed yet.
    #[inline]
    pub fn keep(&mut self, conn: &Conn) {
        if self.kept.is_none() {
            self.begin(conn);
        }
    }

    #[cold]
    fn begin(&mut self, conn: &Conn) {
        let sock = conn.sock();
        if sock.hold(conn.entry()) {
            self.kept = Some(sock);
            self.noted = Some(calls::current().note(Has::Hold(sock)));
        }
    }

    #[cold]
    fn end(&mut self, sock: &'static Sock) {
        crate::object::let_go(sock);
        if let Some(index) = self.noted {
            calls::current().forget(index);
        }
    }
}

impl Drop for Hold {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(sock) = self.kept {
            self.end(sock);
        }
    }
}
