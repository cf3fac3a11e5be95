//! Back ends of the device port.

pub mod loopback;
