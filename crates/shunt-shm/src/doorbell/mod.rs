//! Doorbells: an eventfd for sleepers in the kernel's poll, a futex for those who wait for one word.
//!
//! Before it sleeps, a waiter says in an *arm word* how it is to be woken; who brings news takes the
//! word and wakes whom it names. That protocol is atomics alone and is modelled with loom; the
//! system calls that sleep and wake lie beside it.

mod arm;
#[cfg(not(loom))]
mod kernel;

pub use arm::{
    AWAKE, ON_BELL, ON_FUTEX, ON_QUEUE, arm, arm_bell, take, take_bells, take_futex, vectors,
};
#[cfg(not(loom))]
pub use kernel::{
    MOST_WORDS, RUNG, create, futex_wait, futex_wait_any, futex_wait_timed, futex_wake, interrupt,
    ring, ring_fd,
};
