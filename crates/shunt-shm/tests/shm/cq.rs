//! The completion queue, one thread at a time (see the loom models for the rest).

use std::collections::BTreeSet;

use proptest::prelude::*;
use shunt_shm::cq::{ArmLine, CqLine, ENTRIES, Push};

fn popped(queue: &CqLine) -> Vec<usize> {
    let mut numbers = Vec::new();
    queue.pop_all(|_| 0, |conn| numbers.push(conn));
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
                let got = popped(&queue);
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
    assert_eq!(popped(&queue), (0..ENTRIES).collect::<Vec<_>>());
    assert!(popped(&queue).is_empty());
}

#[test]
fn who_came_first_is_popped_first() {
    let (queue, arm) = (CqLine::default(), ArmLine::default());
    let mut places = [0; ENTRIES];
    for order in [&[5, 200, 7, 0, 199, 64][..], &[1, 0], &[9], &[255, 3, 127, 128]] {
        for &conn in order.iter().chain(order) {
            if let Some(place) = queue.next_place(conn) {
                places[conn] = place;
            }
            queue.push(&arm, conn);
        }
        let mut numbers = Vec::new();
        queue.pop_all(|conn| places[conn], |conn| numbers.push(conn));
        assert_eq!(numbers, order);
    }
    assert_eq!(queue.next_place(ENTRIES), None);
}

/// Whatever a peer writes for a place.
#[test]
fn any_places_are_an_order() {
    let (queue, arm) = (CqLine::default(), ArmLine::default());
    for hostile in [0_u32, u32::MAX, 1 << 31] {
        (0..ENTRIES).for_each(|conn| assert_eq!(queue.push(&arm, conn), Push::Saved));
        let mut numbers = BTreeSet::new();
        let place_of = |conn: usize| if conn.is_multiple_of(3) { hostile } else { 7 };
        queue.pop_all(place_of, |conn| assert!(numbers.insert(conn)));
        assert_eq!(numbers.len(), ENTRIES);
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
