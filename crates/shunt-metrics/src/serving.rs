//! Metrics served by a thread of their own, for programs without a loop that could.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use shunt_sys::epoll::{self, Epoll};

use crate::address::{Address, MetricsError};
use crate::exporter::Exporter;

/// Events taken at once.
const BATCH: usize = 16;
const STOP: u64 = 0;
/// Tokens of scrapers; the listener has the one before.
const SCRAPERS: u64 = 2;

/// The thread. It ends, and the socket's file goes, when this is dropped.
#[derive(Debug)]
pub struct Serving {
    address: Address,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Serving {
    /// Serves what `render` makes. Others than this host's programs can reach it only if it is `public`.
    ///
    /// # Errors
    /// Why that cannot be.
    pub fn start(
        wanted: &Address,
        public: bool,
        render: impl Fn() -> Result<String, fmt::Error> + Send + 'static,
    ) -> Result<Self, MetricsError> {
        let failed = |e: io::Error| MetricsError::System(wanted.clone(), e);
        let exporter = Exporter::open(wanted, public, SCRAPERS)?;
        let address = exporter.address().clone();
        let epoll = Epoll::new(BATCH).map_err(failed)?;
        exporter.watch(&epoll).map_err(failed)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let stop = Arc::new(eventfd(0, flags).map_err(|e| failed(e.into()))?);
        epoll.add(stop.as_fd(), epoll::IN, STOP).map_err(failed)?;
        // The thread has the descriptor too, as it waits for it.
        let held = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("metrics".to_owned());
        let thread = thread.spawn(move || {
            serve(exporter, epoll, &render);
            drop(held);
        });
        Ok(Self { address, stop, thread: Some(thread.map_err(failed)?) })
    }

    /// Where they are to be reached: with the port that the kernel chose for 0.
    #[must_use]
    pub const fn address(&self) -> &Address {
        &self.address
    }
}

/// Serves until it is to stop; without epoll_wait(2) nothing can be served.
fn serve(
    mut exporter: Exporter,
    mut epoll: Epoll,
    render: &dyn Fn() -> Result<String, fmt::Error>,
) {
    let mut ready = Vec::with_capacity(BATCH);
    loop {
        // Rounded up: a wait that is too short would come again and again.
        let late = exporter.drop_late(Instant::now());
        let late = late.map(|wait| wait + Duration::from_millis(1));
        ready.clear();
        match epoll.wait(late) {
            Ok(events) => ready.extend(events.map(|event| event.data)),
            Err(_) => return,
        }
        for &token in &ready {
            if token == STOP {
                return;
            }
            exporter.serve(token, &epoll, render);
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _told = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn the_thread_serves_what_is_so_now_and_ends() {
        let path = std::env::temp_dir().join(format!("shunt-serving-{}", std::process::id()));
        let wanted = Address::Unix(path.clone());
        let value = Arc::new(AtomicU64::new(1));
        let shown = Arc::clone(&value);
        let render = move || Ok(format!("n {}\n", shown.load(Ordering::Relaxed)));
        let serving = Serving::start(&wanted, false, render).unwrap();
        let ask = || {
            let mut socket = UnixStream::connect(&path).unwrap();
            socket.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
            let mut text = String::new();
            socket.read_to_string(&mut text).unwrap();
            text
        };
        assert!(ask().ends_with("n 1\n"));
        value.store(2, Ordering::Relaxed);
        assert!(ask().ends_with("n 2\n"));
        drop(serving);
        assert!(!path.exists(), "the socket is left");
        assert_eq!(Arc::strong_count(&value), 1, "the thread goes on");
    }
}
