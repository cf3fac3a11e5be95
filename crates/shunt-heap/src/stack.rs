//! A stack of numbers (a Treiber stack), the free list of heap and slabs.
//!
//! A pop reads the successor of the top before it takes the top away. Between the two another
//! thread may pop the top, use it, and push it again with another successor. So the head counts its
//! changes beside the number, and the exchange fails if one has come between.

use shunt_shm::sync::{AtomicU32, AtomicU64, Ordering};

/// Where the successor of a number stands. The word holds the successor plus one; 0: none.
pub trait Links {
    /// The word of `number`, which is on a stack, or was when its head was read.
    fn link(&self, number: u32) -> &AtomicU32;
}

/// The head: the number plus one in the low half, the count of changes in the high half.
#[derive(Debug, Default)]
pub struct Stack(AtomicU64);

const fn top_of(head: u64) -> Option<u32> {
    #[allow(clippy::cast_possible_truncation, reason = "the low half")]
    (head as u32).checked_sub(1)
}

const fn after(head: u64, low: u32) -> u64 {
    ((head >> 32) + 1) << 32 | low as u64
}

impl Stack {
    /// An empty one.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Takes the top away.
    pub fn pop(&self, links: &impl Links) -> Option<u32> {
        let mut head = self.0.load(Ordering::Acquire);
        loop {
            let top = top_of(head)?;
            let next = links.link(top).load(Ordering::Relaxed);
            // SYNC POINT stack: acquires what the push of the new top has released.
            let (ok, no) = (Ordering::Acquire, Ordering::Acquire);
            match self.0.compare_exchange(head, after(head, next), ok, no) {
                Ok(_) => return Some(top),
                Err(now) => head = now,
            }
        }
    }

    /// Puts a number on top.
    pub fn push(&self, number: u32, links: &impl Links) {
        self.push_chain(number, number, links);
    }

    /// Puts numbers on top of which each but the `last` links to the next.
    pub fn push_chain(&self, first: u32, last: u32, links: &impl Links) {
        let mut head = self.0.load(Ordering::Relaxed);
        loop {
            #[allow(clippy::cast_possible_truncation, reason = "the low half")]
            links.link(last).store(head as u32, Ordering::Relaxed);
            // SYNC POINT stack: releases the links, and what the last user left.
            let (ok, no) = (Ordering::Release, Ordering::Relaxed);
            match self.0.compare_exchange(head, after(head, first + 1), ok, no) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    struct Words([AtomicU32; 4]);

    impl Links for Words {
        fn link(&self, number: u32) -> &AtomicU32 {
            &self.0[number as usize]
        }
    }

    #[test]
    fn the_last_that_was_pushed_is_popped_first() {
        let words = Words([const { AtomicU32::new(0) }; 4]);
        let stack = Stack::new();
        assert_eq!(stack.pop(&words), None);
        stack.push(2, &words);
        words.link(0).store(2, Ordering::Relaxed);
        stack.push_chain(0, 1, &words);
        assert_eq!([(); 4].map(|()| stack.pop(&words)), [Some(0), Some(1), Some(2), None]);
    }
}
