//! Queues at rest: nobody sleeps through what is put there, whoever else looks.

use loom::sync::{Arc, Mutex};
use loom::thread;
use shunt_engine::wait::looks::{Looks, Queue};
use shunt_engine::wait::sharers::Sharers;
use shunt_engine::wait::{Way, tell};
use shunt_shm::cq::{ArmLine, CqLine, Push};
use shunt_shm::sync::{AtomicU32, Ordering};

use crate::world::{Bell, Sleeper, explore, wait_for};

/// The one connection of the one link group, and the one vector.
const CONN: usize = 3;
const PLACE: usize = 5;
const VECTORS: u64 = 1;

/// A vector with one queue.
#[derive(Default)]
struct Told {
    looks: Looks<1, 1>,
    changes: Mutex<()>,
    found: AtomicU32,
    queue: CqLine,
    arm: ArmLine,
    bell: Bell,
    /// What the peer has put there, and how much of it was taken out by any thread.
    news: AtomicU32,
    taken: AtomicU32,
}

impl Queue for &Told {
    fn place(&self) -> usize {
        PLACE
    }
    fn vector(&self) -> usize {
        0
    }
    fn found(&self) -> &AtomicU32 {
        &self.found
    }
    fn lines(&self) -> Option<(&CqLine, &ArmLine)> {
        Some((&self.queue, &self.arm))
    }
    fn is_told_of(&self) -> bool {
        true
    }
    fn alone(&self, change: impl FnOnce()) {
        let _changes = self.changes.lock().unwrap();
        change();
    }
}

impl Told {
    fn new() -> Arc<Self> {
        let told = Self::default();
        told.looks.begins(&&told, false);
        Arc::new(told)
    }

    /// The peer tells of news.
    fn tell(&self, news: u32) {
        self.news.store(news, Ordering::Relaxed);
        if tell::queue(&self.queue, &self.arm, CONN, None) == Push::Ring {
            self.bell.ring();
        }
    }

    /// As an epoll instance empties its queues. `hears`: the doorbell was heard.
    fn pop(&self, hears: bool) {
        let at_rest = self.looks.at_rest(VECTORS).filter(|_| hears).count();
        let awake = self.looks.awake(VECTORS).count();
        if at_rest + awake > 0 && !self.queue.is_empty() {
            self.looks.is_used(&self);
            self.queue.pop_all(
                |_| 0,
                |_| {
                    let news = self.news.load(Ordering::Relaxed);
                    self.taken.fetch_max(news, Ordering::AcqRel);
                },
            );
        }
    }
}

/// A thread that waits until so much was taken out.
struct Owner<'a> {
    told: &'a Told,
    until: u32,
    /// It brings the queue to rest before each sleep.
    rests: bool,
    has_armed: bool,
    hears: bool,
}

impl<'a> Owner<'a> {
    fn waits(told: &'a Told, until: u32, rests: bool) {
        wait_for(Self { told, until, rests, has_armed: false, hears: false });
    }
}

impl Sleeper for Owner<'_> {
    const WAY: Way = Way::Kernel;

    fn arm(&mut self) {
        let told = self.told;
        told.looks.comes_to_sleep(VECTORS, |_| Some(told));
        if self.rests {
            told.looks.rest(&told);
        }
        self.has_armed = told.looks.awake(VECTORS).count() > 0;
        if self.has_armed {
            told.arm.arm();
        }
    }

    fn disarm(&mut self) {
        if self.has_armed {
            self.told.arm.disarm();
        }
        self.told.looks.wakes_up(VECTORS);
        self.hears = true;
    }

    fn is_ready(&self) -> bool {
        self.told.looks.awake(VECTORS).count() > 0 && !self.told.queue.is_empty()
    }

    fn sleep(&self) {
        self.told.bell.wait(0);
    }

    fn look(&mut self) -> bool {
        self.told.pop(core::mem::take(&mut self.hears));
        self.told.taken.load(Ordering::Acquire) >= self.until
    }
}

/// It comes to rest as the peer puts something there, wakes up as the second message is found, and may rest again.
#[test]
fn what_comes_as_a_queue_comes_to_rest_is_not_slept_through() {
    explore(Some(3), || {
        let told = Told::new();
        let peer = {
            let told = Arc::clone(&told);
            thread::spawn(move || (1..=2).for_each(|news| told.tell(news)))
        };
        Owner::waits(&told, 2, true);
        peer.join().unwrap();
    });
}

/// Another thread finds something in it, wakes it up, and does not come back: those who sleep are rung for what comes next.
#[test]
fn whoever_wakes_a_queue_and_goes_leaves_the_sleepers_to_be_told() {
    explore(Some(2), || {
        let told = Told::new();
        told.looks.rest(&&*told);
        // Long ago: whoever finds something first leaves it at rest.
        told.found.store(u32::MAX - 99, Ordering::Relaxed);
        told.tell(1);
        let guest = {
            let told = Arc::clone(&told);
            thread::spawn(move || {
                told.pop(true);
                told.tell(2);
            })
        };
        Owner::waits(&told, 2, false);
        guest.join().unwrap();
    });
}

/// A queue is new while a thread sleeps, or comes to sleep. The thread that has made it is busy elsewhere as something comes.
#[test]
fn a_sleeper_is_told_of_what_comes_in_a_queue_that_is_new() {
    explore(Some(3), || {
        let told = Arc::new(Told::default());
        let maker = {
            let told = Arc::clone(&told);
            thread::spawn(move || {
                (&&*told).alone(|| told.looks.begins(&&*told, false));
                told.tell(1);
            })
        };
        Owner::waits(&told, 1, false);
        maker.join().unwrap();
    });
}

/// A set of which a thread may sleep before it has any vector.
#[derive(Default)]
struct Shared {
    told: Told,
    set: Sharers,
    lock: Mutex<()>,
}

/// One of those who sleep in the set.
struct Sharer<'a> {
    shared: &'a Shared,
    vectors: u64,
    has_armed: bool,
    hears: bool,
}

impl Sleeper for Sharer<'_> {
    const WAY: Way = Way::Kernel;

    fn arm(&mut self) {
        let Shared { told, set, lock } = self.shared;
        self.vectors =
            set.comes_to_sleep(|| lock.lock().unwrap(), |missed| told.looks.wakes_up(missed));
        told.looks.comes_to_sleep(self.vectors, |_| Some(told));
        self.has_armed = told.looks.awake(self.vectors).count() > 0;
        if self.has_armed {
            told.arm.arm();
        }
    }

    fn disarm(&mut self) {
        let Shared { told, set, .. } = self.shared;
        if self.has_armed {
            told.arm.disarm();
        }
        told.looks.wakes_up(self.vectors);
        set.wakes_up();
        self.hears = true;
    }

    fn is_ready(&self) -> bool {
        let Shared { told, set, .. } = self.shared;
        told.looks.awake(set.vectors()).count() > 0 && !told.queue.is_empty()
    }

    fn sleep(&self) {
        self.shared.told.bell.wait(0);
    }

    fn look(&mut self) -> bool {
        let Shared { told, set, .. } = self.shared;
        let hears = core::mem::take(&mut self.hears);
        if set.vectors() != 0 {
            told.pop(hears);
        }
        told.taken.load(Ordering::Acquire) >= 1
    }
}

/// Another set has the queue already, and nobody sleeps there. Its connection is added to this one while a thread sleeps here, or
/// comes to sleep; the thread that has added it is busy elsewhere as something comes.
#[test]
fn a_sleeper_is_told_of_what_comes_in_a_queue_that_its_set_gets() {
    explore(Some(3), || {
        let shared = Arc::new(Shared::default());
        shared.told.looks.begins(&&shared.told, false);
        let adder = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let Shared { told, set, lock } = &*shared;
                {
                    let _alone = lock.lock().unwrap();
                    let is_missed = set.adds(0, || told.looks.is_missed(0));
                    let mut rings = false;
                    told.alone(|| rings = is_missed && told.looks.rests_for_sleepers(&told));
                    if rings {
                        told.bell.ring();
                    }
                }
                told.tell(1);
            })
        };
        let shared = &*shared;
        wait_for(Sharer { shared, vectors: 0, has_armed: false, hears: false });
        adder.join().unwrap();
    });
}
