//! The completion queue: no number is lost, no owner sleeps through a push.

use loom::sync::{Arc, Notify};
use loom::thread;
use shunt_shm::cq::{ArmLine, CqLine, Push};
use shunt_shm::sync::{AtomicU32, Ordering};

use crate::world::explore;

const CONNS: [usize; 2] = [3, 70];

/// A completion vector, and what its connections have to tell.
#[derive(Default)]
struct Vector {
    queue: CqLine,
    arm: ArmLine,
    bell: Notify,
    news: [AtomicU32; CONNS.len()],
}

impl Vector {
    fn tell(&self, which: usize, news: u32) {
        self.news[which].store(news, Ordering::Relaxed);
        if self.queue.push(&self.arm, CONNS[which]) == Push::Ring {
            self.bell.notify();
        }
    }

    /// Sleeps and pops until `done` agrees with the news that were seen.
    fn complete(&self, done: impl Fn(&[u32; CONNS.len()]) -> bool) {
        let mut seen = [0; CONNS.len()];
        loop {
            self.queue.pop_all(
                |_| 0,
                |conn| {
                    let which = CONNS.iter().position(|c| *c == conn).unwrap();
                    seen[which] = self.news[which].load(Ordering::Relaxed);
                },
            );
            if done(&seen) {
                return;
            }
            self.arm.arm();
            if self.queue.is_empty() {
                self.bell.wait();
            }
            self.arm.disarm();
        }
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
                if vector.queue.push(&vector.arm, CONNS[0]) == Push::Ring {
                    vector.bell.notify();
                }
            })
        });
        vector.complete(|seen| seen[0] == 2);
        peers.into_iter().for_each(|peer| peer.join().unwrap());
    });
}
