//! An NVMe controller in front of a disk, as a PCI device that a virtual machine monitor attaches by vfio-user.
//!
//! What decides has no I/O, and is tested without:
//!
//! * [`pci`]: the configuration space; [`registers`]: the controller's registers.
//! * [`queue`], [`queues`]: its queues in the guest's memory, and [`shadow`], their doorbells there; [`prp`]: where commands have
//!   their data.
//! * [`identify`], [`logs`], [`events`], [`admin`]: Admin commands; [`command`]: I/O commands, checked.
//! * [`controller`]: all of these, as the guest sees them in a BAR.
//!
//! What moves bytes:
//!
//! * [`wire`]: messages of vfio-user; [`dma`]: the guest's memory; [`runner`]: commands on their way through lanes;
//!   [`waiter`]: what is waited for.
//! * [`device`]: the device as the monitor sees it; [`serve`]: the socket, and the end.
//!
//! "Base" is the NVM Express Base Specification 2.0, "PCIe" the NVMe over PCIe Transport Specification 1.0, "NVM" the NVM
//! Command Set Specification 1.0.

pub mod admin;
pub mod command;
pub mod controller;
pub mod device;
pub mod dma;
pub mod events;
pub mod identify;
pub mod logs;
pub mod pci;
pub mod prp;
pub mod queue;
pub mod queues;
pub mod registers;
pub mod runner;
pub mod serve;
pub mod shadow;
pub mod waiter;
pub mod wire;
