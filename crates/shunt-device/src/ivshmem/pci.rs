//! The device in a guest: memory and registers are BARs of a PCI device, interrupts come through `vfio-pci` where the
//! guest has an IOMMU. Elsewhere, and with `ivshmem-plain`, which has none, nobody interrupts.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use rustix::event::{Timespec, epoll};
use shunt_shm::doorbell;
use shunt_shm::ivshmem::Registers;
use shunt_sys::vfio;

use super::{Heard, Means, Transport};

/// Vendor and device, as sysfs has them.
const IVSHMEM: (&str, &str) = ("0x1af4", "0x1110");

/// The address of a PCI device: domain, bus, device, function.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Address(String);

/// A text that is no such address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoAddress;

impl FromStr for Address {
    type Err = NoAddress;

    fn from_str(text: &str) -> Result<Self, NoAddress> {
        let whole =
            if text.matches(':').count() == 1 { format!("0000:{text}") } else { text.into() };
        let shape = |(i, c): (usize, char)| match i {
            4 | 7 => c == ':',
            10 => c == '.',
            11 => ('0'..='7').contains(&c),
            _ => c.is_ascii_hexdigit(),
        };
        if whole.len() == 12 && whole.chars().enumerate().all(shape) {
            Ok(Self(whole.to_ascii_lowercase()))
        } else {
            Err(NoAddress)
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Base address and length of a BAR.
#[derive(Clone, Copy)]
struct Bar {
    start: usize,
    len: usize,
}

impl Address {
    fn file(&self, name: &str) -> PathBuf {
        PathBuf::from("/sys/bus/pci/devices").join(&self.0).join(name)
    }

    fn text(&self, name: &str) -> io::Result<String> {
        Ok(fs::read_to_string(self.file(name))?.trim().to_owned())
    }

    /// The last part of what a link in its directory leads to.
    fn link(&self, name: &str) -> Option<String> {
        Some(fs::read_link(self.file(name)).ok()?.file_name()?.to_str()?.to_owned())
    }

    /// The BARs, of which there are six.
    fn bars(&self) -> io::Result<Vec<Bar>> {
        let number = |text: &str| usize::from_str_radix(text.trim_start_matches("0x"), 16).ok();
        let bar = |line: &str| {
            let mut words = line.split_whitespace().filter_map(number);
            let (start, end) = (words.next()?, words.next()?);
            let len = if end == 0 { 0 } else { end.checked_sub(start)?.checked_add(1)? };
            Some(Bar { start, len })
        };
        Ok(self.text("resource")?.lines().filter_map(bar).collect())
    }

    /// True for a device that can interrupt: it has the MSI-X capability (PCI 3.0, 6.7 and 6.8.2).
    fn has_interrupts(&self) -> bool {
        const MSIX: u8 = 0x11;
        let config = fs::read(self.file("config")).unwrap_or_default();
        let byte = |at: u8| config.get(usize::from(at)).copied().unwrap_or(0);
        let mut at = byte(0x34);
        // A list cannot have more entries than fit.
        for _ in 0..48 {
            match (at, byte(at)) {
                (0, _) => return false,
                (_, MSIX) => return true,
                _ => at = byte(at.wrapping_add(1)),
            }
        }
        false
    }

    fn open_bar(&self, name: &str) -> io::Result<OwnedFd> {
        Ok(File::options().read(true).write(true).open(self.file(name))?.into())
    }
}

/// The device of a guest.
#[derive(Debug)]
pub struct Guest {
    memory: Arc<OwnedFd>,
    len: usize,
    /// Of a device with doorbells.
    registers: Option<Doorbell>,
    id: Option<u16>,
    interrupts: Option<Interrupts>,
}

/// The registers, and where they are.
#[derive(Debug)]
struct Doorbell {
    registers: Registers,
    bar: OwnedFd,
    at: usize,
}

impl Doorbell {
    fn of(address: &Address, at: usize) -> io::Result<Self> {
        let bar = address.open_bar("resource0")?;
        Ok(Self { registers: Registers::map(&bar, at)?, bar, at })
    }
}

#[derive(Debug)]
struct Interrupts {
    device: vfio::Device,
    /// What the ear hears.
    eventfds: Vec<OwnedFd>,
    ear: OwnedFd,
}

impl Interrupts {
    fn of(address: &Address) -> io::Result<Self> {
        let group = address.link("iommu_group").and_then(|group| group.parse().ok());
        let group = group.ok_or_else(|| io::Error::other("it has no IOMMU group"))?;
        let device = vfio::Device::open(&address.0, group)?;
        let count = device.interrupts()?;
        let eventfds = (0..count).map(|_| doorbell::create()).collect::<io::Result<Vec<_>>>()?;
        device.lead(0, &eventfds)?;
        let ear = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for eventfd in &eventfds {
            let news = epoll::EventFlags::IN | epoll::EventFlags::ET;
            epoll::add(&ear, eventfd, epoll::EventData::new_u64(0), news)?;
        }
        Ok(Self { device, eventfds, ear })
    }
}

impl Guest {
    /// Opens the device at a PCI address.
    ///
    /// # Errors
    /// Those of open(2) and mmap(2); `InvalidInput` for a device of another kind.
    pub fn open(address: &Address) -> io::Result<Self> {
        let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, what.to_owned());
        if (address.text("vendor")?.as_str(), address.text("device")?.as_str()) != IVSHMEM {
            return Err(wrong("it is no ivshmem device"));
        }
        let bars = address.bars()?;
        let (Some(registers), Some(memory)) = (bars.first(), bars.get(2)) else {
            return Err(wrong("it has no shared memory"));
        };
        let (at, len) = (registers.start % 4096, memory.len);
        let by_vfio = address.link("driver").as_deref() == Some("vfio-pci");
        if !by_vfio {
            // So that it answers to accesses; a driver has done it where there is one.
            let _ = fs::write(address.file("enable"), "1");
        }
        let can_interrupt = address.has_interrupts();
        let interrupts = (by_vfio && can_interrupt).then(|| Interrupts::of(address)).transpose()?;
        let memory = Arc::new(address.open_bar("resource2")?);
        let registers = can_interrupt.then(|| Doorbell::of(address, at)).transpose()?;
        let id = registers.as_ref().and_then(|doorbell| doorbell.registers.id());
        if registers.is_some() && id.is_none() {
            return Err(io::Error::other("the ivshmem server has not introduced it yet"));
        }
        Ok(Self { memory, len, registers, id, interrupts })
    }
}

impl Transport for Guest {
    fn memory(&self) -> &Arc<OwnedFd> {
        &self.memory
    }

    fn len(&self) -> usize {
        self.len
    }

    fn peer(&self) -> Option<u16> {
        self.id
    }

    fn vectors(&self) -> usize {
        self.interrupts.as_ref().map_or(1, |interrupts| interrupts.eventfds.len().max(1))
    }

    fn ring(&self, peer: u16, vector: usize) {
        if let Some(doorbell) = &self.registers {
            doorbell.registers.ring(peer, u8::try_from(vector % 256).unwrap_or(0));
        }
    }

    fn means(&self, _peer: u16) -> io::Result<Means> {
        let Some(Doorbell { bar, at, .. }) = &self.registers else { return Ok(Means::None) };
        Ok(Means::Register { bar: bar.try_clone()?, at: *at })
    }

    fn lead(&mut self, vector: usize, to: Option<BorrowedFd<'_>>) -> bool {
        let Some(Interrupts { device, eventfds, .. }) = &self.interrupts else { return false };
        let Some(own) = eventfds.get(vector) else { return false };
        device.lead(vector, &[to.unwrap_or(own.as_fd())]).is_ok()
    }

    fn ear(&self) -> Option<BorrowedFd<'_>> {
        self.interrupts.as_ref().map(|interrupts| interrupts.ear.as_fd())
    }

    fn hear(&mut self) -> Heard {
        let Some(interrupts) = &self.interrupts else { return Heard::default() };
        let mut room = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }; 64];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let count = epoll::wait(&interrupts.ear, &mut room[..], Some(&now)).unwrap_or(0);
        Heard { rung: count > 0, ..Heard::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_with_and_without_a_domain() {
        let whole = Ok(Address("0000:00:1f.3".into()));
        assert_eq!("00:1F.3".parse(), whole);
        assert_eq!("0000:00:1f.3".parse(), whole);
        for bad in
            ["", "1f.3", "00:1f.8", "00:1g.3", "00000:00:1f.3", "0000:00:1f.3x", "0000-00:1f.3"]
        {
            assert_eq!(bad.parse::<Address>(), Err(NoAddress), "{bad}");
        }
    }
}
