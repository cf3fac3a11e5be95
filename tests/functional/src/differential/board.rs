//! The memory through which actors are told what to do, and say what came of it.
//!
//! Neither side makes a call for it that a preloaded library would see: it is mapped, and waited at, by system
//! calls of rustix's own. So what a library does is what the plan makes it do.

use std::fmt::{self, Write};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::thread::futex;

use super::plan::{Actor, PROCESSES, STEPS, Stream, THREADS};

/// Longest plan, as text.
const TEXT: usize = 48 << 10;
/// Longest result, as text.
const LINE: usize = 240;
/// Most descriptors of a plan.
pub const VARS: usize = 96;

/// An actor's place.
#[derive(Debug)]
pub struct Slot {
    /// Its thread, and 0 before it is there and after it has gone.
    pub tid: AtomicI32,
    /// How often it has come.
    pub births: AtomicU32,
    /// The step that it is to do, plus one.
    command: AtomicU32,
    /// The last one that it has taken, in the same way.
    pub taken: AtomicU32,
    /// The one that its signal handlers are to do, in the same way.
    pub handler: AtomicU32,
}

/// What is known of a stream.
#[derive(Debug)]
pub struct Progress {
    /// Bytes that calls said to have sent.
    pub sent: AtomicU64,
    /// Bytes that have been received.
    pub received: AtomicU64,
    /// How much of it is under way depends on the sizes of buffers.
    pub elastic: AtomicU32,
    /// Calls that are sending what may not fit.
    pub senders: AtomicU32,
}

/// What came of a step.
#[derive(Debug)]
struct Outcome {
    state: AtomicU32,
    len: AtomicU32,
    text: [AtomicU8; LINE],
}

/// How far a step is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Its actor has not seen it.
    Waiting,
    /// Its actor is about to make, or in, the call.
    Begun,
    /// Its result is there.
    Done,
}

impl Outcome {
    fn set(&self, line: &Line) {
        copy_in(&line.bytes[..line.len], &self.text);
        self.len.store(u32::try_from(line.len).unwrap_or(0), Ordering::Release);
    }

    fn get(&self) -> String {
        let len = self.len.load(Ordering::Acquire) as usize;
        copy_out(&self.text[..len.min(LINE)])
    }
}

const BEGUN: u32 = 1;
const DONE: u32 = 2;

#[repr(C)]
struct Layout {
    /// Counts what happens.
    bell: AtomicU32,
    ports: [AtomicU32; 16],
    pids: [AtomicI32; PROCESSES],
    slots: [Slot; PROCESSES * THREADS],
    vars: [[AtomicI32; VARS]; PROCESSES],
    streams: [Progress; Stream::COUNT],
    outcomes: [Outcome; STEPS],
    /// What each process has to say about its beginning.
    notes: [Outcome; PROCESSES],
    text_len: AtomicU32,
    text: [AtomicU8; TEXT],
}

/// See the module's description.
pub struct Board {
    layout: NonNull<Layout>,
}

// SAFETY: all that is there is made of atomics.
unsafe impl Send for Board {}
// SAFETY: all that is there is made of atomics, which threads may share.
unsafe impl Sync for Board {}

impl Board {
    /// A board with a plan on it, which ends with its last mapping, and its descriptor.
    ///
    /// # Errors
    /// Those of memfd_create(2), ftruncate(2) and mmap(2), or that the plan is too long.
    pub fn new(plan: &str) -> io::Result<(Self, OwnedFd)> {
        let fd = rustix::fs::memfd_create("differential-board", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&fd, size_of::<Layout>() as u64)?;
        let board = Self::map(&fd)?;
        let layout = board.layout();
        if plan.len() > TEXT {
            return Err(io::Error::other("the plan is too long"));
        }
        copy_in(plan.as_bytes(), &layout.text);
        layout.text_len.store(u32::try_from(plan.len()).unwrap_or(0), Ordering::Relaxed);
        layout.vars.iter().flatten().for_each(|var| var.store(-1, Ordering::Relaxed));
        Ok((board, fd))
    }

    /// The board that another process has made.
    ///
    /// # Errors
    /// Those of open(2) and mmap(2).
    pub fn open(path: &Path) -> io::Result<Self> {
        let fd = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        Self::map(&fd)
    }

    fn map(fd: impl AsFd) -> io::Result<Self> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping, where the kernel likes.
        let base = unsafe {
            rustix::mm::mmap(ptr::null_mut(), size_of::<Layout>(), protection, flags, fd, 0)?
        };
        let layout = NonNull::new(base.cast()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { layout })
    }

    const fn layout(&self) -> &Layout {
        // SAFETY: the mapping is as long as the layout and lives as long as self; all zeroes is valid, and
        // each field consists of atomics.
        unsafe { self.layout.as_ref() }
    }

    /// The plan.
    #[must_use]
    pub fn text(&self) -> String {
        let layout = self.layout();
        let len = layout.text_len.load(Ordering::Relaxed) as usize;
        copy_out(&layout.text[..len.min(TEXT)])
    }

    /// An actor's place.
    #[must_use]
    pub fn slot(&self, actor: Actor) -> &Slot {
        &self.layout().slots[actor.index()]
    }

    /// The pid of a process, and 0 before it is there.
    #[must_use]
    pub fn pid(&self, process: u8) -> &AtomicI32 {
        &self.layout().pids[usize::from(process) % PROCESSES]
    }

    /// The descriptors of a process, in the plan's order.
    #[must_use]
    pub fn vars(&self, process: u8) -> &[AtomicI32; VARS] {
        &self.layout().vars[usize::from(process) % PROCESSES]
    }

    /// The port of a listener.
    #[must_use]
    pub fn port(&self, listener: u8) -> &AtomicU32 {
        let ports = &self.layout().ports;
        &ports[usize::from(listener) % ports.len()]
    }

    /// What is known of a stream.
    #[must_use]
    pub fn stream(&self, stream: Stream) -> &Progress {
        &self.layout().streams[stream.index()]
    }

    /// Tells those who wait for news.
    pub fn ring(&self) {
        let bell = &self.layout().bell;
        bell.fetch_add(1, Ordering::AcqRel);
        // Nobody may be waiting.
        let _woken = futex::wake(bell, futex::Flags::empty(), 64);
    }

    /// How often the bell has rung.
    #[must_use]
    pub fn rings(&self) -> u32 {
        self.layout().bell.load(Ordering::Acquire)
    }

    /// Waits until it has rung more often.
    pub fn wait_for_ring(&self, rings: u32, at_most: Duration) {
        let time = futex::Timespec {
            tv_sec: at_most.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: at_most.subsec_nanos().into(),
        };
        // Whoever waits looks again, however the wait ends.
        let _ended = futex::wait(&self.layout().bell, futex::Flags::empty(), rings, Some(&time));
    }

    /// Has an actor do a step.
    pub fn command(&self, actor: Actor, step: usize) {
        let command = &self.slot(actor).command;
        command.store(u32::try_from(step + 1).unwrap_or(0), Ordering::Release);
        // It may not be waiting yet.
        let _woken = futex::wake(command, futex::Flags::empty(), 1);
    }

    /// Leaves a note about a process's beginning.
    pub fn note(&self, process: u8, line: &Line) {
        self.layout().notes[usize::from(process) % PROCESSES].set(line);
    }

    /// That note.
    #[must_use]
    pub fn note_of(&self, process: u8) -> String {
        self.layout().notes[usize::from(process) % PROCESSES].get()
    }

    /// Waits until all threads of a process are there; false when they do not come.
    #[must_use]
    pub fn wait_for_threads(&self, process: u8, threads: u8) -> bool {
        for _ in 0..2000 {
            let rings = self.rings();
            let missing =
                |thread: u8| self.slot(Actor { process, thread }).tid.load(Ordering::Acquire) == 0;
            if !(0..threads).any(missing) {
                return true;
            }
            self.wait_for_ring(rings, Duration::from_millis(5));
        }
        false
    }

    /// Waits for the step after `last`, which is a value that this has returned, or 0: the new one, from 1 on.
    #[must_use]
    pub fn next_command(&self, actor: Actor, last: u32) -> u32 {
        let command = &self.slot(actor).command;
        loop {
            let now = command.load(Ordering::Acquire);
            if now != last {
                return now;
            }
            // A signal may end it.
            let _ended = futex::wait(command, futex::Flags::empty(), last, None);
        }
    }

    /// How far a step is.
    #[must_use]
    pub fn state(&self, step: usize) -> State {
        match self.layout().outcomes[step].state.load(Ordering::Acquire) {
            0 => State::Waiting,
            BEGUN => State::Begun,
            _ => State::Done,
        }
    }

    /// Says that a step begins.
    pub fn begin(&self, step: usize) {
        self.layout().outcomes[step].state.store(BEGUN, Ordering::Release);
    }

    /// Says what came of it.
    pub fn finish(&self, step: usize, line: &Line) {
        let outcome = &self.layout().outcomes[step];
        outcome.set(line);
        outcome.state.store(DONE, Ordering::Release);
        self.ring();
    }

    /// What came of a step.
    #[must_use]
    pub fn outcome(&self, step: usize) -> String {
        self.layout().outcomes[step].get()
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        // SAFETY: nothing refers to the mapping any more. An error leaves it there.
        let _left = unsafe { rustix::mm::munmap(self.layout.as_ptr().cast(), size_of::<Layout>()) };
    }
}

fn copy_in(bytes: &[u8], to: &[AtomicU8]) {
    for (byte, place) in bytes.iter().zip(to) {
        place.store(*byte, Ordering::Relaxed);
    }
}

fn copy_out(from: &[AtomicU8]) -> String {
    let bytes: Vec<u8> = from.iter().map(|byte| byte.load(Ordering::Relaxed)).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A result as text. It is made in signal handlers, too, and so takes no memory of the heap.
pub struct Line {
    bytes: [u8; LINE],
    len: usize,
}

impl Default for Line {
    fn default() -> Self {
        Self { bytes: [0; LINE], len: 0 }
    }
}

impl Line {
    /// A line that says this.
    #[must_use]
    pub fn of(what: fmt::Arguments<'_>) -> Self {
        let mut line = Self::default();
        line.say(what);
        line
    }

    /// The text.
    #[must_use]
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.len]).unwrap_or_default()
    }

    /// Adds to it; what is too long is cut.
    pub fn say(&mut self, what: fmt::Arguments<'_>) {
        // `write_str` never fails.
        let _ = self.write_fmt(what);
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let n = text.len().min(LINE - self.len);
        self.bytes[self.len..self.len + n].copy_from_slice(&text.as_bytes()[..n]);
        self.len += n;
        Ok(())
    }
}
