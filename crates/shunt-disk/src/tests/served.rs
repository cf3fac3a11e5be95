//! A device that is served.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, eventfd};

use super::ram::Ram;
use crate::door::{Options, ServeError};
use crate::metrics::Totals;
use crate::serve::serve_until;

type Serve =
    fn(&Ram, &Options, &Totals, BorrowedFd<'_>, Box<dyn FnOnce()>) -> Result<(), ServeError>;

/// A device that is served.
pub struct Served {
    pub path: PathBuf,
    pub totals: Totals,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<Result<(), ServeError>>>,
    _dir: tempfile::TempDir,
}

impl Served {
    /// A vhost-user-blk device.
    pub fn new(disk: &Ram, queues: usize) -> Self {
        Self::with(disk, queues, |disk, options, totals, stop, ready| {
            serve_until(disk, options, totals, stop, ready)
        })
    }

    /// An NVMe controller.
    pub fn nvme(disk: &Ram, queues: usize) -> Self {
        Self::with(disk, queues, |disk, options, totals, stop, ready| {
            crate::vfio::serve::serve_until(disk, options, totals, stop, ready)
        })
    }

    fn with(disk: &Ram, queues: usize, serve: Serve) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk.sock");
        let options = Options { socket: path.clone(), mode: 0o600, queues };
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        let totals = Totals::new(queues);
        let counted = totals.clone();
        let (disk, stopped) = (disk.clone(), Arc::clone(&stop));
        let (ready, is_ready) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let ready = Box::new(move || ready.send(()).unwrap());
            serve(&disk, &options, &counted, stopped.as_fd(), ready)
        });
        is_ready.recv().unwrap();
        Self { path, totals, stop, thread: Some(thread), _dir: dir }
    }

    /// Begins the end.
    pub fn stop(&self) {
        rustix::io::write(&*self.stop, &1u64.to_ne_bytes()).unwrap();
    }

    /// Waits for it.
    pub fn ended(&mut self) -> Result<(), ServeError> {
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.stop();
            let _ended = thread.join();
        }
    }
}
