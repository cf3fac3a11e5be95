//! sendfile(2) and splice(2) while signals come: nothing is lost, handlers may make such calls
//! themselves, and may leave those that they interrupted for good.

use std::cell::UnsafeCell;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicIsize, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use libc::{c_int, ucontext_t};
use shunt_functional::sys;

use crate::probe::{Pair, Probe, drain, fill, settle, show};
use crate::signals::{install, interrupted, nothing};

/// The checks.
pub fn run(p: &mut Probe) -> io::Result<()> {
    out_of_a_pipe(p)?;
    out_of_a_file(p)?;
    into_a_pipe(p)?;
    restarted(p)?;
    while_others_work(p)
}

const SIGNAL: c_int = libc::SIGUSR1;

/// A connection into which nothing goes any more, and how much is in it.
fn full(p: &Probe) -> io::Result<(Pair, usize)> {
    let pair = p.pair()?;
    let sent = fill(pair.c())?;
    Ok((pair, sent))
}

/// A call that waits for room is interrupted, unless the connection's buffers have grown.
fn ends(text: &str) -> bool {
    text == "EINTR" || text.parse::<usize>().is_ok()
}

/// Bytes that the kernel or the library has not taken stay in the pipe.
fn out_of_a_pipe(p: &Probe) -> io::Result<()> {
    install(SIGNAL, nothing, 0)?;
    let (pair, sent) = full(p)?;
    let (read, write) = sys::pipe()?;
    sys::write(write.as_raw_fd(), &[4; 40_000])?;
    let mut moved = 0;
    for _ in 0..3 {
        let splice = || sys::splice(read.as_raw_fd(), pair.c(), 40_000, 0);
        let mut left = 40_000 - moved;
        let text = interrupted(SIGNAL, 5, || {}, || splice().inspect(|n| left -= n));
        p.say("splice into a full connection", ends(&text));
        moved = 40_000 - left;
        p.say("left in the pipe", usize::try_from(sys::fionread(read.as_raw_fd())?) == Ok(left));
    }
    p.say("nothing is lost", drain(pair.s())? == sent + moved);
    sys::reset_signal(SIGNAL)
}

/// More than any connection takes while nobody reads: neither its ring nor the kernel's buffers.
const LARGE: usize = 32 << 20;

fn large_file() -> io::Result<OwnedFd> {
    let file = sys::memfd(c"interrupted")?;
    let bytes: Vec<u8> = (0..LARGE).map(|n: usize| (n ^ (n >> 8)).to_le_bytes()[0]).collect();
    sys::pwrite_all(file.as_raw_fd(), &bytes)?;
    Ok(file)
}

/// The offset says how much was sent.
fn out_of_a_file(p: &Probe) -> io::Result<()> {
    install(SIGNAL, nothing, 0)?;
    let file = large_file()?;
    let pair = p.pair()?;
    let mut at = 0;
    let n = {
        let mut send = || sys::sendfile_from(pair.c(), file.as_raw_fd(), Some(&mut at), LARGE);
        let mut sent = 0;
        let text = interrupted(SIGNAL, 5, || {}, || send().inspect(|n| sent = *n).map(|_| 0));
        p.say("sendfile is interrupted", text);
        sent
    };
    p.say("after a part", n > 10_000 && n < LARGE);
    p.say("the offset", usize::try_from(at) == Ok(n));
    p.say("what arrives", drain(pair.s())? == n);
    let (pair, _) = full(p)?;
    let mut at = 7;
    let send = || sys::sendfile_from(pair.c(), file.as_raw_fd(), Some(&mut at), 10);
    p.say("into a full connection", ends(&interrupted(SIGNAL, 5, || {}, send)));
    p.say("the offset", at == 7 || at == 17);
    sys::reset_signal(SIGNAL)
}

/// Bytes that the pipe has not taken stay in the connection.
fn into_a_pipe(p: &Probe) -> io::Result<()> {
    install(SIGNAL, nothing, 0)?;
    let pair = p.pair()?;
    let (read, write) = sys::pipe()?;
    let splice = || sys::splice(pair.s(), write.as_raw_fd(), 100, 0);
    p.say("splice from nothing", interrupted(SIGNAL, 5, || {}, splice));
    sys::write(write.as_raw_fd(), &[3; 64 << 10])?;
    sys::write(pair.c(), b"0123456789")?;
    settle();
    p.say("splice into a full pipe", interrupted(SIGNAL, 5, || {}, splice));
    p.result("left in the connection", drain(pair.s()));
    p.result("in the pipe", sys::fionread(read.as_raw_fd()));
    let (read, _write) = sys::pipe()?;
    let splice = || sys::splice(read.as_raw_fd(), pair.s(), 100, 0);
    p.say("splice out of an empty pipe", interrupted(SIGNAL, 5, || {}, splice));
    sys::reset_signal(SIGNAL)
}

/// Calls that go on after a handler with `SA_RESTART`.
fn restarted(p: &Probe) -> io::Result<()> {
    install(SIGNAL, nothing, libc::SA_RESTART)?;
    let pair = p.pair()?;
    let (own, peer) = (pair.s(), pair.c());
    let (read, write) = sys::pipe()?;
    let (read, write) = (read.as_raw_fd(), write.as_raw_fd());
    let send = || drop(sys::write(peer, b"abc"));
    let text = interrupted(SIGNAL, 3, send, || sys::splice(own, write, 100, 0));
    p.say("splice from nothing", text);
    sys::read(read, &mut [0; 100])?;
    let put = || drop(sys::write(write, b"abcd"));
    p.say("out of an empty pipe", interrupted(SIGNAL, 3, put, || sys::splice(read, own, 100, 0)));
    sys::write(write, &vec![3; 64 << 10])?;
    let empty = || drop(sys::read(read, &mut [0; 64 << 10]));
    sys::write(peer, b"abcde")?;
    settle();
    p.say("into a full pipe", interrupted(SIGNAL, 3, empty, || sys::splice(own, write, 100, 0)));
    sys::reset_signal(SIGNAL)
}

/// What the handlers use, and what came of it.
static FILE: AtomicI32 = AtomicI32::new(-1);
static PIPE: [AtomicI32; 2] = [const { AtomicI32::new(-1) }; 2];
static OTHER: AtomicI32 = AtomicI32::new(-1);
static RESULTS: [AtomicIsize; 3] = [const { AtomicIsize::new(0) }; 3];
static DONE: AtomicUsize = AtomicUsize::new(0);

/// Sends a part of a file on another connection, and moves it on from there by a pipe.
extern "C" fn work(signal: c_int) {
    let _keep = sys::KeepErrno::now();
    if DONE.fetch_add(1, Ordering::Relaxed) == 0 {
        let (file, other) = (FILE.load(Ordering::Relaxed), OTHER.load(Ordering::Relaxed));
        let [read, write] = PIPE.each_ref().map(|end| end.load(Ordering::Relaxed));
        let say = |n: usize, result: io::Result<usize>| {
            let result = result.map_or(-1, usize::cast_signed);
            RESULTS[n].store(result, Ordering::Relaxed);
        };
        say(0, sys::sendfile_from(other, file, Some(&mut 0), 5000));
        let _ = sys::write(write, b"by a pipe");
        say(1, sys::splice(read, other, 100, 0));
        say(2, sys::send(other, b"by send", 0));
    }
    nothing(signal);
}

/// A handler makes such calls on another connection while one of them waits.
fn while_others_work(p: &Probe) -> io::Result<()> {
    install(SIGNAL, work, 0)?;
    let file = large_file()?;
    FILE.store(file.as_raw_fd(), Ordering::Relaxed);
    let (read, write) = sys::pipe()?;
    PIPE[0].store(read.as_raw_fd(), Ordering::Relaxed);
    PIPE[1].store(write.as_raw_fd(), Ordering::Relaxed);
    let (empty, _writer) = sys::pipe()?;
    let (_reader, into) = sys::pipe()?;
    let (full, _) = full(p)?;
    let silent = p.pair()?;
    let calls: [(&str, &dyn Fn() -> io::Result<usize>); 4] = [
        ("sendfile", &|| sys::sendfile_from(full.c(), file.as_raw_fd(), Some(&mut 0), LARGE)),
        ("splice from a connection", &|| sys::splice(silent.s(), into.as_raw_fd(), 100, 0)),
        ("splice from a pipe", &|| sys::splice(empty.as_raw_fd(), silent.c(), 100, 0)),
        ("recv", &|| sys::recv(silent.s(), &mut [0; 10], 0, false)),
    ];
    for (name, call) in calls {
        let other = p.pair()?;
        OTHER.store(other.c(), Ordering::Relaxed);
        DONE.store(0, Ordering::Relaxed);
        // Of how much goes into a connection that seemed to be full nothing is said.
        let end = interrupted(SIGNAL, 5, || {}, || call().map(|_| 0));
        p.say(&format!("{name}: interrupted"), end == "EINTR" || end == "0");
        let results = RESULTS.each_ref().map(|n| n.swap(0, Ordering::Relaxed));
        p.say(&format!("{name}: the handler's calls"), format!("{results:?}"));
        settle();
        p.result(&format!("{name}: arrives"), drain(other.s()));
    }
    sys::reset_signal(SIGNAL)
}

/// Where a handler goes instead of back.
struct Way(UnsafeCell<MaybeUninit<ucontext_t>>);
// SAFETY: the one thread that is interrupted uses it.
unsafe impl Sync for Way {}
static BACK: Way = Way(UnsafeCell::new(MaybeUninit::uninit()));

extern "C" fn leave(_: c_int) {
    // SAFETY: `leave_in_the_middle` has filled it in, and its stack is still there.
    unsafe { libc::setcontext(BACK.0.get().cast()) };
}

/// What is to be left.
type Call<'a> = &'a dyn Fn() -> io::Result<usize>;
struct Job(UnsafeCell<Option<Call<'static>>>);
// SAFETY: set and used by one thread, with handlers above it.
unsafe impl Sync for Job {}
static JOB: Job = Job(UnsafeCell::new(None));

extern "C" fn body() {
    // SAFETY: `leave_in_the_middle` has set it, and waits.
    if let Some(call) = unsafe { *JOB.0.get() } {
        let result = show(call());
        println!("it was not left: {result}");
    }
    // SAFETY: `leave_in_the_middle` has filled it in, and its stack is still there.
    unsafe { libc::setcontext(BACK.0.get().cast()) };
}

/// True while a thread of this process sleeps in the kernel.
fn sleeps(thread: libc::pid_t) -> bool {
    let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'))
}

/// Does the call on another stack, which is left, as by siglongjmp(3), once it waits.
fn leave_in_the_middle(call: Call<'_>) -> io::Result<()> {
    const STACK: usize = 256 << 10;
    install(SIGNAL, leave, 0)?;
    let mut stack = vec![0_u128; STACK / 16];
    let mut there = MaybeUninit::<ucontext_t>::zeroed();
    // SAFETY: cannot fail.
    let (me, thread) = unsafe { (libc::gettid(), libc::pthread_self()) };
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut seen = 0;
            while seen < 20 {
                seen = if sleeps(me) { seen + 1 } else { 0 };
                thread::sleep(Duration::from_millis(1));
            }
            // SAFETY: the thread waits for this one.
            unsafe { libc::pthread_kill(thread, SIGNAL) };
        });
        // SAFETY: the other stack, and what the call uses, outlive it; nobody else changes
        // contexts.
        unsafe {
            *JOB.0.get() = Some(std::mem::transmute::<Call<'_>, Call<'static>>(call));
            libc::getcontext(there.as_mut_ptr());
            let context = there.assume_init_mut();
            context.uc_stack.ss_sp = stack.as_mut_ptr().cast();
            context.uc_stack.ss_size = STACK;
            libc::makecontext(context, body, 0);
            libc::swapcontext(BACK.0.get().cast(), context);
            *JOB.0.get() = None;
        }
    });
    sys::reset_signal(SIGNAL)
}

/// After a call was left nothing of it is in the way of others.
pub fn left(p: &mut Probe) -> io::Result<()> {
    let file = large_file()?;
    let (empty, _writer) = sys::pipe()?;
    let (reader, into) = sys::pipe()?;
    sys::write(into.as_raw_fd(), &[3; 64 << 10])?;
    let (full, _) = full(p)?;
    let silent = p.pair()?;
    sys::write(silent.c(), b"not to be lost")?;
    let quiet = p.pair()?;
    let block = vec![1; LARGE];
    let calls: [(&str, Call<'_>); 7] = [
        ("sendfile", &|| sys::sendfile_from(full.c(), file.as_raw_fd(), Some(&mut 0), LARGE)),
        ("splice from a connection", &|| sys::splice(quiet.s(), into.as_raw_fd(), 100, 0)),
        ("splice into a full pipe", &|| sys::splice(silent.s(), into.as_raw_fd(), 100, 0)),
        ("splice from a pipe", &|| sys::splice(empty.as_raw_fd(), quiet.c(), 100, 0)),
        ("recv", &|| sys::recv(quiet.s(), &mut [0; 10], 0, false)),
        ("send", &|| sys::send(full.c(), &block, 0)),
        ("sendfile again", &|| sys::sendfile_from(full.c(), file.as_raw_fd(), Some(&mut 0), LARGE)),
    ];
    for (name, call) in calls {
        leave_in_the_middle(call)?;
        works_still(p, name, file.as_raw_fd(), &quiet)?;
    }
    let mut bytes = [0; 20];
    let n = sys::read(silent.s(), &mut bytes)?;
    p.say("what was there", String::from_utf8_lossy(&bytes[..n]));
    p.result("in the pipe", sys::fionread(reader.as_raw_fd()));
    p.say("the full one can be emptied", drain(full.s())? > 10_000);
    works_still(p, "then", file.as_raw_fd(), &full)
}

/// All that moves bytes, on a connection of before, and on a new one.
fn works_still(p: &Probe, name: &str, file: RawFd, before: &Pair) -> io::Result<()> {
    let new = p.pair()?;
    for pair in [before, &new] {
        let (read, write) = sys::pipe()?;
        sys::write(write.as_raw_fd(), b"piped")?;
        let sent = [
            sys::sendfile_from(pair.c(), file, Some(&mut 0), 1000),
            sys::splice(read.as_raw_fd(), pair.c(), 100, 0),
            sys::write(pair.c(), b"written"),
        ];
        let mut got = [0; 1000];
        let back = [
            sys::recv(pair.s(), &mut got, libc::MSG_WAITALL, false),
            sys::splice(pair.s(), write.as_raw_fd(), 5, 0),
            sys::recv(pair.s(), &mut got[..7], libc::MSG_WAITALL, false),
        ];
        let all = sent.into_iter().chain(back).map(show).collect::<Vec<_>>().join(" ");
        p.say(&format!("after {name}"), all);
    }
    Ok(())
}
