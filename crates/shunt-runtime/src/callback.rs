//! Calls from a lower layer to a higher one.
//!
//! Imports go down only. Where a lower layer comes to the business of a higher one (the last call
//! on a connection is over, a process was forked unseen), it calls the function that the higher one
//! left here at start-up.

use core::marker::PhantomData;
use core::mem::transmute_copy;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

/// A pointer to a function.
///
/// # Safety
/// The type is one of function pointers.
pub unsafe trait Function: Copy {}

macro_rules! functions {
    ($(($($argument:ident),*))+) => {
        $(
            // SAFETY: `fn(..)` is a type of function pointers.
            unsafe impl<$($argument),*> Function for fn($($argument),*) {}
        )+
    };
}

functions! { () (A) (A, B) (A, B, C) }

/// A place for a function. It is set before it is first needed, and set to the same one again if at all.
#[derive(Debug)]
pub struct Callback<F>(AtomicPtr<()>, PhantomData<F>);

impl<F: Function> Callback<F> {
    /// Nothing is to be done so far.
    #[must_use]
    pub const fn none() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()), PhantomData)
    }

    /// This is to be done.
    pub fn set(&self, function: F) {
        // SAFETY: a function pointer is as long as a pointer, and may be kept as one.
        self.0.store(unsafe { transmute_copy::<F, *mut ()>(&function) }, Ordering::Release);
    }

    /// What is to be done.
    #[inline]
    #[must_use]
    pub fn get(&self) -> Option<F> {
        let at = self.0.load(Ordering::Acquire);
        // SAFETY: `set` has kept a function of this type, which is never null.
        (!at.is_null()).then(|| unsafe { transmute_copy::<*mut (), F>(&at) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_what_was_set() {
        fn add(sum: &'static AtomicPtr<()>, _: u8) {
            sum.store(ptr::without_provenance_mut(7), Ordering::Relaxed);
        }
        static SUM: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());
        let callback: Callback<fn(&'static AtomicPtr<()>, u8)> = Callback::none();
        assert!(callback.get().is_none());
        callback.set(add);
        callback.get().unwrap()(&SUM, 1);
        assert_eq!(SUM.load(Ordering::Relaxed).addr(), 7);
    }
}
