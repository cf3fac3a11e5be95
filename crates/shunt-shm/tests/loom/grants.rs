//! Grants: a receiver never takes what the sender's program puts into its memory after a completion, nor what was granted
//! and never sent.
//!
//! The order of the accesses is the engine's own ([`shunt_engine::zerocopy::order`]). What stands here is the memory, and who
//! copies what.

use loom::sync::Arc;
use loom::thread;
use shunt_engine::zerocopy::order::{self, Entries};
use shunt_shm::grants::{Grants, Part, Source};
use shunt_shm::ring::ProdLine;
use shunt_shm::sync::{AtomicU32, Ordering};
use shunt_shm::zerocopy::Granted;

use crate::world::explore;

/// A direction of one byte, the memory from which it is granted, and its place in the ring.
#[derive(Default)]
struct Direction {
    granted: Granted,
    grants: Grants,
    prod: ProdLine,
    memory: AtomicU32,
    ring: AtomicU32,
}

impl Direction {
    fn entries(&self) -> Entries<'_> {
        Entries { granted: &self.granted, shown: &self.grants, mine: &self.prod }
    }

    /// Grants the byte, which lies at some address.
    fn grant(&self, region: u64) {
        let number = self.granted.place(0).unwrap();
        self.entries().put(number, &Part { at: 0, len: 1, region, from: 0 }, 1, 0);
    }
}

const SENT: u32 = 1;
const LATER: u32 = 2;

#[test]
fn bytes_that_are_taken_back_are_those_that_were_sent() {
    explore(Some(3), || {
        let at = Arc::new(Direction::default());
        let sender = {
            let at = Arc::clone(&at);
            thread::spawn(move || {
                at.memory.store(SENT, Ordering::Relaxed);
                at.grant(1);
                at.prod.prod.store(1, Ordering::Release);
                let is_back = at.entries().take_back(0, || {
                    at.ring.store(at.memory.load(Ordering::Relaxed), Ordering::Relaxed);
                    true
                });
                assert!(is_back && at.granted.open(0).next().is_none());
                at.memory.store(LATER, Ordering::Relaxed);
            })
        };
        let passed = AtomicU32::new(0);
        if at.prod.prod.load(Ordering::Acquire) == 1 {
            let source = at.grants.source(&at.prod, &passed, (0, 1), |_| {}).unwrap();
            let granted = match source {
                Source::Granted { number, .. } => {
                    let mut byte = None;
                    let copy = || byte = Some(at.memory.load(Ordering::Relaxed));
                    if order::copy(&at.grants, number, copy) { byte } else { None }
                }
                Source::Ring(_) => None,
            };
            let byte = granted.unwrap_or_else(|| at.ring.load(Ordering::Relaxed));
            assert_eq!(byte, SENT);
        }
        sender.join().unwrap();
    });
}

/// Bytes of which the cursor says nothing, as their sender is killed; and others in their place, of a relative that grants
/// them if that is so, while the receiver looks whether there is anything.
fn withdrawn(grants_anew: bool) {
    explore(Some(3), move || {
        let at = Arc::new(Direction::default());
        let sender = {
            let at = Arc::clone(&at);
            thread::spawn(move || {
                at.grant(1);
                at.entries().withdraw(0);
                if grants_anew {
                    at.grant(2);
                } else {
                    at.ring.store(SENT, Ordering::Relaxed);
                }
                at.prod.prod.store(1, Ordering::Release);
            })
        };
        let passed = AtomicU32::new(0);
        let source = |len| {
            let offered = |_| panic!("no offer was made");
            at.grants.source(&at.prod, &passed, (0, len), offered).unwrap()
        };
        source(0);
        if at.prod.prod.load(Ordering::Acquire) == 1 {
            match source(1) {
                Source::Granted { part, .. } => assert!(grants_anew && part.region == 2),
                Source::Ring(_) => {
                    assert!(!grants_anew && at.ring.load(Ordering::Relaxed) == SENT);
                }
            }
        }
        assert_eq!(passed.load(Ordering::Relaxed), 0);
        sender.join().unwrap();
    });
}

#[test]
fn what_was_withdrawn_is_not_taken_for_what_was_copied() {
    withdrawn(false);
}

#[test]
fn what_was_withdrawn_is_not_taken_for_what_was_granted_anew() {
    withdrawn(true);
}
