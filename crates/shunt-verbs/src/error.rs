//! Why there is no RDMA here, and why a call failed.

use core::fmt;
use std::io;

/// Why no device can be used. None of these is a fault of the program's: connections stay on TCP.
#[derive(Debug)]
pub enum Unavailable {
    /// libibverbs is not installed, or cannot be loaded. With what the loader said.
    Library(String),
    /// libibverbs lacks a function: it is older than 1.1.
    Function(&'static str),
    /// The kernel has no RDMA devices, or its part for programs (`ib_uverbs`) is not loaded.
    NoDevice,
    /// There is no device of that name. With those that there are.
    NoSuchDevice(String, Vec<String>),
    /// The device's file may not be opened by this user. With the device.
    Permission(String),
    /// The device cannot be opened. With the device.
    Device(String, io::Error),
    /// The device has no such port, or it is not active. With device and port.
    PortDown(String, u8),
    /// The port has no address at that index. With device, port and index.
    NoAddress(String, u8, u8),
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Library(said) => write!(
                f,
                "libibverbs.so.1 cannot be loaded ({said}): install libibverbs1 (Debian) or libibverbs (Fedora)"
            ),
            Self::Function(name) => {
                write!(f, "libibverbs.so.1 has no function {name}: install rdma-core 17 or newer")
            }
            Self::NoDevice => f.write_str(
                "this machine has no RDMA device that programs can use: look at `rdma link`, and load ib_uverbs and the \
                 device's module",
            ),
            Self::NoSuchDevice(name, known) if known.is_empty() => {
                write!(f, "there is no RDMA device {name}, nor any other: look at `rdma link`")
            }
            Self::NoSuchDevice(name, known) => {
                write!(f, "there is no RDMA device {name}: there is {}", known.join(", "))
            }
            Self::Permission(name) => write!(
                f,
                "the RDMA device {name} may not be opened by this user: give it access to /dev/infiniband/uverbs*"
            ),
            Self::Device(name, error) => {
                write!(f, "the RDMA device {name} cannot be opened: {error}")
            }
            Self::PortDown(name, port) => write!(
                f,
                "port {port} of the RDMA device {name} is not active: look at `rdma link`, and at the network interface below"
            ),
            Self::NoAddress(name, port, index) => write!(
                f,
                "port {port} of the RDMA device {name} has no address at index {index}: look at \
                 /sys/class/infiniband/{name}/ports/{port}/gids"
            ),
        }
    }
}

impl core::error::Error for Unavailable {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Device(_, error) => Some(error),
            _ => None,
        }
    }
}

/// A call that a device refused.
#[derive(Debug)]
pub enum Refused {
    /// Memory cannot be registered because of `RLIMIT_MEMLOCK`. With the bytes that were asked for.
    MemoryLimit(usize),
    /// A queue has no room for another request.
    Full,
    /// A queue pair is in a state that does not allow this.
    State,
    /// The numbers are not those of anything that the device has.
    Invalid(&'static str),
    /// Another error. With what was tried.
    System(&'static str, io::Error),
}

impl Refused {
    /// What an `errno` says that a call returned.
    pub(crate) fn of(tried: &'static str, errno: i32) -> Self {
        Self::System(tried, io::Error::from_raw_os_error(errno))
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MemoryLimit(bytes) => write!(
                f,
                "{bytes} bytes cannot be registered: raise RLIMIT_MEMLOCK (LimitMEMLOCK= of the unit, `ulimit -l`)"
            ),
            Self::Full => f.write_str("a queue has no room for another request"),
            Self::State => f.write_str("the queue pair's state does not allow this"),
            Self::Invalid(what) => write!(f, "the device does not know this {what}"),
            Self::System(tried, error) => write!(f, "{tried} failed: {error}"),
        }
    }
}

impl core::error::Error for Refused {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::System(_, error) => Some(error),
            _ => None,
        }
    }
}
