//! Values that a thread keeps from one of its calls to a later one.

use core::cell::Cell;
use core::mem::{ManuallyDrop, needs_drop};

/// A value of a thread's, put away until it is taken. One that is still there when the thread ends is lost.
///
/// It has no destructor. A thread-local value with one is registered at its first use, by libc, with memory of the program's allocator. Handlers of
/// a fork run while that allocator has all its locks (jemalloc): a thread's first fork would wait for itself.
pub struct Kept<T>(Cell<Option<ManuallyDrop<T>>>);

impl<T> Kept<T> {
    /// Nothing is kept.
    #[must_use]
    pub const fn none() -> Self {
        const { assert!(!needs_drop::<Self>()) };
        Self(Cell::new(None))
    }

    /// Keeps it, and drops what was kept before.
    pub fn put(&self, value: T) {
        drop(self.take());
        self.0.set(Some(ManuallyDrop::new(value)));
    }

    /// What is kept, which is nothing from then on.
    pub fn take(&self) -> Option<T> {
        self.0.take().map(ManuallyDrop::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    #[test]
    fn what_is_put_is_taken_once_and_dropped_when_it_is_replaced() {
        let (first, second) = (Rc::new(1), Rc::new(2));
        let kept = Kept::none();
        kept.put(Rc::clone(&first));
        kept.put(Rc::clone(&second));
        assert_eq!((Rc::strong_count(&first), Rc::strong_count(&second)), (1, 2));
        assert_eq!(kept.take().as_deref(), Some(&2));
        assert_eq!(kept.take(), None);
        assert_eq!(Rc::strong_count(&second), 1);
    }
}
