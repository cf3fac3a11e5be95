//! Memory of the library's own that needs no lock.
//!
//! A hook may run inside the program's allocator, in a signal handler above another hook, and in
//! the child of a process whose other threads were in the middle of anything. A heap with a lock
//! would then wait for itself, or for a thread that does not exist. So both parts here change their
//! shared words by compare-exchange alone: a handler or a child finds a whole state at any moment.
//!
//! * [`heap`]: the global allocator of `libshunt.so`.
//! * [`slab`]: objects with a place and a number of uses, by which a stale name is told.
//! * [`stack`]: the free list of both.

#[cfg(not(loom))]
pub mod heap;
#[cfg(not(loom))]
mod pages;
#[cfg(not(loom))]
pub mod slab;
pub mod stack;
