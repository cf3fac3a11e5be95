//! The completion queue, one thread at a time (see the loom models for the rest).

use std::collections::BTreeSet;

use proptest::prelude::*;
use shunt_shm::cq::{ArmLine, CqLine, ENTRIES, Push, WORDS};

fn popped(queue: &CqLine, first: usize) -> Vec<usize> {
    let mut numbers = Vec::new();
    queue.pop_all(first, |conn| numbers.push(conn));
    numbers
}

proptest! {
    #[test]
    fn behaves_as_a_set(
        script in prop::collection::vec((prop::option::weighted(0.9, 0..ENTRIES), any::<bool>()), 0..200),
    ) {
        let (queue, arm) = (CqLine::default(), ArmLine::default());
        let mut model = BTreeSet::new();
        for (conn, armed) in script {
            let Some(conn) = conn else {
                let got = popped(&queue, model.len());
                prop_assert_eq!(got.iter().copied().collect::<BTreeSet<_>>(), std::mem::take(&mut model));
                prop_assert!(queue.is_empty());
                continue;
            };
            if armed {
                arm.arm();
            }
            let fresh = model.insert(conn);
            let expected = if fresh && armed { Push::Ring } else { Push::Saved };
            prop_assert_eq!(queue.push(&arm, conn), expected);
            if armed {
                arm.disarm();
            }
            prop_assert!(!queue.is_empty());
        }
    }
}

#[test]
fn each_number_is_popped_once() {
    let (queue, arm) = (CqLine::default(), ArmLine::default());
    (0..ENTRIES).for_each(|conn| assert_eq!(queue.push(&arm, conn), Push::Saved));
    assert_eq!(popped(&queue, 0), (0..ENTRIES).collect::<Vec<_>>());
    assert!(popped(&queue, 0).is_empty());
}

#[test]
fn the_first_word_can_be_chosen() {
    let (queue, arm) = (CqLine::default(), ArmLine::default());
    for first in [1, WORDS - 1, WORDS, usize::MAX - WORDS] {
        for conn in [0, 64, 128, 192] {
            assert_eq!(queue.push(&arm, conn), Push::Saved);
        }
        assert_eq!(popped(&queue, first)[0], first % WORDS * 64);
    }
}

#[test]
fn numbers_that_are_too_large_are_ignored() {
    let (queue, arm) = (CqLine::default(), ArmLine::default());
    arm.arm();
    assert_eq!(queue.push(&arm, ENTRIES), Push::Saved);
    assert_eq!(queue.push(&arm, usize::MAX), Push::Saved);
    assert!(queue.is_empty());
}

#[test]
fn the_doorbell_rings_while_any_owner_sleeps() {
    let (queue, arm) = (CqLine::default(), ArmLine::default());
    arm.arm();
    arm.arm();
    arm.disarm();
    assert_eq!(queue.push(&arm, 1), Push::Ring);
    assert_eq!(queue.push(&arm, 1), Push::Saved, "rung for already");
    arm.disarm();
    assert_eq!(queue.push(&arm, 2), Push::Saved);
}
