//! Inside of `libshunt.so` libc's `syscall` is the library's hook. Here it is this test's.

use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::c_long;
use shunt_sys::{memory, seqpacket, sockinfo};

/// Calls of the kinds that this crate makes by itself.
static SEEN: AtomicUsize = AtomicUsize::new(0);

/// Stands before libc's function for the whole program, as the hook does.
#[unsafe(no_mangle)]
extern "C" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    type Signature = extern "C" fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long;
    if [libc::SYS_getsockopt, libc::SYS_setsockopt, libc::SYS_rt_sigprocmask].contains(&number) {
        SEEN.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: libc has a function of this name, which takes words and returns one.
    let next: Signature =
        unsafe { std::mem::transmute(libc::dlsym(libc::RTLD_NEXT, c"syscall".as_ptr())) };
    next(number, a, b, c, d, e, f)
}

fn errno() -> &'static mut i32 {
    // SAFETY: this thread's own word, which nobody else borrows.
    unsafe { &mut *libc::__errno_location() }
}

#[test]
fn the_kernel_is_entered_past_libc_and_errno_is_the_programs() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (one, _other) = seqpacket::pair().unwrap();
    let mut word = 1_u64;
    let mut info = [0_u64; 32];
    SEEN.store(0, Ordering::Relaxed);
    *errno() = libc::EDOM;

    // Three that read, one that writes, and what the kernel refuses.
    assert_eq!(seqpacket::peer_cred(&one).unwrap().pid.cast_unsigned(), std::process::id());
    assert!(!sockinfo::has_error_queue(&client));
    assert!(sockinfo::tcp_info(&client, &mut info).unwrap() > 64);
    assert_eq!(info[0].to_ne_bytes()[0], 1, "established");
    sockinfo::set_syn_count(&client, 3);
    assert_eq!(sockinfo::syn_count(&client), Some(3));
    assert_eq!(sockinfo::syn_count(&one), None);
    assert_eq!(sockinfo::tcp_info(&one, &mut info), Err(rustix::io::Errno::OPNOTSUPP));
    assert!(memory::is_writable((&raw mut word).addr()) && !memory::is_writable(4096));
    assert!(memory::is_readable((&raw const word).addr(), 8) && !memory::is_readable(4096, 8));

    assert_eq!((*errno(), SEEN.load(Ordering::Relaxed)), (libc::EDOM, 0));
}
