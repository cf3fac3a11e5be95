//! A process of a plan: its threads wait for their steps at the board, and take them.

mod atfork;
mod bytes;
mod calls;
mod descriptors;
mod moving;
mod options;
mod processes;
mod ready;
mod scratch;
mod seen;
mod serve;
mod signals;
mod threads;

use std::cell::Cell;
use std::ffi::OsString;
use std::io;
use std::os::fd::RawFd;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU8, Ordering};

use shunt_functional::differential::board::{Board, Line, VARS};
use shunt_functional::differential::plan::{Actor, Op, Plan, Step, Var};
use shunt_functional::sys;

/// What all threads of a process know.
struct World {
    board: Board,
    /// Where the board is.
    at: OsString,
    plan: Plan,
    steps: Vec<Step>,
    vars: Vec<Var>,
}

static WORLD: OnceLock<World> = OnceLock::new();
/// Which process of the plan this is.
static PROCESS: AtomicU8 = AtomicU8::new(0);

thread_local! {
    /// Which thread of it.
    static THREAD: Cell<u8> = const { Cell::new(0) };
}

fn world() -> &'static World {
    WORLD.get().expect("it is made before the first actor is")
}

/// Which actor this thread is.
fn me() -> Actor {
    Actor { process: PROCESS.load(Ordering::Relaxed), thread: THREAD.get() }
}

impl World {
    /// How many threads a process has.
    fn threads(&self, process: u8) -> u8 {
        self.plan.processes.get(usize::from(process)).copied().unwrap_or(1)
    }

    /// Where this process keeps a descriptor.
    fn place(&self, var: Var) -> &AtomicI32 {
        let n = self.vars.binary_search(&var).unwrap_or(0);
        &self.board.vars(me().process)[n % VARS]
    }

    /// A descriptor's number, also when it has been closed.
    fn fd(&self, var: Var) -> RawFd {
        self.place(var).load(Ordering::Relaxed)
    }
}

/// Becomes a process of the plan on a board; with a step that is done then.
pub fn run(board: &Path, process: u8, resumed: Option<usize>) -> io::Result<()> {
    let at = board.as_os_str().to_owned();
    let board = Board::open(board)?;
    let plan: Plan = board.text().parse().map_err(io::Error::other)?;
    let (steps, vars) = (plan.steps().cloned().collect(), plan.vars());
    if vars.len() > VARS {
        return Err(io::Error::other("too many descriptors"));
    }
    sys::raise_descriptor_limit(20_000)?;
    signals::install(&plan)?;
    PROCESS.store(process, Ordering::Relaxed);
    let _first = WORLD.set(World { board, at, plan, steps, vars });
    begin(process);
    if let Some(step) = resumed {
        world().board.finish(step, &Line::of(format_args!("ok")));
    }
    take_steps(0)
}

/// Starts all threads of a process but the first, which is this one.
fn begin(process: u8) {
    let world = world();
    PROCESS.store(process, Ordering::Relaxed);
    world.board.pid(process).store(sys::pid(), Ordering::Release);
    arrive(0);
    let threads = world.threads(process);
    for thread in 1..threads {
        threads::start(thread);
    }
    // Whoever waits for this process would hear of it.
    let _all = world.board.wait_for_threads(process, threads);
}

/// This thread is an actor from now on.
fn arrive(thread: u8) {
    THREAD.set(thread);
    let board = &world().board;
    let slot = board.slot(me());
    slot.births.fetch_add(1, Ordering::AcqRel);
    slot.tid.store(sys::tid(), Ordering::Release);
    board.ring();
}

fn take_steps(thread: u8) -> ! {
    THREAD.set(thread);
    let (world, actor) = (world(), me());
    // Nothing is asked of it before it has arrived, but of its predecessor in another program.
    let mut last = world.board.slot(actor).taken.load(Ordering::Relaxed);
    loop {
        last = world.board.next_command(actor, last);
        world.board.slot(actor).taken.store(last, Ordering::Relaxed);
        take(last, true);
    }
}

/// Takes a step, by its number from 1 on; in a signal handler, or else as the base of such.
fn take(number: u32, base: bool) {
    let world = world();
    let Some(index) = usize::try_from(number).ok().and_then(|n| n.checked_sub(1)) else { return };
    let Some(step) = world.steps.get(index) else { return };
    let mut line = Line::default();
    world.board.begin(index);
    if base {
        if !threads::protected(|| perform(index, &step.op, &mut line)) {
            line = Line::of(format_args!("jumped"));
        }
    } else {
        perform(index, &step.op, &mut line);
    }
    signals::say(&mut line);
    world.board.finish(index, &line);
}

/// Does it, and says what came of it.
fn perform(index: usize, op: &Op, line: &mut Line) {
    let world = world();
    let mut unset = false;
    let made = descriptors::made_by(op);
    op.vars(&mut |var| unset |= !made.contains(&Some(var)) && world.fd(var) < 0);
    if unset {
        return line.say(format_args!("unset"));
    }
    match op {
        Op::Listen { .. }
        | Op::Connect { .. }
        | Op::Accept { .. }
        | Op::Close { .. }
        | Op::Dup { .. }
        | Op::Dup2 { .. }
        | Op::Open { .. }
        | Op::Pipe { .. }
        | Op::Pair { .. }
        | Op::Epoll { .. } => descriptors::perform(op, line),
        Op::Ping { .. }
        | Op::Pong { .. }
        | Op::Send { .. }
        | Op::Recv { .. }
        | Op::SendAll { .. }
        | Op::RecvAll { .. }
        | Op::Fill { .. }
        | Op::Drain { .. } => bytes::perform(op, line),
        Op::Splice { .. } | Op::SpliceAll { .. } | Op::Sendfile { .. } => moving::perform(op, line),
        Op::Poll { .. } | Op::Select { .. } | Op::EpollCtl { .. } | Op::EpollWait { .. } => {
            ready::perform(op, line);
        }
        Op::Shutdown { .. }
        | Op::SetOption { .. }
        | Op::GetOption { .. }
        | Op::Nonblock { .. }
        | Op::Available { .. }
        | Op::Unacked { .. }
        | Op::Async { .. } => options::perform(op, line),
        Op::Sigio {} | Op::Timer { .. } => signals::perform(op, line),
        Op::Fork { .. }
        | Op::Exec {}
        | Op::Vfork { .. }
        | Op::Run { .. }
        | Op::Kill { .. }
        | Op::Exit { .. }
        | Op::Dwell { .. } => processes::perform(index, op, line),
        Op::Pass { .. } | Op::Take { .. } => descriptors::perform(op, line),
        Op::AtFork { stage, what, fd } => atfork::register(*stage, *what, *fd, line),
        Op::Cancel { thread } => threads::cancel(*thread, line),
        Op::Serve { listener, connections } => serve::serve(*listener, *connections, line),
        Op::Visit { to, connections, messages, by } => {
            serve::visit(*to, *connections, *messages, *by, line);
        }
    }
}

/// What a call returned, or the error's name.
fn say(line: &mut Line, ret: libc::c_long) {
    if ret < 0 { say_error(line) } else { line.say(format_args!("{ret}")) }
}

/// The same for a call that returns nothing.
fn say_done(line: &mut Line, ret: libc::c_int) {
    if ret < 0 { say_error(line) } else { line.say(format_args!("ok")) }
}

/// The name of the error that a call has just left.
fn say_error(line: &mut Line) {
    let code = calls::errno();
    match sys::errno_text(code) {
        Some(name) => line.say(format_args!("{name}")),
        None => line.say(format_args!("errno {code}")),
    }
}
