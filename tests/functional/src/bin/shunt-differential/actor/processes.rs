//! Processes.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use rustix::thread::{NanosleepRelativeResult, Timespec, nanosleep};
use shunt_functional::differential::board::{Board, Line};
use shunt_functional::differential::plan::ops::{ForkBy, RunBy};
use shunt_functional::differential::plan::{Actor, Op, THREADS, Var};
use shunt_functional::sys::{self, Forked};

use super::{atfork, begin, me, say_error, take_steps, world};

/// Does one of these operations.
pub fn perform(index: usize, op: &Op, line: &mut Line) {
    match *op {
        Op::Fork { child, by } => fork(child, by, line),
        Op::Exec {} => exec(index, line),
        Op::Vfork { fd } => vfork(fd, line),
        Op::Run { by } => run(by, line),
        Op::Kill { process } => {
            let process = u8::try_from(process).unwrap_or(0);
            let pid = world().board.pid(process).load(Acquire);
            // 0 would be this process and its relatives.
            let killed = pid > 0 && sys::kill(pid, libc::SIGKILL).is_ok();
            line.say(format_args!("{}", if killed { "ok" } else { "nobody" }));
        }
        Op::Exit { code } => std::process::exit(code.cast_signed()),
        Op::Dwell { millis } => {
            sleep(millis);
            line.say(format_args!("done"));
        }
        _ => {}
    }
}

/// Sleeps, through signals, and without a call that a library sees.
pub fn sleep(millis: u32) {
    let mut time =
        Timespec { tv_sec: (millis / 1000).into(), tv_nsec: (millis % 1000 * 1_000_000).into() };
    while let NanosleepRelativeResult::Interrupted(left) = nanosleep(&time) {
        time = left;
    }
}

fn fork(child: u32, by: ForkBy, line: &mut Line) {
    let (world, process) = (world(), u8::try_from(child).unwrap_or(0));
    // What the child has is what its parent has now.
    let board = &world.board;
    for (from, to) in board.vars(me().process).iter().zip(board.vars(process)) {
        to.store(from.load(Relaxed), Relaxed);
    }
    let forked = match by {
        ForkBy::Fork => sys::fork(),
        ForkBy::Raw => sys::fork_raw(),
    };
    match forked {
        Ok(Forked::Child) => {
            board.note(process, &atfork::said());
            begin(process);
            take_steps(0)
        }
        Ok(Forked::Parent(_)) => {
            let came = board.wait_for_threads(process, world.threads(process));
            line.say(format_args!("{}", if came { "ok" } else { "the child does not come" }));
            line.say(format_args!("{}", atfork::said().text()));
            say_note(board, process, line);
        }
        Err(_) => say_error(line),
    }
}

fn say_note(board: &Board, process: u8, line: &mut Line) {
    let note = board.note_of(process);
    if !note.is_empty() {
        line.say(format_args!("; child:{note}"));
    }
}

/// The step is done when the new program has come.
fn exec(index: usize, line: &mut Line) {
    let (world, process) = (world(), me().process);
    let text = |n: usize| CString::new(n.to_string()).unwrap_or_default();
    let at = CString::new(world.at.as_bytes()).unwrap_or_default();
    let args = [
        c"shunt-differential".into(),
        c"act".into(),
        at,
        text(usize::from(process)),
        c"--resumed".into(),
        text(index),
    ];
    let mut pointers = args.each_ref().map(|arg| arg.as_ptr()).to_vec();
    pointers.push(ptr::null());
    for thread in 0..THREADS {
        let thread = u8::try_from(thread).unwrap_or(0);
        world.board.slot(Actor { process, thread }).tid.store(0, Release);
    }
    // SAFETY: the arguments are C strings, and a null pointer ends them.
    unsafe { libc::execv(c"/proc/self/exe".as_ptr(), pointers.as_ptr()) };
    say_error(line);
}

fn vfork(fd: Var, line: &mut Line) {
    let ended = sys::close_in_vfork(world().fd(fd)).and_then(sys::wait_for);
    match ended {
        Ok(status) => line.say(format_args!("{status}")),
        Err(_) => say_error(line),
    }
}

fn run(by: RunBy, line: &mut Line) {
    match by {
        RunBy::System => line.say(format_args!("{}", sys::system(c"exit 3"))),
        RunBy::Popen => match sys::popen(c"echo here") {
            Ok(text) => line.say(format_args!("{}", String::from_utf8_lossy(&text).trim())),
            Err(_) => say_error(line),
        },
        RunBy::Spawn => {
            let mut pid = 0;
            let args = [c"true".as_ptr().cast_mut(), ptr::null_mut()];
            let no_environment = [ptr::null_mut()];
            let path = c"/bin/true".as_ptr();
            // SAFETY: C strings, and null pointers that end them.
            let code = unsafe {
                let environment = no_environment.as_ptr();
                let (actions, attributes) = (ptr::null(), ptr::null());
                libc::posix_spawn(
                    &raw mut pid,
                    path,
                    actions,
                    attributes,
                    args.as_ptr(),
                    environment,
                )
            };
            match (code, sys::wait_for(pid)) {
                (0, Ok(status)) => line.say(format_args!("{status}")),
                _ => line.say(format_args!("not started")),
            }
        }
    }
}
