//! Threads that wait for files, so that those that own connections never do.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::num::NonZeroUsize;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

/// What a thread is to do.
pub type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    over: bool,
}

#[derive(Default)]
struct Shared {
    jobs: Mutex<Jobs>,
    more: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> Option<Job> {
        let mut jobs = self.lock();
        loop {
            if let Some(job) = jobs.waiting.pop_front() {
                return Some(job);
            }
            if jobs.over {
                return None;
            }
            jobs = self.more.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Some threads, which take jobs in the order in which they come. On drop they finish what waits.
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads.len()).finish_non_exhaustive()
    }
}

impl Pool {
    /// Starts so many threads.
    ///
    /// # Errors
    /// Those of pthread_create(3).
    pub fn new(threads: NonZeroUsize) -> io::Result<Self> {
        let mut pool = Self { shared: Arc::default(), threads: Vec::new() };
        for _ in 0..threads.get() {
            let shared = Arc::clone(&pool.shared);
            let run = move || {
                while let Some(job) = shared.next() {
                    job();
                }
            };
            pool.threads.push(Builder::new().name("nvme-store".to_owned()).spawn(run)?);
        }
        Ok(pool)
    }

    /// Has a job done.
    pub fn run(&self, job: Job) {
        self.shared.lock().waiting.push_back(job);
        self.shared.more.notify_one();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.lock().over = true;
        self.shared.more.notify_all();
        for thread in self.threads.drain(..) {
            let _panicked = thread.join();
        }
    }
}
