//! The thread of a path: connects, keeps the controller alive, and makes the queues' connections.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::controller::{Controller, Notice};
use crate::error::Error;
use crate::path::{Arrival, Order, Path, Shared};
use crate::socket;

/// The longest wait between two attempts, in units of the first one.
const MOST_DELAYED: u32 = 16;
/// How often queues are woken to look at the time, at most and at least.
const TICKS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// How often a queue that the controller refuses is tried again, and after how long.
const ATTEMPTS: usize = 10;
const PAUSE: Duration = Duration::from_millis(20);

/// Keeps a path, until all of it ends.
pub(crate) fn keep(shared: &Shared, index: usize) {
    let path = &shared.paths[index];
    let first = shared.options.reconnect_delay.max(Duration::from_millis(1));
    let mut delay = first;
    while !shared.stops() {
        let mut keeper = Keeper { shared, index, path, ticked: Instant::now() };
        let ended = Controller::connect(&shared.options, path.address).and_then(|controller| {
            delay = first;
            keeper.attend(controller)
        });
        if let Err(e) = ended {
            shared.change(index, |state| {
                state.is_up = false;
                state.error = Some(Arc::new(e));
                state.failures = state.failures.saturating_add(1);
            });
        }
        keeper.pause(delay);
        delay = (delay * 2).min(first * MOST_DELAYED);
    }
}

struct Keeper<'a> {
    shared: &'a Shared,
    index: usize,
    path: &'a Path,
    ticked: Instant,
}

impl Keeper<'_> {
    /// Waits before the next attempt.
    fn pause(&mut self, delay: Duration) {
        let until = Instant::now() + delay;
        while !self.shared.stops() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let left = left.min(self.tick());
            // Without a working poll(2) nothing else would work either.
            let _waited = socket::wait([(self.path.bell.fd(), libc::POLLIN)], left);
            self.path.bell.silence();
        }
    }

    /// Looks after a controller until it is gone, or all ends.
    fn attend(&mut self, mut controller: Controller) -> Result<(), Error> {
        controller.listen()?;
        let ana = controller.ana()?;
        let namespaces = controller.namespaces()?;
        // As many as there may be: queues come when they are made.
        controller.want_queues(u16::MAX - 1)?;
        let attributes = controller.attributes().clone();
        let mut generation = 0;
        self.shared.change(self.index, |state| {
            state.generation += 1;
            generation = state.generation;
            state.is_up = true;
            state.error = None;
            state.failures = 0;
            state.attributes = Some(attributes);
            (state.ana, state.namespaces) = (ana, namespaces);
            state.orders.clear();
        });
        let mut must_look = false;
        loop {
            if self.shared.stops() {
                controller.shut_down();
                return Ok(());
            }
            let orders = std::mem::take(&mut self.path.state().orders);
            for order in orders {
                match order {
                    Order::Lost(its) if its == generation => {
                        controller.shut_down();
                        return Err(Error::Io(
                            self.path.address,
                            std::io::Error::other("the connection of a queue is lost"),
                        ));
                    }
                    Order::Abort { generation: its, qid, cid } if its == generation => {
                        // Without it the queue gives its connection up in the end.
                        let _full = controller.abort(qid, cid);
                    }
                    Order::Look => must_look = true,
                    Order::Lost(_) | Order::Abort { .. } => {}
                }
            }
            if std::mem::take(&mut must_look) {
                let (ana, namespaces) = (controller.ana()?, controller.namespaces()?);
                self.shared.change(self.index, |state| {
                    (state.ana, state.namespaces) = (ana, namespaces);
                });
            }
            self.make_queues(&controller, generation)?;
            let notices = controller.turn()?;
            must_look = notices.iter().any(|n| matches!(n, Notice::Ana | Notice::Namespaces));
            if must_look {
                continue;
            }
            let tick = self.tick();
            let due = controller.due();
            let left = due.map_or(tick, |due| due.saturating_duration_since(Instant::now()));
            let fds = [controller.fd(), (self.path.bell.fd(), libc::POLLIN)];
            socket::wait(fds, left.min(tick)).map_err(Error::Local)?;
            self.path.bell.silence();
        }
    }

    /// Connections for queues that have none of this controller.
    fn make_queues(&self, controller: &Controller, generation: u64) -> Result<(), Error> {
        let attributes = controller.attributes();
        for post in self.shared.posts() {
            if post.served[self.index].load(Ordering::Acquire) == generation {
                continue;
            }
            let depth = self.shared.options.depth.clamp(1, attributes.max_depth.max(1));
            // The target may still have to notice that a queue of this number is gone.
            let mut made = controller.queue(post.qid, depth);
            for _ in 0..ATTEMPTS {
                if !matches!(made, Err(Error::Refused(..))) {
                    break;
                }
                std::thread::sleep(PAUSE);
                made = controller.queue(post.qid, depth);
            }
            match made {
                Ok(link) => {
                    let (path, in_capsule) = (self.index, attributes.in_capsule);
                    post.arrivals().push(Arrival { path, generation, link, in_capsule });
                    post.served[self.index].store(generation, Ordering::Release);
                    post.bell.ring();
                }
                // The other queues have theirs.
                Err(e @ Error::Refused(..)) => {
                    post.served[self.index].store(generation, Ordering::Release);
                    let why = Arc::new(Error::Queue(post.qid, Box::new(e)));
                    self.shared.change(self.index, |state| state.error = Some(why));
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Wakes the queues that have to look at the time. How long until they have to again.
    fn tick(&mut self) -> Duration {
        let period = (self.shared.options.command_timeout / 4).clamp(TICKS.0, TICKS.1);
        if self.ticked.elapsed() >= period {
            self.ticked = Instant::now();
            for post in self.shared.posts() {
                if post.outstanding.load(Ordering::Relaxed) > 0 {
                    post.bell.ring();
                }
            }
        }
        period.saturating_sub(self.ticked.elapsed()).max(Duration::from_millis(1))
    }
}
