//! Locks that are held across a fork, and what else each fork writes to.
//!
//! After a fork a process, and its child, copy each page to which they write. So these are neighbours, and not where each belongs.

use core::sync::atomic::AtomicU32;

use shunt_shm::lock::OwnerLock;

use crate::threads::mutex::Mutex;

/// As the modules know them that use them.
#[derive(Debug)]
#[repr(align(128))]
pub struct AcrossForks {
    /// Of epoll instances.
    pub epoll: Mutex<()>,
    /// Of listeners.
    pub listeners: Mutex<()>,
    /// Of link groups.
    pub links: Mutex<()>,
    /// Of the completion queues that are looked at.
    pub looks: Mutex<()>,
    /// Of registered memory.
    pub exports: OwnerLock,
    /// Of peers' memory.
    pub imports: Mutex<()>,
    /// Of those that fork.
    pub forks: Mutex<()>,
    /// How often this process has forked.
    pub count: AtomicU32,
}

/// The one.
pub static ACROSS_FORKS: AcrossForks = AcrossForks {
    epoll: Mutex::new(()),
    listeners: Mutex::new(()),
    links: Mutex::new(()),
    looks: Mutex::new(()),
    exports: OwnerLock::new(),
    imports: Mutex::new(()),
    forks: Mutex::new(()),
    count: AtomicU32::new(0),
};

const _: () = assert!(size_of::<AcrossForks>() <= 128);
