//! Atomics for simulations: `core`'s, with a hook behind each access.
//!
//! A simulator runs several programs on one thread. By the hook it may let another one go on between any two accesses of one,
//! or end that there, as SIGKILL would. What a processor may do to the order of accesses is not simulated: that is loom's.

#![allow(clippy::disallowed_types, reason = "this is the door")]

use core::cell::Cell;
use core::sync::atomic::{self, Ordering};

/// What an access did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// It read.
    Load,
    /// It wrote, maybe what was there before.
    Store,
}

thread_local! {
    static HOOK: Cell<Option<fn(Access)>> = const { Cell::new(None) };
}

/// Has this be called behind each access of this thread.
pub fn set_hook(hook: Option<fn(Access)>) {
    HOOK.set(hook);
}

#[inline]
fn told<T>(result: T, access: Access) -> T {
    if let Some(hook) = HOOK.get() {
        hook(access);
    }
    result
}

/// Calls that change a word and return what it was.
macro_rules! changes {
    ($of:ty: $($change:ident)*) => {$(
        #[doc = concat!("As `core`'s `", stringify!($change), "`.")]
        #[inline]
        pub fn $change(&self, by: $of, order: Ordering) -> $of {
            told(self.0.$change(by, order), Access::Store)
        }
    )*};
}

macro_rules! atomics {
    ($($name:ident: $of:ty)*) => {$(
        #[doc = concat!("`core`'s `", stringify!($name), "`, with a hook.")]
        #[repr(transparent)]
        #[derive(Debug, Default)]
        pub struct $name(atomic::$name);

        impl $name {
            /// One with this value.
            #[must_use]
            pub const fn new(value: $of) -> Self {
                Self(atomic::$name::new(value))
            }

            /// As `core`'s `load`.
            #[inline]
            pub fn load(&self, order: Ordering) -> $of {
                told(self.0.load(order), Access::Load)
            }

            /// As `core`'s `store`.
            #[inline]
            pub fn store(&self, value: $of, order: Ordering) {
                told(self.0.store(value, order), Access::Store);
            }

            changes! { $of: swap fetch_add fetch_sub fetch_and fetch_or fetch_xor fetch_max fetch_min }

            /// As `core`'s `compare_exchange`.
            ///
            /// # Errors
            /// The value, where it is another one.
            #[inline]
            pub fn compare_exchange(
                &self,
                current: $of,
                new: $of,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$of, $of> {
                told(self.0.compare_exchange(current, new, success, failure), Access::Store)
            }

            /// As `core`'s `compare_exchange_weak`, and never fails without a reason: histories repeat.
            ///
            /// # Errors
            /// The value, where it is another one.
            #[inline]
            pub fn compare_exchange_weak(
                &self,
                current: $of,
                new: $of,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$of, $of> {
                self.compare_exchange(current, new, success, failure)
            }

            /// As `core`'s `fetch_update`.
            ///
            /// # Errors
            /// The value, for which there is no other one.
            pub fn fetch_update(
                &self,
                set: Ordering,
                fetch: Ordering,
                mut update: impl FnMut($of) -> Option<$of>,
            ) -> Result<$of, $of> {
                let mut now = self.load(fetch);
                while let Some(next) = update(now) {
                    match self.compare_exchange(now, next, set, fetch) {
                        Ok(before) => return Ok(before),
                        Err(other) => now = other,
                    }
                }
                Err(now)
            }

            /// As `core`'s `as_ptr`.
            #[must_use]
            pub const fn as_ptr(&self) -> *mut $of {
                self.0.as_ptr()
            }

            /// As `core`'s `get_mut`.
            pub fn get_mut(&mut self) -> &mut $of {
                self.0.get_mut()
            }

            /// As `core`'s `into_inner`.
            #[must_use]
            pub const fn into_inner(self) -> $of {
                self.0.into_inner()
            }
        }

        // For what takes `core`'s: futex(2), and words of a process's own.
        impl core::ops::Deref for $name {
            type Target = atomic::$name;

            fn deref(&self) -> &atomic::$name {
                &self.0
            }
        }

        impl From<$of> for $name {
            fn from(value: $of) -> Self {
                Self::new(value)
            }
        }
    )*};
}

atomics! { AtomicI32: i32 AtomicU8: u8 AtomicU32: u32 AtomicU64: u64 }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_access_of_the_thread_is_told() {
        thread_local!(static SEEN: Cell<(u32, u32)> = const { Cell::new((0, 0)) });
        let word = AtomicU32::new(1);
        set_hook(Some(|access| {
            let (loads, stores) = SEEN.get();
            SEEN.set(match access {
                Access::Load => (loads + 1, stores),
                Access::Store => (loads, stores + 1),
            });
        }));
        assert_eq!(word.load(Ordering::Relaxed), 1);
        word.store(2, Ordering::Relaxed);
        assert_eq!(word.fetch_add(1, Ordering::Relaxed), 2);
        let swap = |from| word.compare_exchange_weak(from, 9, Ordering::Relaxed, Ordering::Relaxed);
        assert_eq!((swap(4), swap(3)), (Err(3), Ok(3)));
        let halve = |n: u32| n.is_multiple_of(2).then_some(n / 2);
        assert_eq!(word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, halve), Err(9));
        set_hook(None);
        word.store(0, Ordering::Relaxed);
        assert_eq!(SEEN.get(), (2, 4));
        assert_eq!(size_of::<AtomicU64>(), size_of::<u64>());
    }
}
