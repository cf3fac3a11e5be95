//! What a program is told of the signal handlers that it has installed, and how they are called.

use std::io;
use std::mem::{MaybeUninit, zeroed};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use libc::{c_int, c_void, sighandler_t, siginfo_t};
use shunt_functional::sys;

use crate::probe::{Pair, Probe, warm_up};

const SIGNAL: c_int = libc::SIGUSR2;

static RUNS: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];
/// What the handler that takes all arguments was given: the signal, its code, its sender is this process, a context.
static GIVEN: [AtomicI32; 4] = [const { AtomicI32::new(0) }; 4];

extern "C" fn one(_: c_int) {
    RUNS[0].fetch_add(1, Ordering::Relaxed);
}

extern "C" fn two(_: c_int) {
    RUNS[1].fetch_add(1, Ordering::Relaxed);
}

extern "C" fn three(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    RUNS[2].fetch_add(1, Ordering::Relaxed);
    // SAFETY: the kernel's.
    let (code, pid) = unsafe { ((*info).si_code, (*info).si_pid()) };
    // SAFETY: no arguments.
    let is_own = pid == unsafe { libc::getpid() };
    let given = [signal, code, is_own.into(), (!context.is_null()).into()];
    GIVEN.iter().zip(given).for_each(|(at, value)| at.store(value, Ordering::Relaxed));
}

fn plain(handler: extern "C" fn(c_int)) -> sighandler_t {
    handler as *const () as sighandler_t
}

fn full() -> sighandler_t {
    three as *const () as sighandler_t
}

fn name(handler: sighandler_t) -> &'static str {
    match handler {
        libc::SIG_DFL => "default",
        libc::SIG_IGN => "ignored",
        libc::SIG_ERR => "error",
        _ if handler == plain(one) => "one",
        _ if handler == plain(two) => "two",
        _ if handler == full() => "three",
        _ => "unknown",
    }
}

/// The handler, its flags, and what it blocks.
fn show(action: &libc::sigaction) -> String {
    // SAFETY: the set is libc's answer, or all zero.
    let blocks: Vec<c_int> = (1..=64)
        .filter(|signal| unsafe { libc::sigismember(&raw const action.sa_mask, *signal) == 1 })
        .collect();
    // The kernel's own bit (SA_RESTORER) is of no interest.
    format!("{} {:#x} {blocks:?}", name(action.sa_sigaction), action.sa_flags & !0x0400_0000)
}

/// Installs; what was there before, or the error.
fn install(signal: c_int, handler: sighandler_t, flags: c_int, blocks: &[c_int]) -> String {
    // SAFETY: all zero is a valid action.
    let (mut new, mut old): (libc::sigaction, libc::sigaction) = unsafe { (zeroed(), zeroed()) };
    new.sa_sigaction = handler;
    new.sa_flags = flags;
    for blocked in blocks {
        // SAFETY: the set is valid.
        unsafe { libc::sigaddset(&raw mut new.sa_mask, *blocked) };
    }
    // SAFETY: both are actions.
    match unsafe { libc::sigaction(signal, &raw const new, &raw mut old) } {
        0 => show(&old),
        _ => sys::errno_name(&io::Error::last_os_error()),
    }
}

fn query(signal: c_int) -> String {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: only asks; an action may be all zero.
    match unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) } {
        // SAFETY: just written.
        0 => show(unsafe { action.assume_init_ref() }),
        _ => sys::errno_name(&io::Error::last_os_error()),
    }
}

fn raise() -> String {
    RUNS.iter().for_each(|runs| runs.store(0, Ordering::Relaxed));
    // SAFETY: a handler is installed.
    unsafe { libc::raise(SIGNAL) };
    format!("{:?}", RUNS.each_ref().map(|runs| runs.load(Ordering::Relaxed)))
}

unsafe extern "C" {
    fn sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t;
    fn bsd_signal(signal: c_int, handler: sighandler_t) -> sighandler_t;
    fn sigset(signal: c_int, handler: sighandler_t) -> sighandler_t;
    fn siginterrupt(signal: c_int, ends: c_int) -> c_int;
}

/// The checks.
pub fn run(p: &mut Probe) -> io::Result<()> {
    // So that the library is at work.
    let pairs: Vec<Pair> = (0..4).map(|_| p.pair()).collect::<io::Result<_>>()?;
    pairs.iter().try_for_each(|pair| warm_up(pair.c(), pair.s()))?;
    p.say("the first handler", install(SIGNAL, plain(one), 0, &[]));
    p.say("it runs", raise());
    p.say("it is there", query(SIGNAL));
    let flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_NODEFER;
    p.say("one of all arguments", install(SIGNAL, full(), flags, &[libc::SIGALRM, libc::SIGHUP]));
    p.say("it runs", raise());
    p.say("it is given", format!("{:?}", GIVEN.each_ref().map(|at| at.load(Ordering::Relaxed))));
    p.say("it is there", query(SIGNAL));
    p.say("ignored", install(SIGNAL, libc::SIG_IGN, 0, &[]));
    p.say("nothing runs", raise());
    p.say("a second one", install(SIGNAL, plain(two), libc::SA_RESETHAND, &[]));
    p.say("it runs", raise());
    p.say("it is gone", query(SIGNAL));
    old_functions(p);
    for signal in [0, libc::SIGKILL, libc::SIGSTOP, 32, 65, -1] {
        p.say(&format!("signal {signal}"), install(signal, plain(one), 0, &[]));
    }
    p.say("a fault's", install(libc::SIGBUS, plain(one), 0, &[]));
    p.say("it is there", query(libc::SIGBUS));
    p.say("and goes", install(libc::SIGBUS, libc::SIG_DFL, 0, &[]));
    // One structure for both.
    install(SIGNAL, plain(one), 0, &[]);
    // SAFETY: all zero is a valid action.
    let mut both: libc::sigaction = unsafe { zeroed() };
    both.sa_sigaction = plain(two);
    // SAFETY: an action.
    unsafe { libc::sigaction(SIGNAL, &raw const both, &raw mut both) };
    p.say("old in the place of new", show(&both));
    p.say("new", query(SIGNAL));
    // SAFETY: as libc's: neither is wanted.
    p.say("nothing is asked", unsafe { libc::sigaction(SIGNAL, null_mut(), null_mut()) });
    p.say("in a child", in_a_child()?);
    sys::reset_signal(SIGNAL)
}

/// signal(3) and its kin.
fn old_functions(p: &mut Probe) {
    type Function = unsafe extern "C" fn(c_int, sighandler_t) -> sighandler_t;
    let functions: [(&str, Function); 4] = [
        ("signal", libc::signal),
        ("bsd_signal", bsd_signal),
        ("sysv_signal", sysv_signal),
        ("sigset", sigset),
    ];
    for (function, call) in functions {
        for handler in [plain(one), plain(two), libc::SIG_IGN, plain(one)] {
            // SAFETY: handlers of this program.
            p.say(function, name(unsafe { call(SIGNAL, handler) }));
            p.say("it is there", query(SIGNAL));
            p.say("it runs", raise());
            p.say("after it", query(SIGNAL));
        }
    }
    for ends in [1, 0] {
        // SAFETY: numbers.
        p.say("siginterrupt", unsafe { siginterrupt(SIGNAL, ends) });
        p.say("it is there", query(SIGNAL));
        p.say("it runs", raise());
    }
    // SAFETY: a handler of this program.
    p.say("of no signal", name(unsafe { libc::signal(99, plain(one)) }));
}

/// A child has its parent's handlers.
fn in_a_child() -> io::Result<bool> {
    match sys::fork()? {
        sys::Forked::Child => sys::exit_now(i32::from(raise() != "[0, 1, 0]")),
        sys::Forked::Parent(pid) => Ok(sys::wait_for(pid)? == 0),
    }
}
