//! A plugin of nbdkit: a namespace of an NVMe/TCP target, for everything that speaks NBD (qemu-img, nbdcopy, fio, the
//! kernel's nbd).
//!
//! Each NBD connection has a queue of its own, and long requests are split into commands that are under way together.
//! Under `shunt run` the connections to the target are shunted like those of other programs.

mod config;

use std::sync::{Mutex, MutexGuard, PoisonError};

use nbdkit::{Error, Flags, FuaFlags, Result, Server, ThreadModel};
use shunt_nvme_host::{Completion, Data, Namespace, Queue, Range, Request, Subsystem};

use crate::config::Config;

/// What the command line has said so far.
static CONFIG: Mutex<Config> = Mutex::new(Config::new());
/// Made when the first client comes: nbdkit has forked by then.
static SUBSYSTEM: Mutex<Option<Subsystem>> = Mutex::new(None);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn failed(why: impl std::fmt::Display) -> Error {
    Error::new(libc::EIO, why.to_string())
}

fn wrong(why: impl std::fmt::Display) -> Error {
    Error::new(libc::EINVAL, why.to_string())
}

/// One client's disk.
struct Disk {
    namespace: Namespace,
    /// Most bytes of a command.
    limit: u32,
    can_discard: bool,
    can_zero: bool,
    queue: Mutex<Queue>,
}

/// Blocks of a request.
#[derive(Clone, Copy)]
struct Blocks {
    first: u64,
    count: u64,
}

impl Disk {
    /// The blocks of a range of bytes.
    fn blocks(&self, offset: u64, len: u64) -> Result<Blocks> {
        let size = u64::from(self.namespace.block_size);
        if offset.is_multiple_of(size) && len.is_multiple_of(size) {
            return Ok(Blocks { first: offset / size, count: len / size });
        }
        Err(wrong(format!(
            "requests must be whole blocks of {size} bytes: add --filter=blocksize minblock={size}"
        )))
    }

    /// Blocks in pieces of at most so many.
    fn pieces(blocks: Blocks, most: u64) -> impl Iterator<Item = Blocks> {
        let most = most.clamp(1, 1 << 16);
        let end = blocks.first + blocks.count;
        let starts = (blocks.first..end).step_by(usize::try_from(most).unwrap_or(1));
        starts.map(move |first| Blocks { first, count: most.min(end - first) })
    }

    /// The most blocks of a command with data.
    fn most(&self) -> u64 {
        u64::from(self.limit / self.namespace.block_size)
    }

    /// Does commands, as many at once as the queue takes; hands each one's data back with its number.
    fn run(
        &self,
        commands: impl Iterator<Item = (Request, Data)>,
        mut back: impl FnMut(u64, &Data),
    ) -> Result<()> {
        let mut queue = lock(&self.queue);
        let mut commands = (0..).zip(commands).peekable();
        let mut done: Vec<Completion> = Vec::new();
        let mut outcome = Ok(());
        // Also where one has failed, all that were submitted end here.
        while queue.outstanding() > 0 || (outcome.is_ok() && commands.peek().is_some()) {
            while outcome.is_ok() && queue.room() > 0 {
                let Some((number, (request, data))) = commands.next() else { break };
                outcome = queue.submit(request, data, number).map_err(failed);
            }
            queue.poll(&mut done, None).map_err(failed)?;
            for Completion { token, data, result } in done.drain(..) {
                match result {
                    Ok(_) => back(token, &data),
                    Err(why) => outcome = Err(failed(why)),
                }
            }
        }
        outcome
    }

    fn durable(flags: Flags, request: Request) -> Request {
        if flags.contains(Flags::FUA) { request.durable() } else { request }
    }

    fn sync(&self) -> Result<()> {
        self.run(std::iter::once((self.namespace.flush(), Data::None)), |_, _| ())
    }
}

fn u32_of(blocks: u64) -> u32 {
    // `Disk::pieces` makes none of more than 2^16.
    u32::try_from(blocks).unwrap_or(u32::MAX)
}

impl Server for Disk {
    fn name() -> &'static str {
        "shunt"
    }

    fn longname() -> Option<&'static str> {
        Some("A disk of an NVMe/TCP target")
    }

    fn version() -> Option<&'static str> {
        Some(env!("CARGO_PKG_VERSION"))
    }

    fn description() -> Option<&'static str> {
        Some("A namespace of an NVMe/TCP target, such as `shunt nvme target`, for NBD clients.")
    }

    fn config_help() -> Option<&'static str> {
        Some(config::HELP)
    }

    fn config(key: &str, value: &str) -> Result<()> {
        lock(&CONFIG).set(key, value).map_err(wrong)
    }

    fn config_complete() -> Result<()> {
        lock(&CONFIG).options().map(|_| ()).map_err(wrong)
    }

    fn thread_model() -> Result<ThreadModel> {
        // A connection's requests share its queue.
        Ok(ThreadModel::SerializeRequests)
    }

    fn open(_readonly: bool) -> Result<Box<dyn Server>> {
        let (options, nsid) = lock(&CONFIG).options().map_err(wrong)?;
        let mut shared = lock(&SUBSYSTEM);
        let subsystem = match &*shared {
            Some(subsystem) => subsystem.clone(),
            None => shared.insert(Subsystem::connect(options).map_err(failed)?).clone(),
        };
        drop(shared);
        let namespace = subsystem.namespace(nsid);
        let namespace =
            namespace.ok_or_else(|| failed(format!("the subsystem has no namespace {nsid}")))?;
        let attributes = subsystem.paths().into_iter().find_map(|path| path.attributes);
        Ok(Box::new(Self {
            namespace,
            limit: subsystem.max_transfer(),
            can_discard: attributes.as_ref().is_some_and(|known| known.can_discard),
            can_zero: attributes.as_ref().is_some_and(|known| known.can_write_zeroes),
            queue: Mutex::new(subsystem.queue().map_err(failed)?),
        }))
    }

    fn get_size(&self) -> Result<i64> {
        i64::try_from(self.namespace.len()).map_err(failed)
    }

    fn can_write(&self) -> Result<bool> {
        Ok(!self.namespace.read_only)
    }

    fn can_flush(&self) -> Result<bool> {
        Ok(true)
    }

    fn can_fua(&self) -> Result<FuaFlags> {
        Ok(FuaFlags::Native)
    }

    fn can_trim(&self) -> Result<bool> {
        Ok(self.can_discard)
    }

    fn can_zero(&self) -> Result<bool> {
        Ok(self.can_zero)
    }

    fn can_multi_conn(&self) -> Result<bool> {
        // A flush is of the namespace, whichever queue it comes by.
        Ok(true)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let size = u64::from(self.namespace.block_size);
        let blocks = self.blocks(offset, buf.len() as u64)?;
        let most = self.most();
        let commands = Self::pieces(blocks, most).map(|piece| {
            let len = usize::try_from(piece.count * size).unwrap_or(0);
            (self.namespace.read(piece.first, u32_of(piece.count)), Data::from(vec![0; len]))
        });
        let stride = usize::try_from(most.clamp(1, 1 << 16) * size).map_err(failed)?;
        self.run(commands, |number, data| {
            let from = usize::try_from(number).unwrap_or(usize::MAX).saturating_mul(stride);
            if let Some(part) = buf.get_mut(from..from.saturating_add(data.len())) {
                part.copy_from_slice(data.bytes());
            }
        })
    }

    fn write_at(&self, buf: &[u8], offset: u64, flags: Flags) -> Result<()> {
        let size = u64::from(self.namespace.block_size);
        let blocks = self.blocks(offset, buf.len() as u64)?;
        let stride = usize::try_from(self.most().clamp(1, 1 << 16) * size).map_err(failed)?;
        let commands = Self::pieces(blocks, self.most()).zip(buf.chunks(stride));
        let commands = commands.map(|(piece, bytes)| {
            let request = self.namespace.write(piece.first, u32_of(piece.count));
            (Self::durable(flags, request), Data::from(bytes.to_vec()))
        });
        self.run(commands, |_, _| ())
    }

    fn flush(&self) -> Result<()> {
        self.sync()
    }

    fn trim(&self, count: u32, offset: u64, flags: Flags) -> Result<()> {
        let blocks = self.blocks(offset, count.into())?;
        let range = Range { start: blocks.first, blocks: u32_of(blocks.count) };
        self.run(std::iter::once(self.namespace.discard(&[range])), |_, _| ())?;
        // Dataset Management has no FUA.
        if flags.contains(Flags::FUA) { self.sync() } else { Ok(()) }
    }

    fn zero(&self, count: u32, offset: u64, flags: Flags) -> Result<()> {
        let blocks = self.blocks(offset, count.into())?;
        let deallocate = flags.contains(Flags::MAY_TRIM);
        let commands = Self::pieces(blocks, u64::MAX).map(|piece| {
            let blocks = u32_of(piece.count);
            let request = self.namespace.write_zeroes(piece.first, blocks, deallocate);
            (Self::durable(flags, request), Data::None)
        });
        self.run(commands, |_, _| ())
    }

    fn unload() {
        // Controllers are shut down, not lost.
        if let Some(subsystem) = lock(&SUBSYSTEM).take() {
            subsystem.close();
        }
    }
}

/// What nbdkit looks for.
mod entry {
    #![allow(missing_docs, reason = "the function is the macro's")]

    use super::Disk;

    nbdkit::plugin!(Disk {
        config,
        config_complete,
        config_help,
        thread_model,
        can_write,
        can_flush,
        can_fua,
        can_trim,
        can_zero,
        can_multi_conn,
        write_at,
        flush,
        trim,
        zero,
        unload
    });
}
