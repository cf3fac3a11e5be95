//! The heap and a slab in signal handlers above themselves.
#![cfg(not(loom))]

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use shunt_heap::heap::Heap;
use shunt_heap::slab::{Slab, Zeroed};

struct Owner(AtomicU64);
// SAFETY: an atomic number.
unsafe impl Zeroed for Owner {}

static SLAB: Slab<Owner, 10_000> = Slab::new();
static HANDLED: AtomicU64 = AtomicU64::new(0);

/// Takes a block of each of some sizes and an object, and finds them as it left them.
fn use_some(seed: u8) {
    for size in [16, 200, 5000] {
        let layout = Layout::from_size_align(size, 16).unwrap();
        // SAFETY: the block is this function's until it gives it back.
        unsafe {
            let block = Heap.alloc(layout);
            block.write_bytes(seed, size);
            std::hint::black_box(block);
            assert!((0..size).all(|at| *block.add(at) == seed));
            Heap.dealloc(block, layout);
        }
    }
    let (name, object) = SLAB.take().unwrap();
    assert_eq!(object.0.swap(u64::from(seed), Ordering::Relaxed), 0, "somebody else has it");
    assert!(SLAB.find(name).is_some());
    object.0.store(0, Ordering::Relaxed);
    SLAB.give_back(name);
}

extern "C" fn handler(_: libc::c_int) {
    use_some(2);
    HANDLED.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn a_handler_finds_a_whole_heap() {
    let every = libc::timeval { tv_sec: 0, tv_usec: 50 };
    let (on, off) = (
        libc::itimerval { it_interval: every, it_value: every },
        // SAFETY: all zero is no time.
        unsafe { std::mem::zeroed::<libc::itimerval>() },
    );
    // SAFETY: the handler uses what the test is about; the timer is stopped below.
    unsafe {
        libc::signal(libc::SIGALRM, handler as *const () as libc::sighandler_t);
        libc::setitimer(libc::ITIMER_REAL, &raw const on, std::ptr::null_mut());
    }
    let began = Instant::now();
    while HANDLED.load(Ordering::Relaxed) < 2000 && began.elapsed() < Duration::from_secs(20) {
        use_some(1);
    }
    // SAFETY: stops the timer; the value is the test's own.
    unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const off, std::ptr::null_mut()) };
    assert!(HANDLED.load(Ordering::Relaxed) >= 100);
}
