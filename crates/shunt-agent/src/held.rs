//! Descriptors that the agent keeps or hands out, and those that come with a packet.
//!
//! Another holder of a descriptor can make its last close wait: by an epoll instance that watches
//! it, or by a pipe's lock. The memory of a client takes its time to go. So the agent closes none
//! of these itself: it has them [buried](shunt_inspector::Inspectors::bury).

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

pub use shunt_inspector::Socket;

/// Where descriptors wait to be buried.
#[derive(Clone, Default, Debug)]
pub struct Grave(Rc<RefCell<Vec<OwnedFd>>>);

impl Grave {
    /// Keeps a descriptor that is to be buried in the end.
    #[must_use]
    pub fn keep(&self, fd: OwnedFd) -> Held {
        Held { fd: ManuallyDrop::new(fd), grave: Some(self.clone()) }
    }

    /// All that is there, to be buried now.
    #[must_use]
    pub fn take(&self) -> Vec<OwnedFd> {
        self.0.take()
    }
}

/// A descriptor.
pub struct Held {
    fd: ManuallyDrop<OwnedFd>,
    /// `None`: it can be closed.
    grave: Option<Grave>,
}

impl Held {
    /// One that nobody else can hold up.
    #[must_use]
    pub const fn own(fd: OwnedFd) -> Self {
        Self { fd: ManuallyDrop::new(fd), grave: None }
    }
}

impl AsFd for Held {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fd.fmt(f)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: taken once, here, and not used afterwards.
        let fd = unsafe { ManuallyDrop::take(&mut self.fd) };
        if let Some(grave) = &self.grave {
            grave.0.borrow_mut().push(fd);
        }
    }
}

/// One of the descriptors that came with a packet.
#[derive(Debug)]
pub enum Thing {
    /// A TCP socket, which is closed by now.
    Socket(Socket),
    /// A TCP socket on which is to be spoken.
    Kept(Socket, Held),
    /// An eventfd.
    Bell(Held),
    /// Memory that nobody can cut short.
    Memory(Held),
    /// One end of a pipe.
    Pipe(Held),
    /// Anything else, which is closed by now.
    Other,
}

/// What came with a packet, in order.
#[derive(Default, Debug)]
pub struct Passed(VecDeque<Thing>);

impl Passed {
    /// As an inspector says.
    #[must_use]
    pub fn new(things: Vec<shunt_inspector::Thing>, grave: &Grave) -> Self {
        use shunt_inspector::Thing as Seen;
        let keep = |thing| match thing {
            Seen::Socket(socket) => Thing::Socket(socket),
            Seen::Kept(socket, fd) => Thing::Kept(socket, grave.keep(fd)),
            Seen::Bell(fd) => Thing::Bell(grave.keep(fd)),
            Seen::Memory(fd) => Thing::Memory(grave.keep(fd)),
            Seen::Pipe(fd) => Thing::Pipe(grave.keep(fd)),
            Seen::Other => Thing::Other,
        };
        Self(things.into_iter().map(keep).collect())
    }

    /// The next one.
    pub fn take(&mut self) -> Option<Thing> {
        self.0.pop_front()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True when there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
