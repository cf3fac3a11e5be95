//! Workers: threads that have a completion queue each, with the links that it serves.
//!
//! Others have a worker do something by handing it a piece of work, which runs on its thread between two looks at the queue. A
//! worker that has nothing to do sleeps until its channel, or somebody with work, wakes it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use shunt_far::kernel;
use shunt_far::link::Event;
use shunt_far::worker::Name as LinkName;
use shunt_far::{Cause, Mirror, Settings, Worker};
use shunt_verbs::Refused;
use shunt_verbs::port::Port;
use tracing::{debug, warn};

/// Something for a worker to do, at a time of its clock.
pub type Work<P, M> = Box<dyn FnOnce(&mut Worker<P, M>, Duration) + Send>;

/// What a worker tells.
#[derive(Clone, Debug)]
pub enum Told {
    /// A link has failed, and why: once with each of its queue pairs.
    Failed(LinkName, Cause),
    /// The far side of a link has answered, for the first time with this queue pair.
    Answered(LinkName),
    /// The program of a connection that the far side has not opened has something to say.
    Called(LinkName, usize),
    /// A connection is over on both sides.
    Free(LinkName, usize),
    /// What a link was measured by has taken so long.
    Measured(LinkName, Duration),
    /// Something has happened on a link to a kernel.
    Kernel(LinkName, kernel::Event),
}

/// A worker's thread, which ends with this value: its links go with it.
pub struct Pooled<P: Port, M: Mirror> {
    work: Option<Sender<Work<P, M>>>,
    ear: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl<P: Port, M: Mirror> std::fmt::Debug for Pooled<P, M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pooled").finish_non_exhaustive()
    }
}

impl<P, M> Pooled<P, M>
where
    P: Port + Clone + Send + 'static,
    M: Mirror + Send + 'static,
{
    /// Starts one whose completions interrupt the processor of `vector`, with room for so many links. `told` hears of each link's
    /// queue pair, once that it is answered and once that it has failed, on the worker's thread.
    ///
    /// # Errors
    /// What the device refused; no thread.
    pub fn start(
        port: &P,
        vector: u32,
        links: u32,
        settings: Settings,
        told: impl FnMut(Told) + Send + 'static,
    ) -> Result<Self, Refused> {
        let system = |error: io::Error| Refused::System("thread", error);
        let ear = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let ear = Arc::new(ear.map_err(|error| system(error.into()))?);
        let (work, todo) = channel();
        let (made, is_made) = channel();
        let (port, heard) = (port.clone(), Arc::clone(&ear));
        let run = move || {
            let worker = Worker::new(&port, vector, links, settings);
            // The worker lets go of it when it is lost.
            drop(port);
            match worker {
                Ok(worker) => {
                    let _ = made.send(Ok(()));
                    let (failed, answered) = (BTreeMap::new(), BTreeMap::new());
                    let is_heard = false;
                    Running { worker, todo, ear: heard, is_heard, told, failed, answered }.run();
                }
                Err(refused) => {
                    let _ = made.send(Err(refused));
                }
            }
        };
        let thread = std::thread::Builder::new().name(format!("shunt-far-{vector}"));
        let thread = thread.spawn(run).map_err(system)?;
        let gone = |_| system(io::ErrorKind::BrokenPipe.into());
        is_made.recv().map_err(gone)??;
        Ok(Self { work: Some(work), ear, thread: Some(thread) })
    }

    /// Where it is woken.
    pub const fn ear(&self) -> &Arc<OwnedFd> {
        &self.ear
    }

    /// Has it do something. What it has not done when it ends is never done.
    pub fn hand(&self, work: impl FnOnce(&mut Worker<P, M>, Duration) + Send + 'static) {
        if let Some(queue) = &self.work {
            let _ = queue.send(Box::new(work));
            wake(&self.ear);
        }
    }
}

fn wake(ear: &OwnedFd) {
    // Full: it is readable, then.
    let _ = rustix::io::write(ear, &1_u64.to_ne_bytes());
}

impl<P: Port, M: Mirror> Drop for Pooled<P, M> {
    fn drop(&mut self) {
        self.work = None;
        wake(&self.ear);
        if let Some(thread) = self.thread.take() {
            // A panic of it was written to the log; its links are gone in either case.
            let _ = thread.join();
        }
    }
}

/// The thread's own.
struct Running<P: Port, M, F> {
    worker: Worker<P, M>,
    todo: Receiver<Work<P, M>>,
    ear: Arc<OwnedFd>,
    /// The ear was readable when this last slept: only then it is read.
    is_heard: bool,
    told: F,
    /// Links of which it was told that they have failed, and how often they had been renewed then.
    failed: BTreeMap<LinkName, u32>,
    /// The same of those that were answered.
    answered: BTreeMap<LinkName, u32>,
}

impl<P: Port, M: Mirror, F: FnMut(Told)> Running<P, M, F> {
    fn run(&mut self) {
        let began = Instant::now();
        loop {
            let now = began.elapsed();
            let Some(worked) = self.work(now) else { return };
            let taken = self.worker.turn(now);
            self.worker.tick(now);
            self.tell();
            if !worked && taken == 0 && self.worker.may_sleep(now) {
                self.tell();
                if let Err(error) = self.sleep(began.elapsed()) {
                    warn!("a worker of link groups has ended: {error}");
                    return;
                }
            }
        }
    }

    /// Does what there is to do. `None`: nobody has work any more.
    fn work(&mut self, now: Duration) -> Option<bool> {
        if std::mem::take(&mut self.is_heard) {
            let mut told = [0; 8];
            let _ = rustix::io::read(&*self.ear, &mut told[..]);
        }
        let mut worked = false;
        loop {
            match self.todo.try_recv() {
                Ok(work) => work(&mut self.worker, now),
                Err(TryRecvError::Empty) => return Some(worked),
                Err(TryRecvError::Disconnected) => return None,
            }
            worked = true;
        }
    }

    /// Tells of links that were answered, or have failed, since, and of what has happened on those to kernels.
    fn tell(&mut self) {
        let mut living = BTreeSet::new();
        for (name, link) in self.worker.links() {
            living.insert(name);
            let renewals = link.renewals();
            if let Some(cause) = link.cause()
                && self.failed.insert(name, renewals) != Some(renewals)
            {
                (self.told)(Told::Failed(name, cause));
            }
            if link.is_answered() && self.answered.insert(name, renewals) != Some(renewals) {
                (self.told)(Told::Answered(name));
            }
            while let Some(event) = link.event() {
                match event {
                    Event::Called(slot) => (self.told)(Told::Called(name, slot)),
                    Event::Free(slot) => (self.told)(Told::Free(name, slot)),
                    Event::Measured(time) => (self.told)(Told::Measured(name, time)),
                    Event::Broken(slot, broken) => {
                        debug!("connection {slot} of a link: {broken}");
                    }
                }
            }
        }
        for (name, link) in self.worker.kernel_links() {
            while let Some(event) = link.event() {
                (self.told)(Told::Kernel(name, event));
            }
        }
        self.failed.retain(|name, _| living.contains(name));
        self.answered.retain(|name, _| living.contains(name));
    }

    /// Until the channel or the ear tells, or a link's time is up.
    fn sleep(&mut self, now: Duration) -> io::Result<()> {
        let wait = self.worker.deadline().map(|deadline| deadline.saturating_sub(now));
        let wait = wait.map(|wait| Timespec {
            tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: wait.subsec_nanos().into(),
        });
        let mut fds = vec![PollFd::new(&*self.ear, PollFlags::IN)];
        let channel = self.worker.channel().map(AsFd::as_fd);
        fds.extend(channel.map(|channel| PollFd::from_borrowed_fd(channel, PollFlags::IN)));
        match poll(&mut fds, wait.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let is_told = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let (is_heard, is_told) = (is_told(&fds[0]), fds.get(1).is_some_and(is_told));
        self.is_heard = is_heard;
        if is_told {
            self.worker.was_told();
        }
        Ok(())
    }
}
