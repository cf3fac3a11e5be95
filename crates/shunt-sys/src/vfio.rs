//! Interrupts of a PCI device in user space: `vfio-pci` with an IOMMU (`Documentation/driver-api/vfio.rst`).

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

/// `_IO(VFIO_TYPE, VFIO_BASE + n)` of `linux/vfio.h`.
const fn request(n: libc::c_ulong) -> libc::c_ulong {
    ((b';' as libc::c_ulong) << 8) | (100 + n)
}

const SET_IOMMU: libc::c_ulong = request(2);
const GROUP_GET_STATUS: libc::c_ulong = request(3);
const GROUP_SET_CONTAINER: libc::c_ulong = request(4);
const GROUP_GET_DEVICE_FD: libc::c_ulong = request(6);
const DEVICE_GET_REGION_INFO: libc::c_ulong = request(8);
const DEVICE_GET_IRQ_INFO: libc::c_ulong = request(9);
const DEVICE_SET_IRQS: libc::c_ulong = request(10);

/// The region that is the configuration space, the command register in it, and the bit that lets a device write to
/// memory, by which it interrupts (PCI 3.0, 6.2.2 and 6.8).
const CONFIG: u32 = 7;
const COMMAND: u64 = 4;
const BUS_MASTER: u8 = 1 << 2;

const TYPE1_IOMMU: libc::c_ulong = 1;
const GROUP_FLAGS_VIABLE: u32 = 1;
const MSIX: u32 = 2;
const SET_DATA_EVENTFD: u32 = 1 << 2;
const SET_ACTION_TRIGGER: u32 = 1 << 5;

/// Interrupts of one device that are taken.
const MOST: usize = 64;

#[repr(C)]
struct GroupStatus {
    argsz: u32,
    flags: u32,
}

#[repr(C)]
struct RegionInfo {
    argsz: u32,
    flags: u32,
    index: u32,
    cap_offset: u32,
    size: u64,
    offset: u64,
}

#[repr(C)]
struct IrqInfo {
    argsz: u32,
    flags: u32,
    index: u32,
    count: u32,
}

#[repr(C)]
struct IrqSet {
    argsz: u32,
    flags: u32,
    index: u32,
    start: u32,
    count: u32,
    eventfds: [i32; MOST],
}

/// A device whose MSI-X interrupts come as eventfds, as long as this lives.
#[derive(Debug)]
pub struct Device {
    _container: OwnedFd,
    _group: OwnedFd,
    device: OwnedFd,
}

/// Length of a request's structure.
#[allow(clippy::cast_possible_truncation, reason = "a few hundred bytes at the most")]
const fn size<T>() -> u32 {
    size_of::<T>() as u32
}

fn done(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn open(path: impl AsRef<Path>) -> io::Result<OwnedFd> {
    Ok(File::options().read(true).write(true).open(path)?.into())
}

impl Device {
    /// Opens the device of this PCI address and IOMMU group, which `vfio-pci` drives.
    ///
    /// # Errors
    /// Those of open(2) and of the requests; `PermissionDenied` for a group of which other devices are in use.
    pub fn open(address: &str, group: u32) -> io::Result<Self> {
        let container = open("/dev/vfio/vfio")?;
        let group = open(format!("/dev/vfio/{group}"))?;
        let mut status = GroupStatus { argsz: size::<GroupStatus>(), flags: 0 };
        // SAFETY: the request fills in a structure of this layout.
        done(unsafe { libc::ioctl(group.as_raw_fd(), GROUP_GET_STATUS, &raw mut status) })?;
        if status.flags & GROUP_FLAGS_VIABLE == 0 {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let container_fd = container.as_raw_fd();
        // SAFETY: the request reads a descriptor's number.
        done(unsafe {
            libc::ioctl(group.as_raw_fd(), GROUP_SET_CONTAINER, &raw const container_fd)
        })?;
        // SAFETY: the request takes a number.
        done(unsafe { libc::ioctl(container_fd, SET_IOMMU, TYPE1_IOMMU) })?;
        let name = std::ffi::CString::new(address)?;
        // SAFETY: the request reads a string that ends with 0.
        let device = unsafe { libc::ioctl(group.as_raw_fd(), GROUP_GET_DEVICE_FD, name.as_ptr()) };
        // SAFETY: a new descriptor, which is nobody else's.
        let device = unsafe { OwnedFd::from_raw_fd(done(device)?) };
        let opened = Self { _container: container, _group: group, device };
        opened.let_interrupt()?;
        Ok(opened)
    }

    fn let_interrupt(&self) -> io::Result<()> {
        let argsz = size::<RegionInfo>();
        let mut info =
            RegionInfo { argsz, flags: 0, index: CONFIG, cap_offset: 0, size: 0, offset: 0 };
        // SAFETY: the request fills in a structure of this layout.
        done(unsafe {
            libc::ioctl(self.device.as_raw_fd(), DEVICE_GET_REGION_INFO, &raw mut info)
        })?;
        let mut command = [0];
        let at = info.offset + COMMAND;
        if rustix::io::pread(&self.device, &mut command[..], at)? != 1 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        rustix::io::pwrite(&self.device, &[command[0] | BUS_MASTER], at)?;
        Ok(())
    }

    /// MSI-X interrupts that it has.
    ///
    /// # Errors
    /// Those of the request.
    pub fn interrupts(&self) -> io::Result<usize> {
        let argsz = size::<IrqInfo>();
        let mut info = IrqInfo { argsz, flags: 0, index: MSIX, count: 0 };
        // SAFETY: the request fills in a structure of this layout.
        done(unsafe { libc::ioctl(self.device.as_raw_fd(), DEVICE_GET_IRQ_INFO, &raw mut info) })?;
        Ok((info.count as usize).min(MOST))
    }

    /// Leads the interrupts from `first` on to eventfds, one each. The first time it is asked for all of them.
    ///
    /// # Errors
    /// Those of the request; `InvalidInput` for more than [`Self::interrupts`] can say.
    pub fn lead(&self, first: usize, eventfds: &[impl AsFd]) -> io::Result<()> {
        let mut set = IrqSet {
            argsz: size::<IrqSet>(),
            flags: SET_DATA_EVENTFD | SET_ACTION_TRIGGER,
            index: MSIX,
            start: u32::try_from(first).unwrap_or(u32::MAX),
            count: u32::try_from(eventfds.len()).unwrap_or(u32::MAX),
            eventfds: [-1; MOST],
        };
        if eventfds.len() > MOST {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        for (place, eventfd) in set.eventfds.iter_mut().zip(eventfds) {
            *place = eventfd.as_fd().as_raw_fd();
        }
        // SAFETY: the request reads a structure of this layout.
        done(unsafe { libc::ioctl(self.device.as_raw_fd(), DEVICE_SET_IRQS, &raw const set) })?;
        Ok(())
    }
}
