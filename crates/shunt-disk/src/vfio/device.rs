//! The device as the monitor sees it: what becomes of its messages.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::dma::Dma;
use super::pci::{BAR_SIZE, Config, SIZE};
use super::runner::Runner;
use super::waiter::Waiter;
use super::wire::{
    CAPABILITIES, DeviceInfo, DmaMap, DmaUnmap, Header, IrqInfo, MAX_ACCESS, RegionAccess,
    RegionInfo, SetIrqs, Version, command, flag, irq, refusal, region, reply,
};
use crate::message::Message;
use crate::port::{Lane, Wait};

/// `VFIO_DEVICE_FLAGS_RESET` and `VFIO_DEVICE_FLAGS_PCI`.
const DEVICE: u32 = 1 << 0 | 1 << 1;
/// `VFIO_REGION_INFO_FLAG_READ` and `VFIO_REGION_INFO_FLAG_WRITE`.
const READ_WRITE: u32 = 1 << 0 | 1 << 1;
/// `VFIO_IRQ_INFO_EVENTFD`.
const EVENTFD: u32 = 1 << 0;

/// The device for one monitor.
pub struct Device<'s> {
    config: Config,
    runner: Runner,
    dma: Dma,
    /// Eventfds of MSI-X interrupts.
    interrupts: Vec<Option<OwnedFd>>,
    /// Interrupts that are to be raised.
    due: Vec<u16>,
    /// Waits end when this can be read.
    stop: BorrowedFd<'s>,
}

/// A structure at the beginning of a message's body, and what follows.
fn parse<T: FromBytes + KnownLayout + Immutable + Unaligned>(
    body: &[u8],
) -> Result<(&T, &[u8]), Errno> {
    T::ref_from_prefix(body).map_err(|_| Errno::INVAL)
}

/// How many bytes a structure has, as it says itself.
fn argsz<T>() -> u32 {
    u32::try_from(size_of::<T>()).unwrap_or(u32::MAX)
}

/// Bytes of a region.
const fn region_size(index: u32) -> u64 {
    match index {
        region::BAR0 => BAR_SIZE,
        region::CONFIG => SIZE,
        _ => 0,
    }
}

impl<'s> Device<'s> {
    /// A device whose commands `runner` runs. It does not wait any more once `stop` can be read.
    #[must_use]
    pub fn new(mut runner: Runner, stop: BorrowedFd<'s>) -> Self {
        let vectors = runner.controller().vectors();
        let interrupts = (0..vectors).map(|_| None).collect();
        let (config, dma) = (Config::new(vectors), Dma::default());
        Self { config, runner, dma, interrupts, due: Vec::new(), stop }
    }

    /// The commands.
    pub const fn runner(&mut self) -> &mut Runner {
        &mut self.runner
    }

    /// The lanes, when nothing is under way.
    #[must_use]
    pub fn into_lanes(self) -> Vec<Box<dyn Lane>> {
        self.runner.into_lanes()
    }

    /// Does what there is to do; with `idle`, also for lanes that have nothing under way. True if there was something.
    pub fn turn(&mut self, idle: bool) -> bool {
        let memory = Arc::clone(self.dma.memory());
        let mut found = self.runner.take(&memory);
        found |= self.runner.poll(&memory, idle);
        self.runner.post(&memory, &mut self.due);
        self.raise();
        found
    }

    /// The guest is to send messages from now on for what it has to say. True if it has said something in memory already.
    #[must_use]
    pub fn arm(&mut self) -> bool {
        self.runner.controller().arm(self.dma.memory())
    }

    /// The guest need not, as there will be a turn.
    pub fn disarm(&mut self) {
        self.runner.controller().disarm(self.dma.memory());
    }

    fn raise(&mut self) {
        for vector in self.due.drain(..) {
            if let Some(Some(fd)) = self.interrupts.get(usize::from(vector)) {
                let _the_monitors = rustix::io::write(fd, &1u64.to_ne_bytes());
            }
        }
    }

    /// Takes no more commands, and waits until all that were taken are over; `until` at the most, or until `stop` can be read.
    /// True if nothing is under way any more.
    ///
    /// # Errors
    /// Those of epoll.
    pub fn drain(&mut self, until: Option<Instant>) -> io::Result<bool> {
        let memory = Arc::clone(self.dma.memory());
        let mut wait = Wait::default();
        // At the end of the process, `stop` can be read all the time.
        let stops = [self.stop];
        let stops = if until.is_none() { &stops[..] } else { &[] };
        let mut waiter = Waiter::<1>::new(stops)?;
        loop {
            self.runner.poll(&memory, true);
            self.runner.post(&memory, &mut self.due);
            self.raise();
            if self.runner.in_flight() == 0 {
                return Ok(true);
            }
            wait.interests.clear();
            wait.until = None;
            self.runner.wait(&mut wait);
            if until.is_some_and(|until| until <= Instant::now()) {
                return Ok(false);
            }
            if waiter.wait(&wait, until)?.fds[0] {
                return Ok(false);
            }
        }
    }

    /// Has nothing under way, or fails.
    fn quiesce(&mut self) -> Result<(), Errno> {
        match self.drain(None) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Errno::CANCELED),
            Err(e) => Err(Errno::from_io_error(&e).unwrap_or(Errno::IO)),
        }
    }

    /// Does what a message asks for; the answer, if one is wanted.
    pub fn handle(&mut self, message: Message) -> Option<Vec<u8>> {
        let Message { bytes, fds } = message;
        let (header, body) = Header::ref_from_prefix(&bytes).ok()?;
        let answer = self.answer(header, body, fds);
        if header.flags.get() & flag::NO_REPLY != 0 {
            return None;
        }
        Some(match answer {
            Ok(answer) => reply(header, &[&answer]),
            Err(why) => refusal(header, why.raw_os_error().unsigned_abs()),
        })
    }

    fn answer(
        &mut self,
        header: &Header,
        body: &[u8],
        fds: Vec<OwnedFd>,
    ) -> Result<Vec<u8>, Errno> {
        if header.flags.get() & flag::KIND != 0 {
            return Err(Errno::INVAL);
        }
        match header.command.get() {
            command::VERSION => {
                let (version, _) = parse::<Version>(body)?;
                if version.major.get() != 0 {
                    return Err(Errno::NOTSUP);
                }
                let ours = Version { major: 0.into(), minor: 0.into() };
                Ok([ours.as_bytes(), CAPABILITIES].concat())
            }
            command::DMA_MAP => self.map(parse(body)?.0, fds).map(|()| Vec::new()),
            command::DMA_UNMAP => {
                let unmap = parse::<DmaUnmap>(body)?.0;
                self.unmap(unmap).map(|()| unmap.as_bytes().to_vec())
            }
            command::GET_INFO => Ok(DeviceInfo {
                argsz: argsz::<DeviceInfo>().into(),
                flags: DEVICE.into(),
                regions: region::COUNT.into(),
                irqs: irq::COUNT.into(),
            }
            .as_bytes()
            .to_vec()),
            command::GET_REGION_INFO => {
                let index = parse::<RegionInfo>(body)?.0.index.get();
                if index >= region::COUNT {
                    return Err(Errno::INVAL);
                }
                let size = region_size(index);
                Ok(RegionInfo {
                    argsz: argsz::<RegionInfo>().into(),
                    flags: if size > 0 { READ_WRITE } else { 0 }.into(),
                    index: index.into(),
                    capabilities: 0.into(),
                    size: size.into(),
                    offset: 0.into(),
                }
                .as_bytes()
                .to_vec())
            }
            command::GET_IRQ_INFO => {
                let index = parse::<IrqInfo>(body)?.0.index.get();
                if index >= irq::COUNT {
                    return Err(Errno::INVAL);
                }
                let vectors = u32::try_from(self.interrupts.len()).unwrap_or(0);
                let (flags, count) = if index == irq::MSIX { (EVENTFD, vectors) } else { (0, 0) };
                Ok(IrqInfo {
                    argsz: argsz::<IrqInfo>().into(),
                    flags: flags.into(),
                    index: index.into(),
                    count: count.into(),
                }
                .as_bytes()
                .to_vec())
            }
            command::SET_IRQS => self.set_interrupts(parse(body)?.0, fds).map(|()| Vec::new()),
            command::REGION_READ => self.read(parse(body)?.0),
            command::REGION_WRITE => {
                let (access, data) = parse::<RegionAccess>(body)?;
                self.write(access, data).map(|()| access.as_bytes().to_vec())
            }
            command::RESET => self.reset().map(|()| Vec::new()),
            _ => Err(Errno::NOTSUP),
        }
    }

    /// Memory that the device may not write, or that is no file's, is left out: the guest's commands do not find it.
    fn map(&mut self, map: &DmaMap, mut fds: Vec<OwnedFd>) -> Result<(), Errno> {
        let (Some(file), true) = (fds.pop(), fds.is_empty()) else {
            return if fds.is_empty() { Ok(()) } else { Err(Errno::INVAL) };
        };
        if map.flags.get() & DmaMap::READ_WRITE != DmaMap::READ_WRITE {
            return Ok(());
        }
        let mapped = self.dma.map(file, map.offset.get(), map.address.get(), map.size.get());
        mapped.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::INVAL))
    }

    fn unmap(&mut self, unmap: &DmaUnmap) -> Result<(), Errno> {
        // What is under way may be anywhere.
        self.quiesce()?;
        let (at, len) = (unmap.address.get(), unmap.size.get());
        if unmap.flags.get() != 0 {
            // All of it; dirty pages are not counted.
            if (at, len) != (0, 0) {
                return Err(Errno::NOTSUP);
            }
            self.dma.clear();
            return Ok(());
        }
        let unmapped = self.dma.unmap(at, len);
        unmapped.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::INVAL))
    }

    fn set_interrupts(&mut self, set: &SetIrqs, fds: Vec<OwnedFd>) -> Result<(), Errno> {
        let (start, count) = (set.start.get() as usize, set.count.get() as usize);
        if set.index.get() != irq::MSIX {
            // Of the others there are none.
            let none = set.index.get() < irq::COUNT && count == 0;
            return if none { Ok(()) } else { Err(Errno::INVAL) };
        }
        let end = start.checked_add(count).ok_or(Errno::INVAL)?;
        let places = self.interrupts.get_mut(start..end).ok_or(Errno::INVAL)?;
        match set.flags.get() ^ SetIrqs::TRIGGER {
            SetIrqs::EVENTFD if fds.len() <= count => {
                // Those without one are not told any more.
                let mut fds = fds.into_iter();
                places.fill_with(|| fds.next());
                Ok(())
            }
            SetIrqs::NONE if count == 0 => {
                self.interrupts.fill_with(|| None);
                Ok(())
            }
            SetIrqs::NONE => {
                self.due.extend((start..end).filter_map(|vector| u16::try_from(vector).ok()));
                self.raise();
                Ok(())
            }
            _ => Err(Errno::INVAL),
        }
    }

    fn read(&mut self, access: &RegionAccess) -> Result<Vec<u8>, Errno> {
        let (at, count) = (access.offset.get(), access.count.get());
        if count > MAX_ACCESS || access.region.get() >= region::COUNT {
            return Err(Errno::INVAL);
        }
        let mut answer = access.as_bytes().to_vec();
        let head = answer.len();
        answer.resize(head + count as usize, 0);
        match access.region.get() {
            region::BAR0 => self.runner.controller().read(at, &mut answer[head..]),
            region::CONFIG => self.config.read(at, &mut answer[head..]),
            // Nothing is there.
            _ => answer[head..].fill(0xff),
        }
        Ok(answer)
    }

    fn write(&mut self, access: &RegionAccess, data: &[u8]) -> Result<(), Errno> {
        if data.len() != access.count.get() as usize {
            return Err(Errno::INVAL);
        }
        match access.region.get() {
            region::BAR0 => {
                self.runner.controller().write(access.offset.get(), data);
                Ok(())
            }
            region::CONFIG if self.config.write(access.offset.get(), data) => self.reset(),
            region if region < region::COUNT => Ok(()),
            _ => Err(Errno::INVAL),
        }
    }

    /// The device is as it was at first, but for its memory and interrupts, which are the monitor's.
    fn reset(&mut self) -> Result<(), Errno> {
        self.quiesce()?;
        self.runner.controller().reset();
        self.config = Config::new(self.runner.controller().vectors());
        Ok(())
    }
}
