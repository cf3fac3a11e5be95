//! Devices of libibverbs.

use core::ffi::CStr;
use core::ops::Range;
use core::ptr::{self, NonNull};
use std::ffi::OsStr;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::abi::constants as abi;
use crate::abi::structs::{
    ibv_async_event, ibv_device, ibv_device_attr, ibv_gid_entry, ibv_port_attr, ibv_qp,
};
use crate::completion::{CompletionChannel, CompletionQueue};
use crate::context::{Context, checked};
use crate::error::{Refused, Unavailable};
use crate::library::Library;
use crate::memory::Memory;
use crate::port::{Limits, Patience, Port};
use crate::protection::MemoryRegion;
use crate::queue_pair::{PIECES, Place, QueuePair};
use crate::value::{Access, Capacity, Event, Gid, GidKind, Loss, Mtu, PairNumber, PortState};

/// A port of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortInfo {
    /// Whether it moves packets.
    pub state: PortState,
    /// The longest packet now.
    pub mtu: Mtu,
    /// Entries of its table of addresses.
    pub addresses: u8,
    /// Bytes of a message.
    pub message: u32,
}

/// An address of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Address {
    /// Its place in the port's table.
    pub index: u8,
    /// The address.
    pub gid: Gid,
    /// By which packets it is reached.
    pub kind: GidKind,
}

/// What the kernel shows in sysfs of a device that programs can open. It goes before the device does, which may have to wait for the
/// programs that have it open: without `disassociate_ucontext` a driver tells them nothing (rxe, siw).
#[derive(Clone, Debug)]
struct Node {
    path: PathBuf,
    /// `None`: it was never there. A device that comes later may have the same name.
    inode: Option<u64>,
}

impl Node {
    fn at(path: PathBuf) -> Self {
        let inode = inode(&path);
        Self { path, inode }
    }

    fn is_gone(&self) -> bool {
        self.inode.is_some() && inode(&self.path) != self.inode
    }
}

fn inode(path: &Path) -> Option<u64> {
    Some(std::fs::metadata(path).ok()?.ino())
}

/// The devices of this machine, as libibverbs lists them.
struct List<'a> {
    library: &'a Library,
    raw: NonNull<*mut ibv_device>,
    count: usize,
}

impl<'a> List<'a> {
    fn of(library: &'a Library) -> Result<Self, Unavailable> {
        let mut count = 0;
        // SAFETY: the place is this function's.
        let raw = unsafe { (library.functions.ibv_get_device_list)(&raw mut count) };
        let raw = NonNull::new(raw).ok_or(Unavailable::NoDevice)?;
        Ok(Self { library, raw, count: usize::try_from(count).unwrap_or(0) })
    }

    fn devices(&self) -> impl Iterator<Item = (*mut ibv_device, String)> {
        (0..self.count).map(|at| {
            // SAFETY: the list has so many entries.
            let device = unsafe { *self.raw.as_ptr().add(at) };
            // SAFETY: the device is one of the list, which lives; its name ends with a zero.
            let name =
                unsafe { CStr::from_ptr((self.library.functions.ibv_get_device_name)(device)) };
            (device, name.to_string_lossy().into_owned())
        })
    }
}

impl Drop for List<'_> {
    fn drop(&mut self) {
        // SAFETY: the list is this value's. What was opened stays open.
        unsafe { (self.library.functions.ibv_free_device_list)(self.raw.as_ptr()) };
    }
}

/// An opened device with one of its ports.
#[derive(Clone, Debug)]
pub struct Device {
    context: Arc<Context>,
    name: String,
    attributes: ibv_device_attr,
    place: Place,
    address: Address,
    message: u32,
    patience: Patience,
    node: Node,
}

impl Device {
    /// Names of the devices that there are.
    ///
    /// # Errors
    /// [`Unavailable::NoDevice`] where the kernel has none, or has no `ib_uverbs`.
    pub fn names(library: &Library) -> Result<Vec<String>, Unavailable> {
        let names: Vec<_> = List::of(library)?.devices().map(|(_, name)| name).collect();
        if names.is_empty() { Err(Unavailable::NoDevice) } else { Ok(names) }
    }

    /// Opens a device with a port (1 for the first one). Of its addresses it takes that of `index`, or else the one that reaches
    /// farthest.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn open(
        library: &Library,
        name: &str,
        port: u8,
        index: Option<u8>,
    ) -> Result<Self, Unavailable> {
        let list = List::of(library)?;
        let Some((raw, _)) = list.devices().find(|(_, found)| found == name) else {
            let known = list.devices().map(|(_, name)| name).collect();
            return Err(Unavailable::NoSuchDevice(name.to_owned(), known));
        };
        // SAFETY: the device is one of the list, which lives; its path is a string that ends with a zero, or is full.
        let path = unsafe { &(*raw).dev_path };
        let path = path.split(|byte| *byte == 0).next().unwrap_or_default();
        let node = Node::at(Path::new(OsStr::from_bytes(path)).to_owned());
        // SAFETY: as above.
        let raw = NonNull::new(unsafe { (library.functions.ibv_open_device)(raw) });
        let Some(raw) = raw else {
            let error = io::Error::last_os_error();
            return Err(match error.kind() {
                io::ErrorKind::PermissionDenied => Unavailable::Permission(name.to_owned()),
                _ => Unavailable::Device(name.to_owned(), error),
            });
        };
        let failed = |refused: Refused| {
            Unavailable::Device(name.to_owned(), io::Error::other(refused.to_string()))
        };
        // SAFETY: this library has just opened it, and nothing else closes it.
        let context = unsafe { Context::of(library.clone(), raw) }.map_err(failed)?;
        let attributes = attributes(&context).map_err(failed)?;
        let info = port_info(&context, port)
            .ok()
            .filter(|info| info.state == PortState::Active)
            .ok_or_else(|| Unavailable::PortDown(name.to_owned(), port))?;
        let addresses = addresses(&context, port, info.addresses);
        let address = match index {
            Some(index) => addresses.iter().find(|address| address.index == index),
            None => farthest(&addresses),
        };
        let address = *address
            .ok_or_else(|| Unavailable::NoAddress(name.to_owned(), port, index.unwrap_or(0)))?;
        let place = Place { port, gid_index: address.index, mtu: info.mtu };
        // So that `event` does not block.
        rustix::io::ioctl_fionbio(events(&context), true)
            .map_err(|errno| Unavailable::Device(name.to_owned(), errno.into()))?;
        let name = name.to_owned();
        let (message, patience) = (info.message, Patience::DEFAULT);
        Ok(Self { context, name, attributes, place, address, message, patience, node })
    }

    /// The same, of which queue pairs wait that long for an answer.
    #[must_use]
    pub fn with_patience(self, patience: Patience) -> Self {
        Self { patience, ..self }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its address.
    #[must_use]
    pub const fn address(&self) -> Address {
        self.address
    }

    /// Its port now.
    ///
    /// # Errors
    /// What the system says.
    pub fn port(&self) -> Result<PortInfo, Refused> {
        port_info(&self.context, self.place.port)
    }
}

/// Where events are told.
fn events(context: &Context) -> BorrowedFd<'_> {
    // SAFETY: the descriptor is the device's, and stays open as long.
    unsafe { BorrowedFd::borrow_raw(context.raw.as_ref().async_fd) }
}

fn attributes(context: &Context) -> Result<ibv_device_attr, Refused> {
    let mut attributes = core::mem::MaybeUninit::<ibv_device_attr>::zeroed();
    let query = context.functions().ibv_query_device;
    // SAFETY: the context is open, and the place is this function's.
    checked("ibv_query_device", unsafe { query(context.raw.as_ptr(), attributes.as_mut_ptr()) })?;
    // SAFETY: integers alone, of which zeroes are some.
    Ok(unsafe { attributes.assume_init() })
}

fn port_info(context: &Context, port: u8) -> Result<PortInfo, Refused> {
    let mut attributes = ibv_port_attr::default();
    let query = context.functions().ibv_query_port;
    // SAFETY: the context is open, and the place is this function's and zero.
    checked("ibv_query_port", unsafe { query(context.raw.as_ptr(), port, &raw mut attributes) })?;
    let state = match attributes.state {
        abi::IBV_PORT_ACTIVE => PortState::Active,
        abi::IBV_PORT_INIT | abi::IBV_PORT_ARMED | abi::IBV_PORT_ACTIVE_DEFER => {
            PortState::Starting
        }
        _ => PortState::Down,
    };
    let mtu = match attributes.active_mtu {
        abi::IBV_MTU_512 => Mtu::B512,
        abi::IBV_MTU_1024 => Mtu::B1024,
        abi::IBV_MTU_2048 => Mtu::B2048,
        abi::IBV_MTU_4096 => Mtu::B4096,
        // The shortest one works with all.
        _ => Mtu::B256,
    };
    let addresses = u8::try_from(attributes.gid_tbl_len).unwrap_or(u8::MAX);
    Ok(PortInfo { state, mtu, addresses, message: attributes.max_msg_sz })
}

/// An entry of a port's table of addresses. `None`: it is empty.
fn address(context: &Context, port: u8, index: u8) -> Option<Address> {
    let mut entry = ibv_gid_entry::default();
    let query = context.functions()._ibv_query_gid_ex;
    let (at, len) = (context.raw.as_ptr(), size_of::<ibv_gid_entry>());
    // SAFETY: the context is open, and the place is this function's and of that length.
    let failed = unsafe { query(at, port.into(), index.into(), &raw mut entry, 0, len) };
    // Not every provider, and no old kernel, knows of kinds.
    let kind = match entry.gid_type.cast_signed() {
        _ if failed != 0 => GidKind::Unknown,
        abi::IBV_GID_TYPE_IB => GidKind::InfiniBand,
        abi::IBV_GID_TYPE_ROCE_V1 => GidKind::RoceV1,
        abi::IBV_GID_TYPE_ROCE_V2 => GidKind::RoceV2,
        _ => GidKind::Unknown,
    };
    if failed != 0 {
        let query = context.functions().ibv_query_gid;
        // SAFETY: as above.
        if unsafe { query(at, port, index.into(), &raw mut entry.gid) } != 0 {
            return None;
        }
    }
    Some(Address { index, gid: Gid(entry.gid.raw), kind }).filter(|it| !it.gid.is_empty())
}

/// The addresses of a port.
fn addresses(context: &Context, port: u8, count: u8) -> Vec<Address> {
    (0..count).filter_map(|index| address(context, port, index)).collect()
}

/// The address that reaches farthest, the first one of several: those of RoCE version 2 pass routers, but for link-local ones.
fn farthest(addresses: &[Address]) -> Option<&Address> {
    addresses.iter().min_by_key(|Address { gid, kind, .. }| match kind {
        GidKind::RoceV2 if !gid.is_link_local() => 0,
        GidKind::RoceV2 => 1,
        GidKind::InfiniBand | GidKind::RoceV1 | GidKind::Unknown => 2,
    })
}

impl Port for Device {
    type Region = MemoryRegion;
    type Channel = CompletionChannel;
    type Queue = CompletionQueue;
    type Pair = QueuePair;

    fn limits(&self) -> Limits {
        // SAFETY: the context is open, and the number does not change.
        let vectors = unsafe { self.context.raw.as_ref() }.num_comp_vectors;
        let number = |number: i32| u32::try_from(number).unwrap_or(0);
        #[allow(clippy::cast_possible_truncation, reason = "a small constant")]
        let pieces = number(self.attributes.max_sge).min(PIECES as u32);
        Limits {
            vectors: number(vectors),
            requests: number(self.attributes.max_qp_wr),
            completions: number(self.attributes.max_cqe),
            pieces,
            message: self.message,
        }
    }

    fn gid(&self) -> Gid {
        self.address.gid
    }

    fn mtu(&self) -> Mtu {
        self.place.mtu
    }

    fn patience(&self) -> Patience {
        self.patience
    }

    fn register(
        &self,
        memory: &Memory,
        range: Range<usize>,
        access: Access,
    ) -> Result<MemoryRegion, Refused> {
        MemoryRegion::register(&self.context, memory, &range, access)
    }

    fn channel(&self) -> Result<CompletionChannel, Refused> {
        CompletionChannel::new(&self.context)
    }

    fn queue(
        &self,
        room: u32,
        channel: &CompletionChannel,
        vector: u32,
        name: u64,
    ) -> Result<CompletionQueue, Refused> {
        CompletionQueue::new(&self.context, room, channel, vector, name)
    }

    fn pair(&self, queue: &CompletionQueue, capacity: Capacity) -> Result<QueuePair, Refused> {
        QueuePair::new(&self.context, self.place, queue, capacity)
    }

    fn event(&self) -> Option<Event> {
        let mut event = ibv_async_event { element: ptr::null_mut(), event_type: 0 };
        let functions = self.context.functions();
        // SAFETY: the context is open, its descriptor does not block, and the place is this function's.
        if unsafe { (functions.ibv_get_async_event)(self.context.raw.as_ptr(), &raw mut event) }
            != 0
        {
            return None;
        }
        #[allow(clippy::cast_possible_truncation, reason = "ports are counted by one byte")]
        let port = event.element.addr() as u8;
        let said = match event.event_type {
            abi::IBV_EVENT_QP_FATAL | abi::IBV_EVENT_QP_REQ_ERR | abi::IBV_EVENT_QP_ACCESS_ERR => {
                let pair: *const ibv_qp = event.element.cast();
                // SAFETY: the event tells of a queue pair, which whoever destroys it waits with until the event is acknowledged.
                Event::Pair(PairNumber(unsafe { (*pair).qp_num }))
            }
            abi::IBV_EVENT_CQ_ERR => Event::Queue,
            abi::IBV_EVENT_DEVICE_FATAL => Event::Device,
            abi::IBV_EVENT_PORT_ACTIVE => Event::PortActive(port),
            abi::IBV_EVENT_PORT_ERR => Event::PortDown(port),
            abi::IBV_EVENT_GID_CHANGE => Event::Addresses(port),
            other => Event::Other(other.unsigned_abs()),
        };
        // SAFETY: the event is the one that was just got.
        unsafe { (functions.ibv_ack_async_event)(&raw mut event) };
        Some(said)
    }

    fn events(&self) -> BorrowedFd<'_> {
        events(&self.context)
    }

    fn loss(&self) -> Option<Loss> {
        if self.node.is_gone() {
            return Some(Loss::Removed);
        }
        let (context, Place { port, gid_index, .. }) = (&self.context, self.place);
        match self.port().map(|port| port.state) {
            Ok(PortState::Active) => {
                let now = address(context, port, gid_index);
                (now != Some(self.address)).then_some(Loss::Address)
            }
            Ok(PortState::Down | PortState::Starting) => Some(Loss::PortDown),
            Err(_) => Some(Loss::Failed),
        }
    }
}

const _: fn() = || {
    fn moves_between_threads<T: Send + Sync>() {}
    moves_between_threads::<(Device, QueuePair, CompletionQueue, CompletionChannel, MemoryRegion)>(
    );
};

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn a_device_that_is_removed_is_gone_also_where_another_one_has_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("uverbs0");
        assert!(!Node::at(path.clone()).is_gone(), "it was never shown");
        let make = |path: &Path| std::fs::write(path, "").unwrap();
        make(&path);
        let node = Node::at(path.clone());
        assert!(!node.is_gone());
        // The other one is there before, so it has another number.
        let other = dir.path().join("other");
        make(&other);
        std::fs::remove_file(&path).unwrap();
        assert!(node.is_gone());
        std::fs::rename(other, path).unwrap();
        assert!(node.is_gone());
    }

    #[test]
    fn the_address_that_reaches_farthest_is_taken() {
        let local = Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
        let mapped = Gid(Ipv4Addr::new(192, 0, 2, 1).to_ipv6_mapped().octets());
        // As rxe has them, as a card with both versions has them, and InfiniBand.
        let cases: [(&[(Gid, GidKind)], u8); 4] = [
            (&[(local, GidKind::RoceV2), (mapped, GidKind::RoceV2), (mapped, GidKind::RoceV2)], 1),
            (&[(local, GidKind::RoceV1), (local, GidKind::RoceV2), (mapped, GidKind::RoceV1)], 1),
            (&[(mapped, GidKind::RoceV1), (local, GidKind::RoceV2), (mapped, GidKind::RoceV2)], 2),
            (&[(local, GidKind::InfiniBand), (mapped, GidKind::InfiniBand)], 0),
        ];
        for (addresses, taken) in cases {
            let addresses = (0..).zip(addresses);
            let addresses = addresses.map(|(index, &(gid, kind))| Address { index, gid, kind });
            let addresses: Vec<_> = addresses.collect();
            assert_eq!(farthest(&addresses).map(|address| address.index), Some(taken));
        }
        assert_eq!(farthest(&[]), None);
    }
}
