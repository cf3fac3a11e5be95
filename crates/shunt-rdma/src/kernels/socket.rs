//! A program's socket, on which the agent speaks for a while.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::servers::Marks;

/// See the module. Its SYN is marked no more when it is gone. Whoever lets go of a socket last may have to wait (`SO_LINGER`), so a thread
/// of its own does.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: Arc<OwnedFd>,
    marks: Option<Arc<dyn Marks>>,
}

impl Socket {
    /// One whose SYN is marked there.
    pub(crate) fn new(fd: OwnedFd, marks: Option<Arc<dyn Marks>>) -> Self {
        Self { fd: Arc::new(fd), marks }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Some(marks) = &self.marks {
            marks.forget(self.fd.as_fd());
        }
        let socket = Arc::clone(&self.fd);
        // Without a thread it is let go of here.
        let _ = std::thread::Builder::new().name("shunt-burial".into()).spawn(move || drop(socket));
    }
}
