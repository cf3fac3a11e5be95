//! All paths to a subsystem.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use shunt_nvme::wire::log::AnaDescriptor;

use crate::bell::Bell;
use crate::controller::Attributes;
use crate::error::Error;
use crate::keeper;
use crate::options::Options;
use crate::path::{Post, Shared};
use crate::request::Namespace;

/// How often it is looked whether a path is up, when somebody waits for that.
const GLANCE: Duration = Duration::from_millis(1);

/// How a path is.
#[derive(Clone, Debug)]
pub struct PathStatus {
    /// Where it leads.
    pub address: SocketAddr,
    /// Its controller can be used.
    pub is_up: bool,
    /// What the controller has said of itself, the last time that there was one.
    pub attributes: Option<Attributes>,
    /// Its ANA groups, if it has some.
    pub ana: Vec<AnaDescriptor>,
    /// What is wrong.
    pub error: Option<String>,
    /// Controllers that there were on it.
    pub connects: u64,
}

#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

/// Becomes readable when paths or namespaces change: for poll(2) or an epoll set of the caller's.
#[derive(Debug)]
pub struct Watch {
    bell: Arc<Bell>,
}

impl Watch {
    /// Has it become readable at the next change. Called before the look at what has changed.
    pub fn reset(&self) {
        self.bell.silence();
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.fd()
    }
}

/// A subsystem, by as many paths as it was given addresses. Copies are the same one; it goes with
/// the last of them and the last of its queues.
#[derive(Clone, Debug)]
pub struct Subsystem {
    pub(crate) handle: Arc<Handle>,
}

impl Subsystem {
    /// Connects, and returns when one path is up. The others follow when they can.
    ///
    /// # Errors
    /// No path is up: why one of them is not.
    pub fn connect(options: Options) -> Result<Self, Error> {
        let patience = options.connect_timeout;
        let shared = Arc::new(Shared::new(Arc::new(options)).map_err(Error::Local)?);
        let handle = Arc::new(Handle { shared: Arc::clone(&shared), threads: Mutex::default() });
        for index in 0..shared.paths.len() {
            let shared = Arc::clone(&shared);
            let thread = std::thread::Builder::new().name(format!("nvme-path-{index}"));
            let thread =
                thread.spawn(move || keeper::keep(&shared, index)).map_err(Error::Local)?;
            handle.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        }
        let subsystem = Self { handle };
        // A path that answers takes a few calls, each of which may take so long.
        let until = Instant::now() + patience * 4;
        loop {
            let mut why = None;
            let mut all_failed = true;
            for path in &shared.paths {
                let state = path.state();
                if state.is_up {
                    return Ok(subsystem);
                }
                all_failed &= state.failures > 0;
                why = why.or_else(|| state.error.clone());
            }
            if all_failed || until <= Instant::now() {
                let none =
                    || std::io::Error::new(ErrorKind::InvalidInput, "no address to connect to");
                return Err(why.map_or_else(|| Error::Local(none()), Error::Down));
            }
            std::thread::sleep(GLANCE);
        }
    }

    /// How to reach it.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.handle.shared.options
    }

    /// Its paths.
    #[must_use]
    pub fn paths(&self) -> Vec<PathStatus> {
        let status = |path: &crate::path::Path| {
            let state = path.state();
            PathStatus {
                address: path.address,
                is_up: state.is_up,
                attributes: state.attributes.clone(),
                ana: state.ana.clone(),
                error: state.error.as_ref().map(ToString::to_string),
                connects: state.generation,
            }
        };
        self.handle.shared.paths.iter().map(status).collect()
    }

    /// Its namespaces, as one of the paths has them.
    #[must_use]
    pub fn namespaces(&self) -> Vec<Namespace> {
        let paths = &self.handle.shared.paths;
        let up = paths.iter().find(|path| path.state().is_up);
        up.or(paths.first()).map_or_else(Vec::new, |path| path.state().namespaces.clone())
    }

    /// One of them.
    #[must_use]
    pub fn namespace(&self, nsid: u32) -> Option<Namespace> {
        self.namespaces().into_iter().find(|namespace| namespace.nsid == nsid)
    }

    /// Counts changes of the paths and namespaces.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.handle.shared.version()
    }

    /// Tells of changes from now on.
    ///
    /// # Errors
    /// Those of eventfd(2).
    pub fn watch(&self) -> std::io::Result<Watch> {
        Ok(Watch { bell: self.handle.shared.watch()? })
    }

    /// Most bytes of a command's data, on every path that was ever up.
    #[must_use]
    pub fn max_transfer(&self) -> u32 {
        let paths = self.handle.shared.paths.iter();
        let limits = paths.filter_map(|path| Some(path.state().attributes.as_ref()?.max_transfer));
        limits.min().unwrap_or(u32::MAX)
    }

    /// One whose paths nobody keeps.
    #[cfg(fuzzing)]
    pub(crate) fn without_threads(shared: Arc<Shared>) -> Self {
        Self { handle: Arc::new(Handle { shared, threads: Mutex::default() }) }
    }

    /// A place for a queue, once one path has made its connection.
    pub(crate) fn post(&self) -> Result<Arc<Post>, Error> {
        let shared = &self.handle.shared;
        let post = shared.add_post().map_err(Error::Local)?;
        let until = Instant::now() + shared.options.connect_timeout * 2;
        loop {
            if !post.arrivals().is_empty() {
                return Ok(post);
            }
            let mut why = None;
            let mut may_come = false;
            for (path, served) in shared.paths.iter().zip(&post.served) {
                let state = path.state();
                may_come |= !state.is_up || served.load(Ordering::Acquire) != state.generation;
                why = why.or_else(|| state.error.clone());
            }
            if (!may_come && post.arrivals().is_empty()) || until <= Instant::now() {
                let none = || std::io::Error::new(ErrorKind::TimedOut, "no path is up");
                return Err(why.map_or_else(|| Error::Local(none()), Error::Down));
            }
            std::thread::sleep(GLANCE);
        }
    }

    /// Shuts the controllers down, and waits for that. Queues that are left do nothing any more.
    pub fn close(self) {
        self.handle.shared.stop();
        let mut threads = self.handle.threads.lock().unwrap_or_else(PoisonError::into_inner);
        for thread in threads.drain(..) {
            let _panicked = thread.join();
        }
    }
}
