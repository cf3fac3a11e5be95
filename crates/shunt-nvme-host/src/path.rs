//! What the threads of the paths and the queues share.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use shunt_nvme::wire::log::AnaDescriptor;

use crate::bell::Bell;
use crate::controller::Attributes;
use crate::error::Error;
use crate::link::Link;
use crate::options::Options;
use crate::request::Namespace;

/// What a queue wants of the thread of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// The queue's connection to the controller of this generation is over: so the controller is.
    Lost(u64),
    /// Abort a command.
    Abort { generation: u64, qid: u16, cid: u16 },
    /// ANA states may have changed.
    Look,
}

/// How a path is.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// Counts the controllers that there were.
    pub(crate) generation: u64,
    pub(crate) is_up: bool,
    pub(crate) attributes: Option<Attributes>,
    pub(crate) ana: Vec<AnaDescriptor>,
    pub(crate) namespaces: Vec<Namespace>,
    /// Why it is down, or why not all queues have a connection.
    pub(crate) error: Option<Arc<Error>>,
    /// Attempts to connect that have failed since it was up.
    pub(crate) failures: u32,
    pub(crate) orders: Vec<Order>,
}

/// A path.
#[derive(Debug)]
pub(crate) struct Path {
    pub(crate) address: SocketAddr,
    /// Wakes its thread.
    pub(crate) bell: Bell,
    state: Mutex<State>,
}

impl Path {
    pub(crate) fn new(address: SocketAddr) -> std::io::Result<Self> {
        Ok(Self { address, bell: Bell::new()?, state: Mutex::default() })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has its thread do something.
    pub(crate) fn order(&self, order: Order) {
        let mut state = self.state();
        if !state.orders.contains(&order) {
            state.orders.push(order);
        }
        drop(state);
        self.bell.ring();
    }
}

/// A connection that the thread of a path has made for a queue.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) path: usize,
    pub(crate) generation: u64,
    pub(crate) link: Link,
    pub(crate) in_capsule: u32,
}

/// A queue, as the threads of the paths see it.
#[derive(Debug)]
pub(crate) struct Post {
    pub(crate) qid: u16,
    /// Wakes whoever waits for the queue.
    pub(crate) bell: Bell,
    arrivals: Mutex<Vec<Arrival>>,
    /// For each path: the generation for which a connection was made, or can't be.
    pub(crate) served: Vec<AtomicU64>,
    /// Commands that are not over: the queue has to look at the time.
    pub(crate) outstanding: AtomicUsize,
}

impl Post {
    pub(crate) fn new(qid: u16, paths: usize) -> std::io::Result<Self> {
        Ok(Self {
            qid,
            bell: Bell::new()?,
            arrivals: Mutex::default(),
            served: (0..paths).map(|_| AtomicU64::new(0)).collect(),
            outstanding: AtomicUsize::new(0),
        })
    }

    pub(crate) fn arrivals(&self) -> MutexGuard<'_, Vec<Arrival>> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See the module's description.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) options: Arc<Options>,
    pub(crate) paths: Vec<Path>,
    /// Counts changes of the paths' states.
    version: AtomicU64,
    posts: Mutex<Vec<Weak<Post>>>,
    /// Rung when a path's state has changed.
    watches: Mutex<Vec<Weak<Bell>>>,
    stops: AtomicBool,
}

impl Shared {
    pub(crate) fn new(options: Arc<Options>) -> std::io::Result<Self> {
        let paths = options.addresses.iter().map(|address| Path::new(*address));
        Ok(Self {
            paths: paths.collect::<Result<_, _>>()?,
            options,
            version: AtomicU64::new(1),
            posts: Mutex::default(),
            watches: Mutex::default(),
            stops: AtomicBool::new(false),
        })
    }

    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Changes the state of a path, and lets queues and watches know.
    pub(crate) fn change(&self, path: usize, change: impl FnOnce(&mut State)) {
        change(&mut self.paths[path].state());
        self.version.fetch_add(1, Ordering::Release);
        for post in self.posts() {
            post.bell.ring();
        }
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        watches.retain(|watch| watch.upgrade().inspect(|bell| bell.ring()).is_some());
    }

    /// A bell that is rung at each change from now on.
    pub(crate) fn watch(&self) -> std::io::Result<Arc<Bell>> {
        let bell = Arc::new(Bell::new()?);
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        watches.push(Arc::downgrade(&bell));
        Ok(bell)
    }

    /// The queues that there are.
    pub(crate) fn posts(&self) -> Vec<Arc<Post>> {
        let mut posts = self.posts.lock().unwrap_or_else(PoisonError::into_inner);
        posts.retain(|post| post.strong_count() > 0);
        posts.iter().filter_map(Weak::upgrade).collect()
    }

    /// Adds a queue, with the lowest number that is free.
    pub(crate) fn add_post(&self) -> std::io::Result<Arc<Post>> {
        let mut posts = self.posts.lock().unwrap_or_else(PoisonError::into_inner);
        posts.retain(|post| post.strong_count() > 0);
        let used: Vec<_> = posts.iter().filter_map(Weak::upgrade).map(|post| post.qid).collect();
        let free = (1..u16::MAX).find(|qid| !used.contains(qid));
        let qid = free.ok_or_else(|| std::io::Error::other("too many queues"))?;
        let post = Arc::new(Post::new(qid, self.paths.len())?);
        posts.push(Arc::downgrade(&post));
        drop(posts);
        for path in &self.paths {
            path.bell.ring();
        }
        Ok(post)
    }

    pub(crate) fn stops(&self) -> bool {
        self.stops.load(Ordering::Acquire)
    }

    /// Ends the threads of the paths.
    pub(crate) fn stop(&self) {
        self.stops.store(true, Ordering::Release);
        for path in &self.paths {
            path.bell.ring();
        }
    }
}
