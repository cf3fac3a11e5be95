//! The one door to atomics: `core`'s in the product, loom's in models (`--cfg loom`), and in simulations (the feature `sim`, which
//! tests alone enable) types of the same layout that tell of each access.

#[cfg(all(feature = "sim", not(loom)))]
pub mod sim;

#[cfg(not(any(loom, feature = "sim")))]
pub use core::sync::atomic::{AtomicI32, AtomicU8, AtomicU32, AtomicU64};
#[cfg(not(loom))]
pub use core::sync::atomic::{Ordering, fence};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicI32, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(all(feature = "sim", not(loom)))]
pub use sim::{AtomicI32, AtomicU8, AtomicU32, AtomicU64};

/// What a process has for itself, in statics: not replaced in models, which have none of it.
pub mod own {
    pub use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
}

/// A full barrier that orders an earlier store before a later load ("arm, fence, look again").
#[inline(always)]
pub fn store_load_fence() {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    // SAFETY: adds zero to a word of this function's own red zone/stack; a locked operation is a
    // full barrier (Intel SDM vol. 3, 9.2.2) and cheaper than MFENCE. Memory is clobbered by
    // default, so the compiler does not move accesses across it either.
    unsafe {
        core::arch::asm!("lock or dword ptr [rsp - 64], 0", options(nostack));
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
    fence(Ordering::SeqCst);
}

/// Has the processor fetch a cache line that is about to be read, without waiting for it.
#[inline(always)]
pub fn prefetch<T>(at: *const T) {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    // SAFETY: a hint, which faults at no address (Intel SDM vol. 2, PREFETCHh).
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
    let _ = at;
}

/// [`store_load_fence`] right after an atomic read-modify-write, which on x86 is a full barrier already.
#[inline(always)]
pub fn store_load_fence_after_rmw() {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    core::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
    fence(Ordering::SeqCst);
}
