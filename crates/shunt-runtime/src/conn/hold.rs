//! A call that waits, or goes on after its first step, and the connection that it keeps.

use core::ptr;

use crate::calls::{self, Has, Index, Keeper};
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

    /// One of several, which whoever has them notes together ([`Hold::several`]). `None` when this end of
    /// the connection is closed already.
    #[must_use]
    pub fn of_many(conn: Conn) -> Option<Self> {
        let is_kept = conn.sock().hold(conn.entry());
        is_kept.then(|| Self { kept: Some(conn.sock()), noted: None })
    }

    /// What a call notes that has several, until it drops them.
    #[must_use]
    pub const fn several(holds: &Vec<Self>) -> Has {
        Has::kept(ptr::from_ref(holds), &SEVERAL)
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
            self.noted = Some(calls::current().note(Has::kept(sock, &ONE)));
        }
    }

    #[cold]
    fn end(&mut self, sock: &'static Sock) {
        sock.let_go();
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

// SAFETY: `begin` alone notes with it, a sock.
static ONE: Keeper = unsafe { Keeper::new(let_go_of_one) };
// SAFETY: `several` alone notes with it, a vector of holds that its call drops after it has taken the note back.
static SEVERAL: Keeper = unsafe { Keeper::new(let_go_of_several) };

/// # Safety
/// The address is a sock's.
unsafe fn let_go_of_one(sock: *const ()) {
    // SAFETY: the caller promises a sock's address; socks are never freed.
    unsafe { &*sock.cast::<Sock>() }.let_go();
}

/// # Safety
/// The address is that of a vector of holds, which nobody drops after this.
unsafe fn let_go_of_several(holds: *const ()) {
    // SAFETY: the caller promises a vector of holds that nobody uses or drops after this.
    drop(unsafe { ptr::read(holds.cast::<Vec<Hold>>()) });
}

/// Calls `each` for the connections that calls of this thread hold, once for each hold.
pub fn each(mut each: impl FnMut(&'static Sock)) {
    // SAFETY: `begin` has noted a sock, which is never freed.
    calls::each_kept(&ONE, |sock| each(unsafe { &*sock.cast::<Sock>() }));
    calls::each_kept(&SEVERAL, |holds| {
        // SAFETY: the call that has noted the vector takes the note back before it drops it.
        let holds = unsafe { &*holds.cast::<Vec<Hold>>() };
        holds.iter().filter_map(Hold::sock).for_each(&mut each);
    });
}
