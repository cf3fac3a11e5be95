//! The completion queue: no number is lost, no owner sleeps through a push.

use loom::sync::Arc;
use loom::thread;
use shunt_engine::wait::{Way, tell};
use shunt_shm::cq::{ArmLine, CqLine, Push};
use shunt_shm::sync::{AtomicU32, Ordering};

use crate::world::{Bell, Sleeper, explore, wait_for};

const CONNS: [usize; 2] = [3, 70];

/// A completion vector, and what its connections have to tell.
#[derive(Default)]
struct Vector {
    queue: CqLine,
    arm: ArmLine,
    bell: Bell,
    news: [AtomicU32; CONNS.len()],
}

impl Vector {
    fn push(&self, which: usize) {
        if tell::queue(&self.queue, &self.arm, CONNS[which], None) == Push::Ring {
            self.bell.ring();
        }
    }

    fn tell(&self, which: usize, news: u32) {
        self.news[which].store(news, Ordering::Relaxed);
        self.push(which);
    }

    /// Sleeps and pops until `done` agrees with the news that were seen.
    fn complete(&self, done: impl Fn(&[u32; CONNS.len()]) -> bool) {
        wait_for(Owner { vector: self, seen: [0; CONNS.len()], done });
    }
}

/// The owner of a vector, by the news that it has seen.
struct Owner<'a, D> {
    vector: &'a Vector,
    seen: [u32; CONNS.len()],
    done: D,
}

impl<D: Fn(&[u32; CONNS.len()]) -> bool> Sleeper for Owner<'_, D> {
    const WAY: Way = Way::Kernel;

    fn arm(&mut self) {
        self.vector.arm.arm();
    }

    fn disarm(&mut self) {
        self.vector.arm.disarm();
    }

    fn is_ready(&self) -> bool {
        !self.vector.queue.is_empty()
    }

    fn sleep(&self) {
        self.vector.bell.wait(0);
    }

    fn look(&mut self) -> bool {
        self.vector.queue.pop_all(
            |_| 0,
            |conn| {
                let which = CONNS.iter().position(|c| *c == conn).unwrap();
                self.seen[which] = self.vector.news[which].load(Ordering::Relaxed);
            },
        );
        (self.done)(&self.seen)
    }
}

/// The second push may find the number still queued and then rings nothing: what it told must be
/// seen all the same.
#[test]
fn pushes_of_one_connection_are_never_slept_through() {
    explore(Some(4), || {
        let vector = Arc::new(Vector::default());
        let peer = {
            let vector = Arc::clone(&vector);
            thread::spawn(move || (1..=2).for_each(|news| vector.tell(0, news)))
        };
        vector.complete(|seen| seen[0] == 2);
        peer.join().unwrap();
    });
}

#[test]
fn two_pushers_are_both_heard() {
    explore(Some(3), || {
        let vector = Arc::new(Vector::default());
        let peers = [0, 1].map(|which| {
            let vector = Arc::clone(&vector);
            thread::spawn(move || vector.tell(which, 1))
        });
        vector.complete(|seen| *seen == [1, 1]);
        peers.into_iter().for_each(|peer| peer.join().unwrap());
    });
}

/// Two pushers of one number, of which one finds it queued: the other rings for both.
#[test]
fn who_finds_the_number_queued_may_leave_the_ringing_to_the_other() {
    explore(Some(3), || {
        let vector = Arc::new(Vector::default());
        let told = Arc::new(AtomicU32::new(0));
        let peers = [(); 2].map(|()| {
            let (vector, told) = (Arc::clone(&vector), Arc::clone(&told));
            thread::spawn(move || {
                let news = told.fetch_add(1, Ordering::Relaxed) + 1;
                vector.news[0].fetch_max(news, Ordering::Relaxed);
                vector.push(0);
            })
        });
        vector.complete(|seen| seen[0] == 2);
        peers.into_iter().for_each(|peer| peer.join().unwrap());
    });
}
