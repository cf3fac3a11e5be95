//! Signals: those in whose handlers steps are taken, and those that are counted.

use std::cell::Cell;
use std::io;
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::c_int;
use shunt_functional::differential::board::Line;
use shunt_functional::differential::plan::{Level, Op, Plan, Signal};
use shunt_functional::sys::{self, KeepErrno};

use super::{me, say_done, take, threads, world};

thread_local! {
    /// A call of this thread has sent it SIGPIPE.
    static PIPE: Cell<bool> = const { Cell::new(false) };
}

/// How often SIGIO has come.
static SIGIO: AtomicU32 = AtomicU32::new(0);

fn take_handlers_step() {
    let _keep = KeepErrno::now();
    take(world().board.slot(me()).handler.swap(0, Ordering::AcqRel), false);
}

extern "C" fn on_step(_: c_int) {
    take_handlers_step();
}

extern "C" fn on_jump(_: c_int) {
    take_handlers_step();
    threads::jump();
}

extern "C" fn on_pipe(_: c_int) {
    PIPE.set(true);
}

extern "C" fn on_io(_: c_int) {
    SIGIO.fetch_add(1, Ordering::Relaxed);
}

extern "C" fn on_alarm(_: c_int) {}

fn handle(signal: c_int, handler: extern "C" fn(c_int), flags: c_int) -> io::Result<()> {
    // SAFETY: sigaction is plain data; all zeroes is an empty mask without flags.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = handler as *const () as libc::sighandler_t;
    action.sa_flags = flags;
    // SAFETY: the handlers make calls that are safe there, or touch what is their own.
    match unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sets the handlers that a plan wants.
pub fn install(plan: &Plan) -> io::Result<()> {
    for signal in Signal::ALL {
        if plan.steps().any(|step| step.level == Level::Handler(signal)) {
            let (handler, flags): (extern "C" fn(c_int), _) = match signal {
                Signal::Interrupts => (on_step, 0),
                Signal::Restarts => (on_step, libc::SA_RESTART),
                Signal::Jumps => (on_jump, libc::SA_RESTART),
            };
            handle(signal.number(), handler, flags)?;
        }
    }
    handle(libc::SIGPIPE, on_pipe, libc::SA_RESTART)?;
    if plan.steps().any(|step| matches!(step.op, Op::Sigio {})) {
        handle(libc::SIGIO, on_io, libc::SA_RESTART)?;
    }
    if plan.steps().any(|step| matches!(step.op, Op::Timer { .. })) {
        handle(libc::SIGALRM, on_alarm, 0)?;
    }
    Ok(())
}

/// Adds what came to a call beside its result.
pub fn say(line: &mut Line) {
    if PIPE.replace(false) {
        line.say(format_args!(" SIGPIPE"));
    }
}

/// Does one of these operations.
pub fn perform(op: &Op, line: &mut Line) {
    match *op {
        Op::Sigio {} => {
            let came = SIGIO.swap(0, Ordering::Relaxed) > 0;
            line.say(format_args!("{}", if came { "some" } else { "none" }));
        }
        Op::Timer { micros } => say_done(line, set_timer(micros)),
        _ => {}
    }
}

/// SIGALRM for this thread alone.
fn set_timer(micros: u32) -> c_int {
    thread_local! {
        static TIMER: Cell<Option<libc::timer_t>> = const { Cell::new(None) };
    }
    // SAFETY: the event is plain data and says which thread is told; the timer and the times are on this stack.
    unsafe {
        let mut timer: libc::timer_t = ptr::null_mut();
        match TIMER.get() {
            Some(known) => timer = known,
            None => {
                let mut event: libc::sigevent = mem::zeroed();
                event.sigev_notify = libc::SIGEV_THREAD_ID;
                event.sigev_signo = libc::SIGALRM;
                event.sigev_notify_thread_id = sys::tid();
                if libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer) < 0 {
                    return -1;
                }
                TIMER.set(Some(timer));
            }
        }
        let time = libc::timespec {
            tv_sec: (micros / 1_000_000).into(),
            tv_nsec: (micros % 1_000_000 * 1000).into(),
        };
        let times = libc::itimerspec { it_interval: time, it_value: time };
        libc::timer_settime(timer, 0, &raw const times, ptr::null_mut())
    }
}
