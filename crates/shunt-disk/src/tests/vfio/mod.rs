//! The NVMe controller by rust-vmm's client of vfio-user, in front of a disk in memory.

mod arbitrary;
mod exact;
mod hostile;
mod shadowed;
