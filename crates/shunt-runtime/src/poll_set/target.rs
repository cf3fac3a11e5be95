//! The objects behind the entries of poll(2).

use core::sync::atomic::Ordering;

use shunt_engine::conn::poll::KernelReadiness;
use shunt_engine::events;

use crate::conn::Conn;
use crate::epoll::instance::Instance;
use crate::epoll::ready;
use crate::fds::fd_table::{self, Kind};
use crate::stream::tcp;
use crate::system::abi::{c_int, pollfd};

/// What an entry stands for.
#[derive(Clone, Copy)]
pub enum Target {
    /// The kernel's business, or nobody's.
    Kernel,
    /// A shunted connection.
    Conn(Conn),
    /// An epoll instance with shunted connections in it.
    Set(&'static Instance),
}

impl Target {
    pub fn of(fd: c_int) -> Self {
        let entry = fd_table::lookup(fd);
        match entry.kind() {
            Kind::Stream => Conn::of(fd, entry).map_or(Self::Kernel, Self::Conn),
            Kind::Epoll => match Instance::of(entry) {
                Some(set) if set.active.load(Ordering::Relaxed) > 0 => Self::Set(set),
                _ => Self::Kernel,
            },
            _ => Self::Kernel,
        }
    }
}

impl Target {
    /// True when the number stands for something else by now. Not for what was the kernel's.
    pub fn has_moved(&self, fd: c_int) -> bool {
        match self {
            Self::Kernel => false,
            Self::Conn(conn) => !conn.is_named(),
            Self::Set(set) => {
                let now = Instance::of(fd_table::lookup(fd));
                !now.is_some_and(|now| core::ptr::eq(now, *set))
            }
        }
    }

    /// What it is ready for.
    pub fn readiness(&self, wanted: u32) -> u32 {
        match self {
            Self::Kernel => 0,
            Self::Conn(conn) => ready::of(*conn, wanted, &mut KernelReadiness::Nothing),
            Self::Set(set) if set.is_readable() => events::IN | events::RDNORM,
            Self::Set(_) => 0,
        }
    }

    /// While a proposal is looked for that another thread may find: when to look again, in nanoseconds from now.
    pub fn next_look(&self) -> Option<u64> {
        match self {
            Self::Kernel => None,
            Self::Conn(conn) => conn.next_look(),
            Self::Set(set) => set.next_look(),
        }
    }

    /// True when it wakes who waits for these events.
    pub fn wakes(&self, wanted: u32) -> bool {
        self.readiness(wanted) & (wanted | events::ALWAYS) != 0
    }
}

/// What the number stands for now is ready for.
pub fn by_number(fd: c_int, wanted: u32) -> u32 {
    match Target::of(fd) {
        Target::Kernel => tcp::readiness(fd, wanted),
        target => target.readiness(wanted),
    }
}

/// The events that an entry asks for.
pub fn wanted(entry: &pollfd) -> u32 {
    entry.events.cast_unsigned().into()
}
