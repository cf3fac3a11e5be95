//! What a program has registered by pthread_atfork(3).

use std::cell::RefCell;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use shunt_functional::differential::board::Line;
use shunt_functional::differential::plan::Var;
use shunt_functional::differential::plan::ops::{Inner, Stage};
use shunt_functional::sys;

use super::{calls, descriptors, world};

/// What one of them does.
struct Action {
    stage: Stage,
    what: Inner,
    fd: Var,
}

/// Most of them.
const MOST: usize = 6;

static ACTIONS: [OnceLock<Action>; MOST] = [const { OnceLock::new() }; MOST];
static USED: AtomicUsize = AtomicUsize::new(0);
static REGISTERED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// What those of the last fork have said. A fork's handlers run in the thread that forks.
    static SAID: RefCell<Line> = RefCell::default();
}

/// What the handlers of this thread's last fork have said, on this side of it.
pub fn said() -> Line {
    SAID.take()
}

extern "C" fn prepare() {
    act(Stage::Prepare);
}

extern "C" fn parent() {
    act(Stage::Parent);
}

extern "C" fn child() {
    // What was said before the fork is the parent's to tell.
    let _parents = said();
    act(Stage::Child);
}

/// Adds to what the handlers do.
pub fn register(stage: Stage, what: Inner, fd: Var, line: &mut Line) {
    let place = ACTIONS.get(USED.fetch_add(1, Ordering::Relaxed));
    let added = place.is_some_and(|place| place.set(Action { stage, what, fd }).is_ok());
    let first = !REGISTERED.swap(true, Ordering::Relaxed);
    // SAFETY: functions of this program, which stays where it is.
    let failed =
        first && unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) } != 0;
    line.say(format_args!("{}", if added && !failed { "ok" } else { "no room" }));
}

fn act(stage: Stage) {
    let actions = ACTIONS.iter().filter_map(OnceLock::get);
    for action in actions.filter(|action| action.stage == stage) {
        SAID.with_borrow_mut(|line| {
            line.say(format_args!(" {} ", Inner::name(action.what)));
            perform(action, line);
        });
    }
}

fn perform(action: &Action, line: &mut Line) {
    let fd = world().fd(action.fd);
    let said = |line: &mut Line, n: i64| {
        if n < 0 { super::say_error(line) } else { line.say(format_args!("{n}")) }
    };
    match action.what {
        Inner::Send => {
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            super::bytes::send_few(action.fd, 10, flags, line);
        }
        Inner::Recv => super::bytes::recv_few(action.fd, 100, libc::MSG_DONTWAIT, line),
        Inner::Poll => {
            let mut one = libc::pollfd { fd, events: libc::POLLIN | libc::POLLOUT, revents: 0 };
            // SAFETY: one entry.
            let n = unsafe { libc::poll(&raw mut one, 1, 0) };
            said(line, n.into());
            line.say(format_args!(":{:#x}", one.revents));
        }
        Inner::Epoll => {
            let Ok(epoll) = sys::Epoll::new(4) else { return super::say_error(line) };
            match epoll.control(libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN.cast_unsigned(), 1) {
                Ok(()) => line.say(format_args!("ok")),
                Err(_) => super::say_error(line),
            }
        }
        Inner::Dup => match sys::dup(fd) {
            Ok(copy) => line.say(format_args!("={}", copy.as_raw_fd())),
            Err(_) => super::say_error(line),
        },
        Inner::Connect => match descriptors::connection_to(0) {
            Ok(_) => line.say(format_args!("ok")),
            Err(_) => line.say(format_args!("errno {}", calls::errno())),
        },
    }
}
