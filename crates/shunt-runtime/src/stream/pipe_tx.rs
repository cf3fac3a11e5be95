//! Private memory that is sent with `MSG_ZEROCOPY`: pinned in pipes (vmsplice(2)), from which the receiver copies it once
//! ([`crate::stream::pipe_rx`]), where it would be copied to the ring and out of it else.
//!
//! A pipe keeps the pages as the kernel's own `MSG_ZEROCOPY` does: what the program unmaps, and what it leaves unread when it is
//! killed, is read all the same. process_vm_readv(2), which does with no descriptor, can read only what is there still, and
//! was slower, too (docs/design/zero-copy.md). Who has the pipe could look at what the program writes to the same place later; so
//! pipes are given only to those who could reach into the program without our help.

use core::ptr::NonNull;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64};
use core::time::Duration;

use rustix::fs::OFlags;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::pipe::{PipeFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with};
use shunt_engine::pinning;
use shunt_engine::zerocopy::pipes::{Adopted, Wanted};
use shunt_engine::zerocopy::ports::Scratch;
use shunt_engine::zerocopy::sender::Granting;
use shunt_shm::ring::Span;
use shunt_shm::sync::AtomicU32 as Word;
use shunt_shm::zerocopy::Pinned;
use shunt_sys::fds::{close, reopen};
use shunt_wire::agent::{EndpointId, ExportId, Exported, RegionId};

use crate::activity;
use crate::calls::Which;
use crate::conn::{Ends, Pipes, Sock};
use crate::control::agent_client;
use crate::control::endpoint::Endpoint;
use crate::control::link::Link;
use crate::fds::fd_table::Kind;
use crate::fds::own_fds::{self, OwnFd};
use crate::knobs;
use crate::stream::bytes::Buffers;
use crate::stream::granted::state;
use crate::system::clock;
use crate::system::errno::KeepErrno;
use crate::threads::signals::{SettingUp, Uncancelled};

/// Bytes of a pipe: so many pages, and one for each piece that does not begin with one, are what there is of a ring.
const PIPE: usize = 512 * 1024;

/// Bytes of a pipe as programs know it: one of a user who has too many of them is smaller (pipe(7)).
const USUAL: usize = 64 * 1024;

/// Connections of a process that have pipes: each takes a few descriptors.
const MOST: u32 = 8;

/// Longest wait for a thread that sends.
const PATIENCE: Duration = Duration::from_millis(200);

/// How many have.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// The endpoint as which this process was told that its memory is not for others; 0: it was not.
static REFUSED: AtomicU64 = AtomicU64::new(0);

/// With the lock of the sending direction held.
fn pipes(sock: &Sock) -> Option<&'static Pipes> {
    // SAFETY: made by `Box::into_raw`, and freed with the lock of the sending direction held, as whoever asks for it has.
    unsafe { sock.pipe_tx.load(Acquire).as_ref() }
}

/// The name of the pipes of a connection that this process has, with the lock of the sending direction held.
pub fn own(sock: &Sock) -> Option<ExportId> {
    pipes(sock).map(|pipes| pipes.name)
}

/// The name under which the peer can have the pipes of a connection, which are made if need be. Not with the lock of the
/// direction held: the agent is told of them.
pub fn name(sock: &Sock, granting: &Granting<'_>) -> Option<ExportId> {
    match granting.wanted_pipes(knobs::get().pin, !sock.pipe_tx.load(Acquire).is_null()) {
        Wanted::None => None,
        Wanted::ToBeMade => make(sock, granting),
        Wanted::Named(name) => Some(name),
    }
}

#[cold]
fn make(sock: &Sock, granting: &Granting<'_>) -> Option<ExportId> {
    let pinned = &granting.state.pinned;
    let _setting_up = SettingUp::begin()?;
    let is_one_too_many = || {
        let one_more = |n| (n < MOST).then_some(n + 1);
        COUNT.fetch_update(AcqRel, Relaxed, one_more).is_err()
    };
    let (me, link) = (agent_client::endpoint().ok()?.id, sock.link()?);
    if REFUSED.load(Relaxed) == me || is_one_too_many() {
        pinned.end();
        return None;
    }
    let record = sock.record();
    let generation = record.id.generation.load(Acquire);
    let entry = sock.entry(Kind::Stream);
    let made = open(me, (link.region, record.slot()));
    let lock = sock.lock_tx();
    // Another thread may have closed the connection meanwhile.
    let is_still_it = || {
        core::ptr::eq(record, sock.record())
            && record.id.generation.load(Acquire) == generation
            && sock.is_in_use(entry)
    };
    let Some(pipes) = made else {
        COUNT.fetch_sub(1, AcqRel);
        pinned.end();
        return None;
    };
    let name = pipes.name;
    let keep = || sock.pipe_tx.store(Box::into_raw(Box::new(pipes)), Release);
    let adopted = match !lock.nested() && is_still_it() {
        true => granting.adopt(name, keep),
        false => Adopted::Not,
    };
    match adopted {
        Adopted::Used => return Some(name),
        Adopted::Unused => return None,
        Adopted::Not => {}
    }
    // Another thread was quicker.
    drop(lock);
    COUNT.fetch_sub(1, AcqRel);
    agent_client::unexport(name);
    None
}

/// Makes pipes, and tells the agent of them.
fn open(me: EndpointId, (region, slot): (RegionId, usize)) -> Option<Pipes> {
    let one = || {
        let (output, input) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
        let is_large = fcntl_setpipe_size(&input, PIPE).is_ok_and(|size| size >= PIPE);
        let from = reopen(&output, OFlags::RDONLY | OFlags::NONBLOCK);
        let (input, from) = (own_fds::adopt(input).ok()?, own_fds::adopt(from.ok()?).ok()?);
        Some((Ends { to: input, from }, output)).filter(|_| is_large)
    };
    let _uncancelled = Uncancelled::begin();
    let ((first, one_end), (second, other_end)) = (one()?, one()?);
    // What a user has for pipes is to suffice for the program's own.
    let (probe, _) = pipe_with(PipeFlags::CLOEXEC).ok()?;
    if fcntl_getpipe_size(&probe).is_ok_and(|size| size < USUAL) {
        return None;
    }
    let outputs = [one_end, other_end];
    let fds = outputs.each_ref().map(std::os::fd::AsFd::as_fd);
    let what = Exported::Pipes { region, slot: u32::try_from(slot).unwrap_or(u32::MAX) };
    let told = agent_client::export(what, &fds);
    outputs.into_iter().for_each(close);
    let Ok((name, told_by)) = told else {
        REFUSED.store(me, Relaxed);
        return None;
    };
    Some(Pipes { name, told_by, ends: [first, second] })
}

/// True when this process has told the agent of the pipes that are used. With the lock of the sending direction held.
pub fn are_told_of(sock: &Sock) -> bool {
    let (me, name) = (Endpoint::current().map(|me| me.id), state(sock).pinned.name.load(Relaxed));
    pipes(sock).is_some_and(|pipes| Some(pipes.told_by) == me && pipes.name == name)
}

/// The connection is gone from this process. A thread that is still in a call keeps the pipes, for good: their numbers must
/// not become other descriptors' under it.
pub fn release(sock: &'static Sock) {
    if sock.pipe_tx.load(Acquire).is_null() {
        return;
    }
    let _uncancelled = Uncancelled::begin();
    let quiet = sock.lock_within(Which::Tx, PATIENCE);
    let pipes = sock.pipe_tx.swap(core::ptr::null_mut(), AcqRel);
    if quiet.is_none() || pipes.is_null() {
        return;
    }
    // SAFETY: made by `Box::into_raw`; nobody else has it any more.
    let pipes = unsafe { Box::from_raw(pipes) };
    drop(quiet);
    COUNT.fetch_sub(1, AcqRel);
    // What ends with the process, or was made before a fork, is the agent's own business.
    if activity::active()
        && Endpoint::current().is_some_and(|me| me.id == pipes.told_by)
        && let Some(_setting_up) = SettingUp::begin()
    {
        agent_client::unexport(pipes.name);
    }
}

/// Pins up to `len` bytes in a pipe: how many they were. With the lock of the direction held.
pub fn put(sock: &Sock, lane: usize, address: usize, len: usize) -> Option<usize> {
    let to = pipes(sock)?.ends[lane].to.raw();
    let iov =
        libc::iovec { iov_base: core::ptr::with_exposed_provenance_mut(address), iov_len: len };
    let _keep = KeepErrno::new();
    let _uncancelled = Uncancelled::begin();
    let begun = clock::now();
    // SAFETY: the kernel looks at the program's memory itself, and never writes to it.
    let n = unsafe { libc::vmsplice(to, &raw const iov, 1, libc::SPLICE_F_NONBLOCK) };
    let n = usize::try_from(n).ok().filter(|n| *n > 0)?;
    learn(&state(sock).pinned.costs[1], n, begun);
    Some(n)
}

/// Does a copy to the ring of `len` bytes, [`pinning::REST`] at the least; and notes how long it takes, where that is of interest.
#[inline]
pub fn noting_a_copy(sock: &Sock, len: usize, copy: impl FnOnce()) {
    if pipes(sock).is_some() {
        let Pinned { turn, costs: [copied, _], .. } = &state(sock).pinned;
        timed_now_and_then(copied, turn.load(Relaxed), len, copy);
    } else {
        copy();
    }
}

/// Notes how long a copy takes, if it is the turn of one to be timed.
pub fn timed_now_and_then(cost: &Word, turn: u32, len: usize, copy: impl FnOnce()) {
    if pinning::is_timed(turn, cost.load(Relaxed)) {
        timed(cost, len, copy);
    } else {
        copy();
    }
}

/// Notes how long something takes that is done with so many bytes.
pub fn timed<T>(cost: &Word, len: usize, what: impl FnOnce() -> T) -> T {
    let begun = clock::now();
    let result = what();
    learn(cost, len, begun);
    result
}

/// Something was done with so many bytes since then.
fn learn(cost: &Word, len: usize, begun: u64) {
    pinning::learn(cost, clock::now().saturating_sub(begun), len);
}

/// Memory of no allocator's: this may be a signal handler above one.
struct Room(NonNull<u8>);

impl Room {
    fn new() -> Option<Self> {
        let flags = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping.
        let at = unsafe { mmap_anonymous(core::ptr::null_mut(), PIPE, flags, MapFlags::PRIVATE) };
        NonNull::new(at.ok()?.cast()).map(Self)
    }

    /// Reads what is left in a pipe, which has no more than this holds.
    fn read(&mut self, from: &OwnFd) -> usize {
        // SAFETY: so many bytes of our own, which are zero at first.
        let room = unsafe { core::slice::from_raw_parts_mut(self.0.as_ptr(), PIPE) };
        let mut n = 0;
        while let Ok(more) = rustix::io::read(from.borrow(), &mut room[n..])
            && more > 0
        {
            n += more;
        }
        n
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, of which nothing is left.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), PIPE) };
    }
}

/// What reads back from the pipes of a connection what the receiver has left there.
struct Left {
    pipes: &'static Pipes,
    room: Room,
    /// The ring to which it goes.
    ring: NonNull<u8>,
}

/// `None` when the pipes are a relative's, or no memory is left. With the lock of the direction held.
pub fn left(sock: &Sock, link: &Link) -> Option<impl Scratch + use<>> {
    let record = sock.record();
    let ring = link.view().buffer(record.slot(), record.side().other());
    Some(Left { pipes: pipes(sock)?, room: Room::new()?, ring })
}

impl Scratch for Left {
    fn read(&mut self, lane: usize) -> usize {
        self.room.read(&self.pipes.ends[lane].from)
    }

    fn put(&self, from: usize, place: Span) {
        // A place that is longer than what was read would be the engine's mistake.
        let Some(iov_len) = PIPE.checked_sub(from).map(|most| place.len().min(most)) else {
            return;
        };
        let iov = libc::iovec { iov_base: self.room.0.as_ptr().wrapping_add(from).cast(), iov_len };
        // SAFETY: so many bytes are in the room, and only read; the place was reserved for them.
        unsafe { Buffers::one(&iov).copy_in(0, self.ring, place.split(iov_len).0) };
    }
}
