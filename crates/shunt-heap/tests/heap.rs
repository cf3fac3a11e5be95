//! The heap under many threads, in handlers above itself, and in forked children.
#![cfg(not(loom))]

use std::alloc::{GlobalAlloc, Layout};

use proptest::prelude::*;
use shunt_heap::heap::Heap;

/// A block that knows what was written into it.
struct Block {
    at: *mut u8,
    layout: Layout,
    seed: u8,
}

impl Block {
    fn new(size: usize, align: usize, seed: u8) -> Self {
        let layout = Layout::from_size_align(size, align).unwrap();
        // SAFETY: the layout is not empty.
        let at = unsafe { Heap.alloc(layout) };
        assert!(!at.is_null());
        assert_eq!(at.addr() % align, 0, "{layout:?}");
        let mut block = Self { at, layout, seed };
        block.bytes().fill(seed);
        block
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the block is this test's, and so long.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.layout.size()) }
    }

    fn check(&mut self) {
        let seed = self.seed;
        assert!(self.bytes().iter().all(|byte| *byte == seed), "{:?} was overwritten", self.layout);
    }

    fn resize(&mut self, size: usize) {
        let kept = size.min(self.layout.size());
        // SAFETY: the block came from this heap with this layout.
        self.at = unsafe { Heap.realloc(self.at, self.layout, size) };
        self.layout = Layout::from_size_align(size, self.layout.align()).unwrap();
        let seed = self.seed;
        assert!(self.bytes()[..kept].iter().all(|byte| *byte == seed));
        self.bytes().fill(seed);
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.check();
        // SAFETY: allocated by this heap with this layout, and not used again.
        unsafe { Heap.dealloc(self.at, self.layout) };
    }
}

#[derive(Clone, Debug)]
enum Step {
    Make { size: usize, align: usize },
    Drop(usize),
    Resize(usize, usize),
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![8 => 1..300_usize, 3 => 300..40_000_usize, 1 => 40_000..300_000_usize]
}

fn step() -> impl Strategy<Value = Step> {
    let align = (0..14_u32).prop_map(|bit| 1_usize << bit);
    prop_oneof![
        4 => (size(), align).prop_map(|(size, align)| Step::Make { size, align }),
        2 => any::<usize>().prop_map(Step::Drop),
        1 => (any::<usize>(), size()).prop_map(|(which, size)| Step::Resize(which, size)),
    ]
}

fn follow(steps: &[Step], salt: u8) {
    let mut blocks: Vec<Block> = Vec::new();
    for (number, step) in (0_u8..=255).cycle().zip(steps) {
        match *step {
            Step::Make { size, align } => blocks.push(Block::new(size, align, number ^ salt)),
            Step::Drop(which) if !blocks.is_empty() => {
                drop(blocks.swap_remove(which % blocks.len()));
            }
            Step::Resize(which, size) if !blocks.is_empty() => {
                let which = which % blocks.len();
                blocks[which].resize(size);
            }
            Step::Drop(_) | Step::Resize(..) => {}
        }
    }
    blocks.iter_mut().for_each(Block::check);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn blocks_do_not_overlap(steps in prop::collection::vec(step(), 1..200)) {
        follow(&steps, 0);
    }

    #[test]
    fn threads_share_the_heap(steps in prop::collection::vec(step(), 50..200)) {
        std::thread::scope(|scope| {
            for salt in [1, 2, 4, 8] {
                let steps = &steps;
                scope.spawn(move || follow(steps, salt));
            }
        });
    }
}
