//! Back ends of the device port.

pub mod ivshmem;
pub mod loopback;
