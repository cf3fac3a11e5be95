//! Private memory that is sent with `MSG_ZEROCOPY`: pinned in pipes (vmsplice(2)), from which the receiver copies it once
//! ([`crate::stream::pulls`]), where it would be copied to the ring and out of it else.
//!
//! A pipe keeps the pages as the kernel's own `MSG_ZEROCOPY` does: what the program unmaps, and what it leaves unread when it is
//! killed, is read all the same. process_vm_readv(2), which does with no descriptor, can read only what is there still, and
//! was slower, too (ARCHITECTURE.md). Who has the pipe could look at what the program writes to the same place later; so
//! pipes are given only to those who could reach into the program without our help.

use core::ptr::NonNull;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64};
use core::time::Duration;

use rustix::fs::OFlags;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::pipe::{PipeFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with};
use shunt_engine::pinning::{self, Costs};
use shunt_shm::grants::Lane;
use shunt_shm::region::{DECLINED, Section};
use shunt_shm::ring::Span;
use shunt_shm::sync::{AtomicU32 as Word, store_load_fence};
use shunt_shm::zerocopy::{Open, Pinned};
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
use crate::knobs::{self, Pin};
use crate::stream::bytes::Buffers;
use crate::stream::granted::{self, Unknown, state};
use crate::system::clock;
use crate::system::errno::KeepErrno;
use crate::threads::signals::{SettingUp, Uncancelled};

/// Bytes of a call below which it was not measured to pay.
const LEAST: usize = 64 * 1024;

/// Most bytes that are pinned at once: the receiver copies them while the next ones are pinned.
pub const PIECE: usize = 128 * 1024;

/// With less of a piece left, or less room for it, a copy is cheaper.
pub const REST: usize = 16 * 1024;

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
    unsafe { sock.pins.load(Acquire).as_ref() }
}

/// The bytes of a private buffer that are to be pinned now, if any are.
pub fn piece(sock: &Sock, theirs: &Section, len: usize) -> Result<Option<usize>, Unknown> {
    let pinned = &state(sock).pinned;
    let least = match knobs::get().pin {
        Pin::Never => return Ok(None),
        Pin::Auto => LEAST,
        Pin::From(least) => least,
    };
    if len < least.max(1) || !pinned.may_be_used() {
        return Ok(None);
    }
    let name = pinned.name.load(Acquire);
    let are_not_here = if name == 0 { is_shared(sock) } else { pipes(sock).is_none() };
    if are_not_here {
        return Ok(None);
    }
    let accepted = theirs.ctl.accepted.load(Acquire);
    if name == 0 || !state(sock).granted.is_known(name, accepted) {
        if name != 0 && accepted == name | DECLINED {
            pinned.end();
        }
        return Err(Unknown);
    }
    let turn = pinned.turn.fetch_add(1, Relaxed);
    let receiver = Costs::from_word(theirs.ctl.costs.load(Relaxed));
    let pays = || pinning::is_pinned(turn, costs(&pinned.costs), receiver);
    let is_pinned = knobs::get().pin != Pin::Auto || pays();
    Ok(is_pinned.then_some(len.min(PIECE)))
}

/// True for a connection of which a relative would not have the pipes if they were made now: it could not take back what is
/// pinned in them, and would have to end the connection where the peer leaves the ring. Who is forked later has them.
fn is_shared(sock: &Sock) -> bool {
    sock.record().id.holders.count() > 1
}

/// Fewer bytes are not pinned, of a buffer that is.
pub fn least() -> usize {
    match knobs::get().pin {
        Pin::From(least) => least.min(REST),
        Pin::Auto | Pin::Never => REST,
    }
}

/// The name under which the peer can have the pipes of a connection, which are made if need be. Not with the lock of the
/// direction held: the agent is told of them.
pub fn name(sock: &Sock) -> Option<ExportId> {
    let pinned = &state(sock).pinned;
    if !pinned.may_be_used() || knobs::get().pin == Pin::Never {
        return None;
    }
    match pinned.name.load(Acquire) {
        0 if is_shared(sock) => None,
        0 => make(sock, pinned),
        name => (!sock.pins.load(Acquire).is_null()).then_some(name),
    }
}

#[cold]
fn make(sock: &Sock, pinned: &Pinned) -> Option<ExportId> {
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
    let is_first = |pipes: &Pipes| {
        let name = pipes.name;
        !lock.nested()
            && is_still_it()
            && pinned.name.compare_exchange(0, name, AcqRel, Relaxed).is_ok()
    };
    let Some(pipes) = made else {
        COUNT.fetch_sub(1, AcqRel);
        pinned.end();
        return None;
    };
    let name = pipes.name;
    if is_first(&pipes) {
        sock.pins.store(Box::into_raw(Box::new(pipes)), Release);
        // A child that is counted after this look has got them.
        store_load_fence();
        if is_shared(sock) {
            pinned.end();
            return None;
        }
        return Some(name);
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
    if sock.pins.load(Acquire).is_null() {
        return;
    }
    let _uncancelled = Uncancelled::begin();
    let quiet = sock.lock_within(Which::Tx, PATIENCE);
    let pipes = sock.pins.swap(core::ptr::null_mut(), AcqRel);
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

/// Pins up to `len` bytes: where they are then, and how many they were. With the lock of the direction held.
pub fn pin(sock: &Sock, address: usize, len: usize) -> Option<(ExportId, Lane, usize)> {
    let pinned = &state(sock).pinned;
    let pipes = pipes(sock).filter(|pipes| pipes.name == pinned.name.load(Relaxed))?;
    let lane = pinned.lane();
    let to = pipes.ends[lane.index].to.raw();
    let iov =
        libc::iovec { iov_base: core::ptr::with_exposed_provenance_mut(address), iov_len: len };
    let _keep = KeepErrno::new();
    let _uncancelled = Uncancelled::begin();
    let put = || {
        // SAFETY: the kernel looks at the program's memory itself, and never writes to it.
        let n = unsafe { libc::vmsplice(to, &raw const iov, 1, libc::SPLICE_F_NONBLOCK) };
        usize::try_from(n).ok().filter(|n| *n > 0)
    };
    let begun = clock::now();
    let n = pinned.put(lane, put)?;
    learn(&pinned.costs[1], n, begun);
    Some((pipes.name, lane, n))
}

/// Does a copy to the ring of `len` bytes; and notes how long it takes, where that is of interest.
#[inline]
pub fn noting_a_copy(sock: &Sock, len: usize, copy: impl FnOnce()) {
    if len >= REST && pipes(sock).is_some() {
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
    if len >= REST {
        let nanos = clock::now().saturating_sub(begun);
        cost.store(pinning::learnt(cost.load(Relaxed), nanos, len as u64), Relaxed);
    }
}

/// What is known by [`timed`].
pub fn costs([copied, pinned]: &[Word; 2]) -> Costs {
    Costs { copied: copied.load(Relaxed), pinned: pinned.load(Relaxed) }
}

/// True for what is granted from pipes.
pub fn is_pinned(sock: &Sock, open: &Open) -> bool {
    open.region == state(sock).pinned.name.load(Relaxed)
}

/// Memory of no allocator's: this may be a signal handler above one.
struct Scratch(NonNull<u8>);

impl Scratch {
    fn new() -> Option<Self> {
        let flags = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping.
        let at = unsafe { mmap_anonymous(core::ptr::null_mut(), PIPE, flags, MapFlags::PRIVATE) };
        NonNull::new(at.ok()?.cast()).map(Self)
    }

    /// Reads what is left in a pipe, which has no more than this holds.
    fn read(&mut self, from: &OwnFd) -> &[u8] {
        // SAFETY: so many bytes of our own, which are zero at first.
        let room = unsafe { core::slice::from_raw_parts_mut(self.0.as_ptr(), PIPE) };
        let mut n = 0;
        while let Ok(more) = rustix::io::read(from.borrow(), &mut room[n..])
            && more > 0
        {
            n += more;
        }
        &room[..n]
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, of which nothing is left.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), PIPE) };
    }
}

/// Reads back what the receiver has left of what is pinned, and puts it to its places in the ring. False when the pipes are a
/// relative's, or it is not known what is in them. Else, once the entries say so, nothing is pinned any more on the connection
/// ([`Pinned::end`]). With the lock of the direction held.
pub fn take_back(sock: &'static Sock, link: &'static Link, opens: &[Open]) -> bool {
    let pinned = &state(sock).pinned;
    let (Some(pipes), Some(mut scratch)) = (pipes(sock), Scratch::new()) else { return false };
    if !pinned.begin_to_take() {
        return false;
    }
    let record = sock.record();
    let (slot, receiver) = (record.slot(), record.side().other());
    let (entries, ring) = (link.view().grants(slot, receiver), link.view().buffer(slot, receiver));
    opens.iter().for_each(|open| entries.begin_to_take(open.number));
    for (lane, ends) in pipes.ends.iter().enumerate() {
        let left = scratch.read(&ends.from);
        let first = pinned.first_of(lane, left.len() as u64);
        for open in opens {
            let Lane { index, at } = Lane::from_word(open.from);
            // What is not there any more the receiver has read.
            let read = first.saturating_sub(at).min(open.len);
            let behind = (at + read).saturating_sub(first);
            let (Ok(skip), Ok(from), Ok(n)) =
                (usize::try_from(read), usize::try_from(behind), usize::try_from(open.len - read))
            else {
                continue;
            };
            let Some(bytes) = left.get(from..).map(|left| &left[..n.min(left.len())]) else {
                continue;
            };
            if index == lane && !bytes.is_empty() {
                let (_, place) = granted::place_of(sock, open).split(skip);
                let (place, _): (Span, Span) = place.split(bytes.len());
                let iov = libc::iovec {
                    iov_base: bytes.as_ptr().cast_mut().cast(),
                    iov_len: bytes.len(),
                };
                // SAFETY: the bytes are there, and only read; the span was reserved for them.
                unsafe { Buffers::one(&iov).copy_in(0, ring, place) };
            }
        }
    }
    true
}
