//! An emulated disk in front of a target, for virtual machines: a vhost-user-blk device, or an NVMe controller by vfio-user.
//!
//! * [`port`]: a disk behind it, as lanes of requests; [`nvme`]: one that is a target's namespace.
//! * [`config`]: what guests are told of it; [`ring`]: their rings; [`request`]: what they ask of it, checked.
//! * [`worker`]: what a thread does with a ring and a lane, and [`spin`], when it sleeps.
//! * [`front`]: the device as the front end (QEMU) sees it; [`relay`]: what passes between the two; [`serve`]: the socket, and
//!   the end.
//! * [`vfio`]: the NVMe controller, over the same port.
//! * [`door`], [`message`]: what both have in common. [`metrics`]: what is counted.
//!
//! A guest's memory is mapped here, and read and written by address alone: by the kernel, by the library of Shunt, or by
//! copies through vm-memory. No reference points at it.

pub mod config;
pub mod door;
pub mod front;
pub mod message;
pub mod metrics;
pub mod nvme;
pub mod port;
pub mod relay;
pub mod request;
pub mod ring;
pub mod serve;
pub mod spin;
pub mod vfio;
pub mod worker;

#[cfg(test)]
mod tests;
