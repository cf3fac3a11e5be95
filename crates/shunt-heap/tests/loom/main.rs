//! The free list: nobody gets a number that somebody else has.
#![cfg(loom)]

use loom::sync::Arc;
use loom::thread;
use shunt_heap::stack::{Links, Stack};
use shunt_shm::sync::{AtomicU32, Ordering};

const NUMBERS: usize = 3;

#[derive(Default)]
struct World {
    stack: Stack,
    links: [AtomicU32; NUMBERS],
    /// Who has a number: 0 nobody.
    owners: [AtomicU32; NUMBERS],
}

struct Words<'a>(&'a World);

impl Links for Words<'_> {
    fn link(&self, number: u32) -> &AtomicU32 {
        &self.0.links[number as usize]
    }
}

impl World {
    fn pop(&self, who: u32) -> Option<u32> {
        let number = self.stack.pop(&Words(self))?;
        // Relaxed: the stack alone is to order what owners do.
        assert_eq!(self.owners[number as usize].load(Ordering::Relaxed), 0);
        self.owners[number as usize].store(who, Ordering::Relaxed);
        Some(number)
    }

    fn push(&self, who: u32, number: u32) {
        assert_eq!(self.owners[number as usize].load(Ordering::Relaxed), who);
        self.owners[number as usize].store(0, Ordering::Relaxed);
        self.stack.push(number, &Words(self));
    }
}

/// Each thread takes two numbers and puts them back in the order in which it took them: the top is then
/// the same number with another successor, which a pop that has read the old one must notice.
#[test]
fn a_number_has_one_owner() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let world = Arc::new(World::default());
        (0..3).for_each(|number| world.stack.push(number, &Words(&world)));
        let other = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                let (first, second) = (world.pop(1), world.pop(1));
                for number in first.into_iter().chain(second) {
                    world.push(1, number);
                }
            })
        };
        if let Some(number) = world.pop(2) {
            world.push(2, number);
        }
        other.join().unwrap();
        let mut left: Vec<u32> = std::iter::from_fn(|| world.pop(3)).collect();
        left.sort_unstable();
        assert_eq!(left, [0, 1, 2]);
    });
}
