//! A call that waits, or goes on after its first step, and the connection that it keeps.

use crate::calls::{Has, UnderWay};
use crate::conn::{Conn, Sock};

/// A call's hold on a connection. As long as it is kept, the connection does not end, whatever
/// becomes of its descriptors: as in the kernel, where a call that waits has the open file.
#[derive(Debug)]
pub struct Hold {
    conn: Conn,
    is_kept: bool,
    #[allow(dead_code, reason = "kept for its drop")]
    noted: Option<UnderWay>,
}

impl Hold {
    /// Nothing is kept yet: most calls are done with their first step.
    #[inline]
    #[must_use]
    pub const fn new(conn: Conn) -> Self {
        Self { conn, is_kept: false, noted: None }
    }

    /// One of several, which whoever has them notes together ([`Has::Holds`]). `None` when this end of
    /// the connection is closed already.
    #[must_use]
    pub fn of_many(conn: Conn) -> Option<Self> {
        let is_kept = conn.sock().hold(conn.entry());
        is_kept.then_some(Self { conn, is_kept, noted: None })
    }

    /// The process's part of the connection.
    #[must_use]
    pub const fn sock(&self) -> &'static Sock {
        self.conn.sock()
    }

    /// Keeps the connection from now on. With a direction's lock held under which [`Conn::kernel`] had an
    /// answer: so this end of it is not closed yet.
    #[inline]
    pub fn keep(&mut self) {
        if !self.is_kept {
            self.is_kept = self.conn.sock().hold(self.conn.entry());
            if self.is_kept {
                self.noted = Some(UnderWay::note(Has::Hold(self.conn.sock())));
            }
        }
    }
}

impl Drop for Hold {
    #[inline]
    fn drop(&mut self) {
        if self.is_kept {
            crate::object::let_go(self.conn.sock());
        }
    }
}
