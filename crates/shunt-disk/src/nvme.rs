//! A namespace of an NVMe/TCP target as a disk.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::time::Duration;

use shunt_nvme::wire::Status;
use shunt_nvme_host::{
    Completion, Data, Error, Failure, MAX_RANGES, Namespace, PathStatus, Queue, Range, Refused,
    Request as Command, Segment, Segments, Subsystem, Watch,
};
use tracing::warn;

use crate::metrics::PathState;
use crate::port::{
    Buffers, Completed, Disk, Extent, Geometry, Interest, Lane, Op, Outcome, Request, Size,
    Traffic, Wait,
};

/// Most blocks of a command: NLB has 16 bits.
const MAX_BLOCKS: u64 = 1 << 16;

/// The disk.
#[derive(Debug)]
pub struct NvmeDisk {
    subsystem: Subsystem,
    namespace: Namespace,
    /// As it was at first.
    geometry: Geometry,
    /// As the subsystem had it last.
    size: Size,
    watch: Watch,
}

/// Why a namespace is no disk.
#[derive(Debug)]
pub enum OpenError {
    /// The subsystem has none of this number.
    Missing(u32),
    /// Its blocks are larger than a guest can be told of.
    BlockSize(u32),
    /// It cannot be heard of changes.
    Watch(io::Error),
}

impl std::fmt::Display for OpenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Missing(nsid) => write!(
                f,
                "the subsystem has no namespace {nsid} for this host; name another --nsid"
            ),
            Self::BlockSize(size) => write!(f, "blocks of {size} bytes are too large for a guest"),
            Self::Watch(e) => write!(f, "changes of the disk cannot be waited for: {e}"),
        }
    }
}

impl std::error::Error for OpenError {}

impl NvmeDisk {
    /// A namespace of a subsystem.
    ///
    /// # Errors
    /// Why it is no disk.
    pub fn open(subsystem: Subsystem, nsid: u32, read_only: bool) -> Result<Self, OpenError> {
        // From before the look at it.
        let watch = subsystem.watch().map_err(OpenError::Watch)?;
        let namespace = subsystem.namespace(nsid).ok_or(OpenError::Missing(nsid))?;
        if u64::from(namespace.block_size) > u64::from(subsystem.max_transfer()).min(1 << 16) {
            return Err(OpenError::BlockSize(namespace.block_size));
        }
        let attributes = subsystem.paths().into_iter().find_map(|path| path.attributes);
        let mut serial = [0; 20];
        if let Some(attributes) = &attributes {
            let text = attributes.serial.bytes().take(serial.len());
            serial.iter_mut().zip(text).for_each(|(to, from)| *to = from);
        }
        let geometry = Geometry {
            blocks: namespace.blocks,
            block_size: namespace.block_size,
            read_only: read_only || namespace.read_only,
            serial,
            nguid: namespace.nguid,
            uuid: namespace.uuid,
            compare: attributes.as_ref().is_some_and(|known| known.can_compare),
            discard: attributes.as_ref().is_some_and(|known| known.can_discard),
            write_zeroes: attributes.as_ref().is_some_and(|known| known.can_write_zeroes),
        };
        let size = Size::new(namespace.blocks);
        Ok(Self { subsystem, namespace, geometry, size, watch })
    }
}

/// How the ways to a subsystem are.
#[must_use]
pub fn paths(subsystem: &Subsystem) -> Vec<PathState> {
    let state = |path: PathStatus| PathState {
        address: path.address.to_string(),
        is_up: path.is_up,
        connects: path.connects,
    };
    subsystem.paths().into_iter().map(state).collect()
}

impl Disk for NvmeDisk {
    fn geometry(&self) -> Geometry {
        // One that is gone, or has become another one, is as it was: its requests fail.
        let same = |now: &Namespace| now.block_size == self.namespace.block_size;
        if let Some(now) = self.subsystem.namespace(self.namespace.nsid).filter(same) {
            self.size.set(now.blocks);
        }
        Geometry { blocks: self.size.get(), ..self.geometry.clone() }
    }

    fn changes(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }

    fn lane(&self) -> io::Result<Box<dyn Lane>> {
        let queue = self.subsystem.queue().map_err(|e| match e {
            Error::Local(e) => e,
            other => io::Error::other(other),
        })?;
        Ok(Box::new(NvmeLane {
            limit: self.subsystem.max_transfer(),
            namespace: self.namespace.clone(),
            queue,
            jobs: Vec::new(),
            free: Vec::new(),
            backlog: VecDeque::new(),
            done: Vec::new(),
            spare: Vec::new(),
            unable: Vec::new(),
        }))
    }
}

/// Part of a request, in a command of its own.
#[derive(Debug)]
enum Part {
    Read { block: u64, blocks: u32, from: u64 },
    Write { block: u64, blocks: u32, from: u64 },
    Compare { block: u64, blocks: u32, from: u64 },
    WriteZeroes { block: u64, blocks: u32, deallocate: bool },
    Flush,
    Discard(Vec<Range>),
}

/// A request that is under way.
#[derive(Debug)]
struct Job {
    tag: usize,
    data: Buffers,
    outcome: Outcome,
    /// Why it has failed, if the target has said that.
    why: Option<Status>,
    /// Commands that are not over, and parts that have none yet.
    left: usize,
}

struct NvmeLane {
    /// Goes first when the lane does: the buffers of its commands are in `jobs`.
    queue: Queue,
    namespace: Namespace,
    /// Most bytes of a command.
    limit: u32,
    jobs: Vec<Option<Job>>,
    free: Vec<usize>,
    /// Parts that wait for room in the queue.
    backlog: VecDeque<(usize, Part)>,
    done: Vec<Completion>,
    /// Lists of segments that were used before.
    spare: Vec<Segments>,
    /// Jobs with commands that the queue did not take.
    unable: Vec<usize>,
}

impl NvmeLane {
    fn keep(&mut self, job: Job) -> usize {
        if let Some(index) = self.free.pop() {
            self.jobs[index] = Some(job);
            return index;
        }
        self.jobs.push(Some(job));
        self.jobs.len() - 1
    }

    /// Splits blocks into commands.
    fn split(
        &mut self,
        index: usize,
        extent: Extent,
        most: u64,
        mut part: impl FnMut(u64, u32) -> Part,
    ) {
        let most = most.clamp(1, MAX_BLOCKS);
        let mut at = 0;
        while at < extent.blocks {
            let blocks = (extent.blocks - at).min(most);
            at += blocks;
            let first = extent.block + at - blocks;
            // At most 2^16.
            self.add(index, part(first, u32::try_from(blocks).unwrap_or(1)));
        }
    }

    /// Adds a command to a job: to the queue, where that has room and nothing else waits for it.
    fn add(&mut self, index: usize, part: Part) {
        if let Some(job) = self.jobs[index].as_mut() {
            job.left += 1;
        }
        if self.backlog.is_empty() && self.queue.room() > 0 {
            let (command, data) = self.command(index, &part);
            self.send(index, command, data);
        } else {
            self.backlog.push_back((index, part));
        }
    }

    /// Hands parts to the queue while it has room.
    fn start(&mut self) {
        while self.queue.room() > 0 {
            let Some((index, part)) = self.backlog.pop_front() else { return };
            let (command, data) = self.command(index, &part);
            self.send(index, command, data);
        }
    }

    fn send(&mut self, index: usize, command: Command, data: Data) {
        if let Err(Refused { why, data }) = self.queue.submit(command, data, index as u64) {
            warn!("a command was not taken: {why:?}");
            self.recycle(data);
            self.unable.push(index);
        }
    }

    fn recycle(&mut self, data: Data) {
        if let Data::Segments(segments) = data {
            self.spare.push(segments);
        }
    }

    fn command(&mut self, index: usize, part: &Part) -> (Command, Data) {
        let disk = &self.namespace;
        let (command, from, blocks) = match *part {
            Part::Flush => return (disk.flush(), Data::None),
            Part::Discard(ref ranges) => return disk.discard(ranges),
            Part::WriteZeroes { block, blocks, deallocate } => {
                return (disk.write_zeroes(block, blocks, deallocate), Data::None);
            }
            Part::Read { block, blocks, from } => (disk.read(block, blocks), from, blocks),
            Part::Write { block, blocks, from } => (disk.write(block, blocks), from, blocks),
            Part::Compare { block, blocks, from } => (disk.compare(block, blocks), from, blocks),
        };
        let len = u64::from(blocks) * u64::from(disk.block_size);
        let mut pieces = self.spare.pop().map_or_else(Vec::new, Segments::into_inner);
        pieces.clear();
        if let Some(Some(job)) = self.jobs.get(index) {
            cut(&job.data, from, len, &mut pieces);
        }
        // SAFETY: the pieces are of the job's `Buffers`, whose memory stays mapped while they live. The job keeps them until
        // all of its commands are over (`settle`), and longer than the queue, which is dropped before the jobs. Guests'
        // memory is mapped to be written.
        (command, unsafe { Segments::new(pieces) }.into())
    }

    /// Sends and receives what can be without waiting.
    fn turn(&mut self, completed: &mut Vec<Completed>) {
        self.start();
        if let Err(e) = self.queue.poll(&mut self.done, Some(Duration::ZERO)) {
            warn!("the target's connections cannot be looked at: {e}");
        }
        let mut done = std::mem::take(&mut self.done);
        for Completion { token, data, result } in done.drain(..) {
            self.recycle(data);
            let Ok(index) = usize::try_from(token) else { continue };
            let (outcome, why) = match result {
                Ok(_) => (Outcome::Done, None),
                Err(Failure::Status(Status::INVALID_OPCODE)) => (Outcome::Unsupported, None),
                // That is an answer.
                Err(Failure::Status(why)) if why.code() == Status::COMPARE_FAILURE.code() => {
                    (Outcome::Failed, Some(why))
                }
                Err(failure) => {
                    warn!("a command has failed: {failure}");
                    let why = if let Failure::Status(why) = failure { Some(why) } else { None };
                    (Outcome::Failed, why)
                }
            };
            self.settle(index, outcome, why, completed);
        }
        self.done = done;
        for index in std::mem::take(&mut self.unable) {
            self.settle(index, Outcome::Failed, None, completed);
        }
    }

    /// A command of a job is over.
    fn settle(
        &mut self,
        index: usize,
        outcome: Outcome,
        why: Option<Status>,
        completed: &mut Vec<Completed>,
    ) {
        let Some(slot) = self.jobs.get_mut(index) else { return };
        let Some(job) = slot else { return };
        job.left -= 1;
        if outcome != Outcome::Done {
            job.outcome = outcome;
            job.why = job.why.or(why);
        }
        if job.left == 0
            && let Some(Job { tag, data, outcome, why, .. }) = slot.take()
        {
            self.free.push(index);
            completed.push(Completed { tag, outcome, why, data });
        }
    }
}

/// The pieces of a part of the buffers.
fn cut(data: &Buffers, from: u64, len: u64, pieces: &mut Vec<Segment>) {
    // A request is far shorter than addresses are long.
    let as_len = |bytes| usize::try_from(bytes).unwrap_or(usize::MAX);
    let (mut skip, mut left) = (as_len(from), as_len(len));
    for segment in data.segments() {
        let there = segment.len;
        let passed = skip.min(there);
        skip -= passed;
        let part = (there - passed).min(left);
        left -= part;
        if let Some(at) = NonNull::new(segment.address.wrapping_add(passed))
            && part > 0
        {
            pieces.push(Segment { at, len: part });
        }
    }
}

impl Lane for NvmeLane {
    fn has_room(&self) -> bool {
        self.backlog.is_empty() && self.queue.room() > 0
    }

    fn submit(&mut self, request: Request) {
        let Request { op, data, tag } = request;
        let len = data.len();
        let size = u64::from(self.namespace.block_size);
        let index = self.keep(Job { tag, data, outcome: Outcome::Done, why: None, left: 0 });
        let (blocks, most) = (len / size, u64::from(self.limit) / size);
        match op {
            Op::Read { block: start } => {
                self.split(index, Extent { block: start, blocks }, most, |block, blocks| {
                    Part::Read { block, blocks, from: (block - start) * size }
                });
            }
            Op::Write { block: start } => {
                self.split(index, Extent { block: start, blocks }, most, |block, blocks| {
                    Part::Write { block, blocks, from: (block - start) * size }
                });
            }
            Op::Compare { block: start } => {
                self.split(index, Extent { block: start, blocks }, most, |block, blocks| {
                    Part::Compare { block, blocks, from: (block - start) * size }
                });
            }
            Op::WriteZeroes { extents, deallocate } => {
                for extent in extents {
                    self.split(index, extent, MAX_BLOCKS, |block, blocks| Part::WriteZeroes {
                        block,
                        blocks,
                        deallocate,
                    });
                }
            }
            Op::Flush => self.add(index, Part::Flush),
            Op::Discard(extents) => {
                let range = |extent: &Extent| Range {
                    start: extent.block,
                    // `config::MAX_RANGE` is far below.
                    blocks: u32::try_from(extent.blocks).unwrap_or(u32::MAX),
                };
                debug_assert!(extents.len() <= MAX_RANGES);
                self.add(index, Part::Discard(extents.iter().map(range).collect()));
            }
        }
    }

    fn poll(&mut self, completed: &mut Vec<Completed>) {
        self.turn(completed);
        // What waited for room is sent now, not when something else comes.
        while !self.backlog.is_empty() && self.queue.room() > 0 {
            self.turn(completed);
        }
    }

    fn wait(&self, wait: &mut Wait) {
        let fd = self.queue.fd().as_raw_fd();
        wait.interests.push(Interest { fd, generation: 0, writable: false });
    }

    fn traffic(&self) -> Traffic {
        let shunt_nvme_host::Traffic { offered, copied, repeated } = self.queue.traffic();
        Traffic { offered, copied, repeated }
    }
}
