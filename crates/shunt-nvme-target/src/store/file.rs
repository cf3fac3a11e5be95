//! A store in a file, or on a block device.

use std::fs::{File, OpenOptions};
use std::io;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{FallocateFlags, FlockOperation, fallocate, fdatasync, flock};
use rustix::io::Errno;
use tracing::warn;

use super::pool::Pool;
use super::{
    BlockSize, Blocks, Done, Error, Geometry, Mailbox, Outcome, Request, Store, Submitted, checked,
    device, error,
};
use crate::memory::{Memory, Piece};

/// Where the kernel has no shorter way, zeroes are written in pieces of this length; so are blocks that are verified.
const PIECE: usize = 256 << 10;

/// How a file is to be opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Opening {
    /// Its path.
    pub path: PathBuf,
    /// How long its blocks are.
    pub block: BlockSize,
    /// Bytes of the store; `None`: all that the file has.
    pub size: Option<u64>,
    /// Make the file, or make it longer, where `size` says so.
    pub create: bool,
    /// Past the page cache (`O_DIRECT`).
    pub direct: bool,
    /// Nothing is to be written.
    pub read_only: bool,
    /// Threads that wait for it.
    pub threads: NonZeroUsize,
}

/// See the module's description.
#[derive(Debug)]
pub struct FileStore {
    backing: Arc<Backing>,
    pool: Pool,
}

#[derive(Debug)]
struct Backing {
    file: File,
    path: PathBuf,
    block: BlockSize,
    blocks: AtomicU64,
    is_device: bool,
    create: bool,
    read_only: bool,
    /// Held by who compares and writes.
    exchange: Mutex<()>,
}

impl FileStore {
    /// Opens it. No other process that asks gets it meanwhile.
    ///
    /// # Errors
    /// Why it cannot be had, and what to do, for people.
    pub fn open(opening: &Opening) -> Result<Self, String> {
        let path = opening.path.display();
        let file = open(opening).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => format!(
                "there is no {path}: make it (truncate -s SIZE {path}), or say `create = true` and a `size`"
            ),
            io::ErrorKind::PermissionDenied => {
                format!("{path} cannot be opened: {e}; give this user access, or say `read-only = true`")
            }
            io::ErrorKind::ResourceBusy => {
                format!("{path} is in use (mounted, or of another target): {e}; end that first")
            }
            io::ErrorKind::InvalidInput if opening.direct => {
                format!("{path} cannot be opened with `direct = true` on this file system; leave that out")
            }
            _ => format!("{path} cannot be opened: {e}"),
        })?;
        let kind = file.metadata().map_err(|e| format!("{path} cannot be looked at: {e}"))?;
        let is_device = kind.file_type().is_block_device();
        if !is_device && !kind.is_file() {
            return Err(format!("{path} is neither a file nor a block device; name one"));
        }
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|e| match e {
            Errno::WOULDBLOCK => {
                format!("another process has {path} locked (another target?); end that first")
            }
            e => format!("{path} cannot be locked: {e}"),
        })?;
        let backing = Backing {
            file,
            path: opening.path.clone(),
            block: opening.block,
            blocks: AtomicU64::new(0),
            is_device,
            create: opening.create && !opening.read_only,
            read_only: opening.read_only,
            exchange: Mutex::new(()),
        };
        backing.resize(opening.size)?;
        if opening.direct {
            backing.probe().map_err(|e| {
                format!(
                    "{path} cannot be read in blocks of {} bytes past the page cache: {e}; say \
                     `block-size = 4096`, or leave `direct` out",
                    opening.block.bytes()
                )
            })?;
        }
        let pool = Pool::new(opening.threads).map_err(|e| format!("no threads for {path}: {e}"))?;
        Ok(Self { backing: Arc::new(backing), pool })
    }
}

fn open(opening: &Opening) -> io::Result<File> {
    let is_device = opening.path.metadata().is_ok_and(|kind| kind.file_type().is_block_device());
    // Of a device, O_EXCL keeps file systems and other users away.
    let exclusive = if is_device { libc::O_EXCL } else { 0 };
    let direct = if opening.direct { libc::O_DIRECT } else { 0 };
    let mut options = OpenOptions::new();
    options.read(true).write(!opening.read_only).custom_flags(exclusive | direct);
    if opening.create && !opening.read_only && opening.size.is_some() && !is_device {
        options.create(true).mode(0o600);
    }
    options.open(&opening.path)
}

impl Backing {
    fn geometry(&self) -> Geometry {
        Geometry { block: self.block, blocks: self.blocks.load(Ordering::Relaxed) }
    }

    fn path(&self) -> std::path::Display<'_> {
        Path::display(&self.path)
    }

    /// Bytes that there are.
    fn available(&self) -> io::Result<u64> {
        if self.is_device {
            device::size(self.file.as_fd())
        } else {
            Ok(self.file.metadata()?.len())
        }
    }

    fn resize(&self, size: Option<u64>) -> Result<(), String> {
        let path = self.path();
        let there = self.available().map_err(|e| format!("{path} cannot be measured: {e}"))?;
        let size = size.unwrap_or(there);
        let block = u64::from(self.block.bytes());
        if size == 0 || !size.is_multiple_of(block) {
            return Err(format!(
                "{path} has {size} bytes for the store: that must be a multiple of the block size {block}, \
                 and not 0; set `size`"
            ));
        }
        if size > there {
            if !self.create || self.is_device {
                return Err(format!(
                    "{path} has {there} bytes, {size} are asked for: make it larger (truncate -s {size} \
                     {path}, or `create = true`), or ask for less in `size`"
                ));
            }
            self.file
                .set_len(size)
                .map_err(|e| format!("{path} cannot be made {size} bytes long: {e}"))?;
        }
        self.blocks.store(size / block, Ordering::Relaxed);
        Ok(())
    }

    /// Reads the last block, as it will be read.
    fn probe(&self) -> io::Result<()> {
        let len = self.block.bytes() as usize;
        let memory = Memory::new("shunt-nvme-probe", len)?;
        let piece = memory.piece(0..len).ok_or(io::ErrorKind::InvalidInput)?;
        let last = self.geometry().bytes() - u64::from(self.block.bytes());
        piece.read_from(self.file.as_fd(), last)
    }

    fn read(&self, range: &Range<u64>, to: &Piece) -> Outcome {
        to.read_from(self.file.as_fd(), range.start).map_err(|e| self.failed("read", &e, true))
    }

    fn write(&self, range: &Range<u64>, data: &Piece, fua: bool) -> Outcome {
        let written = data.write_to(self.file.as_fd(), range.start);
        written.map_err(|e| self.failed("write", &e, false))?;
        if fua { self.flush() } else { Ok(()) }
    }

    fn flush(&self) -> Outcome {
        fdatasync(&self.file).map_err(|e| self.failed("flush", &e.into(), false))
    }

    fn zero(&self, range: &Range<u64>, deallocate: bool, fua: bool) -> Outcome {
        if range.is_empty() {
            return Ok(());
        }
        let len = range.end - range.start;
        let how = if deallocate { FallocateFlags::PUNCH_HOLE } else { FallocateFlags::ZERO_RANGE };
        let short = fallocate(&self.file, how | FallocateFlags::KEEP_SIZE, range.start, len);
        let short = match short.map_err(io::Error::from) {
            Err(e) if lacks(&e) && self.is_device => device::zero_out(self.file.as_fd(), range),
            other => other,
        };
        match short {
            Err(e) if lacks(&e) => self.write_zeroes(range)?,
            other => other.map_err(|e| self.failed("write zeroes", &e, false))?,
        }
        if fua { self.flush() } else { Ok(()) }
    }

    fn write_zeroes(&self, range: &Range<u64>) -> Outcome {
        let failed = |e: &io::Error| self.failed("write zeroes", e, false);
        let memory = Memory::new("shunt-nvme-zeroes", PIECE).map_err(|e| failed(&e))?;
        let whole = memory.piece(0..PIECE).ok_or(Error::Busy)?;
        for at in range.clone().step_by(PIECE) {
            let len = usize::try_from(range.end - at).unwrap_or(PIECE);
            whole.part(0, len).write_to(self.file.as_fd(), at).map_err(|e| failed(&e))?;
        }
        Ok(())
    }

    /// Reads, in pieces, what nobody wants to see.
    fn verify(&self, range: &Range<u64>) -> Outcome {
        let failed = |e: &io::Error| self.failed("read", e, true);
        let memory = Memory::new("shunt-nvme-verify", PIECE).map_err(|e| failed(&e))?;
        let whole = memory.piece(0..PIECE).ok_or(Error::Busy)?;
        range.clone().step_by(PIECE).try_for_each(|at| {
            let len = usize::try_from(range.end - at).unwrap_or(PIECE);
            whole.part(0, len).read_from(self.file.as_fd(), at).map_err(|e| failed(&e))
        })
    }

    fn compare(&self, range: &Range<u64>, expected: &Piece) -> Outcome {
        let failed = |e: &io::Error| self.failed("read", e, true);
        let memory = Memory::new("shunt-nvme-compare", expected.len()).map_err(|e| failed(&e))?;
        let there = memory.piece(0..expected.len()).ok_or(Error::Busy)?;
        self.read(range, &there)?;
        there.differs_at(expected).map_or(Ok(()), |_| Err(Error::Differs))
    }

    fn run(&self, request: &Request) -> Outcome {
        let geometry = self.geometry();
        let inside = |blocks: Blocks| geometry.range(blocks).ok_or(Error::OutOfRange);
        match request {
            Request::Read(blocks, to) => self.read(&checked(geometry, *blocks, to)?, to),
            Request::Write { blocks, data, fua } => {
                self.write(&checked(geometry, *blocks, data)?, data, *fua)
            }
            Request::Flush => self.flush(),
            Request::Zero { blocks, deallocate, fua } => {
                self.zero(&inside(*blocks)?, *deallocate, *fua)
            }
            Request::Discard(ranges) => {
                let ranges: Result<Vec<_>, _> = ranges.iter().map(|b| inside(*b)).collect();
                ranges?.iter().try_for_each(|range| self.zero(range, true, false))
            }
            Request::Verify(blocks) => self.verify(&inside(*blocks)?),
            Request::Compare(blocks, expected) => {
                self.compare(&checked(geometry, *blocks, expected)?, expected)
            }
            Request::CompareAndWrite { blocks, expected, data, fua } => {
                let there = checked(geometry, *blocks, expected)?;
                let to = checked(geometry, *blocks, data)?;
                let _alone = self.exchange.lock().unwrap_or_else(PoisonError::into_inner);
                self.compare(&there, expected)?;
                self.write(&to, data, *fua)
            }
        }
    }

    fn failed(&self, what: &str, e: &io::Error, reading: bool) -> Error {
        warn!("{}: {what} failed: {e}", self.path());
        error(e, reading)
    }
}

/// True if the file system or device has no such function.
fn lacks(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOTTY | libc::ENOSYS))
}

const fn changes(request: &Request) -> bool {
    !matches!(
        request,
        Request::Read(..) | Request::Flush | Request::Compare(..) | Request::Verify(_)
    )
}

impl Store for FileStore {
    fn geometry(&self) -> Geometry {
        self.backing.geometry()
    }

    fn submit(&self, request: Request, tag: u64, mailbox: &Arc<Mailbox>) -> Submitted {
        if self.backing.read_only && changes(&request) {
            return Submitted::Done(Err(Error::ReadOnly));
        }
        if self.backing.read_only && matches!(request, Request::Flush) {
            return Submitted::Done(Ok(()));
        }
        let (backing, mailbox) = (Arc::clone(&self.backing), Arc::clone(mailbox));
        self.pool.run(Box::new(move || {
            let outcome = backing.run(&request);
            // Its piece is given back before anybody hears that it may be used again.
            drop(request);
            mailbox.put(Done { tag, outcome });
        }));
        Submitted::Pending
    }

    fn is_read_only(&self) -> bool {
        self.backing.read_only
    }

    fn has_volatile_cache(&self) -> bool {
        true
    }

    fn resize(&self, blocks: Option<u64>) -> Result<(), String> {
        let block = u64::from(self.backing.block.bytes());
        let size = blocks.map(|blocks| blocks.saturating_mul(block));
        self.backing.resize(size)
    }
}
